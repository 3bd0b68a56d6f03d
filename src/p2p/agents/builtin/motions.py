"""What each motion and style asks for, as a table of criteria."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import pi
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from p2p.agents.builtin.builder import CriteriaBuilder, Limit, Row, Scaled
from p2p.agents.builtin.gaits import SET_DOWN
from p2p.agents.builtin.goals import RISING, Goal
from p2p.agents.builtin.lexicon import find_canonical, load_words, manner_of
from p2p.agents.builtin.measures import Stat
from p2p.agents.builtin.quantities import lift_key, rise_key
from p2p.contracts import Category
from p2p.training.model_files.store import is_model

PACES = {"slow": 0.1, "medium": 0.25, "hop": 0.35, "run": 0.55, "fast": 1.2}
"""Speeds in units of the morphology's pace."""
SWING_SECONDS = 6.5
"""Seconds in which a cart swings from one side to the other."""
SWING = 0.15
"""Metres that a cart swings to either side."""
HOPS_PER_SECOND, OFF_THE_GROUND = 0.6, 0.02
"""How often a hopping robot leaves the ground, and by which share of its height."""
STRIDE, STEPS_PER_SECOND = 0.25, 1.0
"""How far one leg is ahead of the other in a step, in rad, and how often they change."""
SQUAT_SECONDS = 4.0
"""Seconds in which a squat goes down and comes up again."""
STEP = 0.2
"""The least length of a step, as a share of the robot's height."""
TURN_RATES = {"slow": 0.3, "medium": 0.6, "run": 1.0, "fast": 2.0}
"""Turning rates in rad/s."""
WIDE_RADIUS = 1.0
"""The least radius of a wide circle, in lengths of the body."""
_KEEPS_MOVING = "Keeps moving"
_WIDE_CIRCLE = "Goes round in a wide circle"
FULL_TURN = 4.5
"""The largest angle, in rad, that the final heading can confirm."""
LEAN = 0.12
"""The least lean, in rad."""
WAYS_AHEAD = frozenset({"forward", "backward"})
IN_WATER = 0.5
"""The share of a turning rate asked of a swimmer: a trained one settles at 0.35 rad/s."""


Rule = Callable[[CriteriaBuilder, Goal], None]


# --- rows that several motions have ---------------------------------------------------------------


UPSIDE_DOWN = 1.6
"""The tilt, in rad, at which an agent lies on its side or its back."""


class _RowData(BaseModel):
    """A row as it stands in `words/rows.toml`."""

    model_config = ConfigDict(extra="forbid")

    title: str
    stat: Stat
    of: str = ""
    at_least: Scaled | None = None
    at_most: Scaled | None = None
    low: Scaled | None = None
    high: Scaled | None = None
    category: Category = "task"
    weight: float = 1.0
    whole: bool = False
    event: str = ""
    soft_reason: str = ""

    @model_validator(mode="after")
    def _has_one_threshold(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"{self.title!r} needs one of at_least and at_most")
        return self

    def row(self) -> Row:
        fields = self.model_dump(exclude={"of", "at_least", "at_most"})
        least = self.at_least is not None
        threshold = self.at_least if self.at_least is not None else self.at_most
        assert threshold is not None
        return Row(
            **fields, quantity=self.of, threshold=threshold,
            comparison="at_least" if least else "at_most",
        )  # fmt: skip


class _RuleData(BaseModel):
    model_config = ConfigDict(extra="forbid")

    groups: tuple[str, ...]
    needs: str = ""
    cannot: str = ""


class _Rows(BaseModel):
    model_config = ConfigDict(extra="forbid")

    groups: dict[str, tuple[_RowData, ...]]
    rules: dict[str, _RuleData]


_data = load_words(_Rows, "rows")
ROWS: Mapping[str, tuple[Row, ...]] = {
    name: tuple(each.row() for each in group) for name, group in _data.groups.items()
}
"""Rows that are the same on every robot, by their purpose."""


def upright(limit: float, category: Category = "task", weight: float = 0.5) -> tuple[Row, ...]:
    """The root upright, or the pole where there is one."""
    return (
        Row("Stays upright", "share", "tilt", 0.9, category, weight, high=limit),
        *ROWS["pole_up"],
    )


def lasts(weight: float) -> Row:
    return Row("Does not end early", "lasting", "", 0.95, "stability", weight, whole=True)


def _forbid_falls(builder: CriteriaBuilder, _: Goal) -> None:
    """Forbid falls in any episode, with rows that help to avoid them."""
    never = partial(Limit, threshold=0.0, weight=0.5, whole=True, event="fell")
    builder.add(never("Never falls", "ends", ""))
    if not builder.tumbling and not builder.model.poles:
        builder.add(
            never("Never tips over", "events", "tilt", low=UPSIDE_DOWN, event="tipped over")
        )
    builder.add(lasts(0.5), *upright(0.6, "posture", 0.3))


def make_in_place_rows(category: Category, weight: float) -> tuple[Row, ...]:
    """Return rows for staying in place; position counts more than speed, because effort sways."""
    return (
        Limit("Stays in place", "mean", "drift", (0.6, "length"), category, weight),
        Limit("Does not travel", "mean", "ground_speed", (0.15, "pace"), "stability", 0.2,
              soft_reason="what works hard sways; where it is says whether it stays"),
    )  # fmt: skip


BOUNCING, CALM = ROWS["bouncing"][0], ROWS["calm"][0]
STILLNESS = frozenset({"still", "statue", "motionless", "immobile", "unmoving", "freeze"})


def add_not_sinking(builder: CriteriaBuilder) -> None:
    if not builder.model.starts_lying:
        builder.add(
            Row("Does not sink down", "share", "height", 0.9, "posture", 0.25, low=(0.65, "height"))
        )


def _make_row_rule(rule: _RuleData) -> Rule:
    """Add these rows; without the quantity it needs, say what cannot be done."""
    rows = [row for group in rule.groups for row in ROWS[group]]

    def add(builder: CriteriaBuilder, _: Goal) -> None:
        if rule.needs and rule.needs not in builder.quantities:
            builder.cannot.append(rule.cannot)
        else:
            builder.add(*rows)

    return add


_ROW_RULES: Mapping[str, Rule] = {name: _make_row_rule(rule) for name, rule in _data.rules.items()}
_add_low_posture = _ROW_RULES["low"]


# --- motions that depend on more than the morphology ----------------------------------------------

WAYS = {
    "forward": ("forward_speed", "Goes forward"),
    "backward": ("backward_speed", "Goes backward"),
    "left": ("left_speed", "Goes to the left"),
    "right": ("right_speed", "Goes to the right"),
}


def _add_travel(builder: CriteriaBuilder, goal: Goal, usual: str = "medium") -> None:
    """Add travel in one direction at the speed of the goal."""
    quantity, title = WAYS.get(goal.direction, WAYS["forward"])
    if builder.turning and not goal.direction:
        # In the water, what wriggles on the spot is fast as well.
        quantity = "ahead_speed" if "ahead_speed" in builder.quantities else "ground_speed"
        title = _KEEPS_MOVING
    if quantity not in builder.quantities:
        builder.cannot.append(f"go {goal.direction or 'forward'}")
        return
    stated = goal.amount_in("m/s")
    if (lengths := goal.amount_in("lengths/s")) is not None:
        stated = lengths * builder.model.length
    wanted = PACES[goal.speed or usual] * builder.model.pace if stated is None else stated
    tolerance = 0.15 if stated is not None else 0.5 if goal.speed == "slow" else None
    if stated is not None and goal.amount and goal.amount.bound:
        # At most so fast is no slower than half of it.
        at_most = goal.amount.bound == "at_most"
        wanted, tolerance = (0.75 * stated, 1 / 3) if at_most else (stated, None)
    builder.add(
        _make_rate_row(title, "speed", quantity, wanted, tolerance),
        _make_steady_row("Keeps going", quantity, wanted),
    )
    if not builder.model.knows_heading:
        if not builder.turning:
            builder.add(*ROWS["keeps_its_direction"])
            if not builder.window[0]:  # later it may have been asked to turn
                builder.add(*ROWS["faces_ahead"])
    elif quantity in ("forward_speed", "backward_speed"):
        limit = max(0.5 * wanted, 0.08 * builder.model.pace)
        builder.add(Limit("Keeps its line", "miss", "left_speed", limit, "gait", 0.15, low=0.0))


def _make_leg_rule(usual: str) -> Rule:
    """Return the rule for travel on legs; on two legs, they alternate."""

    def rule(builder: CriteriaBuilder, goal: Goal) -> None:
        if (count := goal.amount_in("times")) is not None:
            _count_steps(builder, goal, count)
            return
        if (rate := goal.amount_in("times/s")) is not None:
            _add_step_rate(builder, goal, rate)
            goal = replace(goal, amount=None)
        if (lengths := goal.amount_in("lengths")) is not None:
            _add_distance(builder, goal, lengths * builder.model.length)
            return
        if (way := goal.amount_in("m")) is not None:
            _add_distance(builder, goal, way)
            return
        _add_travel(builder, goal, usual)
        steps = float(round(STEPS_PER_SECOND * _window_seconds(builder)))
        if builder.stepping and not builder.sideways:
            builder.add(
                Row(
                    "Steps with both legs in turn",
                    "swings",
                    "stride",
                    steps,
                    weight=0.7,
                    low=STRIDE,
                ),
                Row("Swings each leg", "swings", "lazy_leg", steps / 2, weight=0.3, low=STRIDE / 3),
            )
            both = Row("Uses the legs of both sides", "swings", "lazy_side", steps / 2, "gait", 0.3,
                       low=STRIDE / 3)  # fmt: skip
            builder.add(both)

    return rule


_SLIDING = frozenset(
    {"slide", "glide", "skate", "shuffle", "slither", "drag", "crawl", "creep", "moonwalk"}
)
"""Motions whose feet may stay on the ground."""
_ENDS_THERE = ("m", "lengths", "times", "rad")
"""Who goes so far, takes so many steps or turns so much may stand still after that."""


def require_steps(builder: CriteriaBuilder, goals: Sequence[Goal]) -> None:
    """Let no foot be carried along or slide, unless something asks for it."""
    held_up = any(
        m.quantity.startswith(("lift_", "spare_foot", "nose_up")) for m in builder.measures
    )
    if not builder.stepping or builder.tumbling or held_up:
        return
    feet = len(builder.model.spec.feet)
    if builder.travelling and feet > 2:
        builder.add(*ROWS["every_foot"])
    words = {word for goal in goals for word in (goal.motion, *map(find_canonical, goal.words))}
    lift_is_measured = any(m.quantity == "foot_lift" for m in builder.measures)
    ends = any(goal.amount_in(unit) is not None for goal in goals for unit in _ENDS_THERE)
    goes_on = (builder.travelling or builder.turning) and not ends and "return" not in words
    if goes_on and feet > 1 and not lift_is_measured and not words & _SLIDING:
        builder.add(*ROWS["no_sliding"])


def _count_steps(builder: CriteriaBuilder, goal: Goal, count: float) -> None:
    """Add the number of steps asked for, and allow one more to close up."""
    quantity, title = WAYS.get(goal.direction, WAYS["forward"])
    stepping = any(word in phrase for phrase in goal.words for word in ("step", "stride"))
    if not stepping or not {"landings", quantity} <= builder.quantities.keys():
        builder.cannot.append(f"count {count:g} times")
        return
    way = STEP * count * builder.model.standing_height / _window_seconds(builder)
    builder.add(
        Row(title, "mean", quantity, way, weight=0.5),
        *_count_events("Takes the steps asked for", "landings", count, more=1.0, low=1.0),
    )


def _add_step_rate(builder: CriteriaBuilder, goal: Goal, rate: float) -> None:
    """Add the number of steps a second asked for."""
    stepping = any(word in phrase for phrase in goal.words for word in ("step", "stride"))
    if not stepping or "landings" not in builder.quantities:
        builder.cannot.append(f"do so {rate:g} times a second")
        return
    steps = partial(Row, stat="events", quantity="landings", low=1.0)
    count = rate * _window_seconds(builder)
    builder.add(
        steps("Steps as often as asked for", threshold=round(0.85 * count)),
        steps("Steps no more often", threshold=round(1.15 * count), comparison="at_most"),
    )


def _add_distance(builder: CriteriaBuilder, goal: Goal, way: float) -> None:
    """Get as far as asked for, and stay there."""
    quantity, title = WAYS.get(goal.direction, WAYS["forward"])
    if not {"drift", quantity} <= builder.quantities.keys() or builder.window[0] or builder.turning:
        builder.cannot.append(f"go {way:g} m")
        return
    far = partial(Row, stat="final", quantity="drift")
    least = goal.amount is not None and goal.amount.bound == "at_least"
    builder.add(
        Row(title, "mean", quantity, 0.7 * way / _window_seconds(builder)),
        far("Gets as far as asked for", threshold=way if least else 0.85 * way),
    )
    if not least:
        builder.add(far("Gets no farther", threshold=1.15 * way, comparison="at_most"))


def _count_events(
    title: str, quantity: str, count: float, *, low: Scaled, more: float = 0.0
) -> tuple[Row, Row]:
    """Return rows for a count of events: at least `count`, at most `count + more`."""
    times = partial(Row, stat="events", quantity=quantity, low=low)
    return (
        times(title, threshold=count),
        times(f"{title}, no more", threshold=count + more, comparison="at_most"),
    )


def _window_seconds(builder: CriteriaBuilder) -> float:
    """Return how long the part of the episode is that is being built."""
    first, last = builder.window
    return (last - first) * builder.model.horizon * builder.model.spec.dt


def _make_rate_row(
    title: str, kind: str, quantity: str, wanted: float, tolerance: float | None
) -> Row:
    """Return a row for at least this rate; with a tolerance, for this rate."""
    if tolerance is None:
        return Row(title, "mean", quantity, wanted)
    return Limit(
        f"{title} at the {kind} asked for", "miss", quantity, wanted * tolerance, low=wanted
    )


def _make_steady_row(title: str, quantity: str, wanted: float) -> Row:
    """Return a row for steady motion, because a burst can make up a mean."""
    return Row(title, "steady", quantity, 0.4 * wanted, weight=0.5)


def _add_crawl(builder: CriteriaBuilder, goal: Goal) -> None:
    _add_travel(builder, goal)
    _add_low_posture(builder, goal)


def _make_turn_rule(usual: str, *on_the_spot: Row) -> Rule:
    def rule(builder: CriteriaBuilder, goal: Goal) -> None:
        right = goal.direction in ("clockwise", "right")
        quantity = "turn_right_rate" if right else "turn_left_rate"
        title = "Turns clockwise" if right else "Turns counterclockwise"
        orbit = "orbit_right_rate" if right else "orbit_left_rate"
        whirls = goal.motion == "spin" and not any("circle" in word for word in goal.words)
        if orbit in builder.quantities and not whirls:
            _add_orbit(builder, orbit, goal.amount_in("times") or 1.0)
            return
        stated, radius = _stated_turn_rate(goal), goal.amount_in("radius")
        if quantity not in builder.quantities:
            builder.cannot.append("turn about the vertical")
        if radius is not None:
            _add_circle(builder, goal, quantity, radius)
            return
        angle = goal.amount_in("rad")
        if angle is not None:
            _add_turn_by(builder, angle, "right" if right else "left")
        elif times := goal.amount_in("times"):
            builder.add(Row(title, "turns", quantity, times))
        elif builder.travelling and (rates := _wide_circle_rates(builder, goal)):
            builder.add(
                Limit(_WIDE_CIRCLE, "miss", quantity, rates[1] - rates[0], low=rates[0]),
                _make_steady_row("Keeps turning", quantity, rates[0]),
            )
        else:
            rate = _usual_turn_rate(builder, goal, usual) if stated is None else stated
            turning = _make_rate_row(
                title, "rate", quantity, rate, None if stated is None else 0.15
            )
            if builder.travelling and not goal.speed and "ahead_speed" in builder.quantities:
                turning = replace(turning, weight=0.3)  # or what swims would spin where it is
            builder.add(turning, _make_steady_row("Keeps turning", quantity, rate))
        if not builder.travelling:
            builder.add(*on_the_spot)

    return rule


def _usual_turn_rate(builder: CriteriaBuilder, goal: Goal, usual: str) -> float:
    """Return the rate at which to turn where none is stated: slowly on the way somewhere."""
    rate = TURN_RATES[goal.speed or ("slow" if builder.travelling else usual)]
    in_water = "ahead_speed" in builder.quantities and (goal.speed or not builder.travelling)
    return rate * IN_WATER if in_water else rate


def _wide_circle_rates(builder: CriteriaBuilder, goal: Goal) -> tuple[float, float] | None:
    """Return the usual and the highest turn rate; None where there is no time for a wide lap."""
    if "wide_circle" not in map(manner_of, goal.words):
        return None
    speed = builder.speed or PACES[goal.speed or "medium"] * builder.model.pace
    lap, tightest = 2 * pi / _window_seconds(builder), speed / (WIDE_RADIUS * builder.model.length)
    usual = (max(lap, 0.6 * tightest) + tightest) / 2
    return (usual, tightest) if lap < 0.8 * tightest else None


def _add_turn_by(builder: CriteriaBuilder, angle: float, way: str) -> None:
    """Add a turn by an angle that the final heading can confirm."""
    if angle >= FULL_TURN:
        builder.cannot.append(f"turn by {angle:.3g} rad")
        return
    turned = partial(Row, stat="final", quantity=f"turned_{way}")
    builder.add(
        turned("Has turned as far as asked for", threshold=0.8 * angle),
        turned("Has turned no farther", threshold=1.2 * angle, comparison="at_most"),
    )


def _stated_turn_rate(goal: Goal) -> float | None:
    """The rate that is stated, in rad/s."""
    turns = goal.amount_in("times/s")
    return goal.amount_in("rad/s") if turns is None else 2 * pi * turns


def _add_circle(builder: CriteriaBuilder, goal: Goal, quantity: str, radius: float) -> None:
    """Add travel on a circle of a radius, at the speed that fits the turn rate."""
    speed = next(
        (each for each in ("ahead_speed", "ground_speed") if each in builder.quantities), ""
    )
    if not speed or not radius:
        builder.cannot.append("tell how wide the circle is")
        return
    usual = PACES[goal.speed or "medium"] * builder.model.pace
    asked = (each.threshold for each in builder.criteria if each.title == _KEEPS_MOVING)
    wanted = builder.speed or next(asked, usual)
    builder.add(
        _make_rate_row("Goes round", "speed", speed, wanted, 0.15),
        _make_rate_row("Turns", "rate", quantity, wanted / radius, 0.15),
        _make_steady_row("Keeps turning", quantity, wanted / radius),
    )


def _add_orbit(builder: CriteriaBuilder, quantity: str, rounds: float) -> None:
    """Go round the target, near it."""
    length = builder.model.length
    builder.add(
        Row("Goes round the target", "turns", quantity, rounds),
        Row("Keeps near the target, not on it", "share", "target_distance", 0.5,
            low=0.1 * length, high=0.45 * length),
    )  # fmt: skip


def _add_tumble(title: str, *axes: tuple[str, str]) -> Rule:
    """Add turning over about the first of these axes that exists."""

    def rule(builder: CriteriaBuilder, goal: Goal) -> None:
        if builder.settling and "front_up" in builder.quantities:
            builder.served = True  # by the side that it ends on
            return
        backward = goal.direction in ("backward", "left", "counterclockwise")
        quantities = [axis[backward] for axis in axes if axis[backward] in builder.quantities]
        if not quantities:
            builder.cannot.append(title.lower())
            return
        builder.add(
            Row(title, "turns", quantities[0], goal.amount_in("times") or 1.0),
            Row(
                f"{title} again and again",
                "mean",
                quantities[0],
                0.5,
                "gait",
                0.2,
                soft_reason="as often as asked is enough",
            ),
        )

    return rule


_FLIP_RATES = ("flip_forward_rate", "flip_back_rate")
_ROLL_RATES = ("roll_right_rate", "roll_left_rate")


def _add_clearance(builder: CriteriaBuilder, title: str, times: float) -> None:
    """Require the feet to leave the ground: bobbing and stretching raise the root as well."""
    builder.add(
        Row(title, "events", "clearance", times, weight=0.5, low=(OFF_THE_GROUND, "height"))
    )


def _add_jump(
    builder: CriteriaBuilder, goal: Goal, share: float = 0.15, bouncing: Row = BOUNCING
) -> None:
    """Rise by a length, or by a share of its height."""
    if "height" not in builder.quantities:
        builder.cannot.append("jump")
        return
    model = builder.model
    rise = goal.amount_in("m") or share * max(model.standing_height, model.length / 1.5)
    top = model.allowed_height(model.standing_height + rise)
    builder.add(Row("Jumps up", "highest", "height", top), bouncing)
    if _count_jumps(builder, goal):
        pass
    elif goal.motion == "jump":
        _add_clearance(builder, "Leaves the ground", 1.0)
    if goal.direction in WAYS:
        _add_travel(builder, goal)


def _count_jumps(builder: CriteriaBuilder, goal: Goal) -> bool:
    """Add the stated number of jumps; return False if none is stated."""
    count, amount = goal.amount_in("times"), goal.amount
    if (rate := goal.amount_in("times/s")) is not None:
        times = rate * _window_seconds(builder)
        often = partial(Row, stat="events", quantity="clearance", low=(OFF_THE_GROUND, "height"))
        builder.add(often("Leaves the ground as often as asked for", threshold=round(0.9 * times)))
        if amount is not None and not amount.bound:
            most = partial(often, comparison="at_most")
            builder.add(most("Leaves the ground no more often", threshold=round(1.2 * times)))
        return True
    if count is None or amount is None or amount.bound == "at_most":
        return False
    rows = _count_events("Leaves the ground", "clearance", count, low=(OFF_THE_GROUND, "height"))
    builder.add(*(rows[:1] if amount.bound else rows))
    return True


def _add_hop(builder: CriteriaBuilder, goal: Goal) -> None:
    """Add travel in bounces, or jumps where the goal has no direction."""
    if builder.travelling and not goal.direction:
        builder.add(BOUNCING)
    elif goal.direction in ("up", "down", "") and "height" in builder.quantities:
        # Nothing else tells a learner who stands what it lacks, before it leaves the ground.
        bouncing = replace(BOUNCING, threshold=(0.12, "pace"), category="task", weight=1.0)
        _add_jump(builder, goal, OFF_THE_GROUND, bouncing)
        if goal.amount_in("times") is None and goal.amount_in("times/s") is None:
            builder.add(*ROWS["hopping"])
    else:
        far = goal.amount_in("m")
        if far is None:
            _add_travel(builder, goal, "hop")
        else:
            _add_distance(builder, goal, far)
        builder.add(replace(BOUNCING, threshold=(0.15, "pace")), *ROWS["in_the_air"])
    if goal.amount_in("times/s") is not None:
        _count_jumps(builder, goal)
        return
    if goal.amount_in("times") is not None:
        if builder.travelling or goal.direction not in ("up", "down", ""):
            _count_jumps(builder, goal)
        return
    often = {"fast": 2.0, "slow": 0.5}.get(goal.speed, 1.0) if not goal.direction else 1.0
    times = max(1.0, round(often * HOPS_PER_SECOND * _window_seconds(builder)))
    _add_clearance(builder, "Hops again and again", float(times))


_STANDING_WORDS = frozenset({"stand", "stands", "standing", "up", "upright"})
"""Words that ask a lying robot to get to its feet, not to stay as it is."""


def _add_stand(builder: CriteriaBuilder, goal: Goal) -> None:
    """Stay, upright; a pole is balanced, and one that lies gets to its feet if asked to stand."""
    if goal.motion == "balance" and builder.travelling and not builder.model.poles:
        builder.add(*ROWS["stable"])  # keep your balance as you walk
        return
    if builder.model.poles:
        builder.add(*ROWS["pole_task"], *(() if builder.swaying else ROWS["balance_calmly"]))
        return
    if builder.model.starts_lying:
        words = " ".join(goal.words).split()
        if goal.motion == "stand" and not builder.rising and _STANDING_WORDS.isdisjoint(words):
            _add_lying_down(builder, goal)  # to stay as it is
        else:
            builder.add(*ROWS["on_its_feet"])
        return
    if "ground_speed" not in builder.quantities:
        builder.add(Limit("Holds still", "mean", "joint_speed", 0.3))
    builder.add(Limit("Stays where it is", "mean", "ground_speed", (0.06, "pace")), *ROWS["still"])
    if not builder.window[0]:  # later, it is no longer where it began
        near = Row("Stays near where it began", "share", "drift", 0.9, weight=0.3,
                   high=(0.4, "length"))  # fmt: skip
        builder.add(near)
    if not builder.tumbling:  # one that rears is not level
        builder.add(*upright(0.6))
    add_not_sinking(builder)


def _add_rise(builder: CriteriaBuilder, goal: Goal) -> None:
    """Add rising from lying, unless it starts standing."""
    if builder.model.hangs:
        builder.add(*ROWS["pole_up"])
    elif builder.model.poles and goal.motion != "sit_up":
        _add_stand(builder, goal)
    elif builder.model.height_joint is None and "tilt" in builder.quantities:
        builder.add(*upright(0.6))
    elif "height" not in builder.quantities:
        builder.cannot.append("get up")
    elif not builder.model.starts_lying or goal.motion == "stand_up":
        _add_stand(builder, goal)
    else:
        builder.add(*ROWS["sit_up" if goal.motion == "sit_up" else "get_up"])
        if goal.speed == "fast":
            builder.add(Row("Is up soon", "share", "height", 0.8, low=(0.75, "clear")))


def _add_lying_down(builder: CriteriaBuilder, goal: Goal) -> None:
    """Add lying on the ground, where that does not end the episode."""
    model = builder.model
    lowest = 0.55 * model.standing_height if "height" in builder.quantities else 0.0
    if not lowest or model.allowed_height(lowest) > 1.1 * lowest:
        builder.cannot.append("lie down")
        return
    if model.starts_lying:
        builder.add(Limit("Lies on the ground", "final", "height", (0.7, "clear")))
    else:
        builder.add(Limit("Lies on the ground", "final", "height", (0.55, "allowed")))
    if model.is_tall:
        builder.add(Row("Lies flat", "final", "tilt", 1.0, weight=0.5))
    elif "down" in " ".join(goal.words) and not builder.settling:
        builder.add(Limit("Does not end on its back", "final", "tilt", UPSIDE_DOWN, weight=0.5))
    builder.add(Limit("Lies still", "mean", "parts_speed", (0.08, "pace"), weight=0.5), CALM)


def _add_sway(builder: CriteriaBuilder, goal: Goal) -> None:
    """Move the cart from side to side under the pole."""
    model = builder.model
    if "cart_right" not in builder.quantities:
        builder.cannot.append("go from side to side")
        return
    seconds = model.horizon * model.spec.dt
    wide = goal.amount_in("m")
    swings = goal.amount_in("times") or max(4.0, float(int(seconds / SWING_SECONDS)))
    builder.add(
        Row(
            "Swings from side to side",
            "swings",
            "cart_right",
            swings,
            low=0.5 * wide if wide else SWING,
        ),
        *([Limit("Swings no farther", "highest", "cart_offset", 0.8 * wide)] if wide else []),
        *(ROWS["pole_task"] if model.poles else ()),
    )


def _add_return(builder: CriteriaBuilder, goal: Goal) -> None:
    """Come back to where it began."""
    if "drift" not in builder.quantities:
        builder.cannot.append("come back")
        return
    wanted = PACES[goal.speed or "medium"] * builder.model.pace
    if not builder.window[0]:  # or one that stays has come back as well
        builder.add(Row("Goes away first", "highest", "drift", (2.0, "length")))
    builder.add(
        Limit("Is back where it began", "final", "drift", (1.0, "length"), whole=True),
        Row(
            "Comes back",
            "mean",
            "backward_speed",
            0.5 * wanted,
            "gait",
            0.4,
            soft_reason="to be back is what was asked, by whichever way",
        ),
    )


def _add_hand_away(builder: CriteriaBuilder, _: Goal) -> None:
    """Add moving the hand away from the object."""
    if "hand_distance" not in builder.quantities:
        builder.cannot.append("take the hand away")
        return
    far = 0.25 * builder.model.length
    builder.add(Row("Takes the hand away", "final", "hand_distance", far))


AT_THE_OBJECT = ROWS["at_the_object"][0]


def _add_reach(builder: CriteriaBuilder, goal: Goal) -> None:
    """Bring the hand, or the object, to the target."""
    if "target_distance" not in builder.quantities:
        if goal.amount_in("m/s") is not None:  # a speed is reached as well
            _add_travel(builder, goal)
        else:
            builder.cannot.append("reach a target")
        return
    pushing = "hand_distance" in builder.quantities
    if goal.motion == "push" and not pushing and is_model(builder.model.spec.env_id):
        builder.cannot.append("push: no part is called an object")
        return
    stated, length = goal.amount_in("m"), builder.model.length
    usual = max(0.1 * length, builder.model.goal_radius)
    if pushing:
        usual = builder.model.placed_distance or 0.12 * length
    near = stated or usual
    if goal.direction == "away":
        if not pushing:
            builder.add(Row("Keeps away from the target", "mean", "target_distance",
                            stated or 0.6 * length))  # fmt: skip
            return
        far = stated or 0.5 * length
        builder.add(
            Row("Pushes the object away from the goal", "final", "target_distance", far),
            replace(AT_THE_OBJECT, threshold=0.24 * length),
        )
        return
    if pushing:
        rows = (
            # Wherever in a sequence: it is still there at the end.
            Limit("Brings the object to the goal", "final", "target_distance", near, whole=True),
            replace(AT_THE_OBJECT, threshold=2 * near),
        )
    else:
        rows = (
            Limit("Reaches the target", "final", "target_distance", near),
            Row(
                "Stays at the target",
                "share",
                "target_distance",
                0.5,
                "stability",
                0.4,
                high=1.5 * near,
            ),
        )
    soon = Limit("Is close on average", "mean", "target_distance", 3 * near, "task", 0.5)
    if goal.speed != "fast":
        soon = replace(soon, category="gait", weight=0.2, soft_reason="nobody asked for haste")
    builder.add(*rows, soon)


def _add_touch(builder: CriteriaBuilder, goal: Goal) -> None:
    """Bring the hand to the object; where there is none, to the target."""
    if "hand_distance" not in builder.quantities:
        _add_reach(builder, goal)
        return
    near = 0.12 * builder.model.length
    builder.add(
        Limit("Brings the hand to the object", "final", "hand_distance", near),
        *([Limit("Is soon there", "mean", "hand_distance", 3 * near)] * (goal.speed == "fast")),
        Row(
            "Stays at the object", "share", "hand_distance", 0.5, "stability", 0.4, high=1.5 * near
        ),
    )


def _add_height(builder: CriteriaBuilder, goal: Goal) -> None:
    if any(
        criterion.category == "task" and measure.quantity.startswith(("height", "rise_"))
        for criterion, measure in zip(builder.criteria, builder.measures, strict=True)
    ):
        builder.served = True
    elif any(measure.quantity == "clearance" for measure in builder.measures):
        _add_jump(builder, goal)  # to hop high is not to go on straight legs
    else:
        builder.add(Row("Keeps high", "mean", "height", (1.0, "height"), weight=0.7))


def _add_repetition(builder: CriteriaBuilder, _: Goal) -> None:
    """Add repetition: lasting motion, or leaving the ground often."""
    if any(measure.quantity == "clearance" for measure in builder.measures):
        times = max(1.0, round(HOPS_PER_SECOND * _window_seconds(builder)))
        _add_clearance(builder, "Hops again and again", float(times))
    elif any(measure.stat in ("steady", "swings", "turns") for measure in builder.measures):
        builder.served = True
    else:
        builder.cannot.append("tell how often it does it")


def _add_power(builder: CriteriaBuilder, goal: Goal) -> None:
    """Add height for a big jump; other motions have no measure of size."""
    if any(measure.quantity == "clearance" for measure in builder.measures):
        _add_height(builder, goal)
    else:
        builder.cannot.append("tell whether it is big or powerful")


def _add_lying_on_side(builder: CriteriaBuilder, goal: Goal) -> None:
    """Add lying on the back or front: by the front's direction where it lies, else by tilt."""
    on_front = goal.motion == "on_front"
    if "front_up" in builder.quantities:
        quantity = "front_down" if on_front else "front_up"
        builder.add(Row(f"Ends on its {'front' if on_front else 'back'}", "final", quantity, 1.0))
    elif "tilt" not in builder.quantities or builder.model.is_tall or on_front:
        builder.cannot.append("turn over")
    else:
        builder.add(Row("Is on its back", "share", "tilt", 0.7, low=2.2))


def _add_in_place(builder: CriteriaBuilder, _: Goal) -> None:
    """Add staying in place: where it is now, if it has travelled before."""
    if builder.window[0] > 0:
        builder.add(Limit("Stays where it is", "mean", "ground_speed", (0.06, "pace")))
    else:
        # Legs that work hard for long carry it off a little.
        away = max(0.5 * builder.model.length, 0.05 * builder.model.pace * _window_seconds(builder))
        builder.add(
            *make_in_place_rows("task", 1.0),
            Limit("Ends near where it began", "final", "drift", away, weight=0.3),
        )


def _add_standing(builder: CriteriaBuilder, goal: Goal) -> None:
    """Add standing in place while a limb moves, and standing still if asked."""
    _add_in_place(builder, goal)
    if STILLNESS & {word for phrase in goal.words for word in phrase.split()}:
        builder.add(
            Limit("Stays where it is", "mean", "ground_speed", (0.06, "pace")), *ROWS["still"]
        )
    builder.add(replace(lasts(0.5), category="task"), *upright(0.6))


def _add_straight_line(builder: CriteriaBuilder, _: Goal) -> None:
    """Add staying on a line, except for agents that move in a plane."""
    if builder.model.poles:
        builder.add(*ROWS["pole_up"], *ROWS["centred"])
        return
    builder.served = "forward_speed" in builder.quantities
    model = builder.model
    aside = ("forward_speed", "stray_ahead") if builder.sideways else ("left_speed", "stray_aside")
    way = PACES["medium"] * model.pace * model.horizon * model.spec.dt
    builder.add(
        Limit("Does not stray from its line", "highest", aside[1], 0.15 * way, weight=0.6),
        Limit("Keeps its line", "miss", aside[0], (0.05, "pace"), "gait", 0.4, low=0.0),
    )


def _add_limb_height(builder: CriteriaBuilder, goal: Goal) -> None:
    """Hold a limb higher or lower than usual."""
    if "both" in goal.limb:
        for side in ("left", "right"):
            sides = tuple(side if word == "both" else word for word in goal.limb)
            _add_limb_height(builder, replace(goal, limb=sides))
        return
    model, up = builder.model, goal.motion in ("raise", "overhead", "untouched")
    part = model.limb(goal.limb)
    if part is None or rise_key(part) not in builder.quantities:
        whole = goal.limb[-1:] == ("torso",)
        if not up and (whole or not goal.limb):
            _add_low_posture(builder, goal)
        elif whole:
            _add_height(builder, goal)
        else:
            builder.cannot.append(f"{goal.motion} the {' '.join(goal.limb) or 'limb'}")
        return
    if up and lift_key(part) in builder.quantities:
        title = f"Keeps the {' '.join(goal.limb)} off the ground"
        off = 0.15 * model.limb_length(part)
        builder.add(Row(title, "share", lift_key(part), 0.8, low=off))
        if goal.motion == "untouched":
            name = " ".join(goal.limb)
            builder.add(
                Limit(
                    f"Never sets the {name} down",
                    "events",
                    lift_key(part),
                    0.0,
                    high=SET_DOWN,
                    event=f"the {name} touched the ground",
                )
            )
        add_not_sinking(builder)
        return
    wanted = model.raised_height(part) if up else model.lowered_height(part)
    if goal.motion == "overhead":
        wanted = max(wanted, model.head_top)
    title = f"{'Raises' if up else 'Lowers'} the {' '.join(goal.limb)}"
    # Most of the time: a limb that goes far up now and then has a high mean, too.
    held = partial(Row, title, "share", rise_key(part), 0.7)
    builder.add(held(low=wanted) if up else held(high=wanted))
    add_not_sinking(builder)


def _add_planted_feet(builder: CriteriaBuilder, goal: Goal) -> None:
    """Keep feet on the ground: those of the named sides, or all of them."""
    sides = {side for side in goal.limb[:-1] if side != "both"}
    one = builder.model.limb(goal.limb) if sides else None
    parts = [one] if one else [] if sides else builder.model.spec.bodies
    keys = [key for part in parts if (key := lift_key(part)) in builder.quantities]
    if not keys or goal.limb[-1] not in ("foot", "leg"):
        builder.cannot.append(f"keep the {' '.join(goal.limb)} on the ground")
    for key in keys:
        name = builder.quantities[key].words.removesuffix(" over the ground")
        title = f"Keeps the {name.removeprefix('height of the ')} on the ground"
        builder.add(Row(title, "share", key, 0.9, high=2 * SET_DOWN))


_MOTIONS: Mapping[str, Rule] = {
    **_ROW_RULES,
    "go": _make_leg_rule("medium"),
    "run": _make_leg_rule("run"),
    "crawl": _add_crawl,
    "spin": _make_turn_rule("run", *make_in_place_rows("stability", 0.4)),
    "turn": _make_turn_rule("medium"),
    "flip": _add_tumble("Flips over", _FLIP_RATES),
    "roll": _add_tumble("Rolls over", _ROLL_RATES, _FLIP_RATES),
    "jump": _add_jump,
    "hop": _add_hop,
    "stand": _add_stand,
    "balance": _add_stand,
    "lie": _add_lying_down,
    "sway": _add_sway,
    "stop": _add_stand,
    "standing": _add_standing,
    "return": _add_return,
    "leave": _add_hand_away,
    **dict.fromkeys(RISING, _add_rise),
    "reach": _add_reach,
    "touch": _add_touch,
    "push": _add_reach,
    "raise": _add_limb_height,
    "untouched": _add_limb_height,
    "lower": _add_limb_height,
    "planted": _add_planted_feet,
    "powerful": _add_power,
    "repeatedly": _add_repetition,
    "never_falls": _forbid_falls,
    "high": _add_height,
    "in_place": _add_in_place,
    "straight": _add_straight_line,
    "crooked": lambda builder, _: builder.cannot.append("leave its line"),
    "on_back": _add_lying_on_side,
    "on_front": _add_lying_on_side,
}
"""What each motion and style of the lexicon asks for."""

OPPOSITES: Mapping[str, str] = {
    "go": "stand", "run": "walking", "fall": "never_falls", "jump": "grounded", "hop": "grounded",
    "spin": "straight", "turn": "straight", "roll": "stable", "flip": "stable",
    "aloft": "grounded", "planted": "raise",
    "crouch": "upright", "lie": "get_up", "stand": "go", "low": "high", "high": "low",
    "straight": "straight", "crawl": "go", "stop": "go", "lower": "raise",
    "crooked": "straight", "jerky": "smooth", "wobbly": "level", "noisy": "quiet", "sway": "level",
    "on_back": "never_falls", "on_front": "never_falls",
    "dragging": "lifted_feet", "in_turn": "together",
    "centred": "off_centre", "off_centre": "centred", "on_left": "on_right", "on_right": "on_left",
}  # fmt: skip
"""What a forbidden motion asks for instead."""


# --- what a word says beyond its motion -----------------------------------------------------------


_LIFTED, _FOOT_LIFT = 0.12, 0.04
"""The least foot lift of marching and of stepping, as a share of the robot's height."""
_GAITS = frozenset(
    {"trot", "pace", "canter", "gallop", "bound", "amble", "skip", "walk", "march", "shuffle",
     "strafe", "glide"}
)  # fmt: skip
"""Manners measured by rows; where the first row cannot be measured, none is."""


def _add_alternation(builder: CriteriaBuilder, _: Goal) -> None:
    """Add alternating legs, unless the walk's rows measure them already."""
    if any(measure.quantity in ("stride", "steps_match") for measure in builder.measures):
        builder.served = True
    elif "steps_match" in builder.quantities:
        builder.add(ROWS["march"][1])
    else:
        builder.cannot.append("tell whether the legs move in turn")


def _add_steps_in_place(builder: CriteriaBuilder, goal: Goal) -> None:
    """Lift each foot again and again, in turn."""
    if "foot_lift" not in builder.quantities:
        builder.cannot.append("step in place")
        return
    lifted = Row("Lifts every foot", "share", "foot_lift", 0.7, low=(_FOOT_LIFT, "height"))
    # Foot by foot, nothing tells a learner what it lacks; any other order is as good.
    anyhow = "any stepping was asked for"
    trot = replace(ROWS["trot"][0], category="gait", soft_reason=anyhow)
    height = _LIFTED if "march" in map(manner_of, goal.words) else _FOOT_LIFT
    steps = round(STEPS_PER_SECOND * _window_seconds(builder))
    in_turn = Row("Lifts its feet in turn", "swings", "lift_lead", float(steps),
                  low=(height, "height"), soft_reason=anyhow)  # fmt: skip
    builder.add(lifted, ROWS["march"][1], trot)
    if not any(m.stat == "swings" and m.quantity == "stride" for m in builder.measures):
        builder.add(in_turn)  # a reward follows one swing


def _add_flight(builder: CriteriaBuilder, _: Goal) -> None:
    """Add repeated flight: all feet off the ground at once."""
    if "clearance" not in builder.quantities:
        builder.cannot.append("leave the ground")
        return
    builder.add(Row("Leaves the ground with all feet", "share", "clearance", 0.1, low=0.01))


def _add_ground_contact(builder: CriteriaBuilder, _: Goal) -> None:
    """Add a foot on the ground at all times."""
    if "clearance" not in builder.quantities:
        builder.cannot.append("tell whether it leaves the ground")
        return
    builder.add(Row("Has a foot on the ground", "share", "clearance", 0.95, high=0.01))


def _add_hind_legs(builder: CriteriaBuilder, _: Goal) -> None:
    """Add front feet off the ground; with fewer than four legs, the pitch is enough."""
    feet = builder.model.spec.feet
    middle = sum(foot.lowest_point[0] for foot in feet) / max(1, len(feet))
    front = [builder.model.spec.bodies[f.body] for f in feet if f.lowest_point[0] > middle]
    if len(feet) < 4:
        builder.served = bool(feet)
    for number, part in enumerate(front if len(feet) >= 4 else (), 1):
        title = f"Keeps front foot {number} off the ground"
        builder.add(Row(title, "share", lift_key(part), 0.7, low=(_FOOT_LIFT, "height")))


def _add_one_leg(builder: CriteriaBuilder, _: Goal) -> None:
    """Keep either of two feet off the ground."""
    if "spare_foot" not in builder.quantities or len(builder.model.spec.feet) != 2:
        builder.cannot.append("be on one leg")
        return
    builder.add(
        Row("Keeps one foot off the ground", "share", "spare_foot", 0.8, low=(_FOOT_LIFT, "height"))
    )


def _add_feet_together(builder: CriteriaBuilder, _: Goal) -> None:
    if "pronk_match" not in builder.quantities:
        builder.cannot.append("tell whether the feet move together")
    builder.add(*ROWS["together"])


def _add_walk(builder: CriteriaBuilder, goal: Goal) -> None:
    """Add travel that is no faster than a walk."""
    if not builder.travelling:
        _add_travel(builder, goal)
    builder.add(*ROWS["not_fast"])


def _add_lean(builder: CriteriaBuilder, goal: Goal) -> None:
    """Add a lean in one direction, by the stated angle or a visible one."""
    key = f"lean_{goal.direction}"
    if key not in builder.quantities:
        builder.cannot.append(f"tell how far it leans {goal.direction}")
        return
    way = goal.direction if goal.direction in WAYS_AHEAD else f"to the {goal.direction}"
    angle = goal.amount_in("rad")
    if angle is None:
        builder.add(Row(f"Leans {way}", "share", key, 0.7, low=LEAN))
    else:
        off = max(0.07, angle / 3)
        title = f"Leans {way} as far as asked for"
        builder.add(Row(title, "share", key, 0.7, low=angle - off, high=angle + off))


def _add_height_limit(builder: CriteriaBuilder, _: Goal) -> None:
    """Leave the ground, and get not far from it."""
    if "height" not in builder.quantities:
        builder.cannot.append("tell how high it jumps")
        return
    model = builder.model
    top = model.standing_height + 0.15 * max(model.standing_height, model.length / 1.5)
    builder.add(Limit("Jumps no higher than a little", "highest", "height", top))


def _add_lifted_feet(builder: CriteriaBuilder, _: Goal) -> None:
    """Lift each foot again and again instead of dragging it."""
    if "foot_lift" not in builder.quantities:
        builder.cannot.append("tell whether the feet are lifted")
    builder.add(Row("Lifts every foot", "share", "foot_lift", 0.7, low=(_FOOT_LIFT, "height")))


def _add_squats(builder: CriteriaBuilder, _: Goal) -> None:
    """Go down and come up again, once in four seconds at least."""
    if "height" not in builder.quantities or builder.model.starts_lying:
        builder.cannot.append("squat")
        return
    times = max(2.0, float(int(_window_seconds(builder) / SQUAT_SECONDS)))
    comes = partial(Row, stat="events", quantity="height")
    builder.add(
        comes("Goes down", threshold=times, high=(0.85, "allowed")),
        comes("Comes up again", threshold=times - 1, low=(0.93, "height")),
    )


def _add_human_gait(builder: CriteriaBuilder, _: Goal) -> None:
    """Add upright travel on two alternating legs."""
    if "steps_match" not in builder.quantities:
        builder.cannot.append("walk like a human")
        return
    builder.add(*upright(0.35), replace(ROWS["march"][1], category="task"))


def _add_head_up(builder: CriteriaBuilder, _: Goal) -> None:
    """Add uprightness; for a long body, a front no lower than the back."""
    builder.add(*(ROWS["head_up"] if "nose_up" in builder.quantities else upright(0.6)))


def _add_facing(builder: CriteriaBuilder, _: Goal) -> None:
    """Add keeping the initial heading."""
    builder.add(*ROWS["facing"])
    plane = {"forward_speed", "height"} <= builder.quantities.keys()
    builder.served |= plane and "left_speed" not in builder.quantities
    if not builder.served:
        builder.cannot.append("tell which way it faces")


def _add_landing_on_feet(builder: CriteriaBuilder, _: Goal) -> None:
    """Add standing on the feet at the end."""
    if not {"tilt", "height"} <= builder.quantities.keys() or not builder.model.spec.feet:
        builder.cannot.append("land on its feet")
        return
    builder.add(*ROWS["lands"])


def _make_stride_rule(manner: str) -> Rule:
    def rule(builder: CriteriaBuilder, _: Goal) -> None:
        if "stride_length" not in builder.quantities:
            builder.cannot.append("tell how long its strides are")
        builder.add(*ROWS[manner])

    return rule


def _add_undisturbed(builder: CriteriaBuilder, _: Goal) -> None:
    """Leave the object where it is."""
    if "object_drift" not in builder.quantities:
        builder.cannot.append("tell whether it is moved")
    builder.add(*ROWS["undisturbed"])


def slow_motion(builder: CriteriaBuilder, goal: Goal) -> bool:
    """Ask a motion that travels nowhere to be slow; False: nothing tells how fast it is."""
    model = builder.model
    quantity, most = next(
        (
            (quantity, most)
            for quantity, most in (
                ("cart_speed", 0.5),
                ("climb_speed" if goal.motion in RISING else "", 0.6 * model.length),
                ("joint_speed" if model.root is None else "", 5.0 / _window_seconds(builder)),
            )
            if quantity in builder.quantities
        ),
        ("", 0.0),
    )
    if quantity:
        builder.add(
            Row("Moves slowly", "highest", quantity, most, weight=0.5, comparison="at_most")
        )
    return bool(quantity)


RULES: Mapping[str, Rule] = {
    **_MOTIONS,
    "overhead": _add_limb_height,
    "one_leg": _add_one_leg,
    "head_up": _add_head_up,
    "together": _add_feet_together,
    "lean": _add_lean,
    "nose_down": lambda builder, goal: _add_lean(builder, replace(goal, direction="forward")),
    "small_jumps": _add_height_limit,
    "lifted_feet": _add_lifted_feet,
    "walking": _add_walk,
    "squats": _add_squats,
    "human": _add_human_gait,
    "facing": _add_facing,
    "lands": _add_landing_on_feet,
    "undisturbed": _add_undisturbed,
    "long_strides": _make_stride_rule("long_strides"),
    "short_strides": _make_stride_rule("short_strides"),
    "step_in_place": _add_steps_in_place,
    "in_turn": _add_alternation,
    "aloft": _add_flight,
    "grounded": _add_ground_contact,
    "hind_legs": _add_hind_legs,
    "high_steps": lambda builder, _: builder.add(ROWS["march"][0]),
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
        # “Do not walk” is to stay in place.
        if manner is None or motion == "in_place" or (goal.negated and motion == "stand"):
            continue
        if goal.negated:
            yield from ("not", word)
        elif not _measure_manner(builder, manner):
            yield word


def _measure_manner(builder: CriteriaBuilder, manner: str) -> bool:
    model = builder.model
    rows = ROWS[manner] if manner in _GAITS else ()
    plain = {
        "about": builder.turning,
        "wide_circle": any(each.title == _WIDE_CIRCLE for each in builder.criteria),
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


MEASURED = frozenset({*_GAITS, *RULES, "about", "in_water", "wide_circle", "without_legs"})
"""Manners that are measured on some robots, and add nothing on others."""
