"""Running source text in a sandbox, for the tests of this folder."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p.sandbox import Sandbox, SandboxedProcess, SandboxExit, start

INSIDE = Path(__file__).parent / "inside"


@dataclass(frozen=True)
class Ended:
    lines: list[bytes]
    exit: SandboxExit

    @property
    def outcome(self) -> dict[str, str]:
        """What became of the ``attempts`` inside."""
        assert self.lines, self.exit
        found: dict[str, str] = json.loads(self.lines[-1])
        return found


class Runner:
    """Runs source text in a sandbox whose folder is ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(
        self, source: str, payload: dict[str, Any] | None = None, **limits: Any
    ) -> SandboxedProcess:
        sandbox = Sandbox(folder=self.folder, import_paths=(INSIDE,), **limits)
        return start("run_source", {"source": textwrap.dedent(source), **(payload or {})}, sandbox)

    def __call__(self, source: str, payload: dict[str, Any] | None = None, **limits: Any) -> Ended:
        limits.setdefault("wall_seconds", 30.0)
        with self.start(source, payload, **limits) as process:
            lines = [line for line in process.lines() if line is not None]
            return Ended(lines, process.wait())

    def refused(self, source: str, payload: dict[str, Any] | None = None, **limits: Any) -> None:
        """Every one of the ``attempts`` in ``source`` must fail, and the code must live on."""
        ended = self(source, payload, **limits)
        assert ended.exit.reason == "finished", ended.exit
        assert ended.outcome
        through = {k: v for k, v in ended.outcome.items() if v.startswith("GOT THROUGH")}
        assert not through
