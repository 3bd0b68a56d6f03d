"""Secrets that must pass through somebody else's files: cut in two, each half of them noise.

Slurm writes the environment of a job to its controller's disk until the job starts. One half goes
that way, the other lies in the launch's folder; a secret is only where both come together, which
is the memory of the job.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "P2P_SECRET_HALF"
_PREFIX = "half."


def cut(values: Mapping[str, str]) -> tuple[str, bytes]:
    """Two halves: one for the environment, one for `lay_down`."""
    whole = json.dumps(dict(values)).encode()
    first = secrets.token_bytes(len(whole))
    return base64.b64encode(first).decode(), _combined(whole, first)


def lay_down(folder: Path, first: str, second: bytes) -> None:
    """Put the second half where `join` looks for it, for this user only."""
    path = _path(folder, first)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(second)


def join(folder: Path, first: str) -> dict[str, str]:
    """The secrets; the half that was laid down is gone then. Raises FileNotFoundError before."""
    path = _path(folder, first)
    second = path.read_bytes()
    path.unlink(missing_ok=True)
    values: dict[str, str] = json.loads(_combined(base64.b64decode(first), second))
    return values


def sweep(folder: Path) -> None:
    """Remove the halves nobody came for."""
    for path in folder.glob(f"{_PREFIX}*"):
        path.unlink(missing_ok=True)


def _path(folder: Path, first: str) -> Path:
    # Named by its counterpart: two jobs for one launch do not take each other's.
    return folder / f"{_PREFIX}{hashlib.sha256(first.encode()).hexdigest()[:16]}"


def _combined(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
