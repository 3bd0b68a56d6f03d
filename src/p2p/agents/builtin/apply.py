"""Adds to the criteria what one goal asks for, and notes the words of it that nothing measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from p2p.agents.builtin.builder import CriteriaBuilder
from p2p.agents.builtin.lexicon import STOP_WORDS
from p2p.agents.builtin.goals import RISING, Goal
from p2p.agents.builtin.lexicon import EITHER_SIDE, entry_of
from p2p.agents.builtin.manners import RULES, unmeasured_manners
from p2p.agents.builtin.measures import WHOLE
from p2p.agents.builtin.motions import OPPOSITES, PACES, WAYS


@dataclass(frozen=True, slots=True)
class Slots:
    """What besides its name a motion makes use of."""

    directions: frozenset[str] = frozenset()
    speeds: frozenset[str] = frozenset()
    units: frozenset[str] = frozenset()


_ANY_SPEED = frozenset(PACES)
_TRAVEL = Slots(frozenset(WAYS), _ANY_SPEED, frozenset({"m/s"}))
_TURNING = Slots(
    frozenset({"clockwise", "counterclockwise", "left", "right"}),
    _ANY_SPEED,
    frozenset({"rad/s", "times"}),
)
_TUMBLING = Slots(_TRAVEL.directions | _TURNING.directions, units=frozenset({"times"}))
_JUMPING = Slots(frozenset({"up", "down"}), units=frozenset({"m"}))
_REACHING = Slots(frozenset({"target", "away"}), frozenset({"fast"}))
SLOTS: Mapping[str, Slots] = {
    **dict.fromkeys(("go", "run", "crawl"), _TRAVEL),
    **dict.fromkeys(("spin", "turn"), _TURNING),
    **dict.fromkeys(("flip", "roll"), _TUMBLING),
    **dict.fromkeys(("jump", "hop"), _JUMPING),
    **dict.fromkeys(("reach", "push", "touch"), _REACHING),
    "sway": Slots(frozenset({"left", "right", "up"}), units=frozenset({"times"})),
    "return": Slots(frozenset({"start", "backward"}), _ANY_SPEED),
    "leave": Slots(frozenset({"away", "backward"})),
    **dict.fromkeys(("on_left", "on_right"), Slots(frozenset({"left", "right"}))),
    **dict.fromkeys((*RISING, "stand", "balance", "raise", "untouched"), Slots(frozenset({"up"}))),
    **dict.fromkeys(("lower", "crouch", "lie"), Slots(frozenset({"down"}))),
}
"""Of motions that use any."""


def apply_goal(builder: CriteriaBuilder, goal: Goal) -> None:
    """Add what one goal asks for, and note the words of it that nothing measures."""
    cannot, builder.served = len(builder.cannot), False
    goal = _adapted(builder, goal)
    name = OPPOSITES.get(goal.motion) if goal.negated else goal.motion
    if name is None or name not in RULES or (goal.negated and goal.direction):
        forbidden = "not " if goal.negated else ""
        builder.cannot.append(f"{forbidden}{goal.motion} {goal.direction}".rstrip())
    else:
        RULES[name](builder, replace(goal, motion=name))
    if len(builder.cannot) > cannot or not builder.served:
        words = ["not"] * goal.negated + list(goal.words)
    else:
        words = [*_unused_words(builder, goal), *unmeasured_manners(builder, goal, name or "")]
    builder.uncovered += [word for word in words if word not in STOP_WORDS]


def _adapted(builder: CriteriaBuilder, goal: Goal) -> Goal:
    """A goal in the terms of this environment.

    Seen from the side, what lives in a plane goes right when it goes forward; a cart that goes to
    the right is on the right; an arm that backs off leaves what it touched.
    """
    if goal.motion not in ("go", "run", "crawl"):
        return goal
    side = goal.direction if goal.direction in ("left", "right") else ""
    known = builder.quantities
    if side and builder.model.poles:
        return replace(goal, motion=f"on_{side}")
    if side and "forward_speed" in known and "left_speed" not in known:
        ahead = "forward" if side == "right" else "backward"
        return goal if EITHER_SIDE & {*goal.words} else replace(goal, direction=ahead)
    if goal.direction in ("away", "backward") and "hand_distance" in known:
        return replace(goal, motion="leave")
    return goal


def _unused_words(builder: CriteriaBuilder, goal: Goal) -> Iterator[str]:
    """A direction, a speed or a number that the motion cannot use."""
    slots = SLOTS.get(goal.motion, Slots())
    if slots is _JUMPING and goal.direction in WAYS:
        slots = _TRAVEL
    for slot, value, usable in (
        ("direction", goal.direction, slots.directions),
        ("speed", goal.speed, slots.speeds),
    ):
        if value and value not in usable:
            entries = ((word, entry_of(word)) for word in goal.words)
            yield from (word for word, entry in entries if entry and entry.slot == slot)
    if _lasts(builder, goal.stated("s")):
        return
    amount = goal.amount
    at_most = amount is not None and amount.bound == "at_most" and amount.unit != "m/s"
    if amount is not None and (at_most or amount.unit not in slots.units):
        yield f"{'at most ' if at_most else ''}{amount.value:.3g} {amount.unit}"


def _lasts(builder: CriteriaBuilder, seconds: float | None) -> bool:
    """Whether the time asked for is in the time that the criteria are about."""
    model = builder.model
    return (
        seconds is not None and builder.window == WHOLE and seconds <= model.horizon * model.spec.dt
    )
