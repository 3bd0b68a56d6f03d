"""Inference engines: token ids in; token ids and their log-probabilities out."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

FinishReason = Literal["stop", "length"]


class EngineError(RuntimeError):
    """A request could not be answered; the message says why, and by which engine."""


@dataclass(frozen=True)
class Sampling:
    """Sampling options of a request."""

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
        """Read the sampling options of an engine's configuration."""
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
        """Return `queued`, `running`, and `tokens` generated so far."""
        ...

    async def close(self) -> None:
        """Free all resources; requests in flight fail with EngineError."""
        ...


__all__ = ["ENGINES", "Completion", "Engine", "EngineError", "Sampling", "make_engine"]

ENGINES = {
    "transformers": ("unstable.engines.transformers_engine", "TransformersEngine"),
    "vllm": ("unstable.engines.vllm_engine", "VLLMEngine"),
}
"""The module and class by the name in `cfg["engine"]`."""

OPTIONS = ("device", "dtype", "max_parallel_seq", "max_model_len", "max_loras")
"""Arguments of every engine, as a configuration names them."""


def make_engine(cfg: Mapping[str, Any], loaded: tuple[Any, Any] | None = None) -> Engine:
    """Make the engine that a configuration asks for.

    Args:
        cfg: `model_name`, and if wanted `engine` (`auto`: vllm where it is installed and there is a
            GPU, else transformers), `device`, `dtype`, `max_parallel_seq`, `max_model_len`,
            `max_loras`, the `lora_rank` of `lora_config` and `gpu_memory_utilization`; without
            that, vllm takes the `free_memory_share` of what is free now.
        loaded: a model of transformers and its tokenizer, whose weights a learner here uses too.
    """
    name = cfg.get("engine", "auto")
    if name == "auto":
        name = "vllm" if _has_vllm() else "transformers"
    if name not in ENGINES:
        raise ValueError(f"no engine {name!r}; there are auto, {', '.join(ENGINES)}")
    if not cfg.get("model_name"):
        raise ValueError("the engine's configuration has no model_name")
    options = {key: cfg[key] for key in OPTIONS if key in cfg}
    if name == "vllm":
        import torch

        # The other engine takes adapters as they come, and memory as it needs it.
        rank = cfg.get("lora_config", {}).get("lora_rank")
        share = cfg.get("gpu_memory_utilization")
        if share is None and "free_memory_share" in cfg and torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            share = cfg["free_memory_share"] * free / total
        only_here = {"max_lora_rank": rank, "gpu_memory_utilization": share}
        options |= {key: value for key, value in only_here.items() if value is not None}
    module, kind = ENGINES[name]
    model = cfg["model_name"]
    if loaded is not None:
        if name != "transformers":
            raise ValueError(f"the engine {name!r} cannot share a model with a learner")
        model, options["tokenizer"] = loaded
        options["beside_learner"] = True
    engine: Engine = getattr(importlib.import_module(module), kind)(model, **options)
    return engine


def _has_vllm() -> bool:
    if importlib.util.find_spec("vllm") is None:
        return False
    import torch

    return torch.cuda.is_available()
