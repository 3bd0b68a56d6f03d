"""Starting the actors that generate."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from unstable.collection.rotation import ActorRotation, Patience

if TYPE_CHECKING:
    from collections.abc import Mapping


def start_actors(
    num_actors: int,
    config: Mapping[str, Any],
    tracker: Any,
    model_pool: Any,
    patience: Patience,
) -> ActorRotation:
    """Ray actors from within a Ray actor, each with a GPU where there are any; else one, here.

    Raises:
        ValueError: there are fewer GPUs than actors.
    """
    if not _inside_ray():
        from unstable.actor import VLLMActor

        actor = VLLMActor(config, tracker=tracker, name="actor-0", adapters=model_pool)
        return ActorRotation([actor], patience=patience)
    import ray

    import unstable

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpus = int(resources.get("GPU", 0))
    if 0 < gpus < num_actors:
        raise ValueError(f"num_actors is {num_actors}, but the cluster has {gpus} GPUs")

    def make(slot: int) -> Any:
        return unstable.VLLMActor.options(num_gpus=1 if gpus else 0).remote(
            dict(config), tracker=tracker, name=f"actor-{slot}", adapters=model_pool
        )

    return ActorRotation([make(slot) for slot in range(num_actors)], make=make, patience=patience)


def _inside_ray() -> bool:
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None
