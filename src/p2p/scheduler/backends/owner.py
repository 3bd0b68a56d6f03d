"""Whose launches they are, on a cluster that several schedulers share."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from p2p import files

_FILE = "owner"


def owner(scheduler_dir: Path) -> str:
    """A name for this runs folder, drawn once: the same id in another folder is another launch."""
    path = scheduler_dir / _FILE
    if not path.exists():
        drawn = path.with_name(f".{_FILE}.{secrets.token_hex(6)}{files.TEMPORARY_SUFFIX}")
        files.write_text(drawn, secrets.token_hex(4))
        try:
            os.link(drawn, path)
        except FileExistsError:
            pass  # another process was quicker: its name counts
        finally:
            drawn.unlink()
    return path.read_text(encoding="utf-8")
