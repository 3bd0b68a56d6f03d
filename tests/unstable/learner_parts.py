"""A model and steps that are small enough to be worked through by hand."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from unstable.core import Step, Trajectory

ENV = "Toy-v0"


def make_model(folder: Path, *, seed: int = 0, layers: int = 2, **changes: Any) -> str:
    """A Qwen3 of a few thousand weights with a tokenizer of bytes, as a Hugging Face folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<end>", *alphabet])}
    # "ab" is one token: text that is cut between them shows who tokenises prompt and answer at once
    vocabulary["ab"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        eos_token_id=0, pad_token_id=0, initializer_range=0.2,
        **{"max_position_embeddings": 128, **changes},
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return str(folder)


def assert_close(found: dict[str, Any], expected: dict[str, Any], **tolerance: float) -> None:
    """Tensors by name, the same names and the same numbers."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **tolerance)


def make_steps(count: int, *, seed: int = 0, version: int = 0, turns: int = 4) -> list[Step]:
    """Ragged steps of several games, with tokens and log-probabilities."""
    rng = random.Random(seed)
    steps = []
    for number in range(count):
        prompt = [rng.randrange(1, 250) for _ in range(rng.randint(2, 12))]
        answer = [rng.randrange(1, 250) for _ in range(rng.randint(0, 5))] + [0]
        steps.append(
            Step(
                pid=number // turns % 2, obs="o", act="a", reward=rng.uniform(-1, 1), env_id=ENV,
                prompt_ids=prompt, completion_ids=answer,
                logprobs=[rng.uniform(-6.5, -4.5) for _ in answer], version=version,
                episode=number // turns, turn=number % turns, group=f"g{number // turns // 4}",
            )
        )  # fmt: skip
    return steps


def make_game(seed: int, *, turns: int = 4, version: int = 0, group: str = "") -> Trajectory:
    """A finished game with tokens, from one seat."""
    steps = make_steps(turns, seed=seed)
    return Trajectory(
        pid=[0] * turns,
        obs=["o"] * turns,
        actions=["a"] * turns,
        final_rewards={0: float(seed % 3 - 1), 1: float(1 - seed % 3)},
        num_turns=2 * turns,
        format_feedbacks=[{}] * turns,
        prompt_ids=[list(step.prompt_ids) for step in steps],
        completion_ids=[list(step.completion_ids) for step in steps],
        logprobs=[list(step.logprobs) for step in steps],
        versions=[version] * turns,
        group=group,
    )
