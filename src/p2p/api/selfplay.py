"""Self-play runs and their games: how language models get better, read from their folders.

Lines of a games file that are not games (torn, foreign, of another version) are passed over.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from pydantic import ValidationError

from p2p.api.problems import BadRequest, ResourceNotFound, WrongState
from p2p.api.schemas import (
    ChangedRuns,
    GameDetail,
    GameKind,
    GameRow,
    SelfPlayOptions,
    SelfPlayRow,
    StartSelfPlayRequest,
    StartSelfPlayResponse,
    fields_of,
)
from p2p.api.state import State
from p2p.benchmark.running import fitting_nodes
from p2p.contracts import describe_errors
from p2p.files import lines_backward, parse_line
from p2p.scheduler.controllers import JobOptions, selfplay_job
from p2p.scheduler.service import ensure_scheduler
from unstable.config import ConfigError, require_selfplay
from unstable.dashboard import View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from p2p.api.state import AppState
    from unstable.config import RunConfig
    from unstable.dashboard.sources import RunFiles

router = APIRouter(prefix="/api", tags=["self-play"])
SEPARATOR = "~"
"""Stands for `/` in the id of a run, which is its path below the folder of all runs."""
JOB_PREFIX = "selfplay_"
"""Begins the names of runs that are jobs: they are there before their first update."""
NAME_LENGTH = 80
DEEPEST = 4
KEPT = 16
_sources: OrderedDict[Path, RunFiles] = OrderedDict()
_lock = threading.Lock()


@router.get("/selfplay")
def list_selfplay(state: State) -> list[SelfPlayRow]:
    """The runs, newest first."""
    from unstable.dashboard.sources import METRICS
    from unstable.run import RunFolder

    with state.store() as store:
        jobs = {job.job_id: job.state for job in store.jobs(1000, prefix=JOB_PREFIX)}
    rows = []
    for folder in state.selfplay_dirs:
        for path in _find_runs(folder):
            status = RunFolder(path).seen_status()
            job_state = jobs.get(path.name) if path.parent == state.runs_dir else None
            config = _read_config(path)
            asked = status or config
            begun = path / METRICS if (path / METRICS).is_file() else path / "config.json"
            rows.append(
                SelfPlayRow(
                    run_id=str(path.relative_to(folder)).replace("/", SEPARATOR),
                    name=config.name if config else path.name,
                    job_id=path.name if job_state else None,
                    status=status.status if status else _describe_job_state(job_state),
                    step=status.step if status else 0,
                    updates=asked.updates if asked else None,
                    message=status.message if status else "",
                    changed_at=begun.stat().st_mtime,
                )
            )
    return sorted(rows, key=lambda row: row.changed_at, reverse=True)


def _read_config(path: Path) -> RunConfig | None:
    """The configuration of a run; None where its file is of another version, or broken."""
    from unstable.run import RunFolder

    try:
        return RunFolder(path).config()
    except ConfigError:
        return None


def _describe_job_state(job_state: str | None) -> str:
    """The status of a run that has not said anything yet."""
    return {None: "", "pending": "queued", "running": "starting"}.get(job_state, job_state or "")


@router.get("/selfplay/options")
def selfplay_options() -> SelfPlayOptions:
    """The games, opponents and models of a run that is started here."""
    try:
        require_selfplay()
    except ConfigError as error:
        return SelfPlayOptions(missing=str(error))
    from unstable.games.players import FIRST_CHECKPOINT, PLAYERS

    return SelfPlayOptions(
        games=_list_games(), opponents=(*PLAYERS, FIRST_CHECKPOINT), models=("tiny", "smollm2")
    )


@lru_cache(maxsize=1)
def _list_games() -> tuple[str, ...]:
    from unstable.games.players import list_learnable_game_ids

    return tuple(list_learnable_game_ids())


@router.post("/selfplay", status_code=201)
def start_selfplay(state: State, body: StartSelfPlayRequest) -> StartSelfPlayResponse:
    """Start a run as a job, after the checks of `unstable train`."""
    options = selfplay_options()
    if options.missing:
        raise WrongState(options.missing)
    for env_id in body.games:  # others may ask the network, or the terminal, and never answer
        if env_id not in options.games:
            raise BadRequest(f"games: {env_id!r} is unknown; see GET /api/selfplay/options")
    for opponent in body.opponents:
        if opponent not in options.opponents:
            known = ", ".join(options.opponents)
            raise BadRequest(f"opponents: {opponent!r} is none of {known}; others: unstable train")
    from unstable.config import load_config, recipe
    from unstable.run.parts import check, replace_games

    # The recipe's name is that of its game.
    name = "-".join(env_id.split("-")[0].lower() for env_id in body.games)[:NAME_LENGTH]
    changes = {
        "model": body.model, "updates": body.updates, "seed": body.seed, "name": name or None,
    }  # fmt: skip
    try:
        config = load_config(
            recipe(body.model),
            **{field: value for field, value in changes.items() if value is not None},
        )
        config = replace_games(config, body.games, body.opponents)
        nodes = fitting_nodes(state.runs_dir, body.nodes, None, body.cores)
        check(config)
    except ConfigError as error:
        raise BadRequest(str(error)) from error
    except ValueError as error:
        raise BadRequest(describe_errors(error)) from error
    title = f"self-play: {', '.join(env_id for env_id, _, _ in config.games.train)}"
    job_options = JobOptions(cores=body.cores, gpus=body.gpus, nodes=nodes, title=title[:200])
    job = selfplay_job(config, state.runs_dir, job_options)
    with state.store(make=True) as store:
        store.submit(job)
    ensure_scheduler(state.runs_dir)
    return StartSelfPlayResponse(run_id=job.runs[0].folder, job_id=job.job_id)


@router.post("/selfplay/{run_id}/stop")
def stop_selfplay(state: State, run_id: str) -> ChangedRuns:
    """Cancel the job of a run; its checkpoints stay."""
    path = _find_run(state.selfplay_dirs, run_id)
    with state.store() as store:
        job = store.job(path.name) if path.parent == state.runs_dir else None
        runs = store.cancel(path.name) if job else 0
    if job is None:
        raise WrongState(f"{run_id} is not a job: stop it where it was started (Ctrl-C)")
    if not runs:
        raise WrongState(f"{run_id} is not running: its job is {job.state}")
    ensure_scheduler(state.runs_dir)
    return ChangedRuns(job_id=path.name, runs=runs)


@router.get("/selfplay/{run_id}")
def show_selfplay(state: State, run_id: str) -> View:
    """Everything that `unstable watch` shows."""
    from unstable.dashboard import SourceError
    from unstable.dashboard.sources import INTERFACE, METRICS, RunFiles

    path = _find_run(state.selfplay_dirs, run_id)
    with _lock:  # a source remembers how far it has read
        source = _sources.pop(path, None)
        try:
            begun = any((path / name).exists() for name in (INTERFACE, METRICS))
            if not begun and path.name.startswith(JOB_PREFIX):
                return _add_job_state(state, path, View(run_name=path.name, step=0))
            source = source or RunFiles(path)
            view = source.fetch()
        except SourceError as error:
            raise ResourceNotFound(str(error)) from error
        _sources[path] = source
        while len(_sources) > KEPT:
            _sources.popitem(last=False)
    return _add_job_state(state, path, view)


def _add_job_state(state: AppState, path: Path, view: View) -> View:
    """Complete the view of a run that has not begun to write with its job's state."""
    from unstable.run import RunFolder

    if view.status:
        return view
    status = RunFolder(path).seen_status()
    with state.store() as store:
        job = store.job(path.name) if path.parent == state.runs_dir else None
    config = _read_config(path)
    return replace(
        view,
        run_name=config.name if config else view.run_name,
        status=status.status if status else _describe_job_state(job.state if job else None),
        updates=config.updates if config else None,
        message=status.message if status else "",
    )


@router.get("/selfplay/{run_id}/games")
def list_selfplay_games(
    state: State,
    run_id: str,
    kind: GameKind = "eval",
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    older_than: Annotated[str | None, Query(description="the last game of a page")] = None,
) -> list[GameRow]:
    """Games that can be stepped through, newest first."""
    lines = _read_game_lines(_find_run(state.selfplay_dirs, run_id), kind)
    if older_than is not None:
        for line in lines:
            if _may_contain(line, older_than):
                break
    rows: list[GameRow] = []
    for line in lines:
        game = _read_game(line)
        if game is not None:
            rows.append(GameRow(**fields_of(GameRow, game)))
        if len(rows) == limit:
            break
    return rows


@router.get("/selfplay/{run_id}/games/{game_id}")
def show_selfplay_game(state: State, run_id: str, game_id: str) -> GameDetail:
    """A game, move by move."""
    for line in _read_game_lines(_find_run(state.selfplay_dirs, run_id), game_id.partition("-")[0]):
        game = _read_game(line) if _may_contain(line, game_id) else None
        if game is not None and game.id == game_id:
            return game
    raise ResourceNotFound(f"the run has no game {game_id!r}; only the newest are kept")


def _find_runs(folder: Path) -> list[Path]:
    """Folders with a run's files, a few levels down; links are not followed."""
    found: list[Path] = []
    level = [folder] if folder.is_dir() else []
    for _ in range(DEEPEST):
        below: list[Path] = []
        for path in level:
            for child in sorted(path.iterdir()):
                if child.name[0] == "." or child.is_symlink() or not child.is_dir():
                    continue
                begun = child.name.startswith(JOB_PREFIX) or (child / "metrics.jsonl").is_file()
                is_run = begun and (child / "config.json").is_file()
                (found if is_run else below).append(child)
        level = below
    return found


def _find_run(folders: tuple[Path, ...], run_id: str) -> Path:
    parts = run_id.split(SEPARATOR)
    sound = all(part and part[0] != "." and not set(part) & set("/\\\0") for part in parts)
    for folder in folders if sound else ():
        path = folder.joinpath(*parts)
        try:
            inside = path.resolve().is_relative_to(folder.resolve())
            if inside and (path / "config.json").is_file():
                return path
        except OSError:
            break
    raise ResourceNotFound(f"there is no self-play run {run_id!r}")


def _read_game_lines(folder: Path, kind: str) -> Iterator[bytes]:
    """The lines of the games files, the newest first."""
    from unstable.writers import FOLDER, file_names

    if kind not in ("train", "eval"):
        return
    for name in reversed(file_names(kind)):
        path = folder / FOLDER / name
        if path.resolve().is_relative_to(folder.resolve()):
            yield from lines_backward(path)


def _may_contain(line: bytes, game_id: str) -> bool:
    """Return whether it may be this game: to parse all lines on the way would take long."""
    return f'"{game_id}"'.encode() in line


def _read_game(line: bytes) -> GameDetail | None:
    from unstable.writers import restore_observations

    record: dict[str, Any] | None = parse_line(line)
    if record is None:
        return None
    try:
        moves = restore_observations(record)["moves"]
        return GameDetail.model_validate(
            {
                **record,
                "turns": len(moves),
                "illegal": sum(not move["legal"] for move in moves),
            }
        )
    except (ValidationError, KeyError, TypeError):
        return None
