"""Isaac Lab's environments on MuJoCo Warp: tasks with managers and direct ones, without Isaac Sim.

A process can have one simulation of Isaac Lab, and a trainer has two kinds of environments: those
that it steps and those that it evaluates in. They share the simulation. The later ones are its
first rows, and whoever was reset last has it.

A direct task says how wide its observations and actions are, and not what they mean. The numbers of
its observation are identified by experiment, as everywhere (see child); those of its action by what
each of them makes of the forces and targets in the simulation.
"""

from __future__ import annotations

import inspect
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import gymnasium as gym
import isaaclab_tasks  # noqa: F401 - registers them
import mujoco
import numpy as np
import torch
import warp as wp
from isaaclab.app.sim_launcher import launch_simulation
from isaaclab.envs import DirectRLEnv, DirectRLEnvCfg, ManagerBasedRLEnv, ManagerBasedRLEnvCfg
from isaaclab.envs.mdp import JointEffortAction
from isaaclab.envs.utils.spaces import spec_to_gym_space
from isaaclab.managers import SceneEntityCfg
from isaaclab.sensors import CameraCfg
from isaaclab.utils.assets import NUCLEUS_ASSET_ROOT_DIR
from isaaclab_newton.physics import MJWarpSolverCfg, NewtonCfg
from isaaclab_newton.physics.newton_manager import NewtonManager
from isaaclab_tasks.utils import resolve_task_config

from p2p.config import ConfigurationError, EnvOptions
from p2p.training.engines.engine_env import (
    EngineEnv,
    EngineTerm,
    Groups,
    JointDrive,
    Reached,
    first_line,
    read_action_term,
    read_observation_terms,
    rsl_rl_settings,
)

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
    """Return what a task needs whose observations or actions are no vectors; empty: they are."""
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
    still = _record_command(env, field, np.zeros(actions))
    terms = [
        _action_term(model, i, still, _record_command(env, field, np.eye(actions)[i] * PROBED))
        for i in range(actions)
    ]
    return Layout((observed,), tuple(terms), ("as the task defines it",))


def _record_command(
    env: UnendingDirectEnv, field: Callable[[str], torch.Tensor], action: Any
) -> dict[str, Any]:
    """Return the forces and targets of the first row, one step after a seeded reset."""
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


UP_TO_DATE = frozenset({
    "qpos", "qvel", "ctrl", "qfrc_applied", "qacc", "xpos", "xquat", "xmat", "xipos", "ximat",
    "geom_xpos", "geom_xmat", "subtree_com", "cvel", "cinert", "actuator_force",
    "actuator_velocity", "actuator_length", "qfrc_actuator", "qfrc_constraint",
})  # fmt: skip
"""Fields that MuJoCo Warp has after a step; of the others (cfrc_ext) it has zeros."""
GROUP = "policy"
"""What Isaac Lab calls the observations of the policy."""
AXES = ("x", "y", "z")
WRENCH = ("fx", "fy", "fz", "tx", "ty", "tz")
MODEL_FILE = "scene.xml"
AGENT = "rsl_rl_cfg_entry_point"
LOOKS = (".mdl", ".hdr")
"""Files that physics does without."""
ROOT_JOINT = "root"
REFERENCES = {"body1": "body", "body2": "body", "joint": "joint", "joint1": "joint",
              "joint2": "joint", "geom1": "geom", "geom2": "geom"}  # fmt: skip
"""Attributes of a model's file that name another part, and its kind."""


class UnendingEnv(ManagerBasedRLEnv):  # type: ignore[misc]
    """Leaves rows that end in their last state, until they are reset."""

    _stepping = False

    def step(self, action: torch.Tensor) -> Any:
        self._stepping = True
        try:
            return super().step(action)
        finally:
            self._stepping = False

    def _reset_idx(self, env_ids: Any) -> None:
        if not self._stepping:
            super()._reset_idx(env_ids)

    def start(self, rows: torch.Tensor | None, seed: int | None) -> dict[str, Any]:
        """The observations of all rows, once these have begun anew."""
        observations: dict[str, Any] = self.reset(env_ids=rows, seed=seed)[0]
        return observations


class Simulation:
    """The one simulation of this process."""

    live: Simulation | None = None

    def __init__(self, options: EnvOptions, num_envs: int) -> None:
        env_id = options.env_id
        self.env_id, self.num_envs, self.device = env_id, num_envs, options.device
        self.user: IsaacLabEnv | None = None
        self.users = 0
        with ExitStack() as opened:
            folder = Path(tempfile.mkdtemp())  # stays: the sandbox removes no folders
            self.cfg = cfg = configuration(env_id)
            cfg.scene.num_envs, cfg.seed, cfg.sim.device = num_envs, options.seed, options.device
            if getattr(getattr(cfg.scene, "terrain", None), "terrain_type", "plane") == "plane":
                cfg.scene.env_spacing = 0.0  # worlds are apart anyway: all start at the origin
            cfg.sim.physics.solver_cfg.save_to_mjcf = str(folder / MODEL_FILE)
            launcher = {"device": options.device, "visualizer": "none"}
            opened.enter_context(launch_simulation(cfg, launcher))
            self.is_direct = isinstance(cfg, DirectRLEnvCfg)
            self.env = (unending_direct(env_id) if self.is_direct else UnendingEnv)(cfg=cfg)
            opened.callback(self.env.close)
            self.env.reset()  # joint limits are zero before, and would clip what is drawn
            robots = self.env.scene.articulations.values()
            self.model_text = with_short_names(
                (folder / MODEL_FILE).read_text("utf-8"),
                {name for robot in robots for name in robot.body_names},
                {name for robot in robots for name in robot.joint_names},
            )
            self._opened = opened.pop_all()
        self.registered_steps = int(self.env.max_episode_length)
        self._noise = self._noise_settings()
        self._use_noise(on=False)
        self.direct_layout = self._direct_layout() if self.is_direct else None
        Simulation.live = self

    def _noise_settings(self) -> list[tuple[Any, str, Any]]:
        """Each place where the task has noise, with what it is there."""
        if self.is_direct:
            names = ("observation_noise_model", "action_noise_model")
            return [(self.cfg, name, getattr(self.cfg, name)) for name in names]
        terms = (term for terms in self.observation_terms().values() for term in terms)
        return [(term, "noise", term.noise) for term in terms]

    def _use_noise(self, *, on: bool) -> None:
        for place, name, noise in self._noise:
            setattr(place, name, noise if on else None)

    def _direct_layout(self) -> Layout:
        model = mujoco.MjModel.from_xml_string(self.model_text)
        return read_direct_layout(self.env, model, self.field)

    def observation_terms(self) -> dict[str, list[Any]]:
        """Return the configurations of the observation terms by group."""
        terms: dict[str, list[Any]] = self.env.observation_manager._group_obs_term_cfgs  # noqa: SLF001
        return terms

    def hand_to(self, user: IsaacLabEnv) -> None:
        """From now on it runs as this user's options say."""
        self.user = user
        self.cfg.episode_length_s = user.max_episode_steps * user.dt
        self._use_noise(on=user.noise)

    def field(self, name: str) -> torch.Tensor:
        data = NewtonManager._solver.mjw_data  # noqa: SLF001
        values: torch.Tensor = wp.to_torch(getattr(data, name))
        return values

    def close(self) -> None:
        Simulation.live = None
        self._opened.close()


def make(options: EnvOptions, num_envs: int) -> EngineEnv:
    simulation = Simulation.live or Simulation(options, num_envs)
    if options.env_id != simulation.env_id:
        raise ConfigurationError(f"Isaac Lab runs {simulation.env_id} in this process already")
    if num_envs > simulation.num_envs:
        raise ConfigurationError(
            f"Isaac Lab has one simulation in a process, of {simulation.num_envs} environments: "
            f"num_eval_envs={num_envs} must not be more than num_envs"
        )
    return IsaacLabEnv(simulation, num_envs, options)


class IsaacLabEnv(EngineEnv):
    """A task of Isaac Lab; its own reward is kept beside ours, for comparison."""

    shares_simulation = True
    quaternion_order = "xyzw"
    # Efforts do not pass through MuJoCo's actuators here, which have the damping alone.
    state_fields = ("qpos", "qvel", "ctrl", "qfrc_applied")

    def __init__(self, simulation: Simulation, num_envs: int, options: EnvOptions) -> None:
        self.simulation, self.env, cfg = simulation, simulation.env, simulation.cfg
        self.env_id, self.num_envs, self.device = simulation.env_id, num_envs, simulation.device
        self.dt, self.frame_skip = float(self.env.step_dt), int(cfg.decimation)
        self.max_episode_steps = options.max_episode_steps or simulation.registered_steps
        self.noise = options.training
        self.model = mujoco.MjModel.from_xml_string(simulation.model_text)
        self.model.opt.timestep = self.env.physics_dt
        self._driven = self.model.jnt_dofadr[self.model.actuator_trnid[:, 0]].tolist()
        self.start_qpos = self._start_pose()
        layout = simulation.direct_layout or self._managed_layout()
        self.observation_terms, self.action_terms = layout.observation_terms, layout.action_terms
        early = layout.terminations
        self.terminations = () if options.terminate_when_unhealthy is False else early
        simulation.users += 1
        super().__init__(options)

    def begin(self, rows: torch.Tensor | None, seed: int | None) -> Groups:
        if rows is None:
            self.simulation.hand_to(self)
        self._check_turn()
        return self._groups_of(self.env.start(rows, seed))

    def advance(self, action: torch.Tensor) -> Reached:
        self._check_turn()
        idle = self.simulation.num_envs - self.num_envs
        if idle:
            action = torch.cat([action, action.new_zeros(idle, action.shape[1])])
        groups, reward, terminated, truncated, _ = self.env.step(action)
        first = slice(self.num_envs)
        ends = terminated[first] if self.terminations else torch.zeros_like(terminated[first])
        # Managers multiply by the time step, while the terms of a task mean a rate.
        own = reward[first].clone() if self.simulation.is_direct else reward[first] / self.dt
        return Reached(self._groups_of(groups), own, ends.clone(), truncated[first].clone())

    def field(self, name: str) -> torch.Tensor | None:
        if name not in UP_TO_DATE:
            return None
        values = self.simulation.field(name)[: self.num_envs]
        if name == "actuator_force":
            values = values + self.simulation.field("qfrc_applied")[: self.num_envs, self._driven]
        return values

    def report_state(self) -> dict[str, torch.Tensor]:
        if self.simulation.is_direct:
            return {}
        manager = self.env.command_manager
        return {
            f"command_{name}": manager.get_command(name)[: self.num_envs]
            for name in manager.active_terms
        }

    def joint_drives(self) -> list[JointDrive]:
        drives = []
        for robot in self.env.scene.articulations.values():
            explicit = {
                name: (float(group.stiffness[0, i]), float(group.damping[0, i]))
                for group in robot.actuators.values()
                if not group.is_implicit_model and hasattr(group, "stiffness")
                for i, name in enumerate(group.joint_names)
            }
            data = robot.data
            columns = (data.default_joint_pos, data.joint_stiffness, data.joint_damping)
            rows = zip(robot.joint_names, *(c.torch[0].tolist() for c in columns), strict=True)
            for name, position, *solver in rows:
                drives.append(JointDrive(name, position, *explicit.get(name, solver)))
        return drives

    def write_model(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MODEL_FILE).write_text(self.simulation.model_text, "utf-8")

    def close(self) -> None:
        self.simulation.users -= 1
        if not self.simulation.users:
            self.simulation.close()

    def _check_turn(self) -> None:
        if self.simulation.user is not self:
            raise RuntimeError("other environments have the simulation: reset these first")

    def _groups_of(self, groups: dict[str, Any]) -> Groups:
        actor = groups[GROUP][: self.num_envs]
        critic = groups["critic"][: self.num_envs] if "critic" in groups else actor
        return {"actor": actor, "critic": critic}

    def _start_pose(self) -> Any:
        """Isaac Lab's default pose, in MuJoCo's order."""
        model = self.model
        qpos = np.array(model.qpos0)
        free = [j for j in range(model.njnt) if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_FREE]
        for robot in self.env.scene.articulations.values():
            positions = robot.data.default_joint_pos.torch[0].tolist()
            for name, position in zip(robot.joint_names, positions, strict=True):
                qpos[model.joint(name).qposadr[0]] = position
            if len(free) == 1:
                x, y, z, qx, qy, qz, qw = robot.data.default_root_pose.torch[0].tolist()
                qpos[model.jnt_qposadr[free[0]] :][:7] = (x, y, z, qw, qx, qy, qz)
        return qpos

    def _managed_layout(self) -> Layout:
        manager = self.env.termination_manager
        early = (name for name in manager.active_terms if not manager.get_term_cfg(name).time_out)
        observed = read_observation_terms(
            self.env_id, self.env.observation_manager, GROUP,
            self.simulation.observation_terms().get(GROUP, []), self._parts, self._describe,
        )  # fmt: skip
        names = self.env.action_manager.active_terms
        terms = {name: self.env.action_manager.get_term(name) for name in names}
        actions = (
            read_action_term(
                name, term, joints="_joint_names", scale="_scale", offset="_offset",
                is_effort=isinstance(term, JointEffortAction),
            )
            for name, term in terms.items()
        )  # fmt: skip
        return Layout(observed, tuple(actions), tuple(early))

    def _parts(self, params: dict[str, Any], width: int) -> tuple[str, ...]:
        """The joints or bodies that a term has numbers for, axes, or plain numbers."""
        chosen = next((v for v in params.values() if isinstance(v, SceneEntityCfg)), None)
        if width == 1:
            return ("",)
        if chosen is not None and chosen.body_names and not width % len(chosen.body_names):
            bodies, each = list(chosen.body_names), width // len(chosen.body_names)
            # Bodies come in the robot's order, forces and torques of each beside each other.
            axes = WRENCH if each == len(WRENCH) else tuple(map(str, range(each)))
            return tuple(f"{body}_{axis}" for body in bodies for axis in axes)
        robot = self.env.scene[chosen.name] if chosen is not None else None
        robots = [robot] if robot is not None else self.env.scene.articulations.values()
        for robot in robots:
            if len(getattr(robot, "joint_names", ())) == width:
                return tuple(robot.joint_names)
        return AXES if width == len(AXES) else tuple(map(str, range(width)))

    def _describe(self, cfg: Any) -> str:
        if cfg.history_length:
            raise ConfigurationError(f"{self.env_id}: an observation has a history, not one state")
        scale = "" if cfg.scale is None else f"; times {torch.as_tensor(cfg.scale).tolist()}"
        return f"{first_line(cfg.func)}{scale}"


def with_short_names(text: str, bodies: Iterable[str], joints: Iterable[str]) -> str:
    """A model whose parts are called as Isaac Lab calls them, not by their paths in the scene.

    Where that would give two parts one name, they keep their own.
    """
    root = ET.fromstring(text)  # noqa: S314 - the engine wrote it just now
    known = {"body": set(bodies), "joint": set(joints), "geom": set[str]()}
    short: dict[tuple[str, str], str] = {}
    for kind, names in known.items():
        parts = [part.get("name", "") for part in root.iter(kind)]
        if kind == "joint":
            parts += [part.get("name", "") for part in root.iter("freejoint")]
        candidates = {part: _shorten_name(part, names) for part in parts if part}
        taken = list(candidates.values())
        short |= {(kind, p): c for p, c in candidates.items() if taken.count(c) == 1}
    for part in root.iter():
        kind = "joint" if part.tag == "freejoint" else part.tag
        for attribute, value in part.attrib.items():
            key = (kind if attribute == "name" else REFERENCES.get(attribute, ""), value)
            part.set(attribute, short.get(key, value))
    return ET.tostring(root, encoding="unicode")


def _shorten_name(path: str, names: set[str]) -> str:
    """Return the longest of these names that ends a path, else the path's last part."""
    # One axis of a joint with several is NAME:0 there, and NAME_ang0 in the model.
    parts = {name: name.replace(":", "_ang") for name in names}
    ends = [name for name, part in parts.items() if path == part or path.endswith(f"_{part}")]
    if ends:
        return max(ends, key=len)
    if path.endswith("_free_joint"):
        return ROOT_JOINT
    last = path.rpartition("/")[2]
    stem, _, number = last.rpartition("_")
    return stem if stem and number.isdigit() else last


# --- what there is --------------------------------------------------------------------------------


def configuration(env_id: str) -> ManagerBasedRLEnvCfg | DirectRLEnvCfg:
    """The engine's own, if it can run here; ConfigurationError otherwise."""
    if env_id not in gym.registry:
        raise ConfigurationError(f"Isaac Lab has no {env_id!r}: see p2p envs --engine isaaclab")
    cfg, _ = resolve_task_config(env_id, "", overrides=[])
    if needs := missing(cfg) or downloads(cfg):
        raise ConfigurationError(f"{env_id} needs {needs}")
    return cfg


def missing(cfg: Any) -> str:
    """Return what a task needs that there never is here; empty: nothing."""
    if not isinstance(cfg, ManagerBasedRLEnvCfg | DirectRLEnvCfg):
        return "a trainer for several agents in one environment"
    physics = getattr(cfg.sim, "physics", None)
    if not isinstance(physics, NewtonCfg) or not isinstance(physics.solver_cfg, MJWarpSolverCfg):
        return "PhysX, which comes with Isaac Sim"
    if any(isinstance(part, CameraCfg) for part in vars(cfg.scene).values()):
        return IMAGES
    return shape_problem(cfg) if isinstance(cfg, DirectRLEnvCfg) else ""


def downloads(cfg: Any) -> str:
    """The files that a task needs and that are not here yet; empty: none."""
    files = {path for path in asset_paths(cfg, set()) if not Path(path).exists()}
    names = sorted(
        path.removeprefix(f"{NUCLEUS_ASSET_ROOT_DIR}/")
        for path in files
        if not path.endswith(LOOKS) and "/UIElements/" not in path
    )
    return f"a download of {', '.join(names)}" if names else ""


def asset_paths(node: Any, seen: set[int]) -> Iterator[str]:
    """Return every file that a configuration names."""
    if id(node) in seen or inspect.isroutine(node) or isinstance(node, type):
        return
    seen.add(id(node))
    if isinstance(node, dict):
        parts = list(node.items())
    elif isinstance(node, list | tuple):
        parts = list(enumerate(node))
    else:
        parts = list(getattr(node, "__dict__", {}).items())
    for name, value in parts:
        if not isinstance(value, str):
            yield from asset_paths(value, seen)
        elif str(name).endswith("usd_path") or value.startswith(NUCLEUS_ASSET_ROOT_DIR):
            yield value


def environments() -> list[dict[str, Any]]:
    entries = []
    for env_id, spec in sorted(gym.registry.items()):
        if "env_cfg_entry_point" not in spec.kwargs:
            continue
        cfg, _ = resolve_task_config(env_id, "", overrides=[])
        dt, lacking = cfg.sim.dt * cfg.decimation, missing(cfg)
        entry = {
            "env_id": env_id,
            "dt": dt,
            "max_episode_steps": math.ceil(cfg.episode_length_s / dt),
            "needs": lacking or downloads(cfg),
            "supported": not lacking,
        }
        if AGENT in spec.kwargs and not lacking:
            entry["preset"] = preset(env_id)
        entries.append(entry)
    return entries


def preset(env_id: str) -> dict[str, Any]:
    if AGENT not in gym.registry[env_id].kwargs:
        return {}
    _, rl = resolve_task_config(env_id, AGENT, overrides=[])
    return rsl_rl_settings(rl, rl.actor.distribution_cfg.init_std)
