"""Clipped policy gradients: PPO, GRPO, Dr. GRPO, and A2C, which has a critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor

from unstable.algorithms import losses
from unstable.algorithms.forward import compute_hidden_states
from unstable.algorithms.losses import gae, group_relative, per_turn_rewards
from unstable.algorithms.policy_gradient import (
    PackedBatch,
    PolicyGradient,
    PolicyGradientOptions,
    Sample,
    games_and_groups,
)


class PPO(PolicyGradient):
    """The clipped policy gradient of PPO (Schulman et al. 2017, equation 7), without its critic.

    The ratio to the policy that sampled is clipped token by token; the advantage is the reward,
    less the batch's mean with `centre`. PPO with the critic of that paper is `A2C(clip=0.2)`.

    Args:
        clip: how far the ratio may go from 1 before a step gains nothing more by it.
        clip_high: the same upwards, where it should differ.
        **options: those of PolicyGradient.
    """

    needs_old = True

    def __init__(
        self,
        clip: float = 0.2,
        clip_high: float | None = None,
        **options: Unpack[PolicyGradientOptions],
    ) -> None:
        super().__init__(**options)
        self.clip = clip
        self.clip_high = clip if clip_high is None else clip_high

    def policy_loss(self, logp: Tensor, batch: PackedBatch) -> tuple[Tensor, losses.Metrics]:
        return losses.clipped_loss(
            logp, batch.old, batch.advantage, batch.weight, low=self.clip, high=self.clip_high
        )


class GRPO(PPO):
    """GRPO compares games that began alike, instead of using a critic (Shao et al. 2024).

    The advantage is the reward less the group's mean, divided by the group's spread; an answer's
    tokens share one unit of weight, however many they are. Takes the arguments of PPO, and a
    buffer with `buffer_strategy="groups"`.
    """

    needs_episodes = True
    needs_groups = True
    per_length = True
    by_spread = True
    """Divide by the spread of the group."""

    def advantages(self, samples: Sequence[Sample]) -> list[float]:
        rewards = [sample.step.reward for sample in samples]
        return group_relative(rewards, *games_and_groups(samples), scale=self.by_spread)


class DrGRPO(GRPO):
    """GRPO without its two biases (Liu et al. 2025).

    The sum over an answer's tokens is divided by `max_generation_len`, the advantage by nothing:
    no group counts more for agreeing.
    """

    per_length = False
    by_spread = False


class A2C(PolicyGradient):
    """Advantage actor-critic (Mnih et al. 2016), by generalised estimates (Schulman et al. 2016).

    Advantages are over a learned value of the position, along each player's turns. With `clip` the
    loss is PPO's, and the whole is PPO as published (Schulman et al. 2017): actor, critic, clip.
    The value is read off the hidden state of the prompt's last token: all that the player sees is
    before it, and the policy's own forward pass gives it. Needs a buffer with
    `buffer_strategy="episodes"`. A step's reward is its credit for the rest of the game, as for
    all algorithms here; for discounting use `DiscountToEnd`.

    Args:
        gae_lambda: 1 trusts the outcomes, 0 the values.
        value_coef: weight of the critic's loss.
        value_learning_rate: of the head.
        train_trunk: let the critic's gradients into the policy's weights. The policy's loss has a
            constant divisor and may be far smaller, so it is off.
        clip: width of PPO's clipped loss; None: the plain policy gradient.
        importance_cap: without `clip`, bound of the correction for tokens of an older policy.
        **options: those of PolicyGradient.
    """

    needs_episodes = True

    def __init__(
        self,
        gae_lambda: float = 0.95,
        value_coef: float = 0.5,
        *,
        value_learning_rate: float = 1e-3,
        train_trunk: bool = False,
        clip: float | None = None,
        importance_cap: float | None = 2.0,
        **options: Unpack[PolicyGradientOptions],
    ) -> None:
        super().__init__(**options)
        self.gae_lambda = gae_lambda
        self.value_coef = value_coef
        self.value_learning_rate = value_learning_rate
        self.train_trunk = train_trunk
        self.clip = clip
        self.importance_cap = importance_cap
        self.needs_old = clip is not None

    def initialize(self, model: Any, *args: Any, **kwargs: Any) -> None:
        """Take the learner's model, and add a value head that predicts 0 at first."""
        super().initialize(model, *args, **kwargs)
        size = model.config.get_text_config().hidden_size
        self.value_head = torch.nn.Linear(size, 1, device=self.device, dtype=torch.float32)
        torch.nn.init.zeros_(self.value_head.weight)
        torch.nn.init.zeros_(self.value_head.bias)

    def modules(self) -> dict[str, Any]:
        return {"value_head": self.value_head}

    def learning_rate(self, name: str) -> float | None:
        del name
        return self.value_learning_rate

    def advantages(self, samples: Sequence[Sample]) -> list[float]:
        """Estimates along each game, from the values before this update; sets the targets too."""
        games: dict[int, list[int]] = {}
        for index, sample in enumerate(samples):
            games.setdefault(sample.step.episode, []).append(index)
        values = self.values(samples)
        advantages = [0.0] * len(samples)
        for indices in games.values():
            turns = sorted(indices, key=lambda index: samples[index].step.turn)
            rewards = per_turn_rewards([samples[index].step.reward for index in turns])
            estimates = gae(rewards, [values[index] for index in turns], self.gae_lambda)
            for index, estimate in zip(turns, estimates, strict=True):
                advantages[index] = estimate
                samples[index].target = estimate + values[index]
        return advantages

    @torch.no_grad()
    def values(self, samples: Sequence[Sample]) -> list[float]:
        """Predict the value of each position for its player; 0 where the prompt itself was cut.

        Answers are not looked at, and a position that came up more than once is asked once.
        """
        self.model.eval()
        trained = [sample for sample in samples if sample.trained]
        asked = {_prompt(sample): replace(sample, tokens=_prompt(sample)) for sample in trained}
        by_prompt: dict[tuple[int, ...], float] = {}
        for some, (row, *_, ends) in self.rows(list(asked.values())):
            hidden = compute_hidden_states(self.trunk, row, asked=ends)
            values = self._value(hidden, ends).tolist()
            by_prompt |= {one.tokens: value for one, value in zip(some, values, strict=True)}
        return [by_prompt[_prompt(sample)] if sample.trained else 0.0 for sample in samples]

    def policy_loss(self, logp: Tensor, batch: PackedBatch) -> tuple[Tensor, losses.Metrics]:
        if self.clip is not None:
            return losses.clipped_loss(
                logp, batch.old, batch.advantage, batch.weight, low=self.clip, high=self.clip
            )
        return losses.policy_gradient(
            logp, batch.old, batch.known, batch.advantage, batch.weight, cap=self.importance_cap
        )

    def further_loss(
        self, hidden: Tensor, batch: PackedBatch, seen: losses.Metrics
    ) -> Tensor | None:
        trained = [sample for sample in batch.samples if sample.trained]
        value = self._value(hidden if self.train_trunk else hidden.detach(), batch.prompt_ends)
        target = torch.tensor([s.target for s in trained], device=value.device)
        loss = losses.value_loss(value, target) * len(trained) / len(batch.samples)
        seen["value_loss"] = loss
        seen["value_mean"] = value.mean()
        return self.value_coef * loss

    def _value(self, hidden: Tensor, ends: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            value: Tensor = self.value_head(hidden[ends].float())[:, 0]
        return value


def _prompt(sample: Sample) -> tuple[int, ...]:
    return sample.tokens[: sample.prompt_length]
