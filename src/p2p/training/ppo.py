"""One PPO update as one compiled JAX program: Stable-Baselines3's algorithm, step for step.

A rollout goes in; values, log-probabilities, advantages, every epoch and every minibatch, the
optimiser and the health metrics are computed without coming back to Python. Parameters and
Adam's moments are single flat vectors, which is what makes a step on a small network cheap.
"""

from __future__ import annotations

import sys
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from p2p.training.compiled_update import UpdateProgram, UpdateSettings
from p2p.training.policies.network import (
    NetworkShape,
    explained_variance,
    forward,
    gaussian_shift,
    unflatten,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-5
LOG_SQRT_2PI = 0.5 * float(np.log(2 * np.pi))
PER_MINIBATCH = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")


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
def make_update(shape: NetworkShape, settings: UpdateSettings) -> Any:
    """`update(state, rollout, permutations) -> (state, metrics)`, compiled at its first call.

    `permutations` (epochs, T * N) holds, for each epoch, an order of the transitions counted
    environment by environment (as SB3 counts them); the caller draws it. The state that is
    passed in is used up.
    """
    return jax.jit(partial(_update, shape, settings), donate_argnums=(0,))


def advantages(settings: UpdateSettings, rewards: Any, values: Any, dones: Any) -> Any:
    """Generalised advantage estimates (T, N) from values (T + 1, N)."""
    alive = 1.0 - dones
    deltas = rewards + settings.gamma * values[1:] * alive - values[:-1]
    decay = settings.gamma * settings.gae_lambda * alive

    def back(following: Any, now: Any) -> Any:
        delta, keep = now
        estimate = delta + keep * following
        return estimate, estimate

    return lax.scan(back, jnp.zeros_like(values[0]), (deltas, decay), reverse=True)[1]


def log_prob(actions: Any, means: Any, log_std: Any) -> Any:
    """Log-density of actions under a diagonal Gaussian."""
    scaled = (actions - means) * jnp.exp(-log_std)
    return jnp.sum(-0.5 * scaled**2 - log_std - LOG_SQRT_2PI, axis=-1)


def _update(
    shape: NetworkShape,
    settings: UpdateSettings,
    state: LearnerState,
    rollout: Rollout,
    permutations: Any,
) -> tuple[LearnerState, dict[str, Any]]:
    old = unflatten(shape, state.parameters)
    means, values = forward(shape, old, rollout.obs, jnp)
    gains = advantages(settings, rollout.rewards, values, rollout.dones.astype(jnp.float32))
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
    order = permutations.reshape(-1, settings.minibatch_size)
    # One gather a minibatch instead of six.
    table = jnp.concatenate([x.reshape(len(x), -1) for x in batch], axis=1)
    step = partial(_minibatch, shape, settings, table)
    (state, _), logs = lax.scan(step, (state, jnp.bool_(False)), order)

    new = unflatten(shape, state.parameters)
    new_means, _ = forward(shape, new, rollout.obs[:-1], jnp)
    metrics = _averages(logs, epochs)
    metrics |= gaussian_shift(means[:-1], old["log_std"], new_means, new["log_std"], jnp)
    metrics["explained_variance"] = explained_variance(batch.values, batch.returns, jnp)
    metrics["policy_std"] = jnp.exp(new["log_std"]).mean()
    metrics["learning_rate"] = jnp.float32(settings.learning_rate)
    return state, metrics


def _environment_by_environment(x: Any) -> Any:
    return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])


def _minibatch(
    shape: NetworkShape, settings: UpdateSettings, table: Any, carry: Any, rows: Any
) -> Any:
    """One gradient step, unless the policy has already moved too far in this update."""

    def work(state: LearnerState) -> Any:
        batch = _columns(shape, table.at[rows].get(mode="promise_in_bounds"))
        tensors = unflatten(shape, state.parameters)
        loss = partial(_loss, shape, settings, batch)
        gradients, logs = jax.grad(loss, has_aux=True)(tensors)
        flat = jnp.concatenate([gradients[name].ravel() for name in shape.parameters()])
        moved, logs["grad_norm"] = _adam(settings, state, flat)
        return moved, logs

    state, stopped = carry
    if settings.target_kl is None:
        state, logs = work(state)
        return (state, stopped), (logs, jnp.bool_(True))

    def idle(state: LearnerState) -> Any:
        return state, {name: jnp.float32(0) for name in PER_MINIBATCH}

    moved, logs = lax.cond(stopped, idle, work, state)
    stop = logs["approx_kl"] > 1.5 * settings.target_kl
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
    shape: NetworkShape, settings: UpdateSettings, batch: _Batch, tensors: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    means, values = forward(shape, tensors, batch.obs, jnp)
    log_ratio = log_prob(batch.actions, means, tensors["log_std"]) - batch.log_probs
    ratio = jnp.exp(log_ratio)
    gains = batch.advantages
    if settings.norm_adv and settings.minibatch_size > 1:
        gains = (gains - gains.mean()) / (gains.std(ddof=1) + 1e-8)
    clip = settings.clip_coef
    policy_loss = -jnp.minimum(gains * ratio, gains * jnp.clip(ratio, 1 - clip, 1 + clip)).mean()
    if settings.clip_vloss:
        values = batch.values + jnp.clip(values - batch.values, -clip, clip)
    value_loss = jnp.mean((batch.returns - values) ** 2)
    entropy = jnp.sum(tensors["log_std"] + 0.5 + LOG_SQRT_2PI)
    loss = policy_loss - settings.ent_coef * entropy + settings.vf_coef * value_loss
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": jnp.mean(ratio - 1 - log_ratio),
        "clip_fraction": jnp.mean(jnp.abs(ratio - 1) > clip),
    }


def _adam(settings: UpdateSettings, state: LearnerState, gradient: Any) -> tuple[LearnerState, Any]:
    norm = jnp.sqrt(jnp.sum(gradient**2))
    gradient *= jnp.minimum(settings.max_grad_norm / (norm + 1e-6), 1.0)
    beta1, beta2 = ADAM_BETAS
    steps = state.steps + 1
    # 1 - beta ** steps, without the loss of digits that float32 would have at the first steps.
    correction1 = -jnp.expm1(steps * np.float32(np.log(beta1)))
    correction2 = -jnp.expm1(steps * np.float32(np.log(beta2)))
    first = state.first_moment + (1 - beta1) * (gradient - state.first_moment)
    second = beta2 * state.second_moment + (1 - beta2) * gradient**2
    # Adam's step with both corrections taken out of the vectors: one root and one division each.
    root = jnp.sqrt(correction2)
    rate = settings.learning_rate * root / correction1
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
    update = make_update(shape, program.settings)
    update.lower(LearnerState.begin(parameters), rollout, orders).compile()


if __name__ == "__main__":
    compile_update(UpdateProgram.from_json(sys.stdin.buffer.read()))
