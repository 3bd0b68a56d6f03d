"""Who generates."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from unstable.engines.protocol import Completion, Engine, EngineError, Sampling

__all__ = ["ENGINES", "Completion", "Engine", "EngineError", "Sampling", "make_engine"]

ENGINES = {
    "transformers": ("unstable.engines.transformers_engine", "TransformersEngine"),
    "vllm": ("unstable.engines.vllm_engine", "VLLMEngine"),
}
"""The module and class by the name in `cfg["engine"]`."""

OPTIONS = {
    "device": "device",
    "dtype": "dtype",
    "max_parallel_seq": "max_parallel_seq",
    "max_model_len": "max_model_len",
    "max_loras": "max_adapters",
}
"""The engines' arguments, by what a configuration calls them."""


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
    options = {argument: cfg[key] for key, argument in OPTIONS.items() if key in cfg}
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
