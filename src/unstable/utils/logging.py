"""Log files of a run's parts, and texts for people: made safe for a terminal, or short."""

from __future__ import annotations

import logging
import unicodedata
from logging.handlers import RotatingFileHandler
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_BYTES = 10 * 1024 * 1024
BACKUPS = 5


def setup_logger(
    name: str,
    log_dir: str | Path,
    level: int | str = logging.INFO,
    to_console: bool = False,
) -> logging.Logger:
    """A logger that writes to `<log_dir>/<name>.log`, rotated at 10 MB, five old ones kept.

    Asked for again with the same name it writes to the newly given folder only.
    """
    folder = Path(log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger(f"unstable.run.{name}")
    logger.setLevel(level)
    logger.propagate = False
    for old in tuple(logger.handlers):
        logger.removeHandler(old)
        old.close()
    handlers: list[logging.Handler] = [
        RotatingFileHandler(
            folder / f"{name}.log", maxBytes=MAX_BYTES, backupCount=BACKUPS, encoding="utf-8",
            delay=True,
        )
    ]  # fmt: skip
    if to_console:
        from rich.logging import RichHandler

        handlers.append(RichHandler(show_path=False))
    for handler in handlers:
        if not to_console or handler is handlers[0]:
            handler.setFormatter(logging.Formatter(FORMAT))
        logger.addHandler(handler)
    return logger


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
