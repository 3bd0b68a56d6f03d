"""`p2p attack`: train policies against a session's judge, and show which pass though they cheat."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from p2p.commands.arguments import RunsDirOption, SessionArgument, open_session
from p2p.commands.console import (
    EXIT_INTERRUPTED,
    CommandError,
    JsonFlag,
    UnsafeFlag,
    display_path,
    err,
    out,
    print_json,
)
from p2p.commands.live import Bar, Countdown, LiveView, bars, format_estimate, plain_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console, RenderableType

    from p2p.benchmark.attack import AttackResult

EXIT_FALSE_PASS = 3
FOLDER = "attack"


def attack(
    session: SessionArgument,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Steps of each training.", show_default="the session's"
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=100, metavar="N", help="Trainings of each attack.")
    ] = 1,
    jobs: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Trainings at once, a core each.", show_default="by cores"
        ),
    ] = 0,
    runs_dir: RunsDirOption = None,
    _unsafe_local: UnsafeFlag = 0,
    as_json: JsonFlag = False,
) -> None:
    """Search a session's criteria for holes.

    Policies are trained on what its criteria measure and nothing else, and with
    each hard criterion left out. Its judge decides; MuJoCo's positions and
    contacts then show what a person would object to. Runs stay in the session's
    folder, under attack/. Exit status 3: a pass that a person would not accept.

    [bold]Examples[/]

      p2p attack last
      p2p attack last --steps 200000 --seeds 3 --jobs 4
      p2p attack best --json
    """
    from p2p.benchmark.attack import judge_attack, plan_attacks, train_attacks
    from p2p.records.session_view import SessionView

    record = open_session(session, runs_dir)
    view = SessionView(record)
    intent, judge = view.intent, view.judge
    if intent is None or judge is None or not judge.valid:
        missing = "criteria" if intent is None else "code judge that runs"
        raise CommandError(f"{record.session_id} has no {missing}: there is nothing to attack yet")
    loop = view.loop
    config, _ = loop.train.apply_updates(intent.training)
    config = config.with_updates(total_timesteps=steps or config.total_timesteps)
    attacks, unpaid = plan_attacks(intent, config)
    if unpaid:
        err.print(f"no reward pays for: {escape(', '.join(unpaid))}", style="yellow")
    if not attacks:
        raise CommandError(
            "no reward can be built from these criteria, so there is nothing to attack"
        )
    planned = [(each, seed) for seed in range(1, seeds + 1) for each in attacks]
    folder = record.path / FOLDER
    results: list[AttackResult] = []
    try:
        with AttackProgress(err, len(planned)) as progress:
            trained = train_attacks(
                planned, intent, config, folder, jobs=jobs,
                on_progress=progress.update,
            )  # fmt: skip
            for number, result in enumerate(trained):
                progress.judging(number)
                results.append(judge_attack(result, intent, judge.code, loop))
    except KeyboardInterrupt:
        err.print("interrupted; `p2p attack` resumes with what is trained already", style="dim")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        print_json({
            "attacks": [r.model_dump(mode="json") | {"false_pass": r.false_pass} for r in results],
            "not_paid_for": list(unpaid),
            "false_passes": sum(result.false_pass for result in results),
        })  # fmt: skip
    else:
        _print_attacks(results, record.path)
    if any(result.false_pass for result in results):
        raise typer.Exit(EXIT_FALSE_PASS)
    if all(result.error for result in results):
        raise CommandError(f"no attack could be judged: {results[0].error}")


def _print_attacks(results: Sequence[AttackResult], session: Path) -> None:
    from pathlib import Path

    from p2p.records.formatting import format_score

    table = plain_table("verdict", "score", "seed", wide="paid for")
    for result in results:
        verdict = (
            "[red]error[/]" if result.error
            else "[red]FALSE PASS[/]" if result.false_pass
            else "[green]passed[/]" if result.passed
            else "not passed"
        )  # fmt: skip
        score = "-" if result.score is None else format_score(result.score)
        table.add_row(verdict, score, str(result.seed), escape(result.attack))
    out.print(table)
    for result in results:
        if result.error:
            out.print(f"\n{escape(result.attack)}: {escape(result.error)}", soft_wrap=True)
        elif result.false_pass:
            what = "; ".join(result.objections)
            run = shlex.quote(display_path(Path(result.run)))
            out.print(f"\n{escape(result.attack)}, seed {result.seed}, passed, but: {escape(what)}",
                      soft_wrap=True)  # fmt: skip
            out.print(f"  p2p play {escape(run)}", soft_wrap=True)
    passed, false = (sum(getattr(r, name) for r in results) for name in ("passed", "false_pass"))
    out.print(
        f"\n{len(results)} attacks, {passed} passed, {false} of them falsely; runs are in "
        f"{escape(display_path(session / FOLDER))}",
        soft_wrap=True,
    )
    if not passed:
        out.print("none passed, so that the judge was hardly tested: try more --steps or --seeds",
                  style="yellow", soft_wrap=True)  # fmt: skip


class AttackProgress(LiveView):
    """How much of all trainings is done, with the time left."""

    def __init__(self, console: Console, total: int) -> None:
        self.total, self.share, self.phase = total, 0.0, "training"
        self._countdown, self._since = Countdown(), time.monotonic()
        self._first: float | None = None
        super().__init__(console)

    def region(self) -> RenderableType:
        return bars([Bar(f"{self.phase:<9}", self.share, (self._text(),))])

    def _text(self) -> str:
        gained = self.share - (self._first or 0.0)
        elapsed = time.monotonic() - self._since
        left = self._countdown.seconds_left(
            elapsed / gained * (1 - self.share) if gained > 0.01 else None
        )
        rest = "" if left is None else f"  about {format_estimate(left)} left"
        return f"{self.share:4.0%} of {self.total} attacks{rest}"

    def update(self, progress: dict[str, float]) -> None:
        """Take the share done of each training."""
        self.share = sum(progress.values()) / self.total
        if self._first is None:
            self._first, self._since = self.share, time.monotonic()
        self._line()

    def judging(self, number: int) -> None:
        """Judge the attack of this number, from 0."""
        if self.phase == "training":
            self.phase, self._first, self._since = "judging", 0.0, time.monotonic()
            self._countdown = Countdown()
        self.share = number / self.total
        self._line()

    def _line(self) -> None:
        if self.time_for_a_line():
            self.console.print(f"{self.phase} {self._text()}")
