"""The words of the grammar, as data: what each phrase says, and in which slot it says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

Value = TypeVar("Value")
Slot = Literal["motion", "direction", "speed", "quality", "negation", "keep", "comparative"]


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
    "go": "go, going, goes, move, moving, moves, walk, walking, walks, advance, travel, travels,"
    "proceed, head, march, stroll, step, stride, swim, swimming, swims, trot, trotting, drive,"
    "locomote, come, slither, glide, amble, strut",
    "run": "run, running, runs, jog, jogging",
    "crawl": "crawl, crawling, crawls, creep, creeping, sneak",
    "spin": "spin, spinning, spins, rotate, rotating, rotates, twirl, pirouette, whirl",
    "turn": "turn, turning, turns, turn around, circle,"
    "in a circle, in circles, walk in circles, run in circles,"
    "move in circles, go in circles",
    "roll": "roll, rolling, rolls, roll over, tumble, tumbling",
    "flip": "flip, flipping, flips, somersault, somersaults, cartwheel, do a flip, flip over",
    "jump": "jump, jumping, jumps, leap, leaping, leaps, jump up, spring",
    "hop": "hop, hopping, hops, bounce, bouncing, bounces, skip, skipping",
    "stand": "stand, standing, stands, stand still, stay still, hold still, keep still, still,"
    "remain still, stay, hold, freeze, stop, halt, rest, wait, pause, hold position,"
    "stop moving, stop walking, stop running, stand straight,"
    "stay in place, stand in place, remain in place, motionless, stationary, do nothing",
    "balance": "balance, balancing, balances, keep balance, keep your balance, keep its balance,"
    "keep the balance, stabilize, stabilise",
    "crouch": "crouch, crouching, crouches, squat, squatting, squats, duck, ducking, kneel",
    "lie": "lie, lying, lies, lie down, lay, lay down, lie flat",
    "get_up": "get up, getting up, stand up, standing up, rise, rising, rises, rise up,"
    "get to your feet, get on your feet, sit up, get off the ground, wake up",
    "raise": "raise, raising, raises, lift, lifting, lifts, hold up",
    "lower": "lower, lowering, lowers, drop, put down, dip",
    "reach": "reach, reaching, reaches, reach for, reach out, point,"
    "hit the target,"
    "get to the target, go to the target, move to the target, go to the goal",
    "touch": "touch, touching, touches, reach the object, reach for the object",
    "push": "push, pushing, pushes, shove, shift the object, move the object",
    "fall": "fall, falling, falls, fall over, falling over, tip over, tipping over, topple,"
    "toppling, crash, collapse, collapsing",
}
"""`fall` is understood only where it is forbidden: nobody asks for it."""

_FULL_MOTIONS = {
    ("run", "", "fast"): "sprint, sprinting, dash, race, gallop, galloping, rush",
    ("go", "", "slow"): "tiptoe",
    ("go", "", "fast"): "far, as far as possible, as far as you can, as far as it can,"
    "as much distance as possible, covering as much distance as possible,"
    "cover as much distance as possible, covering as much ground as possible,"
    "cover as much ground as possible, covering distance, cover distance",
    ("flip", "backward", ""): "backflip, backflips, back flip",
    ("flip", "forward", ""): "frontflip, front flip",
    ("go", "left", ""): "sidestep",
    ("go", "backward", ""): "retreat, back up, back off, moonwalk",
}
"""Motions that bring a direction or a speed along."""

_DIRECTIONS = {
    "forward": "forward, forwards, ahead, onward, onwards, straight ahead, to the front",
    "backward": "backward, backwards, back, in reverse, reverse, to the back, rearward",
    "left": "left, leftward, leftwards, to the left, sideways, sideway, laterally, to the side",
    "right": "right, rightward, rightwards, to the right",
    "clockwise": "clockwise",
    "counterclockwise": "counterclockwise, anticlockwise, counter clockwise, counter-clockwise,"
    "anti-clockwise",
    "up": "up, upward, upwards, into the air, in the air",
    "down": "down, downward, downwards",
    "away": "away, away from",
}

_SPEEDS = {
    "fast": "fast, quick, quickly, rapidly, rapid, swiftly, swift, at full speed, at top speed,"
    "as fast as possible, as fast as you can, as fast as it can, as quickly as possible,"
    "at high speed, speedily, high speed, full speed, hard",
    "slow": "slow, slowly, at low speed, leisurely, gently and slowly, at a slow pace, low speed",
    "medium": "moderately, steadily, at a moderate speed, at walking pace, at a steady pace,"
    "at a moderate pace, at medium speed",
}

_QUALITIES = {
    "upright": "upright, erect, vertical, head up, straight up, torso up, a straight back",
    "level": "level, horizontal, flat, back level, torso level",
    "low": "low, near the ground, close to the ground, close to the floor, low to the ground,"
    "near the floor, low down, hugging the ground",
    "high": "high, tall, as high as possible, as high as you can",
    "symmetric": "symmetric, symmetrical, symmetrically, symmetry, evenly, with symmetry",
    "smooth": "smooth, smoothly, fluid, fluidly, gracefully, graceful, elegantly, smooth motion",
    "quiet": "quiet, quietly, calm, calmly, softly, gently, gentle, silently",
    "efficient": "efficient, efficiently, economically, little energy, little effort,"
    "low energy, low effort, minimal energy, minimal effort, saving energy, save energy,"
    "energy efficient, using little energy, with little effort",
    "in_place": "in place, on the spot, at the spot, in one place, in position, on the same spot,"
    "in the same spot, on one spot, in the same place, where you are, where it is",
    "centred": "in the middle, near the middle, around the middle, in the centre, in the center,"
    "near the centre, near the center, around the centre, around the center, centred, centered",
    "straight": "straight, in a straight line, straight line, without drifting, drift",
    "on_back": "on its back, on your back, on the back, upside down, belly up",
    "stable": "balanced, stable, stably, steady, stability, safely, safe",
}

OPPOSITE = {
    one: other
    for pair in (("forward", "backward"), ("left", "right"), ("up", "down"),
                 ("clockwise", "counterclockwise"))
    for one, other in (pair, pair[::-1])
}  # fmt: skip
EITHER_SIDE = frozenset({"sideways", "sideway", "laterally", "to the side"})
"""These leave open which side; a side that is named as well is no contradiction."""

_NEGATIONS = "not, don't, dont, do not, without, never, no, avoid, avoiding, doesn't, does not, nor"
_KEEPS = "keep, keeping, keeps, staying, stays, remain, remaining, maintain, maintaining"

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

LEXICON: Mapping[str, Entry] = {
    **_entries("motion", _MOTIONS),
    **{phrase: Entry("motion", *full) for phrase, full in _by_phrase(_FULL_MOTIONS).items()},
    **_entries("direction", _DIRECTIONS),
    **_entries("speed", _SPEEDS),
    **_entries("quality", _QUALITIES),
    **_entries("negation", {"not": _NEGATIONS}),
    **_entries("keep", {"keep": _KEEPS}),
}

REMARKS: Mapping[str, Entry] = {**LEXICON, **_entries("comparative", _COMPARATIVES)}

LONGEST_PHRASE = max(len(phrase.split()) for phrase in REMARKS)

STAYING = frozenset({"stay", "hold", "stand", "remain", "be"})
"""Before a quality they mean to keep it: `stay low` is not to stand still."""

SIDES = {
    **{side: side for side in ("left", "right", "front", "back", "upper", "lower")},
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

HELD = frozenset({"is", "kept", "held"})
"""May stand between a back and how it is."""

BACK_POSTURES = _by_phrase(
    {"upright": "straight, upright, erect, vertical", "level": "level, flat, horizontal"}
)
"""What is asked of a back, as the style of the whole agent that it is."""

SUBJECTS = frozenset({"torso", "pole", "cart", "fingertip"})
"""Limbs that a prompt names as the whole: to balance the pole is to balance. A torso there always
is; the others count where the environment has them."""

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
        "head": "head, nose",
        "tail": "tail, rump",
        "pole": "pole, poles, pendulum, stick, rod",
        "cart": "cart",
        "fingertip": "fingertip, finger, tip, tips, gripper",
    }
)
"""Nouns for limbs; the model's own names for its parts are added to them."""

_STOP_WORDS = """
a an the and or of to in on at with by for from into onto while as so that this it its your you my
me his her their please make let lets try want would like i be is are am was being been do does can
could should must will just very really robot agent policy creature animal character model learn
teach train have has get gets using use way than then followed first next finally
afterwards all time whole constantly continuously always ground floor motion movement position speed
pace velocity one over air target goal object ball direction itself yourself well bit
little both but along around repeatedly again each only
per second episode entire during ever forever there here them more too much track
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words that carry no motion of their own; leaving them out is not worth a message."""

SEQUENCE = r"\b(?:and\s+then|then|after\s+that|afterwards|followed\s+by|and\s+finally|finally)\b|;"
"""Between the parts of a sequence."""
