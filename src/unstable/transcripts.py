"""Games that people can look at later, move by move: `games/` in a run's folder.

    games/train.jsonl, games/eval.jsonl       one game a line, the newest last
    games/train.1.jsonl, games/eval.1.jsonl   those before them

A file that is full takes the place of the older one, so that the disk cannot fill. `read_games`
reads both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from unstable.core import EpisodeResult, PlaySpec, TaskMeta
from unstable.utils.files import open_data, to_json
from unstable.writers import truncate_lines

Kind = Literal["train", "eval"]

FOLDER = "games"
LIMITS: dict[str, tuple[int, int]] = {"train": (256, 8 << 20), "eval": (2048, 32 << 20)}
"""By kind: a file is full with so many games, or so many bytes. There are two files of each."""
MAX_TEXT = 20_000
"""Characters of an observation or an answer that are kept, the last ones."""


def transcript(
    spec: PlaySpec, meta: TaskMeta, result: EpisodeResult, number: int
) -> dict[str, Any]:
    """A game as it is written.

    Of an observation only what differs from the player's last one is kept: `shared` is how many
    characters they have in common from the start.
    """
    moves, last = [], dict[int, str]()
    for move in result.moves:
        observation = _cut(move.observation)
        shared = _common(last.get(move.seat, ""), observation)
        last[move.seat] = observation
        moves.append(
            {
                "seat": move.seat, "shared": shared, "observation": observation[shared:],
                "answer": _cut(move.answer), "action": _cut(move.action), "legal": move.legal,
                "board": move.board, "opening": move.opening,
            }
        )  # fmt: skip
    players = [
        {
            "seat": seat,
            "uid": meta.ckpt_uid if seat == spec.player_id else meta.opponent_uid or meta.ckpt_uid,
            "kind": agent.kind,
            "version": agent.version,
            "learner": seat == spec.player_id,
        }
        for seat, agent in enumerate(spec.agent_specs)
    ]
    return {
        "id": f"{meta.type}-{number}", "kind": meta.type, "env_id": spec.env_id,
        "seed": spec.seed, "group": spec.group, "players": players, "moves": moves,
        "rewards": result.final_rewards, "reason": result.reason,
        "ended_by_invalid": result.traj.ended_by_invalid,
    }  # fmt: skip


def in_words(game: Mapping[str, Any]) -> str:
    """A game as it is written, for a terminal: every move with the board after it.

    Where a game draws no board, what was new to the player is shown before its answer.
    """
    names = [player["uid"] for player in game["players"]]
    lines = [f"{game['env_id']}, {game['id']}: {' against '.join(names)}", ""]
    for move in game["moves"]:
        who = "opening" if move["opening"] else names[move["seat"]]
        thoughts = [] if move["answer"].strip() in move["action"] else [move["answer"].strip()]
        lines += [
            *([] if move["board"] else [move["observation"].strip()]),
            *thoughts,
            f"player {move['seat']} ({who}) {move['action']}{'' if move['legal'] else ': illegal'}",
            *([move["board"]] if move["board"] else []),
            "",
        ]
    rewards = ", ".join(f"{seat}: {reward:g}" for seat, reward in game["rewards"].items())
    return "\n".join([*lines, f"rewards {rewards}  {game['reason']}".strip()])


class Transcripts:
    """Appends games to a run's folder; there must be no second one of it.

    Args:
        run_dir: the run's folder.
        resume_step: the learner's step that the run continues from. Training games since are
            dropped: they are played again.
    """

    def __init__(self, run_dir: Path, resume_step: int | None = None) -> None:
        self._folder = run_dir / FOLDER
        self._games: dict[str, int] = {}
        # A state is taken after the evaluation of its step, and before the step's training games.
        last_training = None if resume_step is None else resume_step - 1
        for kind, last in (("train", last_training), ("eval", resume_step)):
            for name in file_names(kind):
                truncate_lines(self._folder / name, last)

    def add(self, game: Mapping[str, Any]) -> None:
        """Append a game; it has left this process when this returns."""
        kind = game["kind"]
        older, newest = (self._folder / name for name in file_names(kind))
        self._folder.mkdir(exist_ok=True)
        if kind not in self._games:
            self._games[kind] = sum(1 for _ in _lines(newest))
        most_games, most_bytes = LIMITS[kind]
        if newest.exists() and (
            self._games[kind] >= most_games or newest.stat().st_size >= most_bytes
        ):
            newest.replace(older)
            self._games[kind] = 0
        with newest.open("a", encoding="utf-8") as stream:
            stream.write(to_json(game) + "\n")
        self._games[kind] += 1


def read_games(run_dir: Path, kind: Kind) -> Iterator[dict[str, Any]]:
    """The games of a run, oldest first, with whole observations; also while it runs.

    Lines that are not whole, and files that go while they are read, are passed over.
    """
    for name in file_names(kind):
        for line in _lines(run_dir / FOLDER / name, run_dir):
            try:
                yield whole(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue


def whole(game: dict[str, Any]) -> dict[str, Any]:
    """The game with whole observations instead of what was new of them."""
    last = dict[int, str]()
    for move in game["moves"]:
        seat = move["seat"]
        last[seat] = last.get(seat, "")[: move.pop("shared")] + move["observation"]
        move["observation"] = last[seat]
    return game


def file_names(kind: str) -> tuple[str, str]:
    """The older file and the newest."""
    return f"{kind}.1.jsonl", f"{kind}.jsonl"


def _lines(path: Path, run_dir: Path | None = None) -> Iterator[bytes]:
    try:
        with open_data(path, run_dir or path.parent) as stream:
            yield from stream
    except FileNotFoundError:
        return


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else "…" + text[-MAX_TEXT:]


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common from the start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low
