"""The parts of a run, made as its configuration says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from unstable import algorithms, reward_transformations
from unstable.buffer import StepBuffer
from unstable.collector import Collector
from unstable.config import ConfigError, RunConfig, TransformConfig
from unstable.core import BaseAlgo
from unstable.learners.standard_learner import StandardLearner
from unstable.model_pool import ModelPool
from unstable.reward_transformations import (
    ComposeFinalRewardTransforms,
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
)
from unstable.run.folder import RunFolder
from unstable.trackers import Tracker
from unstable.utils.handles import call

BASE_ITERATION = -1
"""The pool's number for the model before the first update."""


@dataclass(frozen=True)
class Parts:
    """Plain objects, or handles of Ray actors (`utils.handles`)."""

    tracker: Tracker
    buffer: StepBuffer
    pool: ModelPool
    collector: Collector
    learner: StandardLearner

    def with_json_state(self) -> dict[str, Tracker | StepBuffer | ModelPool | Collector]:
        return {
            "tracker": self.tracker, "buffer": self.buffer, "pool": self.pool,
            "collector": self.collector,
        }  # fmt: skip


def make_parts(
    config: RunConfig, folder: RunFolder, model: str, resume_step: int, make: Callable[..., Any]
) -> Parts:
    """All parts but the engines.

    Args:
        config: of the run.
        folder: of the run.
        model: the base model.
        resume_step: the learner's step that the run resumes from; -1: it is new.
        make: from a part's class, name and arguments to the part, or the handle of its actor.
    """
    tracker = make(
        Tracker,
        "Tracker",
        run_name=config.name,
        wandb_project=config.wandb_project,
        trackio_project=config.trackio_project,
        run_dir=folder.path,
        resume_step=resume_step,
    )
    buffer = make(
        StepBuffer,
        "StepBuffer",
        tracker=tracker,
        max_buffer_size=config.buffer.max_size,
        final_reward_transformation=ComposeFinalRewardTransforms(
            transforms(config.buffer.final, "buffer.final")
        ),
        step_reward_transformation=ComposeStepRewardTransforms(
            transforms(config.buffer.step, "buffer.step")
        ),
        sampling_reward_transformation=ComposeSamplingRewardTransforms(
            transforms(config.buffer.sampling, "buffer.sampling")
        ),
        buffer_strategy=config.buffer.strategy,
        group_size=config.games.group_size,
        write_csv=config.buffer.write_csv,
        seed=config.seed,
    )
    pool = make(
        ModelPool,
        "ModelPool",
        tracker=tracker,
        seed=config.seed,
        **config.pool.model_dump(exclude={"fixed"}),
    )
    shared = {"tracker": tracker, "step_buffer": buffer, "model_pool": pool}
    collector = make(Collector, "Collector", **shared, **collector_arguments(config, model))
    learner = make(StandardLearner, "Learner", **shared, **learner_arguments(config, model))
    return Parts(tracker, buffer, pool, collector, learner)


def begin(config: RunConfig, parts: Parts) -> None:
    call(parts.pool.add_checkpoint, None, BASE_ITERATION)
    for name in config.pool.fixed:
        call(parts.pool.add_fixed, name)


@contextmanager
def refusals_are_mistakes() -> Iterator[None]:
    """What parts refuse when they are made is a mistake in the configuration."""
    try:
        yield
    except ConfigError:
        raise
    except (LookupError, ValueError) as error:
        raise ConfigError(str(error)) from error


def engine_config(config: RunConfig, model: str) -> dict[str, Any]:
    return {
        "model_name": model,
        "engine": _engine_kind(config),
        "lora_config": config.lora.model_dump(),
        **config.engine.model_dump(exclude={"kind", "num_actors"}),
        **config.sampling.model_dump(),
    }


def _engine_kind(config: RunConfig) -> str:
    """The engine; where whole models are trained, the one that can change them while it runs."""
    if not trains_whole_model(config):
        return config.engine.kind
    if config.engine.kind == "vllm":
        raise ConfigError(
            "learner.options.full_parameters: vLLM can change adapters while it runs, but not the"
            ' whole model; set engine.kind = "transformers", or train an adapter'
        )
    return "transformers"


def trains_whole_model(config: RunConfig) -> bool:
    return bool(config.learner.options.get("full_parameters"))


def collector_arguments(config: RunConfig, model: str) -> dict[str, Any]:
    return {
        "num_actors": config.engine.num_actors,
        "vllm_config": engine_config(config, model),
        "training_envs": config.games.train,
        "evaluation_envs": config.games.evaluated,
        "evaluation_opponent": config.games.opponents,
        "max_eval_games_per_ckpt": config.eval_games,
        "seed": config.seed,
        **config.games.model_dump(exclude={"train", "evaluate", "opponent"}),
    }


def learner_arguments(config: RunConfig, model: str) -> dict[str, Any]:
    """For StandardLearner, without the other parts; raises ConfigError for unknown options."""
    arguments = {
        "model_name": model,
        "algorithm": make_algorithm(config),
        "batch_size": config.batch_size,
        "mini_batch_size": config.learner.mini_batch_size,
        "learning_rate": config.learner.learning_rate,
        "grad_clip": config.learner.grad_clip,
        "lora_cfg": None if trains_whole_model(config) else config.lora.model_dump(),
        "max_generation_len": config.sampling.max_tokens,
        "save_every": config.learner.save_every,
        "seed": config.seed,
    }
    known = inspect.signature(StandardLearner).parameters.keys() - arguments.keys()
    known -= {"step_buffer", "model_pool", "tracker", "ckpt_root"}
    unknown = ", ".join(sorted(config.learner.options.keys() - known))
    if unknown:
        raise ConfigError(f"learner.options: no {unknown}; there are {', '.join(sorted(known))}")
    return {**arguments, **config.learner.options}


def make_algorithm(config: RunConfig) -> BaseAlgo:
    name = config.learner.algorithm
    if name not in algorithms.ALGORITHMS:
        known = ", ".join(algorithms.ALGORITHMS)
        raise ConfigError(f"learner.algorithm: no {name!r}; there are {known}")
    try:
        algorithm: BaseAlgo = getattr(algorithms, name)(**config.learner.algorithm_options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"learner.algorithm_options: {error}") from error
    return algorithm


def transforms(named: Iterable[TransformConfig], field: str) -> list[Any]:
    instances = []
    for transform in named:
        kind = getattr(reward_transformations, transform.type, None)
        if kind is None or transform.type.startswith("Compose"):
            known = [n for n in reward_transformations.__all__ if not n.endswith("Transforms")]
            raise ConfigError(f"{field}: no {transform.type!r}; there are {', '.join(known)}")
        try:
            instances.append(kind(**transform.options))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{field}: {transform.type}: {error}") from error
    return instances
