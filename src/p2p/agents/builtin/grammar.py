"""From a prompt to goals: which motion, where to, how fast, with which limb, in what style.

The words stand in `lexicon`; here is how they combine. A motion opens a goal; directions, speeds
and stated numbers belong to the motion before them, or to the next one if none came yet. A
quality ("upright", "smoothly") is a goal of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import pi
from typing import NamedTuple

from p2p.agents.builtin.lexicon import (
    BACK_POSTURES,
    COUNTED,
    DEGREES,
    EITHER_SIDE,
    FOLLOWING,
    HELD,
    LEXICON,
    LIMB_POSTURES,
    LIMBS,
    LONGEST_PHRASE,
    NUMBERS,
    OBJECT_WORDS,
    OPPOSITE,
    OWNERS,
    REMARKS,
    SEQUENCE,
    SIDES,
    SIMILES,
    STAYING,
    STOP_WORDS,
    SUBJECTS,
    TIMES,
    Entry,
    canonical,
)


@dataclass(frozen=True, slots=True)
class Amount:
    """A stated number, in SI units."""

    value: float
    unit: str
    """m/s, rad/s, m, rad, s or times."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One thing that is asked for."""

    motion: str
    """A motion or a quality of the lexicon."""
    direction: str = ""
    speed: str = ""
    amount: Amount | None = None
    limb: tuple[str, ...] = ()
    """As said: sides, then the noun."""
    negated: bool = False
    words: tuple[str, ...] = ()
    """The phrases of the prompt that it is made of."""

    def stated(self, unit: str) -> float | None:
        """The number that was stated in this unit."""
        return self.amount.value if self.amount and self.amount.unit == unit else None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A prompt, understood as far as it was."""

    parts: tuple[tuple[Goal, ...], ...]
    """One after the other in time; most prompts have one."""
    unused: tuple[str, ...]
    conflicts: tuple[str, ...] = ()
    """Opposite directions of one motion, as in "forward and backward"."""

    @property
    def goals(self) -> tuple[Goal, ...]:
        """Of all parts."""
        return tuple(goal for part in self.parts for goal in part)


_PER_SECOND = r"\s*(?:/|per|a|each|every)\s*(?:seconds?|sec|s)\b"
_PER_HOUR = r"\s*(?:/|per|an)\s*(?:hours?|h)\b"
_TURNS = "(?:turns?|revolutions?|rotations?)"
_UNITS: Mapping[str, tuple[str, float, str]] = {
    "m/s": (rf"(?:meters?|metres?|m){_PER_SECOND}", 1.0, "m/s"),
    "cm/s": (rf"(?:centimeters?|centimetres?|cm){_PER_SECOND}", 0.01, "m/s"),
    "km/h": (rf"(?:kilomet(?:er|re)s?|km){_PER_HOUR}|kph\b|kmh\b", 1 / 3.6, "m/s"),
    "mph": (r"miles?\s*(?:per|an)\s*hours?\b", 0.44704, "m/s"),
    "rad/s": (rf"(?:radians?|rad){_PER_SECOND}", 1.0, "rad/s"),
    "deg/s": (rf"(?:degrees?|deg|°){_PER_SECOND}", pi / 180, "rad/s"),
    "turns/s": (rf"{_TURNS}{_PER_SECOND}", 2 * pi, "rad/s"),
    "rpm": (rf"{_TURNS}\s*(?:/|per|a)\s*minutes?\b", 2 * pi / 60, "rad/s"),
    "cm": (r"(?:centimeters?|centimetres?)\b", 0.01, "m"),
    "m": (r"(?:meters?|metres?)\b", 1.0, "m"),
    "deg": (r"(?:degrees?|°)", pi / 180, "rad"),
    "rad": (r"(?:radians?)\b", 1.0, "rad"),
    "s": (r"(?:seconds?|sec)\b", 1.0, "s"),
    "times": (r"(?:times?|x)\b", 1.0, "times"),
}
"""In the order in which to look for them: how it is spelled out, and its value in SI units."""
_TOKEN = re.compile(
    rf"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>{'|'.join(_UNITS)})(?![a-z/])"
    r"|(?P<word>[^\W\d_]+(?:[-'][^\W\d_]+)*)|(?P<other>\d+(?:\.\d+)?|[^\s\w])"
)
_NUMBER_WORD = "|".join(sorted(NUMBERS, key=len, reverse=True))
_UNIT_WORD = "|".join(f"(?:{spelled})" for spelled, _, _ in _UNITS.values())
_NUMBERED = re.compile(rf"\b(?P<number>{_NUMBER_WORD})\s+(?=(?:{_UNIT_WORD}))")
_COUNTED = re.compile(
    rf"\b(?P<number>\d+|{_NUMBER_WORD})\s+"
    r"(?P<noun>(?:(?:full|complete|whole|big|high|quick|backwards?|forwards?|front|back|left|right)\s+)*"
    rf"(?:{'|'.join(COUNTED)})s?)\b(?!\s*(?:/|per|a)\s)"
)


class _Token(NamedTuple):
    """A word as written and in its base form, a stated number, or neither."""

    text: str
    word: str
    base: str
    amount: Amount | None


def _tokens(text: str) -> list[_Token]:
    tokens = []
    for match in _TOKEN.finditer(text):
        amount, word = None, match["word"] or ""
        if match["number"]:
            _, scale, unit = _UNITS[match["unit"]]
            amount = Amount(float(match["number"]) * scale, unit)
        tokens.append(_Token(match[0], word, canonical(word) if word else "", amount))
    return tokens


_LEGS = frozenset({"leg", "foot"})
_NOUNS = frozenset({*COUNTED, *(f"{noun}s" for noun in COUNTED)})


@dataclass(slots=True)
class _Reader:
    """One part of a prompt, read from left to right."""

    lexicon: Mapping[str, Entry]
    limbs: Mapping[str, str]
    subjects: Collection[str]
    """Limbs whose name adds nothing to what is asked of the whole."""
    goals: list[Goal] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    negated: str = ""
    carrying: str = ""
    """A verb such as `put`, until it is said where to."""
    pending: Goal = field(default_factory=lambda: Goal(""))
    """Directions and speeds that came before any motion."""
    limb_noun: str = ""
    """That of the last limb, which `the left one` means."""
    one_legged: bool = False
    """Whether it is on one leg, which is yet to be named."""
    before: list[str] = field(default_factory=list)
    """The words that were read."""

    def read(self, text: str) -> None:
        tokens = _tokens(text)
        i = 0
        while i < len(tokens):
            rest = tokens[i:]
            size = (
                self._back(rest)
                or self._simile(rest)
                or self._phrase(rest, 2)
                or self._limb(rest)
                or self._phrase(rest)
                or self._single(rest[0])
            )
            self.before += [token.word for token in rest[:size]]
            i += size
        if self.pending.direction == "target":  # get the finger to the target
            self._open(Goal("reach"))
        elif self.pending.direction == "start":
            self._open(Goal("return"))
        elif self.pending.direction in ("up", "down", "away"):
            self.unused += self.pending.words
        elif self.pending != Goal(""):  # "fast!": a way to move, so move
            self._open(Goal("go"))
        self._drop_negation()
        self._drop_carrying()

    def _limb(self, tokens: Sequence[_Token]) -> int:
        """`front left leg`: sides, then the noun; gives how many tokens it took."""
        words = [token.word for token in tokens[:4]]
        count = next((n for n, word in enumerate(words) if word not in SIDES), len(words))
        if count >= len(words):
            return 0
        noun = self.limbs.get(words[count], "")
        if not noun and count and words[count] == "one":
            noun = self.limb_noun
        if not noun:
            return 0
        sides, size = tuple(SIDES[word] for word in words[:count]), count + 1
        if words[count] in ("arms", "hands") and not sides:
            sides = ("both",)
        limb, self.limb_noun = (*sides, noun), noun
        carried_by = self._stands_on(limb)
        posture, taken = self._limb_posture(tokens[size:])
        moved = self._last(lambda goal: goal.motion in ("raise", "lower") and not goal.limb)
        if moved is not None:
            goal = self.goals[moved]
            self.goals[moved] = replace(goal, limb=limb, words=(*goal.words, *words[:size]))
        elif carried_by is not None:
            if self.one_legged and "leg" in self.unused:
                self.unused.remove("leg")
            self.one_legged = False
            self._open(Goal("raise", limb=carried_by, words=tuple(words[:size])))
        elif posture and noun not in self.subjects:
            self.carrying = ""
            phrase = (*words[:size], *(token.word for token in tokens[size : size + taken]))
            self._open(Goal(posture, limb=limb, words=phrase))
            return size + taken
        elif noun not in self.subjects:
            self.one_legged = self._previous(1) == ["one"] and noun in _LEGS
            self.unused += words[:size]
        return size

    def _stands_on(self, limb: tuple[str, ...]) -> tuple[str, ...] | None:
        """The leg that is in the air where one is named that it is on."""
        side = next((side for side in limb if side in ("left", "right")), "")
        on = self.one_legged or self._previous(1, OWNERS | {"one", "only", "just"}) == ["on"]
        if not side or limb[-1] not in _LEGS or not on:
            return None
        return tuple(OPPOSITE.get(word, word) for word in limb)

    def _limb_posture(self, tokens: Sequence[_Token]) -> tuple[str, int]:
        """`up`, `in the air`, or, where it is forbidden, `touching`: what is asked of a limb."""
        held = next((n for n, token in enumerate(tokens) if token.word not in HELD), 0)
        words = [token.word for token in tokens[held : held + 4]]
        if self.negated and tokens[held : held + 1] and tokens[held].base == "touch":
            self.negated = ""
            return "raise", held + 1
        for size in range(len(words), 0, -1):
            if posture := LIMB_POSTURES.get(" ".join(words[:size])):
                return posture, held + size
        return "", 0

    def _previous(self, size: int, passing: Collection[str] = ()) -> list[str]:
        """The last words that were read, without those to pass over."""
        return [word for word in self.before if word not in passing][-size:]

    def _back(self, tokens: Sequence[_Token]) -> int:
        """`the back` is a body part and no way to go; what is asked of it is a posture."""
        words = [token.word for token in tokens[:5]]
        if words[0] not in OWNERS or words[1:2] != ["back"]:
            return 0
        following = [*words[2:], "", ""]
        held = following[0] in ("is", "kept", "held")
        posture = BACK_POSTURES.get(following[held])
        if posture is not None:
            self._take(Entry("quality", posture), f"back {following[held]}")
            return 3 + held
        which = next((word for word in following if word not in SIDES), "")
        if which in self.limbs or which in ("flip", "flips"):
            return 0
        self.unused.append("back")
        return 2

    def _simile(self, tokens: Sequence[_Token]) -> int:
        """`like a kangaroo` says what hopping says, and nothing new to one that hops."""
        words = [token.word for token in tokens[:5]]
        if words[0] != "like":
            return 0
        first = 2 if words[1:2] and words[1] in ("a", "an") else 1
        for last in range(len(words), first, -1):
            phrase = " ".join(words[first:last])
            if phrase not in SIMILES:
                continue
            motion, direction, speed = SIMILES[phrase]
            alike = _TRAVEL if motion in ("go", "run") else {motion}
            same = self._last(lambda goal: goal.motion in alike and not goal.negated)  # noqa: B023
            if same is None:
                self._open(Goal(motion, direction, speed, words=(phrase,)))
            else:
                goal = self.goals[same]
                direction, speed = goal.direction or direction, goal.speed or speed
                words_used = (*goal.words, phrase)
                self.goals[same] = replace(goal, direction=direction, speed=speed, words=words_used)
            return last
        return 0

    def _phrase(self, tokens: Sequence[_Token], shortest: int = 1) -> int:
        for size in range(min(LONGEST_PHRASE, len(tokens)), shortest - 1, -1):
            words = [token.word for token in tokens[:size]]
            if "" in words:
                continue
            entry = self.lexicon.get(" ".join(words))
            entry = entry or self.lexicon.get(" ".join(token.base for token in tokens[:size]))
            if entry is None:
                continue
            following = tokens[size] if size < len(tokens) else _Token("", "", "", None)
            if size > 1 and words[-1] in SIDES and following.word in (*self.limbs, "one"):
                continue  # on the back legs, on the right one
            if size == 1 and (tokens[0].base in STAYING or entry.slot == "keep"):
                entry = self._staying(entry, tokens[1:])
            phrase = " ".join(words)
            if entry.slot == "direction" and following.word in _NOUNS:  # a backward flip
                self.pending = _merged(self.pending, Goal("", entry.value, words=(phrase,)))
            else:
                self._take(entry, phrase)
            return size
        return 0

    def _staying(self, entry: Entry, tokens: Sequence[_Token]) -> Entry:
        """`stay` or `keep`, by what follows: `stay low` keeps a quality, `hold a foot up` a limb.

        A pole that is kept up is balanced.
        """
        passing = STOP_WORDS | DEGREES
        left = [token for token in tokens if token.word not in passing or not token.word]
        following = self.lexicon.get(left[0].base) if left else None
        if following is not None and following.slot == "quality":
            return Entry("keep", "keep")
        noun = next((n for n, token in enumerate(left) if token.word not in SIDES), len(left))
        limb = self.limbs.get(left[noun].word) if noun < len(left) else None
        after = left[noun + 1].word if noun + 1 < len(left) else ""
        state = self.lexicon.get(after)
        if limb == "pole" and state and state.value in ("up", "upright", "stable"):
            return Entry("motion", "balance")
        named = next((n for n, token in enumerate(tokens) if token.word in self.limbs), None)
        if limb is None or named is None or limb in self.subjects:
            return entry
        posture, _ = self._limb_posture(tokens[named + 1 :])
        return Entry("keep", "keep") if posture else entry

    def _take(self, entry: Entry, phrase: str) -> None:
        if entry.slot == "negation":
            self._drop_negation()
            self.negated = phrase
        elif entry.slot == "carry":
            self._drop_carrying()
            self.carrying = phrase
        elif entry.slot in ("keep", "filler"):
            pass
        elif entry.slot in ("motion", "quality", "comparative"):
            self._open(Goal(entry.value, entry.direction, entry.speed, words=(phrase,)))
        elif entry.slot == "direction":
            self._modify(Goal("", direction=entry.value, words=(phrase,)))
        else:
            self._modify(Goal("", speed=entry.value, words=(phrase,)))

    def _single(self, token: _Token) -> int:
        if token.amount:
            self._modify(Goal("", amount=token.amount, words=(token.text,)))
        elif token.word and token.word not in STOP_WORDS:
            self.unused.append(token.word)
        elif not token.word and token.text[0].isdigit():
            self.unused.append(token.text)
        return 1

    def _open(self, goal: Goal) -> None:
        pending, self.pending = self.pending, Goal("")
        if self._is_style(goal.motion):
            pending, self.pending = Goal(""), pending
        else:
            self._drop_carrying()
        negated, self.negated = bool(self.negated), ""
        merged = _merged(pending, goal)
        self.goals.append(replace(merged, motion=goal.motion, limb=goal.limb, negated=negated))

    def _modify(self, change: Goal) -> None:
        """A direction, a speed or a number for the last motion; for the next if none came yet."""
        if self.carrying and change.direction in _CARRIED:
            words, self.carrying = (self.carrying, *change.words), ""
            self._open(Goal(_CARRIED[change.direction], change.direction, words=words))
            return
        if self.negated and change.direction:  # what is forbidden is no way to go
            self.unused += [*self.negated.split(), *change.words]
            self.negated = ""
            return
        if self.negated and change.speed:
            flipped = {"fast": "slow", "slow": "medium"}.get(change.speed, change.speed)
            change, self.negated = replace(change, speed=flipped), ""
        last = self._last(lambda goal: not self._is_style(goal.motion))
        before = self.pending if last is None else self.goals[last]
        upright = change.direction in ("up", "down")
        if upright and before.direction and before.direction != OPPOSITE[change.direction]:
            self.unused += change.words  # with the nose up: the way to go stays what it is
            return
        opposite = change.direction and before.direction == OPPOSITE.get(change.direction)
        if opposite and not EITHER_SIDE & {*before.words, *change.words}:
            self.conflicts.append(f"{before.direction} and {change.direction}")
        if last is None:
            self.pending = _merged(before, change)
        else:
            self.goals[last] = _merged(before, change)

    def _last(self, wanted: Callable[[Goal], bool]) -> int | None:
        places = reversed(range(len(self.goals)))
        return next((place for place in places if wanted(self.goals[place])), None)

    def _is_style(self, motion: str) -> bool:
        return motion in STYLES or (motion in _COMPARED and self.lexicon is REMARKS)

    def _drop_negation(self) -> None:
        if self.negated:
            self.unused += self.negated.split()
        self.negated = ""

    def _drop_carrying(self) -> None:
        if self.carrying:
            self.unused.append(self.carrying)
        self.carrying = ""


_CARRIED = {"target": "reach", "away": "leave", "backward": "leave",
            **dict.fromkeys(("left", "right", "forward"), "go")}  # fmt: skip
"""What it means to put or take something there."""


def _merged(goal: Goal, change: Goal) -> Goal:
    return replace(
        goal,
        direction=change.direction or goal.direction,
        speed=change.speed or goal.speed,
        amount=change.amount or goal.amount,
        words=(*goal.words, *change.words),
    )


STYLES = frozenset(entry.value for entry in LEXICON.values() if entry.slot == "quality")
_COMPARED = frozenset(entry.value for entry in REMARKS.values() if entry.slot == "comparative")


def _normalised(text: str) -> str:
    """Lower case, numbers in digits, units in their short form, counts after what they count."""
    text = text.lower().replace("’", "'").replace("_", " ")  # noqa: RUF001 - as people type it
    text = re.sub(rf"\b({'|'.join(TIMES)})\b(?! (?:there|done|it|you))",
                  lambda word: f"{TIMES[word[1]]} times", text)  # fmt: skip
    text = _COUNTED.sub(lambda count: f"{count['noun']} {_digits(count['number'])} times", text)
    text = _NUMBERED.sub(lambda number: f"{_digits(number['number'])} ", text)
    for unit, (spelled, _, _) in _UNITS.items():
        text = re.sub(rf"(?<=\d)\s*(?:{spelled})", f" {unit} ", text)
    return text


def _digits(number: str) -> str:
    return f"{NUMBERS[number]:g}" if number in NUMBERS else number


def parse(
    prompt: str,
    own_limbs: Mapping[str, str] | None = None,
    *,
    subjects: Collection[str] = (),
    remark: bool = False,
) -> Parsed:
    """Understand a prompt as far as the lexicon goes.

    Args:
        prompt: What the person wrote.
        own_limbs: More nouns for limbs: what the environment's model calls its parts.
        subjects: Nouns that add nothing, since they name what moves or is moved there.
        remark: Take comparatives ("faster") as goals, too.
    """
    lexicon = REMARKS if remark else LEXICON
    limbs = {**(own_limbs or {}), **LIMBS, **{word: word for word in subjects if word not in LIMBS}}
    own = None if own_limbs is None else {"torso", *(LIMBS.get(word, word) for word in own_limbs)}
    whole = {*(SUBJECTS if own is None else SUBJECTS & own), *subjects}
    parts: list[tuple[Goal, ...]] = []
    unused: list[str] = []
    conflicts: list[str] = []
    text = _normalised(prompt)
    if not OBJECT_WORDS.isdisjoint(subjects):
        text = re.sub(rf"\b(?:white\s+)?(?:{'|'.join(OBJECT_WORDS)})\b", "object", text)
    for piece in re.split(SEQUENCE, text):
        reader = _Reader(lexicon, limbs, whole)
        reader.read(piece)
        unused += [word for word in reader.unused if word not in STOP_WORDS]
        conflicts += reader.conflicts
        for part in _divided([_with_destination(goal) for goal in reader.goals]):
            tidy = _tidy(part)
            lasting = parts and {goal.motion for goal in parts[-1]} & _HELD
            if not (lasting and {goal.motion for goal in tidy} <= {"stand", "stop"}):
                parts.append(tidy)
    return Parsed(tuple(parts), tuple(dict.fromkeys(unused)), tuple(dict.fromkeys(conflicts)))


_TRAVEL = frozenset({"go", "run", "crawl"})
_HELD = frozenset({"lie", "crouch", "balance", "raise", "lower", "get_up", "reach", "touch",
                   "push"})  # fmt: skip
_ON_THE_SPOT = frozenset({"spin", "turn", "jump", "hop", "flip", "roll"})
_ROTATIONS = frozenset({"clockwise", "counterclockwise"})
_TURNS_BY = frozenset({"turn", "spin"})
_DESTINATIONS = {"target": "reach", "start": "return"}


def _with_destination(goal: Goal) -> Goal:
    """To go to the target is to reach it."""
    if goal.motion in _TRAVEL and goal.direction in _DESTINATIONS and not goal.negated:
        return replace(goal, motion=_DESTINATIONS[goal.direction])
    return goal


def _divided(goals: Sequence[Goal]) -> list[list[Goal]]:
    """In parts, where something is asked for that can only come next: `run, stop`."""
    parts: list[list[Goal]] = [[]]
    for goal in goals:
        earlier = _TRAVEL | _ON_THE_SPOT | (FOLLOWING - {goal.motion})
        dynamic = any(g.motion in earlier and not g.negated for g in parts[-1])
        if goal.motion in FOLLOWING and not goal.negated and dynamic:
            turned = [g for g in parts[-1] if g.motion == "turn" and goal.motion == "return"]
            if len(turned) < len(parts[-1]):
                parts[-1] = [g for g in parts[-1] if g not in turned]
                parts.append([])
        parts[-1].append(goal)
    return [part for part in parts if part]


def _tidy(goals: Sequence[Goal]) -> tuple[Goal, ...]:
    """Fold together what says one thing: `run` and `go` forward, `lie` and `still`."""
    goals = _turning_as_it_goes(goals)
    asked = {goal.motion for goal in goals if not goal.negated}
    if any(goal.motion in _TRAVEL and goal.negated for goal in goals):
        asked.add("not go")
    tidy: list[Goal] = []
    travel: int | None = None
    for goal in goals:
        folded = _folded(goal, asked)
        if folded is None:
            continue
        if folded.motion in ("go", "run") and not folded.negated:
            if travel is not None:
                motion = "run" if "run" in (tidy[travel].motion, folded.motion) else "go"
                tidy[travel] = replace(_merged(tidy[travel], folded), motion=motion)
                continue
            travel = len(tidy)
        tidy.append(folded)
    return tuple(dict.fromkeys(tidy))


def _turning_as_it_goes(goals: Sequence[Goal]) -> list[Goal]:
    """`run clockwise in a circle`: clockwise is a way to turn, not to go."""
    ways = [g.direction for g in goals if g.motion in _TRAVEL and g.direction in _ROTATIONS]
    if not ways or not any(g.motion in _TURNS_BY and not g.direction for g in goals):
        return list(goals)
    return [
        replace(g, direction=ways[0])
        if g.motion in _TURNS_BY and not g.direction
        else replace(g, direction="")
        if g.motion in _TRAVEL and g.direction in _ROTATIONS
        else g
        for g in goals
    ]


_FOLDS: tuple[tuple[str, Collection[str], str], ...] = (
    ("not go", _ON_THE_SPOT, "in_place"),
    ("not go", _HELD | {"stand", "stop", "off_centre"}, ""),
    ("not stand", _TRAVEL, ""),
    ("stand", _HELD, ""),
    ("stand", _ON_THE_SPOT, "in_place"),
    ("off_centre", {"not go"}, "centred"),
    ("turn", {"return"}, ""),
    ("turn", {"in_place", "not go"}, "spin"),
    ("crouch", _TRAVEL, "low"),
    ("low", {"crouch"}, ""),
)
"""A motion, beside which others, means what instead; empty: nothing more. The first row counts."""
_LIKE = {"run": "go", "stop": "stand"}
"""Motions that fold as another does."""


def _folded(goal: Goal, asked: set[str]) -> Goal | None:
    """A goal, as what it says besides the others that are asked for; None: nothing."""
    motion = _LIKE.get(goal.motion, goal.motion)
    name = f"not {motion}" if goal.negated else motion
    folds = (new for one, others, new in _FOLDS if one == name and not asked.isdisjoint(others))
    new = next(folds, goal.motion)
    if not new:
        return None
    if new != goal.motion and goal.negated:
        return replace(goal, motion=new, direction="", negated=False)
    return replace(goal, motion=new)
