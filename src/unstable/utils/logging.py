"""Log files of a run's parts."""

from __future__ import annotations

import logging
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
