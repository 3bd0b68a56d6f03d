"""What an engine's adapter gives, and what follows from it for every engine.

An adapter is a module `p2p.training.engines.<name>`, imported by the engine's own Python only. It
has the functions of `EngineAdapter`, and its environments derive from `EngineEnv`: tensors on the
engine's device inside, NumPy at the border, so that evaluation, trajectories and rewards are those
of every other simulator. Frames are the world's, quaternions are (w, x, y, z), as MuJoCo has them.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import mujoco
import numpy as np
import torch
from gymnasium.spaces import Box

from p2p.config import ConfigurationError, engine_of
from p2p.sandbox import gpu
from p2p.training.engines.table import get_engine
from p2p.training.envs.batched_env import F64, Array, BatchData, Bools, Seeds, StepBatch
from p2p.training.specs.quantities import Meter, Robot, measure
from p2p.training.trajectory import ENGINE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from p2p.config import EnvOptions

DATA = "mj_data"
Groups = dict[str, torch.Tensor]
"""Observations by group, (N, ...) each: `actor`, and `critic` where the engine has another."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a step led, before any episode is started anew."""

    groups: Groups
    reward: torch.Tensor
    """(N,): the engine's own."""
    terminated: torch.Tensor
    truncated: torch.Tensor


@dataclass(frozen=True, slots=True)
class EngineTerm:
    """One term of the observation or of the action, as the engine names it."""

    name: str
    parts: tuple[str, ...]
    """The name of each number of it: a joint, an axis, or its index."""
    description: str = ""
    unit: str = ""
    kind: str = ""
    """Of an action: the engine's class."""
    scale: tuple[float, ...] = ()
    """Of each number; empty: 1. Of an observation it is applied already."""
    offset: tuple[float, ...] = ()
    """Of each number of an action; empty: 0. Its target is action * scale + offset."""
    clip: tuple[tuple[float, float], ...] = ()
    """Of each number, an action's target after scale and offset; empty: none."""
    history_length: int = 0
    is_effort: bool = False
    """Of an action: it is the force or torque itself, whatever the model's actuators are."""

    @property
    def common_scale(self) -> float | None:
        """The scale of all its numbers; None where they differ, or none is told."""
        return self.scale[0] if len(set(self.scale)) == 1 else None


@dataclass(frozen=True, slots=True)
class JointDrive:
    """A joint as a robot's controller drives it."""

    name: str
    default_position: float
    stiffness: float = 0.0
    damping: float = 0.0


class EngineAdapter(Protocol):
    """The functions of an adapter's module."""

    def make(self, options: EnvOptions, num_envs: int) -> EngineEnv:
        """The environments; ConfigurationError for an id or a setting that there is not."""

    def environments(self) -> list[dict[str, Any]]:
        """Return every `EngineEnvironment`, read from the engine's configurations."""

    def preset(self, env_id: str) -> dict[str, Any]:
        """The engine's own training configuration as fields of TrainConfig."""


def get_adapter(name: str) -> EngineAdapter:
    """The engine's module; in the engine's own Python only."""
    replace_warp_rename()
    return cast("EngineAdapter", import_module(get_engine(name).adapter))


def make_engine_env(options: EnvOptions, num_envs: int) -> EngineEnv:
    """The environments, on the device that the options choose."""
    options = replace(options, device=choose_device(options.device))
    return get_adapter(engine_of(options.env_id)).make(options, num_envs)


def rsl_rl_settings(rl: Any, init_std: float) -> dict[str, Any]:
    """An engine's own configuration of rsl_rl as fields of TrainConfig."""
    algorithm, actor = rl.algorithm, rl.actor
    adaptive = algorithm.schedule == "adaptive"
    return {
        "num_steps": rl.num_steps_per_env,
        "num_minibatches": algorithm.num_mini_batches,
        "update_epochs": algorithm.num_learning_epochs,
        "learning_rate": algorithm.learning_rate,
        "gamma": algorithm.gamma,
        "gae_lambda": algorithm.lam,
        "clip_coef": algorithm.clip_param,
        "clip_vloss": algorithm.use_clipped_value_loss,
        "ent_coef": algorithm.entropy_coef,
        "vf_coef": algorithm.value_loss_coef,
        "max_grad_norm": algorithm.max_grad_norm,
        "target_kl": algorithm.desired_kl if adaptive else None,
        "net_arch": list(actor.hidden_dims),
        "activation": actor.activation,
        "log_std_init": math.log(init_std),
        "normalize_obs": actor.obs_normalization,
        # Theirs is scaled to their own reward; one that anybody writes has any size.
        "normalize_reward": True,
    }


def choose_device(device: str) -> str:
    """The device of TrainConfig's; `auto` is the GPU where there is one.

    Never the CPU because a GPU that is there cannot be used: ConfigurationError says why it cannot.
    """
    if device == "cpu" or (device == "auto" and not gpu.present()):
        return "cpu"
    chosen = "cuda:0" if device in {"auto", "cuda"} else device
    try:
        torch.zeros(1, device=chosen)
    except (RuntimeError, AssertionError) as error:  # torch's own, for whatever CUDA answered
        reason = str(error).strip().partition("\n")[0]
        raise ConfigurationError(
            f"{chosen} cannot be used here: {reason} (torch {torch.__version__}); "
            "`--set device=cpu` trains on the CPU"
        ) from error
    return chosen


def replace_warp_rename() -> None:
    """Copy compiled kernels into their place: in the sandbox no folder can be renamed.

    As with Warp's own renaming, a file that is there stays. It may be a link to a shared one, which
    this process can read only.
    """
    import warp
    from warp._src import build

    if not hasattr(build, "safe_rename"):  # Warp has no public name for it
        raise ConfigurationError(f"Warp {warp.__version__} is not supported")

    def copy(source: str, target: str, *_: object) -> None:
        Path(target).mkdir(parents=True, exist_ok=True)
        for file in Path(source).iterdir():  # and no file's mode can be set, as shutil does
            place = Path(target) / file.name
            if not place.exists():
                place.write_bytes(file.read_bytes())

    build.safe_rename = copy


class EngineEnv(ABC):
    """N environments of an engine: a BatchedEnv, and the same with tensors (`step_tensors`).

    A subclass sets the attributes below and implements the abstract methods. Its constructor ends
    with `super().__init__(options)`.
    """

    env_id: str
    num_envs: int
    dt: float
    """Seconds between two actions."""
    frame_skip: int
    max_episode_steps: int
    device: str
    model: mujoco.MjModel
    """Of one environment: the engine's solver is MuJoCo's."""
    start_qpos: Array
    """The pose in which episodes begin, but for noise."""
    observation_terms: tuple[EngineTerm, ...]
    """Of the group `actor`, in the order of its numbers."""
    action_terms: tuple[EngineTerm, ...]
    terminations: tuple[str, ...]
    """What ends an episode early, by the engine's names."""
    single_observation_space: Box
    single_action_space: Box
    shares_simulation: bool = False
    """Whether environments that are made later take the place of these, until these are reset."""
    quaternion_order: Literal["wxyz", "xyzw"] = "wxyz"
    """Of what the policy observes; fields and quantities are (w, x, y, z) on every engine."""
    state_fields: tuple[str, ...] = ("qpos", "qvel", "ctrl")
    """The fields of MjData that all others follow from."""

    @abstractmethod
    def begin(self, rows: torch.Tensor | None, seed: int | None) -> Groups:
        """Start these rows anew (None: all), with the engine's generators seeded where a seed is.

        Rows that are not started anew keep their states and their part of the answer is ignored.
        """

    @abstractmethod
    def advance(self, action: torch.Tensor) -> Reached:
        """Step every row without any auto-reset."""

    @abstractmethod
    def field(self, name: str) -> torch.Tensor | None:
        """A field of MjData, (N, ...), of the present states; those of `state_fields` always.

        None: the engine does not have it; it then follows from these, by MuJoCo itself.
        """

    @abstractmethod
    def write_model(self, folder: Path) -> None:
        """Write `scene.xml` and what it refers to, for whoever draws the model."""

    def joint_drives(self) -> list[JointDrive]:
        """The joints of the robots, in the engine's order."""
        return []

    def report_state(self) -> dict[str, torch.Tensor]:
        """Return what the engine reports of the new states for `info`: (N, ...) each."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Release the resources."""

    def __init__(self, options: EnvOptions) -> None:
        width = sum(len(term.parts) for term in self.observation_terms) + options.observe_time
        self.single_observation_space = Box(-np.inf, np.inf, (width,), np.float64)
        actions = sum(len(term.parts) for term in self.action_terms)
        self.single_action_space = Box(-np.inf, np.inf, (actions,), np.float32)
        self.robot = Robot(self.model, np.asarray(self.start_qpos, np.float64), self.dt)
        self._observe_time = options.observe_time
        self._meter = Meter(self.robot, options.quantities)
        self._elapsed = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)
        self._groups: Groups = {}
        self._fields: dict[str, Array] = {}
        self._reached_states: dict[str, torch.Tensor] = {}
        """`state_fields` of the states that `_fields` are of, once rows have been started anew."""
        self._scratch = mujoco.MjData(self.model)
        self._batch_data = BatchData(self.model, self.batch_field)
        self.read_fields: set[str] = set()
        """What of MjData stands in `tensor_info`, as `mj_data.NAME`."""

    # --- with tensors -------------------------------------------------------------------------

    def reset_tensors(self, seed: int | None = None) -> Groups:
        self._elapsed.zero_()
        if seed is not None and seed >= 2**31:  # engines take 31 bits
            seed = int(np.random.SeedSequence(seed).generate_state(1)[0] >> 1)
        self._groups = self._add_time(self.begin(None, seed))
        self._fields, self._reached_states = {}, {}
        return self._groups

    def step_tensors(self, action: torch.Tensor) -> Reached:
        """Step every row. `restart_tensors` must start those that ended anew."""
        reached = self.advance(action)
        self._elapsed += 1
        self._groups = self._add_time(reached.groups)
        self._fields, self._reached_states = {}, {}
        return replace(reached, groups=self._groups)

    def restart_tensors(self, rows: torch.Tensor) -> Groups:
        """Start these rows, (N,) of bool, anew; the observations of all."""
        ids = rows.nonzero().squeeze(-1)
        if not len(ids):
            return self._groups
        if not self._reached_states:
            # Of these all others can be computed. They stay on the device: few ask for them.
            self._reached_states = {name: self._state_field(name) for name in self.state_fields}
        self._elapsed[ids] = 0
        begun = self._add_time(self.begin(ids, None))
        self._groups = {
            name: torch.where(rows[:, None], begun[name], group)
            for name, group in self._groups.items()
        }
        return self._groups

    def step_and_restart(
        self, action: torch.Tensor
    ) -> tuple[Reached, dict[str, torch.Tensor], Groups]:
        """Step every row and start those that ended anew: where it led, its info, what is next.

        An engine that can do both at once overrides it; what is reached may then lack `critic`.
        """
        reached = self.step_tensors(action)
        info = {name: value.clone() for name, value in self.tensor_info().items()}
        return reached, info, self.restart_tensors(reached.terminated | reached.truncated)

    def _add_time(self, groups: Groups) -> Groups:
        # The engine may write to its own buffers again.
        groups = {name: group.clone() for name, group in groups.items()}
        if self._observe_time:
            share = (self._elapsed / self.max_episode_steps)[:, None]
            groups["actor"] = torch.cat([groups["actor"], share.to(groups["actor"].dtype)], dim=-1)
        return groups

    def tensor_info(self) -> dict[str, torch.Tensor]:
        """Return what `info` holds of the present states, where they lie; they may be live views.

        Raises LookupError where a quantity follows from a field that the engine does not have.
        """
        info = self.report_state() | measure(self.robot, self._meter.names, self.field_tensor)
        return info | {f"{DATA}.{name}": self.field_tensor(name) for name in self.read_fields}

    def field_tensor(self, name: str) -> torch.Tensor:
        """A field of MjData, (N, ...), where it lies; LookupError where the engine has none."""
        values = self.field(name)
        if values is None:
            raise LookupError(f"{name} is not the engine's; MuJoCo computes it row by row")
        return values.reshape(self.num_envs, *getattr(self._scratch, name).shape)

    # --- at the border ------------------------------------------------------------------------

    def reset_batch(self, seed: Seeds = None) -> F64:
        """Start every row anew; equal seeds give equal starts for equal numbers of rows."""
        assert seed is None or isinstance(seed, int), "an engine has one generator for all rows"
        return _numpy(self.reset_tensors(seed)["actor"])

    def step_batch(self, action: Array) -> StepBatch:
        reached = self.step_tensors(
            torch.as_tensor(np.asarray(action, np.float32), device=self.device)
        )
        next_obs = _numpy(reached.groups["actor"])
        info = self.batch_info()
        obs = self.restart_tensors(reached.terminated | reached.truncated)
        return StepBatch(
            next_obs,
            _numpy(obs["actor"]),
            _numpy(reached.reward),
            reached.terminated.cpu().numpy().astype(np.bool_),
            reached.truncated.cpu().numpy().astype(np.bool_),
            info,
        )

    def restart(self, rows: Bools) -> F64:
        groups = self.restart_tensors(torch.as_tensor(np.array(rows), device=self.device))
        return _numpy(groups["actor"])

    def batch_info(self) -> Mapping[str, Array]:
        """Return what `info` holds of the states just reached."""
        reported = {name: _numpy(value) for name, value in self.report_state().items()}
        return self._meter.info(reported, self.batch_field)

    def batch_field(self, name: str) -> Array:
        """A field of the states just reached, before any restart: (N, ...), as NumPy."""
        if name not in self._fields:
            kept = self._reached_states
            values = kept.get(name) if kept else self.field(name)
            if values is None:
                self._compute_fields(name)
            else:
                shape = getattr(self._scratch, name).shape
                self._fields[name] = _numpy(values).reshape(self.num_envs, *shape)
        return self._fields[name]

    def _state_field(self, name: str) -> torch.Tensor:
        values = self.field(name)
        assert values is not None, f"{self.env_id} has no {name}"
        return values.clone()

    def _compute_fields(self, name: str) -> None:
        """Let MuJoCo compute what the engine does not tell, row by row."""
        rows = [np.array(getattr(self._place(row), name)) for row in range(self.num_envs)]
        self._fields[name] = np.stack(rows)

    def _place(self, row: int) -> mujoco.MjData:
        data = self._scratch
        for name in self.state_fields:
            getattr(data, name)[:] = self.batch_field(name)[row]
        mujoco.mj_forward(self.model, data)
        mujoco.mj_rnePostConstraint(self.model, data)
        return data

    def side_info(self) -> dict[str, Any]:
        return {"mj_model": self.model, DATA: self._batch_data}

    def row_side_info(self, i: int) -> dict[str, Any]:
        return {"mj_model": self.model, DATA: self._place(i)}

    def trajectory_fields(self) -> dict[str, Array]:
        return {name: self.batch_field(name) for name in ENGINE_COLUMNS}

    def state_dict(self) -> dict[str, Array]:
        raise NotImplementedError(f"{self.env_id}: a GPU simulator's state is not saved")

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        raise NotImplementedError(f"{self.env_id}: a GPU simulator's state is not saved")


def read_observation_terms(
    env_id: str,
    manager: Any,
    group: str,
    configs: Sequence[Any],
    parts: Callable[[dict[str, Any], int], tuple[str, ...]],
    describe: Callable[[Any], str],
) -> tuple[EngineTerm, ...]:
    """The terms of a group of Isaac Lab's observation manager, which mjlab has, too.

    `parts` names the numbers of a term by its parameters and its width.
    """
    if group not in manager.active_terms or not manager.group_obs_concatenate[group]:
        raise ConfigurationError(f"{env_id} has no vector of observations")
    names, terms = manager.active_terms[group], []
    for name, shape, cfg in zip(names, manager.group_obs_term_dim[group], configs, strict=True):
        if len(shape) != 1:
            raise ConfigurationError(f"{env_id}: {name} is an image, not a vector")
        terms.append(
            EngineTerm(
                name,
                parts(cfg.params, shape[0]),
                describe(cfg),
                scale=per_number(cfg.scale, shape[0]),
                clip=bounds_per_number(cfg.clip, shape[0]),
                history_length=cfg.history_length,
            )
        )
    return tuple(terms)


def read_action_term(
    name: str, term: Any, *, joints: str, scale: str, offset: str, is_effort: bool = False
) -> EngineTerm:
    """A term of an action manager; `joints`, `scale` and `offset` are its attributes for these."""
    parts = tuple(getattr(term, joints, ())) or tuple(map(str, range(term.action_dim)))
    return EngineTerm(
        name,
        parts,
        first_line(type(term)),
        kind=type(term).__name__,
        scale=per_number(getattr(term, scale, None), len(parts)),
        offset=per_number(getattr(term, offset, None), len(parts)),
        clip=bounds_per_number(getattr(term, "_clip", None), len(parts)),
        is_effort=is_effort,
    )


def first_line(thing: object) -> str:
    """The first line of a docstring; empty where there is none."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def per_number(value: Any, width: int) -> tuple[float, ...]:
    """A setting that an engine has once or for each number, (width,) or (N, width), as the latter.

    None, which says that there is none, gives an empty tuple.
    """
    if value is None:
        return ()
    values = torch.as_tensor(value, dtype=torch.float64).reshape(-1)[:width].tolist()
    return tuple(values * width if len(values) == 1 else values)


def bounds_per_number(value: Any, width: int) -> tuple[tuple[float, float], ...]:
    """Bounds that an engine has once, (2,), or for each number, (width, 2) or (N, width, 2)."""
    if value is None:
        return ()
    pairs = torch.as_tensor(value, dtype=torch.float64).reshape(-1, 2)[:width].tolist()
    return tuple((low, high) for low, high in (pairs * width if len(pairs) == 1 else pairs))


def _numpy(tensor: torch.Tensor) -> F64:
    """A copy of its own, as float64."""
    return tensor.detach().cpu().numpy().astype(np.float64)
