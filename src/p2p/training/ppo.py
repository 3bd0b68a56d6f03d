"""Proximal policy optimisation: Stable-Baselines3's algorithm, step for step.

A rollout is collected with the parameters that the update starts from. All of a step but the
physics is small numpy work, so the policy's forward pass is numpy, too: for a handful of rows it
costs less than handing them to a compiled function.

The update is one compiled JAX program: values, log-probabilities, advantages, every epoch and every
minibatch, the optimiser and the health metrics are computed without coming back to Python.
Parameters and Adam's moments are flat vectors, which makes a step on a small network cheap.
"""

from __future__ import annotations

import sys
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from p2p.training.checkpoints import Arrays, add_prefix, part
from p2p.training.compiled_update import UpdateProgram
from p2p.training.envs.batched_env import generator_from_array, generator_to_array
from p2p.training.policies.network import (
    NetworkShape,
    Tensors,
    explained_variance,
    flatten,
    forward,
    gaussian_shift,
    initial_parameters,
    unflatten,
    value,
)
from p2p.training.policies.normalization import ObservationNormalizer, ReturnNormalizer
from p2p.training.policies.policy import Policy
from p2p.training.training_loop import Stepper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from p2p.config import TrainConfig
    from p2p.training.envs.batched_env import BatchedEnv
    from p2p.training.reward_runner import RewardRunner
    from p2p.training.training_loop import Metrics, TrainingLoop

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-5
LOG_SQRT_2PI = 0.5 * float(np.log(2 * np.pi))
START_ROLLOUTS = 10
"""What the statistics of a policy that training starts from weigh against those of new rollouts."""
PER_MINIBATCH = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")


class PPOLearner:
    """Rollouts with a numpy actor, and one compiled update for each of them."""

    backend: Literal["fast"] = "fast"

    def __init__(self, loop: TrainingLoop) -> None:
        self.loop, self.config = loop, loop.config
        config, space = loop.config, loop.env.single_action_space
        program = UpdateProgram.from_config(
            config, *(int(np.prod(s.shape)) for s in (loop.env.single_observation_space, space))
        )
        self.shape = program.shape
        self.bounds = space.low.astype(np.float32), space.high.astype(np.float32)
        self.collector = RolloutCollector(loop.env, loop.reward, self.shape, config)
        self.actor = Actor(self.shape, config.num_envs)
        self.compiled_update, self._compiled = make_update(program), False
        self.hyperparameters = Hyperparameters.from_config(config)
        first, self.rng = np.random.default_rng(config.seed).spawn(2)
        if loop.saved is None:
            self.learner = LearnerState.begin(flatten(self.shape, self._first_parameters(first)))
            self.restart(config.seed)
        else:
            arrays = loop.saved[0]
            loop.load_environments(arrays)
            self.learner = LearnerState(**part("learner", arrays))
            self.collector.load_state(part("collector", arrays))
            self.rng = generator_from_array(arrays["rng"])
        self._use_parameters()

    def _first_parameters(self, rng: np.random.Generator) -> Tensors:
        config, start = self.config, self.loop.start_policy()
        if start is None:
            return initial_parameters(
                self.shape, rng, ortho_init=config.ortho_init, log_std_init=config.log_std_init
            )
        self.collector.observations.statistics.load_state_dict({
            "mean": start.obs_mean,
            "var": start.obs_var,
            "count": np.array([START_ROLLOUTS * config.batch_size]),
        })  # fmt: skip
        return start.tensors

    def act(self, steps: int) -> tuple[int, int]:
        """Collect a rollout of all of them."""
        shape = steps, self.config.num_envs, self.shape.action_dim
        noise = self.rng.standard_normal(shape, np.float32)
        noise *= np.exp(self.actor.tensors["log_std"])
        collector = self.collector
        self.rollout = collector.collect(self.actor, noise, self.loop.alive.phase("rollout"))
        ended = self.loop.episodes.add(collector.raw_rewards, collector.terms, self.rollout.dones)
        return steps, ended

    def update(self) -> list[Metrics]:
        config = self.config
        orders = [self.rng.permutation(config.batch_size) for _ in range(config.update_epochs)]
        with self.loop.alive.during("update" if self._compiled else "compile"):
            self.learner, metrics = self.compiled_update(
                self.learner, self.rollout, np.array(orders, np.int32), self.hyperparameters
            )
            self._use_parameters()
        self._compiled = True
        return [metrics]

    def _use_parameters(self) -> None:
        vector = np.array(self.learner.parameters)  # a copy: the update uses its input up
        self.actor.use(unflatten(self.shape, vector))

    def restart(self, seed: int | None = None) -> None:
        self.collector.restart(seed)

    def policy(self) -> Policy:
        statistics = self.collector.observations.statistics
        return Policy.from_training(self.config, dict(self.actor.tensors), statistics, self.bounds)

    def state(self) -> Arrays:
        environments = self.loop.save_environments()
        learner = {name: np.array(x) for name, x in self.learner._asdict().items()}
        return {
            **add_prefix("learner", learner),
            **add_prefix("collector", self.collector.state()),
            **environments,
            "rng": generator_to_array(self.rng),
        }


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
        self._stepper = Stepper(env, reward)
        self._gamma = config.gamma
        space = env.single_action_space
        self._low, self._high = space.low.astype(np.float32), space.high.astype(np.float32)
        rows = (config.num_steps, env.num_envs)
        self._rollout = Rollout(
            obs=np.empty((config.num_steps + 1, env.num_envs, shape.obs_dim), np.float32),
            actions=np.empty((*rows, shape.action_dim), np.float32),
            rewards=np.empty(rows, np.float32),
            dones=np.empty(rows, np.bool_),
        )
        self.raw_rewards = np.empty(rows)
        """Of the last rollout (T, N), as the reward gave them; `terms` likewise."""
        self.terms: dict[str, NDArray[np.float64]] = {}
        self._seen = np.zeros((env.num_envs, shape.obs_dim), np.float32)

    def restart(self, seed: int | None) -> None:
        """Begin new episodes everywhere; with a seed, with environments seeded anew."""
        self._stepper.restart(seed)
        self.observations.update(self._stepper.obs)
        self._seen = self.observations(self._stepper.obs)
        self.returns.restart()

    def collect(
        self, actor: Actor, noise: NDArray[np.float32], alive: Callable[[], None]
    ) -> Rollout:
        """Collect one rollout; `noise` (T, N, A) is each action's deviation from the policy's mean.

        What is returned is overwritten by the next call. Raises RewardError.
        """
        rollout, dones = self._rollout, self._rollout.dones
        cut: list[tuple[int, NDArray[np.intp], NDArray[np.float32]]] = []
        rollout.obs[0] = self._seen
        for t, deviation in enumerate(noise):
            alive()
            drawn = rollout.actions[t]
            np.add(actor.means(rollout.obs[t]), deviation, out=drawn)
            action = np.maximum(drawn, self._low)
            np.minimum(action, self._high, out=action)
            step = self._stepper.step(action, last=t + 1 == len(noise))
            dones[t] = self._stepper.starts
            self.observations.update(step.obs)
            rollout.obs[t + 1] = self.observations(step.obs)
            if np.count_nonzero(step.truncated):
                rows = np.flatnonzero(step.truncated & ~step.terminated)
                cut.append((t, rows, self.observations(step.next_obs[rows])))
        self._seen = rollout.obs[-1].copy()
        self.raw_rewards, self.terms = self._stepper.rewards()
        rollout.rewards[:] = self.returns(self.raw_rewards, dones)
        self._bootstrap(actor, cut)
        return rollout

    def state(self) -> Arrays:
        """Where the rollouts stand: normalisers and current observations, not the environments."""
        arrays: Arrays = {**self._stepper.state(), "seen": self._seen}
        for name, normalizer in self._normalizers():
            arrays |= {f"{name}.{key}": x for key, x in normalizer.state_dict().items()}
        return arrays

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._stepper.load_state(arrays)
        self._seen = arrays["seen"].copy()
        for name, normalizer in self._normalizers():
            start = f"{name}."
            mine = {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}
            normalizer.load_state_dict(mine)

    def _normalizers(self) -> tuple[tuple[str, Any], ...]:
        return ("observations", self.observations.statistics), ("returns", self.returns)

    def _bootstrap(
        self, actor: Actor, cut: list[tuple[int, NDArray[np.intp], NDArray[np.float32]]]
    ) -> None:
        """At a time limit the episode would have gone on: add what the critic expects of that."""
        if not cut:
            return
        steps = np.concatenate([np.full(len(rows), t) for t, rows, _ in cut])
        columns = np.concatenate([rows for _, rows, _ in cut])
        last = np.concatenate([obs for _, _, obs in cut])
        values = value(actor.shape, actor.tensors, last, np)
        self._rollout.rewards[steps, columns] += np.float32(self._gamma) * values


class LearnerState(NamedTuple):
    """What an update changes: flat parameters, Adam's two moments, Adam's step count."""

    parameters: Any
    first_moment: Any
    second_moment: Any
    steps: Any

    @classmethod
    def begin(cls, parameters: NDArray[np.float32]) -> LearnerState:
        zeros = np.zeros_like(parameters)
        return cls(parameters, zeros, zeros.copy(), np.int32(0))


class Hyperparameters(NamedTuple):
    """Arguments of an update, float32 each; products and sums of them are rounded once."""

    learning_rate: Any
    gamma: Any
    decay: Any
    """gamma * gae_lambda"""
    clip: Any
    lowest_ratio: Any
    """1 - clip"""
    highest_ratio: Any
    ent_coef: Any
    vf_coef: Any
    max_grad_norm: Any
    largest_kl: Any
    """1.5 * target_kl; without one, it is not looked at."""

    @classmethod
    def from_config(cls, config: TrainConfig) -> Hyperparameters:
        values = (
            config.learning_rate,
            config.gamma,
            config.gamma * config.gae_lambda,
            config.clip_coef,
            1 - config.clip_coef,
            1 + config.clip_coef,
            config.ent_coef,
            config.vf_coef,
            config.max_grad_norm,
            1.5 * (config.target_kl or 0.0),
        )
        return cls(*map(np.float32, values))


class Rollout(NamedTuple):
    """T steps of N environments, as the policy saw and did them."""

    obs: Any
    """(T + 1, N, D), normalised; the last row is where the next rollout begins."""
    actions: Any
    """(T, N, A), as drawn: before clipping to the action space."""
    rewards: Any
    """(T, N), normalised; at a time limit with the discounted value of the last state added."""
    dones: Any
    """(T, N), terminated or truncated by this step."""


class _Batch(NamedTuple):
    obs: Any
    actions: Any
    log_probs: Any
    values: Any
    advantages: Any
    returns: Any


@cache
def make_update(program: UpdateProgram) -> Any:
    """`update(state, rollout, permutations, hyperparameters) -> (state, metrics)`.

    It is compiled at its first call.

    `permutations` (epochs, T * N) holds, for each epoch, an order of the transitions counted
    environment by environment (as SB3 counts them); the caller draws it. The state that is
    passed in is used up.
    """
    return jax.jit(partial(_update, program), donate_argnums=(0,))


def advantages(given: Hyperparameters, rewards: Any, values: Any, dones: Any) -> Any:
    """Generalised advantage estimates (T, N) from values (T + 1, N)."""
    alive = 1.0 - dones
    deltas = rewards + given.gamma * values[1:] * alive - values[:-1]
    decay = given.decay * alive

    def accumulate(following: Any, now: Any) -> Any:
        delta, keep = now
        estimate = delta + keep * following
        return estimate, estimate

    return lax.scan(accumulate, jnp.zeros_like(values[0]), (deltas, decay), reverse=True)[1]


def log_prob(actions: Any, means: Any, log_std: Any) -> Any:
    """Log-density of actions under a diagonal Gaussian."""
    scaled = (actions - means) * jnp.exp(-log_std)
    return jnp.sum(-0.5 * scaled**2 - log_std - LOG_SQRT_2PI, axis=-1)


def _update(
    program: UpdateProgram,
    state: LearnerState,
    rollout: Rollout,
    permutations: Any,
    given: Hyperparameters,
) -> tuple[LearnerState, dict[str, Any]]:
    shape = program.shape
    old = unflatten(shape, state.parameters)
    means, values = forward(shape, old, rollout.obs, jnp)
    gains = advantages(given, rollout.rewards, values, rollout.dones.astype(jnp.float32))
    batch = _Batch(
        *map(
            _environment_by_environment,
            (
                rollout.obs[:-1],
                rollout.actions,
                log_prob(rollout.actions, means[:-1], old["log_std"]),
                values[:-1],
                gains,
                gains + values[:-1],
            ),
        )
    )
    epochs = permutations.shape[0]
    order = permutations.reshape(-1, program.minibatch_size)
    # One gather a minibatch instead of six.
    table = jnp.concatenate([x.reshape(len(x), -1) for x in batch], axis=1)
    step = partial(_minibatch, program, given, table)
    (state, _), logs = lax.scan(step, (state, jnp.bool_(False)), order)

    new = unflatten(shape, state.parameters)
    new_means, _ = forward(shape, new, rollout.obs[:-1], jnp)
    metrics = _averages(logs, epochs)
    metrics |= gaussian_shift(means[:-1], old["log_std"], new_means, new["log_std"], jnp)
    metrics["explained_variance"] = explained_variance(batch.values, batch.returns, jnp)
    metrics["policy_std"] = jnp.exp(new["log_std"]).mean()
    metrics["learning_rate"] = given.learning_rate
    return state, metrics


def _environment_by_environment(x: Any) -> Any:
    return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])


def _minibatch(
    program: UpdateProgram, given: Hyperparameters, table: Any, carry: Any, rows: Any
) -> Any:
    """Take a gradient step, unless the policy has already moved too far in this update."""
    shape = program.shape

    def take_step(state: LearnerState) -> Any:
        batch = _columns(shape, table.at[rows].get(mode="promise_in_bounds"))
        tensors = unflatten(shape, state.parameters)
        loss = partial(_loss, program, given, batch)
        gradients, logs = jax.grad(loss, has_aux=True)(tensors)
        flat = jnp.concatenate([gradients[name].ravel() for name in shape.parameters()])
        moved, logs["grad_norm"] = _adam(given, state, flat)
        return moved, logs

    state, stopped = carry
    if not program.stops_early:
        state, logs = take_step(state)
        return (state, stopped), (logs, jnp.bool_(True))

    def skip_step(state: LearnerState) -> Any:
        return state, {name: jnp.float32(0) for name in PER_MINIBATCH}

    moved, logs = lax.cond(stopped, skip_step, take_step, state)
    stop = logs["approx_kl"] > given.largest_kl
    # The minibatch that shows the distance counts in the metrics, but is not applied.
    kept = jax.tree.map(lambda before, after: jnp.where(stop, before, after), state, moved)
    return (kept, stopped | stop), (logs, ~stopped)


def _columns(shape: NetworkShape, table: Any) -> _Batch:
    start = 0
    parts: list[Any] = []
    for width in (shape.obs_dim, shape.action_dim, 1, 1, 1, 1):
        part = table[:, start : start + width]
        parts.append(part if len(parts) < 2 else part[:, 0])
        start += width
    return _Batch(*parts)


def _loss(
    program: UpdateProgram, given: Hyperparameters, batch: _Batch, tensors: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    means, values = forward(program.shape, tensors, batch.obs, jnp)
    log_ratio = log_prob(batch.actions, means, tensors["log_std"]) - batch.log_probs
    ratio = jnp.exp(log_ratio)
    gains = batch.advantages
    if program.norm_adv and program.minibatch_size > 1:
        gains = (gains - gains.mean()) / (gains.std(ddof=1) + 1e-8)
    clipped = jnp.clip(ratio, given.lowest_ratio, given.highest_ratio)
    policy_loss = -jnp.minimum(gains * ratio, gains * clipped).mean()
    if program.clip_vloss:
        values = batch.values + jnp.clip(values - batch.values, -given.clip, given.clip)
    value_loss = jnp.mean((batch.returns - values) ** 2)
    entropy = jnp.sum(tensors["log_std"] + 0.5 + LOG_SQRT_2PI)
    loss = policy_loss - given.ent_coef * entropy + given.vf_coef * value_loss
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": jnp.mean(ratio - 1 - log_ratio),
        "clip_fraction": jnp.mean(jnp.abs(ratio - 1) > given.clip),
    }


def _adam(given: Hyperparameters, state: LearnerState, gradient: Any) -> tuple[LearnerState, Any]:
    norm = jnp.sqrt(jnp.sum(gradient**2))
    gradient *= jnp.minimum(given.max_grad_norm / (norm + 1e-6), 1.0)
    beta1, beta2 = ADAM_BETAS
    steps = state.steps + 1
    # 1 - beta ** steps, without the loss of digits that float32 would have at the first steps.
    correction1 = -jnp.expm1(steps * np.float32(np.log(beta1)))
    correction2 = -jnp.expm1(steps * np.float32(np.log(beta2)))
    first = state.first_moment + (1 - beta1) * (gradient - state.first_moment)
    second = beta2 * state.second_moment + (1 - beta2) * gradient**2
    # Adam's step with both corrections taken out of the vectors: one root and one division each.
    root = jnp.sqrt(correction2)
    rate = given.learning_rate * root / correction1
    parameters = state.parameters - rate * first / (jnp.sqrt(second) + ADAM_EPSILON * root)
    return LearnerState(parameters, first, second, steps), norm


def _averages(logs: tuple[dict[str, Any], Any], epochs: int) -> dict[str, Any]:
    """Means over the minibatches that ran; the KL divergence over those of the last epoch."""
    values, ran = logs
    weight = ran.astype(jnp.float32)
    metrics = {name: jnp.sum(values[name] * weight) / jnp.sum(weight) for name in PER_MINIBATCH}
    per_epoch = weight.reshape(epochs, -1).sum(axis=1)
    kl = (values["approx_kl"] * weight).reshape(epochs, -1).sum(axis=1)
    last = jnp.sum(per_epoch > 0) - 1
    metrics["approx_kl"] = kl[last] / per_epoch[last]
    return metrics


def compile_update(program: UpdateProgram) -> None:
    """Compile it as the trainer's first call would: JAX keeps it where its settings say."""
    shape, rows = program.shape, (program.num_steps, program.num_envs)
    parameters = np.zeros(sum(prod(dims) for dims in shape.parameters().values()), np.float32)
    rollout = Rollout(
        obs=np.zeros((rows[0] + 1, rows[1], shape.obs_dim), np.float32),
        actions=np.zeros((*rows, shape.action_dim), np.float32),
        rewards=np.zeros(rows, np.float32),
        dones=np.zeros(rows, np.bool_),
    )
    orders = np.zeros((program.epochs, prod(rows)), np.int32)
    given = Hyperparameters(*[np.float32(0)] * len(Hyperparameters._fields))
    make_update(program).lower(LearnerState.begin(parameters), rollout, orders, given).compile()


if __name__ == "__main__":
    compile_update(UpdateProgram.from_json(sys.stdin.buffer.read()))
