"""Words that ask for nothing of their own, by class; leaving them out is not worth a message.

A manner, an emotion, a thing, a number or a part of the body is a demand and stands in no class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_WORDS: Mapping[str, str] = {
    "articles and pronouns": """a an the this that these those it its it's itself you your you're
        yourself yourselves i i'd i'll i'm me my we we'd us our he she him his her they them their
        something anything everything everyone one ones own""",
    "conjunctions and prepositions": """and or but of to in on at with by for from into onto while
        whilst as so than then though although because since upon via within per during whereas
        along around about over round across""",
    "auxiliaries": """be is are am was were being been do does doing did done can could should shall
        must will would may might let lets let's has have having had i've gonna gotta ought""",
    "politeness and address": """please pls plz kindly thanks thank cheers hey hi hello ok okay
        alright dear buddy pal friend mate sorry appreciate appreciated grateful""",
    "wishes": """want wanna wants wish wished hope hoping need needs like likes prefer expect
        expects expected supposed intend goal task aim aims asked desired required requested""",
    "degrees": """very really truly quite pretty fairly rather reasonably relatively extremely super
        absolutely totally utterly thoroughly entirely incredibly awfully remarkably especially
        particularly certainly definitely perfectly completely fully exact exactly precisely
        precise roughly approximately approx ca circa about nearly almost mostly somewhat more most
        much too bit little just only merely simply purely possibly possible full complete entire
        whole normal normally usual usually ordinary regular standard typical clearly visibly
        noticeably distinctly""",
    "hedges and discourse": """basically essentially actually literally generally overall ideally
        preferably hopefully maybe perhaps probably surely sure indeed simply also additionally
        furthermore moreover plus etc anyway namely otherwise instead meanwhile however therefore
        thus hence well now today yes yeah oh ah""",
    "praise of what is asked": """nice nicely good great fine proper properly decent decently
        correct correctly successfully excellent""",
    "time and order": """then next first finally afterwards followed
        constant constantly continuously continuous continually always forever ever permanently
        indefinitely
        endlessly endless nonstop non-stop uninterrupted uninterruptedly throughout meanwhile time
        times moment while whenever episode second""",
    "the one that moves": """robot robots bot agent policy creature critter animal character model
        machine figure guy fellow dude mujoco simulation simulator sim environment env controller
        one's everybody robotic simulated""",
    "the scene": """ground floor track rail air water surface terrain plane arena world scene stage
        there here""",
    "names of what is done": """motion motions movement movements action actions stroke strokes
        behaviour behavior manner fashion style mode way ways gait manoeuvre maneuver exercise
        routine activity series sequence position posture stance pose speed pace velocity rate tempo
        clip direction bearing each some all both any such""",
}
"""Each word stands by itself; the phrases of the lexicon come first."""

_VERBS = """
make try attempt perform execute show demonstrate display exhibit see watch learn teach train
practice practise give get use start begin continue ensure manage allow cause help aim set produce
achieve accomplish remember decide commence resume
"""
"""Light verbs, which only bring in what is to be done."""

PHRASES = """
from rest, from a standstill, from a standing start, from standing,
start by, begin by, begin with, start with, start off, begin to, for a while, for a bit,
for some time, for a moment, for a second, for a few seconds, for several seconds,
for some seconds, for a couple of seconds, for a few moments, for a time, for now, for me,
for us, for once, for the time being, for ever, for good, for sure, for the rest of the episode,
for the rest of it, for the duration, for the whole duration, for the entire duration,
for its whole length, for the entire episode, for the whole episode, for the entire time,
for the whole time, for the full episode, for the whole of the episode, for as long as possible,
as long as possible, as long as you can, as long as you can manage, as long as it can,
as long as it lasts, as long as you like, as long as the episode lasts, all day, all day long,
all along, all the way, all the while, all the time, at all, at all times, the whole time,
the entire time, the whole way, the entire way, every step of the way, from start to finish,
from start to end, start to finish, from beginning to end, from the start to the end,
from the beginning to the end, from first to last, from the start, from the beginning,
from the outset, until the end, till the end, until the very end, to the end, to the very end,
up to the end, until the end of the episode, till the episode ends, until the episode ends,
until it ends, until the episode is over, until it is over, until time runs out,
until i say stop, until told otherwise, without end, without interruption, without a break,
without a pause, without pausing, without pause, without taking a break, without letting up,
without letup, without fail, with no break, with no breaks, no breaks, without breaks,
without break, without interruptions, without pauses, no pause,
no pauses, no interruptions, through the water, in the water, on the water, across the water,
under water, underwater, through the fluid, in the fluid, through the pool, in the pool,
across the pool, on top of it, on top of, from the ground, from the floor, from the surface,
from lying,
from lying down, from a lying position,
of the track, on the track, along the track, down the track, on the rail, of the rail,
along the rail, across the floor, across the ground, across the room, across the field,
across the arena, across the plane, across the stage, across the screen, across the surface,
along the floor, along the ground, over the ground, over the floor, on the ground, on the floor,
on land, in the simulation, in the environment, in the scene, want to see, would like to see,
would love to see, i'd like, i would like, i'd love, i want, i need, i would love,
i'd like you to, i want you to, would you mind, would you be so kind as to, could you, can you,
would you, if you can, if you could, if possible, if you please, if you like, if you would,
if you don't mind, if at all possible, if need be, thank you, thanks in advance, thanks a lot,
many thanks, be so kind, be so kind as to, feel free to, do your best, do your best to,
do what you can, try your best, try your best to, try hard, the best you can, as best you can,
as well as you can, to the best of your ability, your task is to, your job is to,
your goal is to, the task is to, the goal is to, the aim is to, the objective is to,
the idea is to, it is your task, i expect, make sure, make sure that, make sure to, be sure to,
be sure, see to it, see to it that, take care to, take care that, don't forget to,
do not forget to, be able to, be capable of, capable of, figure out how to, find a way to,
learn how to, know how to, how to, in order to, so as to, go ahead and, push off and, go on and,
come on,
up to you, on your own, on its own, by yourself, by itself, all by yourself, all by itself,
all on your own, all alone, of its own accord, without help, without any help, unaided,
unassisted, as asked, as said, as described, as requested, as usual, as normal, as well,
as well as, as it were, as such, of course, in fact, in general, in particular, in short,
in other words, in principle, in essence, that is, that is to say, more or less, kind of,
sort of, or so, and so on, so to speak, let's say, let us say, you know, no matter what,
whatever happens, at the same time, at the time, while at it, while you're at it, while doing so,
while you do so, in doing so, while doing that, along the way, on the way, in the process,
at least, at best, right now, right here,
in this way, in that way, in the usual way,
in the normal way, in a way, in a manner, make it look easy, up high in the air, on your legs,
on its legs, on the legs, with your legs, with its legs, using your legs, using its legs,
on your own legs, on your own two feet, on your two feet, on its two feet, on your own two legs
"""
"""Turns of phrase, by which the words in them, such as `end`, are no demand either."""


def _forms(verb: str) -> Iterator[str]:
    """A light verb in its forms; some that nobody writes do no harm."""
    stem = verb.removesuffix("e")
    yield from (verb, f"{verb}s", f"{verb}es", f"{stem}ing", f"{stem}ed", f"{verb}ting")
    yield f"{verb}ning"


STOP_WORDS = frozenset(
    [word for words in _WORDS.values() for word in words.split()]
    + [form for verb in _VERBS.split() for form in _forms(verb)]
)
"""Single words that carry no motion of their own."""
THINGS = frozenset({"target", "goal", "object", "ball"})
"""So do these, where the environment has something to reach or to push."""
