"""What every engine does: token ids in; token ids and their log-probabilities out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

FinishReason = Literal["stop", "length"]


class EngineError(RuntimeError):
    """A request could not be answered; the message says why, and by which engine."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, per request."""

    temperature: float = 1.0
    """0: always the most likely token."""
    top_p: float = 1.0
    max_tokens: int = 4096
    seed: int | None = None
    """The same seed draws the same tokens from the same probabilities, whoever else is served."""
    forced: tuple[int, ...] = ()
    """Tokens that are taken without being drawn, to learn how likely they are; no others follow."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Sampling:
        """What an engine's configuration says of it."""
        return cls(**{name: config[name] for name in CONFIGURED if name in config})


CONFIGURED = ("temperature", "top_p", "max_tokens")


@dataclass(frozen=True)
class Completion:
    """An answer, as it was sampled."""

    token_ids: tuple[int, ...]
    """The one that stopped the answer included."""
    logprobs: tuple[float, ...]
    """Of each token, after the temperature; with temperature 0, under the model itself. What top_p
    leaves out may count (transformers) or not (vLLM): learn from answers with top_p 1 alone."""
    finish_reason: FinishReason
    text: str
    """Without special tokens."""
    prompt_ids: tuple[int, ...] = ()
    """What it answers; an engine that tokenised a text says so here."""
    sampling: Sampling = Sampling()
    """How it was drawn."""


class Engine(Protocol):
    """Answers many requests at once, each with an adapter of its own."""

    async def generate(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, adapter: str | None = None
    ) -> Completion:
        """Answer one request; many are awaited at the same time.

        Args:
            prompt_ids: the whole prompt.
            sampling: how to draw.
            adapter: the folder of a LoRA adapter as PEFT saves it; None: the model as it is.

        Raises:
            EngineError: the prompt is too long, or the adapter cannot be loaded.
        """
        ...

    def stats(self) -> dict[str, float]:
        """`queued`, `running`, and `tokens` generated so far."""
        ...

    async def close(self) -> None:
        """Free what is held; requests that are under way fail with EngineError."""
        ...
