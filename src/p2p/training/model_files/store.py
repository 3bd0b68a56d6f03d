"""Model files by id: where they are kept, and how Gymnasium knows them."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

from pydantic import ValidationError

from p2p.config import ConfigurationError
from p2p.settings import get_settings
from p2p.training.model_files.record import RobotModel

MODEL_SUFFIXES = (".xml", ".urdf", ".mjb", ".zip")
PREFIX = "robots/"
ENTRY_POINT = "p2p.training.envs.model_env:ModelEnv"
_ID = re.compile(r"robots/([A-Za-z0-9_]{1,40})-([0-9a-f]{12})")


def is_model_file(env_id: str) -> bool:
    """Whether an environment id names a model file of this machine rather than an environment."""
    return Path(env_id).suffix.lower() in MODEL_SUFFIXES


def is_model(env_id: str) -> bool:
    """Return whether this is the id of a model that was taken in."""
    return env_id.startswith(PREFIX)


def digest(folder: Path) -> str:
    """Return the digest of a model's record and files, with their paths."""
    parts = sorted(p for p in (folder / "source").rglob("*") if p.is_file())
    total = hashlib.sha256()
    for path in (folder / "record.json", *parts):
        data = path.read_bytes()
        total.update(f"{path.relative_to(folder)}\0{len(data)}\0".encode())
        total.update(data)
    return total.hexdigest()[:12]


def folder_of(env_id: str) -> Path:
    """Where a model's files are, or would be; ConfigurationError for what is no id of one."""
    match = _ID.fullmatch(env_id)
    if match is None:
        raise ConfigurationError(f"{env_id!r} is not the id of a model (robots/NAME-DIGEST)")
    return get_settings().models_dir / f"{match[1]}-{match[2]}"


def copy_into(folder: Path, env_id: str) -> None:
    """Put a copy of a model below models/ of a session's folder or a run's; nothing for others."""
    if not is_model(env_id):
        return
    source = folder_of(env_id)
    target = folder / "models" / source.name
    if (target / "record.json").is_file():
        return
    read_record(env_id)
    partial = target.with_name(f".{source.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source / "source", partial / "source")
    shutil.copyfile(source / "record.json", partial / "record.json")
    partial.replace(target)


def find_copy(folder: Path, env_id: str) -> Path | None:
    """The copy of a model in this folder or one that it lies in; None where there is none."""
    if not is_model(env_id):
        return None
    name = folder_of(env_id).name
    places = [place / "models" / name for place in (folder, *list(folder.parents)[:4])]
    return next((place for place in places if (place / "record.json").is_file()), None)


def register(env_id: str) -> None:
    """Register this model with `gym.make`; raises ConfigurationError if it is missing."""
    import gymnasium as gym

    if env_id in gym.registry:
        return
    folder = folder_of(env_id)
    record = read_record(env_id)
    gym.register(
        env_id,
        entry_point=ENTRY_POINT,
        max_episode_steps=record.max_episode_steps,
        kwargs={"folder": str(folder)},
    )


def read_record(env_id: str) -> RobotModel:
    """A kept model's record."""
    path = folder_of(env_id) / "record.json"
    try:
        return RobotModel.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ConfigurationError(
            f"{env_id} is not on this machine: give its model file once, as in `p2p envs FILE.xml`"
        ) from None
    except (OSError, ValidationError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def models() -> list[str]:
    """The ids of all models that are kept."""
    folders = get_settings().models_dir.glob("*-*/facts.json")
    ids = sorted(f"{PREFIX}{path.parent.name}" for path in folders)
    return [env_id for env_id in ids if _ID.fullmatch(env_id)]
