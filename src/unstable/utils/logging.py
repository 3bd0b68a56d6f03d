"""Quiet libraries, and texts for people: made safe for a terminal, or short."""

from __future__ import annotations

import unicodedata


def quiet_transformers() -> None:
    """No progress bars of transformers: they would break ours, and logs."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


KEPT = "\n\t"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """The text without control characters: a model that writes escape codes moves no cursor."""
    if text.isprintable():
        return text
    return "".join(
        REPLACEMENT if unicodedata.category(c) in ("Cc", "Cs") and c not in KEPT else c
        for c in text.replace("\r\n", "\n")
    )


def one_line(error: BaseException) -> str:
    """An error in a few words; those that come from Ray have a page."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"


def is_news(number: int) -> bool:
    """Whether the so-manieth of the same kind is worth a line: the 1st, the 10th, the 100th..."""
    return str(number).rstrip("0") == "1"
