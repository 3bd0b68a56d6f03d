"""Text from models and files, made safe to be shown in a terminal."""

from __future__ import annotations

import unicodedata

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
