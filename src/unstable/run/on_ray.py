"""A run on a Ray cluster: playing and learning go on at the same time.

The parts are actors with the names that `unstable-terminal` looks for. Engines that die are started
again by the collector; if another part dies the run stops with the reason, and can be continued
from its newest state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstable.run.folder import state_step
from unstable.run.parts import (
    BASE_ITERATION,
    Parts,
    buffer_arguments,
    collector_arguments,
    learner_arguments,
    pool_arguments,
    tracker_arguments,
)
from unstable.run.progress import Progress, RunResult, result_of
from unstable.run.states import load_state, save_state
from unstable.utils.handles import ask

if TYPE_CHECKING:
    from unstable.config import RunConfig
    from unstable.run.folder import RunFolder
    from unstable.run.progress import Tell

NAMESPACE = "unstable"
START_TIMEOUT = 600.0
"""Seconds for all parts to start, models included."""
END_TIMEOUT = 60.0
"""Seconds for collection to end after the last update."""


def train_on_ray(config: RunConfig, folder: RunFolder, model: str, tell: Tell) -> RunResult:
    """Begin the run of a folder, or go on where its newest state was taken.

    Uses the cluster of RAY_ADDRESS; without one, starts Ray on this machine.

    Raises:
        RuntimeError: a part died or failed; the message says which.
    """
    import ray

    ours = not ray.is_initialized()
    if ours:
        ray.init(namespace=NAMESPACE, include_dashboard=False, log_to_driver=False)
    parts: Parts | None = None
    states = folder.states()
    try:
        parts = _make_parts(config, folder, model, state_step(states[-1]) if states else -1)
        step = load_state(states[-1], parts) if states else _begin(config, parts)
        step = _supervise(config, folder, parts, step, tell)
        return result_of(folder, parts, step)
    except ray.exceptions.RayActorError as error:
        raise RuntimeError(f"a part of the run has died: {error}") from error
    except ray.exceptions.RayTaskError as error:
        raise RuntimeError(str(error.cause)) from error
    finally:
        if parts is not None:
            _end(parts)
        if ours:
            ray.shutdown()


def _make_parts(config: RunConfig, folder: RunFolder, model: str, resume_step: int) -> Parts:
    import ray

    import unstable

    gpus = int(ray.cluster_resources().get("GPU", 0))  # type: ignore[no-untyped-call]
    tracker = unstable.Tracker.options(name="Tracker", namespace=NAMESPACE).remote(
        **tracker_arguments(config, folder.path, resume_step)
    )
    buffer = unstable.StepBuffer.options(name="StepBuffer", namespace=NAMESPACE).remote(
        tracker=tracker, **buffer_arguments(config)
    )
    pool = unstable.ModelPool.options(name="ModelPool", namespace=NAMESPACE).remote(
        tracker=tracker, **pool_arguments(config)
    )
    shared = {"step_buffer": buffer, "model_pool": pool, "tracker": tracker}
    collector = unstable.Collector.options(name="Collector", namespace=NAMESPACE).remote(
        **shared, **collector_arguments(config, model)
    )
    learner = unstable.StandardLearner.options(
        name="Learner", namespace=NAMESPACE, num_gpus=min(1, gpus)
    ).remote(**shared, **learner_arguments(config, model))
    parts = Parts(tracker, buffer, pool, collector, learner)
    ray.get(
        [tracker.get_run_dir.remote(), buffer.size.remote(), pool.current_uid.remote(),
         collector.stats.remote(), learner.get_step.remote()],
        timeout=START_TIMEOUT,
    )  # fmt: skip
    return parts


def _begin(config: RunConfig, parts: Parts) -> int:
    ask(parts.pool, "add_checkpoint", None, BASE_ITERATION)
    for name in config.pool.fixed:
        ask(parts.pool, "add_fixed", name)
    return 0


def _supervise(config: RunConfig, folder: RunFolder, parts: Parts, step: int, tell: Tell) -> int:
    """Wait for update after update; whatever else ends is a failure."""
    import ray

    learned: dict[str, float] = {}
    save_state(folder, parts, step, config.keep_states)
    collecting = parts.collector.collect.remote(config.workers, config.eval_workers)
    while step < config.updates:
        update = parts.learner.next_update.remote()
        evaluations = tuple(ask(parts.tracker, "get_evaluations"))
        tell(Progress("learning", step, config.updates, learned, evaluations))
        ended, _ = ray.wait([update, collecting], num_returns=1)
        if collecting in ended:
            ray.get(collecting)  # raises what ended it
        learned = ray.get(update)
        step = int(learned["step"])
        save_state(folder, parts, step, config.keep_states)
    ask(parts.buffer, "stop")
    ray.wait([collecting], timeout=END_TIMEOUT)
    ask(parts.tracker, "flush")
    return step


def _end(parts: Parts) -> None:
    import ray

    for part in (parts.collector, parts.learner, parts.buffer, parts.pool, parts.tracker):
        ray.kill(part)
