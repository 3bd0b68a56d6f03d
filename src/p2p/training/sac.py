"""Soft actor-critic: a compiled update, and the past steps that it learns from.

The critics normalise their layers, which keeps them from diverging at few updates per step, and
learn from returns of several steps. The actor that explores changes with every update and may
stumble after any of them; the policy is its running average, which stumbles less. It is a plain
multilayer perceptron: the squashed mean is one more tanh layer, so it is saved, exported and
played like PPO's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from p2p.training.checkpoints import ResumeError
from p2p.training.policies.network import NetworkShape, Tensors
from p2p.training.ppo import LOG_SQRT_2PI

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

CRITICS = 2
LOG_STDS = (-5.0, 2.0)
TARGET_RATE = 0.01
"""How far the target critics follow the critics in an update."""
ACTOR_EVERY = 2
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
    learning_rate: float

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
    log_temperature: Adam
    updates: Any


class Batches(NamedTuple):
    """K minibatches of B steps; the leading axes of every array are (K, B)."""

    obs: Any
    actions: Any
    """In [-1, 1]."""
    returns: Any
    """Discounted rewards of the steps up to `later_obs`."""
    later_obs: Any
    discounts: Any
    """Of the value of `later_obs`; 0 where the episode terminated before it."""
    weights: Any
    """0 for steps that nothing can be learnt from, 1 for others."""
    noise: Any
    """(K, B, 2, A): standard normal, for the later actions and for the present ones."""


def initial_state(settings: SacSettings, rng: np.random.Generator) -> SacState:
    def drawn(layers: Mapping[str, tuple[int, int]]) -> NDArray[np.float32]:
        parts = []
        for name, (rows, columns) in layers.items():
            bound = 0.01 if name in ("actor.mean", "actor.log_std") else rows**-0.5
            parts += [rng.uniform(-bound, bound, rows * columns), np.zeros(columns)]
        return np.concatenate(parts).astype(np.float32)

    actor, critics = drawn(settings.actor_layers()), drawn(settings.critic_layers())
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
    """`update(state, batches) -> (state, metrics)`: an update for each of the K minibatches.

    Compiled at its first call. The state that is passed in is used up.
    """
    return jax.jit(partial(_updates, settings), donate_argnums=(0,))


def _updates(settings: SacSettings, state: SacState, batches: Batches) -> Any:
    state, logs = lax.scan(partial(_update, settings), state, batches)
    return state, {name: values.mean() for name, values in logs.items()}


def _update(settings: SacSettings, state: SacState, batch: Batches) -> Any:
    count = state.updates + 1
    temperature = jnp.exp(state.log_temperature.parameters[0])
    actor = layers_of(settings.actor_layers(), state.actor.parameters)
    later, log_probs = _sample(actor, batch.later_obs, batch.noise[:, 0])
    values = _critics(settings, state.target, batch.later_obs, later).min(axis=0)
    targets = batch.returns + batch.discounts * (values - temperature * log_probs)

    def critic_loss(parameters: Any) -> Any:
        estimates = _critics(settings, parameters, batch.obs, batch.actions)
        squares = (batch.weights * (estimates - targets) ** 2).sum(axis=1)
        return jnp.sum(squares) / jnp.maximum(batch.weights.sum(), 1), estimates.mean()

    (loss, value), gradient = jax.value_and_grad(critic_loss, has_aux=True)(
        state.critics.parameters
    )
    critics = state.critics.step(gradient, settings.learning_rate, count)
    target = state.target + TARGET_RATE * (critics.parameters - state.target)

    def improve(parts: tuple[Adam, Any, Adam]) -> Any:
        actor, policy, log_temperature = parts

        def actor_loss(parameters: Any) -> Any:
            layers = layers_of(settings.actor_layers(), parameters)
            actions, log_probs = _sample(layers, batch.obs, batch.noise[:, 1])
            estimates = _critics(settings, critics.parameters, batch.obs, actions).mean(axis=0)
            return (temperature * log_probs - estimates).mean(), -log_probs.mean()

        gradient, entropy = jax.grad(actor_loss, has_aux=True)(actor.parameters)
        turn = jnp.ceil(count / ACTOR_EVERY)
        lack = jnp.reshape(entropy - settings.target_entropy, 1)
        actor = actor.step(gradient, settings.learning_rate, turn)
        share = jnp.maximum(1 / AVERAGED_UPDATES, 5 / (turn + 4))
        return (
            actor,
            policy + share * (actor.parameters - policy),
            log_temperature.step(lack, settings.learning_rate, turn),
        )

    parts = state.actor, state.policy, state.log_temperature
    new_actor, policy, log_temperature = lax.cond(
        count % ACTOR_EVERY == 1, improve, lambda unchanged: unchanged, parts
    )
    logs = {
        "critic_loss": loss,
        "q_value": value,
        "entropy": -log_probs.mean(),
        "temperature": temperature,
    }
    return SacState(new_actor, policy, critics, target, log_temperature, count), logs


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
        """What follows is not the continuation of what is here."""
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
        later, open_ = first.copy(), np.ones(count, np.bool_)
        over = np.zeros(count, np.bool_)
        for step in range(STEPS_OF_RETURN):
            rows = (first + step) % capacity
            terminated = self.terminated[rows, envs]
            open_ &= ~self.ended[rows, envs] | terminated
            returns += np.where(open_, discounts * self.rewards[rows, envs], 0)
            discounts = np.where(open_, discounts * np.float32(gamma), discounts)
            later = np.where(open_, (rows + 1) % capacity, later)
            over |= open_ & terminated
            open_ &= ~terminated
        shape = (batches, batch_size)
        arrays = {
            "obs": self.obs[first, envs],
            "actions": self.actions[first, envs],
            "returns": returns,
            "later_obs": self.obs[later, envs],
            "discounts": np.where(over, np.float32(0), discounts),
            "weights": (later != first).astype(np.float32),
        }
        return {name: array.reshape(*shape, *array.shape[1:]) for name, array in arrays.items()}

    def state(self) -> dict[str, NDArray[Any]]:
        arrays = {name: getattr(self, name)[: self._filled] for name in self.ARRAYS}
        return {**arrays, "next": np.array([self._next])}

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """As `state` gave it; it stays empty where there is nothing."""
        if not arrays:
            return
        self._filled, self._next = len(arrays["rewards"]), int(arrays["next"][0])
        for name in self.ARRAYS:
            getattr(self, name)[: self._filled] = arrays[name]
