"""Taking a run's state and continuing from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unstable.run.folder import read_json, state_step
from unstable.utils.files import to_json, write_whole
from unstable.utils.handles import ask

if TYPE_CHECKING:
    from pathlib import Path

    from unstable.run.folder import RunFolder
    from unstable.run.parts import Parts

PARTS = ("tracker", "buffer", "pool", "collector")
"""Those whose state is JSON."""
LEARNER = "learner"
"""The folder of the learner's own files."""


def save_state(folder: RunFolder, parts: Parts, step: int, keep: int) -> None:
    """Write everything that the run needs to continue as if it had not stopped."""
    with folder.new_state(step, keep) as state:
        # As bytes, since the learner may be on another machine.
        files: dict[str, bytes] = ask(parts.learner, "state_files")
        (state / LEARNER).mkdir()
        for name, content in files.items():
            (state / LEARNER / name).write_bytes(content)
        for name in PARTS:
            values: dict[str, Any] = ask(getattr(parts, name), "state_dict")
            write_whole(state / f"{name}.json", to_json(values) + "\n")


def load_state(state: Path, parts: Parts) -> int:
    """Continue from a state; the learner's step it was taken at."""
    files = {path.name: path.read_bytes() for path in (state / LEARNER).iterdir()}
    ask(parts.learner, "load_state_files", files)
    for name in PARTS:
        ask(getattr(parts, name), "load_state_dict", read_json(state / f"{name}.json"))
    return state_step(state)
