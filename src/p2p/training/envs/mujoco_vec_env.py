"""Gymnasium's MuJoCo environments on ``mujoco.batch``: N simulations stepped in C++ threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from p2p.training.envs.batched_env import (
    F64,
    Array,
    Bools,
    Seeds,
    StepBatch,
    generator_from_array,
    generator_to_array,
    seeds_of_rows,
)
from p2p.training.envs.mujoco_engines import FULL_STATE, BatchEngine, PhysicsEngine, RowEngine
from p2p.training.envs.mujoco_kernels import EpisodeStarts, find_kernel
from p2p.training.envs.registry import make_single, registered
from p2p.training.envs.side_info import ReachedStates, replay
from p2p.training.specs.quantities import Meter, Robot

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gymnasium.spaces import Box


class MujocoVecEnv(VectorEnv[F64, Array, Array]):
    """A BatchedEnv and a Gymnasium VectorEnv over one ``mujoco.batch.Batch``.

    It agrees bit for bit with ``gym.make(env_id)`` in every row, at any number of threads::

        envs = MujocoVecEnv("Hopper-v5", num_envs=64, num_threads=4)
        obs, info = envs.reset(seed=1)  # row i is seeded 1 + i
        obs, reward, terminated, truncated, info = envs.step(envs.action_space.sample())

    Rows that end start anew in the same step (``AutoresetMode.SAME_STEP``). Actions are not
    clipped: as in Gymnasium, MuJoCo itself clips what it applies where an actuator's ctrlrange
    is limited, while the control cost sees the action as given.

    Arguments are those of `make_batched_env`. Side information can be had without `side_info`,
    but then the first request costs a replay.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        *,
        num_threads: int = 1,
        max_episode_steps: int | None = None,
        terminate_when_unhealthy: bool | None = None,
        observe_time: bool = False,
        side_info: bool = False,
        quantities: Collection[str] = (),
    ) -> None:
        kernel = find_kernel(registered(env_id))
        if kernel is None:
            raise ValueError(f"{env_id} has no batched form; use GymVecEnv (backend 'gym')")
        if num_envs < 1 or num_threads < 1:
            raise ValueError(f"num_envs={num_envs} and num_threads={num_threads} must be positive")
        limits = max_episode_steps, terminate_when_unhealthy
        env: Any = make_single(env_id, *limits, observe_time=observe_time)
        base: Any = env.unwrapped
        self.spec = env.spec
        self.env_id, self.num_envs = env_id, num_envs
        self.max_episode_steps = int(self.spec.max_episode_steps)  # type: ignore[arg-type]
        self._observe_time = observe_time
        self.single_observation_space: Box = env.observation_space
        self.single_action_space: Box = base.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {**base.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.model: mujoco.MjModel = base.model
        self._frame_skip: int = base.frame_skip
        self._kernel = kernel(base)
        self._starts = EpisodeStarts(base)
        self._meter = Meter(Robot.of(env), quantities)
        self.dt = self._kernel.dt
        self._elapsed = np.zeros(num_envs, np.int64)
        self._rngs: list[np.random.Generator] = []
        self._obs = np.zeros((num_envs, *self.single_observation_space.shape))
        self._action_shape = (num_envs, self.model.nu)
        self._stepped = np.zeros(num_envs, np.bool_)  # rows not restarted since the last step
        self._ended: list[int] = []
        self._reached: ReachedStates | None = None
        read = dict.fromkeys((*self._kernel.derived, *self._meter.fields))
        fields = tuple(name for name in read if name not in ("qpos", "qvel"))
        if side_info or "cfrc_ext" in fields:
            rows = RowEngine(self.model, num_envs, num_threads, fields)
            self._reached = ReachedStates(self.model, rows.data)
            self._use(rows)
        else:
            self._use(BatchEngine(self.model, num_envs, num_threads, fields))

    # --- BatchedEnv -----------------------------------------------------------------------

    def reset_batch(self, seed: Seeds = None) -> F64:
        if seed is not None or not self._rngs:
            self._rngs = [np_random(own)[0] for own in seeds_of_rows(seed, self.num_envs)]
        return self.restart(np.ones(self.num_envs, np.bool_))

    def restart(self, rows: Bools) -> F64:
        self._check_started()
        ids: list[int] = np.flatnonzero(rows).tolist()
        if ids:
            self._begin_episodes(ids)
            self._stepped[ids] = False
            self._ended = [i for i in self._ended if i not in ids]
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
        engine.ctrl[...] = action
        engine.step(self._frame_skip)
        self._elapsed += 1
        obs = next_obs = self._observe()
        reward, terminated, info = kernel.transition(action)
        truncated = self._elapsed >= self.max_episode_steps
        if terminated is None:
            terminated = np.zeros(self.num_envs, np.bool_)
        self._stepped.fill(True)
        self._ended = np.flatnonzero(terminated | truncated).tolist()
        measured = self._meter.info(info, lambda name: engine.fields[name].copy())
        if self._ended:
            if reached is not None:
                reached.end_rows(self._ended)
            self._begin_episodes(self._ended)
            obs, kernel.before = self._observe(), kernel.landmark()
        else:
            kernel.before = kernel.after
        self._obs = obs
        return StepBatch(next_obs, obs, reward, terminated, truncated, measured)

    def side_info(self) -> dict[str, Any]:
        return self._follow().side_info()

    def row_side_info(self, i: int) -> dict[str, Any]:
        return self._follow().row_side_info(i)

    def trajectory_fields(self) -> dict[str, Array]:
        return self._follow().trajectory_fields()

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
        self._stepped.fill(False)
        self._ended = []
        if self._reached is not None:
            self._reached.begin_rows(range(self.num_envs))

    # --- gymnasium.vector.VectorEnv ---------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[F64, dict[str, Any]]:
        """Start every row anew, or those of ``options["reset_mask"]``."""
        rows = (options or {}).get("reset_mask")
        if rows is None:
            obs, rows = self.reset_batch(seed), np.ones(self.num_envs, np.bool_)
        else:
            self._check_started()
            if seed is not None:
                for i in np.flatnonzero(rows).tolist():
                    self._rngs[i] = np_random(int(seed) + i)[0]
            obs = self.restart(rows)
        return obs, masked(self._kernel.reset_info(), rows)

    def step(self, actions: Array) -> tuple[F64, Array, Array, Array, dict[str, Any]]:
        """Step every row; info has the form of SyncVectorEnv in AutoresetMode.SAME_STEP."""
        step = self.step_batch(actions)
        ended = step.terminated | step.truncated
        reset_info = self._kernel.reset_info() if ended.any() else {}
        info = same_step_info(step.info, reset_info, step.next_obs, ended)
        return step.obs.copy(), step.reward, step.terminated, step.truncated, info

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002
        self._engine.close()

    # --- inner parts ------------------------------------------------------------------------

    def _check_started(self) -> None:
        if not self._rngs:
            raise RuntimeError("reset the environment before stepping it")

    def _observe(self) -> F64:
        obs = self._kernel.observe()
        if not self._observe_time:
            return obs
        # Rounded as in Gymnasium's TimeAwareObservation.
        passed = (self._elapsed / self.max_episode_steps).astype(np.float32)
        return np.column_stack((obs, passed))

    def _use(self, engine: PhysicsEngine) -> None:
        self._engine = engine
        self._kernel.bind(engine)

    def _follow(self) -> ReachedStates:
        """Show rows as MjData from now on, beginning with the transition just made."""
        if self._reached is None:
            assert isinstance(self._engine, BatchEngine)
            rows, self._reached = replay(self._engine, self._stepped, self._ended, self._frame_skip)
            self._use(rows)
        return self._reached

    def _begin_episodes(self, ids: list[int]) -> None:
        drawn = [self._starts.draw(self._rngs[i]) for i in ids]
        self._engine.begin(ids, [qpos for qpos, _ in drawn], [qvel for _, qvel in drawn])
        self._elapsed[ids] = 0


def masked(info: Mapping[str, Array], rows: Bools) -> dict[str, Any]:
    """Info that only these rows have: zero elsewhere, with a ``_key`` mask beside every key."""
    out: dict[str, Any] = {}
    for key, values in info.items():
        held = np.array(values)
        held[~rows] = 0
        out[key], out[f"_{key}"] = held, rows.copy()
    return out


def same_step_info(
    info: Mapping[str, Array], reset_info: Mapping[str, Array], next_obs: F64, ended: Bools
) -> dict[str, Any]:
    """Info of a step in which ended rows were reset, as SyncVectorEnv reports it.

    Ended rows show what their reset reported; the end of their episode is in ``final_obs`` and
    ``final_info``.
    """
    if not ended.any():
        return masked(info, ~ended)
    out = {} if ended.all() else masked(info, ~ended)
    for key, values in reset_info.items():
        if key in out:
            out[key][ended] = values[ended]
            out[f"_{key}"] |= ended
        else:
            out.update(masked({key: values}, ended))
    final_obs = np.full(len(ended), None, dtype=object)
    for i in np.flatnonzero(ended):
        final_obs[i] = next_obs[i].copy()
    out["final_obs"], out["_final_obs"] = final_obs, ended.copy()
    out["final_info"], out["_final_info"] = masked(info, ended), ended.copy()
    return out
