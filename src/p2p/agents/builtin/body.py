"""What a body is like, from the environment's own facts: its root, its size, which way is up.

Nothing here knows an environment by name; a person's own MuJoCo environment is read the same way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from p2p.agents.builtin import limbs
from p2p.training.env_spec import get_env_spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from p2p.training.specs.records import BodyEntry, EnvSpec, JointEntry, Vec3

SETTLE_SECONDS = 2.0
TARGETS = ("target", "goal")
OBJECTS = ("object", "ball", "puck", "cube", "block")


@dataclass(frozen=True)
class Body:
    """An environment's body, as the grammar needs it."""

    spec: EnvSpec

    # --- the observation --------------------------------------------------------------------

    def seen(self, source: str) -> str | None:
        """The code of an observation entry, by its source; None: not observed."""
        for entry in self.spec.observation:
            if entry.source == source:
                return f"next_obs[..., {entry.index}]"
        return None

    # --- the tree -----------------------------------------------------------------------------

    @cached_property
    def root(self) -> BodyEntry | None:
        """The body whose joints carry all the others about; None: nothing moves along."""
        for body in self.spec.bodies[1:]:
            joints = self.joints_of(body)
            if body.parent == 0 and any(j.type == "free" for j in joints):
                return body
            if body.parent == 0 and any(j.type == "slide" and j.range is None for j in joints):
                return body
        return None

    def joints_of(self, body: BodyEntry) -> tuple[JointEntry, ...]:
        """The joints that move a body against its parent."""
        return tuple(joint for joint in self.spec.joints if joint.body == body.name)

    @cached_property
    def free(self) -> JointEntry | None:
        """The root's free joint."""
        joints = self.joints_of(self.root) if self.root else ()
        return next((joint for joint in joints if joint.type == "free"), None)

    def root_axis(self, kind: str, axis: int) -> tuple[JointEntry, float] | None:
        """The root's slide or hinge along a world axis, and its sign."""
        for joint in self.joints_of(self.root) if self.root else ():
            if joint.type == kind and joint.axis and abs(joint.axis[axis]) > 0.99:
                return joint, float(np.sign(joint.axis[axis]))
        return None

    def below(self, body: BodyEntry) -> tuple[BodyEntry, ...]:
        """A body and everything that it carries."""
        found = [body]
        for other in self.spec.bodies[1:]:
            if other.parent in {b.id for b in found} and other not in found:
                found.append(other)
        return tuple(found)

    def ends(self, body: BodyEntry) -> tuple[BodyEntry, ...]:
        """The last bodies of its branches."""
        parents = {other.parent for other in self.spec.bodies}
        return tuple(b for b in self.below(body) if b.id not in parents)

    def find(self, names: tuple[str, ...]) -> BodyEntry | None:
        """The first body with one of these words in its name."""
        for body in self.spec.bodies[1:]:
            if any(name in body.name.lower() for name in names):
                return body
        return None

    @cached_property
    def drives(self) -> tuple[JointEntry, ...]:
        """The joints that actuators move."""
        named = {action.joint for action in self.spec.actions}
        return tuple(joint for joint in self.spec.joints if joint.name in named)

    @cached_property
    def poles(self) -> tuple[JointEntry, ...]:
        """Hinges that no actuator moves, from a sliding cart upwards: what can be balanced."""
        driven = {joint.name for joint in self.drives}
        carts = {j.body for j in self.spec.joints if j.type == "slide" and j.name in driven}
        chain: list[JointEntry] = []
        carriers = set(carts)
        for joint in self.spec.joints:
            lies_flat = joint.axis is not None and abs(joint.axis[2]) < 0.5
            free = joint.type == "hinge" and joint.name not in driven and lies_flat
            if free and joint.parent in carriers:
                chain.append(joint)
                carriers.add(joint.body)
        return tuple(chain) if self.root is None else ()

    @cached_property
    def cart(self) -> JointEntry | None:
        """The slide that carries the poles."""
        return next((j for j in self.drives if j.type == "slide"), None) if self.poles else None

    # --- sizes --------------------------------------------------------------------------------

    @cached_property
    def _box(self) -> tuple[np.ndarray, np.ndarray]:
        bodies = self.below(self.root) if self.root else self.spec.bodies[1:]
        names = {body.name: np.asarray(body.rest_position) for body in bodies}
        corners = list(names.values())
        for geom in self.spec.geoms:
            if geom.body in names and geom.size:
                centre = names[geom.body] + np.asarray(geom.position)
                corners += [centre + max(geom.size) / 2, centre - max(geom.size) / 2]
        return np.min(corners, axis=0), np.max(corners, axis=0)

    @cached_property
    def length(self) -> float:
        """Its largest extent at rest, in metres."""
        low, high = self._box
        return float(np.max(high - low))

    @cached_property
    def has_weight(self) -> bool:
        """Whether it stands on ground that it could fall to."""
        return self.height_joint is not None

    @cached_property
    def height_joint(self) -> JointEntry | None:
        """The root's joint that says how high it is."""
        if self.free:
            return self.free
        found = self.root_axis("slide", 2)
        return found[0] if found else None

    @cached_property
    def up(self) -> Vec3:
        """The root's own axis that points up when it stands: from its limbs' ends to the root."""
        if self.root is None:
            return (0.0, 0.0, 1.0)
        ends = [body.rest_position for body in self.ends(self.root)]
        towards = np.asarray(self.root.rest_position) - np.mean(ends, axis=0)
        axis = int(np.argmax(np.abs(towards)))
        if axis == 2 or abs(towards[axis]) < 0.25 * self.length or not self.free:
            return (0.0, 0.0, 1.0)
        found = [0.0, 0.0, 0.0]
        found[axis] = float(np.sign(towards[axis]))
        return (found[0], found[1], found[2])

    @cached_property
    def starts_lying(self) -> bool:
        """Whether the body lies on the ground when an episode begins."""
        return self.has_weight and self.up != (0.0, 0.0, 1.0)

    @cached_property
    def standing_height(self) -> float:
        """How high the root is when the body stands, in metres."""
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

        Of wide bodies only: they rise as they tip over, where tall ones sink.
        """
        usual, end = self.standing_height, self.spec.healthy_ranges.get("z", (None, None))[1]
        low, high = self._box
        tips_up = float(max((high - low)[:2])) / 2 > usual
        if end is None or not tips_up or not self.may_end_early or end <= usual:
            return None
        return usual + 0.3 * (end - usual), end

    def usual_rise(self, part: BodyEntry) -> float:
        """How high the middle of a part is over the root in the usual pose."""
        assert self.root is not None
        pose = usual_pose(self.spec.env_id)
        if pose is None:
            return part.rest_position[2] - self.root.rest_position[2]
        (w, x, y, z), offset = pose[1][part.id], limbs.offset_of(self, part)
        row = (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y))
        lift = float(np.dot(row, offset))
        return float(pose[0][part.id, 2] - pose[0][self.root.id, 2]) + lift

    @cached_property
    def pace(self) -> float:
        """The speed that one unit of the speed table stands for, in m/s.

        On legs, the speed of a pendulum as long as they are (half of it for bodies taller than
        long); in the water, where nothing falls, a share of the body's length.
        """
        if not self.has_weight:
            return 0.2 * self.length
        low, high = self._box
        wide = float(max((high - low)[:2])) / max(float((high - low)[2]), 1e-6)
        height = max(self.standing_height, 0.05)
        return float(np.sqrt(9.81 * height)) * float(np.clip(wide, 0.5, 1.0))

    @cached_property
    def horizon(self) -> int:
        """Steps of an episode that is not cut short."""
        return self.spec.max_episode_steps or 1000

    @cached_property
    def may_end_early(self) -> bool:
        """Whether the environment ends episodes before their time."""
        return not self.spec.termination.startswith("never")

    # --- words --------------------------------------------------------------------------------

    @cached_property
    def limb_words(self) -> dict[str, str]:
        """What the body calls its parts: each word of their names."""
        words: dict[str, str] = {}
        for body in self.spec.bodies[1:]:
            for word in re.split(r"[^a-z]+", body.name.lower()):
                if len(word) > 2:
                    words.setdefault(word, word)
        return {word: word for word in words if word not in ("left", "right", "front", "back")}


@cache
def usual_pose(env_id: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Positions and orientations of all bodies after some seconds without any effort.

    Of the first moment if it falls meanwhile; None if there is no MuJoCo behind it.
    """
    import gymnasium as gym

    from p2p.training.envs.registry import quiet_loading

    spec = get_env_spec(env_id)
    with quiet_loading():
        env = gym.make(env_id)
    try:
        env.reset(seed=0)
        data = getattr(env.unwrapped, "data", None)
        if data is None:
            return None
        first = data.xpos.copy(), data.xquat.copy()
        still = np.zeros(env.action_space.shape or ())
        for _ in range(int(SETTLE_SECONDS / spec.dt)):
            _, _, terminated, truncated, _ = env.step(still)
            if terminated:
                return first
            if truncated:
                break
        return data.xpos.copy(), data.xquat.copy()
    finally:
        env.close()


@cache
def body_of(env_id: str) -> Body:
    """The body of an environment; raises UnknownEnvironmentError and its like."""
    return Body(get_env_spec(env_id))
