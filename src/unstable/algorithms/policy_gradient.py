"""The base of the algorithms: from steps to packed tokens, and from there to gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from unstable.algorithms import losses
from unstable.algorithms.forward import (
    PackedRow,
    as_tensor,
    compute_hidden_states,
    pack,
    token_logprobs,
    trunk_and_head,
)
from unstable.algorithms.losses import normalize
from unstable.core import BaseAlgo, Step


@dataclass(slots=True)
class Sample:
    """One step: prompt, answer to be trained, and advantage."""

    tokens: tuple[int, ...]
    """Prompt and answer, cut to the length that is trained."""
    prompt_length: int
    old_logprobs: tuple[float, ...]
    """Of the answer's tokens when they were sampled; empty where they were not stored."""
    step: Step
    truncated: bool = False
    advantage: float = 0.0
    reference_logprobs: tuple[float, ...] = ()
    target: float = 0.0
    """What the value of this turn should be, for algorithms with a critic."""

    @property
    def trained(self) -> int:
        return max(0, len(self.tokens) - self.prompt_length)


def to_sample(step: Step, tokenizer: Any, max_train_len: int | None = None) -> Sample:
    """Return a step's tokens; only a step that has none is tokenised, prompt and answer apart.

    Tokenised together, the border between them could vanish in a token, and an answer would be
    trained that was not given. An answer that comes as text also gets the token that ends it.
    """
    if step.completion_ids:
        prompt, answer = tuple(step.prompt_ids), tuple(step.completion_ids)
    else:
        prompt = tuple(tokenizer.encode(step.obs, add_special_tokens=False))
        answer = tuple(tokenizer.encode(step.act, add_special_tokens=False))
        end = tokenizer.eos_token_id
        answer = answer if end is None or answer[-1:] == (end,) else (*answer, end)
    if not prompt:
        # The first token needs something to follow; without it, it is taken as given.
        prompt, answer = answer[:1], answer[1:]
        known = tuple(step.logprobs[1:])
    else:
        known = tuple(step.logprobs)
    tokens = (prompt + answer)[:max_train_len]
    trained = max(0, len(tokens) - len(prompt))
    return Sample(
        tokens,
        len(prompt),
        known[:trained] if len(known) == len(answer) else (),
        step,
        truncated=len(tokens) < len(prompt) + len(answer),
    )


def split_mini_batches(
    samples: Iterable[Sample], at_least: int, pack_tokens: int | None
) -> list[list[Sample]]:
    """Divide samples into mini-batches of `at_least` so many, and more that fit `pack_tokens`.

    They are ordered by length, since neighbours of equal length are computed as one, and equal
    ones stand together, since they are computed once.
    """
    ordered = sorted(samples, key=lambda sample: (len(sample.tokens), sample.tokens))
    batches: list[list[Sample]] = []
    room = 0
    last: tuple[int, ...] = ()
    for sample in ordered:
        size = 0 if sample.tokens == last else len(sample.tokens)
        if not batches or (len(batches[-1]) >= at_least and size > room):
            batches.append([])
            room = pack_tokens or 0
            size = len(sample.tokens)
        batches[-1].append(sample)
        room -= size
        last = sample.tokens
    return batches


def games_and_groups(samples: Sequence[Sample]) -> tuple[list[int], list[tuple[str, str, int]]]:
    """Return the game of every sample, and its group: games of the same seat that began alike.

    The seats of one game have different chances, and where one wins the other loses.

    Raises:
        ValueError: some games are of no group.
    """
    games = [sample.step.episode for sample in samples]
    groups = [(sample.step.env_id, sample.step.group, sample.step.pid) for sample in samples]
    if not all(sample.step.group for sample in samples):
        raise ValueError(
            "some games of this batch are of no group: let the collector play games in groups"
            " (group_size) and the buffer keep them together (buffer_strategy='groups')"
        )
    return games, groups


NO_GRAD_TOKENS = 8192
"""Tokens of a row where nothing is kept for a gradient."""


@dataclass(frozen=True)
class PackedBatch:
    """A mini-batch: its sequences in a row, each once, and the data of each trained token.

    Tensors have one entry per trained token of every sample, or one per sample.
    """

    samples: list[Sample]
    """All, those without a trained token included."""
    row: PackedRow | None
    """None: no sample has a trained token."""
    before: Tensor
    """Places in the row whose hidden states say the trained tokens, of each sequence once."""
    targets: Tensor
    """The tokens they should say."""
    temperatures: Tensor
    """Of each of these tokens, when it was sampled: all distributions here are at it."""
    which: Tensor
    """For every trained token its place in `targets`: equal sequences share theirs."""
    prompt_ends: Tensor
    """Per sample with trained tokens, the place of the last token of its prompt."""
    old: Tensor
    known: Tensor
    advantage: Tensor
    weight: Tensor
    reference: Tensor


class PolicyGradientOptions(TypedDict, total=False):
    centre: bool
    scale: bool
    kl_coef: float
    entropy_coef: float


class PolicyGradient(BaseAlgo):
    """Base of the algorithms that weigh log-probabilities of tokens by advantages.

    Args:
        centre: subtract the batch's mean from the advantages.
        scale: divide the advantages by their standard deviation over the batch.
        kl_coef: weight of the divergence from the model as it was before training.
        entropy_coef: weight of the entropy of the tokens' distributions, which is maximised.

    Log-probabilities, divergence and entropy are of the distributions that answers were sampled
    from: the softmax of the logits divided by the step's temperature.
    """

    per_length = False
    """Divide a sequence's sum by its own length instead of `max_generation_len`."""
    needs_old = False
    """The loss is made of ratios: log-probabilities that were not stored are computed first."""

    def __init__(
        self,
        *,
        centre: bool = False,
        scale: bool = False,
        kl_coef: float = 0.0,
        entropy_coef: float = 0.0,
    ) -> None:
        self.centre = centre
        self.scale = scale
        self.kl_coef = kl_coef
        self.entropy_coef = entropy_coef
        self._reference: Any = None

    def initialize(self, model: Any, *args: Any, **kwargs: Any) -> None:
        """Take the learner's model; it attends by layout."""
        super().initialize(model, *args, **kwargs)
        self.trunk, self.head = trunk_and_head(model)
        if self.kl_coef and not hasattr(model, "disable_adapter"):
            self._reference = copy.deepcopy(model).eval().requires_grad_(False)

    # --- the whole batch ----------------------------------------------------------------------

    def prepare_steps(self, steps: Sequence[Step]) -> list[Sample]:
        """Return a whole batch as samples with their advantages, before it is divided."""
        samples = [to_sample(step, self.tokenizer, self.max_train_len) for step in steps]
        advantages = self.advantages(samples)
        if self.centre or self.scale:
            advantages = normalize(advantages, centre=self.centre, scale=self.scale)
        for sample, advantage in zip(samples, advantages, strict=True):
            sample.advantage = advantage
        if self.needs_old:
            self._fill_old([s for s in samples if s.trained and not s.old_logprobs])
        if self.kl_coef:
            self._fill_reference([s for s in samples if s.trained])
        return samples

    def advantages(self, samples: Sequence[Sample]) -> list[float]:
        """Return the advantage of each step; here its reward."""
        return [sample.step.reward for sample in samples]

    def split(
        self, items: Sequence[Any], mini_batch_size: int, pack_tokens: int | None
    ) -> list[list[Any]]:
        """Divide samples into rows; the sum of their gradients does not depend on it."""
        return split_mini_batches(items, mini_batch_size, pack_tokens)

    # --- a mini-batch -------------------------------------------------------------------------

    def prepare_batch(self, steps: Sequence[Any]) -> PackedBatch:
        samples = list(steps)
        if not all(isinstance(sample, Sample) for sample in samples):
            samples = self.prepare_steps(samples)
        trained = [sample for sample in samples if sample.trained]
        lengths = [sample.trained for sample in trained]
        divisor = None if self.per_length else self.max_generation_len
        old = [sample.old_logprobs or (0.0,) * sample.trained for sample in trained]
        known = [bool(sample.old_logprobs) for sample in trained for _ in range(sample.trained)]
        return PackedBatch(
            samples,
            *self._row(trained),
            self._tensor([value for values in old for value in values]),
            as_tensor(known, np.bool_, self.device),
            self._tensor([s.advantage for s in trained for _ in range(s.trained)]),
            self._tensor(losses.token_weights(lengths, len(samples), divisor)),
            self._tensor([value for s in trained for value in s.reference_logprobs]),
        )

    def update(self, steps: Sequence[Any], scaling: float = 1.0) -> dict[str, float]:
        """Add the gradients of the mini-batch's mean loss, divided by `scaling`."""
        batch = self.prepare_batch(steps)
        metrics = {"avg_train_len": _mean([len(s.tokens) for s in batch.samples])}
        metrics["pct_truncated"] = _mean([s.truncated for s in batch.samples])
        metrics["advantage_mean"] = _mean([s.advantage for s in batch.samples])
        if batch.row is None:
            return {**metrics, "loss": 0.0}
        # The last token of a prompt says the first of its answer: the critic's places are in it.
        hidden = compute_hidden_states(
            self.trunk, batch.row, asked=batch.before, use_cache=self.use_cache
        )
        unique, spread = token_logprobs(
            hidden[batch.before], self.head, batch.targets, batch.temperatures,
            entropy=bool(self.entropy_coef),
        )  # fmt: skip
        logp = unique[batch.which]
        loss, seen = self.policy_loss(logp, batch)
        if self.kl_coef:
            divergence = losses.kl_to_reference(logp, batch.reference)
            loss = loss + self.kl_coef * (batch.weight * divergence).sum()
            seen["kl"] = divergence.mean()
        if spread is not None:
            loss = loss - self.entropy_coef * (batch.weight * spread[batch.which]).sum()
            seen["entropy"] = spread.mean()
        extra = self.further_loss(hidden, batch, seen)
        total = loss if extra is None else loss + extra
        (total / scaling).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            seen |= {"loss": loss, "logp_mean": logp.mean(), "logp_std": logp.std(correction=0)}
            values = torch.stack([value.detach().float() for value in seen.values()]).tolist()
        return {**metrics, **dict(zip(seen, values, strict=True))}

    def policy_loss(self, logp: Tensor, batch: PackedBatch) -> tuple[Tensor, losses.Metrics]:
        raise NotImplementedError

    def further_loss(
        self, hidden: Tensor, batch: PackedBatch, seen: losses.Metrics
    ) -> Tensor | None:
        """Return a loss beside the policy's, and put its metrics into `seen`; None: none."""
        del hidden, batch, seen
        return None

    # --- passes without a gradient ------------------------------------------------------------

    def rows(self, samples: Sequence[Sample]) -> Iterator[tuple[list[Sample], Any]]:
        """Yield samples in rows for a pass without a gradient, each with its `_row`."""
        for some in split_mini_batches(samples, 1, NO_GRAD_TOKENS):
            yield some, self._row(some)

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample], model: Any = None) -> list[tuple[float, ...]]:
        """Compute log-probabilities of each sample's trained tokens, by this model or another."""
        model = self.model if model is None else model
        trunk, head = trunk_and_head(model)
        by_sample: dict[int, tuple[float, ...]] = {}
        was_training = model.training
        model.eval()
        for some, (row, before, targets, temperatures, which, _) in self.rows(samples):
            hidden = compute_hidden_states(trunk, row, asked=before)
            unique, _ = token_logprobs(hidden[before], head, targets, temperatures)
            values, start = unique[which].tolist(), 0
            for sample in some:
                by_sample[id(sample)] = tuple(values[start : start + sample.trained])
                start += sample.trained
        model.train(was_training)
        return [by_sample[id(sample)] for sample in samples]

    def _fill_old(self, samples: Sequence[Sample]) -> None:
        for sample, values in zip(samples, self.logprobs(samples), strict=True):
            sample.old_logprobs = values

    def _fill_reference(self, samples: Sequence[Sample]) -> None:
        base = nullcontext() if self._reference is not None else self.model.disable_adapter()
        with base:
            values = self.logprobs(samples, self._reference)
        for sample, reference in zip(samples, values, strict=True):
            sample.reference_logprobs = reference

    def _row(
        self, trained: Sequence[Sample]
    ) -> tuple[PackedRow | None, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the samples' sequences, equal ones once, and the other tensors of PackedBatch."""
        keys = [(s.tokens, s.prompt_length, s.step.temperature) for s in trained]
        first = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        unique = list(first)
        row = pack([tokens for tokens, *_ in unique], self.device) if unique else None
        starts = row.starts if row is not None else ()
        before: list[int] = []
        targets: list[int] = []
        temperatures: list[float] = []
        places: list[range] = []
        for (tokens, prompt, temperature), start in zip(unique, starts, strict=True):
            places.append(range(len(targets), len(targets) + len(tokens) - prompt))
            before += range(start + prompt - 1, start + len(tokens) - 1)
            targets += tokens[prompt:]
            temperatures += [temperature] * (len(tokens) - prompt)
        index = [first[key] for key in keys]
        ends = [starts[i] + unique[i][1] - 1 for i in index]
        which = [place for i in index for place in places[i]]
        index_of = self._index
        return (
            row, index_of(before), index_of(targets), self._tensor(temperatures), index_of(which),
            index_of(ends),
        )  # fmt: skip

    def _tensor(self, values: list[float]) -> Tensor:
        return as_tensor(values, np.float32, self.device)

    def _index(self, values: list[int]) -> Tensor:
        return as_tensor(values, np.int64, self.device)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
