"""`p2p evaluate`, `play` and `export`: use a finished run."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from p2p.commands.arguments import RunsDirOption, open_session
from p2p.commands.console import (
    EXIT_INTERRUPTED,
    CommandError,
    JsonFlag,
    UnsafeFlag,
    UsageError,
    display_path,
    err,
    out,
    print_json,
    reject_argument,
)
from p2p.commands.train import read_config
from p2p.files import is_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from p2p.config import TrainConfig
    from p2p.records.iteration_record import IterationRecord
    from p2p.records.session_view import IterationView
    from p2p.training.replay import ReplayResult

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="SESSION|RUN",
        help="A session's name, the start of it, `last`, `best`; or the folder of a session, "
        "an iteration or a run.",
    ),
]
StepOption = Annotated[
    int | None,
    typer.Option(
        "--checkpoint",
        "-c",
        metavar="STEP",
        help="Step of the checkpoint to use.",
        show_default="the best one",
    ),
]
SEED_HELP = "Block of evaluation seeds; block 0 is the one that training evaluates on."


def evaluate(
    run: RunArgument,
    episodes: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Episodes to play.")
    ] = 20,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help=SEED_HELP)] = 1,
    checkpoint: StepOption = None,
    runs_dir: RunsDirOption = None,
    _unsafe_local: UnsafeFlag = 0,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate a trained policy on unseen episodes.

    Of a session it is the policy of the best iteration. Equal seeds give equal
    episodes.

    [bold]Examples[/]

      p2p evaluate last
      p2p evaluate best --episodes 100 --seed 7 --json
      p2p evaluate runs/session_x/iter_1/base_seed_1
    """
    record, config, step = open_run(run, runs_dir)
    played = _replay(record, config, checkpoint, step, episodes, seed)
    result = played.result
    if as_json:
        print_json(result.model_dump(mode="json"))
        return
    out.print(
        f"step {played.step:,}: {result.mean_return:,.1f} ± {result.std_return:,.1f} over "
        f"{len(result.all_returns)} episodes"
    )
    out.print(
        f"p10 {result.p10_return:,.1f}   median {result.median_return:,.1f}   "
        f"p90 {result.p90_return:,.1f}   length {result.episode_length:,.0f}"
    )
    if result.env_return is not None:
        out.print(f"the environment's own return: {result.env_return:,.1f}")
    for name, value in result.reward_terms.items():
        out.print(f"  {name:<24} {value:>12,.2f}", markup=False)


def play(
    run: RunArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Video file.", show_default="play.mp4"),
    ] = None,
    window: Annotated[
        bool | None,
        typer.Option(help="Play in a window.", show_default="where there is a display"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help=SEED_HELP)] = 1,
    checkpoint: StepOption = None,
    size: Annotated[
        int,
        typer.Option(
            min=64, max=2048, metavar="N", help="Height in pixels; the width is 4/3 of it."
        ),
    ] = 480,
    runs_dir: RunsDirOption = None,
    _unsafe_local: UnsafeFlag = 0,
    as_json: JsonFlag = False,
) -> None:
    """Watch a trained policy, in a window or as a video.

    Where there is no display, it is written to play.mp4.
    Of a session it is the policy of the best iteration. One episode, with the
    reward it was trained on.

    [bold]Examples[/]

      p2p play last
      p2p play best --output run.mp4 --size 720
      p2p play runs/session_x/iter_1/base_seed_1 --checkpoint 250880
    """
    from p2p.training.video.playback import has_display

    record, config, step = open_run(run, runs_dir)
    target = output or Path("play.mp4")
    if target.suffix.lower() != ".mp4" or target.is_dir():
        raise UsageError(f"--output: {target} must be a file that ends in .mp4")
    if window and not has_display():
        raise UsageError("--window: there is no display here; leave it out to get a video")
    played = _replay(record, config, checkpoint, step, 1, seed)
    value = played.result.mean_return
    wanted = has_display() and output is None if window is None else window
    if wanted and _play_in_window(config, played, or_film=window is None):
        report: dict[str, object] = {"video": None, "return": value}
    else:
        frames = _write_video(config, played, target, size // 2 * 2)
        report = {"video": str(target.absolute()), "return": value, "frames": frames}
        if not as_json:
            out.print(
                f"return {value:,.1f}, {frames} frames: {display_path(target)}", soft_wrap=True
            )
    if as_json:
        print_json(report)


def export(
    run: RunArgument,
    to: Annotated[
        Path, typer.Option("--to", metavar="FOLDER", help="Folder to write; must be empty or new.")
    ],
    checkpoint: StepOption = None,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a policy as a folder to share, with a model card.

    Weights, reward, metrics and replay are in it.
    Of a session it is the policy of the best iteration. The layout is the one
    that Stable-Baselines3 users on the Hugging Face hub expect.

    [bold]Examples[/]

      p2p export last --to ppo-HalfCheetah-v5
      p2p export runs/session_x/iter_1 --to early --checkpoint 250880
    """
    from p2p.training.export import ExportError, export_run
    from p2p.training.replay import choose_step

    record, config, judged = open_run(run, runs_dir)
    try:
        with (
            _interruptible(),
            err.status(f"writing {to}"),
            _checkpoint(checkpoint),
            reject_argument("", ExportError),
            reject_argument("--to", FileExistsError),
        ):
            files = export_run(record, config, choose_step(record, checkpoint or judged), to)
    except OSError as error:
        raise CommandError(f"--to: {to} cannot be written: {error}") from error
    if as_json:
        print_json({"folder": str(to), "files": [str(path) for path in files]})
        return
    for path in files:
        out.print(escape(display_path(path)), soft_wrap=True)


def open_run(
    text: str, runs_dir: Path | None = None
) -> tuple[IterationRecord, TrainConfig, int | None]:
    """The run meant, and its judged step where one is: a run's folder, or the best run of more.

    Raises UsageError, which says what can be given.
    """
    from p2p.config import TrainConfig
    from p2p.records.find import ANY_SESSION
    from p2p.records.iteration_record import IterationRecord
    from p2p.records.session_view import IterationView, SessionView

    path = Path(text)
    record = IterationRecord(path)
    if record.config_path.exists():
        return record, _read_run_config(record), None
    if path.is_dir() and not is_session(path):
        iteration = IterationView(record, record.number or 0, TrainConfig())
        if not iteration.runs:
            raise UsageError(f"RUN: {path} is neither a session nor a run; give {ANY_SESSION}")
    else:
        if "/" in text and not path.exists():
            raise UsageError(f"RUN: {path} does not exist; give {ANY_SESSION}, or a run's")
        session = open_session(text, runs_dir)
        best = SessionView(session).best
        if best is None or not best.runs:
            raise UsageError(f"RUN: {session.session_id} has trained nothing yet")
        iteration = best
    run = iteration.best_run
    assert run is not None  # it has runs
    step = iteration.best.step if iteration.best and iteration.best.run_id == run.run_id else None
    _print_chosen(iteration, run.record)
    return run.record, _read_run_config(run.record), step


def _read_run_config(record: IterationRecord) -> TrainConfig:
    """Read a run's configuration, and register the environment of its model file."""
    from p2p.config import ConfigurationError
    from p2p.training.model_files.adoption import restore

    config = read_config(record, "RUN")
    with reject_argument("RUN", ConfigurationError):
        restore(record.path, config.env_id)
    return config


def _print_chosen(iteration: IterationView, run: IterationRecord) -> None:
    from p2p.records.formatting import format_score

    score = "not judged" if iteration.score is None else f"score {format_score(iteration.score)}"
    text = f"iteration {iteration.number}, {score}: {display_path(run.path)}"
    err.print(escape(text), style="dim", soft_wrap=True)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the command with a line; files are written whole or not at all."""
    try:
        yield
    except KeyboardInterrupt:
        err.print("interrupted; nothing was written", style="dim")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _checkpoint(step: int | None) -> AbstractContextManager[None]:
    """A checkpoint that is not there is a mistake in --checkpoint, where that is given."""
    from p2p.training.replay import NoSuchCheckpoint

    return reject_argument("--checkpoint" if step else "", NoSuchCheckpoint)


def _replay(
    record: IterationRecord,
    config: TrainConfig,
    checkpoint: int | None,
    judged: int | None,
    episodes: int,
    block: int,
) -> ReplayResult:
    from p2p.training.evaluation import evaluation_seed
    from p2p.training.replay import choose_step, replay

    noun = "episode" if episodes == 1 else "episodes"
    with _checkpoint(checkpoint):
        step = choose_step(record, checkpoint or judged)
        with _interruptible(), err.status(f"playing {episodes} {noun} of step {step:,}"):
            return replay(
                record,
                config,
                step=step,
                episodes=episodes,
                seed=evaluation_seed(block),
            )


def _play_in_window(config: TrainConfig, played: ReplayResult, *, or_film: bool) -> bool:
    """Play in a window until it is closed; False: there is none, and a film will do."""
    from p2p.training.video.playback import NoWindowError, play_in_window

    err.print("close the window, or press Ctrl-C, to end", style="dim")
    try:
        play_in_window(config.env_id, played.trajectories["median"])
    except KeyboardInterrupt:
        pass
    except NoWindowError as error:
        if not or_film:
            raise CommandError(f"--window: {error}; leave it out to get a video") from error
        err.print(f"{error}: making a video", style="yellow", markup=False)
        return False
    return True


def _write_video(config: TrainConfig, played: ReplayResult, target: Path, size: int) -> int:
    from p2p.training.video.rendering import RenderJob, render

    with (
        _interruptible(),
        tempfile.TemporaryDirectory(prefix="p2p-play-") as folder,
        err.status("drawing"),
    ):
        source = Path(folder) / "episode.npz"
        played.trajectories["median"].save(source)
        outcome = render(
            RenderJob(
                env_id=config.env_id,
                trajectory=source,
                output=target.absolute(),
                width=size * 4 // 3 // 2 * 2,
                height=size,
            )
        )
    if not outcome.ok:
        raise CommandError(outcome.error)
    return outcome.frames
