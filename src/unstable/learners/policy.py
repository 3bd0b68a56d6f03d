"""The trained model, and the learner's settings that fit into a GPU's memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.checkpoint import checkpoint

from unstable.algorithms.forward import find_trunk, skip_unasked, use_packed_attention
from unstable.engines.adapters import Adapter
from unstable.learners.fused import fuse, fuse_blocks
from unstable.utils.logging import quiet_transformers

Auto = Literal["auto"]
LEAST_PACK_TOKENS, MOST_PACK_TOKENS = 512, 16_384
"""Less than this is slow, and more is hardly faster."""
ENOUGH_TOKENS = 8192
"""Passes of so many are worth more than computing nothing twice."""
LOGITS_BYTES = 2**30
"""Logits of a chunk in several types, and what is there for a moment."""
WAYS = ((False, False), (False, True), (True, False), (True, True))
"""Activation and gradient checkpointing by speed: computing layers again costs a forward pass, and
blocks within them another."""
BYTES = 2
"""Of a number that is kept for the gradient."""
TRAINED_BYTES = 12
"""Of a trained weight beside itself: its gradient and two moments, float32."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a token's states in a layer, and the number of layers."""

    hidden: int
    attention: int
    keys: int
    intermediate: int
    layers: int

    @classmethod
    def of(cls, config: Any) -> Sizes:
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        keys = getattr(config, "num_key_value_heads", None) or heads
        return cls(
            config.hidden_size, heads * size, keys * size, config.intermediate_size,
            config.num_hidden_layers,
        )  # fmt: skip

    @property
    def attention_block(self) -> int:
        """Kept within it: before and after the rotation, values, and what is attended."""
        return 3 * self.attention + 3 * self.keys

    @property
    def mlp_block(self) -> int:
        return 3 * self.intermediate

    @property
    def around_blocks(self) -> int:
        """Both sums and both norms."""
        return 4 * self.hidden

    @property
    def gradients(self) -> int:
        """There at the most, within an MLP: those of gate and up, of what comes in and goes out."""
        return 2 * self.intermediate + 2 * self.hidden


@dataclass(frozen=True)
class MemoryPlan:
    """Settings of a learner."""

    activation_checkpointing: bool
    gradient_checkpointing: bool
    pack_tokens: int
    """Tokens of a pass."""
    max_train_len: int | None
    """None: nothing has to be cut off."""
    fits: int
    """Tokens that a pass could have."""

    def __str__(self) -> str:
        def switch(on: bool) -> str:
            return "on" if on else "off"

        cut = "whole sequences" if self.max_train_len is None else f"{self.max_train_len} tokens"
        return (
            f"activation checkpointing {switch(self.activation_checkpointing)}, gradient"
            f" checkpointing {switch(self.gradient_checkpointing)}, passes of"
            f" {self.pack_tokens} tokens, trained on {cut}"
        )


def bytes_per_token(
    sizes: Sizes, *, activation_checkpointing: bool, gradient_checkpointing: bool
) -> float:
    """Estimate the peak memory of a pass per token."""
    blocks = sizes.attention_block + sizes.mlp_block
    layer = sizes.around_blocks + (0 if activation_checkpointing else blocks)
    # One block at a time is computed again where it was not kept, and has gradients beside it.
    block = max(sizes.attention_block, sizes.mlp_block) if activation_checkpointing else 0
    if gradient_checkpointing:
        return BYTES * (sizes.hidden * sizes.layers + layer + block + sizes.gradients)
    return BYTES * (layer * sizes.layers + block + sizes.gradients)


def plan_memory(
    config: Any,
    free: float,
    trained: int,
    *,
    activation_checkpointing: bool | Auto = "auto",
    gradient_checkpointing: bool | Auto = "auto",
    max_train_len: int | Auto | None = "auto",
    pack_tokens: int | None = None,
) -> MemoryPlan:
    """Return the fastest settings for passes of ENOUGH_TOKENS, or those that fit most.

    Args:
        config: of the model.
        free: bytes for everything that a pass needs, the optimiser's included.
        trained: weights that are trained.
        activation_checkpointing: as it is set, or `auto`.
        gradient_checkpointing: the same.
        max_train_len: the same; `auto`: what a pass can have, where that is less than is common.
        pack_tokens: as it is set; None: as many as fit, within bounds.
    """
    room = max(0.0, free - TRAINED_BYTES * trained - LOGITS_BYTES)
    sizes = Sizes.of(config)
    asked = (activation_checkpointing, gradient_checkpointing)
    allowed = [
        way for way in WAYS if all(a in ("auto", b) for a, b in zip(asked, way, strict=True))
    ]
    fits = 0
    for activation, gradient in allowed:
        cost = bytes_per_token(
            sizes, activation_checkpointing=activation, gradient_checkpointing=gradient
        )
        fits = int(room / cost)
        if fits >= (pack_tokens or ENOUGH_TOKENS):
            break
    if pack_tokens is None:
        pack_tokens = max(LEAST_PACK_TOKENS, min(fits, MOST_PACK_TOKENS))
    if max_train_len == "auto":
        longest = getattr(config, "max_position_embeddings", None) or MOST_PACK_TOKENS
        cut = max(LEAST_PACK_TOKENS, fits)
        max_train_len = None if cut >= min(longest, 2 * MOST_PACK_TOKENS) else cut
    return MemoryPlan(activation, gradient, pack_tokens, max_train_len, fits)


def free_memory(device: torch.device) -> int:
    """Return the bytes left on a GPU, within what this process may take."""
    free, total = torch.cuda.mem_get_info(device)
    reserved, used = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    free += reserved - used
    share = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    if share is None:
        return free
    # It wants a device's number, which plain "cuda" has not.
    numbered = device if ":" in str(device) else f"cuda:{torch.cuda.current_device()}"
    return min(free, int(share(numbered) * total) - used)


LORA_DEFAULTS = {
    "lora_rank": 32,
    "lora_alpha": 32,
    "lora_dropout": 0.0,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
}
"""What `lora_cfg` does not say."""
PACK_TOKENS = 4096
"""Of a CPU."""
CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def choose_device(device: str) -> torch.device:
    """Return a device by name; `auto`: a GPU where there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Return the type of frozen weights; `auto`: bfloat16 on a GPU, float32 elsewhere."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if dtype not in DTYPES:
        raise ValueError(f"no dtype {dtype!r}; there are auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def choose_settings(model: Any, device: torch.device, share: float, **asked: Any) -> MemoryPlan:
    """Plan for a share of a GPU's free memory; on a CPU memory is not planned.

    On a GPU longer passes are faster up to a point; on a CPU they leave the caches.
    """
    if device.type != "cuda":
        settings = {name: False if asked[name] == "auto" else asked[name] for name in CHECKPOINTING}
        cut = asked["max_train_len"]
        tokens = PACK_TOKENS if asked["pack_tokens"] is None else asked["pack_tokens"]
        return MemoryPlan(
            **settings, pack_tokens=tokens, max_train_len=None if cut == "auto" else cut,
            fits=tokens,
        )  # fmt: skip
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    free = share * free_memory(device)
    return plan_memory(model.config.get_text_config(), free, trained, **asked)


def load_policy(
    model_name: str,
    device: torch.device,
    dtype: torch.dtype,
    lora_cfg: Mapping[str, Any],
    initial_lora_path: str | None = None,
    *,
    full_parameters: bool = False,
    base: tuple[Any, Any] | None = None,
) -> tuple[Any, Any]:
    """Return a model whose trained weights are float32, and its tokenizer.

    Small steps vanish in bfloat16, so what is trained is float32 whatever the rest is.

    Args:
        model_name: by Hugging Face name or folder.
        device: where it goes.
        dtype: of what is frozen.
        lora_cfg: what differs from LORA_DEFAULTS.
        initial_lora_path: an adapter to begin with.
        full_parameters: train the model itself.
        base: a model and its tokenizer to put the adapter on, instead of loading them.
    """
    if full_parameters and (lora_cfg or initial_lora_path):
        raise ValueError("full_parameters trains the model itself: no lora_cfg, initial_lora_path")
    if full_parameters and base is not None:
        raise ValueError("full_parameters trains the model itself: it cannot be shared")
    stored = torch.float32 if full_parameters else dtype
    model, tokenizer = base or load_base(model_name, device, stored)
    use_packed_attention(model)
    if full_parameters:
        model.requires_grad_(True)
    elif initial_lora_path is not None:
        model = _load_adapter(model, initial_lora_path, lora_cfg)
    else:
        model = _add_adapter(model, lora_cfg)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    fuse(model)
    fuse_blocks(find_trunk(model))
    skip_unasked(find_trunk(model))
    return model, tokenizer


def load_base(model_name: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quiet_transformers()
    tokenizer = AutoTokenizer.from_pretrained(model_name)
    if tokenizer.pad_token is None:  # algorithms may fill batches up
        tokenizer.pad_token = tokenizer.eos_token
    model: Any = AutoModelForCausalLM.from_pretrained(model_name, dtype=dtype)
    return model.to(device), tokenizer


def copy_sharing_weights(model: Any) -> Any:
    """Return a model with layers of its own over the same tensors."""
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def copy_adapter(model: Any, name: str, dtype: torch.dtype) -> Adapter:
    """Return a copy of the adapter that is trained, as an engine takes it."""
    down: dict[str, torch.Tensor] = {}
    up: dict[str, torch.Tensor] = {}
    (active,) = model.active_adapters
    with torch.no_grad():
        for place, layer in model.get_base_model().named_modules():
            if active in getattr(layer, "lora_A", ()):
                down[place] = layer.lora_A[active].weight.to(dtype, copy=True)
                up[place] = (layer.lora_B[active].weight * layer.scaling[active]).to(dtype)
    first = next(iter(down.values()))
    if first.is_cuda:  # whoever takes it works on another stream
        torch.cuda.current_stream(first.device).synchronize()
    return Adapter(name, max(map(len, down.values())), down, up)


def _add_adapter(model: Any, lora_cfg: Mapping[str, Any]) -> Any:
    from peft import LoraConfig, get_peft_model

    unknown = lora_cfg.keys() - LORA_DEFAULTS.keys()
    if unknown:
        known = ", ".join(LORA_DEFAULTS)
        raise ValueError(f"lora_cfg has no {', '.join(sorted(unknown))}; there are {known}")
    chosen: dict[str, Any] = {**LORA_DEFAULTS, **lora_cfg}
    targets = chosen["target_modules"]
    config = LoraConfig(
        r=chosen["lora_rank"],
        lora_alpha=chosen["lora_alpha"],
        lora_dropout=chosen["lora_dropout"],
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def _load_adapter(model: Any, path: str, lora_cfg: Mapping[str, Any]) -> Any:
    """Load an existing adapter to continue; lora_cfg must not differ from its shape."""
    from peft import PeftConfig, PeftModel

    if not Path(path).is_dir():
        raise ValueError(f"initial_lora_path: no folder {path}")
    config = PeftConfig.from_pretrained(path)
    rank = getattr(config, "r", None)
    if lora_cfg.get("lora_rank", rank) != rank:
        raise ValueError(
            f"initial_lora_path: the adapter in {path} has rank {rank}, lora_cfg says"
            f" {lora_cfg['lora_rank']}"
        )
    return PeftModel.from_pretrained(model, path, is_trainable=True)


def enable_full_activation_ckpt(model: Any) -> None:
    """Recompute the activations of attention and MLP blocks in the backward pass.

    It goes with gradient checkpointing, which keeps none within whole layers.
    """
    for layer in find_trunk(model).layers:
        for block in layer.children():
            if any(True for _ in block.children()):  # norms are cheap to keep
                # A partial, not a closure: it is copied with its block, and leads to the copy.
                block.forward = partial(_recompute, block.forward)


def _recompute(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
