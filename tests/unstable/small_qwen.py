"""A random Qwen3 with a byte-level tokenizer, and random adapters for it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

EOS = 256


def small_qwen(seed: int = 0, **changes: Any) -> Any:
    """Big enough to have grouped heads and several layers; its weights are not near zero."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": 258, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 256, "initializer_range": 0.2, "eos_token_id": EOS,
        "pad_token_id": 257, "bos_token_id": None,
    }  # fmt: skip
    config = Qwen3Config(**(settings | changes))
    return Qwen3ForCausalLM(config).eval()


def byte_tokenizer() -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>"
    )


def save_qwen(folder: Path, seed: int = 0) -> str:
    small_qwen(seed).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def save_adapter(folder: Path, model: Any, seed: int, **changes: Any) -> str:
    """An adapter whose every matrix is random, so that it matters."""
    settings: dict[str, Any] = {
        "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "o_proj", "down_proj"],
    }  # fmt: skip
    torch.manual_seed(seed)
    adapted = get_peft_model(deepcopy(model), LoraConfig(**(settings | changes)))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(str(folder))
    return str(folder)


def with_adapter(model: Any, folder: str | None) -> Any:
    """What PEFT itself makes of an adapter."""
    model = deepcopy(model)
    return model if folder is None else PeftModel.from_pretrained(model, folder).eval()


@torch.no_grad()
def logprobs_of(model: Any, prompt: tuple[int, ...], answer: tuple[int, ...]) -> list[float]:
    """One sequence, without a cache: the reference."""
    logits = model(torch.tensor([[*prompt, *answer]])).logits[0].float()
    rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return [row[token].item() for row, token in zip(rows, answer, strict=True)]
