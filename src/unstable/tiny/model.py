"""The network of the embedded model, and its moves in a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstable.utils.templates import prompt_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

TEMPLATE = "bare"
"""The prompt template that the model is made for."""
MAX_LENGTH = 2048
"""Positions the model is made for; boards need a few dozen."""
IGNORED = -100
"""The label of a token that is not learned."""


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A network with random weights, the same for the same seed."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        initializer_range=0.09,  # 1 / sqrt(hidden): the usual 0.02 is for models ten times as wide
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]


def tokens_of(tokenizer: PreTrainedTokenizerFast, board: str, move: str) -> tuple[list[int], int]:
    """A turn as tokens, the one that ends it included, and how many of them are the prompt."""
    prompt = prompt_ids(TEMPLATE, board, tokenizer)
    answer = tokenizer.encode(move, add_special_tokens=False)
    return [*prompt, *answer, int(tokenizer.eos_token_id)], len(prompt)


def batch_tensors(examples: Sequence[tuple[list[int], int]], pad: int) -> tuple[Tensor, Tensor]:
    """Token ids, and labels that leave out prompts and padding.

    Padding stands at the end: a causal model does not look there, and needs no mask.
    """
    import torch

    width = max(len(ids) for ids, _ in examples)
    ids = torch.full((len(examples), width), pad)
    labels = torch.full((len(examples), width), IGNORED)
    for row, (tokens, prompt) in enumerate(examples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, prompt : len(tokens)] = torch.tensor(tokens[prompt:])
    return ids, labels


def sample_moves(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    boards: Sequence[str],
    seed: int,
    max_tokens: int = 16,
) -> list[str]:
    """What the model answers, at temperature 1 and from all tokens."""
    import torch

    by_length: dict[int, list[int]] = {}
    prompts = [prompt_ids(TEMPLATE, board, tokenizer) for board in boards]
    for number, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(number)
    answers = [""] * len(boards)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        for length, numbers in sorted(by_length.items()):  # alike in length: nothing to pad
            ids = torch.tensor([prompts[number] for number in numbers])
            tokens = model.generate(  # type: ignore[misc]
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                max_new_tokens=max_tokens,
            )
            texts = tokenizer.batch_decode(tokens[:, length:], skip_special_tokens=True)
            for number, text in zip(numbers, texts, strict=True):
                answers[number] = text
    return answers
