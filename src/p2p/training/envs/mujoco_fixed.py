"""Reacher, Pusher and the pendulums: machines that stand where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import override

from p2p.training.envs.mujoco_kernel import Kernel, Outcome, norm, squared

if TYPE_CHECKING:
    from p2p.training.envs.batched_env import F64, Array


class Reacher(Kernel):
    """Distance of the fingertip from the target, and control cost."""

    derived: ClassVar[tuple[str, ...]] = ("xpos",)

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._dist_weight = self.parameters["_reward_dist_weight"]
        self._ctrl_weight = self.parameters["_reward_control_weight"]
        self._fingertip, self._target = (self.model.body(n).id for n in ("fingertip", "target"))

    @override
    def observe(self) -> F64:
        xpos = self.field["xpos"]
        self._gap = xpos[:, self._fingertip] - xpos[:, self._target]
        angles = self.qpos[:, :2]
        parts = (np.cos(angles), np.sin(angles), self.qpos[:, 2:], self.qvel[:, :2])
        return np.concatenate((*parts, self._gap[:, :2]), axis=1)

    @override
    def transition(self, action: Array) -> Outcome:
        distance = -norm(self._gap) * self._dist_weight
        ctrl = -squared(action) * self._ctrl_weight
        return distance + ctrl, None, {"reward_dist": distance, "reward_ctrl": ctrl}


class Pusher(Kernel):
    """Distances of arm and goal from the object, and control cost."""

    derived: ClassVar[tuple[str, ...]] = ("xpos",)

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._near_weight = self.parameters["_reward_near_weight"]
        self._dist_weight = self.parameters["_reward_dist_weight"]
        self._ctrl_weight = self.parameters["_reward_control_weight"]
        names = ("tips_arm", "object", "goal")
        self._tips, self._object, self._goal = (self.model.body(name).id for name in names)

    @override
    def observe(self) -> F64:
        xpos = self.field["xpos"]
        bodies = (xpos[:, body] for body in (self._tips, self._object, self._goal))
        return np.concatenate((self.qpos[:, :7], self.qvel[:, :7], *bodies), axis=1)

    @override
    def transition(self, action: Array) -> Outcome:
        xpos = self.field["xpos"]
        thing = xpos[:, self._object]
        near = -norm(thing - xpos[:, self._tips]) * self._near_weight
        distance = -norm(thing - xpos[:, self._goal]) * self._dist_weight
        ctrl = -squared(action) * self._ctrl_weight
        info = {"reward_dist": distance, "reward_ctrl": ctrl, "reward_near": near}
        return distance + ctrl + near, None, info


class InvertedPendulum(Kernel):
    """One for every step that the pole stays up."""

    @override
    def observe(self) -> F64:
        return self.motion.copy()

    @override
    def transition(self, action: Array) -> Outcome:
        fallen = ~np.isfinite(self.motion).all(axis=1) | (np.abs(self.motion[:, 1]) > 0.2)
        survive = (~fallen).astype(np.int64)
        return survive.astype(np.float64), fallen, {"reward_survive": survive}


class InvertedDoublePendulum(Kernel):
    """A bonus for every step that the poles stay up, less distance and velocity penalties."""

    derived: ClassVar[tuple[str, ...]] = ("site_xpos", "qfrc_constraint")

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._healthy_reward = self.parameters["_healthy_reward"]

    @override
    def observe(self) -> F64:
        angles = self.qpos[:, 1:]
        limited = (self.qvel, self.field["qfrc_constraint"][:, :1])
        clipped = (np.minimum(np.maximum(part, -10.0), 10.0) for part in limited)
        return np.concatenate((self.qpos[:, :1], np.sin(angles), np.cos(angles), *clipped), axis=1)

    @override
    def transition(self, action: Array) -> Outcome:
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
        survive = self._healthy_reward * (~fallen).astype(np.int64)
        info = {
            "reward_survive": survive,
            "distance_penalty": -distance,
            "velocity_penalty": -velocity,
        }
        return survive - distance - velocity, fallen, info
