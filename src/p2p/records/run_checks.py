"""What is wrong with the files of a training run that are not records: see `validate`."""

from __future__ import annotations

import re
import zipfile
from typing import TYPE_CHECKING, Any

from p2p.contracts import EvalResult
from p2p.files import UnreadableError, load_text, open_data, parse_line, read_bytes
from p2p.records.folder import names_in

if TYPE_CHECKING:
    from pathlib import Path

_POLICY_FILES = ("policy.zip", "policy.safetensors")
_MAX_LINES_NAMED = 5


def step_of(line: dict[str, Any]) -> int | None:
    """The training step that a line of scalars.jsonl belongs to."""
    step = line.get("global_step")
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    return step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None


def source_problems(path: Path) -> list[str]:
    """A source file that must be there."""
    try:
        text = load_text(path)
    except UnreadableError as error:
        return [f"{path.name}: {error}"]
    if text is None:
        return [f"{path.name}: missing"]
    return [] if text.strip() else [f"{path.name}: empty"]


def scalars_problems(path: Path, *, needed: bool) -> list[str]:
    """Lines of metrics/scalars.jsonl that are not records."""
    name = f"{path.parent.name}/{path.name}"
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return [f"{name}: missing"] if needed else []
    except OSError as error:
        return [f"{name}: {error.strerror}"]
    *lines, rest = data.split(b"\n")
    bad = [number for number, line in enumerate(lines, start=1) if not _is_scalars_line(line)]
    problems = [f"{name}: line {number} is not a record" for number in bad[:_MAX_LINES_NAMED]]
    if len(bad) > _MAX_LINES_NAMED:
        problems.append(f"{name}: {len(bad)} lines in all are not records")
    return [*problems, f"{name}: torn last line"] if rest else problems


def _is_scalars_line(line: bytes) -> bool:
    record = parse_line(line)
    if record is None or step_of(record) is None:
        return False
    if record.get("type", "train") != "eval":
        return bool(record.get("type", "train") == "train")
    try:
        EvalResult.model_validate_json(line)
    except ValueError:
        return False
    return True


def trajectory_problems(folder: Path) -> list[str]:
    """Trajectories that are not NumPy archives."""
    return [
        f"{name}: not a NumPy archive"
        for name in names_in(folder)
        if re.fullmatch(r"trajectory_.*\.npz", name) and not _is_archive(folder / name)
    ]


def video_problems(folder: Path) -> list[str]:
    """Videos with nothing in them."""
    return [
        f"{folder.name}/{name}: empty"
        for name in names_in(folder)
        if name.endswith(".mp4") and _size(folder / name) == 0
    ]


def checkpoint_problems(folder: Path) -> list[str]:
    """Policies that are missing: an evaluated checkpoint can be judged, so it has both."""
    missing = [name for name in _POLICY_FILES if not _size(folder / name)]
    return [f"{folder.parent.name}/{folder.name}/{name}: missing" for name in missing]


def _is_archive(path: Path) -> bool:
    try:
        with open_data(path) as stream:
            return zipfile.is_zipfile(stream)
    except OSError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
