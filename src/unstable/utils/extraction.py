"""The move in what a model wrote."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """The last group in square brackets, with them."""
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
    found = (0, 0)
    for match in _BRACES.finditer(text):
        brace = match[0]
        if brace == "{":
            open_braces.append(None)
        elif brace == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None:
                found = (start, match.start())
        elif brace.startswith("\\b"):
            open_braces.append(match.end())
    return text[slice(*found)].strip()


ACTION_EXTRACTION: dict[str, Callable[[str], str]] = {
    "default": boxed,
    "brackets": bracketed,
    "bare": bare,
    "raw": str.strip,
}
"""By key: a function from the answer to the action, empty where the format is wrong."""
