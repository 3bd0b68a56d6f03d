"""From a prompt to goals: which motion, where to, how fast, with which limb, in what style.

The words stand in `lexicon`; here is how they combine. A motion opens a goal; directions, speeds
and stated numbers belong to the motion before them, or to the next one if none came yet. A
quality ("upright", "smoothly") is a goal of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import pi

from p2p.agents.builtin.lexicon import (
    BACK_POSTURES,
    DEGREES,
    EITHER_SIDE,
    HELD,
    LEXICON,
    LIMBS,
    LONGEST_PHRASE,
    OPPOSITE,
    OWNERS,
    REMARKS,
    SEQUENCE,
    SIDES,
    STAYING,
    STOP_WORDS,
    SUBJECTS,
    Entry,
)


@dataclass(frozen=True, slots=True)
class Amount:
    """A stated number, in SI units."""

    value: float
    unit: str
    """m/s, rad/s, m, rad or s."""


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


_PER_SECOND = r"\s*(?:/|per|a)\s*(?:seconds?|sec|s)\b"
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
}
"""In the order in which to look for them: how it is spelled out, and its value in SI units."""
_TOKEN = re.compile(
    rf"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>{'|'.join(_UNITS)})(?![a-z/])"
    r"|(?P<word>[^\W\d_]+(?:[-'][^\W\d_]+)*)|(?P<other>\d+(?:\.\d+)?|[^\s\w])"
)


@dataclass(slots=True)
class _Reader:
    """One part of a prompt, read from left to right."""

    lexicon: Mapping[str, Entry]
    limbs: Mapping[str, str]
    subjects: frozenset[str]
    """Limbs whose name adds nothing to what is asked of the whole."""
    goals: list[Goal] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    negated: str = ""
    pending: Goal = field(default_factory=lambda: Goal(""))
    """Directions and speeds that came before any motion."""

    def read(self, text: str) -> None:
        tokens = list(_TOKEN.finditer(text))
        i = 0
        while i < len(tokens):
            rest = tokens[i:]
            i += (
                self._back(rest)
                or self._phrase(rest, 2)
                or self._limb(rest)
                or self._phrase(rest)
                or self._single(rest[0])
            )
        if self.pending.direction in ("up", "down", "away"):
            self.unused += self.pending.words
        elif self.pending != Goal(""):  # "fast!": a way to move, so move
            self._open(Goal("go"))
        self._drop_negation()

    def _limb(self, tokens: Sequence[re.Match[str]]) -> int:
        """`front left leg`: sides, then the noun; gives how many tokens it took."""
        words = [token["word"] or "" for token in tokens[:4]]
        sides = next((n for n, word in enumerate(words) if word not in SIDES), len(words))
        if sides >= len(words) or words[sides] not in self.limbs:
            return 0
        limb = (*(SIDES[word] for word in words[:sides]), self.limbs[words[sides]])
        moved = self._last(lambda goal: goal.motion in ("raise", "lower") and not goal.limb)
        if moved is not None:
            goal = self.goals[moved]
            self.goals[moved] = replace(goal, limb=limb, words=(*goal.words, *words[: sides + 1]))
        elif limb[-1] not in self.subjects:
            self.unused += words[: sides + 1]
        return sides + 1

    def _back(self, tokens: Sequence[re.Match[str]]) -> int:
        """`the back` is a body part and no way to go; what is asked of it is a posture."""
        words = [token["word"] or "" for token in tokens[:5]]
        if words[0] not in OWNERS or words[1:2] != ["back"]:
            return 0
        following = [*words[2:], "", ""]
        held = following[0] in HELD
        posture = BACK_POSTURES.get(following[held])
        if posture is not None:
            self._take(Entry("quality", posture), f"back {following[held]}")
            return 3 + held
        which = next((word for word in following if word not in SIDES), "")
        if which in self.limbs or which in ("flip", "flips"):
            return 0
        self.unused.append("back")
        return 2

    def _phrase(self, tokens: Sequence[re.Match[str]], shortest: int = 1) -> int:
        for size in range(min(LONGEST_PHRASE, len(tokens)), shortest - 1, -1):
            words = [token["word"] for token in tokens[:size]]
            if None in words or (entry := self.lexicon.get(" ".join(words))) is None:
                continue
            following = tokens[size]["word"] if size < len(tokens) else None
            if entry.value == "on_back" and words[-1] == "back" and following in self.limbs:
                continue  # on the back legs
            if size == 1 and (words[0] in STAYING or entry.slot == "keep"):
                entry = self._staying(entry, tokens[1:])
            self._take(entry, " ".join(filter(None, words)))
            return size
        return 0

    def _staying(self, entry: Entry, tokens: Sequence[re.Match[str]]) -> Entry:
        """`stay` or `keep`, by what follows: `stay low` keeps a quality, `hold a foot up` raises.

        A pole that is kept up is balanced.
        """
        passing = STOP_WORDS | DEGREES
        words = [word for t in tokens if (word := t["word"] or "") not in passing or not word]
        following = self.lexicon.get(words[0]) if words else None
        if following is not None and following.slot == "quality":
            return Entry("keep", "keep")
        noun = next((n for n, word in enumerate(words) if word not in SIDES), len(words))
        limb = self.limbs.get(words[noun]) if noun < len(words) else None
        following = self.lexicon.get(" ".join(words[noun + 1 : noun + 2]))
        held = following.value if following else ""
        if limb == "pole" and held in ("up", "upright", "stable"):
            return Entry("motion", "balance")
        if limb is None or held != "up":
            return entry
        return entry if entry.slot == "keep" else Entry("motion", "raise")

    def _take(self, entry: Entry, phrase: str) -> None:
        if entry.slot == "negation":
            self._drop_negation()
            self.negated = phrase
        elif entry.slot == "keep":
            pass
        elif entry.slot in ("motion", "quality", "comparative"):
            self._open(Goal(entry.value, entry.direction, entry.speed, words=(phrase,)))
        elif entry.slot == "direction":
            self._modify(Goal("", direction=entry.value, words=(phrase,)))
        else:
            self._modify(Goal("", speed=entry.value, words=(phrase,)))

    def _single(self, token: re.Match[str]) -> int:
        if token["number"]:
            _, scale, unit = _UNITS[token["unit"]]
            amount = Amount(float(token["number"]) * scale, unit)
            self._modify(Goal("", amount=amount, words=(token[0],)))
        elif token["word"] and token["word"] not in STOP_WORDS:
            self.unused.append(token["word"])
        elif token["other"] and token["other"][0].isdigit():
            self.unused.append(token["other"])
        return 1

    def _open(self, goal: Goal) -> None:
        pending, self.pending = self.pending, Goal("")
        if self._is_style(goal.motion):
            pending, self.pending = Goal(""), pending
        negated, self.negated = bool(self.negated), ""
        merged = _merged(pending, goal)
        self.goals.append(replace(merged, motion=goal.motion, negated=negated))

    def _modify(self, change: Goal) -> None:
        """A direction, a speed or a number for the last motion; for the next if none came yet."""
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
        return motion in _STYLES or (motion in _COMPARED and self.lexicon is REMARKS)

    def _drop_negation(self) -> None:
        if self.negated:
            self.unused += self.negated.split()
        self.negated = ""


def _merged(goal: Goal, change: Goal) -> Goal:
    return replace(
        goal,
        direction=change.direction or goal.direction,
        speed=change.speed or goal.speed,
        amount=change.amount or goal.amount,
        words=(*goal.words, *change.words),
    )


_STYLES = frozenset(entry.value for entry in LEXICON.values() if entry.slot == "quality")
_COMPARED = frozenset(entry.value for entry in REMARKS.values() if entry.slot == "comparative")


def _normalised(text: str) -> str:
    """Lower case, units in their short form."""
    text = text.lower().replace("’", "'").replace("_", " ")  # noqa: RUF001 - as people type it
    for unit, (spelled, _, _) in _UNITS.items():
        text = re.sub(rf"(?<=\d)\s*(?:{spelled})", f" {unit} ", text)
    return text


def parse(
    prompt: str, own_limbs: Mapping[str, str] | None = None, *, remark: bool = False
) -> Parsed:
    """Understand a prompt as far as the lexicon goes.

    Args:
        prompt: What the person wrote.
        own_limbs: More nouns for limbs: what the environment's model calls its parts.
        remark: Take comparatives ("faster") as goals, too.
    """
    lexicon = REMARKS if remark else LEXICON
    limbs = {**(own_limbs or {}), **LIMBS}
    own = None if own_limbs is None else {"torso", *(LIMBS.get(word, word) for word in own_limbs)}
    parts: list[tuple[Goal, ...]] = []
    unused: list[str] = []
    conflicts: list[str] = []
    for piece in re.split(SEQUENCE, _normalised(prompt)):
        reader = _Reader(lexicon, limbs, SUBJECTS if own is None else SUBJECTS & own)
        reader.read(piece)
        unused += [word for word in reader.unused if word not in STOP_WORDS]
        if reader.goals:
            parts.append(_tidy(reader.goals))
            conflicts += reader.conflicts
    return Parsed(tuple(parts), tuple(dict.fromkeys(unused)), tuple(dict.fromkeys(conflicts)))


_HELD = frozenset({"lie", "crouch", "balance", "raise", "lower", "get_up", "reach", "touch",
                   "push"})  # fmt: skip
_ON_THE_SPOT = frozenset({"spin", "turn", "jump", "hop", "flip", "roll"})


def _tidy(goals: Sequence[Goal]) -> tuple[Goal, ...]:
    """Fold together what says one thing: `run` and `go` forward, `lie` and `still`."""
    asked = {goal.motion for goal in goals if not goal.negated}
    tidy: list[Goal] = []
    travel: int | None = None
    for goal in goals:
        if goal.motion in ("go", "run") and not goal.negated:
            if travel is None:
                travel = len(tidy)
                tidy.append(goal)
            else:
                motion = "run" if "run" in (tidy[travel].motion, goal.motion) else "go"
                tidy[travel] = replace(_merged(tidy[travel], goal), motion=motion)
        elif goal.motion != "stand" or goal.negated:
            tidy.append(goal)
        elif not asked & _HELD:
            tidy.append(replace(goal, motion="in_place") if asked & _ON_THE_SPOT else goal)
    return tuple(dict.fromkeys(tidy))
