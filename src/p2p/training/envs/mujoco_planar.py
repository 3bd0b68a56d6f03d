"""HalfCheetah, Hopper, Walker2d and Swimmer: rewarded for motion along x."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from p2p.training.envs.mujoco_kernel import Kernel, Outcome, inside, norm, squared

if TYPE_CHECKING:
    from p2p.training.envs.batched_env import F64, Array


class HalfCheetah(Kernel):
    """Forward velocity less control cost; never terminates."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._skip = int(self.parameters["_exclude_current_positions_from_observation"])
        self._forward_weight = self.parameters["_forward_reward_weight"]
        self._ctrl_weight = self.parameters["_ctrl_cost_weight"]

    @override
    def landmark(self) -> F64:
        return self.qpos[:, 0].copy()

    @override
    def observe(self) -> F64:
        return self.motion[:, self._skip :].copy()

    @override
    def transition(self, action: Array) -> Outcome:
        self.after = x = self.qpos[:, 0].copy()
        x_velocity = (x - self.before) / self.dt
        forward = self._forward_weight * x_velocity
        ctrl_cost = self._ctrl_weight * squared(action)
        info = {
            "x_position": x,
            "x_velocity": x_velocity,
            "reward_forward": forward,
            "reward_ctrl": -ctrl_cost,
        }
        return forward - ctrl_cost, None, info

    @override
    def reset_info(self) -> dict[str, Array]:
        return {"x_position": self.qpos[:, 0].copy()}


class Walker2d(HalfCheetah):
    """As HalfCheetah, with a healthy height and lean; velocities are observed up to 10."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._healthy_reward = self.parameters["_healthy_reward"]
        self._terminate = self.parameters["_terminate_when_unhealthy"]
        self._low, self._high = self._health_bounds()

    def _health_bounds(self) -> tuple[F64, F64]:
        """Bounds on qpos[1], qpos[2] and what follows in the row."""
        ranges = self.parameters["_healthy_z_range"], self.parameters["_healthy_angle_range"]
        low, high = np.array(ranges, dtype=np.float64).T
        return low, high

    @override
    def observe(self) -> F64:
        obs = self.motion[:, self._skip :].copy()
        velocity = obs[:, self.model.nq - self._skip :]
        np.maximum(velocity, -10.0, out=velocity)
        np.minimum(velocity, 10.0, out=velocity)
        return obs

    @override
    def transition(self, action: Array) -> Outcome:
        self.after = x = self.qpos[:, 0].copy()
        x_velocity = (x - self.before) / self.dt
        healthy = inside(self.motion[:, 1 : 1 + len(self._low)], self._low, self._high)
        forward = self._forward_weight * x_velocity
        survive = healthy * self._healthy_reward
        ctrl_cost = self._ctrl_weight * squared(action)
        info = {
            "x_position": x,
            "z_distance_from_origin": self.qpos[:, 1] - self.init_qpos[1],
            "x_velocity": x_velocity,
            "reward_forward": forward,
            "reward_ctrl": -ctrl_cost,
            "reward_survive": survive,
        }
        return forward + survive - ctrl_cost, ~healthy if self._terminate else None, info

    @override
    def reset_info(self) -> dict[str, Array]:
        return {
            "x_position": self.qpos[:, 0].copy(),
            "z_distance_from_origin": self.qpos[:, 1] - self.init_qpos[1],
        }


class Hopper(Walker2d):
    """As Walker2d, with bounds on the rest of the state, too."""

    @override
    def _health_bounds(self) -> tuple[F64, F64]:
        (z_low, angle_low), (z_high, angle_high) = super()._health_bounds()
        state_low, state_high = self.parameters["_healthy_state_range"]
        low = np.full(self.model.nq + self.model.nv - 1, state_low, dtype=np.float64)
        high = np.full_like(low, state_high)
        low[:2], high[:2] = (
            (z_low, max(angle_low, state_low)),
            (z_high, min(angle_high, state_high)),
        )
        return low, high


class Swimmer(HalfCheetah):
    """Forward velocity less control cost, in the plane."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._skip *= 2

    @override
    def landmark(self) -> F64:
        return self.qpos[:, :2].copy()

    @override
    def transition(self, action: Array) -> Outcome:
        self.after = xy = self.qpos[:, :2].copy()
        velocity = (xy - self.before) / self.dt
        forward = self._forward_weight * velocity[:, 0]
        ctrl_cost = self._ctrl_weight * squared(action)
        info = {
            "x_position": xy[:, 0],
            "y_position": xy[:, 1],
            "distance_from_origin": norm(xy),
            "x_velocity": velocity[:, 0],
            "y_velocity": velocity[:, 1],
            "reward_forward": forward,
            "reward_ctrl": -ctrl_cost,
        }
        return forward - ctrl_cost, None, info

    @override
    def reset_info(self) -> dict[str, Array]:
        xy = self.qpos[:, :2].copy()
        return {"x_position": xy[:, 0], "y_position": xy[:, 1], "distance_from_origin": norm(xy)}
