"""Quiet libraries, and texts for people: made safe for a terminal, or short."""

from __future__ import annotations

import sys
import unicodedata


def quiet_transformers() -> None:
    """No progress bars of transformers: they would break ours, and logs."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


KEPT = "\n\t"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
REORDERING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that show a text in another order than it is written in."""


def printable(text: str) -> str:
    """The text without control characters: a model that writes escape codes moves no cursor."""
    if text.isprintable():
        return text
    return "".join(
        REPLACEMENT if c in REORDERING or _is_control(c) else c for c in text.replace("\r\n", "\n")
    )


def _is_control(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cs") and c not in KEPT


def print_plainly(text: str) -> None:
    """A line on standard error, for programs that other programs start."""
    print(printable(text), file=sys.stderr, flush=True)  # noqa: T201 - this is a command's output


def one_line(error: BaseException) -> str:
    """An error in a few words; those that come from Ray have a page."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"


def is_news(number: int) -> bool:
    """Whether the so-manieth of the same kind is worth a line: the 1st, the 10th, the 100th..."""
    return str(number).rstrip("0") == "1"
