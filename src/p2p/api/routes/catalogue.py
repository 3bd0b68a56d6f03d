"""What there is to train with, who can be asked, and what the machine is doing."""

from __future__ import annotations

import shutil
from functools import lru_cache

from fastapi import APIRouter

from p2p.api.house import TheHouse
from p2p.api.machine import cores, gpus, load, memory
from p2p.api.schemas import (
    EnvInfo,
    ProviderInfo,
    ResourceStatusResponse,
    RewardTemplateInfo,
)
from p2p.settings import get_settings

router = APIRouter(prefix="/api", tags=["catalogue"])


@router.get("/envs")
def list_envs() -> list[EnvInfo]:
    """The environments that run here."""
    return list(_envs())


@lru_cache(maxsize=1)
def _envs() -> tuple[EnvInfo, ...]:
    from p2p.rewards import list_rewards
    from p2p.training.env_spec import get_env_spec, list_env_ids

    can: dict[str, list[str]] = {}
    for reward in list_rewards():
        _, _, motion = reward.name.partition("_")
        if motion != "default":
            can.setdefault(reward.env_id, []).append(motion.replace("_", " "))
    specs = (get_env_spec(env_id) for env_id in list_env_ids())
    return tuple(
        EnvInfo(
            env_id=spec.env_id,
            engine=spec.engine,
            description=spec.description,
            observations=len(spec.observation),
            actions=len(spec.actions),
            horizon=spec.max_episode_steps,
            can=tuple(can.get(spec.env_id, ())),
        )
        for spec in specs
    )


@router.get("/reward-templates")
def list_reward_templates() -> list[RewardTemplateInfo]:
    """The built-in rewards."""
    from p2p.rewards import list_rewards

    return [
        RewardTemplateInfo(
            name=item.name, env_id=item.env_id, description=item.description, source=item.read()
        )
        for item in list_rewards()
    ]


@router.get("/providers")
def list_providers() -> list[ProviderInfo]:
    """Who can think, and who has a key; never the key."""
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
def show_resources(house: TheHouse) -> ResourceStatusResponse:
    """Cores, memory, disk and graphics cards, now."""
    used, total = memory()
    return ResourceStatusResponse(
        cores=cores(),
        load=load(),
        memory_used_mb=used,
        memory_total_mb=total,
        disk_free_mb=shutil.disk_usage(house.runs_dir).free >> 20,
        gpus=gpus(),
    )
