"""From a sentence to goals: which motion, where to, how fast, with which limb, in what manner.

The words stand in `lexicon`; here is how they combine. A motion opens a goal; directions, speeds
and stated numbers belong to the motion before them, or to the next one if none came yet. A
quality ("upright", "smoothly") is a goal of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from p2p.agents.builtin.lexicon import (
    BACK_POSTURES,
    HELD,
    LEXICON,
    LIMBS,
    LONGEST_PHRASE,
    OWNERS,
    REMARKS,
    SEQUENCE,
    SIDES,
    STAYING,
    STOP_WORDS,
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
    """What of the prompt it is made of."""

    def stated(self, unit: str) -> float | None:
        """The number that was stated in this unit."""
        return self.amount.value if self.amount and self.amount.unit == unit else None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A sentence, understood as far as it was."""

    parts: tuple[tuple[Goal, ...], ...]
    """One after the other in time; most sentences have one."""
    unused: tuple[str, ...]

    @property
    def goals(self) -> tuple[Goal, ...]:
        """Of all parts."""
        return tuple(goal for part in self.parts for goal in part)


_UNITS: Mapping[str, tuple[float, str]] = {
    "m/s": (1.0, "m/s"),
    "km/h": (1 / 3.6, "m/s"),
    "mph": (0.44704, "m/s"),
    "cm/s": (0.01, "m/s"),
    "rad/s": (1.0, "rad/s"),
    "deg/s": (3.141592653589793 / 180, "rad/s"),
    "rpm": (2 * 3.141592653589793 / 60, "rad/s"),
    "turns/s": (2 * 3.141592653589793, "rad/s"),
    "cm": (0.01, "m"),
    "m": (1.0, "m"),
    "deg": (3.141592653589793 / 180, "rad"),
    "rad": (1.0, "rad"),
    "s": (1.0, "s"),
}
_SPELLED = (
    (r"(?:meters?|metres?|m)\s*(?:/|per|a)\s*(?:seconds?|sec|s)\b", "m/s"),
    (r"(?:centimeters?|centimetres?|cm)\s*(?:/|per|a)\s*(?:seconds?|sec|s)\b", "cm/s"),
    (r"(?:kilometers?|kilometres?|km)\s*(?:/|per|an)\s*(?:hours?|h)\b|kph\b|kmh\b", "km/h"),
    (r"miles?\s*(?:per|an)\s*hours?\b", "mph"),
    (r"(?:radians?|rad)\s*(?:/|per|a)\s*(?:seconds?|sec|s)\b", "rad/s"),
    (r"(?:degrees?|deg|°)\s*(?:/|per|a)\s*(?:seconds?|sec|s)\b", "deg/s"),
    (r"(?:turns?|revolutions?|rotations?)\s*(?:/|per|a)\s*(?:seconds?|sec|s)\b", "turns/s"),
    (r"(?:turns?|revolutions?|rotations?)\s*(?:/|per|a)\s*minutes?\b", "rpm"),
    (r"(?:centimeters?|centimetres?)\b", "cm"),
    (r"(?:meters?|metres?)\b", "m"),
    (r"(?:degrees?|°)", "deg"),
    (r"(?:radians?)\b", "rad"),
    (r"(?:seconds?|sec)\b", "s"),
)
_TOKEN = re.compile(
    r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>m/s|km/h|cm/s|rad/s|deg/s|turns/s|rpm|mph|cm|deg|rad|m|s)"
    r"(?![a-z/])|(?P<word>[^\W\d_]+(?:[-'][^\W\d_]+)*)|(?P<other>\d+(?:\.\d+)?|[^\s\w])"
)


@dataclass(slots=True)
class _Reader:
    """One part of a sentence, read from left to right."""

    lexicon: Mapping[str, Entry]
    limbs: Mapping[str, str]
    goals: list[Goal] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
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
        if self.pending.direction in ("up", "down"):
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
        said = (*(SIDES[word] for word in words[:sides]), self.limbs[words[sides]])
        moved = next(
            (n for n in reversed(range(len(self.goals))) if _takes_limb(self.goals[n])), None
        )
        if moved is not None:
            goal = self.goals[moved]
            self.goals[moved] = replace(goal, limb=said, words=(*goal.words, *words[: sides + 1]))
        elif said[-1] not in ("torso", "pole", "cart", "fingertip"):
            self.unused += words[: sides + 1]
        return sides + 1

    def _back(self, tokens: Sequence[re.Match[str]]) -> int:
        """`the back` is a part of the body and no way to go; what is asked of it is a posture."""
        words = [token["word"] or "" for token in tokens[:5]]
        if words[0] not in OWNERS or words[1:2] != ["back"]:
            return 0
        following = [*words[2:], "", ""]
        said = following[0] in HELD
        posture = BACK_POSTURES.get(following[said])
        if posture is not None:
            self._take(Entry("quality", posture), ("back", following[said]))
            return 3 + said
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
            if size == 1 and (words[0] in STAYING or entry.slot == "keep"):
                entry = self._staying(entry, tokens[1:])
            self._take(entry, tuple(words))
            return size
        return 0

    def _staying(self, entry: Entry, tokens: Sequence[re.Match[str]]) -> Entry:
        """`stay` or `keep`, by what follows: `stay low` keeps a quality, `hold a foot up` raises.

        A pole that is kept up is balanced.
        """
        words = [word for t in tokens if (word := t["word"] or "") not in STOP_WORDS or not word]
        following = self.lexicon.get(words[0]) if words else None
        if following is not None and following.slot == "quality":
            return Entry("keep", "keep")
        said = next((n for n, word in enumerate(words) if word not in SIDES), len(words))
        limb = self.limbs.get(words[said]) if said < len(words) else None
        if limb is None or "up" not in words[said + 1 : said + 2]:
            return entry
        if limb == "pole":
            return Entry("motion", "balance")
        return entry if entry.slot == "keep" else Entry("motion", "raise")

    def _take(self, entry: Entry, words: tuple[str, ...]) -> None:
        if entry.slot == "negation":
            self._drop_negation()
            self.negated = " ".join(words)
        elif entry.slot == "keep":
            pass
        elif entry.slot in ("motion", "quality", "comparative"):
            self._open(Goal(entry.value, entry.direction, entry.speed, words=words))
        elif entry.slot == "direction":
            self._modify(Goal("", direction=entry.value, words=words))
        else:
            self._modify(Goal("", speed=entry.value, words=words))

    def _single(self, token: re.Match[str]) -> int:
        if token["number"]:
            scale, unit = _UNITS[token["unit"]]
            amount = Amount(float(token["number"]) * scale, unit)
            self._modify(Goal("", amount=amount, words=(token[0],)))
        elif token["word"] and token["word"] not in STOP_WORDS:
            self.unused.append(token["word"])
        elif token["other"] and token["other"][0].isdigit():
            self.unused.append(token["other"])
        return 1

    def _open(self, goal: Goal) -> None:
        pending, self.pending = self.pending, Goal("")
        if _is_quality(goal.motion, self.lexicon):
            self.pending = pending
            pending = Goal("")
        negated, self.negated = bool(self.negated), ""
        self.goals.append(
            replace(
                goal,
                direction=goal.direction or pending.direction,
                speed=goal.speed or pending.speed,
                amount=goal.amount or pending.amount,
                words=(*pending.words, *goal.words),
                negated=negated,
            )
        )

    def _modify(self, change: Goal) -> None:
        """A direction, a speed or a number for the last motion; for the next if none came yet."""
        if self.negated and change.speed:
            flipped = {"fast": "slow", "slow": "medium"}.get(change.speed, change.speed)
            change, self.negated = replace(change, speed=flipped), ""
        found = next(
            (
                n
                for n in reversed(range(len(self.goals)))
                if not _is_quality(self.goals[n].motion, self.lexicon)
            ),
            None,
        )
        if found is None:
            self.pending = _merged(self.pending, change)
        else:
            self.goals[found] = _merged(self.goals[found], change)

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


def _is_quality(motion: str, lexicon: Mapping[str, Entry]) -> bool:
    return motion in QUALITIES or any(
        entry.slot == "comparative" and entry.value == motion for entry in lexicon.values()
    )


QUALITIES = frozenset(entry.value for entry in LEXICON.values() if entry.slot == "quality")


def _takes_limb(goal: Goal) -> bool:
    return goal.motion in ("raise", "lower") and not goal.limb


def normalised(text: str) -> str:
    """Lower case, units in their short form."""
    text = text.lower().replace("’", "'").replace("_", " ")  # noqa: RUF001 - as people type it
    for spelled, unit in _SPELLED:
        text = re.sub(rf"(?<=\d)\s*(?:{spelled})", f" {unit} ", text)
    return text


def parse(
    sentence: str, own_limbs: Mapping[str, str] | None = None, *, remark: bool = False
) -> Parsed:
    """Understand a sentence as far as the lexicon goes.

    Args:
        sentence: What the person wrote.
        own_limbs: More nouns for limbs: what the body at hand calls its parts.
        remark: Take comparatives ("faster") as goals, too.
    """
    lexicon = REMARKS if remark else LEXICON
    limbs = {**(own_limbs or {}), **LIMBS}
    parts: list[tuple[Goal, ...]] = []
    unused: list[str] = []
    for piece in re.split(SEQUENCE, normalised(sentence)):
        reader = _Reader(lexicon, limbs)
        reader.read(piece)
        unused += [word for word in reader.unused if word not in STOP_WORDS]
        if reader.goals:
            parts.append(_tidy(reader.goals))
    return Parsed(tuple(parts), tuple(dict.fromkeys(unused)))


_HELD = frozenset({"lie", "crouch", "balance", "raise", "lower", "get_up", "reach", "push"})
_ON_THE_SPOT = frozenset({"spin", "turn", "jump", "hop", "flip", "roll"})


def _tidy(goals: Sequence[Goal]) -> tuple[Goal, ...]:
    """Fold together what says one thing: `run` and `go` forward, `lie` and `still`."""
    asked = {goal.motion for goal in goals if not goal.negated}
    tidy: list[Goal] = []
    for goal in goals:
        if goal.motion == "stand" and not goal.negated and asked & _HELD:
            continue
        if goal.motion == "stand" and not goal.negated and asked & _ON_THE_SPOT:
            goal = replace(goal, motion="in_place")  # noqa: PLW2901
        before = next((g for g in tidy if _same_way(g, goal)), None)
        if before is None:
            tidy.append(goal)
        else:
            motion = "run" if "run" in (before.motion, goal.motion) else "go"
            tidy[tidy.index(before)] = replace(_merged(before, goal), motion=motion)
    return tuple(dict.fromkeys(tidy))


def _same_way(a: Goal, b: Goal) -> bool:
    moving = ("go", "run")
    return a.motion in moving and b.motion in moving and not a.negated and not b.negated
