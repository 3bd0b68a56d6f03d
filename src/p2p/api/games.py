"""Games of a self-play run that can be stepped through: read off its folder, the newest first.

Lines that are not games (torn, foreign, of another version) are passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, ValidationError

from p2p.contracts import Record
from p2p.files import lines_backward, parse_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GameKind = Literal["train", "eval"]


class _Read(Record):
    """Written by `unstable`, which may write more than is shown here."""

    model_config = ConfigDict(extra="ignore")


class GamePlayer(_Read):
    """Who sat where."""

    seat: int
    uid: str
    kind: str
    version: int
    """The learner's step that the policy is from; negative: it is no checkpoint of ours."""
    learner: bool
    """Whether its moves are learnt from, or evaluated."""


class GameMove(_Read):
    """One move."""

    seat: int
    observation: str
    """What the player was shown."""
    answer: str
    """All that it wrote."""
    action: str
    """What the game was given."""
    legal: bool
    board: str = ""
    """After the move, as the game draws it."""
    opening: bool = False
    """A random move to begin with, of nobody's doing."""


class GameRow(_Read):
    """A game in a list."""

    id: str
    kind: GameKind
    env_id: str
    step: int
    """The learner's, when it was played."""
    time: float
    players: tuple[GamePlayer, ...]
    rewards: dict[int, float | None]
    reason: str
    turns: int
    illegal: int
    """How many moves were not allowed."""


class GameDetail(GameRow):
    """A game, move by move."""

    moves: tuple[GameMove, ...]


def list_games(
    folder: Path, kind: GameKind, limit: int, older_than: str | None = None
) -> list[GameRow]:
    """The newest games of a run, or the newest of those that came before one of them."""
    lines = _lines(folder, kind)
    if older_than is not None:
        for line in lines:
            if _names(line, older_than):
                break
    found: list[GameRow] = []
    for line in lines:
        game = _game(line)
        if game is not None:
            found.append(GameRow(**{name: getattr(game, name) for name in GameRow.model_fields}))
        if len(found) == limit:
            break
    return found


def find_game(folder: Path, game_id: str) -> GameDetail | None:
    """One game of a run."""
    for line in _lines(folder, game_id.partition("-")[0]):
        game = _game(line) if _names(line, game_id) else None
        if game is not None and game.id == game_id:
            return game
    return None


def _lines(folder: Path, kind: str) -> Iterator[bytes]:
    """Of the newest file, then of the one before it."""
    from unstable.transcripts import FOLDER, file_names

    if kind not in ("train", "eval"):
        return
    for name in reversed(file_names(kind)):
        path = folder / FOLDER / name
        if path.resolve().is_relative_to(folder.resolve()):
            yield from lines_backward(path)


def _names(line: bytes, game_id: str) -> bool:
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
