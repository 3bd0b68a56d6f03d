"""The terminal: consoles, the progress of a run, and evaluations in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.segment import Segment

from unstable.evaluation import parse_iteration
from unstable.utils.logging import printable

if TYPE_CHECKING:
    from unstable.config import RunConfig
    from unstable.run.progress import Progress
    from unstable.tiny import TinyProgress


class SafeConsole(Console):
    """A console that strips control characters from every text.

    Much of what we print was written by models or by the code that they wrote. Colours are styles
    of a segment, and the console's own movements are marked as control: both pass. `:x:` is no
    emoji, but code: `obs[:x:]`.
    """

    def __init__(self, *, emoji: bool = False, **options: Any) -> None:
        super().__init__(emoji=emoji, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)


out = SafeConsole(highlight=False)
err = SafeConsole(stderr=True, highlight=False)

MODEL_SECONDS, UPDATE_SECONDS, RECIPE_GAMES = 75.0, 6.0, 384
"""Seconds of one CPU core to make the embedded model, and for an update of RECIPE_GAMES games; as
benchmarks/selfplay_learning.py measures them."""


def describe_plan(config: RunConfig, env_ids: Sequence[str] = ()) -> str:
    """Say what a run trains and how long it takes, without loading anything."""
    games = ", ".join(env_ids) or ", ".join(env_id for env_id, *_ in config.games.train)
    made = "checkpoints" if config.learner.options.get("full_parameters") else "LoRA adapters"
    time_needed = "the time left is shown after the first update"
    if config.model == "tiny" and config.mode == "turns":
        update = UPDATE_SECONDS * config.games_per_update / RECIPE_GAMES
        minutes = (MODEL_SECONDS + config.updates * update) / 60
        time_needed = f"about {max(1, round(minutes))} min on one CPU core"
    return (
        f"training {config.model} on {games}: {config.updates} update{'s' * (config.updates > 1)},"
        f" {made} in checkpoints/; {time_needed}"
    )


class TrainingBar:
    """Shows a run's progress and evaluations on standard error."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._live = (err.is_terminal or err.is_jupyter) and not quiet
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
        self._shown: set[tuple[str, str, str]] = set()

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
        """Show a report of the run."""
        self.show_evaluations(progress.evaluations)
        if self._live:
            self._bar.update(
                self._task,
                description=progress.phase,
                completed=progress.step,
                total=progress.updates,
                now=describe_metrics(progress.learner),
            )

    def show_evaluations(self, evaluations: tuple[Mapping[str, Any], ...]) -> None:
        """Print those that were not printed before."""
        for evaluation in evaluations:
            key = (evaluation["ckpt_uid"], evaluation["env_id"], evaluation["opponent"])
            if key not in self._shown and not self._quiet:
                err.print(describe_evaluation(evaluation), soft_wrap=True)
            self._shown.add(key)


def describe_evaluation(evaluation: Mapping[str, Any]) -> str:
    """Return one line: a single-player game has a mean reward, others have a win rate."""
    low, high = evaluation["win_rate_low"], evaluation["win_rate_high"]
    won = f"{evaluation['win_rate']:.3f} ({low:.3f} to {high:.3f})"
    uid, game = evaluation["ckpt_uid"], evaluation["env_id"]
    name = "before" if parse_iteration(uid) == -1 else uid
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
        f"{name:>9}  {game}: {numbers}, invalid {evaluation['invalid_rate']:.3f}, "
        f"{evaluation['games']} games"
    )


def describe_metrics(learner: Mapping[str, float]) -> str:
    names = {"loss": "loss", "grad_norm": "grad", "reward_mean": "reward"}
    return "  ".join(f"{text} {learner[k]:.3g}" for k, text in names.items() if k in learner)


@contextmanager
def show_model_progress(*, quiet: bool) -> Iterator[Callable[[TinyProgress], None]]:
    """Yield a callback that shows how the embedded model is made, if there is something to do."""
    bar = Bar(
        TextColumn("embedded model: {task.description:<8}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=quiet or not (err.is_terminal or err.is_jupyter),
    )
    tasks: dict[str, TaskID] = {}

    def report(progress: TinyProgress) -> None:
        bar.start()
        if progress.phase not in tasks:
            tasks[progress.phase] = bar.add_task(progress.phase, total=progress.total)
        bar.update(tasks[progress.phase], completed=progress.done, total=progress.total)

    try:
        yield report
    finally:
        bar.stop()
