"""What there is to train with, which models can be asked, and how busy the machine is."""

from __future__ import annotations

import os
import shutil
from functools import lru_cache

import psutil
from fastapi import APIRouter

from p2p.api.schemas import (
    CoreInfo,
    EnvInfo,
    ProviderInfo,
    ResourceSample,
    ResourceStatusResponse,
    RewardTemplateInfo,
)
from p2p.api.state import State, list_gpus
from p2p.settings import get_settings
from p2p.training.cpu_manager import CPUManager

router = APIRouter(prefix="/api", tags=["catalogue"])


@router.get("/envs")
def list_envs() -> list[EnvInfo]:
    """The environments that run here."""
    return list(_read_envs())


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
        EnvInfo(
            env_id=spec.env_id,
            engine=spec.engine,
            description=spec.description,
            observations=len(spec.observation),
            actions=len(spec.actions),
            horizon=spec.max_episode_steps,
            can=tuple(motions.get(spec.env_id, ())),
        )
        for spec in specs
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
