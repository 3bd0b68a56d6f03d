"""Self-play from Python: train, resume, measure and export a run.

    import unstable
    run = unstable.train(game="Nim-v0-train", updates=30, seed=1)
    run.evaluate(games=400)             # win rates with their intervals
    run.games[-1]["moves"]              # games move by move
    run.export("nim-player")            # a folder that transformers loads
    unstable.load("last").resume(updates=60)

A run is its folder: it is read anew whenever something is asked.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from unstable.config import (
    ConfigError,
    EngineConfig,
    EnvTriple,
    GamesConfig,
    RunConfig,
    SamplingConfig,
    load_config,
    make_config,
    merge_values,
    recipe,
    require_selfplay,
)
from unstable.console import (
    TrainingBar,
    describe_evaluation,
    describe_plan,
    err,
    show_model_progress,
)
from unstable.core import new_run_dir
from unstable.dashboard.sources import RunFiles
from unstable.models import ModelFolder, find_model, find_newest_checkpoint, make_base_model
from unstable.run import RunFolder, list_own_parts
from unstable.utils.files import new_folder
from unstable.utils.handles import run_coroutine
from unstable.utils.logging import quiet_transformers
from unstable.writers import read_games

if TYPE_CHECKING:
    from unstable.dashboard import View
    from unstable.run.progress import RunResult


OUTPUTS = Path("outputs")
Names = str | Sequence[str]
Section = TypeVar("Section", bound=BaseModel)


def train(
    config: str | Path | Mapping[str, Any] | RunConfig | None = None,
    *,
    game: Names = (),
    players: int | None = None,
    opponent: Names = (),
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Train a language model by self-play, and return the run.

    Works in scripts, threads and notebooks. An interrupt leaves a run that `Run.resume` continues.

    Args:
        config: a TOML file, a configuration, or its values; None: the recipe of the embedded model.
        game: train and evaluate on this game, or these.
        players: seats of a game; None: as configured, or the fewest.
        opponent: measure against it, such as `first-checkpoint`, or against several.
        quiet: print nothing.
        **overrides: fields of the configuration: `updates=30`, `learner={"learning_rate": 1e-3}`.

    Raises:
        ConfigError: something in the configuration is wrong; no folder is left.
    """
    require_selfplay()
    chosen = read_config(config, overrides)
    env_ids, opponents = _as_tuple(game), _as_tuple(opponent)
    output_dir = Path(chosen.output_dir).absolute()
    kept = output_dir if output_dir.exists() else output_dir.parent
    run = Run(new_run_dir(output_dir, chosen.name))
    try:
        if not quiet:
            err.print(f"run: {run.path}\n{describe_plan(chosen, env_ids)}", soft_wrap=True)
        from unstable.run.parts import check, replace_games

        chosen = replace_games(chosen, env_ids, opponents, players)
        check(chosen)
        run.train(chosen, quiet=quiet)
    finally:
        run.remove_if_empty(kept)
    return run


def load(run: str | Path = "last") -> Run:
    """Open a run by its folder; `last`: the newest one below outputs/.

    Raises:
        ConfigError: there is none.
    """
    path = find_newest_run(OUTPUTS) if run == "last" else Path(run)
    return Run(RunFolder.open(path).path)


def find_newest_run(outputs: Path) -> Path:
    """Return the run below a folder that was started last; raise ConfigError if there is none."""
    runs = [path.parent for path in outputs.glob("*/*/*/metrics.jsonl")]
    if not runs:
        raise ConfigError(f"no run below {outputs}/: name the run's folder")
    return max(runs, key=lambda run: run.stat().st_ctime)


def read_config(
    config: str | Path | Mapping[str, Any] | RunConfig | None, overrides: Mapping[str, Any]
) -> RunConfig:
    """Return a checked configuration; raise ConfigError with every wrong field."""
    if isinstance(config, RunConfig):
        config = config.model_dump()
    if isinstance(config, Mapping):
        return make_config(merge_values(config, overrides))
    return load_config(Path(config or recipe(overrides.get("model"))), **overrides)


@contextlib.contextmanager
def _raise_at_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the training inside `asyncio.run`, too, whose handler waits for its task."""
    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Run:
    """A self-play run on disk. Every property is read from its folder when it is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.result: RunResult | None = None
        """What this process's training returned."""

    @property
    def config(self) -> RunConfig:
        return RunFolder(self.path).config()

    @property
    def status(self) -> str:
        """`running`, `completed`, `cancelled`, `failed`, or empty before training."""
        status = RunFolder(self.path).seen_status()
        return status.status if status else ""

    @property
    def step(self) -> int:
        """Updates that are saved."""
        status = RunFolder(self.path).status()
        return status.step if status else 0

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint; raises ConfigError before the first one."""
        return find_newest_checkpoint(self.path / "checkpoints")

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """One row by checkpoint, game and opponent: win rate with its interval, reward, games."""
        from unstable.dashboard.sources import RunFiles

        return RunFiles(self.path).evaluations()

    @property
    def games(self) -> list[dict[str, Any]]:
        """The games that were kept, move by move: training games, then evaluation games."""
        return [*read_games(self.path, "train"), *read_games(self.path, "eval")]

    def view(self) -> View:
        """Return everything that `unstable watch` shows."""
        from unstable.dashboard.sources import RunFiles

        return RunFiles(self.path).fetch()

    def resume(
        self, updates: int | None = None, *, trust: bool = False, quiet: bool = False
    ) -> Run:
        """Continue a run that was interrupted or killed, or train it for more updates in all.

        Args:
            updates: in all; None: as many as it was to make.
            trust: import the modules that its configuration names: they run as you.
            quiet: print nothing.

        Raises:
            ConfigError: it cannot be resumed; its folder is left as it was.
        """
        require_selfplay()
        config = RunFolder.open(self.path).config_to_run(trusted=trust)
        if updates is not None:
            config = config.model_copy(update={"updates": updates})
        if not quiet:
            err.print(f"run: {self.path}\n{describe_plan(config)}", soft_wrap=True)
        if config.sampling.top_p < 1:  # runs of earlier versions
            err.print(
                f"top_p: 1, not {config.sampling.top_p:g}: training needs the whole distribution"
            )
            sampling = config.sampling.model_copy(update={"top_p": 1.0})
            config = config.model_copy(update={"sampling": sampling})
        self.train(config, quiet=quiet)
        return self

    def train(self, config: RunConfig, *, quiet: bool) -> None:
        """Train in this folder, from its newest state; an error carries how to resume as a note."""
        with show_model_progress(quiet=quiet) as report:
            model = make_base_model(config, report)
        from unstable.run.start import RUN_ERRORS, start

        folder = RunFolder(self.path)
        folder.path.mkdir(parents=True, exist_ok=True)
        if not folder.states():
            folder.write_config(config)
        trust = " --trust" * bool(list_own_parts(config))
        hint = f"resume with: unstable resume {self.path}{trust}"
        try:
            with TrainingBar(quiet=quiet) as bar, _raise_at_interrupt():
                self.result = start(config, folder, model, bar)
                bar.show_evaluations(self.result.evaluations)
        except ConfigError:
            raise
        except RUN_ERRORS as error:
            error.add_note(hint)
            raise
        except KeyboardInterrupt:
            err.print(f"stopped; {hint}", soft_wrap=True)
            raise

    def evaluate(self, **options: Any) -> list[dict[str, Any]]:
        """Play the newest checkpoint as the run's own evaluations do; see `evaluate`."""
        return evaluate(self.path, **options)

    def export(self, folder: str | Path, *, merge: bool = True) -> Path:
        """Write the newest checkpoint to a new folder, with a model card.

        Args:
            folder: where to.
            merge: write a whole model, which transformers and vLLM load by its folder; else the
                adapter alone, for its base model.

        Raises:
            FileExistsError: there is something in the folder.
        """
        return export_checkpoint(self.path, self.checkpoint, Path(folder), merge=merge)

    def remove_if_empty(self, kept: Path) -> None:
        """Remove the folder of a run that was refused, and empty folders above it up to `kept`."""
        folder = RunFolder(self.path)
        if folder.states() or folder.status() is not None:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            for parent in self.path.parents:
                if parent == kept:
                    break
                parent.rmdir()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        from unstable.dashboard.drawing import draw_run

        return draw_run(self.view())


# --- measuring ------------------------------------------------------------------------------------

WORKERS = 256
DEFAULT_GAME, DEFAULT_GAMES = "TicTacToe-v0-train", 400


def evaluate(
    folder: str | Path,
    *,
    game: Names = (),
    players: int | None = None,
    opponent: Names = (),
    games: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
    trust: bool = False,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Play a run's newest checkpoint, a checkpoint or a model against fixed opponents.

    What is not given is the run's own, so that a run gets the numbers of its own evaluations.

    Returns:
        A row by game and opponent: win rate with its 95 % interval, mean reward, games played,
        games that failed, and the exploitability where it can be computed.

    Raises:
        ConfigError: there is no model, or it cannot play this.
    """
    require_selfplay()
    model = find_model(Path(folder), trusted=trust)
    config = model.config or _configure_model(model)
    sampling = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    config = _override(
        config,
        seed=seed,
        eval_games=games or (None if config.eval_games else DEFAULT_GAMES),
        games=_override(
            config.games,
            evaluate=_choose_games(model, config, _as_tuple(game), players),
            opponent=_as_tuple(opponent) or None,
        ),
        sampling=_override(config.sampling, **sampling),
    )
    shown = contextlib.nullcontext() if quiet else err.status(f"{config.eval_games} games")
    with shown:
        return run_coroutine(_evaluate(model, config))


def _override(section: Section, **changes: Any) -> Section:
    """Return a copy with the changes that are not None."""
    return section.model_copy(update={k: v for k, v in changes.items() if v is not None})


def _as_tuple(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _configure_model(model: ModelFolder) -> RunConfig:
    """Return how a model without a run is measured."""
    from unstable.games.players import FIRST_CHECKPOINT, RANDOM_LEGAL

    return RunConfig(
        model=model.model,
        workers=WORKERS,
        eval_games=DEFAULT_GAMES,
        games=GamesConfig(
            train=((DEFAULT_GAME, 2, model.template),),
            compact_views=model.short_boards,
            action_extraction=model.extraction,
            opponent=(RANDOM_LEGAL, *([FIRST_CHECKPOINT] if model.adapter else [])),
        ),
        sampling=SamplingConfig(temperature=1.0, top_p=1.0, max_tokens=1024),
        engine=EngineConfig(max_parallel_seq=WORKERS),
    )


def _choose_games(
    model: ModelFolder, config: RunConfig, env_ids: Sequence[str], players: int | None
) -> tuple[EnvTriple, ...]:
    from unstable.games import GameError
    from unstable.games.players import find_fewest_players

    known = {env_id: (n, template) for env_id, n, template in config.games.evaluated}
    chosen = []
    for env_id in env_ids or known:
        trained, template = known.get(env_id, (model.players.get(env_id), model.template))
        try:
            chosen.append((env_id, players or trained or find_fewest_players(env_id), template))
        except GameError as error:
            raise ConfigError(f"game {env_id}: {error}") from error
    return tuple(chosen)


async def _evaluate(model: ModelFolder, config: RunConfig) -> list[dict[str, Any]]:
    from unstable.buffer import StepBuffer
    from unstable.collector import Collector
    from unstable.games.rules import BOARDS, game_name
    from unstable.model_pool import ModelPool
    from unstable.run.parts import BASE_ITERATION, collector_arguments, raise_config_errors
    from unstable.utils.logging import quiet_transformers

    quiet_transformers()
    pool = ModelPool("mirror", 2)
    pool.add_checkpoint(None, model.step if model.adapter is None else BASE_ITERATION)
    if model.adapter is not None:
        pool.add_checkpoint(model.adapter, model.step)
    with raise_config_errors():
        arguments = collector_arguments(config, model.model) | {"training_envs": ()}
        if not all(game_name(env_id) in BOARDS for env_id, *_ in config.games.evaluated):
            # Games without a short board are shown as text, also to a model that reads bytes.
            arguments["compact_views"] = False
        collector = Collector(step_buffer=StepBuffer(1), model_pool=pool, tracker=None, **arguments)
    try:
        return await collector.evaluate(config.eval_games, config.workers)
    finally:
        await collector.close()


CARD = """---
library_name: {library}
tags: [self-play, text-games]
---

# {name}

{model}, trained by self-play on {games}: {step} updates, seed {seed}.

- Prompt template `{template}`, action extraction `{extraction}`{boards}
- Sampled at temperature {temperature:g}, up to {max_tokens} tokens

```
{evaluations}
```
"""


def export_checkpoint(run: Path, checkpoint: Path, folder: Path, *, merge: bool) -> Path:
    """Write a run's checkpoint to a new folder; see `Run.export`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists: name a new folder")
    found = find_model(checkpoint)
    with new_folder(folder, replace=False) as staged:
        if merge and found.adapter is not None:
            _merge(found.model, found.adapter, staged)
        else:
            shutil.copytree(checkpoint, staged, dirs_exist_ok=True)
        card = write_card(run, found.step, "transformers" if merge else "peft")
        (staged / "README.md").write_text(card, encoding="utf-8")
    return folder


def write_card(run: Path, step: int, library: str) -> str:
    """Return the model card of a checkpoint, with its own evaluations."""
    config = RunFolder(run).config()
    games, sampling = config.games, config.sampling
    rows = [row for row in RunFiles(run).evaluations() if row["ckpt_uid"] == f"ckpt-{step}"]
    return CARD.format(
        library=library,
        name=config.name,
        model=config.model,
        games=", ".join(env_id for env_id, *_ in games.train),
        step=step,
        seed=config.seed,
        template=games.train[0][2],
        extraction=games.action_extraction,
        boards=", short boards (`unstable.games.rules`)" * games.compact_views,
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        evaluations="\n".join(map(describe_evaluation, rows)) or "not evaluated",
    )


def _merge(model: str, adapter: str, folder: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quiet_transformers()
    base = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    merged = PeftModel.from_pretrained(base, adapter).merge_and_unload()
    merged.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
