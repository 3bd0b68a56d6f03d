"""Many environments stepped together: Gymnasium's MuJoCo ones on ``mujoco.batch``, and any other.

The batch has two engines with the same attributes and methods. ``BatchEngine`` is
``mujoco.batch``: C++ threads, and the faster where bound fields suffice. ``RowEngine`` keeps a real
MjData per row, exactly as Gymnasium does. It serves what a batch does not give:
mj_rnePostConstraint after every step, without which cfrc_ext is missing, and an MjData to show
without copying it. The states of both are equal bit for bit.

The arrays of an engine are live and keep their place in memory: `motion` (N, nq + nv) and `fields`,
the MjData fields that were asked for, (N, ...) each, are to read; `ctrl` (N, nu) is to write before
step().
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import mujoco
import numpy as np
from gymnasium.utils.seeding import np_random
from mujoco.batch import Batch

from p2p.training.envs.batched_env import (
    F64,
    FULL_STATE,
    Array,
    BatchedEnv,
    Bools,
    EpisodeStarts,
    ReachedStates,
    Seeds,
    StepBatch,
    generator_from_array,
    generator_to_array,
    seeds_of_rows,
)
from p2p.training.envs.gym_vec_env import GymVecEnv
from p2p.training.envs.mujoco_kernels import find_kernel
from p2p.training.envs.registry import UnknownEnvironmentError, find_spec, make_single
from p2p.training.specs.quantities import Meter, Robot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium.spaces import Box

    from p2p.config import EnvOptions

__all__ = [
    "BatchedEnv",
    "GymVecEnv",
    "MujocoVecEnv",
    "StepBatch",
    "UnknownEnvironmentError",
    "is_fast",
    "make_batched_env",
    "why_slow",
]


def is_fast(env_id: str) -> bool:
    """Return whether MujocoVecEnv has it; UnknownEnvironmentError if it is not registered."""
    return why_slow(env_id) == ""


def why_slow(env_id: str) -> str:
    """Return why an environment is stepped in Python; empty: it is not."""
    kernel = find_kernel(find_spec(env_id))
    return kernel if isinstance(kernel, str) else ""


def make_batched_env(
    options: EnvOptions, num_envs: int, *, backend: Literal["auto", "fast", "gym"] = "auto"
) -> BatchedEnv:
    """Make num_envs copies of an environment, with the fast backend if it can ("auto").

    GymVecEnv always takes one thread.

    Raises:
        UnknownEnvironmentError: It is not registered; the message names close matches.
        ValueError: It has no batched form (backend "fast"), its spaces are not vectors, or a
            setting does not apply.
    """
    if backend == "gym" or (backend == "auto" and not is_fast(options.env_id)):
        return GymVecEnv(options, num_envs)
    return MujocoVecEnv(options, num_envs)


class MujocoVecEnv:
    """A BatchedEnv that agrees bit for bit with ``gym.make`` in every row, at any thread count.

    Actions are not clipped: as in Gymnasium, MuJoCo itself clips what it applies where an
    actuator's ctrlrange is limited, while the control cost sees the action as given.
    Raises ValueError where the environment has no batched form, or a setting does not apply.
    """

    def __init__(self, options: EnvOptions, num_envs: int) -> None:
        env_id, num_threads = options.env_id, options.num_threads or len(os.sched_getaffinity(0))
        kernel = find_kernel(find_spec(env_id))
        if isinstance(kernel, str):
            reason = f"{env_id} has no batched form, for {kernel}; use GymVecEnv (backend 'gym')"
            raise ValueError(reason)  # noqa: TRY004 - of the environment, not of an argument
        if num_envs < 1 or num_threads < 1:
            raise ValueError(f"num_envs={num_envs} and num_threads={num_threads} must be positive")
        env: Any = make_single(options)
        base: Any = env.unwrapped
        self.env_id, self.num_envs = env_id, num_envs
        self.max_episode_steps = int(env.spec.max_episode_steps)
        self._observe_time = options.observe_time
        self.single_observation_space: Box = env.observation_space
        self.single_action_space: Box = base.action_space
        self.model: mujoco.MjModel = base.model
        self._frame_skip: int = base.frame_skip
        self._kernel = kernel(base)
        self._starts = EpisodeStarts(base)
        self._meter = Meter(Robot.of(env), options.quantities)
        self.dt = self._kernel.dt
        self._elapsed = np.zeros(num_envs, np.int64)
        self._rngs: list[np.random.Generator] = []
        self._obs = np.zeros((num_envs, *self.single_observation_space.shape))
        self._action_shape = (num_envs, self.model.nu)
        self._reached: ReachedStates | None = None
        read = dict.fromkeys((*self._kernel.derived, *self._meter.fields))
        fields = tuple(name for name in read if name not in ("qpos", "qvel"))
        self._engine: BatchEngine | RowEngine
        if options.side_info or "cfrc_ext" in fields:
            self._engine = RowEngine(self.model, num_envs, num_threads, fields)
            self._reached = ReachedStates(self.model, self._engine.data)
        else:
            self._engine = BatchEngine(self.model, num_envs, num_threads, fields)
        self._kernel.bind(self._engine.motion, self._engine.ctrl, self._engine.fields)

    def reset_batch(self, seed: Seeds = None) -> F64:
        if seed is not None or not self._rngs:
            self._rngs = [np_random(own)[0] for own in seeds_of_rows(seed, self.num_envs)]
        return self.restart(np.ones(self.num_envs, np.bool_))

    def restart(self, rows: Bools) -> F64:
        self._check_started()
        ids: list[int] = np.flatnonzero(rows).tolist()
        if ids:
            self._begin_episodes(ids)
            if self._reached is not None:
                self._reached.begin_rows(ids)
            self._obs = self._obs.copy()
            self._obs[ids] = self._observe()[ids]
            # The other rows' derived fields may be gone, after a load: keep what they had.
            before, begun = self._kernel.before, self._kernel.landmark()
            everywhere = len(ids) == self.num_envs
            self._kernel.before = begun if everywhere else before.copy()
            self._kernel.before[ids] = begun[ids]
        return self._obs.copy()

    def step_batch(self, action: Array) -> StepBatch:
        if action.shape != self._action_shape:
            raise ValueError(f"actions have shape {action.shape}, not {self._action_shape}")
        self._check_started()
        kernel, engine, reached = self._kernel, self._engine, self._reached
        if reached is not None:
            reached.begin_step()
        engine.ctrl[...] = kernel.control(action)
        engine.step(self._frame_skip)
        self._elapsed += 1
        obs = next_obs = self._observe()
        reward, terminated, info = kernel.transition(action)
        truncated = self._elapsed >= self.max_episode_steps
        if terminated is None:
            terminated = np.zeros(self.num_envs, np.bool_)
        ended = np.flatnonzero(terminated | truncated).tolist()
        measured = self._meter.info(info, lambda name: engine.fields[name].copy())
        if ended:
            if reached is not None:
                reached.end_rows(ended)
            self._begin_episodes(ended)
            obs, kernel.before = self._observe(), kernel.landmark()
        else:
            kernel.before = kernel.after
        self._obs = obs
        return StepBatch(next_obs, obs, reward, terminated, truncated, measured)

    def side_info(self) -> dict[str, Any]:
        return self._states().side_info()

    def row_side_info(self, i: int) -> dict[str, Any]:
        return self._states().row_side_info(i)

    def trajectory_fields(self) -> dict[str, Array]:
        """Return the fields of a trajectory; empty if no states are kept."""
        return {} if self._reached is None else self._reached.trajectory_fields()

    def state_dict(self) -> dict[str, Array]:
        self._check_started()
        return {
            "state": self._engine.states(),
            "elapsed": self._elapsed.copy(),
            "obs": self._obs.copy(),
            "before": self._kernel.before.copy(),
            "rng": np.stack([generator_to_array(rng) for rng in self._rngs]),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Continue from where state_dict() was taken, in an environment made alike."""
        expected = (self.num_envs, mujoco.mj_stateSize(self.model, FULL_STATE))
        if state["state"].shape != expected:
            raise ValueError(
                f"a state of shape {state['state'].shape} does not fit {self.env_id} with "
                f"{self.num_envs} rows: {expected}"
            )
        self._engine.load(state["state"])
        self._elapsed[:] = state["elapsed"]
        self._obs = np.array(state["obs"])
        self._kernel.before = np.array(state["before"]).reshape(self.num_envs, -1)
        self._rngs = [generator_from_array(words) for words in state["rng"]]
        if self._reached is not None:
            self._reached.begin_rows(range(self.num_envs))

    def close(self) -> None:
        self._engine.close()

    def _check_started(self) -> None:
        if not self._rngs:
            raise RuntimeError("reset the environment before stepping it")

    def _states(self) -> ReachedStates:
        if self._reached is None:
            raise RuntimeError(f"make {self.env_id} with side_info=True to see its states")
        return self._reached

    def _observe(self) -> F64:
        obs = self._kernel.observe()
        if not self._observe_time:
            return obs
        # Rounded as in Gymnasium's TimeAwareObservation.
        passed = (self._elapsed / self.max_episode_steps).astype(np.float32)
        return np.column_stack((obs, passed))

    def _begin_episodes(self, ids: list[int]) -> None:
        drawn = [self._starts.draw(self._rngs[i]) for i in ids]
        self._engine.begin(ids, [qpos for qpos, _ in drawn], [qvel for _, qvel in drawn])
        self._elapsed[ids] = 0
        self._kernel.begin(ids)


class BatchEngine:
    """``mujoco.batch.Batch``; MjData are the batch's own."""

    def __init__(
        self, model: mujoco.MjModel, num_rows: int, num_threads: int, fields: Sequence[str]
    ) -> None:
        self.model, self.num_rows = model, num_rows
        self._batch = batch = Batch(model, num_rows, num_threads)
        # Rows are (time, qpos, qvel, ...), so one slice holds all of the motion.
        self.motion: F64 = batch.state[:, 1 : 1 + model.nq + model.nv]
        self.ctrl: F64 = batch.bind("ctrl")
        self.fields: dict[str, Array] = {name: batch.bind(name) for name in fields}
        self._default: F64 = np.zeros(batch.nstate)
        mujoco.mj_getState(model, mujoco.MjData(model), self._default, FULL_STATE)

    def step(self, substeps: int) -> None:
        """Advance every row; as with mj_step, fields stay one substep behind the motion."""
        self._batch.step(nstep=substeps)

    def begin(self, ids: Sequence[int], qpos: Sequence[F64], qvel: Sequence[F64]) -> None:
        """Reset these rows, give them a state, and compute what follows from it."""
        nq, states, motion = self.model.nq, self._batch.state, self.motion
        for i, position, velocity in zip(ids, qpos, qvel, strict=True):
            # Rows hold all there is, so this is a reset, for less than Batch.reset() costs.
            states[i] = self._default
            motion[i, :nq], motion[i, nq:] = position, velocity
        self._batch.forward(np.array(ids, dtype=np.int32))

    def states(self) -> F64:
        """The full physics state of every row, as a new array."""
        states: F64 = self._batch.state.copy()
        return states

    def load(self, states: Array) -> None:
        """Take over full physics states; fields are unspecified until the next step."""
        self._batch.state[:] = states

    def close(self) -> None:
        """Do nothing: the batch's threads end with it."""


class RowEngine:
    """A real MjData per row, stepped in Python threads; physics runs without the lock."""

    def __init__(
        self, model: mujoco.MjModel, num_rows: int, num_threads: int, fields: Sequence[str]
    ) -> None:
        self.model, self.num_rows, self.num_threads = model, num_rows, num_threads
        self.data = [mujoco.MjData(model) for _ in range(num_rows)]
        self.ctrl: F64 = np.zeros((num_rows, model.nu))
        self._pool = ThreadPoolExecutor(num_threads - 1) if num_threads > 1 else None
        # All that is read of a row is gathered into one block, while it is still in the cache.
        names = ("qpos", "qvel", *fields)
        self._parts = [[getattr(data, name).reshape(-1) for name in names] for data in self.data]
        block: F64 = np.zeros((num_rows, sum(part.size for part in self._parts[0])))
        self._block_rows = list(block)
        self.motion: F64 = block[:, : model.nq + model.nv]
        self.fields: dict[str, Array] = {}
        start = model.nq + model.nv
        for name in fields:
            shape = getattr(self.data[0], name).shape
            columns = block[:, start : start + int(np.prod(shape))]
            self.fields[name] = columns.reshape(num_rows, *shape)
            start += columns.shape[1]

    def step(self, substeps: int) -> None:
        """Advance every row, then compute forces, as Gymnasium does."""
        if self._pool is None:
            self._step(range(self.num_rows), substeps)
            return
        rows, threads = range(self.num_rows), self.num_threads
        jobs = [
            self._pool.submit(self._step, rows[k::threads], substeps) for k in range(1, threads)
        ]
        self._step(rows[::threads], substeps)
        for job in jobs:
            job.result()

    def _step(self, ids: Sequence[int], substeps: int) -> None:
        model, step, rne = self.model, mujoco.mj_step, mujoco.mj_rnePostConstraint
        for i in ids:
            data = self.data[i]
            data.ctrl[:] = self.ctrl[i]
            step(model, data, substeps)
            rne(model, data)
            self._gather(i)

    def begin(self, ids: Sequence[int], qpos: Sequence[F64], qvel: Sequence[F64]) -> None:
        for i, position, velocity in zip(ids, qpos, qvel, strict=True):
            data = self.data[i]
            mujoco.mj_resetData(self.model, data)
            data.qpos[:] = position
            data.qvel[:] = velocity
            mujoco.mj_forward(self.model, data)
            self._gather(i)

    def states(self) -> F64:
        states: F64 = np.zeros((self.num_rows, mujoco.mj_stateSize(self.model, FULL_STATE)))
        for data, state in zip(self.data, states, strict=True):
            mujoco.mj_getState(self.model, data, state, FULL_STATE)
        return states

    def load(self, states: Array) -> None:
        """Take over full physics states; fields are those that mj_forward computes."""
        for i, (data, state) in enumerate(zip(self.data, states, strict=True)):
            mujoco.mj_resetData(self.model, data)
            mujoco.mj_setState(self.model, data, state, FULL_STATE)
            mujoco.mj_forward(self.model, data)
            # mj_forward wrote a new warm start; the next step must find the old one.
            mujoco.mj_setState(self.model, data, state, FULL_STATE)
            self._gather(i)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _gather(self, i: int) -> None:
        np.concatenate(self._parts[i], out=self._block_rows[i])
