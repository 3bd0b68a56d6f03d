"""What a person who watches a motion would object to, in plain MuJoCo.

A prompt seldom says "on your feet" or "without trembling", and whoever watches the video expects it
all the same. Everything is read off recorded positions and MuJoCo's own contacts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from p2p.benchmark.truth.episode import Floats

if TYPE_CHECKING:
    import mujoco

SUNK, TILTED_RAD, DEEP_M = 0.5, 1.05, 0.02
"""A trunk below half of its height at the start; one turned by 60 degrees; a part in the ground."""
UNUSED, OFF_COURSE_RAD = 0.25, 0.8
"""A foot on the ground for a smaller share of the mean of all feet is carried; one that turns
further goes elsewhere."""
LASTS, OVER = 0.99, 0.1
"""Of the time: an episode that is shorter ends early; who leans over for longer has fallen over."""
SEEN_MOVE = 0.02
"""rad or m within a step: less of a tremble is not seen."""
AT_STOP = 0.01
"""Of a joint's range."""
MIDDLE_M = 0.03
"""Joints no farther from the trunk's middle belong to no side."""
FLIGHT_S = 0.04
LAND_S, DROP_S = 0.25, 2.0
"""What touches the ground so soon after it lands carries it; it is given this time to land."""


@dataclass(frozen=True)
class PosedModel:
    """A model with its initial pose, and the trunk that is found in it."""

    model: mujoco.MjModel
    start: Floats

    @cached_property
    def trunk(self) -> int | None:
        """The first body that gets about, by joints of its own, with driven ones below it."""
        import mujoco

        m = self.model
        above = {body for j in self.driven for body in self._chain(int(m.jnt_bodyid[j]))}
        for body in sorted(above):
            kinds = [int(m.jnt_type[j]) for j in self.joints(body)]
            slides = kinds.count(int(mujoco.mjtJoint.mjJNT_SLIDE))
            if int(mujoco.mjtJoint.mjJNT_FREE) in kinds or slides > 1:
                return body
        return None

    def _chain(self, body: int) -> list[int]:
        """The body and those it hangs on, without the world."""
        chain = []
        while body:
            chain.append(body)
            body = int(self.model.body_parentid[body])
        return chain

    @cached_property
    def can_fall(self) -> bool:
        """Whether the trunk can move up and down, and does not lie on the ground at the start."""
        import mujoco

        if self.trunk is None or self.trunk in self.carriers:
            return False
        m = self.model
        return any(
            m.jnt_type[j] == mujoco.mjtJoint.mjJNT_FREE
            or (m.jnt_type[j] == mujoco.mjtJoint.mjJNT_SLIDE and abs(m.jnt_axis[j, 2]) > 0.9)
            for j in self.joints(self.trunk)
        )

    def joints(self, body: int) -> range:
        first = int(self.model.body_jntadr[body])
        return range(first, first + int(self.model.body_jntnum[body]))

    def name(self, body: int) -> str:
        return str(self.model.body(body).name).rpartition("/")[2] or f"body {body}"

    @cached_property
    def driven(self) -> tuple[int, ...]:
        """Hinges and slides that an actuator moves."""
        import mujoco

        m = self.model
        joints = {
            int(m.actuator_trnid[a, 0])
            for a in range(m.nu)
            if m.actuator_trntype[a] == mujoco.mjtTrn.mjTRN_JOINT
        }
        single = {int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)}
        return tuple(sorted(j for j in joints if int(m.jnt_type[j]) in single))

    def at(self, qpos: Floats) -> mujoco.MjData:
        """Return the state with these positions, contacts included."""
        import mujoco

        data = mujoco.MjData(self.model)
        data.qpos[:] = qpos
        mujoco.mj_fwdPosition(self.model, data)
        return data

    def touching(self, data: mujoco.MjData) -> dict[int, float]:
        """Return the bodies in contact with static geometry, and their penetration depths."""
        m, depths = self.model, dict[int, float]()
        for contact in data.contact:
            bodies = [int(m.geom_bodyid[geom]) for geom in (contact.geom1, contact.geom2)]
            fixed = [int(m.body_weldid[body]) == 0 for body in bodies]
            if fixed[0] == fixed[1]:
                continue
            body = bodies[fixed.index(False)]
            depths[body] = max(depths.get(body, 0.0), -float(contact.dist))
        return depths

    @cached_property
    def carriers(self) -> frozenset[int]:
        """Bodies that it lands on from its start, without doing anything."""
        import mujoco

        data, m = self.at(self.start), self.model
        found: set[int] = set()
        landed: float | None = None
        while data.time < (DROP_S if landed is None else landed + LAND_S):
            if touching := self.touching(data):
                landed = data.time if landed is None else landed
                found |= set(touching)
            mujoco.mj_step(m, data)
        return frozenset(found)

    @cached_property
    def height(self) -> float:
        """Of the trunk over the lowest point at the start."""
        data, m = self.at(self.start), self.model
        moving = [g for g in range(m.ngeom) if m.body_weldid[m.geom_bodyid[g]] and m.geom_contype[g]
                  | m.geom_conaffinity[g]]  # fmt: skip
        lowest = min((_lowest(m, data, g) for g in moving), default=0.0)
        assert self.trunk is not None
        return float(data.xpos[self.trunk, 2]) - lowest

    @cached_property
    def legs(self) -> dict[str, tuple[int, ...]]:
        """Driven joints above the parts that carry it, by the side they are on."""
        data, m = self.at(self.start), self.model
        above = {body for carrier in self.carriers for body in self._chain(carrier)}
        joints = [j for j in self.driven if int(m.jnt_bodyid[j]) in above - {self.trunk}]
        sides: dict[str, list[int]] = {"left": [], "right": []}
        trunk = data.xpos[self.trunk or 0]
        planar = all(abs(data.xanchor[j, 1] - trunk[1]) < 1e-6 for j in joints)
        for j in joints:
            name, offset = str(m.joint(j).name), data.xanchor[j, 1] - trunk[1]
            if planar:  # sides of one that moves in a plane are told apart by name only
                sides["left" if "left" in name else "right"].append(j)
            elif abs(offset) > MIDDLE_M:
                sides["left" if offset > 0 else "right"].append(j)
        return {side: tuple(found) for side, found in sides.items() if found}


def _lowest(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> float:
    """The bottom of a geom's bounding box."""
    centre, half = model.geom_aabb[geom, :3], model.geom_aabb[geom, 3:]
    turn = data.geom_xmat[geom].reshape(3, 3)
    return float(data.geom_xpos[geom, 2] + turn[2] @ centre - np.abs(turn[2]) @ half)


@dataclass(frozen=True)
class Sight:
    """What of one episode a person would notice; shares are of the time that it lasted."""

    lasted: float
    """Share of the time that there was."""
    sunk: float = 0.0
    tilted: float = 0.0
    on_its_back: float = 0.0
    """Of one that stands on more than two feet."""
    deep: float = 0.0
    trembling: float = 0.0
    """Share of steps and joints in which a joint turns back twice, step after step."""
    at_stops: float = 0.0
    """Share of steps and joints at a stop that is not that of the start."""
    weaker_side: float = 1.0
    """How far the joints of one side's legs move, of how far those of the other do."""
    ahead: float = 0.0
    """m/s, net, along where it pointed at the start; `aside` is to its left."""
    aside: float = 0.0
    turned: float = np.nan
    """rad/s, net, counterclockwise; NaN, which is objected to by nothing, where it cannot turn."""
    turned_by: float = np.nan
    """The same in rad."""
    strayed: float = 0.0
    """m, at the farthest, from where it was at the start."""
    least_used: float = 1.0
    """How long that of several feet touches the ground that does so least, of the mean of all."""
    has_front: bool = False
    """Whether its feet stand in an oblong, so that one sees which way it faces."""
    flights: int = 0
    """How often nothing of it touches the ground for FLIGHT_S or longer."""
    touching: Mapping[str, float] | None = None
    """Of each part that does not carry it: for which share of the time it is on the ground."""


def watch(model: mujoco.MjModel, qpos: Floats, *, dt: float, horizon: int) -> Sight:
    """Look at one episode, by its positions from the start on: (T + 1, nq)."""
    robot = PosedModel(model, qpos[0].astype(np.float64))
    steps = len(qpos) - 1
    lasted = min(1.0, steps / horizon)
    joints = [int(model.jnt_qposadr[j]) for j in robot.driven]
    moves = np.diff(qpos[:, joints], axis=0)
    there_and_back = moves[1:] * moves[:-1] < 0
    seen = np.minimum(np.abs(moves[1:]), np.abs(moves[:-1])) > SEEN_MOVE
    turns = there_and_back & seen
    # One turn may belong to a fast stride; two, one right after the other, do not.
    trembles = turns[1:] & turns[:-1]
    sight = Sight(
        lasted=lasted,
        trembling=float(trembles.mean()) if trembles.size else 0.0,
        at_stops=_at_stops(robot, qpos),
    )
    if robot.trunk is None:
        return sight
    return _watch_trunk(robot, qpos, sight, dt)


def _watch_trunk(robot: PosedModel, qpos: Floats, sight: Sight, dt: float) -> Sight:
    import mujoco

    model, trunk, start = robot.model, robot.trunk, robot.at(robot.start)
    assert trunk is not None
    first = start.xmat[trunk].reshape(3, 3).copy()
    sunk = tilted = inverted = deep = 0
    touched: dict[int, int] = {}
    used = dict.fromkeys(robot.carriers, 0)
    places, headings, aloft = [start.xpos[trunk, :2].copy()], [0.0], []
    data = robot.at(robot.start)
    for pose in qpos[1:]:
        data.qpos[:] = pose
        mujoco.mj_fwdPosition(model, data)
        touching = robot.touching(data)
        for body in touching.keys() - robot.carriers:
            touched[body] = touched.get(body, 0) + 1
        for body in touching.keys() & robot.carriers:
            used[body] += 1
        deep += any(depth > DEEP_M for depth in touching.values())
        aloft.append(not touching)
        turn = data.xmat[trunk].reshape(3, 3) @ first.T
        places.append(data.xpos[trunk, :2].copy())
        headings.append(float(np.arctan2(turn[1, 0], turn[0, 0])))
        upright = float(turn[2, 2])
        tilted += upright < np.cos(TILTED_RAD)
        inverted += upright < -0.5
        sunk += robot.can_fall and float(data.xpos[trunk, 2]) < SUNK * robot.height
    steps = len(qpos) - 1
    free = model.jnt_type[robot.joints(trunk)[0]] == mujoco.mjtJoint.mjJNT_FREE
    ahead = first[:2, 0] / max(float(np.linalg.norm(first[:2, 0])), 1e-9)
    went = (data.xpos[trunk] - start.xpos[trunk])[:2] / (steps * dt)
    return Sight(
        lasted=sight.lasted,
        trembling=sight.trembling,
        at_stops=sight.at_stops,
        sunk=sunk / steps,
        tilted=tilted / steps if robot.can_fall else 0.0,
        on_its_back=inverted / steps if robot.can_fall and len(used) > 2 else 0.0,
        deep=deep / steps,
        weaker_side=_weaker_side(robot, qpos),
        ahead=float(went @ ahead),
        aside=float(went @ np.array([-ahead[1], ahead[0]])),
        turned=float(np.unwrap(headings)[-1]) / (steps * dt) if free else np.nan,
        turned_by=float(np.unwrap(headings)[-1]) if free else np.nan,
        strayed=float(np.linalg.norm(np.array(places) - places[0], axis=1).max()),
        least_used=_least_used(list(used.values())) if robot.can_fall else 1.0,
        has_front=_has_front(robot, start),
        flights=_count_flights(aloft, max(1, round(FLIGHT_S / dt))),
        touching={robot.name(b): n / steps for b, n in touched.items()} if robot.can_fall else {},
    )


def _has_front(robot: PosedModel, start: mujoco.MjData) -> bool:
    """Return whether its feet stand in an oblong; a square looks the same from all sides."""
    if len(robot.carriers) < 2:
        return False
    wide, long = np.sort(np.ptp(start.xpos[sorted(robot.carriers), :2], axis=0))
    return bool(long > 1.1 * wide)


def _least_used(steps: Sequence[int]) -> float:
    return min(steps) / max(float(np.mean(steps)), 1e-9) if len(steps) > 2 else 1.0


def _count_flights(aloft: Sequence[bool], least: int) -> int:
    """Count the flights that last this many steps and end in a landing."""
    count = lasted = 0
    for off in aloft:
        count += not off and lasted >= least
        lasted = lasted + 1 if off else 0
    return count


def _at_stops(robot: PosedModel, qpos: Floats) -> float:
    """Return where joints move at all: one that stands may lean on its stops."""
    m, shares = robot.model, []
    for joint in robot.driven:
        values = qpos[1:, int(m.jnt_qposadr[joint])]
        low, high = m.jnt_range[joint]
        near = AT_STOP * (high - low)
        began = qpos[0, int(m.jnt_qposadr[joint])]
        if not m.jnt_limited[joint] or np.ptp(values) < 2 * near:
            shares.append(0.0)
            continue
        stops = [stop for stop in (low, high) if abs(began - stop) > near]
        shares.append(float(np.mean([np.min([abs(v - s) for s in stops]) < near for v in values])))
    return float(np.mean(shares)) if shares else 0.0


def _weaker_side(robot: PosedModel, qpos: Floats) -> float:
    if len(robot.legs) < 2:
        return 1.0
    paths = [
        float(np.mean([np.abs(np.diff(qpos[:, int(robot.model.jnt_qposadr[j])])).sum()
                       for j in side]))
        for side in robot.legs.values()
    ]  # fmt: skip
    return min(paths) / max(*paths, 1e-9)


# --- what is objected to --------------------------------------------------------------------------

_LOW = (
    r"lie|lying|crawl|creep|crouch|squat|kneel|sit|low|sneak|duck|belly|back down|ground|"
    r"limbo|bow|roll|get up|stand up|rise|on your (back|front|side)|onto"
)
_OVER = (
    r"flip|somersault|roll|tumble|cartwheel|handstand|rear|hind|nose|head|upside|lie|lying|dive|"
    r"on your (back|front|side)|onto|get up|stand up|rise|lean"
)
_ENDS = r"fall|jump|leap|dive|collapse|flip"
ASKED_FOR: Mapping[str, str] = {
    "ends": _ENDS,
    "sunk": _LOW,
    "tilted": _OVER,
    "parts": f"{_LOW}|{_OVER}|knee|hand|elbow|front leg",
    "trembling": r"shak|trembl|vibrat|shiver|jitter|twitch",
    "stops": r"stop|limit|stretch|fold|tuck|far as|still|stand|stay|crouch",
    "sided": r"one leg|one foot|(left|right) (leg|foot|side|arm|hand|front|hind|rear)|limp|wave|"
    r"raise|lift|stand|still|balance|spin|turn",
}
"""Words of a prompt that ask for what a person would otherwise object to."""
_SEVERAL = r"\b(then|after|circle|around|turn|spin|return|come back|and back|spot|place|zigzag)"
_STAYING = r"\b(stand|still|stay|spot|in place|do not move|balanc)"
_GOING = (
    r"\b(walk|run|sprint|go\b|goes|going|move|trot|gallop|hop|swim|glide|jog|march|stroll|step|creep|crawl|dash|"
    r"canter|pace|amble|bound|skip|tiptoe|advance|travel|shuffle|sneak|stride)"
)
_HELD_UP = rf"{ASKED_FOR['sided']}|{_OVER}|three legs|two legs|hop|lame|limb|leg up|foot up"
"""Words that ask for a foot to be held up, or hold all of them up by themselves."""
_BELLY_UP = r"back|dead|roll|flip|somersault|upside|over\b|side|belly up"
"""Words by which one may lie any way up."""
_DIRECTIONS: Mapping[str, tuple[float, float]] = {
    r"forward|ahead": (1.0, 0.0),
    r"backward|backwards|back": (-1.0, 0.0),
    r"left": (0.0, 1.0),
    r"right": (0.0, -1.0),
}
_SPEED = r"(\d+(?:\.\d+)?|half a)\s*(?:m/s|met(?:re|er)s? per second|met(?:re|er)s? a second)"
SLOWEST = 0.05
"""m/s, net: whoever goes slower hardly gets anywhere."""
_PARTS = r"\b(then|after|until|return|back and forth|come back|first|corner)\b"
_STILL = r"\b(stand still|stay (where|in|still|put)|in place|on the spot|do not move|motionless)\b"
_TURNS = r"\b(turn|spin|rotate|pirouette|twirl|whirl)"
_CLOCKWISE, _COUNTER = r"\b(clockwise|right)\b", r"\b(counter-?\s?clockwise|anti-?clockwise|left)\b"
_HOPS: Mapping[str, int] = {r"hop(s|ping)?|bounc\w+|skip(s|ping)?": 3, r"jump\w*|leap\w*": 1}
_NOT = r"\b(without|never|not|no|don't)\s+(\w+\s+)?"
TURNS_SLOWLY, AWAY_M = 0.1, 1.0
"""rad/s, net: less is no turning; m from the start: farther is not staying."""


def objections(prompt: str, sights: Sequence[Sight]) -> tuple[str, ...]:
    """Return what a person would object to in these episodes, unless the prompt asks for it."""
    text = prompt.lower()

    def mean(name: str) -> float:
        return float(np.mean([getattr(sight, name) for sight in sights]))

    def is_asked_for(kind: str) -> bool:
        return re.search(rf"\b({ASKED_FOR[kind]})", text) is not None

    touching: dict[str, float] = {}
    for sight in sights:
        for part, share in (sight.touching or {}).items():
            touching[part] = touching.get(part, 0.0) + share / len(sights)
    parts = sorted((p for p in touching if touching[p] > 0.1), key=lambda p: -touching[p])
    listed = ", ".join(f"{part} {touching[part]:.0%}" for part in parts[:3])
    # No average buys a fall.
    ended = sum(sight.lasted < LASTS for sight in sights)
    over = sum(sight.tilted > OVER for sight in sights)
    found = [
        ("ends", ended > 0, f"ends early in {ended} of {len(sights)} episodes"),
        ("sunk", mean("sunk") > 0.1, f"lies or sits {mean('sunk'):.0%} of the time"),
        ("tilted", over > 0, f"leans over 60 degrees in {over} of {len(sights)} episodes"),
        ("parts", bool(parts), f"on the ground: {listed}"),
        ("parts", mean("deep") > 1 / 3, f"2 cm deep in the ground {mean('deep'):.0%}"),
        ("trembling", mean("trembling") > 0.25, f"trembles in {mean('trembling'):.0%} of steps"),
        ("stops", mean("at_stops") > 0.5, f"joints at their stops {mean('at_stops'):.0%}"),
        ("sided", mean("weaker_side") < 0.25, f"one side moves {mean('weaker_side'):.0%} as much"),
    ]
    texts = [objection for kind, seen, objection in found if seen and not is_asked_for(kind)]
    if re.search(_GOING, text) and not re.search(_HELD_UP, text) and mean("least_used") < UNUSED:
        texts.append(f"one foot is on the ground {mean('least_used'):.0%} as long as the mean")
    lies = re.search(r"\b(lie|lay|lying) down\b", text) and not re.search(_BELLY_UP, text)
    if lies and mean("on_its_back") > 0.1:
        texts.append(f"on its back {mean('on_its_back'):.0%} of the time")
    return (*texts, *_travel(text, sights), *_task(text, mean))


def _task(text: str, mean: Callable[[str], float]) -> Iterator[str]:
    """Staying, turning and leaving the ground, where the words ask for nothing but one motion."""
    if re.search(_PARTS, text):
        return
    if re.search(_STILL, text) and mean("strayed") > AWAY_M:
        yield f"gets {mean('strayed'):.1f} m away from its place"
    if re.search(_TURNS, text) and not re.search(_GOING, text):
        left, right = re.search(_COUNTER, text), re.search(_CLOCKWISE, text)
        rate = mean("turned")
        along = rate if left else -rate if right else abs(rate)
        if along < TURNS_SLOWLY:
            yield f"turns {along:.2f} rad/s the asked way"
    for words, least in _HOPS.items():
        asked = re.search(rf"\b({words})\b", text)
        if asked and not re.search(rf"{_NOT}({words})\b", text) and mean("flights") < least:
            yield f"leaves the ground {mean('flights'):.1f} times in an episode"


def _travel(text: str, sights: Sequence[Sight]) -> tuple[str, ...]:
    """Return where it got to, against the words of one simple motion; nothing for a sequence."""
    ahead, aside = (float(np.mean([getattr(s, way) for s in sights])) for way in ("ahead", "aside"))
    if re.search(_SEVERAL, text) or not re.search(_GOING, text) or re.search(_STAYING, text):
        return ()
    directions = (way for words, way in _DIRECTIONS.items() if re.search(rf"\b({words})\b", text))
    x, y = next(directions, (1.0, 0.0))
    along, off = x * ahead + y * aside, abs(y * ahead) + abs(x * aside)
    number = re.search(_SPEED, text)
    speed = None if number is None else 0.5 if number[1] == "half a" else float(number[1])
    if along < SLOWEST:
        return (f"gets {along:.2f} m/s the asked way",)
    if off > along:
        return (f"goes {off:.2f} m/s aside, {along:.2f} m/s the asked way",)
    turned = float(np.mean([abs(s.turned_by) for s in sights]))
    if turned > OFF_COURSE_RAD and all(s.has_front for s in sights):
        return (f"turns by {turned:.1f} rad as it goes",)
    if speed and not 0.65 * speed < along < 1.35 * speed:
        return (f"gets {along:.2f} m/s the asked way, {speed:g} asked",)
    return ()
