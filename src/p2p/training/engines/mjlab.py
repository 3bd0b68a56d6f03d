"""mjlab's environments: MuJoCo Warp under Isaac Lab's managers."""

from __future__ import annotations

import math
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mjlab.tasks  # noqa: F401 - registers them
import mujoco
import numpy as np
import torch
from mjlab.actuator import IdealPdActuator
from mjlab.envs import ManagerBasedRlEnv
from mjlab.tasks.registry import list_tasks, load_env_cfg, load_rl_cfg

from p2p.config import ConfigurationError, EnvOptions
from p2p.training.engines.engine_env import (
    EngineEnv,
    Groups,
    JointDrive,
    Reached,
    first_line,
    read_action_term,
    read_observation_terms,
    rsl_rl_settings,
)
from p2p.training.engines.table import get_engine

UP_TO_DATE = frozenset({
    "qpos", "qvel", "ctrl", "act", "qacc", "xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos",
    "geom_xmat", "site_xpos", "site_xmat", "subtree_com", "cvel", "cinert", "actuator_force",
    "actuator_velocity", "actuator_length", "qfrc_actuator", "qfrc_constraint", "sensordata",
    "mocap_pos", "mocap_quat",
})  # fmt: skip
"""Fields that MuJoCo Warp has computed after a step; in others (cfrc_ext) it leaves zeros."""
AXES = {3: ("x", "y", "z"), 4: ("w", "x", "y", "z")}


def make(options: EnvOptions, num_envs: int) -> EngineEnv:
    if options.env_id not in list_tasks():
        known = ", ".join(list_tasks())
        raise ConfigurationError(f"mjlab has no {options.env_id!r}; it has {known}")
    return MjlabEnv(options, num_envs)


def environments() -> list[dict[str, Any]]:
    entries = []
    for env_id in list_tasks():
        cfg = load_env_cfg(env_id)
        dt = cfg.sim.mujoco.timestep * cfg.decimation
        steps = math.ceil(cfg.episode_length_s / dt)
        needs = ""
        if "Tracking" in env_id:
            needs = "a motion file to track, which tasks here do not have"
        elif env_id.endswith(("-Rgb", "-Depth")) or "-Seg-" in env_id:
            needs = "a policy that sees images, which training here does not have"
        entries.append({
            "env_id": env_id, "dt": dt, "max_episode_steps": steps, "needs": needs,
            "supported": not needs,
        })  # fmt: skip
    return entries


def preset(env_id: str) -> dict[str, Any]:
    rl = load_rl_cfg(env_id)
    return rsl_rl_settings(rl, rl.actor.distribution_cfg["init_std"])


class MjlabEnv(EngineEnv):
    """A task of mjlab; its own reward is kept beside ours, for comparison."""

    def __init__(self, options: EnvOptions, num_envs: int) -> None:
        env_id = options.env_id
        cfg = load_env_cfg(env_id)
        cfg.scene.num_envs, cfg.seed = num_envs, options.seed
        cfg.auto_reset = False  # so that the last state of an episode can be seen
        cfg.scale_rewards_by_dt = False
        terrain = cfg.scene.terrain
        if terrain is None or terrain.terrain_type == "plane":
            cfg.scene.env_spacing = 0.0  # worlds are apart anyway: all start at the origin
        if options.training:
            cfg.metrics = {}
            if not any("reward" in term.func.__name__ for term in cfg.curriculum.values()):
                cfg.rewards = {}
        else:
            for group in cfg.observations.values():
                group.enable_corruption = False
            # Shoves out of nowhere: a policy that does not observe its heading cannot undo them.
            cfg.events = {
                name: term for name, term in cfg.events.items() if term.mode != "interval"
            }
        step = cfg.sim.mujoco.timestep * cfg.decimation
        if options.max_episode_steps is not None:
            cfg.episode_length_s = options.max_episode_steps * step
        if options.terminate_when_unhealthy is False:
            cfg.terminations = {
                name: term for name, term in cfg.terminations.items() if term.time_out
            }
        self.env = env = ManagerBasedRlEnv(cfg, device=options.device)
        self.env_id, self.num_envs, self.device = env_id, num_envs, options.device
        self.dt, self.frame_skip = float(env.step_dt), int(cfg.decimation)
        self.max_episode_steps = int(env.max_episode_length)
        self.model = env.sim.mj_model
        self.start_qpos = np.array(
            self.model.key_qpos[0] if self.model.nkey else self.model.qpos0, np.float64
        )
        observed, actions = env.observation_manager, env.action_manager
        names = observed.active_terms.get("actor", ())
        configs = [observed.get_term_cfg("actor", name) for name in names]
        self.observation_terms = read_observation_terms(
            env_id, observed, "actor", configs, self._parts, self._describe
        )
        self._remembers = any(
            term.delay_max_lag or term.history_length
            for group in cfg.observations.values()
            for term in group.terms.values()
        )
        """Whether observations are of earlier steps as well: no step may be observed twice then."""
        self._is_known = version("mjlab") == get_engine("mjlab").version
        """Whether a step may be made of the parts of mjlab's own, some of them private."""
        self.action_terms = tuple(
            read_action_term(
                name, actions.get_term(name),
                joints="_target_names", scale="scale", offset="offset",
            )
            for name in actions.active_terms
        )  # fmt: skip
        self.terminations = tuple(
            name for name, term in cfg.terminations.items() if not term.time_out
        )
        super().__init__(options)

    def begin(self, rows: torch.Tensor | None, seed: int | None) -> Groups:
        return self._groups_of(self.env.reset(seed=seed, env_ids=rows)[0])

    def advance(self, action: torch.Tensor) -> Reached:
        groups, reward, terminated, truncated, _ = self.env.step(action)
        ends = terminated.clone(), truncated.clone()
        return Reached(self._groups_of(groups), reward.clone(), *ends)

    def step_and_restart(
        self, action: torch.Tensor
    ) -> tuple[Reached, dict[str, torch.Tensor], Groups]:
        """As mjlab's own auto-reset: forward kinematics once, after new episodes have begun.

        Where an episode ends, what follows from positions is therefore one physics step old, as it
        is for all of mjlab's own rewards.
        """
        if self._remembers or not self._is_known:
            return super().step_and_restart(action)
        env = self.env
        env.extras["log"] = {}
        env.action_manager.process_action(action)
        for _ in range(self.frame_skip):
            env._sim_step_counter += 1  # noqa: SLF001 - as its own step does
            env.action_manager.apply_action()
            env.scene.write_data_to_sim()
            env.sim.step()
            env.scene.update(dt=env.physics_dt)
        env.episode_length_buf += 1
        env.common_step_counter += 1
        self._elapsed += 1
        ended = env.termination_manager.compute()
        terminated = env.termination_manager.terminated.clone()
        truncated = env.termination_manager.time_outs.clone()
        for mode in ("step", "interval"):
            if mode in env.event_manager.available_modes:
                env.event_manager.apply(mode=mode, dt=self.dt)
        last = self._add_time({"actor": env.observation_manager.compute_group("actor")})["actor"]
        last_info = {name: value.clone() for name, value in self.tensor_info().items()}
        ids = ended.nonzero().squeeze(-1)
        self._elapsed.masked_fill_(ended, 0)
        if len(ids):
            env._reset_idx(ids)  # noqa: SLF001
            env.scene.write_data_to_sim()
        env.sim.forward()
        env.command_manager.compute(dt=torch.where(ended, 0.0, self.dt))
        env.sim.sense()
        groups = self._add_time(
            self._groups_of(env.observation_manager.compute(update_history=True))
        )
        info = {
            name: _where(ended, last_info[name], value)
            for name, value in self.tensor_info().items()
        }
        self._groups, self._fields, self._reached_states = groups, {}, {}
        actor = _where(ended, last, groups["actor"])
        nothing = torch.zeros(self.num_envs, device=self.device)
        return Reached({"actor": actor}, nothing, terminated, truncated), info, groups

    def field(self, name: str) -> torch.Tensor | None:
        if name not in UP_TO_DATE:
            return None
        values: torch.Tensor = getattr(self.env.sim.data, name)[:]
        return values

    def report_state(self) -> dict[str, torch.Tensor]:
        manager = self.env.command_manager
        return {f"command_{name}": manager.get_command(name) for name in manager.active_terms}

    def joint_drives(self) -> list[JointDrive]:
        gains, drives = self._gains(), []
        for prefix, entity in self.env.scene.entities.items():
            positions = entity.data.default_joint_pos[0].tolist()
            for name, position in zip(entity.joint_names, positions, strict=True):
                drive = gains.get(f"{prefix}/{name}", (0.0, 0.0))
                drives.append(JointDrive(name, position, *drive))
        return drives

    def _gains(self) -> dict[str, tuple[float, float]]:
        """Stiffness and damping of joints with a PD drive, by their names in the model."""
        model, gains = self.model, dict[str, tuple[float, float]]()
        for i in range(model.nu):
            if model.actuator_trntype[i] != mujoco.mjtTrn.mjTRN_JOINT:
                continue
            gain, bias = model.actuator_gainprm[i], model.actuator_biasprm[i]
            # A position servo of MuJoCo's has both gains; a velocity servo may add to the second.
            is_servo = gain[0] > 0 and gain[0] in (-bias[1], -bias[2])
            name = model.joint(model.actuator_trnid[i, 0]).name
            stiffness, damping = gains.get(name, (0.0, 0.0))
            if is_servo:
                gains[name] = stiffness - float(bias[1]), damping - float(bias[2])
        for prefix, entity in self.env.scene.entities.items():
            for group in entity.actuators:
                if isinstance(group, IdealPdActuator):  # computed by mjlab: a motor in the model
                    for i, name in enumerate(group.target_names):
                        values = float(group.stiffness[0, i]), float(group.damping[0, i])
                        gains[f"{prefix}/{name}"] = values
        return gains

    def write_model(self, folder: Path) -> None:
        self.env.scene.write(folder)
        # It leaves out the meshes that a robot's own file names.
        places = [
            Path(entity.spec.modelfiledir) / entity.spec.meshdir
            for entity in self.env.scene.entities.values()
        ]
        for name in re.findall(r' file="([^"]+)"', (folder / "scene.xml").read_text()):
            mesh = next((place / name for place in places if (place / name).is_file()), None)
            target = folder / "assets" / name
            if mesh is not None and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(mesh.read_bytes())

    def close(self) -> None:
        self.env.close()

    def _groups_of(self, groups: dict[str, Any]) -> Groups:
        actor = groups["actor"]
        return {"actor": actor, "critic": groups.get("critic", actor)}

    def _parts(self, params: dict[str, Any], width: int) -> tuple[str, ...]:
        """The joints of a term that has a number for each, axes, or plain numbers."""
        asset = params.get("asset_cfg")
        entities = [entity for entity in self.env.scene.entities.values() if entity.joint_names]
        if asset is not None and self.env.scene[asset.name].joint_names:
            names = self.env.scene[asset.name].joint_names
            chosen = names if isinstance(asset.joint_ids, slice) else asset.joint_names or ()
            if len(chosen) == width:
                return tuple(chosen)
        if len(entities) == 1 and len(entities[0].joint_names) == width and width > 4:
            return tuple(entities[0].joint_names)
        if width == 1:
            return ("",)
        return AXES.get(width, tuple(map(str, range(width))))

    def _describe(self, cfg: Any) -> str:
        text = first_line(cfg.func) or cfg.func.__name__
        words = [f"{key} {value}" for key, value in cfg.params.items() if isinstance(value, str)]
        return f"{text} {', '.join(words)}" if words else text


def _where(rows: torch.Tensor, chosen: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The rows of one where they are True, (N, ...), and of the other elsewhere."""
    return torch.where(rows.reshape(-1, *[1] * (other.dim() - 1)), chosen, other)
