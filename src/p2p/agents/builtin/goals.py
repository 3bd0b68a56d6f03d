"""What a prompt asks for, and how what it asks for folds together and divides in time."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from p2p.agents.builtin.lexicon import FOLLOWING, OPPOSITE, Amount, manner_of

_MOST = re.compile(
    r"\bas (?:\w+ ){1,4}as (?:is )?(?:possible|(?:you|it|he|she) (?:\w+ )?(?:can|could|may))\b"
    r"|\b(?:fastest|quickest|highest|farthest|furthest|longest|maximum|maximal|maximi[sz]e"
    r"|(?:top|full|utmost) speed|flat[- ]out|all[- ]out)\b",
    re.IGNORECASE,
)


def asks_for_most(prompt: str) -> bool:
    """Return whether a prompt asks for as much as there is: then no pass ends the training."""
    return _MOST.search(prompt) is not None


@dataclass(frozen=True, slots=True)
class Goal:
    """One thing that is asked for."""

    motion: str
    """A motion or a quality of the lexicon."""
    direction: str = ""
    speed: str = ""
    amount: Amount | None = None
    lasts: Amount | None = None
    """For how long, in s or as a share of the episode."""
    limb: tuple[str, ...] = ()
    """As said: sides, then the noun."""
    negated: bool = False
    words: tuple[str, ...] = ()
    """The phrases of the prompt that it is made of."""

    def amount_in(self, unit: str) -> float | None:
        """Return the goal's amount if it is stated in this unit."""
        return self.amount.value if self.amount and self.amount.unit == unit else None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A prompt, understood as far as it was."""

    parts: tuple[tuple[Goal, ...], ...]
    """One after the other in time; most prompts have one."""
    unused: tuple[str, ...]
    conflicts: tuple[str, ...] = ()
    """Opposite directions of one motion, as in "forward and backward"."""
    assumptions: tuple[str, ...] = ()
    """Slips that were corrected, and clauses that ask for nothing."""

    @property
    def goals(self) -> tuple[Goal, ...]:
        """Of all parts."""
        return tuple(goal for part in self.parts for goal in part)


def merge_goals(goal: Goal, change: Goal) -> Goal:
    return replace(
        goal,
        direction=change.direction or goal.direction,
        speed=change.speed or goal.speed,
        amount=change.amount or goal.amount,
        lasts=change.lasts or goal.lasts,
        words=(*goal.words, *change.words),
    )


TRAVEL = frozenset({"go", "run", "crawl"})
RISING = frozenset({"sit_up", "get_up", "stand_up"})
LIMBS = frozenset({"raise", "overhead", "untouched", "lower", "one_leg"})
LOWERED = frozenset({"crouch", "low", "lie"})
"""After these, to stand is to rise."""
HELD = RISING | LIMBS | {"lie", "crouch", "balance", "reach", "touch", "push"}
_ON_THE_SPOT = frozenset({"spin", "turn", "jump", "hop", "flip", "roll"})
_ROTATIONS = frozenset({"clockwise", "counterclockwise"})
_TURNS_BY = frozenset({"turn", "spin"})
_SIDEWAYS, _LENGTHWAYS = frozenset({"left", "right"}), frozenset({"forward", "backward"})
_DOWN = frozenset({"crouch", "lie"})
_DESTINATIONS = {"target": "reach", "start": "return"}


def cross(one: str, other: str) -> bool:
    """Return whether both directions together are a diagonal."""
    return any(a in _SIDEWAYS and b in _LENGTHWAYS for a, b in ((one, other), (other, one)))


def diagonal(goals: Sequence[Goal]) -> list[Goal]:
    """A speed that is said of a diagonal is that of its two ways together."""
    ways = [g for g in goals if g.motion in TRAVEL and not g.negated and g.direction]
    if not any(cross(one.direction, other.direction) for one in ways for other in ways):
        return list(goals)
    speed = next((g.speed for g in ways if g.speed), "")
    amount = next((g.amount for g in ways if g.amount and g.amount.unit == "m/s"), None)
    part = amount and replace(amount, value=amount.value / 2**0.5)
    return [
        replace(g, speed=g.speed or speed, amount=part or g.amount) if g in ways else g
        for g in goals
    ]


def with_destination(goal: Goal) -> Goal:
    """Turn going to the target into reaching it."""
    held = goal.motion == "stand" and goal.direction == "target"  # hold the tip on the goal
    going = goal.motion in TRAVEL and goal.direction in _DESTINATIONS
    if (going or held) and not goal.negated:
        return replace(goal, motion=_DESTINATIONS[goal.direction])
    return goal


def _merge_squats(goals: Sequence[Goal]) -> list[Goal]:
    """Merge `squat and stand up, again and again` into one motion."""
    motions = {goal.motion for goal in goals if not goal.negated}
    if not {"crouch", "repeatedly"} <= motions:
        return list(goals)
    once = RISING | {"crouch", "repeatedly", "stand"}
    words = tuple(word for goal in goals if goal.motion in once for word in goal.words)
    rest = [goal for goal in goals if goal.motion not in once]
    return [Goal("squats", words=words), *rest]


def split_into_parts(goals: Sequence[Goal]) -> list[list[Goal]]:
    """Split goals into parts that can only follow one another: `run, stop`."""
    goals = _merge_squats(goals)
    parts: list[list[Goal]] = [[]]
    for goal in goals:
        earlier = TRAVEL | _ON_THE_SPOT | (FOLLOWING - {goal.motion})
        earlier |= {"push"} if goal.motion == "leave" else frozenset()
        dynamic = any(g.motion in earlier and not g.negated for g in parts[-1])
        down = any(g.motion in _DOWN and not g.negated for g in parts[-1])
        if goal.motion in RISING and down and not goal.negated:
            parts.append([])
        elif goal.motion in FOLLOWING and not goal.negated and dynamic:
            turned = [g for g in parts[-1] if g.motion == "turn" and goal.motion == "return"]
            if len(turned) < len(parts[-1]):
                parts[-1] = [g for g in parts[-1] if g not in turned]
                parts.append([])
        parts[-1].append(goal)
    return [part for part in parts if part]


def rises(goals: Sequence[Goal]) -> bool:
    """Return whether one that was low is to stand up, and not only to stay as it is."""
    return any(
        goal.motion == "get_up" or any(word.startswith("stand") for word in goal.words)
        for goal in goals
        if not goal.negated
    )


def fold_goals(goals: Sequence[Goal]) -> tuple[Goal, ...]:
    """Merge goals that ask for one thing: `run` and `go` forward, `lie` and `still`."""
    goals = [_resolve_forbidden_way(goal, goals) for goal in _merge_turns(_merge_hops(goals))]
    asked = {goal.motion for goal in goals if not goal.negated}
    if any(goal.motion in TRAVEL and goal.negated and not goal.direction for goal in goals):
        asked.add("not go")
    tidy: list[Goal] = []
    travel: int | None = None
    for goal in goals:
        folded = _fold_goal(goal, asked)
        if folded is None:
            continue
        if folded.motion in _TURNS_BY and (twin := _find_twin(folded, tidy)) is not None:
            motion = "spin" if "spin" in (tidy[twin].motion, folded.motion) else "turn"
            tidy[twin] = replace(merge_goals(tidy[twin], folded), motion=motion)
            continue
        if folded.motion in ("go", "run") and not folded.negated:
            if travel is not None and not cross(tidy[travel].direction, folded.direction):
                motion = "run" if "run" in (tidy[travel].motion, folded.motion) else "go"
                tidy[travel] = replace(merge_goals(tidy[travel], folded), motion=motion)
                continue
            travel = len(tidy)
        tidy.append(folded)
    return tuple(dict.fromkeys(diagonal(tidy)))


def _resolve_forbidden_way(goal: Goal, goals: Sequence[Goal]) -> Goal:
    """Turn a forbidden direction into what it asks for: `not to the left` into a straight line."""
    if goal.motion not in TRAVEL or not goal.negated:
        return goal
    ways = {g.direction or "forward" for g in goals if g.motion in TRAVEL and not g.negated}
    if not goal.direction:
        # Without wriggling: how it goes is forbidden, not that it goes.
        how = goal.motion == "go" and ways and any(map(manner_of, goal.words))
        return replace(goal, motion="go like that") if how else goal
    if OPPOSITE.get(goal.direction) in ways:
        return replace(goal, direction="", negated=False)
    if any(cross(way, goal.direction) for way in ways):
        return replace(goal, motion="straight", direction="", negated=False)
    return goal


def _find_twin(goal: Goal, earlier: Sequence[Goal]) -> int | None:
    """Find an earlier goal with the same turning: `turn in circles clockwise` is one goal."""
    return next(
        (
            place
            for place, other in enumerate(earlier)
            if other.motion in _TURNS_BY
            and other.negated == goal.negated
            and (not goal.direction or other.direction in ("", goal.direction))
        ),
        None,
    )


def _merge_hops(goals: Sequence[Goal]) -> Sequence[Goal]:
    """Merge `move forward by hopping` into one motion: how it goes is said by the hops alone."""
    hops = [g for g in goals if g.motion == "hop" and not (g.negated or g.direction)]
    goes = [g for g in goals if g.motion == "go" and not g.negated and g.direction in _LENGTHWAYS]
    if len(hops) != 1 or len(goes) != 1 or any(map(manner_of, goes[0].words)):
        return goals
    whole = replace(merge_goals(goes[0], hops[0]), motion="hop", limb=hops[0].limb)
    return [whole if goal is hops[0] else goal for goal in goals if goal is not goes[0]]


def _merge_turns(goals: Sequence[Goal]) -> list[Goal]:
    """Give `clockwise` in `run clockwise in a circle` to the turn, and not to the run."""
    ways = [g.direction for g in goals if g.motion in TRAVEL and g.direction in _ROTATIONS]
    if not ways or not any(g.motion in _TURNS_BY and not g.direction for g in goals):
        return list(goals)
    return [
        replace(g, direction=ways[0])
        if g.motion in _TURNS_BY and not g.direction
        else replace(g, direction="")
        if g.motion in TRAVEL and g.direction in _ROTATIONS
        else g
        for g in goals
    ]


_FOLDS: tuple[tuple[str, Collection[str], str], ...] = (
    ("not go", _ON_THE_SPOT | LIMBS, "in_place"),
    ("not go", HELD | {"stand", "stop", "off_centre"}, ""),
    ("not stand", TRAVEL, ""),
    ("get_up", {"stand", "stable"}, "stand_up"),
    ("stand", LIMBS, "standing"),
    ("stand", _ON_THE_SPOT, "in_place"),
    ("stand", HELD, ""),
    ("off_centre", {"not go"}, "centred"),
    ("turn", {"return"}, ""),
    ("turn", {"on_back", "on_front"}, "roll"),
    ("turn", {"in_place", "not go"}, "spin"),
    ("crouch", TRAVEL, "low"),
    ("low", {"crouch"}, ""),
)
"""A motion, beside which others, means what instead; empty: nothing more. The first row counts."""
_LIKE = {"run": "go", "stop": "stand"}
"""Motions that fold as another does."""


def _fold_goal(goal: Goal, asked: set[str]) -> Goal | None:
    """Return what a goal adds to the other goals, or None if it adds nothing."""
    motion = _LIKE.get(goal.motion, goal.motion)
    name = f"not {motion}" if goal.negated else motion
    folds = (new for one, others, new in _FOLDS if one == name and not asked.isdisjoint(others))
    new = next(folds, goal.motion)
    if not new:
        return None
    if motion == "go" and not goal.negated and "in_place" in asked and not goal.direction:
        new = "step_in_place"  # march on the spot
    if new != goal.motion and goal.negated:
        return replace(goal, motion=new, direction="", negated=False)
    return replace(goal, motion=new)
