"""The words of the grammar, as data: what each phrase says, and in which slot it says it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeVar

from p2p.agents.builtin.fillers import PHRASES, STOP_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Value = TypeVar("Value")
Slot = Literal[
    "motion", "direction", "speed", "quality", "negation", "keep", "carry", "filler", "comparative"
]


@dataclass(frozen=True, slots=True)
class Entry:
    """What a phrase says."""

    slot: Slot
    value: str
    direction: str = ""
    speed: str = ""


def _by_phrase(table: Mapping[Value, str]) -> dict[str, Value]:
    """Each phrase of a table's comma-separated phrases, with what it means."""
    return {
        phrase.strip(): value for value, phrases in table.items() for phrase in phrases.split(",")
    }


def _entries(slot: Slot, table: Mapping[str, str]) -> dict[str, Entry]:
    return {phrase: Entry(slot, value) for phrase, value in _by_phrase(table).items()}


_MOTIONS = {
    "go": "go, move, walk, advance, travel, proceed, head, march, stroll, step, stride, swim, trot,"
    "drive, locomote, slither, glide, amble, strut, slide, wander, wander off, wander away,"
    "go out, take steps, take a step, take some steps, make your way, make its way, roam, shuffle,"
    "wade, saunter, paddle, float, cruise, progress, scoot, navigate, press on, get going, canter,"
    "pacing, pace along, wriggle, wriggle along, undulate, march in place, locomotion, take a walk,"
    "take a stroll, take a leisurely walk, go for a walk, take a few steps, take several steps,"
    "take a couple of steps, head off, head out, head on, head away, set off, set out,"
    "set forth, make for, keep going, keep moving, keep on going, keep on moving, keep at it,"
    "press ahead, press forward, push on, push ahead, forge ahead, carry on, continue on, go along,"
    "all over, all around, all over the place, walk around, move around, walk about,"
    "move about,"
    "go on, go off, move along, move on, move off, move out, move ahead, get moving, start moving,"
    "be off, be on your way, make headway, make progress, gain ground, cover ground, come along,"
    "hike, trek, ramble, promenade, parade, waddle, toddle, trudge, lumber, stagger, limp, swagger,"
    "prowl, prance, stomp, hobble, lurch, stalk, sail, squirm, snake along, worm along,"
    "coast, soldier on, four beat, four beats, three beat, three beats",
    "run": "run, run around, run about, jog, lope, go for a run, at a run, at a jog, go for a jog,"
    "go running",
    "crawl": "crawl, creep, sneak, slink",
    "spin": "spin, rotate, twirl, pirouette, whirl, revolve, swivel, spin around, whirl around,"
    "twist around, gyrate, pivot, do a spin, do spins, in tight circles, tight circles,"
    "in small circles",
    "turn": "turn, turn around, turn round, circle,"
    "in a circle, in circles, walk in circles, run in circles,"
    "move in circles, go in circles, go around in circles, go round in circles, in rings,"
    "circles around, a circle around, round in a circle, do laps, do a lap, run laps, go round,"
    "round and round, around and around,"
    "go around, orbit, loop around, rings around, draw rings, draw circles around,"
    "draw a circle around, draw circles, draw a circle, in a big circle, in a wide circle,"
    "in a large circle, in big circles, in wide circles, in large circles, trace circles around,"
    "trace a circle around, trace circles, trace a circle",
    "roll": "roll, roll over, tumble, turn over, barrel roll",
    "flip": "flip, somersault, cartwheel, do a flip, flip over, go head over heels, loop",
    "jump": "jump, leap, jump up, spring, spring up, take off, leap up, vault, get airborne,"
    "launch yourself, fly up",
    "hop": "hop, bounce, skip, bound, bunny hop, multiple hops, distinct hops, several hops,"
    "multiple distinct hops, repeated hops, many hops, hop around, hop about, bounce around,"
    "jump around, jump repeatedly, keep jumping, pogo",
    "sway": "sway, swing, oscillate, rock, side to side, from side to side, back and forth,"
    "to and fro, left and right, right and left, left to right, from left to right,"
    "to the left and to the right, to the left and the right, to the left and right,"
    "rhythmically, in a steady rhythm, forth and back, one side to the other,"
    "from one side to the other, between left and right, left then right, shuttle, pendulate",
    "stand": "stand, stand still, stay still, hold still, keep still, still, remain still, stay,"
    "hold, rest, wait, pause, hold position, stand straight, stay in place, stand in place,"
    "remain in place, motionless, stationary, do nothing, keep standing, immobile,"
    "not do anything, don't do anything, don't budge, do not budge, not budge, without budging,"
    "leave it resting there, leave it resting, leave it,"
    "settle there, don't leave it, do not leave it, without leaving it, never leave it,"
    "take a rest, take a break,"
    "have a rest, rooted to the spot, hold your ground,"
    "stay where you are, remain where you are, stay where it is, not move a muscle,"
    "don't move a muscle, do not move a muscle, without moving a muscle, unmoving, stock still,"
    "dead still, keep calm and still, sit still, sit tight, stay motionless",
    "stop": "stop, halt, freeze, brake, come to a halt, come to a stop, come to rest,"
    "come to a standstill, come to a complete stop, stop moving, stop walking, stop running,"
    "stop dead, standstill, stop swimming, stop going, stop hopping, stop crawling, quit moving,"
    "cease moving, cease all movement, stop all movement, stop all motion, pull up,"
    "grind to a halt,"
    "screech to a halt",
    "balance": "balance, keep balance, keep your balance, keep its balance, keep the balance,"
    "stabilize, stabilise, prop up, prop it up, prop the pole up, hold it up, keep it up,"
    "keep it standing, keep it in the air, stay balanced, keep it balanced, keep it upright",
    "crouch": "crouch, squat, duck, kneel, bend your knees, bend the knees, bend its knees,"
    "bend your legs, hunker, hunker down, crouch down, squat down, duck down",
    "lie": "lie, lie down, lay, lay down, lie flat",
    "sit_up": "sit up",
    "get_up": "get up, stand up, rise, rise up, get to your feet, get to its feet,"
    "rise to your feet, rise to its feet,"
    "come to your feet, jump to your feet,"
    "get on your feet, get back on your feet, get onto your feet, get off the ground,"
    "get off the floor,"
    "wake up, pick yourself up, push yourself up, get yourself up,"
    "haul yourself up, get back up, swing up, swing it up, swing the pole up",
    "raise": "raise, lift, hold up, elevate, hoist, stretch up",
    "lower": "lower, drop, put down, dip",
    "reach": "reach, reach for, reach out, point, point at, point to, hit the target,"
    "find the target,"
    "get to the target, go to the target, move to the target, go to the goal, aim for, aim at,"
    "line up with, line it up with, align with, settle on, settle at, land on, home in on,"
    "zero in on,"
    "lock onto, lock on to, get close to, approach, hover over, hover at, make it to, arrive at,"
    "end up at, end up on, meet the target, find the goal, hit the goal, cover the target",
    "touch": "touch, reach the object, reach for the object, tap, poke, make contact with",
    "push": "push, shove, nudge, bump, knock, shift the object, move the object, get the object,"
    "bring the object, take the object, put the object, place the object, carry the object,"
    "slide the object, pull the object, guide the object, roll the object, drag the object,"
    "deliver the object, transport the object, transfer the object, steer the object,"
    "sweep the object, drive the object",
    "leave": "let go, let go of, let it go, let go of it, let go of the object,"
    "release, withdraw, get out of the way",
    "return": "return, come back, go home, come home, get back to, retrace your steps,"
    "turn around and come back, turn round and come back, turn around and go back,"
    "turn around and return, turn round and return, turn back, head back, head home",
    "fall": "fall, fall over, tip over, fall down, topple, topple over, crash, collapse,"
    "drop the pole, drop the poles, let the pole fall, let the poles fall, let the pole drop,"
    "let it fall, let it drop, drop it, let the pole tip over, lose the pole, lose balance,"
    "lose your balance, lose its balance, stumble, trip, falls, falls over, falls down",
}
"""Base forms: `lemmas` takes care of the others. `fall` is understood only where it is forbidden:
nobody asks for it."""

_FULL_MOTIONS = {
    ("run", "", "fast"): "sprint, dash, race, gallop, rush, bolt, hurtle, charge, zoom,"
    "hurry, tear along, scurry, scurry off, scuttle, scamper, scamper off, scamper along,"
    "speed along,"
    "speed ahead, speed off, speed away, whizz, whiz, zip, zip along, blast along, blaze along,"
    "barrel along, fly along, leg it, hustle, hasten, make haste, hightail it, tear off, dart",
    ("go", "", "slow"): "tiptoe, inch, plod, dawdle, inch along, trundle, trundle along, mosey,"
    "mosey along, potter, potter along, ease along, ease forward",
    ("go", "", "fast"): "far, as far as possible, as far as you can, as far as it can,"
    "as much distance as possible, cover as much distance as possible,"
    "cover as much ground as possible, cover distance, as far away as possible,"
    "as far away from the starting point as possible, as far away from the start as possible,"
    "as far from the start as possible, as far from the starting point as possible",
    ("flip", "backward", ""): "backflip, back flip, back somersault",
    ("flip", "forward", ""): "frontflip, front flip, front somersault",
    ("hop", "forward", ""): "hop along, bounce along, skip along, bound along",
    ("go", "left", ""): "sidestep, strafe, sidle",
    ("go", "forward", ""): "head straight on",
    ("go", "backward", ""): "retreat, back up, back off, moonwalk, back away",
}
"""Motions that bring a direction or a speed along."""

_TO = "to, onto, on to, on, at, over, towards, toward, into, over to, up to, right on, right at,"
_TO += (
    "right to, right onto, all the way to, straight to, straight onto, upon, on top of, close to,"
)
_TO += (
    "right over, exactly on, exactly at, exactly over, directly on, directly over, next to, near,"
)
_TO += "with, against"
_TARGETS = "target, goal, red target, red dot, dot, red ball, red goal, red mark, mark, red point,"
_TARGETS += "red circle, red sphere, red spot, red marker, marker, destination, target point,"
_TARGETS += "target position, target location, goal position, goal point, bullseye"
_FROM_WHERE = "where you began, where you started, where it began, where it started, the start,"
_FROM_WHERE += "your start, the starting point, your starting point, the starting position,"
_FROM_WHERE += "your starting position, your original position, the original position, the origin,"
_FROM_WHERE += "the beginning, the starting place, your starting place, where you came from"


def _axis(name: str) -> str:
    """Phrases for a way along an axis of the world."""
    ways = ("in", "in the", "along", "along the", "toward", "towards", "towards the", "to", "",
            "in the direction of", "in the direction of the")  # fmt: skip
    ends = ("", " axis", " direction")
    return ",".join(f"{way} {name}{end}".strip() for way in ways for end in ends)


_DIRECTIONS = {
    "forward": "forward, forwards, ahead, onward, onwards, to the front, on ahead,"
    "in the forward direction, frontwards, forth, dead ahead, up ahead, head first, headfirst,"
    "nose first, face first, down the lane, down the runway, along the runway, in front of you,"
    "in a forward direction, in the direction you are facing, the way you are facing,"
    "along the x axis, along x," + _axis("positive x") + "," + _axis("increasing x"),
    "backward": "backward, backwards, back, in reverse, reverse, to the back, rearward, rearwards,"
    "in the backward direction, in the reverse direction, tail first, the wrong way,"
    "the wrong way round, the wrong way around, the other way, the other way round,"
    "the other way around, in the wrong direction, in the opposite direction, rear first,"
    "back end first, bottom first, in a backward direction, in a backwards direction, to the rear,"
    "butt first, rump first, hind end first, rear end first, behind you, the opposite way,"
    "in reverse gear, reverse gear," + _axis("negative x") + "," + _axis("decreasing x"),
    "left": "left, leftward, leftwards, to the left, sideways, sideway, laterally, to the side,"
    "to your left, to its left, to the left side, to your left side, to its left side, leftwardly,"
    "toward the left, towards the left, over to the left, to one side, to either side,"
    "to the left-hand side, to the left hand side, along the y axis, along y,"
    + _axis("positive y")
    + ","
    + _axis("increasing y"),
    "right": "right, rightward, rightwards, to the right, to your right, to its right,"
    "to the right side, to your right side, to its right side, toward the right,"
    "towards the right, over to the right, to the right-hand side, to the right hand side,"
    + _axis("negative y")
    + ","
    + _axis("decreasing y"),
    "clockwise": "clockwise",
    "counterclockwise": "counterclockwise, anticlockwise, counter clockwise, counter-clockwise,"
    "anti-clockwise, anti clockwise",
    "up": "up, upward, upwards, into the air, in the air, up and down, off the ground,"
    "off the floor, to the sky, into the sky",
    "down": "down, downward, downwards",
    "away": "away, away from, off of it, from it",
    "target": ",".join(
        f"{to.strip()} the {target.strip()}"
        for to in _TO.split(",")
        for target in _TARGETS.split(",")
    ),
    "start": ",".join(
        f"{back}to {place.strip()}" for back in ("", "back ") for place in _FROM_WHERE.split(",")
    )
    + ",home, back home",
}

_SPEEDS = {
    "fast": "fast, quick, quickly, rapidly, rapid, swiftly, swift, at full speed, at top speed,"
    "as fast as possible, as fast as you can, as fast as it can, as quickly as possible,"
    "as quickly as you can, as quick as possible, as quick as you can, as soon as possible,"
    "at high speed, speedily, high speed, full speed, hard, flat out, all out, at maximum speed,"
    "at max speed, top speed, maximum speed, full throttle, at a sprint, in no time, right away,"
    "at once, immediately, promptly, without delay, briskly, hurriedly, with all your might,"
    "at full tilt, full tilt, at breakneck speed, really fast, super fast, at the utmost speed,"
    "as fast as your legs will carry you, the fastest you can, with the utmost speed, brisk,"
    "like your life depends on it, as if your life depended on it, like there is no tomorrow,"
    "at a brisk pace, fastest, full speed ahead, full steam ahead, full steam, speedy, pronto,"
    "asap,"
    "as fast as your legs can carry you, as rapidly as possible, as swiftly as possible,"
    "at lightning speed, lightning fast, at great speed, at speed, with speed, with great speed,"
    "pedal to the metal, like mad, like crazy, at your fastest, at its fastest, hastily, in haste,"
    "in a hurry, in a rush, on the double, go all out, give it everything, give it your all,"
    "give it all you've got, without wasting time, max speed, as hard as possible, like lightning",
    "slow": "slow, slowly, as if you had all day, as though you had all day, like you have all day,"
    "as if you had all the time in the world, like you have all the time in the world,"
    "with all the time in the world,"
    "at low speed, leisurely, gently and slowly, at a slow pace, low speed,"
    "unhurriedly, sluggishly, take your time, at a snail's pace, in slow motion, unhurried,"
    "unrushed, at a crawl,"
    "nice and slow, nice and slowly, nice and easy, slow and easy, easy does it, take it easy,"
    "taking it easy, take it slow, taking it slow, take things slow, take things easy, no rush,"
    "no hurry, there's no rush, there is no rush, there's no hurry, there is no hurry, in no hurry,"
    "in no rush, with no hurry, without hurry, without hurrying, without rushing, without haste,"
    "without rush,"
    "without any hurry, without any rush, don't rush, do not rush, don't hurry, do not hurry,"
    "not rushing, not hurrying, never rushing, never hurrying, not in a hurry, taking your time,"
    "taking its time, slowish, sluggish, at a relaxed pace, relaxed pace, at a gentle pace,"
    "gentle pace, at a slow walk, at a stroll, at leisure, at your leisure, snail's pace,"
    "not too fast, not so fast, not very fast, not too quickly, without going too fast, tardily",
    "medium": "moderately, steadily, at a moderate speed, at walking pace, at a steady pace,"
    "at a moderate pace, at medium speed, at a comfortable pace, at a normal pace,"
    "at normal speed, at an easy pace, comfortably, at a comfortable speed, easy, moderate,"
    "comfortable, at a walking pace, walking pace, at walking speed, at a walking speed,"
    "walking speed, steady pace, steady speed, steady progress, even pace, at an even pace,"
    "at a walk, easy going, easygoing,"
    "at a good pace, at a decent pace,"
    "at a regular pace, at a constant pace, at a constant speed, at constant speed, constant speed,"
    "constant pace, at constant pace, at a steady speed, at steady speed, at a natural pace,"
    "at an ordinary pace, at an average pace, at average speed, at a casual pace, casually, casual,"
    "at a reasonable pace, at a reasonable speed, normal speed, normal pace, medium speed,"
    "medium pace, not too slow, not too slowly, at half speed, half speed, natural pace,"
    "at a sensible pace, at a sensible speed, at jogging pace, at a jogging pace",
}

_ALOFT = ",".join(
    f"{feet}{leaving} the ground{at_once}"
    for feet in ("", "feet ", "legs ", "all feet ", "all legs ", "both feet ", "both legs ",
                 "both sets of legs ", "with all feet ", "with both feet ")
    for leaving in ("leaving", "off")
    for at_once in ("", " simultaneously", " together", " at once", " at the same time")
    if feet or leaving != "off"
)  # fmt: skip
_QUALITIES = {
    "upright": "upright, erect, vertical, vertically, head up, straight up, torso up, bolt upright,"
    "dead upright, ramrod straight, straight as a ramrod, straight as a rod, straight as a candle,"
    "straight as a post, straight as a pole, on end, head held high, without tilting,"
    "without leaning, without tipping, don't lean, do not lean, don't tilt, do not tilt,"
    "never leaning,"
    "not leaning, not tilting, no leaning, no tilting, no wobbling over, without slouching,"
    "don't slouch",
    "level": "level, horizontal, flat, back level, torso level, horizontally, levelled, leveled,"
    "without wobbling, without wobble, no wobbling, no wobble, not wobbling, without swaying,"
    "no swaying, don't wobble, do not wobble,"
    "on an even keel, even keel, parallel to the ground, parallel to the floor",
    "low": "low, near the ground, close to the ground, close to the floor, low to the ground,"
    "near the floor, low down, hugging the ground, belly to the ground, low to the floor,"
    "belly low, belly brushing the floor, belly brushing the ground,"
    "belly almost brushing the floor, belly almost brushing the ground,"
    "belly almost touching the floor, belly almost touching the ground,"
    "belly near the ground, belly close to the ground, belly close to the floor, chest low,"
    "body low, down low, as low as possible, as low down as possible, low slung, hug the ground,"
    "hug the floor, hugging the floor, a low profile, low profile, flat to the ground,"
    "flat against the ground, close to the surface",
    "high": "high, tall, as high as possible, as high as you can, as high as it can,"
    "sky high, as tall as possible, the highest you can, high up, as high up as possible,"
    "high into the air, way up, up high, to a great height, maximum height, the maximum height",
    "powerful": "big, huge, powerful, powerfully",
    "high_steps": "high knees, with high knees, knees up, with knees up, knees high,"
    "lifting your knees, lift your knees, lifting your knees high, lift your knees high,"
    "lifting your feet high, lift your feet high, high steps, with high steps",
    "in_turn": "one leg after the other, one foot after the other, one foot in front of the other,"
    "leg after leg, put one foot in front of the other, alternating legs, alternating your legs,"
    "on alternating legs, step by step, alternate legs, on alternate legs, with alternate legs",
    "aloft": _ALOFT,
    "repeatedly": "repeatedly, repeated, again, over and over, over and over again,"
    "again and again,"
    "time after time, time and again",
    "symmetric": "symmetric, symmetrical, symmetrically, symmetry, evenly, with symmetry",
    "carried": "as if carrying a tray, without spilling a drop, without spilling",
    "smooth": "smooth, smoothly, fluid, fluidly, gracefully, graceful, elegantly, smooth motion,"
    "fluent, fluently, flowing, flowingly, seamless, seamlessly, silky, without jerks,"
    "without jerking, without jerky movements, without jerky motions, without jerky motion,"
    "without jerky movement, no jerky motion, no jerky movement, without any jerks, no jerks,"
    "no jerking, no jerky movements, no jerky motions, not jerky, not jerkily, jerk free,"
    "without jolts, no jolts, without jolting, no sudden movements, no sudden moves,"
    "no abrupt movements,"
    "without sudden movements, without sudden moves, without abrupt movements, without shaking,"
    "without trembling, without jittering, without twitching, without jitter, no shaking,"
    "no jittering, no jitter, no twitching, no trembling, like silk, like butter",
    "quiet": "quiet, quietly, calm, calmly, softly, silently, without a sound, relaxed, relaxedly,"
    "serenely, serene, peacefully, peaceful, tranquilly, noiselessly, soundlessly, without noise,"
    "without any noise, without making noise, without making any noise, stealthily, silent,"
    "in a relaxed way, in a calm way, without bobbing, without bobbing up and down, no bobbing,"
    "without bouncing up and down, calm and collected, cool and collected, calm and composed,"
    "chill, chill out, keep calm, stay calm, staying calm,"
    "without making a sound",
    "efficient": "efficient, efficiently, economically, little energy, little effort,"
    "low energy, low effort, minimal energy, minimal effort, saving energy, save energy,"
    "energy efficient, using little energy, with little effort, gently, gentle, gentlest,"
    "lazily, lazy,"
    "effortlessly, effortless, sparingly, without effort, economical, conserving energy,"
    "without wasting energy, wasting no energy, minimum effort, minimum energy, least effort,"
    "with the least effort, the least effort, frugally, frugal, thriftily, without exertion,"
    "energy saving, effort saving",
    "in_place": "in place, on the spot, at the spot, in one place, in position, on the same spot,"
    "in the same spot, on one spot, in the same place, where you are, where it is, stay put,"
    "staying put,"
    "keep put, remain put, without going anywhere, without getting anywhere, without travelling,"
    "without traveling, without leaving the spot, without leaving your spot,"
    "without going off, at the same place, right where you are, without moving away,"
    "without moving from the spot, on its spot, on your spot, in one spot, at one spot,"
    "in a single spot, in a single place, without changing place, without changing position,"
    "without leaving your place, without leaving the place, without moving forward,"
    "without moving forwards, without going forward, where you stand,"
    "where it stands, in situ, within one spot",
    "centred": "in the middle, near the middle, around the middle, in the centre, in the center,"
    "near the centre, near the center, around the centre, around the center, centred, centered,"
    "at the middle, at the centre, at the center, close to the middle, close to the centre,"
    "close to the center, in the middle of the track, mid track, away from the ends",
    "off_centre": "away from the middle, away from the centre, away from the center,"
    "out of the middle, out of the centre, out of the center, off centre, off center, off middle,"
    "leave the middle, leave the centre, leave the center",
    "on_right": "on the right side, on the right, on the right half, at the right end,"
    "right of the middle, right of centre, right of center, to the right of the middle,"
    "to the right of centre, to the right of center, on the right hand side, on its right side,"
    "right half, right end, over on the right, near the right end, towards the right end",
    "on_left": "on the left side, on the left, on the left half, at the left end,"
    "left of the middle, left of centre, left of center, to the left of the middle,"
    "to the left of centre, to the left of center, on the left hand side, on its left side,"
    "left half, left end, over on the left, near the left end, towards the left end",
    "straight": "straight, in a straight line, straight line, without drifting,"
    "without drifting off, without drifting away, a straight course,"
    "straight course, on a straight line, in line, on course, dead straight, arrow straight,"
    "as the crow flies, in a beeline, beeline, a beeline, straight path, on a straight path,"
    "along a straight line, along a straight path, in a line,"
    " no drifting, without sideways drift,"
    " without any sideways drift, no sideways drift,"
    "without going astray,"
    "without any drift, without drift",
    "crooked": "this way and that, this way and that way,"
    "drift, veer, veer off, swerve, swerve off, stray, deviate, drift off, off course,"
    "go off course, zigzag, in a zigzag, weave, curve, in a curve, veer off to either side,"
    "veer to either side, drift to either side, stray to either side, veer to the side,"
    "drift to the side, veer off to the side, veer left or right, meander, meander along, zig zag,"
    "serpentine, in a slalom, slalom",
    "on_back": "on its back, on your back, on the back, upside down, belly up, onto your back,"
    "onto its back, face up",
    "on_front": "on its belly, on your belly, on the belly, onto your belly, onto its belly,"
    "on its stomach, on your stomach, onto your stomach, onto its stomach, on its front,"
    "on your front, onto your front, onto its front, on your chest, onto your chest, face down",
    "reared": "on its hind legs, on your hind legs, on the hind legs, on hind legs, on two legs,"
    "on its back legs, on your back legs, on the back legs, on its rear legs, on your rear legs,"
    "on your two hind legs, on its two hind legs, rear up, nose up, nose pointing up, nose high,"
    "nose in the air, nose pointed up, nose to the sky, snout up, nose held up, nose held high,"
    "nose pointing upwards, nose pointing at the sky, nose pointing to the sky, nose upwards",
    "stable": "balanced, stable, stably, steady, stability, safely, safe, on your feet,"
    "on its feet, on foot, on both feet, on two feet, on both legs, on both your feet,"
    "on your legs,"
    " carefully, with care, cautiously, careful,"
    "cautious, securely, secure, solidly, solid, rock solid,"
    "sure footed, surefooted, well balanced, stay safe",
}

MISSPELT = _by_phrase(
    {"straight": "strait, straigth, streight", "forward": "foward, forword, froward, foreward",
     "backwards": "backwords", "target": "taget", "balance": "ballance",
     "clockwise": "clock-wise", "counterclockwise": "counter-clock-wise", "quickly": "quikly",
     "left": "lefft", "right": "rigth, rihgt", "walk": "wlak", "jump": "jmup", "the": "teh, hte"}
)  # fmt: skip
"""Of short or confused words, which a single slip of the finger does not explain."""

IRREGULAR = _by_phrase(
    {"lie": "lying", "run": "ran", "hold": "held", "keep": "kept", "bend": "bent", "stand": "stood",
     "leap": "leapt", "swim": "swam", "rise": "rose, risen", "come": "came",
     "go": "went, gone, going", "spin": "spun", "swing": "swung", "creep": "crept",
     "fall": "fell, fallen", "lose": "lost"}
)  # fmt: skip

SIMILES = _by_phrase(
    {
        ("spin", "", ""): "top, spinning top, ballerina, dancer, whirlwind, carousel, tornado,"
        "propeller, merry-go-round",
        ("hop", "", ""): "kangaroo, rabbit, bunny, frog, pogo stick, flea, sparrow, grasshopper,"
        "cricket, hare, wallaby, jackrabbit",
        ("crawl", "", ""): "lizard, caterpillar, baby, crocodile, gecko, salamander",
        ("go", "left", ""): "crab",
        ("go", "", ""): "soldier, fish, eel, dolphin, otter, snake, worm",
        ("run", "", "fast"): "cheetah, rocket, the wind, racing car, race car, greyhound, bullet,"
        "racehorse, flash",
        ("go", "", "slow"): "snail, tortoise, turtle, sloth",
        ("stand", "", ""): "statue, tree, flagpole, rock, stone, boulder, mountain, mannequin,"
        "lamppost, scarecrow, post, pillar, column, oak",
        ("crouch", "", ""): "goalkeeper, catcher",
        ("roll", "", ""): "barrel, log",
        ("raise", "", ""): "pupil, pupil in school, student, schoolchild",
        ("sway", "", ""): "pendulum, metronome, clock",
    }
)
"""What doing it like one of these says: the motion, and the direction or speed if none is said."""

OPPOSITE = {
    one: other
    for pair in (("forward", "backward"), ("left", "right"), ("up", "down"),
                 ("clockwise", "counterclockwise"))
    for one, other in (pair, pair[::-1])
}  # fmt: skip
EITHER_SIDE = frozenset(
    ["sideways", "sideway", "laterally", "to the side", "to one side", "to either side",
     "sidestep", "strafe", "sidle", "along the y axis", "along y"]
)  # fmt: skip
"""These leave open which side; a side that is named as well is no contradiction."""

_MANNERS = {
    "walk": "walk, stroll, step, stride, saunter, take steps, take a step, take some steps,"
    "take a walk, take a stroll, take a leisurely walk, go for a walk, take a few steps,"
    "take several steps, take a couple of steps, hike, trek, ramble, promenade",
    "amble": "amble, four beat, four beats",
    "trot": "trot",
    "pace": "pacing, pace along",
    "canter": "canter, lope, three beat, three beats",
    "gallop": "gallop",
    "bound": "bound, bound along",
    "march": "march, march in place, soldier",
    "skip": "skip, skip along",
    "strafe": "strafe, sidestep, sidle",
    "shuffle": "shuffle",
    "glide": "glide, sail",
    "quiet": "sneak, slink, creep",
    "hind_legs": "on its hind legs, on your hind legs, on the hind legs, on hind legs,"
    "on two legs, on its back legs, on your back legs, on the back legs, on its rear legs,"
    "on your rear legs, on your two hind legs, on its two hind legs",
    "in_water": "swim, paddle, wade, fish, eel, dolphin, otter",
    "without_legs": "slither, slide, float, wriggle, wriggle along, undulate, snake, worm,"
    "squirm, snake along, worm along",
    "about": "all over, all around, all over the place, walk around, run around, move around,"
    "walk about, run about, move about",
    "": "tiptoe, strut, plod, moonwalk, cartwheel, kneel, pirouette, vault, wander, roam,"
    "in a big circle, in a wide circle, in a large circle, in big circles, in wide circles,"
    "in large circles, pull the object, drag the object, carry the object, ballerina, dancer,"
    "caterpillar, baby,"
    "parade, waddle, toddle, trudge, lumber, stagger, limp, swagger, prowl, prance, stomp, hobble,"
    "lurch, stalk, coast, soldier on, pogo, gecko, salamander, sit still",
}
"""What a phrase says beyond the motion that it stands for; empty: nothing measures it."""

_NEGATIONS = "not, don't, dont, do not, without, never, no, avoid, avoiding, doesn't, does not, nor"
_KEEPS = "keep, staying, stays, remain, maintain, park, keep it there, hold it there, stay on it,"
_KEEPS += "stay with it, leave it there, hold it steady there, keep it raised, keep it lifted,"
_KEEPS += "keep it high, hold it high"
_CARRIES = "come, put, place, stick, stretch, bring, take, pull, carry, draw, guide, steer, shift,"
_CARRIES += "sweep, lead, extend, direct, deliver, transfer, transport, send, position"
"""They say that something is moved; where to says what is meant."""
LIGHT_VERBS = frozenset({"take", "draw"})
"""Of these, right before a motion: `take a jump` is to jump."""
_COMPARATIVES = {
    "faster": "faster, quicker, more speed, higher speed, speed up",
    "slower": "slower, less speed, slow down",
    "lower": "lower, closer to the ground, too high",
    "higher": "higher, taller, too low",
    "smoother": "smoother, less jerky, too jerky, jerky, shaky, less shaky",
    "quieter": "quieter, calmer",
    "cheaper": "more efficient, less effort, less energy, wasteful, too much effort",
    "steadier": "steadier, more stable, unstable, wobbly, falls, fell, it falls",
    "straighter": "straighter, more upright, more level, drifts",
    "longer": "longer, train longer, more steps, more training, more time",
}
"""Understood in remarks, not in a first prompt."""

_PHRASES: Mapping[str, Entry] = {
    **_entries("motion", _MOTIONS),
    **{phrase: Entry("motion", *full) for phrase, full in _by_phrase(_FULL_MOTIONS).items()},
    **_entries("direction", _DIRECTIONS),
    **_entries("speed", _SPEEDS),
    **_entries("quality", _QUALITIES),
    **_entries("negation", {"not": _NEGATIONS}),
    **_entries("keep", {"keep": _KEEPS}),
    **_entries("carry", {"carry": _CARRIES}),
    **_entries("filler", {"": " ".join(PHRASES.split())}),
}

_REMARK_PHRASES = {**_PHRASES, **_entries("comparative", _COMPARATIVES)}

VOCABULARY = frozenset(word for phrase in (*_REMARK_PHRASES, *SIMILES) for word in phrase.split())

LONGEST_PHRASE = max(len(phrase.split()) for phrase in _REMARK_PHRASES)

STAYING = frozenset({"stay", "hold", "stand", "remain", "be"})
"""Before a quality they mean to keep it: `stay low` is not to stand still."""

SIDES = {
    **{side: side for side in ("left", "right", "front", "back", "upper", "lower", "both")},
    "first": "first",
    "second": "second",
    "fore": "front",
    "rear": "back",
    "hind": "back",
}
"""Words that say which of several limbs; they count only before a limb's name."""

DEGREES = frozenset(
    ["nearly", "almost", "mostly", "perfectly", "completely", "fully", "roughly", "quite"]
)
"""Before a quality they change nothing of what it is: `stay nearly vertical`."""

OWNERS = frozenset({"the", "its", "your", "his", "her", "their", "my"})
"""Before `back` they make it a body part: `run with the back straight` goes nowhere back."""

BETWEEN = frozenset({"is", "kept", "held", "stretched", "well", "straight"})
"""May stand between a body part and how it is."""

LIMB_POSTURES = _by_phrase(
    {
        "raise": "up, raised, lifted, high, in the air, up in the air, high in the air, up high,"
        "off the ground, off the floor, above the ground, above the floor, clear of the ground,"
        "upward, upwards, pointing up, overhead, over your head, above your head, off the track",
        "planted": "on the ground, on the floor, down on the ground, down on the floor, planted,"
        "planted on the ground, planted on the floor, firmly on the ground, flat on the ground",
        "lower": "down, lowered",
        "": "out, outstretched, out to the side, out to the sides, to the side, to the sides,"
        "spread, apart, stretched out, crossed, folded, by your sides, at your sides, at its sides,"
        "behind your back, out in front, in front of you",
    }
)
"""What is asked of a limb that was named before; empty: what nothing measures."""

BACK_POSTURES = _by_phrase(
    {"upright": "straight, upright, erect, vertical", "level": "level, flat, horizontal, even"}
)
BACKS = frozenset({"back", "spine"})
LEANING = frozenset({"lean", "tilt", "bend", "arch", "look", "face", "gaze", "pitch"})
"""With a direction they say how it is held, not where it goes."""
"""What is asked of a back, as the style of the whole agent that it is."""

SUBJECTS = frozenset({"torso", "pole", "cart", "fingertip"})
"""Limbs that a prompt names as the whole: to balance the pole is to balance. A torso there always
is; the others count where the environment has them."""

ARM_WORDS = frozenset({"hand", "arm", "fingertip", "elbow"})
"""To whom an arm on a base belongs, these are the whole of it."""

OBJECT_WORDS = frozenset(
    ["cylinder", "puck", "thing", "item", "block", "cube", "box", "piece", "ball"]
)
TARGET_WORDS = frozenset(["dot", "mark", "red", "spot", "point"])
"""What people call what is to be pushed and to be reached, where there is such a thing."""

LIMBS = _by_phrase(
    {
        "leg": "leg, legs, limb, limbs",
        "arm": "arm, arms",
        "hand": "hand, hands, fist, wrist",
        "foot": "foot, feet, paw, paws, ankle, toe, toes",
        "thigh": "thigh, thighs, hip, hips",
        "shin": "shin, shins, knee, knees, calf",
        "elbow": "elbow, forearm",
        "torso": "torso, body, trunk",
        "front": "chest, belly",
        "head": "head, nose, snout",
        "tail": "tail, rump",
        "pole": "pole, poles, pendulum, stick, rod",
        "cart": "cart",
        "fingertip": "fingertip, finger, tip, tips, gripper",
    }
)
"""Nouns for limbs; the model's own names for its parts are added to them."""

_EFFORT = r"(?:muscle )?(?:effort|energy|power|force|strength|exertion|torque|fuel|muscle)\b"
_EFFORT += "(?: use| usage| consumption| spent| used| possible)?"
_TURNED = {"forward": "backward", "backward": "forward", "left": "right", "right": "left",
           "clockwise": "counterclockwise", "counterclockwise": "clockwise"}  # fmt: skip
_NEVER = r"(?:never|without)(?: ever)? "
REPHRASED = (
    (r"\bturn (?:a)?round and (?:go|head|walk|run|swim|crawl|hop) back\b", "come back"),
    (r"\band (?:stay|wait|remain|stand|stop) there\b", "then stay there"),
    (r"\b(both|all|two|four) (feet|legs) at once\b", r"\1 \2 at the same time"),
    ((rf"\b{_NEVER}(?:lift(?:ing)?|rais(?:e|ing)) (?:both|all|two|four)(?: of)?(?: your| the)? "
      r"(?:feet|legs)(?: off the (?:ground|floor))?(?: at the same time| together)?\b"),
     "without leaving the ground"),
    (rf"\b{_NEVER}leav(?:e|ing) the (?:ground|floor)\b", "without leaving the ground"),
    *(
        (rf"\b(?:do(?:ing)? )?the (?:exact )?opposite of (\w+) (?:to the )?{way}s?\b",
         rf"\1 {other}")
        for way, other in _TURNED.items()
    ),
    *(
        (rf"\b(?:not|no|{_NEVER}(?:go|run|walk|mov|travel)\w*) (?:any )?(?:{more}) than\b", bound)
        for more, bound in (("faster|quicker|more", "at most"), ("slower|less", "at least"))
    ),
    (r"\b(?:up to|a maximum of|below|under|(?:slower|less) than) (?=\d|half)", "at most "),
    (r"\b(?:a minimum of|above|over|(?:faster|quicker|more) than) (?=\d|half)", "at least "),
    (r"\b(at most|at least) (?:at )?(?:an? |about )?(?=\d|half|one)", r"\1 "),
    ((r"\b(?:with )?(?:the )?(?:tiniest|smallest|least) (?:cart )?(?:movements?|motions?)"
      r"(?: possible| you can)?\b"), "calmly"),
    (r"(?<![\d.])\.(?=\d)", "0."),
    (r"(?<=\d),(?=\d{1,2}(?!\d))", "."),
    (r"(?<!half )(?<!of )\ban? (?=(?:met(?:er|re)|radian|mile|kilomet(?:er|re)) (?:per|an?) )",
     "1 "),
    (r"\bwith no\b", "without"),
    (r"\bhow (\w+) (?:you|it) can(?: go| be| get)?\b", r"as \1 as possible"),
    (r"\bon all four (?:legs|feet|paws)\b", "on all fours"),
    (r"\blet (?:either|any|both|one|the|your)(?: of the)? (?:pole|stick|rod|pendulum)s?\b",
     "let the pole"),
    (r"\b(without|no|not) (?:any|the slightest|making any|the least) (?!effort|energy)", r"\1 "),
    (r"\b(?:an? )?(?:u-turn|about[- ](?:face|turn))s?\b", "turn 180 degrees"),
    (r"\b(?:do|make|perform|pull|spin|turn) an? (90|180|270|360)\b(?!\s*(?:deg|°))",
     r"turn \1 degrees"),
    (r"\b(?:a half|half an?|half)[- ](?:turn|rotation|spin)\b", "turn 180 degrees"),
    (r"\b(?:a |one )?quarter(?: of an?)?[- ](?:turn|rotation|spin)\b", "turn 90 degrees"),
    (r"\b360(?:\s*degrees?|°)(?!\s*(?:/|per|a )\s*s)", "once"),
    (r"\b(?:keep|stop|prevent|save)(?:ing|s)? ((?:\w+ ){0,3}?)from (?=\w+ing\b)", r"\1without "),
    (r"\bline(?:s|d)? up ((?:\w+ ){1,3}?)with\b", r"line up with"),
    (r"(?<!\w)\+\s?(?=[xy]\b)", " positive "),
    (r"(?<!\w)(?:-|minus\s)\s?(?=[xy]\b)", " negative "),
    ((r"\bas (\w+) (away from the \w+ ?(?:point|place)? )?as (?:you|it)(?: possibly)? "
     r"(?:can|are able(?: to)?|is able(?: to)?)"
     r"(?: get away with| manage)?\b"), r"as \1 \2as possible"),
    ((r"(?:\b(?:with|spending|using|expending|at) )?\bas little (?:\w+ )?"
     r"(?:effort|energy|power|force|strength) as (?:\w+ can(?: get away with| manage)?|possible|"
     r"necessary|needed)\b"), "with little effort"),
    ((r"\b(?:keep(?:ing)?|hold(?:ing)?) (?:your|its|the)? ?(?:effort|energy)(?: use)? "
     r"(?:to a minimum|as low as possible|low|minimal)\b"), "with little effort"),
    ((r"\b(?:minimi[sz]|conserv|sav|reduc)(?:es?|ing) (?:the |your |its |any |all )?"
     rf"(?:use of |amount of )?{_EFFORT}"), "with little effort"),
    ((r"\b(?:(?:with|using|at|spending|on) )?(?:as |very |the )?(?:little|minimal|minimum|low|"
     r"least|hardly any|barely any|lowest|smallest|a minimum of|the minimum of)"
     rf"(?: possible| amount of)* {_EFFORT}"), "with little effort"),
    (rf"\b(?:wasting|spending|using) (?:no|little|hardly any) {_EFFORT}", "with little effort"),
    ((r"\b(?:without|with no|no)(?: (?:wasting|using|spending|expending|wasted|any|much|too much|"
     rf"extra|unnecessary|needless))+ {_EFFORT}"), "with little effort"),
    ((r"\bas (?:if|though) (?:you were |it were |you are |it is )?(?:balancing|carrying|holding)"
     r" (?:an? |the |some |your )?(?:\w+ ){0,3}?\w+(?: on (?:your|its|the) (?:back|head))?"
     r"(?=$|[,.;!]| and| at| while)"), "as if carrying a tray"),
)  # fmt: skip
"""Turns of phrase, as regular expressions, and the phrase of the lexicon that says the same."""

SEQUENCE = (
    r"\b(?:and\s+)?(?:then|afterwards?|followed\s+by|finally|subsequently|later\s+on|next"
    r"|in\s+the\s+end|(?:finish|end)(?:ing)?\s+(?:up\s+)?(?:by|with)"
    r"|after\s+(?:that|this|which"
    r"|(?:(?:an?|some|few|couple|of|the|short|little|long|\d+(?:\.\d+)?)\s+)+"
    r"(?:while|time|moment|bit|seconds?|sec|s|steps?))"
    r"|once\s+(?:there|done|it\s+is\s+there|you\s+are\s+there|you\s+get\s+there|you\s+arrive)"
    r")\b|;"
)
"""Between the parts of a sequence."""

FOLLOWING = frozenset({"stop", "return"})
"""After a motion that goes somewhere they come next, with or without a word such as `then`."""

NUMBERS = {
    "half a": 0.5, "half an": 0.5, "a half": 0.5, "a third of a": 1 / 3,
    "three quarters of a": 0.75, "two and a half": 2.5, "a quarter of a": 0.25,
    "one and a half": 1.5, "one": 1,
    "a single": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10, "twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40,
    "fifty": 50, "sixty": 60, "ninety": 90,
}  # fmt: skip
"""They count before a unit, before `times` and before what can be counted."""

TIMES = {"once": 1, "twice": 2, "thrice": 3}
COUNTED = ("flip", "backflip", "somersault", "cartwheel", "roll", "turn", "rotation", "spin",
           "jump", "hop", "leap", "lap", "circle")  # fmt: skip
"""Motions that can be counted as nouns."""


# --- other forms of a word ------------------------------------------------------------------------


def lemmas(word: str) -> Iterator[str]:
    """What a word may be a form of: `hopping` of hop, `rises` of rise."""
    yield IRREGULAR.get(word, word)
    for ending in ("ing", "ed", "s", "es", "er"):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            stem = word.removesuffix(ending)
            yield stem
            yield stem + "e"
            if stem[-1] == stem[-2]:
                yield stem[:-1]
            if ending in ("es", "ed") and stem[-1] == "i":
                yield stem[:-1] + "y"


_SLIPS_FROM = 6
"""Letters; in shorter words a slip makes too many others."""


def _slips(word: str) -> Iterator[str]:
    """What a word may be with one letter too many, too few or two of them swapped."""
    places = range(1, len(word))
    yield from (word[:i] + word[i + 1 :] for i in places)
    yield from (word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(1, len(word) - 1))
    letters = "abcdefghijklmnopqrstuvwxyz"
    yield from (word[:i] + letter + word[i:] for i in range(1, len(word) + 1) for letter in letters)


@cache
def canonical(word: str) -> str:
    """The word of the vocabulary that this one is a form or a slip of; else the word itself."""
    word = MISSPELT.get(word, word)
    if word in _WHOLE:
        return word
    for known in (_PHRASES, VOCABULARY):  # hopping is to hop, though it stands in a longer phrase
        if lemma := next((form for form in lemmas(word) if form in known), ""):
            return lemma
    if word in VOCABULARY:
        return word
    if len(word) >= _SLIPS_FROM:
        return next((slip for slip in _slips(word) if slip in _CONTENT), word)
    return word


_CONTENT = frozenset(word for word in VOCABULARY - STOP_WORDS if len(word) >= _SLIPS_FROM - 1)
_WHOLE = STOP_WORDS | {*_REMARK_PHRASES, *LIMBS, *SIDES, *DEGREES, *OWNERS, *TIMES}


def _with_base_forms(phrases: Mapping[str, Entry]) -> dict[str, Entry]:
    bases = {" ".join(map(canonical, phrase.split())): entry for phrase, entry in phrases.items()}
    return {**bases, **phrases}


LEXICON: Mapping[str, Entry] = _with_base_forms(_PHRASES)
"""What each phrase says."""

MANNERS: Mapping[str, str] = _by_phrase(_MANNERS)
"""What each of these phrases says beyond its motion."""

REMARKS: Mapping[str, Entry] = _with_base_forms(_REMARK_PHRASES)
"""With comparatives."""


def entry_of(phrase: str, lexicon: Mapping[str, Entry] = LEXICON) -> Entry | None:
    """What a phrase says, in whichever forms of its words."""
    return lexicon.get(phrase) or lexicon.get(" ".join(map(canonical, phrase.split())))


def manner_of(phrase: str) -> str | None:
    """What a phrase says beyond its motion; None: nothing, empty: what nothing measures."""
    forms = (phrase, " ".join(map(canonical, phrase.split())))
    return next((MANNERS[form] for form in forms if form in MANNERS), None)
