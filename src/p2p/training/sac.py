"""Soft actor-critic: more is learnt from each step than with PPO, at a higher price.

Most of its time goes into updates, so it takes far fewer steps per second. The past steps that it
learns from are a part of its saved state.

The critics normalise their layers, which keeps them from diverging at few updates per step, and
learn from returns of several steps. The actor that explores changes with every update and may
stumble after any of them; the policy is its running average, which stumbles less. It is a plain
multilayer perceptron: the squashed mean is one more tanh layer, so it is saved, exported and
played like PPO's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from p2p.config import ConfigurationError
from p2p.training.checkpoints import Arrays, ResumeError, add_prefix, part
from p2p.training.envs.batched_env import generator_from_array, generator_to_array
from p2p.training.policies.network import NetworkShape, Tensors
from p2p.training.policies.normalization import ObservationNormalizer
from p2p.training.policies.policy import Policy
from p2p.training.ppo import LOG_SQRT_2PI
from p2p.training.training_loop import Stepper, finite_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from p2p.training.training_loop import Metrics, TrainingLoop

UPDATES_PER_CALL = 32
RANDOM_STEPS = 5_000
"""Taken with random actions before the first update; of a short run, a tenth."""

CRITICS = 2
LOG_STDS = (-5.0, 2.0)
TAU = 0.01
"""How far the target critics follow the critics in an update."""
POLICY_FREQUENCY = 2
"""Updates of the critics for one of the actor."""
STEPS_OF_RETURN = 3
ENTROPY_PER_ACTION = -1.0
"""With more noise HalfCheetah learns faster, but a Humanoid relies on it and falls without."""
AVERAGED_UPDATES = 1600
"""Of the actor, over which the policy is averaged; in short runs, the last fifth of them."""
INITIAL_TEMPERATURE = 0.1
EXPORTED_LOG_STD = -2.0
"""The file of a policy has one spread for all observations; SAC's depends on them. Only who samples
from the file, instead of taking its action, sees it."""


@dataclass(frozen=True, slots=True)
class SacSettings:
    """What an update is compiled for."""

    obs_dim: int
    action_dim: int
    net_arch: tuple[int, ...]

    @property
    def target_entropy(self) -> float:
        return ENTROPY_PER_ACTION * self.action_dim

    def actor_layers(self) -> dict[str, tuple[int, int]]:
        widths = (self.obs_dim, *self.net_arch)
        hidden = {f"actor.{i}": (widths[i], widths[i + 1]) for i in range(len(self.net_arch))}
        return {**hidden, "actor.mean": (widths[-1], self.action_dim),
                "actor.log_std": (widths[-1], self.action_dim)}  # fmt: skip

    def critic_layers(self) -> dict[str, tuple[int, int]]:
        widths = (self.obs_dim + self.action_dim, *self.net_arch, 1)
        return {
            f"critic_{k}.{i}": (widths[i], widths[i + 1])
            for k in range(CRITICS)
            for i in range(len(widths) - 1)
        }


class SACLearner:
    """An actor and its critics, with the past steps that they learn from."""

    backend: Literal["fast"] = "fast"

    def __init__(self, loop: TrainingLoop) -> None:
        self.loop, self.config = loop, loop.config
        config, space = loop.config, loop.env.single_action_space
        self.low, self.high = space.low.astype(np.float32), space.high.astype(np.float32)
        if not np.isfinite([self.low, self.high]).all():
            raise ConfigurationError(
                f"algorithm 'sac' needs actions with bounds, and those of {config.env_id} have "
                "none; use algorithm 'ppo'"
            )
        obs_dim, action_dim = (
            int(np.prod(s.shape)) for s in (loop.env.single_observation_space, space)
        )
        self.shape = NetworkShape.from_config(config, obs_dim, action_dim)
        self.settings = SacSettings(obs_dim, action_dim, config.net_arch)
        self.compiled_update, self._compiled = make_sac_update(self.settings), False
        self.observations = ObservationNormalizer(
            obs_dim, config.obs_clip, enabled=config.normalize_obs
        )
        self.replay = Replay(config.replay_size, config.num_envs, obs_dim, action_dim)
        self.stepper = Stepper(loop.env, loop.reward)
        self.random_steps = min(RANDOM_STEPS, config.total_timesteps // 10)
        self.reward_square, self.taken, self.owed, self.new_steps = 0.0, 0, 0.0, 0
        first, self.rng = np.random.default_rng(config.seed).spawn(2)
        if loop.saved is None:
            self.learner = initial_state(self.settings, first)
            self.restart(config.seed)
        else:
            arrays = loop.saved[0]
            loop.load_environments(arrays)
            self._load(arrays)
        self._use_parameters()

    def restart(self, seed: int | None = None) -> None:
        self.stepper.restart(seed)
        self.observations.update(self.stepper.obs)
        self.replay.end_episodes()

    def act(self, steps: int) -> tuple[int, int]:
        """Take as many steps as the next call of the update asks for."""
        config = self.config
        per_call = round(UPDATES_PER_CALL / config.updates_per_step / config.num_envs)
        count = min(max(1, per_call), steps)
        rows = (count, config.num_envs)
        block: Arrays = {
            "obs": np.empty((*rows, self.settings.obs_dim), np.float32),
            "actions": np.empty((*rows, self.settings.action_dim), np.float32),
            "rewards": np.empty(rows, np.float32),
            "terminated": np.empty(rows, np.bool_),
            "ended": np.empty(rows, np.bool_),
        }
        layers = layers_of(self.settings.actor_layers(), self.parameters)
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        shape, random = block["actions"].shape, self.taken < self.random_steps
        drawn = self.rng.uniform(-1, 1, shape) if random else self.rng.standard_normal(shape)
        drawn = drawn.astype(np.float32)
        for t in range(count):
            self.loop.alive("rollout")
            obs = self.stepper.obs
            if random:
                squashed = drawn[t]
            else:
                mean, log_std = gaussian(layers, self.observations(obs), np)
                squashed = np.tanh(mean + np.exp(log_std) * drawn[t])
            step = self.stepper.step(middle + half * squashed, last=t + 1 == count)
            block["obs"][t], block["actions"][t] = obs, squashed
            block["terminated"][t], block["ended"][t] = step.terminated, self.stepper.starts
            self.observations.update(step.obs)
        rewards, terms = self.stepper.rewards()
        block["rewards"][:] = rewards
        self.replay.add(**block)
        self.reward_square += float(np.sum(rewards**2))
        self.taken += rewards.size
        self.new_steps = rewards.size
        return count, self.loop.episodes.add(rewards, terms, block["ended"])

    def update(self) -> list[Metrics]:
        """Do the updates that the new steps call for."""
        if self.taken < self.random_steps or not self.replay.ready:
            return []
        self.owed += self.new_steps * self.config.updates_per_step
        metrics: list[Metrics] = []
        rate = np.float32(self.config.learning_rate)
        while self.owed >= UPDATES_PER_CALL:
            self.owed -= UPDATES_PER_CALL
            with self.loop.alive.during("update" if self._compiled else "compile"):
                self.learner, logs = self.compiled_update(self.learner, self._batches(), rate)
                self._use_parameters()
            self._compiled = True
            # At once: an actor that is no longer finite would make the reward look guilty.
            metrics.append(finite_metrics(logs, self.loop.step))
        return metrics

    def _batches(self) -> Batches:
        config = self.config
        size = config.replay_batch_size
        drawn = self.replay.sample(self.rng, UPDATES_PER_CALL, size, config.gamma)
        for name in ("obs", "next_obs"):
            self.observations.apply(drawn[name])
        if config.normalize_reward and self.reward_square > 0:
            drawn["returns"] /= np.float32(np.sqrt(self.reward_square / self.taken))
        most = config.reward_clip * STEPS_OF_RETURN
        drawn["returns"] = np.clip(drawn["returns"], -most, most)
        shape = (UPDATES_PER_CALL, size, 2, self.settings.action_dim)
        return Batches(**drawn, noise=self.rng.standard_normal(shape, np.float32))

    def _use_parameters(self) -> None:
        self.parameters = np.array(self.learner.actor.parameters)

    def policy(self) -> Policy:
        average = np.array(self.learner.policy)
        tensors = policy_tensors(self.settings, self.shape, average, self.low, self.high)
        statistics = self.observations.statistics
        return Policy.from_training(self.config, tensors, statistics, (self.low, self.high))

    def state(self) -> Arrays:
        environments = self.loop.save_environments()
        return {
            **add_prefix("learner", flat_state(self.learner)),
            **add_prefix("replay", self.replay.state()),
            **add_prefix("observations", self.observations.statistics.state_dict()),
            **self.stepper.state(),
            "counts": np.array([self.reward_square, self.taken, self.owed]),
            **environments,
            "rng": generator_to_array(self.rng),
        }

    def _load(self, arrays: Arrays) -> None:
        self.learner = state_from(self.settings, part("learner", arrays))
        self.replay.load_state(part("replay", arrays))
        self.observations.statistics.load_state_dict(part("observations", arrays))
        self.stepper.load_state(arrays)
        self.reward_square, taken, self.owed = arrays["counts"].tolist()
        self.taken = int(taken)
        self.rng = generator_from_array(arrays["rng"])


class Adam(NamedTuple):
    """Parameters with the two moments of their gradients."""

    parameters: Any
    first: Any
    second: Any

    @classmethod
    def begin(cls, parameters: NDArray[np.float32]) -> Adam:
        return cls(parameters, np.zeros_like(parameters), np.zeros_like(parameters))

    def step(self, gradient: Any, rate: float, count: Any) -> Adam:
        first = self.first + 0.1 * (gradient - self.first)
        second = self.second + 0.001 * (gradient * gradient - self.second)
        size = first / (1 - 0.9**count) / (jnp.sqrt(second / (1 - 0.999**count)) + 1e-8)
        return Adam(self.parameters - rate * size, first, second)


class SacState(NamedTuple):
    """What an update changes."""

    actor: Adam
    policy: Any
    """The running average of the actor's parameters."""
    critics: Adam
    target: Any
    log_alpha: Adam
    updates: Any


class Batches(NamedTuple):
    """K minibatches of B steps; the leading axes of every array are (K, B)."""

    obs: Any
    actions: Any
    """In [-1, 1]."""
    returns: Any
    """Discounted rewards of the steps up to `next_obs`."""
    next_obs: Any
    discounts: Any
    """Of the value of `next_obs`; 0 where the episode terminated before it."""
    weights: Any
    """0 for steps that nothing can be learnt from, 1 for others."""
    noise: Any
    """(K, B, 2, A): standard normal, for the next actions and for the present ones."""


def initial_state(settings: SacSettings, rng: np.random.Generator) -> SacState:
    def draw(layers: Mapping[str, tuple[int, int]]) -> NDArray[np.float32]:
        parts = []
        for name, (rows, columns) in layers.items():
            bound = 0.01 if name in ("actor.mean", "actor.log_std") else rows**-0.5
            parts += [rng.uniform(-bound, bound, rows * columns), np.zeros(columns)]
        return np.concatenate(parts).astype(np.float32)

    actor, critics = draw(settings.actor_layers()), draw(settings.critic_layers())
    temperature = np.full(1, np.log(INITIAL_TEMPERATURE), np.float32)
    return SacState(
        Adam.begin(actor),
        actor.copy(),
        Adam.begin(critics),
        critics.copy(),
        Adam.begin(temperature),
        np.int32(0),
    )


def flat_state(state: SacState) -> dict[str, NDArray[Any]]:
    """The arrays of a state by name."""
    return {str(i): np.array(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}


def state_from(settings: SacSettings, arrays: Mapping[str, NDArray[Any]]) -> SacState:
    """The state that `flat_state` took apart; ResumeError where it has other parts."""
    template = initial_state(settings, np.random.default_rng(0))
    shapes = {str(i): np.shape(leaf) for i, leaf in enumerate(jax.tree.leaves(template))}
    if {name: array.shape for name, array in arrays.items()} != shapes:
        raise ResumeError("the saved state is of another version of SAC; start the run anew")
    leaves = [arrays[name] for name in shapes]
    state: SacState = jax.tree.unflatten(jax.tree.structure(template), leaves)
    return state


def layers_of(shapes: Mapping[str, tuple[int, int]], vector: Any) -> dict[str, Any]:
    """(weight, bias) of every layer in a flat vector."""
    layers, start = {}, 0
    for name, (rows, columns) in shapes.items():
        middle = start + rows * columns
        end = middle + columns
        layers[name] = vector[start:middle].reshape(rows, columns), vector[middle:end]
        start = end
    return layers


def gaussian(layers: Mapping[str, Any], obs: Any, xp: Any) -> tuple[Any, Any]:
    """Means and log standard deviations of actions before they are squashed."""
    x = obs
    for name, (weight, bias) in layers.items():
        if name not in ("actor.mean", "actor.log_std"):
            x = xp.tanh(x @ weight + bias)
    mean, raw = (x @ layers[name][0] + layers[name][1] for name in ("actor.mean", "actor.log_std"))
    low, high = LOG_STDS
    return mean, low + 0.5 * (high - low) * (xp.tanh(raw) + 1)


def policy_tensors(
    settings: SacSettings,
    shape: NetworkShape,
    parameters: NDArray[np.float32],
    low: NDArray[np.float32],
    high: NDArray[np.float32],
) -> Tensors:
    """The squashed mean, scaled to the bounds, as the actor of a plain network; no critic."""
    layers = layers_of(settings.actor_layers(), parameters)
    tensors = {name: np.zeros(dims, np.float32) for name, dims in shape.parameters().items()}
    sources = [name for name in layers if name != "actor.log_std"]
    for target, source in zip(shape.hidden("policy_net"), sources, strict=True):
        weight, bias = layers[source]
        tensors[f"{target}.weight"], tensors[f"{target}.bias"] = weight.T.copy(), bias.copy()
    half = (high - low) / 2
    tensors["action_net.weight"] = np.diag(half).astype(np.float32)
    tensors["action_net.bias"] = (low + half).astype(np.float32)
    tensors["log_std"] = (EXPORTED_LOG_STD + np.log(half)).astype(np.float32)
    return tensors


@cache
def make_sac_update(settings: SacSettings) -> Any:
    """`update(state, batches, learning_rate) -> (state, metrics)`.

    It does an update for each of the K minibatches, and is compiled at its first call. The state
    that is passed in is used up.
    """
    return jax.jit(partial(_updates, settings), donate_argnums=(0,))


def _updates(settings: SacSettings, state: SacState, batches: Batches, learning_rate: Any) -> Any:
    state, logs = lax.scan(partial(_update, settings, learning_rate), state, batches)
    return state, {name: values.mean() for name, values in logs.items()}


def _update(settings: SacSettings, learning_rate: Any, state: SacState, batch: Batches) -> Any:
    count = state.updates + 1
    alpha = jnp.exp(state.log_alpha.parameters[0])
    actor = layers_of(settings.actor_layers(), state.actor.parameters)
    next_actions, next_log_pi = _sample(actor, batch.next_obs, batch.noise[:, 0])
    min_qf_next_target = _critics(settings, state.target, batch.next_obs, next_actions).min(axis=0)
    next_q_value = batch.returns + batch.discounts * (min_qf_next_target - alpha * next_log_pi)

    def qf_loss(parameters: Any) -> Any:
        qf_values = _critics(settings, parameters, batch.obs, batch.actions)
        squares = (batch.weights * (qf_values - next_q_value) ** 2).sum(axis=1)
        return jnp.sum(squares) / jnp.maximum(batch.weights.sum(), 1), qf_values.mean()

    (loss, q_value), gradient = jax.value_and_grad(qf_loss, has_aux=True)(state.critics.parameters)
    critics = state.critics.step(gradient, learning_rate, count)
    target = state.target + TAU * (critics.parameters - state.target)

    def update_actor(parts: tuple[Adam, Any, Adam]) -> Any:
        actor, policy, log_alpha = parts

        def actor_loss(parameters: Any) -> Any:
            layers = layers_of(settings.actor_layers(), parameters)
            pi, log_pi = _sample(layers, batch.obs, batch.noise[:, 1])
            qf_pi = _critics(settings, critics.parameters, batch.obs, pi).mean(axis=0)
            return (alpha * log_pi - qf_pi).mean(), -log_pi.mean()

        gradient, entropy = jax.grad(actor_loss, has_aux=True)(actor.parameters)
        actor_count = jnp.ceil(count / POLICY_FREQUENCY)
        entropy_error = jnp.reshape(entropy - settings.target_entropy, 1)
        actor = actor.step(gradient, learning_rate, actor_count)
        weight = jnp.maximum(1 / AVERAGED_UPDATES, 5 / (actor_count + 4))
        return (
            actor,
            policy + weight * (actor.parameters - policy),
            log_alpha.step(entropy_error, learning_rate, actor_count),
        )

    parts = state.actor, state.policy, state.log_alpha
    new_actor, policy, log_alpha = lax.cond(
        count % POLICY_FREQUENCY == 1, update_actor, lambda unchanged: unchanged, parts
    )
    logs = {
        "critic_loss": loss,
        "q_value": q_value,
        "entropy": -next_log_pi.mean(),
        "temperature": alpha,
    }
    return SacState(new_actor, policy, critics, target, log_alpha, count), logs


def _sample(layers: Mapping[str, Any], obs: Any, noise: Any) -> tuple[Any, Any]:
    """Squashed actions and their log-densities."""
    means, log_stds = gaussian(layers, obs, jnp)
    drawn = means + jnp.exp(log_stds) * noise
    # log(1 - tanh(x) ** 2), written so that it does not round to log(0)
    squashed = 2 * (jnp.log(2.0) - drawn - jax.nn.softplus(-2 * drawn))
    return jnp.tanh(drawn), jnp.sum(-0.5 * noise**2 - log_stds - LOG_SQRT_2PI - squashed, axis=-1)


def _critics(settings: SacSettings, parameters: Any, obs: Any, actions: Any) -> Any:
    """Estimates (CRITICS, B). One matrix product each: XLA is slow at batches of them on a CPU."""
    layers = layers_of(settings.critic_layers(), parameters)
    pairs = jnp.concatenate([obs, actions], axis=-1)
    estimates = []
    for k in range(CRITICS):
        x = pairs
        for i in range(len(settings.net_arch)):
            weight, bias = layers[f"critic_{k}.{i}"]
            x = x @ weight + bias
            x = x - x.mean(axis=-1, keepdims=True)
            x = jax.nn.relu(x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5))
        weight, bias = layers[f"critic_{k}.{len(settings.net_arch)}"]
        estimates.append((x @ weight + bias)[:, 0])
    return jnp.stack(estimates)


REPLAY_BYTES = 2**30
"""The most that the past steps may take: a saved state holds them all, and on disk are two."""


class Replay:
    """The newest steps of N environments, from which minibatches are drawn.

    It keeps `size` of them, fewer where they would take more than REPLAY_BYTES.
    """

    ARRAYS = ("obs", "actions", "rewards", "terminated", "ended")

    def __init__(self, size: int, num_envs: int, obs_dim: int, action_dim: int) -> None:
        bytes_of_step = 4 * (obs_dim + action_dim + 1) + 2
        size = min(size, REPLAY_BYTES // bytes_of_step)
        rows = (max(size // num_envs, 2 * STEPS_OF_RETURN), num_envs)
        self.obs = np.zeros((*rows, obs_dim), np.float32)
        self.actions = np.zeros((*rows, action_dim), np.float32)
        self.rewards = np.zeros(rows, np.float32)
        self.terminated = np.zeros(rows, np.bool_)
        self.ended = np.zeros(rows, np.bool_)
        """Terminated or truncated by this step."""
        self._next, self._filled = 0, 0

    def add(self, **steps: NDArray[Any]) -> None:
        """Keep T steps, the newest of more than it holds: ARRAYS by name, (T, N, ...) each."""
        count = min(len(steps["rewards"]), len(self.obs))
        rows = (self._next + np.arange(count)) % len(self.obs)
        for name in self.ARRAYS:
            getattr(self, name)[rows] = steps[name][-count:]
        self._next = (self._next + count) % len(self.obs)
        self._filled = min(self._filled + count, len(self.obs))

    def end_episodes(self) -> None:
        """Mark the stored episodes as ended, so that later steps do not continue them."""
        if self._filled:
            self.ended[self._next - 1] = True

    @property
    def ready(self) -> bool:
        """Whether there is a step whose return is known."""
        return self._filled > STEPS_OF_RETURN

    def sample(
        self, rng: np.random.Generator, batches: int, batch_size: int, gamma: float
    ) -> dict[str, NDArray[Any]]:
        """Raw observations and returns of K * B steps, under the names of Batches.

        An episode cut off by its time limit would have gone on, but where is not kept: the return
        of a step ends before such a cut, and a cut step itself has weight 0.
        """
        count, capacity = batches * batch_size, len(self.obs)
        envs = rng.integers(0, self.rewards.shape[1], count)
        oldest = self._next - self._filled
        first = (oldest + rng.integers(0, self._filled - STEPS_OF_RETURN, count)) % capacity
        returns, discounts = np.zeros(count, np.float32), np.ones(count, np.float32)
        following, open_ = first.copy(), np.ones(count, np.bool_)
        over = np.zeros(count, np.bool_)
        for step in range(STEPS_OF_RETURN):
            rows = (first + step) % capacity
            terminated = self.terminated[rows, envs]
            open_ &= ~self.ended[rows, envs] | terminated
            returns += np.where(open_, discounts * self.rewards[rows, envs], 0)
            discounts = np.where(open_, discounts * np.float32(gamma), discounts)
            following = np.where(open_, (rows + 1) % capacity, following)
            over |= open_ & terminated
            open_ &= ~terminated
        shape = (batches, batch_size)
        arrays = {
            "obs": self.obs[first, envs],
            "actions": self.actions[first, envs],
            "returns": returns,
            "next_obs": self.obs[following, envs],
            "discounts": np.where(over, np.float32(0), discounts),
            "weights": (following != first).astype(np.float32),
        }
        return {name: array.reshape(*shape, *array.shape[1:]) for name, array in arrays.items()}

    def state(self) -> dict[str, NDArray[Any]]:
        arrays = {name: getattr(self, name)[: self._filled] for name in self.ARRAYS}
        return {**arrays, "next": np.array([self._next])}

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Load what `state` returned; stays empty if there is nothing."""
        if not arrays:
            return
        self._filled, self._next = len(arrays["rewards"]), int(arrays["next"][0])
        for name in self.ARRAYS:
            getattr(self, name)[: self._filled] = arrays[name]
