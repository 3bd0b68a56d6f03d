"""Collecting transitions: policy, environments, reward and normalisation, step by step.

All of a step but the physics is small numpy work, so the policy's forward pass is numpy, too: for
a handful of rows it costs less than handing them to a compiled function. Values and
log-probabilities are left to the update, which computes them for the whole rollout at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from p2p.training.policies.network import NetworkShape, value
from p2p.training.policies.normalization import ObservationNormalizer, ReturnNormalizer
from p2p.training.reward.calls import Transition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from p2p.config import TrainConfig
    from p2p.training.envs.batched_env import BatchedEnv
    from p2p.training.reward.runner import RewardRunner


class Actor:
    """The policy network for N rows in numpy, with its buffers kept."""

    def __init__(self, shape: NetworkShape, num_envs: int) -> None:
        self.shape = shape
        self.tensors: Mapping[str, Any] = {}
        self._names = [*shape.hidden("policy_net"), "action_net"]
        widths = [*shape.net_arch, shape.action_dim]
        self._buffers = [np.empty((num_envs, width), np.float32) for width in widths]
        self._layers: list[tuple[Any, Any, NDArray[np.float32]]] = []

    def use(self, tensors: Mapping[str, Any]) -> None:
        """Act with these parameters from now on."""
        self.tensors = tensors
        self._layers = [
            (np.ascontiguousarray(tensors[f"{name}.weight"].T), tensors[f"{name}.bias"], buffer)
            for name, buffer in zip(self._names, self._buffers, strict=True)
        ]

    def means(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The means of the actions; overwritten by the next call."""
        x, tanh = obs, self.shape.activation == "tanh"
        *hidden, (weight, bias, means) = self._layers
        for w, b, h in hidden:
            np.dot(x, w, out=h)
            np.add(h, b, out=h)
            if tanh:
                np.tanh(h, out=h)
            else:
                np.maximum(h, 0, out=h)
            x = h
        np.dot(x, weight, out=means)
        np.add(means, bias, out=means)
        return means


class Transitions:
    """One rollout as it is collected; arrays are used again for the next one."""

    def __init__(self, steps: int, num_envs: int, shape: NetworkShape) -> None:
        self.obs = np.empty((steps + 1, num_envs, shape.obs_dim), np.float32)
        """(T + 1, N, D), normalised; the last row is where the next rollout begins."""
        self.actions = np.empty((steps, num_envs, shape.action_dim), np.float32)
        """(T, N, A), as drawn: before clipping to the action space."""
        self.dones = np.empty((steps, num_envs), np.bool_)
        self.raw_rewards = np.empty((steps, num_envs))
        """As the reward gave them."""
        self.rewards = np.empty((steps, num_envs), np.float32)
        """Normalised; at a time limit with the discounted value of the last state added."""
        self.terms: dict[str, NDArray[np.float64]] = {}


class RolloutCollector:
    """Steps the environments with a policy and remembers where they stand."""

    def __init__(
        self, env: BatchedEnv, reward: RewardRunner, shape: NetworkShape, config: TrainConfig
    ) -> None:
        self.observations = ObservationNormalizer(
            shape.obs_dim, config.obs_clip, enabled=config.normalize_obs
        )
        self.returns = ReturnNormalizer(
            env.num_envs, config.gamma, config.reward_clip, enabled=config.normalize_reward
        )
        self._env = env
        self._reward = reward
        self._gamma = config.gamma
        space = env.single_action_space
        self._low, self._high = space.low.astype(np.float32), space.high.astype(np.float32)
        self._transitions = Transitions(config.num_steps, env.num_envs, shape)
        self._obs = np.zeros((env.num_envs, shape.obs_dim))
        self._seen = np.zeros((env.num_envs, shape.obs_dim), np.float32)
        self._starts = np.ones(env.num_envs, np.bool_)

    def restart(self, seed: int) -> None:
        """Begin new episodes everywhere, with environments seeded anew."""
        self._obs = self._env.reset_batch(seed)
        self.observations.update(self._obs)
        self._seen = self.observations(self._obs)
        self._starts = np.ones(self._env.num_envs, np.bool_)
        self.returns.restart()

    def collect(
        self, actor: Actor, noise: NDArray[np.float32], alive: Callable[[], None]
    ) -> Transitions:
        """One rollout; `noise` (T, N, A) is what each action deviates from the policy's mean.

        What is returned is overwritten by the next call. Raises RewardError.
        """
        rollout = self._transitions
        cut: list[tuple[int, NDArray[np.intp], NDArray[np.float32]]] = []
        rollout.obs[0] = self._seen
        rewards, dones = rollout.raw_rewards, rollout.dones
        pending: list[Transition] = []
        for t, deviation in enumerate(noise):
            alive()
            drawn = rollout.actions[t]
            np.add(actor.means(rollout.obs[t]), deviation, out=drawn)
            action = np.maximum(drawn, self._low)
            np.minimum(action, self._high, out=action)
            step = self._env.step_batch(action)
            pending.append(Transition(self._obs, action, step.next_obs, step.info, self._starts))
            if len(pending) >= self._reward.block_steps or t + 1 == len(noise):
                self._keep_rewards(t + 1, *self._reward.block(pending))
                pending.clear()
            self._starts = step.terminated | step.truncated
            dones[t] = self._starts
            self._obs = step.obs
            self.observations.update(step.obs)
            rollout.obs[t + 1] = self.observations(step.obs)
            if np.count_nonzero(step.truncated):
                rows = np.flatnonzero(step.truncated & ~step.terminated)
                cut.append((t, rows, self.observations(step.next_obs[rows])))
        self._seen = rollout.obs[-1].copy()
        rollout.rewards[:] = self.returns(rewards, dones)
        self._bootstrap(rollout, actor, cut)
        return rollout

    def state(self) -> dict[str, NDArray[Any]]:
        """Where the rollouts stand: normalisers and current observations, not the environments."""
        arrays: dict[str, Any] = {"obs": self._obs, "seen": self._seen, "starts": self._starts}
        arrays |= {f"observations.{k}": v for k, v in self._statistics.state_dict().items()}
        return arrays | {f"returns.{k}": v for k, v in self.returns.state_dict().items()}

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._obs, self._seen = arrays["obs"].copy(), arrays["seen"].copy()
        self._starts = arrays["starts"].copy()
        for name, normalizer in (("observations", self._statistics), ("returns", self.returns)):
            start = f"{name}."
            mine = {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}
            normalizer.load_state_dict(mine)

    @property
    def _statistics(self) -> Any:
        return self.observations.statistics

    def _keep_rewards(
        self, end: int, total: NDArray[np.float64], terms: Mapping[str, NDArray[np.float64]]
    ) -> None:
        """Of the steps before `end`, (K, N) each."""
        rewards, kept = self._transitions.raw_rewards, self._transitions.terms
        if not kept:
            kept.update({name: np.zeros_like(rewards) for name in terms})
        steps = slice(end - len(total), end)
        rewards[steps] = total
        for name, values in terms.items():
            kept[name][steps] = values

    def _bootstrap(
        self,
        rollout: Transitions,
        actor: Actor,
        cut: list[tuple[int, NDArray[np.intp], NDArray[np.float32]]],
    ) -> None:
        """At a time limit the episode would have gone on: add what the critic expects of that."""
        if not cut:
            return
        steps = np.concatenate([np.full(len(rows), t) for t, rows, _ in cut])
        columns = np.concatenate([rows for _, rows, _ in cut])
        last = np.concatenate([obs for _, _, obs in cut])
        values = value(actor.shape, actor.tensors, last, np)
        rollout.rewards[steps, columns] += np.float32(self._gamma) * values
