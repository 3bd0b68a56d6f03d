"""What there is to train with, which models can be asked, and how busy the machine is."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from fastapi import APIRouter, Request

from p2p.api.problems import BadRequest, WrongState
from p2p.api.schemas import (
    CoreInfo,
    EnvInfo,
    ProviderInfo,
    ResourceSample,
    ResourceStatusResponse,
    RewardTemplateInfo,
)
from p2p.api.state import State, list_gpus
from p2p.config import ConfigurationError
from p2p.settings import get_settings
from p2p.training.cpu_manager import CPUManager
from p2p.training.model_files.adoption import adopt
from p2p.training.model_files.facts import read_facts
from p2p.training.model_files.store import MODEL_SUFFIXES, folder_of, models, read_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from p2p.training.env_spec import EnvSpec

router = APIRouter(prefix="/api", tags=["catalogue"])


MODELS_LISTED = 12
UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_reading = threading.Lock()


@router.get("/envs")
def list_envs() -> list[EnvInfo]:
    """The environments that run here, and the model files that were read last."""
    return [*_read_envs(), *_read_models()]


@router.post("/models", status_code=201, openapi_extra=UPLOAD)
async def add_model(request: Request, name: str) -> EnvInfo:
    """Read a robot's model file, the body; its `env_id` is an environment like any other.

    `name` is the file's: an .xml (MJCF), .urdf or .mjb that stands alone, or a .zip with meshes.
    """
    file = Path(name)
    suffix, stem = file.suffix.lower(), re.sub(r"\W+", "_", file.stem, flags=re.ASCII)[:40]
    if suffix not in MODEL_SUFFIXES or file.name != name:
        raise BadRequest(f"name: the name of a model file ends in {', '.join(MODEL_SUFFIXES)}")
    if not _reading.acquire(blocking=False):
        raise WrongState("another model file is being read: try again in a moment")
    try:
        with tempfile.TemporaryDirectory(prefix="p2p-upload-") as folder:
            path = Path(folder) / f"{stem or 'robot'}{suffix}"
            with path.open("wb") as target:
                async for chunk in request.stream():
                    target.write(chunk)
            env_id = await asyncio.to_thread(adopt, path)
            return await asyncio.to_thread(_describe_model, env_id)
    except ConfigurationError as error:
        raise BadRequest(str(error).removeprefix(f"{folder}/")) from error
    finally:
        _reading.release()


def _read_models() -> Iterator[EnvInfo]:
    newest = sorted(models(), key=lambda each: folder_of(each).stat().st_mtime, reverse=True)
    for env_id in newest[:MODELS_LISTED]:
        with suppress(ConfigurationError):  # of another version of this, or damaged
            yield _describe_model(env_id)


def _describe_model(env_id: str) -> EnvInfo:
    facts = read_facts(env_id)
    doubts = "; ".join(facts.doubts)
    return _describe_env(
        facts.spec, text=f"From the model file {read_record(env_id).main}."
        + (f" Doubtful: {doubts}." if doubts else "")
    )  # fmt: skip


@lru_cache(maxsize=1)
def _read_envs() -> tuple[EnvInfo, ...]:
    from p2p.rewards import list_rewards
    from p2p.training.env_spec import get_env_spec, list_env_ids

    motions: dict[str, list[str]] = {}
    for reward in list_rewards():
        _, _, motion = reward.name.partition("_")
        if motion != "default":
            motions.setdefault(reward.env_id, []).append(motion.replace("_", " "))
    specs = (get_env_spec(env_id) for env_id in list_env_ids())
    return tuple(
        _describe_env(spec, text=spec.description, can=motions.get(spec.env_id, ()))
        for spec in specs
    )


def _describe_env(spec: EnvSpec, *, text: str, can: Iterable[str] = ()) -> EnvInfo:
    return EnvInfo(
        env_id=spec.env_id,
        engine=spec.engine,
        description=text,
        observations=len(spec.observation),
        actions=len(spec.actions),
        horizon=spec.max_episode_steps,
        can=tuple(can),
    )


@router.get("/reward-templates")
def list_reward_templates() -> list[RewardTemplateInfo]:
    """The built-in rewards."""
    from p2p.rewards import list_rewards

    return [
        RewardTemplateInfo(
            name=reward.name,
            env_id=reward.env_id,
            description=reward.description,
            source=reward.read(),
        )
        for reward in list_rewards()
    ]


@router.get("/providers")
def list_providers() -> list[ProviderInfo]:
    """The model providers, and which of them have a key; never the key."""
    from p2p.inference.providers import PROVIDERS

    settings = get_settings()
    return [
        ProviderInfo(
            name=name,
            configured=not provider.key or getattr(settings, provider.key) is not None,
            default_model=provider.default_model,
            local=provider.local,
        )
        for name, provider in PROVIDERS.items()
    ]


@router.get("/resources/status")
def show_resources(state: State) -> ResourceStatusResponse:
    """Cores, memory, disk and GPUs, now."""
    manager, memory, percent = CPUManager(), psutil.virtual_memory(), state.resources.core_percent
    free = set(manager.free_cores())
    return ResourceStatusResponse(
        cores=tuple(
            CoreInfo(
                core=core,
                busy=percent[core] / 100 if core < len(percent) else 0.0,
                held=core not in free,
            )
            for core in manager.pool
        ),
        load=os.getloadavg(),
        memory_used_mb=(memory.total - memory.available) >> 20,
        memory_total_mb=memory.total >> 20,
        disk_free_mb=shutil.disk_usage(state.runs_dir).free >> 20,
        gpus=list_gpus(),
    )


@router.get("/resources/history")
def show_resource_history(state: State) -> list[ResourceSample]:
    """The last minutes of this machine, a sample every second or so."""
    return state.resources.samples()
