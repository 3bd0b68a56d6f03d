"""Prompts in the markup of a model."""

from __future__ import annotations

from typing import Any

import pytest

from unstable.utils.templates import format_prompt, prompt_ids

DOCUMENTED = (
    "default", "qwen3-zs", "qwen3-reasoning", "gemma3-zs", "llama-instruct-zs", "qwen3-sp",
)  # fmt: skip


class Tokenizer:
    """Renders like a tokenizer with a chat template of its own."""

    chat_template: str | None = "{{ messages }}"

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        turns = "".join(f"<{m['role']}>{m['content']}</{m['role']}>" for m in messages)
        return f"<s>{turns}<assistant>"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [0] * add_special_tokens + list(text.encode())


@pytest.mark.parametrize("key", DOCUMENTED)
def test_the_documented_keys_hold_the_observation_and_the_format(key):
    prompt = format_prompt(key, "the board {with braces}")
    assert "the board {with braces}" in prompt
    assert "\\boxed{}" in prompt


def test_bare_is_the_observation_alone_in_the_models_markup():
    assert format_prompt("bare", "board", Tokenizer()) == "<s><user>board</user><assistant>"
    assert format_prompt("bare", "board") == "board\n\nAnswer: "


def test_chat_markup_is_written_out_where_the_tokenizer_has_none():
    class Base(Tokenizer):
        chat_template = None

    for tokenizer in (None, Base()):
        prompt = format_prompt("qwen3-zs", "board", tokenizer)
        assert prompt.startswith("<|im_start|>user\n")
        assert prompt.endswith("board<|im_end|>\n<|im_start|>assistant\n")
    assert format_prompt("gemma3-zs", "b").endswith("b<end_of_turn>\n<start_of_turn>model\n")
    llama = format_prompt("llama-instruct-zs", "b")
    assert llama.startswith("<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n")
    assert llama.endswith("b<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n")


def test_the_tokenizers_own_template_comes_first():
    prompt = format_prompt("qwen3-zs", "board", Tokenizer())
    assert prompt.startswith("<s><user>")
    assert prompt.endswith("board</user><assistant>")
    assert "im_start" not in prompt


def test_reasoning_opens_with_a_thought_exactly_once():
    assert format_prompt("qwen3-reasoning", "b").endswith("assistant\n<think>\n")
    assert format_prompt("qwen3-reasoning", "b", Tokenizer()).endswith("<assistant><think>\n")

    class Opening(Tokenizer):
        def apply_chat_template(self, messages: Any, **options: Any) -> str:
            return super().apply_chat_template(messages, **options) + "<think>\n"

    assert format_prompt("qwen3-reasoning", "b", Opening()).count("<think>") == 1


def test_no_special_token_is_added_to_the_markup():
    text = format_prompt("qwen3-zs", "b", Tokenizer())
    assert prompt_ids("qwen3-zs", "b", Tokenizer()) == list(text.encode())
