"""The parts of a run, made as its configuration says."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unstable import algorithms, reward_transformations
from unstable.config import ConfigError, RunConfig, Transform
from unstable.core import BaseAlgo

BASE_ITERATION = -1
"""The pool's number for the model before the first update."""


@dataclass(frozen=True)
class Parts:
    """Plain objects, or handles of Ray actors."""

    tracker: Any
    buffer: Any
    pool: Any
    collector: Any
    learner: Any


@contextmanager
def refusals_are_mistakes() -> Iterator[None]:
    """What parts refuse when they are made is a mistake in the configuration."""
    try:
        yield
    except ConfigError:
        raise
    except (LookupError, ValueError) as error:
        raise ConfigError(str(error)) from error


def tracker_arguments(config: RunConfig, run_dir: Path, resume_step: int | None) -> dict[str, Any]:
    return {
        "run_name": config.name,
        "wandb_project": config.wandb_project,
        "trackio_project": config.trackio_project,
        "run_dir": run_dir,
        "resume_step": resume_step,
    }


def buffer_arguments(config: RunConfig) -> dict[str, Any]:
    return {
        "max_buffer_size": config.buffer.max_size,
        "final_reward_transformation": reward_transformations.ComposeFinalRewardTransforms(
            transforms(config.buffer.final, "buffer.final")
        ),
        "step_reward_transformation": reward_transformations.ComposeStepRewardTransforms(
            transforms(config.buffer.step, "buffer.step")
        ),
        "sampling_reward_transformation": reward_transformations.ComposeSamplingRewardTransforms(
            transforms(config.buffer.sampling, "buffer.sampling")
        ),
        "buffer_strategy": config.buffer.strategy,
        "group_size": config.games.group_size,
        "write_csv": config.buffer.write_csv,
        "seed": config.seed,
    }


def pool_arguments(config: RunConfig) -> dict[str, Any]:
    return {
        "sample_mode": config.pool.sample_mode,
        "max_active_lora": config.pool.max_active_lora,
        "lag_range": config.pool.lag_range,
        "ratings": config.pool.ratings,
        "seed": config.seed,
    }


def engine_config(config: RunConfig, model: str) -> dict[str, Any]:
    """The `vllm_config` of the collector."""
    memory = config.engine.gpu_memory_utilization
    return {
        **({} if memory is None else {"gpu_memory_utilization": memory}),
        "model_name": model,
        "engine": _engine_kind(config),
        "device": config.engine.device,
        "dtype": config.engine.dtype,
        "max_parallel_seq": config.engine.max_parallel_seq,
        "max_model_len": config.engine.max_model_len,
        "max_loras": config.engine.max_loras,
        "lora_config": config.lora.model_dump(),
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
    """Whether checkpoints are whole models instead of adapters."""
    return bool(config.learner.options.get("full_parameters"))


def collector_arguments(config: RunConfig, model: str) -> dict[str, Any]:
    return {
        "num_actors": config.engine.num_actors,
        "vllm_config": engine_config(config, model),
        "training_envs": config.games.train,
        "evaluation_envs": config.games.evaluated,
        "evaluation_opponent": config.games.opponent,
        "max_eval_games_per_ckpt": config.eval_games,
        "filter_opponent_invalid": config.games.filter_opponent_invalid,
        "action_extraction": config.games.action_extraction,
        "compact_views": config.games.compact_views,
        "random_opening_moves": config.games.random_opening_moves,
        "group_size": config.games.group_size,
        "seed": config.seed,
    }


def learner_arguments(config: RunConfig, model: str) -> dict[str, Any]:
    """For StandardLearner, without the other parts; raises ConfigError for unknown options."""
    from unstable.learners.standard_learner import StandardLearner

    said = {
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
    known = inspect.signature(StandardLearner).parameters.keys() - said.keys()
    known -= {"step_buffer", "model_pool", "tracker", "ckpt_root"}
    unknown = ", ".join(sorted(config.learner.options.keys() - known))
    if unknown:
        raise ConfigError(f"learner.options: no {unknown}; there are {', '.join(sorted(known))}")
    return {**said, **config.learner.options}


def make_algorithm(config: RunConfig) -> BaseAlgo:
    """The algorithm by its name; raises ConfigError with those that are known."""
    name = config.learner.algorithm
    if name not in algorithms.ALGORITHMS:
        known = ", ".join(algorithms.ALGORITHMS)
        raise ConfigError(f"learner.algorithm: no {name!r}; there are {known}")
    try:
        made: BaseAlgo = getattr(algorithms, name)(**config.learner.algorithm_options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"learner.algorithm_options: {error}") from error
    return made


def transforms(named: Iterable[Transform], field: str) -> list[Any]:
    """Reward transforms by the names of their classes; raises ConfigError."""
    made = []
    for transform in named:
        kind = getattr(reward_transformations, transform.type, None)
        if kind is None or transform.type.startswith("Compose"):
            known = [n for n in reward_transformations.__all__ if not n.endswith("Transforms")]
            raise ConfigError(f"{field}: no {transform.type!r}; there are {', '.join(known)}")
        try:
            made.append(kind(**transform.options))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{field}: {transform.type}: {error}") from error
    return made
