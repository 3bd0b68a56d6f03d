"""Ant, Humanoid and HumanoidStandup: bodies in space, with contact forces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import override

from p2p.training.envs.mujoco_kernel import Kernel, Outcome, inside, norm, squared

if TYPE_CHECKING:
    from p2p.training.envs.batched_env import F64, Array
    from p2p.training.envs.mujoco_engines import Engine


class Ant(Kernel):
    """Forward velocity of the main body and survival, less control and contact cost."""

    derived: ClassVar[tuple[str, ...]] = ("xpos", "cfrc_ext")

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        given = self.parameters
        self._skip = 2 * int(given["_exclude_current_positions_from_observation"])
        self._observe_contacts = given["_include_cfrc_ext_in_observation"]
        self._forward_weight = given["_forward_reward_weight"]
        self._ctrl_weight = given["_ctrl_cost_weight"]
        self._contact_weight = given["_contact_cost_weight"]
        self._contact_low, self._contact_high = given["_contact_force_range"]
        self._healthy_reward = given["_healthy_reward"]
        self._terminate = given["_terminate_when_unhealthy"]
        self._body = self.model.body(given["_main_body"]).id
        # The height may touch its bounds, and everything must be finite: as open intervals.
        self._low = np.full(self.model.nq + self.model.nv, -np.inf)
        self._high = np.full_like(self._low, np.inf)
        z_low, z_high = given["_healthy_z_range"]
        self._low[2], self._high[2] = np.nextafter(z_low, -np.inf), np.nextafter(z_high, np.inf)

    @override
    def landmark(self) -> F64:
        return self.field["xpos"][:, self._body, :2].copy()

    @override
    def observe(self) -> F64:
        motion = self.motion[:, self._skip :]
        above = np.maximum(self.flat["cfrc_ext"], self._contact_low)
        self._forces = np.minimum(above, self._contact_high)
        if not self._observe_contacts:
            return motion.copy()
        return np.concatenate((motion, self._forces[:, 6:]), axis=1)

    @override
    def transition(self, action: Array) -> Outcome:
        self.after = self.landmark()
        velocity = (self.after - self.before) / self.dt
        healthy = inside(self.motion, self._low, self._high)
        forward = velocity[:, 0] * self._forward_weight
        survive = healthy * self._healthy_reward
        ctrl_cost = self._ctrl_weight * squared(action)
        contact_cost = self._contact_weight * squared(self._forces)
        info = self.reset_info()
        info["x_velocity"], info["y_velocity"] = velocity[:, 0], velocity[:, 1]
        info["reward_forward"] = forward
        info["reward_ctrl"] = -ctrl_cost
        info["reward_contact"] = -contact_cost
        info["reward_survive"] = survive
        reward = forward + survive - (ctrl_cost + contact_cost)
        return reward, ~healthy if self._terminate else None, info

    @override
    def reset_info(self) -> dict[str, Array]:
        xy = self.qpos[:, :2].copy()
        return {"x_position": xy[:, 0], "y_position": xy[:, 1], "distance_from_origin": norm(xy)}


class HumanoidBody(Kernel):
    """The observation and the tendons that Humanoid and HumanoidStandup share."""

    derived: ClassVar[tuple[str, ...]] = (
        *("cinert", "cvel", "qfrc_actuator", "cfrc_ext", "xipos", "ten_length", "ten_velocity"),
    )

    @override
    def bind(self, engine: Engine) -> None:
        super().bind(engine)
        given = self.parameters
        skip = 2 * int(given["_exclude_current_positions_from_observation"])
        parts = {
            "cinert": self.flat["cinert"][:, 10:],
            "cvel": self.flat["cvel"][:, 6:],
            "qfrc_actuator": self.flat["qfrc_actuator"][:, 6:],
            "cfrc_ext": self.flat["cfrc_ext"][:, 6:],
        }
        seen = [part for k, part in parts.items() if given[f"_include_{k}_in_observation"] is True]
        self._observed = (self.motion[:, skip:], *seen)
        self._ctrl_weight = given["_ctrl_cost_weight"]

    @override
    def observe(self) -> F64:
        return np.concatenate(self._observed, axis=1)

    def _tendons(self) -> dict[str, Array]:
        return {
            "tendon_length": self.field["ten_length"].copy(),
            "tendon_velocity": self.field["ten_velocity"].copy(),
        }

    def _force_cost(self, weight: float, limits: tuple[float, float]) -> F64:
        return np.minimum(np.maximum(weight * squared(self.flat["cfrc_ext"]), limits[0]), limits[1])


class Humanoid(HumanoidBody):
    """Forward velocity of the centre of mass and survival, less control and contact cost.

    As in Gymnasium, the control cost is that of ctrl, which has the action in double precision.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        given = self.parameters
        self._forward_weight = given["_forward_reward_weight"]
        self._healthy_reward = given["_healthy_reward"]
        self._terminate = given["_terminate_when_unhealthy"]
        self._low, self._high = given["_healthy_z_range"]
        self._contact = given["_contact_cost_weight"], given["_contact_cost_range"]
        self._mass = self.model.body_mass.copy()
        self._total_mass = self.model.body_mass.sum()

    @override
    def landmark(self) -> F64:
        moment = np.einsum("b,nbj->nj", self._mass, self.field["xipos"])
        center: F64 = (moment / self._total_mass)[:, :2]
        return center

    @override
    def transition(self, action: Array) -> Outcome:
        self.after = self.landmark()
        velocity = (self.after - self.before) / self.dt
        height = self.qpos[:, 2]
        healthy = (self._low < height) & (height < self._high)
        forward = self._forward_weight * velocity[:, 0]
        survive = healthy * self._healthy_reward
        ctrl_cost = self._ctrl_weight * squared(self.ctrl)
        contact_cost = self._force_cost(*self._contact)
        info = self.reset_info()
        info["x_velocity"], info["y_velocity"] = velocity[:, 0], velocity[:, 1]
        info["reward_survive"] = survive
        info["reward_forward"] = forward
        info["reward_ctrl"] = -ctrl_cost
        info["reward_contact"] = -contact_cost
        reward = forward + survive - (ctrl_cost + contact_cost)
        return reward, ~healthy if self._terminate else None, info

    @override
    def reset_info(self) -> dict[str, Array]:
        xy = self.qpos[:, :2].copy()
        return {
            "x_position": xy[:, 0],
            "y_position": xy[:, 1],
            **self._tendons(),
            "distance_from_origin": norm(xy),
        }


class HumanoidStandup(HumanoidBody):
    """Height reached, less control and impact cost; never terminates."""

    derived: ClassVar[tuple[str, ...]] = (
        *("cinert", "cvel", "qfrc_actuator", "cfrc_ext", "ten_length", "ten_velocity"),
    )

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._impact = self.parameters["_impact_cost_weight"], self.parameters["_impact_cost_range"]

    @override
    def transition(self, action: Array) -> Outcome:
        up = self.qpos[:, 2] / self.model.opt.timestep
        ctrl_cost = self._ctrl_weight * squared(self.ctrl)
        impact_cost = self._force_cost(*self._impact)
        info = self.reset_info()
        info["reward_linup"] = up
        info["reward_quadctrl"] = -ctrl_cost
        info["reward_impact"] = -impact_cost
        return up - ctrl_cost - impact_cost + 1, None, info

    @override
    def reset_info(self) -> dict[str, Array]:
        xy = self.qpos[:, :2].copy()
        return {
            "x_position": xy[:, 0],
            "y_position": xy[:, 1],
            "z_distance_from_origin": self.qpos[:, 2] - self.init_qpos[2],
            **self._tendons(),
        }
