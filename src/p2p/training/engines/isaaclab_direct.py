"""Tasks of Isaac Lab that are written without managers, as one class each.

Such a task says how wide its observations and actions are, and not what they mean. The numbers of
the observation are identified by experiment, as everywhere (see live_spec); those of the action by
what each of them makes of the forces and targets in the simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from isaaclab.envs import DirectRLEnv, DirectRLEnvCfg
from isaaclab.envs.utils.spaces import spec_to_gym_space

from p2p.training.engines.engine_env import EngineTerm

IMAGES = "a policy that sees images, which training here does not have"
PROBED = 0.25
"""An action small enough that no task clips it."""
FORCES = "qfrc_applied"
TARGETS = "ctrl"


@dataclass(frozen=True, slots=True)
class Layout:
    """What a task observes, how it is moved, and what ends its episodes early."""

    observation_terms: tuple[EngineTerm, ...]
    action_terms: tuple[EngineTerm, ...]
    terminations: tuple[str, ...]


class UnendingDirectEnv(DirectRLEnv):  # type: ignore[misc]
    """Leaves rows that end in their last state, until they are reset."""

    def _reset_envs_from_buffer(self) -> torch.Tensor:
        return torch.zeros(0, dtype=torch.int32, device=self.device)

    def start(self, rows: torch.Tensor | None, seed: int | None) -> dict[str, Any]:
        """The observations of all rows, once these have begun anew."""
        if rows is None:
            self.reset(seed=seed)
        else:
            self._reset_idx(rows.int())
            self.scene.write_data_to_sim()
            self.sim.forward()
            self.obs_buf = self._compute_observations()
        observations: dict[str, Any] = self.obs_buf
        return observations


def unending_direct(env_id: str) -> type[UnendingDirectEnv]:
    """The task's own class, whose episodes end when we say so."""
    module, _, name = str(gym.registry[env_id].entry_point).partition(":")
    task = getattr(import_module(module), name)
    return type(f"Unending{name}", (UnendingDirectEnv, task), {})


def shape_problem(cfg: DirectRLEnvCfg) -> str:
    """What a task needs whose observations or actions are no vectors; empty: they are."""
    for what in ("observation", "action"):
        space = spec_to_gym_space(getattr(cfg, f"{what}_space"))
        if not isinstance(space, gym.spaces.Box):
            kind = type(space).__name__
            return f"a policy with {what}s of kind {kind}, which training here does not have"
        if len(space.shape) != 1:
            return IMAGES
    return ""


def read_direct_layout(
    env: UnendingDirectEnv, model: mujoco.MjModel, field: Callable[[str], torch.Tensor]
) -> Layout:
    """The layout of a live task; steps it, and leaves it to be reset.

    `field` gives a field of MjData, (N, ...), of the present states.
    """
    width = int(env.single_observation_space["policy"].shape[0])
    text = "as the task computes it"
    observed = EngineTerm("observation", tuple(map(str, range(width))), text)
    actions = int(env.single_action_space.shape[0])
    still = _commanded(env, field, np.zeros(actions))
    terms = [
        _action_term(model, i, still, _commanded(env, field, np.eye(actions)[i] * PROBED))
        for i in range(actions)
    ]
    return Layout((observed,), tuple(terms), ("as the task defines it",))


def _commanded(
    env: UnendingDirectEnv, field: Callable[[str], torch.Tensor], action: Any
) -> dict[str, Any]:
    """The forces and targets of the first row, one step after an equal start."""
    env.reset(seed=0)
    rows = torch.as_tensor(action, dtype=torch.float32, device=env.device)
    env.step(rows.repeat(env.num_envs, 1))
    return {name: field(name)[0].cpu().numpy().copy() for name in (FORCES, TARGETS)}


def _action_term(
    model: mujoco.MjModel, index: int, still: dict[str, Any], moved: dict[str, Any]
) -> EngineTerm:
    """The joint that an action drives, and how; without a joint if it is not exactly one."""
    for name in (FORCES, TARGETS):
        change = moved[name] - still[name]
        changed = np.flatnonzero(change)
        if len(changed) != 1:
            continue
        where, effort = int(changed[0]), name == FORCES
        joint = int(model.dof_jntid[where] if effort else model.actuator_trnid[where, 0])
        return EngineTerm(
            "action",
            (model.joint(joint).name,),
            "drives one joint, as one action was seen to do",
            kind="effort" if effort else "target",
            scale=(round(float(change[where]) / PROBED, 6),),
            offset=() if effort else (float(still[name][where]),),
            is_effort=effort,
        )
    return EngineTerm("action", (str(index),), "as the task defines it")
