"""Running source text in a sandbox, for the tests of this folder."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from p2p.sandbox import Sandbox, SandboxedProcess, SandboxExit, launch, start

INSIDE = Path(__file__).parent / "inside"


@dataclass(frozen=True)
class Ended:
    lines: list[bytes]
    exit: SandboxExit
    process: SandboxedProcess

    @property
    def folder(self) -> Path:
        """With what it left."""
        return self.process.folder

    @property
    def outcome(self) -> dict[str, str]:
        """What became of the ``attempts`` inside."""
        assert self.lines, self.exit
        found: dict[str, str] = json.loads(self.lines[-1])
        return found


class Runner:
    """Runs source text in a sandbox whose folder is ``folder``."""

    warm: tuple[str, ...] = ()
    """As in Sandbox, of all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(
        self, source: str, payload: dict[str, Any] | None = None, **limits: Any
    ) -> SandboxedProcess:
        sandbox = Sandbox(
            folder=self.folder, import_paths=(INSIDE,), **{"warm": self.warm, **limits}
        )
        return start("run_source", {"source": textwrap.dedent(source), **(payload or {})}, sandbox)

    def __call__(self, source: str, payload: dict[str, Any] | None = None, **limits: Any) -> Ended:
        limits.setdefault("wall_seconds", 30.0)
        with self.start(source, payload, **limits) as process:
            lines = [line for line in process.lines() if line is not None]
            return Ended(lines, process.wait(), process)

    def refused(self, source: str, payload: dict[str, Any] | None = None, **limits: Any) -> None:
        """Every one of the ``attempts`` in ``source`` must fail, and the code must live on."""
        ended = self(source, payload, **limits)
        assert ended.exit.reason == "finished", ended.exit
        assert ended.outcome
        through = {k: v for k, v in ended.outcome.items() if v.startswith("GOT THROUGH")}
        assert not through


def run_before(monkeypatch: pytest.MonkeyPatch, folder: Path, statement: str) -> None:
    """Start sandboxes with ``statement`` run in the process before it confines itself."""
    script = folder / "enter_without.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(launch.PACKAGE).parent)!r})\n"
        f"{statement}\nfrom p2p.sandbox import enter\nenter._main()\n"
    )
    monkeypatch.setattr("p2p.sandbox.enter.__file__", str(script))
