"""Prompt templates, and the extraction of moves from answers.

The markup comes from the tokenizer's own chat template where it has one. Written-out markup is the
fallback for base models whose tokenizer has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unstable.utils.plugins import load_part

Message = dict[str, str]

PLAY = (
    "You are playing a {kind} game. Make valid moves to win. Reason step by step about"
    " the position, then give your final action inside \\boxed{{}}."
)
SINGLE_PLAYER = (
    "You are playing a single-player game. Reason step by step about what to do next, then give"
    " your final action inside \\boxed{}."
)


@dataclass(frozen=True)
class Template:
    instruction: str | None
    """What the model is told beside the observation; None: what fits the number of players."""
    markup: str
    """Which of MARKUP to fall back on."""
    as_system: bool = True
    """The instruction in a message of its own; some chat formats know no system message."""
    opening: str = ""
    """The beginning of the answer, written for the model."""
    chat_template: str | None = None
    """Instead of the tokenizer's own: a Jinja template, or the name of another one that it has."""
    thinking: bool | None = None
    """Whether the model is to think first, for chat templates that ask (`enable_thinking`)."""
    history: bool = False
    """The prompt goes on from the player's earlier turns, token by token as they were sampled."""

    def messages(self, observation: str, num_players: int = 2) -> list[Message]:
        instruction = self.instruction
        if instruction is None:
            instruction = choose_instruction(num_players)
        if self.as_system and instruction:
            return [
                {"role": "system", "content": instruction},
                {"role": "user", "content": observation},
            ]
        parts = [part for part in (instruction, observation) if part]
        return [{"role": "user", "content": "\n\n".join(parts)}]


def choose_instruction(num_players: int) -> str:
    if num_players == 1:
        return SINGLE_PLAYER
    return PLAY.format(kind="two-player zero-sum" if num_players == 2 else f"{num_players}-player")


TEMPLATES: dict[str, Template] = {
    "default": Template(None, markup="plain", as_system=False),
    "qwen3-zs": Template(None, markup="chatml", as_system=False),
    "qwen3-sp": Template(SINGLE_PLAYER, markup="chatml", as_system=False),
    "qwen3-reasoning": Template(None, markup="chatml", as_system=False, opening="<think>\n"),
    "gemma3-zs": Template(None, markup="gemma", as_system=False),
    "llama-instruct-zs": Template(None, markup="llama3"),
    "bare": Template("", markup="plain", as_system=False),
}
"""By the key that an environment names. `bare` tells the model nothing beside the observation, for
models trained on a game's positions. `raw` is none of them: the observation without markup."""


def format_prompt(key: str, observation: str, tokenizer: Any = None, num_players: int = 2) -> str:
    """Return the text a model is given.

    Args:
        key: one of TEMPLATES, or `raw`.
        observation: what the player sees.
        tokenizer: its chat template is used where it has one.
        num_players: of the game.
    """
    if key == "raw":
        return observation
    template = get_template(key)
    messages = template.messages(observation, num_players)
    return _append_opening(_render(template, messages, tokenizer), template)


def continue_prompt_ids(
    key: str, observation: str, tokenizer: Any, before: Sequence[int], *, stopped: bool
) -> list[int]:
    """Return the prompt of a player's next turn, for templates with `history`.

    Args:
        key: one of TEMPLATES.
        observation: what the player sees now.
        tokenizer: of the model.
        before: the last prompt and its answer, as they were sampled.
        stopped: whether the answer ended by a stop token, rather than for its length.
    """
    template = get_template(key)
    user = {"role": "user", "content": _MARK}
    so_far = [user, {"role": "assistant", "content": _MARK}]
    ended = _render(template, so_far, tokenizer, answer=False)
    asked = _render(template, [*so_far, {"role": "user", "content": observation}], tokenizer)
    closing = ended[ended.rindex(_MARK) + len(_MARK) :]
    if stopped:  # the token that ended it may be the beginning of what closes it
        closing = closing.removeprefix(tokenizer.decode(before[-1:], skip_special_tokens=False))
    # Chat templates may write the answer before differently once it is not the last: what follows
    # it is what counts.
    after = asked[asked.rindex(_MARK) + len(_MARK) :]
    after = after[len(ended) - ended.rindex(_MARK) - len(_MARK) :]
    text = _append_opening(closing + after, template)
    return [*before, *tokenizer.encode(text, add_special_tokens=False)]


_MARK = "\N{SECTION SIGN}turn\N{SECTION SIGN}"


def _render(
    template: Template, messages: list[Message], tokenizer: Any, *, answer: bool = True
) -> str:
    """Render messages in markup, with the beginning of the answer."""
    if not (template.chat_template or getattr(tokenizer, "chat_template", None)):
        return _apply_markup(template.markup, messages, answer=answer)
    options: dict[str, Any] = {}
    if template.chat_template is not None:
        options["chat_template"] = template.chat_template
    if template.thinking is not None:
        options["enable_thinking"] = template.thinking
    return str(
        tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=answer, **options
        )
    )


def _append_opening(text: str, template: Template) -> str:
    opened = template.opening and text.rstrip().endswith(template.opening.strip())
    return text if opened else f"{text}{template.opening}"


def tokenize_prompt(key: str, observation: str, tokenizer: Any) -> list[int]:
    """Return the prompt as tokens; special tokens stand in the markup, none is added."""
    text = format_prompt(key, observation, tokenizer)
    return list(tokenizer.encode(text, add_special_tokens=False))


def get_template(key: str) -> Template:
    """Return the template; raise ValueError with the known keys."""
    try:
        return TEMPLATES[key]
    except KeyError:
        known = ", ".join(sorted((*TEMPLATES, "raw")))
        raise ValueError(f"no prompt template {key!r}; there are {known}") from None


def add_templates(templates: Mapping[str, Mapping[str, Any]]) -> None:
    """Register the user's templates; raise ValueError for names that are taken."""
    for name, fields in templates.items():
        template = Template(**fields)
        if TEMPLATES.get(name, template) != template or name == "raw":
            raise ValueError(f"templates.{name}: the name is taken; choose another")
        TEMPLATES[name] = template


def _apply_markup(markup: str, messages: list[Message], *, answer: bool = True) -> str:
    begin, message, beginning = MARKUP[markup]
    parts = [begin, *(message.format(**one) for one in messages), beginning if answer else ""]
    return "".join(parts)


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
    r"""Return the action in an answer, by one of the ways in ACTION_EXTRACTION.

    An answer in the wrong format is still an action, as a whole: the game decides what it is worth.
    """
    extracted = extraction_function(key)(text)
    if isinstance(extracted, tuple):
        return extracted
    if not extracted:
        return text, {"correct_answer_format": False}
    return extracted, {"correct_answer_format": True}


def extraction_function(key: str) -> Callable[[str], str | Extraction]:
    """Return one of ACTION_EXTRACTION, or `my_module:function`; raise ValueError if missing."""
    if key in ACTION_EXTRACTION:
        return ACTION_EXTRACTION[key]
    if ":" in key:
        function: Callable[[str], str | Extraction] = load_part(key)
        return function
    known = ", ".join(sorted(ACTION_EXTRACTION))
    raise ValueError(f"action_extraction: no {key!r}; there are {known}, or my_module:function")


def extract_boxed(text: str) -> str:
    r"""Return the content of the last closed `\boxed{...}`, in brackets unless it has some."""
    content = find_last_box(text)
    while (markup := _MARKUP.fullmatch(content)) is not None:
        content = markup[1].strip()
    content = _LINE_BREAK.sub(" ", content)
    return content if not content or "[" in content else f"[{content}]"


def extract_bracketed(text: str) -> str:
    groups = _BRACKETS.findall(text)
    return _LINE_BREAK.sub(" ", groups[-1]) if groups else ""


def extract_bare(text: str) -> str:
    """Return the whole answer, in brackets unless it has some."""
    content = text.strip()
    return content if not content or "[" in content else f"[{content}]"


def find_last_box(text: str) -> str:
    r"""Return the content of the last closed `\boxed{...}`; braces in it may be nested.

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


ACTION_EXTRACTION: dict[str, Callable[[str], str | Extraction]] = {
    "default": extract_boxed,
    "brackets": extract_bracketed,
    "bare": extract_bare,
    "raw": str.strip,
}
"""By key: a function from the answer to the action, empty where the format is wrong; or to the
action and the feedback."""
