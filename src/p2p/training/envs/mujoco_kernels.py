"""What Gymnasium's MuJoCo environments compute from their simulation, for a whole batch at once.

Every number a kernel uses (weights, ranges, noise) is read from a live Gymnasium instance, and
sums are taken in Gymnasium's order and precision, so that results agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from p2p.training.envs.batched_env import Kernel, Outcome
from p2p.training.envs.model_env import ModelKernel
from p2p.training.model_files.store import ENTRY_POINT

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

    from p2p.training.envs.batched_env import F64, Array, Bools

POSITIONS: dict[str, Callable[[Locomotion], Array]] = {
    "x_position": lambda kernel: kernel.qpos[:, 0].copy(),
    "y_position": lambda kernel: kernel.qpos[:, 1].copy(),
    "distance_from_origin": lambda kernel: norm(kernel.qpos[:, :2].copy()),
    "z_distance_from_origin": lambda kernel: (
        kernel.qpos[:, kernel.height] - kernel.init_qpos[kernel.height]
    ),
    "tendon_length": lambda kernel: kernel.field["ten_length"].copy(),
    "tendon_velocity": lambda kernel: kernel.field["ten_velocity"].copy(),
}


class Locomotion(Kernel):
    """Forward velocity less costs, with a bonus for survival where health is defined."""

    positions: ClassVar[tuple[str, ...]] = ("x_position",)
    """What every step reports of the state: names of POSITIONS, in order."""
    height: ClassVar[int] = 2
    """Where qpos holds it."""
    axes: ClassVar[int] = 1
    """How many coordinates are the place in the world."""
    terms: ClassVar[tuple[str, ...]] = ("reward_forward", "reward_ctrl")
    """The terms of the reward, in the order of Gymnasium's info."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        hidden = self.parameters["_exclude_current_positions_from_observation"]
        self.skip = self.axes * int(hidden)
        self.bounds = self.health_bounds()

    def health_bounds(self) -> tuple[int, F64, F64] | None:
        """Open bounds on healthy motion, from this column on; None: health is not defined."""
        return None

    def reset_info(self) -> dict[str, Array]:
        """Return what the state tells, for all rows."""
        return {name: POSITIONS[name](self) for name in self.positions}

    def landmark(self) -> F64:
        return self.qpos[:, : self.axes].copy()

    def observe(self) -> F64:
        return self.motion[:, self.skip :].copy()

    def costed_control(self, action: Array) -> Array:
        return action

    def contact_cost(self) -> F64 | None:
        return None

    def transition(self, action: Array) -> Outcome:
        weights = self.parameters
        self.after = self.landmark()
        velocity = (self.after - self.before) / self.dt
        reward = forward = weights["_forward_reward_weight"] * velocity[:, 0]
        cost = weights["_ctrl_cost_weight"] * sum_squares(self.costed_control(action))
        terms = {"reward_forward": forward, "reward_ctrl": -cost}
        contact_cost = self.contact_cost()
        if contact_cost is not None:
            terms["reward_contact"] = -contact_cost
            cost = cost + contact_cost
        terminated: Bools | None = None
        if self.bounds is not None:
            first, low, high = self.bounds
            healthy = inside(self.motion[:, first : first + len(low)], low, high)
            terms["reward_survive"] = survive = healthy * weights["_healthy_reward"]
            reward = forward + survive
            terminated = ~healthy if weights["_terminate_when_unhealthy"] else None
        info = self.reset_info()
        info["x_velocity"] = velocity[:, 0]
        if self.axes > 1:
            info["y_velocity"] = velocity[:, 1]
        for name in self.terms:
            info[name] = terms[name]
        return reward - cost, terminated, info


class HalfCheetah(Locomotion):
    """Along x; never terminates."""


class Walker2d(Locomotion):
    """With a healthy height and lean; velocities are observed up to 10."""

    positions = ("x_position", "z_distance_from_origin")
    height = 1
    terms = ("reward_forward", "reward_ctrl", "reward_survive")

    def health_bounds(self) -> tuple[int, F64, F64]:
        ranges = self.parameters["_healthy_z_range"], self.parameters["_healthy_angle_range"]
        low, high = np.array(ranges, dtype=np.float64).T
        return 1, low, high

    def observe(self) -> F64:
        obs = super().observe()
        velocity = obs[:, self.model.nq - self.skip :]
        np.maximum(velocity, -10.0, out=velocity)
        np.minimum(velocity, 10.0, out=velocity)
        return obs


class Hopper(Walker2d):
    """With bounds on the rest of the state, too."""

    def health_bounds(self) -> tuple[int, F64, F64]:
        first, (z_low, angle_low), (z_high, angle_high) = super().health_bounds()
        state_low, state_high = self.parameters["_healthy_state_range"]
        low = np.full(self.model.nq + self.model.nv - 1, state_low, dtype=np.float64)
        high = np.full_like(low, state_high)
        low[:2], high[:2] = (
            (z_low, max(angle_low, state_low)),
            (z_high, min(angle_high, state_high)),
        )
        return first, low, high


class Swimmer(Locomotion):
    """In the plane."""

    positions = ("x_position", "y_position", "distance_from_origin")
    axes = 2


class Ant(Locomotion):
    """In space, by its main body; with contact forces in observation and cost."""

    derived = ("xpos", "cfrc_ext")
    positions = ("x_position", "y_position", "distance_from_origin")
    axes = 2
    terms = ("reward_forward", "reward_ctrl", "reward_contact", "reward_survive")

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._body = self.model.body(self.parameters["_main_body"]).id

    def health_bounds(self) -> tuple[int, F64, F64]:
        # The height may touch its bounds, and everything must be finite: as open intervals.
        low = np.full(self.model.nq + self.model.nv, -np.inf)
        high = np.full_like(low, np.inf)
        z_low, z_high = self.parameters["_healthy_z_range"]
        low[2], high[2] = np.nextafter(z_low, -np.inf), np.nextafter(z_high, np.inf)
        return 0, low, high

    def landmark(self) -> F64:
        return self.field["xpos"][:, self._body, :2].copy()

    def observe(self) -> F64:
        low, high = self.parameters["_contact_force_range"]
        self._forces = np.minimum(np.maximum(self.flat["cfrc_ext"], low), high)
        if not self.parameters["_include_cfrc_ext_in_observation"]:
            return super().observe()
        return np.concatenate((self.motion[:, self.skip :], self._forces[:, 6:]), axis=1)

    def contact_cost(self) -> F64:
        cost: F64 = self.parameters["_contact_cost_weight"] * sum_squares(self._forces)
        return cost


class Humanoid(Locomotion):
    """In space, by its centre of mass; forces and inertias are observed.

    As in Gymnasium, the control cost is that of ctrl, which has the action in double precision.
    """

    derived: ClassVar[tuple[str, ...]] = (
        *("cinert", "cvel", "qfrc_actuator", "cfrc_ext", "ten_length", "ten_velocity", "xipos"),
    )
    positions = (
        *("x_position", "y_position", "tendon_length", "tendon_velocity", "distance_from_origin"),
    )
    axes = 2
    terms = ("reward_survive", "reward_forward", "reward_ctrl", "reward_contact")
    observed: ClassVar[dict[str, int]] = {
        "cinert": 10, "cvel": 6, "qfrc_actuator": 6, "cfrc_ext": 6,
    }  # fmt: skip
    """Fields of the observation, and from which number on: the world's are left out."""

    def bind(self, motion: F64, ctrl: F64, fields: dict[str, Array]) -> None:
        super().bind(motion, ctrl, fields)
        observed = [
            self.flat[name][:, first:]
            for name, first in self.observed.items()
            if self.parameters[f"_include_{name}_in_observation"] is True
        ]
        self._observed = (self.motion[:, self.skip :], *observed)
        self._mass = self.model.body_mass.copy()
        self._total_mass = self.model.body_mass.sum()

    def health_bounds(self) -> tuple[int, F64, F64] | None:
        low, high = np.array([self.parameters["_healthy_z_range"]], dtype=np.float64).T
        return 2, low, high

    def landmark(self) -> F64:
        moment = np.einsum("b,nbj->nj", self._mass, self.field["xipos"])
        center: F64 = (moment / self._total_mass)[:, :2]
        return center

    def observe(self) -> F64:
        return np.concatenate(self._observed, axis=1)

    def costed_control(self, action: Array) -> Array:  # noqa: ARG002
        return self.ctrl

    def contact_cost(self) -> F64:
        return self.force_cost("contact")

    def force_cost(self, kind: str) -> F64:
        low, high = self.parameters[f"_{kind}_cost_range"]
        cost = self.parameters[f"_{kind}_cost_weight"] * sum_squares(self.flat["cfrc_ext"])
        bounded: F64 = np.minimum(np.maximum(cost, low), high)
        return bounded


class HumanoidStandup(Humanoid):
    """Height reached, less control and impact cost; never terminates."""

    derived = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext", "ten_length", "ten_velocity")
    positions = (
        *("x_position", "y_position", "z_distance_from_origin", "tendon_length", "tendon_velocity"),
    )

    def health_bounds(self) -> None:
        return None

    def landmark(self) -> F64:
        return self.before

    def transition(self, action: Array) -> Outcome:
        up = self.qpos[:, 2] / self.model.opt.timestep
        ctrl_cost = self.parameters["_ctrl_cost_weight"] * sum_squares(self.costed_control(action))
        impact_cost = self.force_cost("impact")
        info = self.reset_info()
        info["reward_linup"] = up
        info["reward_quadctrl"] = -ctrl_cost
        info["reward_impact"] = -impact_cost
        return up - ctrl_cost - impact_cost + 1, None, info


class Reacher(Kernel):
    """Distance of the fingertip from the target, and control cost."""

    derived = ("xpos",)

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._fingertip, self._target = (self.model.body(n).id for n in ("fingertip", "target"))

    def observe(self) -> F64:
        xpos = self.field["xpos"]
        self._gap = xpos[:, self._fingertip] - xpos[:, self._target]
        angles = self.qpos[:, :2]
        parts = (np.cos(angles), np.sin(angles), self.qpos[:, 2:], self.qvel[:, :2])
        return np.concatenate((*parts, self._gap[:, :2]), axis=1)

    def transition(self, action: Array) -> Outcome:
        distance = -norm(self._gap) * self.parameters["_reward_dist_weight"]
        ctrl = -sum_squares(action) * self.parameters["_reward_control_weight"]
        return distance + ctrl, None, {"reward_dist": distance, "reward_ctrl": ctrl}


class Pusher(Kernel):
    """Distances of arm and goal from the object, and control cost."""

    derived = ("xpos",)

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._bodies = [self.model.body(name).id for name in ("tips_arm", "object", "goal")]

    def observe(self) -> F64:
        bodies = (self.field["xpos"][:, body] for body in self._bodies)
        return np.concatenate((self.qpos[:, :7], self.qvel[:, :7], *bodies), axis=1)

    def transition(self, action: Array) -> Outcome:
        tips, thing, goal = (self.field["xpos"][:, body] for body in self._bodies)
        near = -norm(thing - tips) * self.parameters["_reward_near_weight"]
        distance = -norm(thing - goal) * self.parameters["_reward_dist_weight"]
        ctrl = -sum_squares(action) * self.parameters["_reward_control_weight"]
        info = {"reward_dist": distance, "reward_ctrl": ctrl, "reward_near": near}
        return distance + ctrl + near, None, info


class InvertedPendulum(Kernel):
    """One for every step that the pole stays up."""

    def observe(self) -> F64:
        return self.motion.copy()

    def transition(self, action: Array) -> Outcome:  # noqa: ARG002
        fallen = ~np.isfinite(self.motion).all(axis=1) | (np.abs(self.motion[:, 1]) > 0.2)
        survive = (~fallen).astype(np.int64)
        return survive.astype(np.float64), fallen, {"reward_survive": survive}


class InvertedDoublePendulum(Kernel):
    """A bonus for every step that the poles stay up, less distance and velocity penalties."""

    derived = ("site_xpos", "qfrc_constraint")

    def observe(self) -> F64:
        angles = self.qpos[:, 1:]
        limited = (self.qvel, self.field["qfrc_constraint"][:, :1])
        clipped = (np.minimum(np.maximum(part, -10.0), 10.0) for part in limited)
        return np.concatenate((self.qpos[:, :1], np.sin(angles), np.cos(angles), *clipped), axis=1)

    def transition(self, action: Array) -> Outcome:  # noqa: ARG002
        tip = self.field["site_xpos"][:, 0]
        fallen = tip[:, 2] <= 1
        # Gymnasium squares scalars, by libm's pow; array squares can differ in the last bit.
        rows = zip(
            tip[:, 0].tolist(), tip[:, 2].tolist(), *self.qvel[:, 1:3].T.tolist(), strict=True
        )
        penalties = [
            (0.01 * x**2 + (y - 2) ** 2, 1e-3 * v1**2 + 5e-3 * v2**2) for x, y, v1, v2 in rows
        ]
        distance, velocity = np.array(penalties).T
        survive = self.parameters["_healthy_reward"] * (~fallen).astype(np.int64)
        info = {
            "reward_survive": survive,
            "distance_penalty": -distance,
            "velocity_penalty": -velocity,
        }
        return survive - distance - velocity, fallen, info


def sum_squares(values: Array) -> Array:
    """Return every row's sum of squares, in the values' precision and in numpy's order."""
    total: Array = np.add.reduce(np.square(values), axis=1)
    return total


def norm(vectors: F64) -> F64:
    """Euclidean norm of every row; vecdot takes the dot product that np.linalg.norm takes."""
    lengths: F64 = np.sqrt(np.vecdot(vectors, vectors))
    return lengths


def inside(values: F64, low: F64, high: F64) -> Bools:
    """Return whether every value of a row lies strictly between its bounds; NaN does not."""
    within: Bools = np.logical_and.reduce((low < values) & (values < high), axis=1)
    return within


KERNELS: dict[str, type[Kernel]] = {
    "ant_v5:AntEnv": Ant,
    "half_cheetah_v5:HalfCheetahEnv": HalfCheetah,
    "hopper_v5:HopperEnv": Hopper,
    "humanoid_v5:HumanoidEnv": Humanoid,
    "humanoidstandup_v5:HumanoidStandupEnv": HumanoidStandup,
    "inverted_double_pendulum_v5:InvertedDoublePendulumEnv": InvertedDoublePendulum,
    "inverted_pendulum_v5:InvertedPendulumEnv": InvertedPendulum,
    "pusher_v5:PusherEnv": Pusher,
    "reacher_v5:ReacherEnv": Reacher,
    "swimmer_v5:SwimmerEnv": Swimmer,
    "walker2d_v5:Walker2dEnv": Walker2d,
    ENTRY_POINT: ModelKernel,
}
"""By the class of the environment."""
_OWN = {"metadata"}
"""What a class may have of its own beside __init__: the batch takes model and settings from it."""


def find_kernel(spec: EnvSpec) -> type[Kernel] | str:
    """The kernel of a registered environment; else why it has none.

    It is that of the class, or of the class that it inherits from without changing what a step is.
    """
    from gymnasium.envs.registration import load_env_creator

    if spec.additional_wrappers:
        return "it has wrappers of its own"
    entry: object = spec.entry_point
    if isinstance(entry, str):
        if kernel := KERNELS.get(entry.removeprefix("gymnasium.envs.mujoco.")):
            return kernel
        entry = load_env_creator(entry)
    if not isinstance(entry, type):
        return "it is made by a function, not a class"
    own: set[str] = set()
    for base in entry.__mro__:
        name = f"{base.__module__}:{base.__qualname__}".removeprefix("gymnasium.envs.mujoco.")
        if kernel := KERNELS.get(name):
            changed = sorted(each for each in own if hasattr(base, each))
            return f"its class has its own {', '.join(changed)}" if changed else kernel
        own |= {each for each in vars(base) if not each.startswith("__")} - _OWN
    return "its class is none of Gymnasium's MuJoCo environments, version 5"
