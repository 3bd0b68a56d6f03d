"""A run as it goes, on one line that moves or, where nobody watches, on one line per evaluation."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from unstable.commands.console import err
from unstable.evaluation import iteration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unstable.run.progress import Progress


class RunView:
    """Shows a run's progress on standard error; call it with each Progress."""

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
        self._first: int | None = None

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
        """Show where the run is."""
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
        """Print those that are new."""
        for evaluation in evaluations:
            key = (evaluation["ckpt_uid"], evaluation["env_id"], evaluation["opponent"])
            if key not in self._seen and not self._quiet:
                err.print(evaluation_words(evaluation), soft_wrap=True)
            self._seen.add(key)


def evaluation_words(evaluation: Mapping[str, Any]) -> str:
    """One evaluation in one line."""
    low, high = evaluation["win_rate_low"], evaluation["win_rate_high"]
    uid = evaluation["ckpt_uid"]
    who = "before" if iteration(uid) == -1 else uid  # the model as it was
    return (
        f"{who:>9}  {evaluation['env_id']} against {evaluation['opponent']}: "
        f"won {evaluation['win_rate']:.3f} ({low:.3f} to {high:.3f}), "
        f"drew {evaluation['draw_rate']:.3f}, invalid {evaluation['invalid_rate']:.3f}, "
        f"{evaluation['games']} games"
    )


def learner_words(learner: Mapping[str, float]) -> str:
    """The numbers of a learner's step that people look at."""
    names = {"loss": "loss", "grad_norm": "grad", "reward_mean": "reward"}
    return "  ".join(f"{text} {learner[k]:.3g}" for k, text in names.items() if k in learner)
