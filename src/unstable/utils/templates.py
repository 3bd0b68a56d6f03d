"""Prompts: an observation of a game in the chat markup of a model; and the move in its answer.

The markup comes from the tokenizer's own chat template where it has one. Written-out markup is the
fallback for base models whose tokenizer has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Message = dict[str, str]

PLAY = (
    "You are playing a two-player zero-sum game. Make valid moves to win. Reason step by step about"
    " the position, then give your final action inside \\boxed{}."
)
SINGLE_PLAYER = (
    "You are playing a single-player game. Reason step by step about what to do next, then give"
    " your final action inside \\boxed{}."
)


@dataclass(frozen=True)
class Template:
    instruction: str
    """What the model is told beside the observation."""
    markup: str
    """Which of MARKUP to fall back on."""
    as_system: bool = True
    """The instruction in a message of its own; some chat formats know no system message."""
    opening: str = ""
    """The beginning of the answer, written for the model."""

    def messages(self, observation: str) -> list[Message]:
        if self.as_system and self.instruction:
            return [
                {"role": "system", "content": self.instruction},
                {"role": "user", "content": observation},
            ]
        parts = [part for part in (self.instruction, observation) if part]
        return [{"role": "user", "content": "\n\n".join(parts)}]


TEMPLATES: dict[str, Template] = {
    "default": Template(PLAY, markup="plain", as_system=False),
    "qwen3-zs": Template(PLAY, markup="chatml", as_system=False),
    "qwen3-sp": Template(SINGLE_PLAYER, markup="chatml", as_system=False),
    "qwen3-reasoning": Template(PLAY, markup="chatml", as_system=False, opening="<think>\n"),
    "gemma3-zs": Template(PLAY, markup="gemma", as_system=False),
    "llama-instruct-zs": Template(PLAY, markup="llama3"),
    "bare": Template("", markup="plain", as_system=False),
}
"""By the key that an environment names. `bare` tells the model nothing beside the observation, for
models trained on a game's positions. `raw` is none of them: the observation without markup."""


def format_prompt(key: str, observation: str, tokenizer: Any = None) -> str:
    """The text a model is given.

    Args:
        key: one of TEMPLATES, or `raw`.
        observation: what the player sees.
        tokenizer: its chat template is used where it has one.
    """
    if key == "raw":
        return observation
    template = get_template(key)
    messages = template.messages(observation)
    if getattr(tokenizer, "chat_template", None):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        opened = template.opening and text.rstrip().endswith(template.opening.strip())
        return str(text) if opened else f"{text}{template.opening}"
    return _written_out(template.markup, messages) + template.opening


def prompt_ids(key: str, observation: str, tokenizer: Any) -> list[int]:
    """The same as tokens. Special tokens stand in the markup; none is added to it."""
    text = format_prompt(key, observation, tokenizer)
    return list(tokenizer.encode(text, add_special_tokens=False))


def get_template(key: str) -> Template:
    """The template; raises ValueError with the known keys."""
    try:
        return TEMPLATES[key]
    except KeyError:
        known = ", ".join(sorted((*TEMPLATES, "raw")))
        raise ValueError(f"no prompt template {key!r}; there are {known}") from None


def _written_out(markup: str, messages: list[Message]) -> str:
    begin, message, answer = MARKUP[markup]
    return "".join((begin, *(message.format(**one) for one in messages), answer))


MARKUP = {
    "plain": ("", "{content}\n\n", "Answer: "),
    "chatml": (
        "",
        "<|im_start|>{role}\n{content}<|im_end|>\n",
        "<|im_start|>assistant\n",
    ),
    "gemma": (
        "<bos>",
        "<start_of_turn>{role}\n{content}<end_of_turn>\n",
        "<start_of_turn>model\n",
    ),
    "llama3": (
        "<|begin_of_text|>",
        "<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
}
"""The beginning of a chat, each of its messages, and the beginning of the answer."""


Extraction = tuple[str, dict[str, bool]]
"""The action for the game, and feedback: `correct_answer_format`."""

_BRACES = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")
_MARKUP = re.compile(r"\\(?:text|textbf|texttt|mathrm|mathbf|boxed)\s*\{(.*)\}", re.DOTALL)
_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_LINE_BREAK = re.compile(r"\s*\n\s*")


def extract_action(text: str, key: str = "default") -> Extraction:
    r"""The action in an answer, by one of the ways in ACTION_EXTRACTION.

    An answer in the wrong format is still an action, as a whole: the game decides what it is worth.
    """
    try:
        extract = ACTION_EXTRACTION[key]
    except KeyError:
        known = ", ".join(sorted(ACTION_EXTRACTION))
        raise ValueError(f"no action extraction {key!r}; there are {known}") from None
    action = extract(text)
    if not action:
        return text, {"correct_answer_format": False}
    return action, {"correct_answer_format": True}


def boxed(text: str) -> str:
    r"""The content of the last closed `\boxed{...}`, in brackets unless it has some."""
    content = last_box(text)
    while (markup := _MARKUP.fullmatch(content)) is not None:
        content = markup[1].strip()
    content = _LINE_BREAK.sub(" ", content)
    return content if not content or "[" in content else f"[{content}]"


def bracketed(text: str) -> str:
    groups = _BRACKETS.findall(text)
    return _LINE_BREAK.sub(" ", groups[-1]) if groups else ""


def bare(text: str) -> str:
    """All of the answer, in brackets unless it has some."""
    content = text.strip()
    return content if not content or "[" in content else f"[{content}]"


def last_box(text: str) -> str:
    r"""What stands in the last `\boxed{...}` that is closed; braces in it may be nested.

    One pass over the text, whatever is in it: models also write ten thousand open boxes.
    """
    open_braces: list[int | None] = []  # where the content begins, for those of a box
    content = (0, 0)
    for match in _BRACES.finditer(text):
        brace = match[0]
        if brace == "{":
            open_braces.append(None)
        elif brace == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None:
                content = (start, match.start())
        elif brace.startswith("\\b"):
            open_braces.append(match.end())
    return text[slice(*content)].strip()


ACTION_EXTRACTION: dict[str, Callable[[str], str]] = {
    "default": boxed,
    "brackets": bracketed,
    "bare": bare,
    "raw": str.strip,
}
"""By key: a function from the answer to the action, empty where the format is wrong."""
