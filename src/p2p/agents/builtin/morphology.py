"""An environment's model as the grammar needs it: its root, size and limbs, and which way is up.

Everything is read off the environment's own facts; no environment is known by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from p2p.agents.builtin.goals import Parsed
from p2p.agents.builtin.grammar import parse
from p2p.agents.builtin.lexicon import ARM_WORDS, OBJECT_WORDS, TARGET_WORDS
from p2p.config import engine_of
from p2p.training.engines.table import is_engine
from p2p.training.env_spec import get_env_spec
from p2p.training.model_files.facts import read_facts
from p2p.training.model_files.store import is_model
from p2p.training.specs.spec_text import TERMINATION_RULES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from p2p.training.env_spec import BodyEntry, EnvSpec, JointEntry, Vec3

SETTLE_SECONDS = 2.0
FALLEN = 0.5
"""Who points up so much less than at the start has fallen."""
TARGETS = ("target", "goal")
OBJECTS = ("object", "ball", "puck", "cube", "block")
SIDES = ("left", "right", "front", "back")
LIMB_NAMES: dict[str, tuple[str, ...]] = {
    "leg": ("leg", "thigh", "shin", "foot", "limb"),
    "arm": ("arm", "hand"),
    "hand": ("hand", "lower_arm", "wrist"),
    "foot": ("foot", "ankle", "toe"),
    "thigh": ("thigh", "hip"),
    "shin": ("shin", "knee", "leg"),
    "elbow": ("lower_arm", "elbow", "forearm"),
    "head": ("head",),
    "tail": ("tail",),
}
"""A word for a limb, and what models call it."""


@dataclass(frozen=True)
class Morphology:
    spec: EnvSpec

    def observed(self, source: str) -> int | None:
        """Where the observation holds this expression over the state; None: it does not."""
        entries = (entry.index for entry in self.spec.observation if entry.source == source)
        return next(entries, None)

    # --- the tree of bodies -----------------------------------------------------------------------

    @cached_property
    def root(self) -> BodyEntry | None:
        """The body whose joints carry all the others about; None: nothing moves along."""
        for body in self.spec.bodies[1:]:
            if body.parent == 0 and any(
                joint.type == "free" or (joint.type == "slide" and joint.range is None)
                for joint in self.joints_of(body)
            ):
                return body
        return None

    def joints_of(self, body: BodyEntry) -> tuple[JointEntry, ...]:
        """The joints that move a body against its parent."""
        return tuple(joint for joint in self.spec.joints if joint.body == body.name)

    @cached_property
    def root_joints(self) -> tuple[JointEntry, ...]:
        return self.joints_of(self.root) if self.root else ()

    @cached_property
    def free(self) -> JointEntry | None:
        """The root's free joint."""
        return next((joint for joint in self.root_joints if joint.type == "free"), None)

    @cached_property
    def knows_heading(self) -> bool:
        """Whether the policy observes which way of the world it faces."""
        if self.free is None or "heading" not in self.spec.quantities:
            return True
        quaternion = (f"qpos[{self.free.qpos_address + 3 + part}]" for part in range(4))
        return all(self.observed(source) is not None for source in quaternion)

    def root_axis(self, kind: str, axis: int) -> tuple[JointEntry, float] | None:
        """The root's slide or hinge along a world axis, and its sign."""
        for joint in self.root_joints:
            if joint.type == kind and joint.axis and abs(joint.axis[axis]) > 0.99:
                return joint, float(np.sign(joint.axis[axis]))
        return None

    def below(self, body: BodyEntry) -> tuple[BodyEntry, ...]:
        """A body and everything that it carries."""
        carried = {body.id: body}
        for other in self.spec.bodies[1:]:
            if other.parent in carried:
                carried.setdefault(other.id, other)
        return tuple(carried.values())

    def ends(self, body: BodyEntry) -> tuple[BodyEntry, ...]:
        """The last bodies of its branches."""
        parents = {other.parent for other in self.spec.bodies}
        return tuple(other for other in self.below(body) if other.id not in parents)

    def named(self, *words: str) -> BodyEntry | None:
        """The first body with one of these words in its name."""
        bodies = self.spec.bodies[1:]
        return next((b for b in bodies if any(word in b.name.lower() for word in words)), None)

    @cached_property
    def driven(self) -> tuple[JointEntry, ...]:
        """The joints that actuators move."""
        names = {action.joint for action in self.spec.actions}
        return tuple(joint for joint in self.spec.joints if joint.name in names)

    @cached_property
    def poles(self) -> tuple[JointEntry, ...]:
        """Hinges that no actuator moves, from a sliding cart upwards: what can be balanced."""
        if self.root is not None:
            return ()
        chain: list[JointEntry] = []
        carriers = {joint.body for joint in self.driven if joint.type == "slide"}
        for joint in self.spec.joints:
            lies_flat = joint.axis is not None and abs(joint.axis[2]) < 0.5
            passive = joint.type == "hinge" and joint not in self.driven and lies_flat
            if passive and joint.parent in carriers:
                chain.append(joint)
                carriers.add(joint.body)
        return tuple(chain)

    # --- sizes ------------------------------------------------------------------------------------

    @cached_property
    def _extent(self) -> NDArray[np.float64]:
        """Of all its shapes at rest, along x, y and z."""
        bodies = self.below(self.root) if self.root else self.spec.bodies[1:]
        centres = {body.name: np.asarray(body.rest_position) for body in bodies}
        corners = list(centres.values())
        for geom in self.spec.geoms:
            if geom.body in centres and geom.size:
                centre = centres[geom.body] + np.asarray(geom.position)
                corners += [centre + max(geom.size) / 2, centre - max(geom.size) / 2]
        return np.asarray(np.max(corners, axis=0) - np.min(corners, axis=0))

    @cached_property
    def length(self) -> float:
        """Its largest extent at rest, in metres."""
        return float(np.max(self._extent))

    @cached_property
    def is_long(self) -> bool:
        """Whether it is longer than high where it stands, so that it has a nose to point up."""
        return (
            self.height_joint is not None
            and not self.starts_lying
            and bool(self._extent[0] > self._extent[2])
        )

    @cached_property
    def is_tall(self) -> bool:
        """Whether it is higher than wide where it stands, so that lying is not standing."""
        wide, high = float(max(self._extent[:2])), float(self._extent[2])
        return self.height_joint is not None and (self.starts_lying or high > wide)

    @cached_property
    def height_joint(self) -> JointEntry | None:
        """The root's joint that says how high it is; None: it cannot fall."""
        vertical = self.root_axis("slide", 2)
        return self.free or (vertical[0] if vertical else None)

    @cached_property
    def up(self) -> Vec3:
        """The root's own axis that points up when it stands: from its limbs' ends to the root."""
        upward = np.array([0.0, 0.0, 1.0])
        if self.root is not None and self.free:
            ends = [body.rest_position for body in self.ends(self.root)]
            towards = np.asarray(self.root.rest_position) - np.mean(ends, axis=0)
            axis = int(np.argmax(np.abs(towards)))
            if axis != 2 and abs(towards[axis]) >= 0.25 * self.length:
                upward = np.eye(3)[axis] * np.sign(towards[axis])
        return (float(upward[0]), float(upward[1]), float(upward[2]))

    @cached_property
    def starts_lying(self) -> bool:
        return self.height_joint is not None and self.up != (0.0, 0.0, 1.0)

    @cached_property
    def front(self) -> float:
        """Which way the root's own z axis points on one that starts lying: 1 front, -1 back.

        Knees bend one way only, towards the back; 0: nothing does.
        """
        bends = 0.0
        for joint in self.driven if self.starts_lying else ():
            low, high = joint.range or (-1.0, 1.0)
            if joint.axis is not None and (low >= 0 or high <= 0):
                body = next(body for body in self.spec.bodies if body.name == joint.body)
                arm = np.subtract(self.ends(body)[0].rest_position, joint.anchor)
                bends += np.sign(low + high) * float(np.cross(joint.axis, arm)[2])
        return float(-np.sign(bends))

    @cached_property
    def standing_height(self) -> float:
        """How high the root is when the agent stands, in metres."""
        assert self.root is not None
        if self.starts_lying:
            axis = int(np.argmax(np.abs(self.up)))
            ends = [body.rest_position[axis] for body in self.ends(self.root)]
            return float(max(abs(self.root.rest_position[axis] - end) for end in ends))
        pose = usual_pose(self.spec.env_id)
        return self.root.rest_position[2] if pose is None else float(pose[0][self.root.id, 2])

    @cached_property
    def start_height(self) -> float:
        """How high the root is when an episode begins."""
        assert self.root is not None
        return self.root.rest_position[2] if self.starts_lying else self.standing_height

    def allowed_height(self, height: float) -> float:
        """The nearest height of the root at which the environment does not end the episode."""
        low, high = self.spec.healthy_ranges.get("z", (None, None))
        if low is not None:
            height = max(height, 1.1 * low)
        return height if high is None else min(height, 0.95 * high)

    @cached_property
    def ceiling(self) -> tuple[float, float] | None:
        """From where on the root is high, and above which the environment ends the episode.

        Of wide agents only: they rise as they tip over, where tall ones sink.
        """
        usual, end = self.standing_height, self.spec.healthy_ranges.get("z", (None, None))[1]
        tips_up = float(max(self._extent[:2])) / 2 > usual
        if end is None or not tips_up or not self.may_end_early or end <= usual:
            return None
        return usual + 0.3 * (end - usual), end

    @cached_property
    def pace(self) -> float:
        """The speed that one unit of the speed table stands for, in m/s.

        On legs, the speed of a pendulum as long as they are (half of it for those taller than
        long); in the water, where nothing falls, a share of the length.
        """
        if self.height_joint is None:
            return 0.2 * self.length
        wide = float(max(self._extent[:2])) / max(float(self._extent[2]), 1e-6)
        height = max(self.standing_height, 0.05)
        return float(np.sqrt(9.81 * height)) * float(np.clip(wide, 0.5, 1.0))

    @cached_property
    def horizon(self) -> int:
        """Steps of an episode that is not cut short."""
        return self.spec.max_episode_steps or 1000

    @cached_property
    def may_end_early(self) -> bool:
        spec = self.spec
        if is_engine(spec.engine):
            return spec.terminate_when_unhealthy is True
        documented = spec.terminate_when_unhealthy is not None or spec.name in TERMINATION_RULES
        return documented or ends_early(spec.env_id)

    # --- limbs ------------------------------------------------------------------------------------

    @cached_property
    def limb_words(self) -> dict[str, str]:
        """What the model calls its parts: each word of their names."""
        names = (re.split(r"[^a-z]+", body.name.lower()) for body in self.spec.bodies[1:])
        words = (word for name in names for word in name if len(word) > 2)
        return {word: word for word in words if word not in SIDES}

    @cached_property
    def subjects(self) -> frozenset[str]:
        """Nouns for what moves or is moved, where naming it adds nothing."""
        if self.root is not None:
            return frozenset()
        return frozenset().union(
            ARM_WORDS if not self.poles else (),
            TARGET_WORDS if self.named(*TARGETS) else (),
            OBJECT_WORDS if self.named(*OBJECTS) else (),
        )

    def parse(self, text: str, *, remark: bool = False) -> Parsed:
        """What a prompt or a remark asks of this environment."""
        return parse(text, self.limb_words, subjects=self.subjects, remark=remark)

    def limb(self, phrase: tuple[str, ...]) -> BodyEntry | None:
        """The part that these words (sides, then a noun) name: the last link of the limb."""
        if not phrase or self.root is None:
            return None
        *sides, noun = phrase
        parts = self.below(self.root)[1:]
        for part in parts:
            called = any(name in part.name.lower() for name in LIMB_NAMES.get(noun, (noun,)))
            if called and all(_is_on(part, side, parts) for side in sides):
                return part if noun in ("thigh", "shin", "elbow") else self.ends(part)[0]
        return None

    def chain(self, part: BodyEntry) -> tuple[JointEntry, ...]:
        """The joints between the root and a part, from the root on, without the root's own."""
        assert self.root is not None
        if part.id == self.root.id:
            return ()
        return (*self.chain(self.spec.bodies[part.parent]), *self.joints_of(part))

    def middle(self, part: BodyEntry) -> Vec3:
        """The middle of the part's mass, in its own frame."""
        return part.centre

    def limb_length(self, part: BodyEntry) -> float:
        """From the limb's farthest joint to the middle of the part."""
        point = np.add(part.rest_position, self.middle(part))
        distances = (np.linalg.norm(point - joint.anchor) for joint in self.chain(part))
        return float(max(distances, default=0.0))

    def usual_rise(self, part: BodyEntry) -> float:
        """How high the middle of a part is over the root in the usual pose."""
        assert self.root is not None
        pose = usual_pose(self.spec.env_id)
        if pose is None:
            return part.rest_position[2] - self.root.rest_position[2]
        w, x, y, z = pose[1][part.id]
        vertical = (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y))
        lift = float(np.dot(vertical, self.middle(part)))
        return float(pose[0][part.id, 2] - pose[0][self.root.id, 2]) + lift

    @cached_property
    def head_top(self) -> float:
        """How high the top of its head is over the root where it stands upright."""
        assert self.root is not None
        tops = [
            body.rest_position[2] - self.root.rest_position[2] + geom.position[2] + max(geom.size)
            for geom in self.spec.geoms
            for body in self.spec.bodies
            if geom.body == body.name and geom.size and "head" in f"{geom.name} {body.name}".lower()
        ]
        return max(tops, default=0.3 * self.standing_height)

    def raised(self, part: BodyEntry) -> float:
        """How high the middle of a part is over the root when its limb is raised.

        Well above where it usually is, and above the joint that it hangs from.
        """
        assert self.root is not None
        shoulder = self.chain(part)[0].anchor[2] - self.root.rest_position[2]
        return max(self.usual_rise(part), shoulder) + 0.3 * self.limb_length(part)

    @cached_property
    def leg_joints_by_side(self) -> tuple[tuple[JointEntry, ...], ...]:
        """The driven hinges of the legs on each side; empty where there are no sides."""
        if self.root is None or self.starts_lying:
            return ()
        sides: dict[bool, list[JointEntry]] = {}
        for foot in self.spec.feet:
            aside = foot.lowest_point[1] - self.root.rest_position[1]
            if abs(aside) < 0.05 * self.length:
                return ()
            chain = self.chain(self.spec.bodies[foot.body])
            driven = [j for j in chain if j.type == "hinge" and j in self.driven]
            sides.setdefault(aside > 0, []).extend(driven)
        return tuple(tuple(dict.fromkeys(side)) for side in sides.values() if side)

    def rests_on(self, part: BodyEntry) -> bool:
        """Whether it stands on this part."""
        return not self.starts_lying and any(foot.body == part.id for foot in self.spec.feet)


def _is_on(part: BodyEntry, side: str, parts: tuple[BodyEntry, ...]) -> bool:
    name = part.name.lower()
    words = re.split(r"[^a-z]+", name)
    # Where only the left ones are marked, the others are the right ones.
    unmarked = "left" not in words and any(o.name.lower() == f"{name}_left" for o in parts)
    initial = name[0] == side[0] and name[1:] in ("thigh", "shin", "foot", "leg")
    return (
        side in words
        or (side == "right" and unmarked)
        or (side in ("front", "back") and initial)
    )  # fmt: skip


@cache
def usual_pose(env_id: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Positions and orientations of all bodies after some seconds without any effort.

    Of the first moment if it falls meanwhile, which many environments do not end; None if there is
    no MuJoCo behind it.
    """
    import gymnasium as gym

    from p2p.training.envs.registry import quiet_loading

    if is_engine(engine_of(env_id)):
        return _first_pose(env_id)
    if is_model(env_id):
        facts = read_facts(env_id)
        return np.array(facts.settled_xpos), np.array(facts.settled_xquat)
    with quiet_loading():
        env = gym.make(env_id)
    try:
        env.reset(seed=0)
        data = getattr(env.unwrapped, "data", None)
        if data is None:
            return None
        first = data.xpos.copy(), data.xquat.copy()
        up = float(data.xmat[1, 8])
        still = np.zeros(env.action_space.shape or ())
        for _ in range(int(SETTLE_SECONDS / get_env_spec(env_id).dt)):
            _, _, terminated, truncated, _ = env.step(still)
            if terminated:
                return first
            if truncated:
                break
        fell = abs(data.xmat[1, 8] - up) > FALLEN
        return first if fell else (data.xpos.copy(), data.xquat.copy())
    finally:
        env.close()


def _first_pose(env_id: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The pose in which an engine's episodes begin, by the model that it left."""
    import mujoco

    from p2p.training.video.scene import open_model

    model, _ = open_model(env_id)
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_kinematics(model, data)
    return data.xpos.copy(), data.xquat.copy()


@cache
def ends_early(env_id: str) -> bool:
    """Whether an episode of random actions is seen to terminate within some seconds."""
    import gymnasium as gym

    from p2p.training.envs.registry import quiet_loading

    if is_model(env_id):
        return read_facts(env_id).ends_early
    with quiet_loading():
        env = gym.make(env_id)
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(int(SETTLE_SECONDS / get_env_spec(env_id).dt)):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                return bool(terminated)
        return False
    finally:
        env.close()


@cache
def morphology_of(env_id: str) -> Morphology:
    """Raises UnknownEnvironmentError and its like."""
    return Morphology(get_env_spec(env_id))
