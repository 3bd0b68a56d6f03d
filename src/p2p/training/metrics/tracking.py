"""A run's metrics on their way to every writer that was asked for."""

from __future__ import annotations

import threading
from pathlib import Path

from p2p.training.metrics.writer import LOCAL, WRITERS, MetricsWriter, Scalars, follow


class Tracking:
    """Writes the local files itself; lets a thread pass them on to what needs the network.

    Args:
        folder: the run's metrics folder.
        run: the run's name, as remote trackers show it.
        names: writers by name; the local ones are always written.
        after_step: the step the run continues from; later lines are dropped. 0: a new run.

    Raises:
        MissingExtraError: a writer's library is not installed.
    """

    def __init__(self, folder: Path, run: str, names: tuple[str, ...], after_step: int) -> None:
        self._done = threading.Event()
        self._problems: list[str] = []
        remote = [WRITERS[name](folder, run, after_step) for name in names if name not in LOCAL]
        self._local = [WRITERS[name](folder, run, after_step) for name in LOCAL]
        self._thread = threading.Thread(
            target=self._follow, args=(folder / "scalars.jsonl", remote), daemon=True
        )
        if remote:
            self._thread.start()

    def write(self, record: Scalars) -> None:
        """Take one record."""
        for writer in self._local:
            writer.write(record)

    def close(self, patience_s: float = 30.0) -> list[str]:
        """Finish writing; what went wrong with the remote trackers."""
        for writer in self._local:
            writer.close()
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(patience_s)
            if self._thread.is_alive():
                self._problems.append(f"a tracker did not finish within {patience_s:g} s")
        return self._problems

    def _follow(self, path: Path, remote: list[MetricsWriter]) -> None:
        try:
            follow(path, remote, self._done.is_set)
        # A server that is away must not cost a training run; the summary says so.
        except Exception as error:  # noqa: BLE001
            self._problems.append(f"a tracker failed: {type(error).__name__}: {error}")
