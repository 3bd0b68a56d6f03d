"""A run on a Ray cluster: playing and learning run at the same time.

The parts are actors with the names that `unstable-terminal` looks for. Engines that die are started
again by the collector; if another part dies the run stops with the reason, and can be continued
from its newest state.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from unstable.config import ConfigError, RunConfig
from unstable.run import RunFolder, parse_step
from unstable.run.parts import Parts, begin, make_parts, raise_config_errors, register_own_parts
from unstable.run.progress import (
    Progress,
    ReportProgress,
    RunResult,
    collect_result,
    load_state,
    save_state,
    select_settled_evaluations,
)
from unstable.utils.handles import make_actor_class, send
from unstable.utils.interrupts import check_interrupt

MISTAKES = ("KeyError", "LookupError", "ValueError")
"""What parts raise when they are made is a mistake in the configuration, if it is one of these."""


@contextmanager
def translate_failures(parts: Parts | None = None) -> Iterator[None]:
    """Turn Ray's errors into ones that name the part and the reason.

    Raises:
        ConfigError: a part refused its arguments.
        RuntimeError: a part has died, failed, or does not answer.
    """
    import ray.exceptions

    try:
        yield
    except ray.exceptions.RayActorError as error:
        # Also a living part's failure, when it called one that is dead.
        raise _describe_death(parts, error) from error
    except ray.exceptions.RayTaskError as error:
        raise RuntimeError(str(error.cause)) from error
    except ray.exceptions.GetTimeoutError as error:
        raise RuntimeError(f"a part of the run does not answer: {error}") from error


def _describe_death(parts: Parts | None, error: Any) -> Exception:
    last = str(error).strip().splitlines()[-1]
    if error.actor_init_failed:
        kind, _, words = last.partition(": ")
        return ConfigError(words) if kind in MISTAKES else RuntimeError(last)
    return RuntimeError(
        f"the {_find_part_name(parts, error.actor_id)} has died: {last.split('. ')[0]}"
    )


def _find_part_name(parts: Parts | None, actor_id: str) -> str:
    for field in fields(parts) if parts is not None else ():
        if getattr(parts, field.name)._actor_id.hex() == actor_id:  # noqa: SLF001
            return field.name
    return f"actor {actor_id}"


_LOG = logging.getLogger(__name__)
NAMESPACE = "unstable"
START_TIMEOUT = 600.0
"""Seconds for all parts to start, models included."""
WATCH = 2.0
"""Seconds between two checks that every part is alive."""
ANSWER_TIMEOUT = 120.0
"""Seconds for a part to answer such a check."""
EVALUATION_TIMEOUT = 600.0
"""Seconds for the last checkpoint's evaluation games."""
END_TIMEOUT = 30.0
"""Seconds for games to end when the run does, and as many for files to be closed."""


def train_on_ray(
    config: RunConfig, folder: RunFolder, model: str, report: ReportProgress
) -> RunResult:
    """Start the run of a folder, or resume it from its newest state.

    Uses the cluster of RAY_ADDRESS; without one, starts Ray on this machine.

    Raises:
        ConfigError: a part refuses what the configuration says.
        RuntimeError: a part died or failed; the message says which.
    """
    import ray

    # Ray tells of workers that died on standard output, which is for the result alone.
    with contextlib.redirect_stdout(sys.stderr):
        ours = not ray.is_initialized()
        if ours:
            with contextlib.chdir("/"):  # workers import from the folder that Ray is started in
                ray.init(
                    os.environ.get("RAY_ADDRESS", "local"),
                    namespace=NAMESPACE, include_dashboard=False, log_to_driver=False,
                    logging_level=logging.ERROR,
                )  # fmt: skip
        try:
            return _train(config, folder, model, report)
        finally:
            if ours:
                ray.shutdown()


def _train(config: RunConfig, folder: RunFolder, model: str, report: ReportProgress) -> RunResult:
    states = folder.states()
    with raise_config_errors():
        register_own_parts(config)
    with translate_failures():
        parts = _make_actors(config, folder, model, parse_step(states[-1]) if states else -1)
    try:
        with translate_failures(parts):
            _await_parts(parts)
            step = 0
            if states:
                step = load_state(states[-1], parts)
            else:
                begin(config, parts)
            return _supervise(config, folder, parts, step, report)
    finally:
        _kill_parts(parts)


def _make_actors(config: RunConfig, folder: RunFolder, model: str, resume_step: int) -> Parts:
    """Start all parts but the engines.

    Those that use the run's folder are on this machine; the learner too, unless the GPU for it is
    on another one.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    learner_gpus = min(1, _check_gpus(config))

    def make(kind: type, name: str, **arguments: Any) -> Any:
        is_learner = name == "Learner"
        if name == "ModelPool":
            arguments["checkpoints"] = folder.path / "checkpoints"
        options = {
            "name": name,
            "namespace": NAMESPACE,
            "num_cpus": 0,
            "num_gpus": learner_gpus if is_learner else 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=is_learner),
            **_actor_environment(config),
        }
        return make_actor_class(kind).options(**options).remote(**arguments)

    return make_parts(config, folder, model, resume_step, make)


def _actor_environment(config: RunConfig) -> dict[str, Any]:
    """Return the options for an actor to find the user's own modules, if any are named."""
    if not config.plugins and ":" not in "".join(_list_part_names(config)):
        return {}
    path = os.pathsep.join(filter(None, (*config.import_path, os.environ.get("PYTHONPATH"))))
    return {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}


def _list_part_names(config: RunConfig) -> list[str]:
    """List every name in the configuration that may be a part of the user's own."""
    buffer, games, pool = config.buffer, config.games, config.pool
    modes = pool.sample_mode
    return [
        config.learner.algorithm,
        *(transform.type for transform in (*buffer.final, *buffer.step, *buffer.sampling)),
        *([modes] if isinstance(modes, str) else modes),
        *pool.fixed,
        *games.opponents,
        games.action_extraction,
    ]


def _check_gpus(config: RunConfig) -> int:
    """Return the cluster's number of GPUs; raise ConfigError if they are too few."""
    import ray

    gpus = int(ray.cluster_resources().get("GPU", 0))  # type: ignore[no-untyped-call]
    needed = config.engine.num_actors + 1
    if 0 < gpus < needed:
        raise ConfigError(
            f"the cluster has {gpus} GPUs, but every engine and the learner need one: {needed};"
            ' lower engine.num_actors, or use mode = "turns", where they share one'
        )
    return gpus


def _await_parts(parts: Parts) -> None:
    import ray

    handles: list[Any] = [getattr(parts, field.name) for field in fields(parts)]
    ray.get([part.__ray_ready__.remote() for part in handles], timeout=START_TIMEOUT)


def _supervise(
    config: RunConfig, folder: RunFolder, parts: Parts, step: int, report: ReportProgress
) -> RunResult:
    import ray

    learned: dict[str, float] = {}

    def report_phase(phase: str) -> None:
        evaluations = select_settled_evaluations(_check_parts(parts), config.eval_games)
        report(Progress(phase, step, config.updates, learned, evaluations))

    save_state(folder, parts, step, config)
    collecting = send(parts.collector.collect, config.workers, config.eval_workers)
    try:
        while step < config.updates:
            check_interrupt()
            update = send(parts.learner.next_update)
            ended: list[Any] = []
            while not ended:
                report_phase("learning")
                ended, _ = ray.wait([update, collecting], timeout=WATCH)
            if collecting in ended:
                ray.get(collecting)  # raises what ended it
            learned = _await_update(update, collecting)
            step = int(learned["step"])
            save_state(folder, parts, step, config)
        _evaluate_last(parts, collecting, lambda: report_phase("evaluating"))
        save_state(folder, parts, step, config)
        return collect_result(folder, parts, step)
    finally:
        _close_parts(parts, collecting)


def _evaluate_last(parts: Parts, collecting: Any, look: Callable[[], None]) -> None:
    """Evaluate the newest checkpoint; games that take too long are left out."""
    import ray

    ray.get(send(parts.collector.finish), timeout=ANSWER_TIMEOUT)
    end = time.monotonic() + EVALUATION_TIMEOUT
    while time.monotonic() < end:
        look()
        if ray.wait([collecting], timeout=WATCH)[0]:
            ray.get(collecting)  # raises what ended it
            return
    _LOG.warning("the last checkpoint was not wholly evaluated in %g s", EVALUATION_TIMEOUT)


def _await_update(update: Any, collecting: Any) -> dict[str, float]:
    """Return the metrics of an update; if collection failed, raise its error instead."""
    import ray

    try:
        learner_metrics: dict[str, float] = ray.get(update)
    except ray.exceptions.RayTaskError:
        if ray.wait([collecting], timeout=WATCH)[0]:
            ray.get(collecting)
        raise
    return learner_metrics


def _check_parts(parts: Parts) -> tuple[Mapping[str, Any], ...]:
    """Return the evaluations so far; raise if a part that only answers is dead or hangs.

    Collector and learner are busy with calls of their own, which end when they die.
    """
    import ray

    evaluations, *_ = ray.get(
        [
            send(parts.tracker.get_evaluations),
            send(parts.buffer.size),
            send(parts.pool.current_uid),
            send(parts.collector.stats),
        ],
        timeout=ANSWER_TIMEOUT,
    )
    return tuple(evaluations)


def _close_parts(parts: Parts, collecting: Any) -> None:
    """End games, free engines and write files of the living parts."""
    import ray

    send(parts.buffer.stop, "the run has ended")
    ray.wait([collecting], timeout=END_TIMEOUT)
    closing = [send(part.close) for part in (parts.collector, parts.buffer, parts.tracker)]
    ray.wait(closing, num_returns=len(closing), timeout=END_TIMEOUT)


def _kill_parts(parts: Parts) -> None:
    import ray

    for name in ("collector", "learner", "buffer", "pool", "tracker"):
        ray.kill(getattr(parts, name))
