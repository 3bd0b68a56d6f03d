"""`unstable train` and `unstable resume`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from unstable.commands import (
    CommandError,
    JsonFlag,
    TrustFlag,
    UsageError,
    err,
    out,
    print_json,
    require_selfplay,
)
from unstable.evaluation import iteration

if TYPE_CHECKING:
    from unstable.config import RunConfig
    from unstable.run import RunFolder
    from unstable.run.progress import Progress, RunResult


class TrainingBar:
    def __init__(self, *, quiet: bool = False) -> None:
        self._live = err.is_terminal and not quiet
        self._quiet = quiet
        self._bar = Bar(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("updates"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}"),
            console=err,
        )
        self._task = self._bar.add_task("starting", total=None, now="")
        self._seen: set[tuple[str, str, str]] = set()

    def __enter__(self) -> Self:
        if self._live:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        self.show_evaluations(progress.evaluations)
        if self._live:
            self._bar.update(
                self._task,
                description=progress.phase,
                completed=progress.step,
                total=progress.updates,
                now=learner_words(progress.learner),
            )

    def show_evaluations(self, evaluations: tuple[Mapping[str, Any], ...]) -> None:
        for evaluation in evaluations:
            key = (evaluation["ckpt_uid"], evaluation["env_id"], evaluation["opponent"])
            if key not in self._seen and not self._quiet:
                err.print(evaluation_words(evaluation), soft_wrap=True)
            self._seen.add(key)


def evaluation_words(evaluation: Mapping[str, Any]) -> str:
    low, high = evaluation["win_rate_low"], evaluation["win_rate_high"]
    won = f"{evaluation['win_rate']:.3f} ({low:.3f} to {high:.3f})"
    uid, game = evaluation["ckpt_uid"], evaluation["env_id"]
    who = "before" if iteration(uid) == -1 else uid  # the model as it was
    if evaluation["players"] == 1:
        reward, error = evaluation["reward"], evaluation["reward_se"]
        numbers = f"reward {reward:.3f} ± {error:.3f}, solved {won}"
    else:
        game = f"{game} against {evaluation['opponent']}"
        numbers = f"won {won}, drew {evaluation['draw_rate']:.3f}"
    exploitability = evaluation["exploitability"]
    if exploitability is not None:
        numbers += f", exploitability {exploitability:.3f}"
    return (
        f"{who:>9}  {game}: {numbers}, invalid {evaluation['invalid_rate']:.3f}, "
        f"{evaluation['games']} games"
    )


def learner_words(learner: Mapping[str, float]) -> str:
    names = {"loss": "loss", "grad_norm": "grad", "reward_mean": "reward"}
    return "  ".join(f"{text} {learner[k]:.3g}" for k, text in names.items() if k in learner)


AS_CONFIGURED = "what CONFIG.toml says"


def train(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG.toml]", help="What to train; without it, the embedded model."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model's folder or Hugging Face id, `tiny` or `smollm2`.",
            show_default=AS_CONFIGURED,
        ),
    ] = None,
    game: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENV_ID",
            help="Train and evaluate on this game; repeatable.",
            show_default=AS_CONFIGURED,
        ),
    ] = None,
    players: Annotated[
        int | None,
        typer.Option(min=1, help="Seats of a game.", show_default="as configured, or the fewest"),
    ] = None,
    opponent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Measure against it, such as `first-checkpoint`; repeatable.",
            show_default=AS_CONFIGURED,
        ),
    ] = None,
    updates: Annotated[
        int | None, typer.Option(min=1, help="How many updates.", show_default=AS_CONFIGURED)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="The same seed, the same run.", show_default=AS_CONFIGURED),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The run's name.", show_default=AS_CONFIGURED)
    ] = None,
    output_dir: Annotated[
        str | None,
        typer.Option(help="The run's folder is made below it.", show_default=AS_CONFIGURED),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a language model by self-play.

    Without a configuration the embedded model, small enough for one CPU core, learns TicTacToe.

    [bold]Examples[/]

      unstable train
      unstable train --game Nim-v0-train --updates 30 --seed 1
      unstable train --game LiarsDice-v0-train --players 3
      unstable train --model smollm2
      unstable train my_run.toml --json
    """
    from unstable.commands.models import base_model
    from unstable.config import ConfigError, load_config, recipe
    from unstable.core import new_run_dir
    from unstable.run import RunFolder

    require_selfplay()
    overrides = {"model": model, "updates": updates, "seed": seed, "name": name}
    changes: dict[str, Any] = {k: v for k, v in overrides.items() if v is not None}
    if output_dir is not None:
        changes["output_dir"] = output_dir
    from unstable.run.parts import check, with_games

    try:
        asked = load_config(config or recipe(model), **changes)
        asked = with_games(asked, tuple(game or ()), tuple(opponent or ()), players)
        check(asked)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    base = base_model(asked, quiet=as_json)
    folder = RunFolder(new_run_dir(Path(asked.output_dir).absolute(), asked.name))
    folder.write_config(asked)
    try:
        _run(asked, folder, base, as_json=as_json)
    except UsageError:
        if not folder.states():  # refused: nothing of it is worth keeping
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    updates: Annotated[
        int | None,
        typer.Option(min=1, help="Train up to this many updates in all.", show_default="as before"),
    ] = None,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Resume a run that was stopped or killed, or make it longer.

    [bold]Examples[/]

      unstable resume outputs/2026-11-15/10-00-00/self-play
      unstable resume RUN --updates 400
    """
    from unstable.commands.models import base_model
    from unstable.config import ConfigError
    from unstable.run import RunFolder

    require_selfplay()
    try:
        folder = RunFolder.open(run)
        asked = folder.config_to_run(trusted=trust)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    if updates is not None:
        asked = asked.model_copy(update={"updates": updates})
    if asked.sampling.top_p < 1:  # as runs of earlier versions were made
        err.print(f"top_p: 1, not {asked.sampling.top_p:g}: training needs all of the distribution")
        sampling = asked.sampling.model_copy(update={"top_p": 1.0})
        asked = asked.model_copy(update={"sampling": sampling})
    _run(asked, folder, base_model(asked, quiet=as_json), as_json=as_json)


def _run(config: RunConfig, folder: RunFolder, model: str, *, as_json: bool) -> None:
    from unstable.config import ConfigError
    from unstable.run import own_parts
    from unstable.run.start import RUN_ERRORS, start

    if not as_json:
        err.print(f"run: {folder.path}", soft_wrap=True)
    again = f"resume with: unstable resume {folder.path}{' --trust' * bool(own_parts(config))}"
    try:
        with TrainingBar(quiet=as_json) as view:
            result = start(config, folder, model, view)
            view.show_evaluations(result.evaluations)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    except RUN_ERRORS as error:
        raise CommandError(f"{type(error).__name__}: {error}; {again}") from error
    except KeyboardInterrupt:
        err.print(f"stopped; {again}", soft_wrap=True)
        raise
    _print_result(result, as_json=as_json)


def _print_result(result: RunResult, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "run_dir": result.run_dir,
                "step": result.step,
                "checkpoint": result.checkpoint,
                "evaluations": list(result.evaluations),
                "counts": result.counts,
            }
        )
        return
    if troubles := _describe_losses(result.counts):
        err.print(troubles, soft_wrap=True)
    out.print(f"{result.step} updates; checkpoint: {result.checkpoint}", soft_wrap=True)


def _describe_losses(counts: Mapping[str, Any]) -> str:
    """What did not go as it should, though the run went on."""
    words = {
        "failed": "training games failed",
        "eval_failed": "evaluation games failed",
        "actor_deaths": "engines died",
        "write_failures": "writes of metrics failed",
    }
    seen = ", ".join(f"{counts[name]} {text}" for name, text in words.items() if counts.get(name))
    steps = {name: n for name, n in counts["steps"].items() if n}
    sampled, _, _ = (steps.pop(name, 0) for name in ("sampled", "trained", "left"))
    if steps:
        lost = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in steps.items())
        seen = f"{seen}; " if seen else ""
        seen += f"{sum(steps.values())} of {sampled} steps were not trained on ({lost})"
    last = counts.get("last_failure")
    return f"{seen}; the last game: {last}" if seen and last else seen
