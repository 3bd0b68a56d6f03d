"""Libraries that talk while they work."""

from __future__ import annotations


def quiet_transformers() -> None:
    """No progress bars of transformers: they would break ours, and logs."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
