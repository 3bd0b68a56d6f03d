"""The parts of a run, made as its configuration says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unstable import algorithms, reward_transformations
from unstable.buffer import StepBuffer
from unstable.collector import Collector
from unstable.config import ConfigError, RunConfig, TransformConfig
from unstable.core import BaseAlgo, RewardTransform
from unstable.games import GameError, GameRunner
from unstable.games.players import RANDOM_LEGAL, RandomLegal, find_fewest_players
from unstable.learners.standard_learner import StandardLearner, check_settings
from unstable.model_pool import ModelPool
from unstable.reward_transformations import (
    ComposeFinalRewardTransforms,
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
    FinalRewardTransform,
    SamplingRewardTransform,
    StepRewardTransform,
)
from unstable.run import RunFolder
from unstable.trackers import Tracker
from unstable.utils.handles import call
from unstable.utils.plugins import add_to_path, check_options, load_part, load_plugins, make_part
from unstable.utils.templates import add_templates

BASE_ITERATION = -1
"""The pool's number for the model before the first update."""
OVERLAP_STALENESS = 8
"""Updates since a step was sampled, where `learner.options.max_staleness` does not say it."""


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
    """Make all parts but the engines.

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
    buffer = make(StepBuffer, "StepBuffer", tracker=tracker, **buffer_arguments(config))
    pool = make(ModelPool, "ModelPool", tracker=tracker, **pool_arguments(config))
    shared = {"tracker": tracker, "step_buffer": buffer, "model_pool": pool}
    collector = make(Collector, "Collector", **shared, **collector_arguments(config, model))
    learner = make(StandardLearner, "Learner", **shared, **learner_arguments(config, model))
    return Parts(tracker, buffer, pool, collector, learner)


def replace_games(
    config: RunConfig,
    env_ids: tuple[str, ...] = (),
    opponents: tuple[str, ...] = (),
    players: int | None = None,
) -> RunConfig:
    """Return the run on these games, measured against these opponents; none: unchanged.

    Args:
        config: of the run.
        env_ids: the games.
        opponents: against whom it is measured.
        players: of a game; None: as it was, or as `unstable games` says.

    Raises:
        ConfigError: a game does not run here.
    """
    changes: dict[str, Any] = {}
    if env_ids or players:
        template = config.games.train[0][2]
        before = {env_id: n for env_id, n, _ in config.games.train}
        try:
            changes["train"] = tuple(
                (env_id, players or before.get(env_id) or find_fewest_players(env_id), template)
                for env_id in env_ids or before
            )
        except GameError as error:
            raise ConfigError(f"games: {error}") from error
        changes["evaluate"] = ()
    if opponents:
        changes["opponent"] = opponents
    return config.model_copy(update={"games": config.games.model_copy(update=changes)})


def check(config: RunConfig) -> None:
    """Refuse a configuration that cannot run, before anything is made or written.

    Raises:
        ConfigError: with the field, and what to do.
    """
    with raise_config_errors():
        register_own_parts(config)
        _check_batches(config, make_algorithm(config))
        _check_games(config)
        buffer = StepBuffer(**buffer_arguments(config))
        pool = ModelPool(**pool_arguments(config))
        Collector(
            step_buffer=buffer,
            model_pool=pool,
            tracker=None,
            **collector_arguments(config, config.model),
        )
        check_settings(learner_arguments(config, config.model))
    if config.model.startswith((".", "/", "~")) and not Path(config.model).is_dir():
        raise ConfigError(f"model: there is no folder {config.model}")


def register_own_parts(config: RunConfig) -> None:
    """Import the user's own parts in this process; raise ValueError if one is missing."""
    add_to_path(config.import_path)
    load_plugins(config.plugins)
    add_templates(template_fields(config))


def template_fields(config: RunConfig) -> dict[str, dict[str, Any]]:
    return {name: template.model_dump() for name, template in config.templates.items()}


def _check_batches(config: RunConfig, algorithm: BaseAlgo) -> None:
    strategy, size, name = config.buffer.strategy, config.games.group_size, config.learner.algorithm
    if algorithm.needs_groups and (strategy != "groups" or size < 2):
        raise ConfigError(
            f"learner.algorithm: {name} compares games that begin alike; set buffer.strategy ="
            ' "groups" and games.group_size to 2 or more'
        )
    if algorithm.needs_episodes and strategy == "random":
        raise ConfigError(
            f'learner.algorithm: {name} learns from whole games; set buffer.strategy = "episodes"'
        )
    if config.mode == "overlap" and trains_whole_model(config):
        raise ConfigError(
            'mode: "overlap" plays with the weights that full_parameters would train; set mode ='
            ' "turns" or "ray", or train an adapter'
        )
    if config.mode == "overlap" and config.engine.kind == "vllm":
        raise ConfigError(
            'engine.kind: vLLM has its own weights, and mode = "overlap" has them once; set'
            ' engine.kind = "transformers", or mode = "ray"'
        )
    if strategy == "groups" and size < 2:
        raise ConfigError('buffer.strategy: "groups" needs games.group_size of 2 or more')
    if config.mode == "turns" and config.games_per_update % size:
        raise ConfigError(
            f"games_per_update: {config.games_per_update} games are not a multiple of {size}"
            " (games.group_size)"
        )
    learner = learner_arguments(config, config.model)
    oldest = learner.get("max_staleness")
    if oldest is not None and config.learner.save_every - 1 > oldest:
        raise ConfigError(
            f"learner.save_every: {config.learner.save_every} updates from one policy to the next,"
            f" but steps are dropped after {oldest} (learner.options.max_staleness)"
        )
    waits = learner.get("batch_delay_buffer", 1.5)
    if config.mode != "turns" and config.batch_size * waits > config.buffer.max_size:
        raise ConfigError(
            f"buffer.max_size: {config.buffer.max_size} steps; the learner waits for"
            f" {config.batch_size * waits:g} (batch_size x learner.options.batch_delay_buffer)"
        )


def _check_games(config: RunConfig) -> None:
    for field, envs in (("train", config.games.train), ("evaluate", config.games.evaluate)):
        for env_id, num_players, _ in envs:
            try:
                GameRunner(env_id, num_players, seed=0)
            except GameError as error:
                raise ConfigError(f"games.{field}, for {num_players} players: {error}") from error
    modes = config.pool.sample_mode
    if "fixed" in ([modes] if isinstance(modes, str) else modes) and not config.pool.fixed:
        raise ConfigError('pool.sample_mode: "fixed" needs opponents in pool.fixed')
    for env_id, num_players, _ in config.games.train if RANDOM_LEGAL in config.pool.fixed else ():
        if num_players > 1 and not RandomLegal.plays(env_id):
            raise ConfigError(f"pool.fixed: {RANDOM_LEGAL} does not know the moves of {env_id}")


def buffer_arguments(config: RunConfig) -> dict[str, Any]:
    buffer = config.buffer
    return {
        "max_buffer_size": buffer.max_size,
        "final_reward_transformation": ComposeFinalRewardTransforms(
            make_transforms(buffer.final, "final")
        ),
        "step_reward_transformation": ComposeStepRewardTransforms(
            make_transforms(buffer.step, "step")
        ),
        "sampling_reward_transformation": ComposeSamplingRewardTransforms(
            make_transforms(buffer.sampling, "sampling")
        ),
        "buffer_strategy": buffer.strategy,
        "group_size": config.games.group_size,
        "write_csv": buffer.write_csv,
        "seed": config.seed,
    }


def pool_arguments(config: RunConfig) -> dict[str, Any]:
    return {"seed": config.seed, **config.pool.model_dump(exclude={"fixed"})}


def begin(config: RunConfig, parts: Parts) -> None:
    call(parts.pool.add_checkpoint, None, BASE_ITERATION)
    for name in config.pool.fixed:
        call(parts.pool.add_fixed, name)


@contextmanager
def raise_config_errors() -> Iterator[None]:
    """Raise what parts refuse when they are made as ConfigError."""
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
    """Return the engine; for whole models, the one that can change them while it runs."""
    if config.mode == "overlap":
        return "transformers"
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
        "templates": template_fields(config),
        "plugins": config.plugins,
        **config.games.model_dump(exclude={"train", "evaluate", "opponent"}),
    }


def learner_arguments(config: RunConfig, model: str) -> dict[str, Any]:
    """Return StandardLearner's arguments; raise ConfigError for unknown options."""
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
    known -= {"step_buffer", "model_pool", "tracker", "ckpt_root", "base", "engine"}
    unknown = ", ".join(sorted(config.learner.options.keys() - known))
    if unknown:
        raise ConfigError(f"learner.options: no {unknown}; there are {', '.join(sorted(known))}")
    options = check_options(StandardLearner, config.learner.options, "learner.options")
    if config.mode == "overlap":
        arguments["max_staleness"] = OVERLAP_STALENESS
    return {**arguments, **options}


def make_algorithm(config: RunConfig) -> BaseAlgo:
    name = config.learner.algorithm
    if name in algorithms.ALGORITHMS:
        kind = getattr(algorithms, name)
    elif ":" in name:
        kind = _load_part(name, "learner.algorithm")
    else:
        known = ", ".join(algorithms.ALGORITHMS)
        raise ConfigError(
            f"learner.algorithm: no {name!r}; there are {known}, or my_module:MyAlgorithm"
        )
    if not (isinstance(kind, type) and issubclass(kind, BaseAlgo)):
        raise ConfigError(f"learner.algorithm: {name} is not a subclass of unstable.core.BaseAlgo")
    algorithm: BaseAlgo = _make_part(
        kind, config.learner.algorithm_options, "learner.algorithm_options"
    )
    return algorithm


STAGES: dict[str, type[RewardTransform]] = {
    "final": FinalRewardTransform,
    "step": StepRewardTransform,
    "sampling": SamplingRewardTransform,
}


def make_transforms(named: Iterable[TransformConfig], stage: str) -> list[Any]:
    field, base = f"buffer.{stage}", STAGES[stage]
    instances = []
    for transform in named:
        if ":" in transform.type:
            kind = _load_part(transform.type, field)
        else:
            kind = getattr(reward_transformations, transform.type, None)
            if kind is None or transform.type.startswith("Compose"):
                known = [n for n in reward_transformations.__all__ if not n.endswith("Transforms")]
                raise ConfigError(
                    f"{field}: no {transform.type!r}; there are {', '.join(known)}, or"
                    " my_module:MyTransform"
                )
        instance = _make_part(kind, transform.options, f"{field}: {transform.type}")
        if not isinstance(instance, base):
            right = [name for name, other in STAGES.items() if isinstance(instance, other)]
            hint = f"; it belongs into buffer.{right[0]}" if right else ""
            raise ConfigError(f"{field}: {transform.type} is no {base.__name__}{hint}")
        instances.append(instance)
    return instances


def _load_part(name: str, field: str) -> Any:
    try:
        return load_part(name)
    except ValueError as error:
        raise ConfigError(f"{field}: {error}") from error


def _make_part(kind: Any, options: Mapping[str, Any], where: str) -> Any:
    try:
        return make_part(kind, options, where)
    except (TypeError, ValueError) as error:
        words = str(error)
        raise ConfigError(words if words.startswith(where) else f"{where}: {words}") from error
