"""Files that others may read at any moment: whole or not there."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def write_whole(path: str | Path, text: str) -> None:
    """Replace a file, or leave it as it was."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", errors="replace", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_folder(path: str | Path, files: Mapping[str, bytes]) -> None:
    """Have a folder with these files, whole or not at all; others that it had are dropped."""
    path = Path(path)
    if all((path / name).is_file() and (path / name).read_bytes() == files[name] for name in files):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        temporary.mkdir()
        for name, content in files.items():
            with (temporary / Path(name).name).open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        if path.exists():  # from before an interruption
            old = path.with_name(f".{path.name}.{secrets.token_hex(6)}.old")
            path.rename(old)
            temporary.rename(path)
            shutil.rmtree(old)
        else:
            temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def to_json(value: Any) -> str:
    """One line of strict JSON: numbers that are not finite become null, keys become text."""
    return json.dumps(_strict(value), allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
