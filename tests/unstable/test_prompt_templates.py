"""Prompts in the markup of a model, and the move in its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from unstable.actor import ActorPool, VLLMActor
from unstable.core import AgentSpec, PlaySpec
from unstable.episodes import EnginePlayer
from unstable.games import Turn
from unstable.utils.templates import (
    TEMPLATES,
    add_templates,
    continue_prompt_ids,
    extract_action,
    format_prompt,
    tokenize_prompt,
)

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
def test_documented_templates_contain_observation(key):
    prompt = format_prompt(key, "the board {with braces}")
    assert "the board {with braces}" in prompt
    assert "\\boxed{}" in prompt


def test_bare_is_the_observation_alone_in_the_models_markup():
    assert format_prompt("bare", "board", Tokenizer()) == "<s><user>board</user><assistant>"
    assert format_prompt("bare", "board") == "board\n\nAnswer: "


def test_templates_write_markup_without_chat_template():
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


def test_templates_prefer_the_tokenizers_chat_template():
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
    assert tokenize_prompt("qwen3-zs", "b", Tokenizer()) == list(text.encode())


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
def test_find_last_box_is_linear_in_length(
    text,
):  # work that grows with its square would take minutes here
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


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}"
)


@pytest.fixture
def own_templates() -> Iterator[None]:
    before = dict(TEMPLATES)
    yield
    TEMPLATES.clear()
    TEMPLATES.update(before)


@pytest.mark.usefixtures("own_templates")
def test_custom_template_sets_markup_and_thinking(tiny: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    add_templates(
        {
            "quiet": {"instruction": "Be brief.", "markup": "plain", "chat_template": CHATML,
                      "thinking": False},
            "loud": {"instruction": "Be brief.", "markup": "plain", "chat_template": CHATML,
                     "thinking": True},
        }
    )  # fmt: skip
    asked = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nboard<|im_end|>\n"
    asked += "<|im_start|>assistant\n"
    assert format_prompt("loud", "board", tokenizer) == asked
    assert format_prompt("quiet", "board", tokenizer) == f"{asked}<think></think>"
    with pytest.raises(ValueError, match=r"templates\.bare"):
        add_templates({"bare": {"instruction": "Else.", "markup": "plain"}})


@pytest.mark.usefixtures("own_templates")
@pytest.mark.parametrize("chat_template", [CHATML, None])
@pytest.mark.parametrize("stopped", [True, False])
def test_history_keeps_sampled_tokens(tiny: Path, chat_template: str | None, stopped: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = None
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    fields = {"instruction": "", "markup": "chatml", "chat_template": chat_template}
    add_templates({"talk": {**fields, "history": True}})
    first = tokenizer.encode(format_prompt("talk", "one", tokenizer), add_special_tokens=False)
    answer = tokenizer.encode("x<think>y</think>z", add_special_tokens=False)
    end = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    assert len(end) == 1
    before = [*first, *answer, *(end if stopped else [])]
    ids = continue_prompt_ids("talk", "two", tokenizer, before, stopped=stopped)
    assert ids[: len(before)] == before
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\nx<think>y</think>z<|im_end|>\n"
        "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.usefixtures("own_templates")
def test_history_prompts_continue_earlier_turns(tiny: Path) -> None:
    add_templates({"talk": {"instruction": "", "markup": "plain", "history": True}})
    actor = VLLMActor({"model_name": str(tiny), "temperature": 1.0, "max_tokens": 3})
    agent = AgentSpec("checkpoint", None, "talk", "raw")
    spec = PlaySpec("TicTacToe-v0-train", 2, 0, [agent, agent], 0)

    async def play() -> list[Any]:
        client = ActorPool([actor]).client()
        player = EnginePlayer(spec, 0, client, None, actor.tokenizer)
        game = SimpleNamespace(turns=0)
        replies = [await player.act(game, Turn(0, text)) for text in ("one", "two", "three")]
        await actor.close()
        return [reply.completion for reply in replies]

    one, two, three = asyncio.run(play())
    for earlier, later in ((one, two), (two, three)):
        whole = (*earlier.prompt_ids, *earlier.token_ids)
        assert later.prompt_ids[: len(whole)] == whole
        assert len(later.prompt_ids) > len(whole)
