"""Self-play runs and their games: how language models get better, read from their folders.

Lines of a games file that are not games (torn, foreign, of another version) are passed over.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from pydantic import ValidationError

from p2p.api.problems import NotFound
from p2p.api.schemas import GameDetail, GameKind, GameRow, SelfPlayRow, fields_of
from p2p.api.state import State
from p2p.files import lines_backward, parse_line
from unstable.dashboard.view import View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unstable.dashboard.sources import RunFiles

router = APIRouter(prefix="/api", tags=["self-play"])
SEPARATOR = "~"
"""Stands for `/` in the id of a run, which is its path below the folder of all runs."""
DEEPEST = 4
KEPT = 16
_sources: OrderedDict[Path, RunFiles] = OrderedDict()
_lock = threading.Lock()


@router.get("/selfplay")
def list_selfplay(state: State) -> list[SelfPlayRow]:
    """The runs, newest first."""
    from unstable.dashboard.sources import METRICS
    from unstable.run.folder import RunFolder

    rows = []
    for folder in state.selfplay_dirs:
        for path in _runs_below(folder):
            status = RunFolder(path).status()
            rows.append(
                SelfPlayRow(
                    run_id=str(path.relative_to(folder)).replace("/", SEPARATOR),
                    status=status.status if status else "",
                    step=status.step if status else 0,
                    updates=status.updates if status else None,
                    message=status.message if status else "",
                    changed_at=(path / METRICS).stat().st_mtime,
                )
            )
    return sorted(rows, key=lambda row: row.changed_at, reverse=True)


@router.get("/selfplay/{run_id}")
def show_selfplay(state: State, run_id: str) -> View:
    """Everything that `unstable watch` shows."""
    from unstable.dashboard.sources import RunFiles
    from unstable.dashboard.view import SourceError

    path = _find(state.selfplay_dirs, run_id)
    with _lock:  # a source remembers how far it has read
        source = _sources.pop(path, None)
        try:
            source = source or RunFiles(path)
            view = source.fetch()
        except SourceError as error:
            raise NotFound(str(error)) from error
        _sources[path] = source
        while len(_sources) > KEPT:
            _sources.popitem(last=False)
    return view


@router.get("/selfplay/{run_id}/games")
def list_selfplay_games(
    state: State,
    run_id: str,
    kind: GameKind = "eval",
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    older_than: Annotated[str | None, Query(description="the last game of a page")] = None,
) -> list[GameRow]:
    """Games that can be stepped through, newest first."""
    lines = _game_lines(_find(state.selfplay_dirs, run_id), kind)
    if older_than is not None:
        for line in lines:
            if _may_be(line, older_than):
                break
    rows: list[GameRow] = []
    for line in lines:
        game = _game(line)
        if game is not None:
            rows.append(GameRow(**fields_of(GameRow, game)))
        if len(rows) == limit:
            break
    return rows


@router.get("/selfplay/{run_id}/games/{game_id}")
def show_selfplay_game(state: State, run_id: str, game_id: str) -> GameDetail:
    """A game, move by move."""
    for line in _game_lines(_find(state.selfplay_dirs, run_id), game_id.partition("-")[0]):
        game = _game(line) if _may_be(line, game_id) else None
        if game is not None and game.id == game_id:
            return game
    raise NotFound(f"the run has no game {game_id!r}; only the newest are kept")


def _runs_below(folder: Path) -> list[Path]:
    """Folders with a run's files, a few levels down; links are not followed."""
    found: list[Path] = []
    level = [folder] if folder.is_dir() else []
    for _ in range(DEEPEST):
        below: list[Path] = []
        for path in level:
            for child in sorted(path.iterdir()):
                if child.name[0] == "." or child.is_symlink() or not child.is_dir():
                    continue
                is_run = (child / "config.json").is_file() and (child / "metrics.jsonl").is_file()
                (found if is_run else below).append(child)
        level = below
    return found


def _find(folders: tuple[Path, ...], run_id: str) -> Path:
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
    raise NotFound(f"there is no self-play run {run_id!r}")


def _game_lines(folder: Path, kind: str) -> Iterator[bytes]:
    """Of the newest file, then of the one before it."""
    from unstable.transcripts import FOLDER, file_names

    if kind not in ("train", "eval"):
        return
    for name in reversed(file_names(kind)):
        path = folder / FOLDER / name
        if path.resolve().is_relative_to(folder.resolve()):
            yield from lines_backward(path)


def _may_be(line: bytes, game_id: str) -> bool:
    """Whether it may be this game: to parse all lines on the way would take long."""
    return f'"{game_id}"'.encode() in line


def _game(line: bytes) -> GameDetail | None:
    from unstable.transcripts import whole

    record: dict[str, Any] | None = parse_line(line)
    if record is None:
        return None
    try:
        moves = whole(record)["moves"]
        return GameDetail.model_validate(
            {
                **record,
                "turns": len(moves),
                "illegal": sum(not move["legal"] for move in moves),
            }
        )
    except (ValidationError, KeyError, TypeError):
        return None
