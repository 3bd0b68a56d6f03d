"""Does nothing; what a sandbox costs without anything in it is measured with this."""

from __future__ import annotations

from typing import Any


def main(payload: dict[str, Any], send: object) -> None:
    """Return at once."""
