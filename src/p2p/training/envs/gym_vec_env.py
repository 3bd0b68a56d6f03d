"""Any Gymnasium environment with vectors in and out, N instances in a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeAwareObservation, TimeLimit

from p2p.training.envs.batched_env import (
    DATA_FIELDS,
    F64,
    FULL_STATE,
    Array,
    Bools,
    ReachedStates,
    Seeds,
    StepBatch,
    generator_from_array,
    generator_to_array,
    seeds_of_rows,
)
from p2p.training.envs.registry import make_single
from p2p.training.specs.quantities import Meter, Robot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import gymnasium as gym

    from p2p.config import EnvOptions


class GymVecEnv:
    """A BatchedEnv over ``gym.make(env_id)``, for environments that have no batched form.

    Raises ValueError where observations or actions are not vectors, or a setting does not apply.
    """

    def __init__(self, options: EnvOptions, num_envs: int) -> None:
        self.env_id, self.num_envs = options.env_id, num_envs
        self.envs = [make_single(options)]
        try:
            self.single_observation_space = _vector_space(self.envs[0], "observation")
            self.single_action_space = _vector_space(self.envs[0], "action")
            for _ in range(1, num_envs):
                self.envs.append(make_single(options))
        except BaseException:
            self.close()
            raise
        self.max_episode_steps = int(self.envs[0].spec.max_episode_steps)  # type: ignore[union-attr, arg-type]
        self._bases: list[Any] = [env.unwrapped for env in self.envs]
        self.dt = _seconds_per_step(self._bases[0])
        self._obs: F64 = np.zeros((num_envs, *self.single_observation_space.shape))
        self.after_row: Callable[[], None] = lambda: None
        """Called whenever a row was stepped or reset: some take long."""
        self._reached: ReachedStates | None = None
        self._meter: Meter | None = None
        if isinstance(getattr(self._bases[0], "data", None), mujoco.MjData):
            self._meter = Meter(Robot.of(self.envs[0]), options.quantities)
            self._reached = ReachedStates(self._bases[0].model, [base.data for base in self._bases])

    def reset_batch(self, seed: Seeds = None) -> F64:
        for i, own_seed in enumerate(seeds_of_rows(seed, self.num_envs)):
            self._obs[i] = self.envs[i].reset(seed=own_seed)[0]
            self.after_row()
        self._show(range(self.num_envs))
        return self._obs.copy()

    def restart(self, rows: Bools) -> F64:
        ids = np.flatnonzero(rows).tolist()
        for i in ids:
            self._obs[i] = self.envs[i].reset()[0]
        self._show(ids)
        return self._obs.copy()

    def step_batch(self, action: Array) -> StepBatch:
        """Step every row with its action, (N, A), unclipped; auto-reset the rows that ended.

        A key that only some rows report is NaN in the others (None where it is no number).
        """
        self._show(range(self.num_envs))
        steps = []
        for row, own_action in enumerate(action):
            steps.append(self.step_row(row, own_action))
            self.after_row()
        next_obs = np.array([step[0] for step in steps], dtype=np.float64)
        reward = np.array([step[1] for step in steps], dtype=np.float64)
        terminated = np.array([step[2] for step in steps], dtype=np.bool_)
        truncated = np.array([step[3] for step in steps], dtype=np.bool_)
        info: Mapping[str, Array] = stack_infos([step[4] for step in steps])
        self._obs = next_obs.copy()
        ended = np.flatnonzero(terminated | truncated).tolist()
        if self._reached is not None and self._meter is not None:
            info = self._meter.info(dict(info), self._reached.field)
            self._reached.end_rows(ended)
        self.begin_again(ended)
        return StepBatch(next_obs, self._obs.copy(), reward, terminated, truncated, info)

    def step_row(self, row: int, action: Array) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self.envs[row].step(action)

    def begin_again(self, ended: Sequence[int]) -> None:
        """The episodes of these rows are over."""
        for i in ended:
            self._obs[i] = self.envs[i].reset()[0]

    def side_info(self) -> dict[str, Any]:
        return self._mujoco().side_info()

    def row_side_info(self, i: int) -> dict[str, Any]:
        return self._mujoco().row_side_info(i)

    def trajectory_fields(self) -> dict[str, Array]:
        """Return the fields of a trajectory; empty if this is not MuJoCo."""
        return {} if self._reached is None else self._reached.trajectory_fields()

    def state_dict(self) -> dict[str, Array]:
        """Physics, generators and time limits; not what an environment keeps in its attributes.

        Raises NotImplementedError where this is not a MuJoCo environment.
        """
        self._check_mujoco()
        return {"obs": self._obs.copy(), **save_rows(self.envs)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._check_mujoco()
        load_rows(self.envs, state)
        self._obs = np.array(state["obs"])
        self._show(range(self.num_envs))

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _show(self, ids: Sequence[int]) -> None:
        if self._reached is not None:
            self._reached.begin_rows(ids)

    def _mujoco(self) -> ReachedStates:
        if self._reached is None:
            raise ValueError(f"{self.env_id} is not a MuJoCo environment: no side information")
        return self._reached

    def _check_mujoco(self) -> None:
        if self._reached is None:
            raise NotImplementedError(
                f"{self.env_id} is not a MuJoCo environment: its state cannot be saved, so a run "
                "on it cannot be resumed"
            )


def stack_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """One (N, ...) array per key that any row has: NaN where missing, None if not numbers."""
    keys = dict.fromkeys(key for info in infos for key in info)
    return {key: _stack([info.get(key) for info in infos]) for key in keys}


def _stack(values: list[Any]) -> Array:
    arrays = [np.asarray(value) for value in values if value is not None]
    same_shape = len({array.shape for array in arrays}) == 1
    if not same_shape or any(array.dtype.kind not in "biuf" for array in arrays):
        objects = np.full(len(values), None, dtype=object)
        for i, value in enumerate(values):
            objects[i] = value
        return objects
    if len(arrays) == len(values):
        return np.stack(arrays)
    missing = np.full(arrays[0].shape, np.nan)
    return np.stack([missing if value is None else np.asarray(value) for value in values])


def _vector_space(env: gym.Env[Any, Any], kind: str) -> Box:
    space = getattr(env, f"{kind}_space")
    if not isinstance(space, Box) or len(space.shape) != 1:
        name = env.spec.id if env.spec else str(env)
        raise ValueError(
            f"{name} has the {kind} space {space}; training needs a one-dimensional Box"
        )
    return space


def _seconds_per_step(base: Any) -> float:
    """The environment's dt; failing that its frame time, failing that one."""
    fps = base.metadata.get("render_fps")
    return float(getattr(base, "dt", 1.0 / fps if fps else 1.0))


def save_rows(envs: Sequence[Any]) -> dict[str, Array]:
    """Physics, generators and time limits of environments of one kind, (N, ...) each."""
    bases = [env.unwrapped for env in envs]
    model, rows = bases[0].model, [base.data for base in bases]
    states: F64 = np.zeros((len(envs), mujoco.mj_stateSize(model, FULL_STATE)))
    for data, state in zip(rows, states, strict=True):
        mujoco.mj_getState(model, data, state, FULL_STATE)
    return {
        "state": states,
        "elapsed": np.array([_time_limit(env)._elapsed_steps for env in envs]),  # noqa: SLF001
        "rng": np.stack([generator_to_array(base.np_random) for base in bases]),
        # Environments compare with fields of the step before, which a state does not determine.
        **{f"data.{name}": np.stack([getattr(d, name) for d in rows]) for name in _arrays(rows[0])},
    }


def load_rows(envs: Sequence[Any], saved: Mapping[str, Array]) -> None:
    """Bring environments to where save_rows() found others of their kind."""
    for i, env in enumerate(envs):
        base = env.unwrapped
        env.reset()
        mujoco.mj_resetData(base.model, base.data)
        for name in _arrays(base.data):
            getattr(base.data, name)[...] = saved[f"data.{name}"][i]
        mujoco.mj_setState(base.model, base.data, saved["state"][i], FULL_STATE)
        base.np_random = generator_from_array(saved["rng"][i])
        _time_limit(env)._elapsed_steps = int(saved["elapsed"][i])  # noqa: SLF001
        if isinstance(env, TimeAwareObservation):
            env.timesteps = int(saved["elapsed"][i])


def _time_limit(env: Any) -> Any:
    while not isinstance(env, TimeLimit):
        env = env.env
    return env


def _arrays(data: mujoco.MjData) -> list[str]:
    return [name for name in sorted(DATA_FIELDS) if isinstance(getattr(data, name), np.ndarray)]
