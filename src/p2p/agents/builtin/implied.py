"""What goes without saying, read off the model: criteria of every motion that does not contradict.

They are criteria like any other: shown with the rest, hard, and a user may change or drop them.
"""

from __future__ import annotations

from functools import partial

from p2p.agents.builtin.builder import CriteriaBuilder, Limit, Row
from p2p.agents.builtin.goals import RISING
from p2p.agents.builtin.morphology import morphology_of
from p2p.agents.builtin.motions import ROWS, UPSIDE_DOWN, add_not_sinking, upright
from p2p.agents.builtin.quantities import quantities_of
from p2p.contracts import Criterion

LEAST = 5
"""Criteria of a prompt: with fewer, fillers are added."""
TUMBLING = RISING | {"flip", "roll", "lie", "on_back", "on_front", "reared"}
"""Motions in which being upside down is no fall."""
GROUNDED = TUMBLING | {"crawl", "low"}
"""Motions in which other parts than those that carry it may touch the ground."""
LOW = {"crawl", "low", "crouch"}
"""Motions that are done below the usual height."""
STILL = {"stand", "crouch", "lie", "balance"}

FEET_SHARE = 0.9
AT_STOPS = 0.8
"""The most of its joints that are at their stops, on average: a Hopper that hops well has 0.5."""
DEEP = 0.1
"""How far in the ground it may be, as a share of its height: soft contacts let Walker2d's landing
foot in by 0.04."""
STRIDES_PER_SECOND, NOISE, TREMBLING = 4.0, 0.2, 0.6
"""A joint turns back twice in a stride, which gives the share of the joints that turn back from one
step to the next in a gait. A galloping HalfCheetah has 0.35, of 0.6 that it may have."""

UNASKED = "not asked for"
_posture = partial(Row, category="posture", weight=0.3)


def implied_criteria(env_id: str, prompt: str) -> tuple[Criterion, ...]:
    """Return the implied criteria of a prompt in this environment."""
    model = morphology_of(env_id)
    builder = CriteriaBuilder(model, quantities_of(env_id))
    add_implied(builder, {goal.motion for goal in model.parse(prompt).goals if not goal.negated})
    # The measure says the rest: a model reads each of them in every request.
    return tuple(each.model_copy(update={"description": ""}) for each in builder.criteria)


def add_implied(builder: CriteriaBuilder, motions: set[str]) -> None:
    """Add the implied criteria: no fall, on its feet, upright; soft: no wasted effort."""
    model = builder.model
    falls = model.height_joint is not None
    builder.add(
        Limit("Does not fall" if falls else "Does not end early", "ends", "", 0.0, "stability", 0.3,
              whole=True, event="fell" if falls else "ended early")
    )  # fmt: skip
    if not motions & TUMBLING and not model.poles:
        builder.add(*upright(0.8, "posture", 0.3))
        builder.add(
            Limit("Does not tip over", "events", "tilt", 0.0, "posture", 0.3, low=UPSIDE_DOWN,
                  event="tipped over")
        )  # fmt: skip
        if not motions & LOW:
            add_not_sinking(builder)
    if not motions & GROUNDED:
        builder.add(
            _posture("Only what carries it touches the ground", "share", "other_contacts",
                     FEET_SHARE, high=0.0)
        )  # fmt: skip
    keeps_still = bool(motions) and motions <= STILL | {"upright"}
    trembling = min(TREMBLING, NOISE + 2 * STRIDES_PER_SECOND * model.spec.dt)
    builder.add(
        _posture("Does not sink into the ground", "share", "penetration", 0.95,
                 high=(DEEP, "height"), category="dynamics"),
        Limit("Does not tremble", "mean", "reversals", trembling, "dynamics", 0.2),
        Limit("Does not live off its joint stops", "mean", "at_stops", AT_STOPS, "dynamics", 0.2,
              soft_reason="one that keeps still may rest on them" if keeps_still else ""),
    )  # fmt: skip
    effort, shaking = (0.3, 0.25) if motions & STILL else (0.65, 0.4)
    builder.add(
        Limit("Spends no more effort than needed", "mean", "effort", effort, "efficiency", 0.1,
              soft_reason=UNASKED),
        Limit("Does not shake", "mean", "action_change", shaking, "dynamics", 0.1,
              soft_reason=UNASKED),
    )  # fmt: skip


def add_fillers(builder: CriteriaBuilder) -> None:
    """Add what can be said of an environment of which little else can."""
    for row in ROWS["fillers"]:
        if len(builder.criteria) < LEAST:
            builder.add(row)
