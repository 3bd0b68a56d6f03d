"""Log files, quiet libraries, and texts for people: made safe for a terminal, or short."""

from __future__ import annotations

import logging
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path

PACKAGE = "unstable"
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_BYTES, OLDER_FILES = 10_000_000, 5
"""A log that is full becomes the first of the older ones."""


def setup_logger(
    name: str, log_dir: str | Path, level: int = logging.INFO, to_console: bool = False
) -> logging.Logger:
    """Write this package's log of this process to `<log_dir>/<name>.log`.

    Asked again for the same file, it changes nothing. A folder that is on another machine gets no
    file. With `to_console`, warnings also go to standard error.
    """
    logger = logging.getLogger(PACKAGE)
    path = Path(log_dir).absolute() / f"{name}.log"
    files = [h.baseFilename for h in logger.handlers if isinstance(h, RotatingFileHandler)]
    if str(path) in files or not path.parent.is_dir():
        return logger
    logger.setLevel(level)
    handler: logging.Handler = RotatingFileHandler(
        path, maxBytes=MAX_BYTES, backupCount=OLDER_FILES, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter(FORMAT))
    logger.addHandler(handler)
    if to_console:
        console = logging.StreamHandler()
        console.setLevel(logging.WARNING)
        logger.addHandler(console)
    return logger


@contextmanager
def logging_to(name: str, log_dir: str | Path) -> Iterator[Callable[[], None]]:
    """Log to a file for as long as the block lasts, warnings on standard error too.

    Yields:
        A function: what is logged before it is called is written then, or never.
    """
    logger = logging.getLogger(PACKAGE)
    before, level = list(logger.handlers), logger.level
    waiting = MemoryHandler(10_000, logging.CRITICAL + 1, flushOnClose=False)
    logger.setLevel(logging.INFO)
    logger.addHandler(waiting)

    def write() -> None:
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        logger.removeHandler(waiting)
        setup_logger(name, log_dir, to_console=True)
        for record in waiting.buffer:
            logger.handle(record)

    try:
        yield write
    finally:
        for handler in [handler for handler in logger.handlers if handler not in before]:
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(level)


def quiet_transformers() -> None:
    """Disable progress bars of transformers, which would break ours."""
    from transformers.utils import logging

    logging.disable_progress_bar()


KEPT = "\n\t"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
REORDERING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that show a text in another order than it is written in."""


def printable(text: str) -> str:
    """Remove control characters, so that no escape code of a model moves the cursor."""
    if text.isprintable():
        return text
    return "".join(
        REPLACEMENT if c in REORDERING or _is_control(c) else c for c in text.replace("\r\n", "\n")
    )


def _is_control(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cs") and c not in KEPT


def print_plainly(text: str) -> None:
    """Print a line on standard error, for programs that other programs start."""
    print(printable(text), file=sys.stderr, flush=True)  # noqa: T201 - this is a command's output


def summarize_error(error: BaseException) -> str:
    """Return an error in one line; those of Ray have a page."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"


def is_power_of_ten(number: int) -> bool:
    """Return whether to log the nth event of a kind: the 1st, the 10th, the 100th..."""
    return str(number).rstrip("0") == "1"
