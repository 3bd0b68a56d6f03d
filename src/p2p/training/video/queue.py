"""The videos of a run: rendered one after the other beside the training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from p2p.contracts import ROLLOUT_LABELS
from p2p.records.iteration_record import IterationRecord
from p2p.training.video.rendering import RenderJob, RenderProcess, render_async

MAX_FRAMES = 500
"""Per video of a run: an episode of 50 s at 10 frames per second, as a person or a judge needs it.
Drawing in software is the dearest part of an evaluation."""


class RenderQueue:
    """Renders what is added in the background; leaving the block early cancels the rest.

    One process draws while training runs, so that videos never take more than one core from it.
    """

    def __init__(self, record: IterationRecord, env_id: str, *, enabled: bool) -> None:
        self.record = record
        self.env_id = env_id
        self.enabled = enabled
        self._waiting: list[RenderJob] = []
        self._running: list[RenderProcess] = []
        self._asked: set[Path] = set()
        self._problems: dict[str, None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._waiting.clear()
        for process in self._running:
            process.cancel()

    def add(self, step: int, labels: Sequence[str] = ROLLOUT_LABELS) -> None:
        """Render these episodes of a checkpoint, as far as they are recorded and not asked for."""
        for label in labels:
            trajectory = self.record.trajectory_file(step, label)
            output = self.record.videos_dir / f"eval_{step}_{label}.mp4"
            asked = output in self._asked or output.exists()
            if self.enabled and trajectory.exists() and not asked:
                self._asked.add(output)
                title = f"{self.env_id}  step {step:,}  {label}"
                self._waiting.append(
                    RenderJob(
                        env_id=self.env_id,
                        trajectory=trajectory,
                        output=output,
                        title=title,
                        max_frames=MAX_FRAMES,
                    )
                )
        self.advance()

    def advance(self, at_once: int = 1) -> None:
        """Start what waits if fewer processes draw than may; called every now and then."""
        for process in [process for process in self._running if not process.running()]:
            self._running.remove(process)
            for outcome in process.outcomes():
                if not outcome.ok:
                    self._problems[f"no video: {outcome.error}"] = None
        free = at_once - len(self._running)
        if self._waiting and free > 0:
            self.record.videos_dir.mkdir(parents=True, exist_ok=True)
            shares = [self._waiting[i::free] for i in range(free)]
            self._running += [render_async(share) for share in shares if share]
            self._waiting = []

    def finish(self) -> list[str]:
        """Draw the rest on all cores; what could not be rendered, each reason once."""
        while self._running or self._waiting:
            self.advance(at_once=len(os.sched_getaffinity(0)))
            if self._running:
                self._running[0].wait()
        return list(self._problems)
