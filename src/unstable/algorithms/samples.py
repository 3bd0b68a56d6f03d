"""Steps as tokens: what the algorithms here train on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from unstable.core import Step


@dataclass(slots=True)
class Sample:
    """One step: the prompt, the answer to be trained, and what it was worth."""

    tokens: tuple[int, ...]
    """Prompt and answer, cut to the length that is trained."""
    prompt_length: int
    old_logprobs: tuple[float, ...]
    """Of the answer's tokens when they were sampled; empty where nobody stored them."""
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
    """A step's own tokens; only a step that has none is tokenised, prompt and answer each alone.

    Tokenised together, the border between them could vanish in a token, and an answer would be
    trained that nobody gave. An answer that comes as text also gets the token that ends it.
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


def mini_batches(
    samples: Iterable[Sample], at_least: int, pack_tokens: int | None
) -> list[list[Sample]]:
    """Divide samples: `at_least` so many each, and more while they fit into `pack_tokens`.

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
    """The game of every sample, and the games it is compared with: of the same seat only.

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
