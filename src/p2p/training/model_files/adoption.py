"""Taking in model files: read in the sandbox, checked, and kept under an id."""

from __future__ import annotations

import filecmp
import hashlib
import os
import re
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from p2p import files
from p2p.config import ConfigurationError
from p2p.sandbox import (
    LIBRARIES_BYTES,
    Sandbox,
    UntrustedResultError,
    copy_result,
    read_message,
    read_result,
    run_worker,
)
from p2p.settings import get_settings
from p2p.training.model_files.facts import ModelFacts, read_facts
from p2p.training.model_files.record import RobotModel
from p2p.training.model_files.sources import ASSET_SUFFIXES, MAX_BYTES, MAX_FILES
from p2p.training.model_files.store import (
    PREFIX,
    digest,
    find_copy,
    folder_of,
    is_model,
    is_model_file,
    read_record,
    register,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import gymnasium as gym

    from p2p.sandbox import SandboxedProcess

WORKER = "p2p.training.model_files.worker"
SECONDS = 300.0
MEMORY_BYTES = 4 << 30
COMPILED_BYTES = 1 << 30


def adopt(path: str | Path) -> str:
    """Read a model file in the sandbox, keep it, and return the id of its environment.

    Files that were read before, and have not changed since, are not read again.
    Raises ConfigurationError with what to change.
    """
    main = Path(path).expanduser().absolute()
    if not main.is_file():
        raise ConfigurationError(f"{path}: there is no such file")
    root = package_of(main)
    name = re.sub(r"[^A-Za-z0-9_]+", "_", main.stem).strip("_")[:40] or "robot"
    payload = {"main": str(main), "root": str(root), "name": name}
    toml = main.with_suffix(".toml")
    readable = (main, *([toml] if toml.is_file() else []), *_assets(root))
    note = get_settings().models_dir / ".read" / _digest_of_reading(main, toml, root, readable)
    if env_id := _read_before(note, main, root):
        return env_id
    with tempfile.TemporaryDirectory(prefix="p2p-model-") as scratch:
        env_id = _build(Path(scratch), payload, readable, str(path))
    if _digest_of_reading(main, toml, root, readable) == note.name:  # not edited meanwhile
        note.parent.mkdir(exist_ok=True)
        files.write_text(note, env_id)
    return env_id


def _digest_of_reading(main: Path, toml: Path, root: Path, readable: Sequence[Path]) -> str:
    """Return a digest of the inputs of a model's reading, without the files that it names."""
    package = Path(__file__).parents[1]
    code = (package / "model_files", package / "specs", package / "envs")
    total = hashlib.sha256(f"{version('mujoco')}\0{main.name}\0".encode())
    for path in (main, toml, *(file for folder in code for file in sorted(folder.glob("*.py")))):
        data = path.read_bytes() if path.is_file() else b""
        total.update(hashlib.sha256(data).digest())
    for path in readable:
        total.update(b"\0" + os.fsencode(path.relative_to(root)))
    return total.hexdigest()


def _read_before(note: Path, main: Path, root: Path) -> str | None:
    """The id of what was made of these files; None where that is not there as it was."""
    try:
        env_id = note.read_text("utf-8")
        folder = folder_of(env_id)
        source, record = folder / "source", read_record(env_id)
        read_facts(env_id)
        own = source / record.main
        named = (p for p in source.rglob("*") if p.is_file() and p != own)
        alone = main.suffix.lower() == ".zip"
        same = alone or all(
            filecmp.cmp(p, root / p.relative_to(source), shallow=False) for p in named
        )
        intact = same and (folder / "model.mjb").is_file() and env_id.endswith(f"-{digest(folder)}")
    except (OSError, UnicodeDecodeError, ConfigurationError):
        return None
    return env_id if intact else None


def _is_same(kept: Path, target: Path) -> bool:
    """Whether what is kept there is what was read now, and not by another version of this."""
    return all(
        (target / name).is_file() and filecmp.cmp(target / name, kept / name, shallow=False)
        for name in ("facts.json", "model.mjb")
    )


def make_env(folder: str | Path, env_id: str) -> gym.Env[Any, Any]:
    """The Gymnasium environment of a model file that lies below models/ of this folder.

    This process loads the model; do so with files that you trust.
    """
    import gymnasium

    restore(Path(folder), env_id)
    register(env_id)
    return gymnasium.make(env_id)


def package_of(main: Path) -> Path:
    """The folder that a model's files may lie in: its own, or of a URDF that of its package."""
    if main.suffix.lower() == ".urdf":
        for folder in list(main.parents)[:3]:
            if (folder / "package.xml").is_file():
                return folder
        if main.parent.name in ("urdf", "robots"):
            return main.parent.parent
    return main.parent


def restore(folder: Path, env_id: str) -> None:
    """Take a model that is not on this machine from the copy in a session's or a run's folder.

    Raises ConfigurationError where there is none, or it is not what its id says.
    """
    if not is_model(env_id) or (folder_of(env_id) / "facts.json").is_file():
        return
    copy = find_copy(folder.absolute(), env_id)
    if copy is None:
        read_record(env_id)  # says what to do
        return
    if any(path.is_symlink() for path in (copy, *copy.rglob("*"))):
        raise ConfigurationError(f"{copy}: there are links in it, so it is not used")
    if not env_id.endswith(f"-{digest(copy)}"):
        raise ConfigurationError(f"{copy} was changed: it is not {env_id} any more")
    payload = {"copy": str(copy), "name": ""}
    with tempfile.TemporaryDirectory(prefix="p2p-model-") as scratch:
        _build(Path(scratch), payload, (copy,), env_id)


def env_id_of(env: str) -> str:
    """The id of an environment, also of a model file, which is adopted."""
    return adopt(env) if is_model_file(env) else env


def _assets(root: Path) -> Iterator[Path]:
    """The files below a folder that may be parts of a model; hidden ones are not."""
    count = 0
    for path in sorted(root.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        if path.suffix.lower() in ASSET_SUFFIXES and not hidden and path.is_file():
            count += 1
            if count > 2 * MAX_FILES:
                return
            yield path


def _build(scratch: Path, payload: dict[str, Any], readable: tuple[Path, ...], named: str) -> str:
    answer: dict[str, Any] = {}

    def take(message: dict[str, Any], _: SandboxedProcess) -> None:
        answer.update(message)

    folder = scratch / "sandbox"
    folder.mkdir()
    process = run_worker(
        WORKER,
        {**payload, "folder": str(folder)},
        Sandbox(
            folder=folder,
            readable=readable,
            memory_bytes=MEMORY_BYTES,
            address_bytes=LIBRARIES_BYTES,
            disk_bytes=COMPILED_BYTES + 2 * MAX_BYTES,
            wall_seconds=SECONDS,
            max_lines=10,
        ),
        read=read_message,
        on_message=take,
    )
    if "done" not in answer:
        end = process.wait()
        reason = str(answer.get("error") or f"it could not be read: {end.message}")
        raise ConfigurationError(f"{named}: {reason}")
    try:
        return _keep(process.folder, list(answer["done"]["files"]), scratch / "kept")
    except (UntrustedResultError, ValidationError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{named}: what was read of it cannot be used: {error}") from error


def _keep(left: Path, names: list[str], kept: Path) -> str:
    """Check the sandbox's output, and move it to the models folder."""
    kept.mkdir()
    total = 0
    for name in names[:MAX_FILES]:
        place = Path(name)
        if place.is_absolute() or ".." in place.parts:
            raise UntrustedResultError(f"{name!r} is not a path below source/")
        target = kept / "source" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_result(left / "source" / place.parent, place.name, target, MAX_BYTES - total)
        total += target.stat().st_size
    record = RobotModel.model_validate_json(read_result(left, "record.json", 1 << 20))
    files.write_text(kept / "record.json", record.model_dump_json(indent=1))
    copy_result(left, "model.mjb", kept / "model.mjb", COMPILED_BYTES)
    facts = ModelFacts.model_validate_json(read_result(left, "facts.json", 64 << 20))
    files.write_text(kept / "facts.json", facts.model_dump_json())
    env_id = f"{PREFIX}{record.name}-{digest(kept)}"
    target = folder_of(env_id)
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.hold_lock(target.parent / f".{target.name}.lock"):
        if not _is_same(kept, target):
            partial = target.with_name(f".{target.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(kept, partial)
            partial.replace(target)
    return env_id
