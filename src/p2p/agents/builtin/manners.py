"""What a word says beyond its motion, such as a gait, as criteria."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from p2p.agents.builtin.builder import CriteriaBuilder, Limit, Row
from p2p.agents.builtin.gaits import NEAR
from p2p.agents.builtin.goals import Goal
from p2p.agents.builtin.lexicon import manner_of
from p2p.agents.builtin.motions import RULES as MOTIONS
from p2p.agents.builtin.motions import Rule, upright
from p2p.agents.builtin.quantities import lift_key

_LIFTED, _STEPPED, _DRAGGED = 0.12, 0.04, 0.04
"""To which share of its height one that marches or steps lifts its feet at least, or shuffles at
most."""
_MANNERS: Mapping[str, tuple[Row, ...]] = {
    **{
        gait: (Row(title, "share", f"{gait}_match", 0.6, low=NEAR),)
        for gait, title in (("trot", "Trots"), ("pace", "Paces"), ("canter", "Canters"),
                            ("gallop", "Gallops"), ("bound", "Bounds"), ("amble", "Ambles"),
                            ("skip", "Skips"))
    },
    "walk": (
        Row("Walks", "share", "walk_match", 0.6, "gait", 0.2, low=NEAR,
            soft_reason="people call any going on legs a walk"),
    ),
    "march": (
        Row("Lifts its feet high", "share", "foot_lift", 0.7, low=(_LIFTED, "height")),
        Row("Steps with one foot after the other", "share", "steps_match", 0.6, "gait",
            low=NEAR),
    ),
    "shuffle": (Row("Hardly lifts its feet", "share", "foot_lift", 0.7, "gait",
                    high=(_DRAGGED, "height")),),
    "strafe": (Row("Faces the way it faced at the start", "share", "facing", 0.8, "gait",
                   high=0.6),),
    "glide": (
        Limit("Moves smoothly", "mean", "action_change", 0.2, "gait", 0.4),
        Limit("Does not bob", "mean", "bounce", (0.1, "pace"), "gait", 0.4),
    ),
}  # fmt: skip
"""The rows of which the first can be measured, or nothing is."""


def _in_turn(builder: CriteriaBuilder, _: Goal) -> None:
    """One leg after the other, as a walk on two legs is measured anyway."""
    if any(measure.quantity in ("stride", "steps_match") for measure in builder.measures):
        builder.served = True
    elif "steps_match" in builder.quantities:
        builder.add(_MANNERS["march"][1])
    else:
        builder.cannot.append("tell whether the legs move in turn")


def _step_in_place(builder: CriteriaBuilder, _: Goal) -> None:
    """Lift each foot again and again; two of them one after the other."""
    if "foot_lift" not in builder.quantities:
        builder.cannot.append("step in place")
        return
    lifted = Row("Lifts every foot", "share", "foot_lift", 0.7, low=(_STEPPED, "height"))
    builder.add(lifted, _MANNERS["march"][1])


def _aloft(builder: CriteriaBuilder, _: Goal) -> None:
    """All feet off the ground at once, again and again."""
    if "clearance" not in builder.quantities:
        builder.cannot.append("leave the ground")
        return
    builder.add(Row("Leaves the ground with all feet", "share", "clearance", 0.1, low=0.01))


def _grounded(builder: CriteriaBuilder, _: Goal) -> None:
    """Never all feet off the ground at once."""
    if "clearance" not in builder.quantities:
        builder.cannot.append("tell whether it leaves the ground")
        return
    builder.add(Row("Has a foot on the ground", "share", "clearance", 0.95, high=0.01))


def _hind_legs(builder: CriteriaBuilder, _: Goal) -> None:
    """Of four legs the front ones are off the ground; of two in a row the nose says enough."""
    feet = builder.model.spec.feet
    middle = sum(foot.lowest_point[0] for foot in feet) / max(1, len(feet))
    front = [builder.model.spec.bodies[f.body] for f in feet if f.lowest_point[0] > middle]
    if len(feet) < 4:
        builder.served = bool(feet)
    for number, part in enumerate(front if len(feet) >= 4 else (), 1):
        title = f"Keeps front foot {number} off the ground"
        builder.add(Row(title, "share", lift_key(part), 0.7, low=(_STEPPED, "height")))


RULES: Mapping[str, Rule] = {
    **MOTIONS,
    "step_in_place": _step_in_place,
    "in_turn": _in_turn,
    "aloft": _aloft,
    "grounded": _grounded,
    "hind_legs": _hind_legs,
    "high_steps": lambda builder, _: builder.add(_MANNERS["march"][0]),
    # What is carried falls off a back that leans or jerks.
    "carried": lambda builder, _: builder.add(
        *upright(0.35), Limit("Moves smoothly", "mean", "action_change", 0.2, weight=0.4)
    ),
}
"""What each motion and style of the lexicon asks for."""


def unmeasured_manners(builder: CriteriaBuilder, goal: Goal, motion: str) -> Iterator[str]:
    """Measure what its words say beyond the motion; gives those of which nothing is measured."""
    for word in goal.words:
        manner = manner_of(word)
        if manner is None or (goal.negated and motion == "stand"):
            continue
        if goal.negated:
            yield from ("not", word)
        elif not _measure_manner(builder, manner):
            yield word


def _measure_manner(builder: CriteriaBuilder, manner: str) -> bool:
    model = builder.model
    rows = _MANNERS.get(manner, ())
    plain = {
        "about": builder.turning,
        "in_water": model.root is not None and model.height_joint is None,
        "without_legs": not model.spec.feet,
        # On its hind legs, or with a limb up, as other criteria say.
        "walk": bool(model.spec.feet) and (builder.tumbling or not builder.stepping),
        "bound": len(model.spec.feet) < 4,  # to hop is all that it can mean
    }
    if plain.get(manner, False):
        return True
    if manner in RULES:
        RULES[manner](builder, Goal(manner))
    elif rows and rows[0].quantity in builder.quantities:
        builder.add(*rows)
    else:
        return False
    return True


MEASURED = frozenset({*_MANNERS, *RULES, "about", "in_water", "without_legs"})
"""Manners that are measured on some legs, or that say nothing more there."""
