"""Prompts in the markup of a model, and the move in its answer."""

from __future__ import annotations

from typing import Any

import pytest

from unstable.utils.templates import extract_action, format_prompt, prompt_ids

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


# --- the move in an answer ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (r"so \boxed{4}", "[4]"),
        (r"so \boxed{[4]}", "[4]"),
        (r"first \boxed{1}, no: \boxed{2}.", "[2]"),
        (r"\boxed{ Bid: 3, 4 }", "[Bid: 3, 4]"),
        ("\\boxed{\n[col 3]\n}", "[col 3]"),
        ("\\boxed{[Offer: 3 Sheep\n -> 2 Ore]}", "[Offer: 3 Sheep -> 2 Ore]"),
        (r"\boxed{\text{check}}", "[check]"),
        (r"\boxed{\boxed{\mathrm{fold}}}", "[fold]"),
        (r"\boxed{a{b}c{d{e}}}", "[a{b}c{d{e}}]"),
        (r"\boxed{\{4\}}", r"[\{4\}]"),
        (r"\boxed {7}", "[7]"),
        (r"} {} \boxed{5} {", "[5]"),
        (r"\boxed{6} and then \boxed{ cut o", "[6]"),
        (r"\frac{1}{2} \boxed{8} {x}", "[8]"),
    ],
)
def test_the_last_closed_box_is_the_move(text, action):
    assert extract_action(text) == (action, {"correct_answer_format": True})


@pytest.mark.parametrize(
    "text", ["", "[4]", "I play 4", r"\boxed{}", r"\boxed{  }", r"\boxed{4", r"boxed{4}"]
)
def test_an_answer_without_a_box_is_passed_on_as_it_is(text):
    assert extract_action(text) == (text, {"correct_answer_format": False})


@pytest.mark.parametrize("text", [r"\boxed{" * 20_000, "{" * 200_000, "}" * 200_000])
def test_nonsense_is_read_once(text):  # work that grows with its square would take minutes here
    assert not extract_action(text)[1]["correct_answer_format"]


def test_brackets_can_be_the_format():
    assert extract_action("I think [1], no [col\n 4] it is", "brackets")[0] == "[col 4]"
    assert not extract_action("four", "brackets")[1]["correct_answer_format"]
    assert not extract_action("[4", "brackets")[1]["correct_answer_format"]


def test_an_answer_can_be_the_move():
    assert extract_action(" [4]\n", "raw") == ("[4]", {"correct_answer_format": True})


@pytest.mark.parametrize(
    ("text", "action"), [("4", "[4]"), (" col 3\n", "[col 3]"), ("[4]", "[4]")]
)
def test_an_answer_can_be_the_move_without_its_brackets(text, action):
    assert extract_action(text, "bare") == (action, {"correct_answer_format": True})
    assert not extract_action(" \n", "bare")[1]["correct_answer_format"]
