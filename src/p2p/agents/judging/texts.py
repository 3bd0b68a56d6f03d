"""Small texts that several judging prompts share."""

from __future__ import annotations

from collections.abc import Mapping

from p2p.contracts import FAILURE_TAGS


def tags_text() -> str:
    """The controlled list of failure tags, each with its meaning."""
    return "; ".join(f"{tag} ({meaning})" for tag, meaning in FAILURE_TAGS.items())


def listing(entries: Mapping[str, str]) -> str:
    """One line for each entry."""
    return "\n".join(f"- {name}: {meaning}" for name, meaning in entries.items())
