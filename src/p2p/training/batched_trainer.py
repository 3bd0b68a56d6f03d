"""What the trainers of the fast backend share: stepping, the loop, policies and saved states.

A trainer derives from BatchedTrainer and adds its algorithm. With the same seed, a run gives the
same result on the same machine, at any number of simulation threads, and whether or not it was
killed and resumed on the way.

A reward that keeps state cannot be saved, since its state is whatever it likes. Where the reward
is stateful (or the environment cannot be saved), every checkpoint therefore begins new episodes
with new reward objects, in runs that are never interrupted as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from p2p.config import ConfigurationError
from p2p.training.base_trainer import BaseTrainer, TrainContext, part, prefixed
from p2p.training.checkpoints import START_POLICY
from p2p.training.envs.batched_env import generator_from_array, generator_to_array
from p2p.training.policies.network import NetworkShape, Tensors
from p2p.training.policies.policy import Policy, PolicyFileError
from p2p.training.reward_runner import RewardRunner, Rewards, Transition, end_failures

if TYPE_CHECKING:
    from p2p.training.envs.batched_env import BatchedEnv, StepBatch
    from p2p.training.policies.normalization import ObservationNormalizer


class Stepper:
    """Steps the environments with their reward, and knows where each of them stands."""

    def __init__(self, env: BatchedEnv, reward: RewardRunner) -> None:
        self._env, self._reward = env, reward
        self.obs: NDArray[np.float64] = np.zeros(
            (env.num_envs, int(np.prod(env.single_observation_space.shape)))
        )
        self.starts: NDArray[np.bool_] = np.ones(env.num_envs, np.bool_)
        """Where the next step is the first of an episode."""
        self._pending: list[Transition] = []
        self._blocks: list[Rewards] = []

    def restart(self, seed: int) -> None:
        """Begin new episodes everywhere, with environments seeded anew."""
        self.obs = self._env.reset_batch(seed)
        self.starts = np.ones(self._env.num_envs, np.bool_)

    def step(self, action: NDArray[np.float32], *, last: bool) -> StepBatch:
        """Take a step; the `last` one is that before `rewards`. Raises RewardError."""
        reward = self._reward
        step = self._env.step_batch(action)
        transition = Transition(self.obs, action, step.next_obs, step.info, self.starts)
        self._pending.append(transition)
        if last or len(self._pending) >= reward.block_steps:
            self._blocks.append(reward.block(self._pending))
            self._pending.clear()
        if reward.ends_episodes:
            step = end_failures(self._env, reward, transition, step)
        self.starts = step.terminated | step.truncated
        self.obs = step.obs
        return step

    def rewards(self) -> Rewards:
        """Totals and terms, (T, N) each, of the steps since the last call."""
        totals, parts = zip(*self._blocks, strict=True)
        self._blocks.clear()
        terms = {name: np.concatenate([block[name] for block in parts]) for name in parts[0]}
        return np.concatenate(totals), terms

    def state(self) -> dict[str, NDArray[Any]]:
        return {"obs": self.obs, "starts": self.starts}

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.obs, self.starts = arrays["obs"].copy(), arrays["starts"].copy()


class BatchedTrainer(BaseTrainer):
    """A run with batched environments and a compiled update.

    A derived class makes its parts and then calls `begin`.
    """

    backend = "fast"
    env_backend = "auto"
    observations: ObservationNormalizer

    def __init__(self, ctx: TrainContext) -> None:
        super().__init__(ctx)
        space = self.env.single_action_space
        self.low, self.high = space.low.astype(np.float32), space.high.astype(np.float32)
        obs_dim, action_dim = (
            int(np.prod(each.shape)) for each in (self.env.single_observation_space, space)
        )
        self.shape = NetworkShape.from_config(ctx.config, obs_dim, action_dim)
        self._first, self.rng = np.random.default_rng(ctx.config.seed).spawn(2)
        self._compiled = False  # the first update is compiled as it is called

    def begin(self) -> None:
        """Start, or continue from the saved state."""
        if self.saved is None:
            self.initialize(self._first)
            self.start_episodes(self.config.seed)
        else:
            arrays = self.saved[0]
            environments = part("environments", arrays)
            if environments:
                self.env.load_state_dict(environments)
            else:
                self.env.reset_batch(self.later_seed())
            self.load_algorithm(arrays)
            self.rng = generator_from_array(arrays["rng"])
            self.saved = None  # a replay takes much memory
        self.use_parameters()

    def start_policy(self) -> Policy | None:
        """What training starts from, where it does not start from nothing."""
        path = self.ctx.folder / START_POLICY
        try:
            return Policy.load(path) if path.is_file() else None
        except PolicyFileError as error:  # not the reward's fault
            raise ConfigurationError(str(error)) from error

    def learn(self) -> None:
        while self.iteration < self.last_iteration:
            self.iterate()

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around a call of the compiled update."""
        with self.alive.during("update" if self._compiled else "compile"):
            yield
        self._compiled = True

    def policy(self) -> Policy:
        statistics = self.observations.statistics
        return Policy(
            shape=self.shape,
            tensors=self.tensors(),
            obs_mean=statistics.mean.copy(),
            obs_var=statistics.var.copy(),
            action_low=self.low,
            action_high=self.high,
            obs_clip=self.config.obs_clip,
            normalize_obs=self.config.normalize_obs,
            env_id=self.config.env_id,
            observe_time=self.config.observe_time,
        )

    def state(self) -> dict[str, NDArray[Any]]:
        environments = self.environment_state()
        if environments is None:
            self.reward.restart()
            self.start_episodes(self.later_seed())
            self.episodes.restart()
        return {
            **self.algorithm_state(),
            **prefixed("environments", environments or {}),
            "rng": generator_to_array(self.rng),
        }

    def initialize(self, rng: np.random.Generator) -> None:
        """Draw the first parameters."""
        raise NotImplementedError

    def start_episodes(self, seed: int) -> None:
        """Begin new episodes everywhere, with environments seeded anew."""
        raise NotImplementedError

    def iterate(self) -> None:
        """Collect a rollout and learn, closed by `finish_iteration`."""
        raise NotImplementedError

    def use_parameters(self) -> None:
        """Act with the learner's parameters from now on."""
        raise NotImplementedError

    def tensors(self) -> Tensors:
        """The parameters of the policy's network."""
        raise NotImplementedError

    def algorithm_state(self) -> dict[str, NDArray[Any]]:
        """All to continue from but environments and random state."""
        raise NotImplementedError

    def load_algorithm(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what `algorithm_state` gave."""
        raise NotImplementedError
