"""Feedback on a session that runs: given by any process, taken up by the loop.

Each piece is a file that nobody changes after it is there: `give_feedback` makes the next number.
The loop writes down in files of its own which of them it has taken up.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from p2p.contracts import SteeringOrder
from p2p.files import locked, read_model, save_model
from p2p.records.folder import names_in
from p2p.records.loop_files import SteeringTaken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_FILE = re.compile(r"(\d{4,})\.json")


def give_feedback(session: Path, feedback: SteeringOrder) -> Path:
    """Add feedback to a session, by its folder; any number of processes may at once."""
    folder = session / "steering"
    with locked(folder / ".lock"):
        path = folder / f"{max(_numbers(folder), default=0) + 1:04d}.json"
        save_model(path, feedback)
    return path


def all_feedback(folder: Path) -> dict[int, SteeringOrder]:
    """By number; a piece that cannot be read is left out."""
    pieces = ((n, read_model(folder / f"{n:04d}.json", SteeringOrder)) for n in _numbers(folder))
    return {number: piece for number, piece in pieces if piece is not None}


def merge(before: SteeringTaken, new: Mapping[int, SteeringOrder]) -> SteeringTaken:
    """What the feedback taken up before and this amount to: of two that differ the later counts."""
    values = before.model_dump()
    for number in sorted(new):
        order = new[number]
        values["orders"] = (*values["orders"], number)
        if order.remark.strip():
            values["remarks"] = (*values["remarks"], order.remark.strip())
        if order.score is not None:
            values["score"] = order.score
        if order.criteria is not None:
            values["criteria"] = order.criteria
        if order.reward_code is not None:
            values["reward_code"] = order.reward_code
        values["hp_changes"] = {**values["hp_changes"], **order.hp_changes}
    return SteeringTaken.model_validate(values)


def asks_to_pause(new: Mapping[int, SteeringOrder]) -> bool:
    """Whether the last word on it is to pause."""
    words = [new[number].pause for number in sorted(new) if new[number].pause is not None]
    return bool(words and words[-1])


def not_taken(folder: Path, taken: Iterable[SteeringTaken]) -> dict[int, SteeringOrder]:
    """The feedback that is still to be taken up: the pending changes."""
    done = {number for record in taken for number in record.orders}
    return {number: piece for number, piece in all_feedback(folder).items() if number not in done}


def _numbers(folder: Path) -> list[int]:
    return sorted(int(match[1]) for name in names_in(folder) if (match := _FILE.fullmatch(name)))
