"""What is known here about launches on a Ray cluster, which forgets an actor when it is gone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from p2p import files
from p2p.scheduler.records import LaunchReport


@dataclass(frozen=True)
class Notes:
    """The folder of one launch.

    begun      it may have been started: without an actor it is lost, and not started again
    cancelled  somebody wants it to end
    ended.json how it ended, when all of it had been fetched
    log.txt    what it wrote, as far as it was fetched
    """

    folder: Path
    launch_id: str

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.folder / self.launch_id

    @property
    def log(self) -> Path:
        """What was fetched of its log."""
        return self.path / "log.txt"

    def note(self, name: str) -> None:
        """Keep in mind that it has begun or is cancelled."""
        files.write_bytes(self.path / name, b"")

    def has(self, name: str) -> bool:
        """Whether that was noted."""
        return (self.path / name).exists()

    def note_end(self, report: LaunchReport) -> None:
        """Keep how it ended."""
        files.write_text(self.path / "ended.json", report.model_dump_json())

    def end(self) -> LaunchReport | None:
        """How it ended, if that is known."""
        try:
            return LaunchReport.model_validate_json((self.path / "ended.json").read_bytes())
        except FileNotFoundError:
            return None

    def read_log(self, offset: int, limit: int = -1) -> bytes:
        """What was fetched of its log, from this byte on."""
        try:
            with self.log.open("rb") as stream:
                stream.seek(max(0, offset))
                return stream.read(limit)
        except FileNotFoundError:
            return b""
