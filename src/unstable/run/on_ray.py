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
from unstable.run import RunFolder, state_step
from unstable.run.parts import Parts, begin, make_parts, refusals_are_mistakes, register_own_parts
from unstable.run.progress import (
    Progress,
    ReportProgress,
    RunResult,
    load_state,
    result_of,
    save_state,
    settled_evaluations,
)
from unstable.utils.handles import make_actor_class, send

MISTAKES = ("KeyError", "LookupError", "ValueError")
"""What parts raise when they are made is a mistake in the configuration, if it is one of these."""


@contextmanager
def named_failures(parts: Parts | None = None) -> Iterator[None]:
    """Turn Ray's errors into ones that say which part it was, and why.

    Raises:
        ConfigError: a part refused its arguments.
        RuntimeError: a part has died, failed, or does not answer.
    """
    import ray.exceptions

    try:
        yield
    except ray.exceptions.RayActorError as error:
        # Also a living part's failure, when it called one that is dead.
        raise _death(parts, error) from error
    except ray.exceptions.RayTaskError as error:
        raise RuntimeError(str(error.cause)) from error
    except ray.exceptions.GetTimeoutError as error:
        raise RuntimeError(f"a part of the run does not answer: {error}") from error


def _death(parts: Parts | None, error: Any) -> Exception:
    last = str(error).strip().splitlines()[-1]
    if error.actor_init_failed:
        kind, _, words = last.partition(": ")
        return ConfigError(words) if kind in MISTAKES else RuntimeError(last)
    return RuntimeError(f"the {_name(parts, error.actor_id)} has died: {last.split('. ')[0]}")


def _name(parts: Parts | None, actor_id: str) -> str:
    for field in fields(parts) if parts is not None else ():
        if getattr(parts, field.name)._actor_id.hex() == actor_id:  # noqa: SLF001
            return field.name
    return f"actor {actor_id}"


_LOG = logging.getLogger(__name__)
NAMESPACE = "unstable"
START_TIMEOUT = 600.0
"""Seconds for all parts to start, models included."""
WATCH = 2.0
"""Seconds between two looks whether every part still lives."""
ANSWER_TIMEOUT = 120.0
"""Seconds for a part that is looked at to answer."""
EVALUATION_TIMEOUT = 600.0
"""Seconds for the last checkpoint's evaluation games."""
END_TIMEOUT = 30.0
"""Seconds for games to end when the run does, and as many for files to be closed."""


def train_on_ray(
    config: RunConfig, folder: RunFolder, model: str, report: ReportProgress
) -> RunResult:
    """Begin the run of a folder, or resume it from its newest state.

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
    with refusals_are_mistakes():
        register_own_parts(config)
    with named_failures():
        parts = _make_actors(config, folder, model, state_step(states[-1]) if states else -1)
    try:
        with named_failures(parts):
            _await_parts(parts)
            step = 0
            if states:
                step = load_state(states[-1], parts)
            else:
                begin(config, parts)
            return _supervise(config, folder, parts, step, report)
    finally:
        _kill(parts)


def _make_actors(config: RunConfig, folder: RunFolder, model: str, resume_step: int) -> Parts:
    """All parts but the engines.

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
            **_own_modules(config),
        }
        return make_actor_class(kind).options(**options).remote(**arguments)

    return make_parts(config, folder, model, resume_step, make)


def _own_modules(config: RunConfig) -> dict[str, Any]:
    """Options for an actor to find modules of one's own, where some are named."""
    if not config.plugins and ":" not in "".join(_names(config)):
        return {}
    path = os.pathsep.join(filter(None, (*config.import_path, os.environ.get("PYTHONPATH"))))
    return {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}


def _names(config: RunConfig) -> list[str]:
    """Of everything that may be a part of one's own."""
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
    """How many the cluster has; raises ConfigError if they are too few."""
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
        evaluations = settled_evaluations(_look(parts), config.eval_games)
        report(Progress(phase, step, config.updates, learned, evaluations))

    save_state(folder, parts, step, config)
    collecting = send(parts.collector.collect, config.workers, config.eval_workers)
    try:
        while step < config.updates:
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
        return result_of(folder, parts, step)
    finally:
        _close(parts, collecting)


def _evaluate_last(parts: Parts, collecting: Any, look: Callable[[], None]) -> None:
    """Have the newest checkpoint evaluated; games that take too long are left out."""
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
    """What an update gave. If it failed because collection did, that is what is raised."""
    import ray

    try:
        learner_metrics: dict[str, float] = ray.get(update)
    except ray.exceptions.RayTaskError:
        if ray.wait([collecting], timeout=WATCH)[0]:
            ray.get(collecting)
        raise
    return learner_metrics


def _look(parts: Parts) -> tuple[Mapping[str, Any], ...]:
    """The evaluations so far; raises if one of those that only answer is dead or hangs.

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


def _close(parts: Parts, collecting: Any) -> None:
    """Have games end, engines freed and files written, by those parts that live."""
    import ray

    send(parts.buffer.stop, "the run has ended")
    ray.wait([collecting], timeout=END_TIMEOUT)
    closing = [send(part.close) for part in (parts.collector, parts.buffer, parts.tracker)]
    ray.wait(closing, num_returns=len(closing), timeout=END_TIMEOUT)


def _kill(parts: Parts) -> None:
    import ray

    for name in ("collector", "learner", "buffer", "pool", "tracker"):
        ray.kill(getattr(parts, name))
