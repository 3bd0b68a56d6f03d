"""Batches from a buffer: waiting for them, and leaving out what is too old."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from unstable.buffer import StepBuffer
from unstable.core import Step
from unstable.utils.handles import call

LONGEST_WAIT = 0.2
"""Seconds between two looks at a buffer that has too little."""


@dataclass
class BatchSource:
    buffer: StepBuffer
    delay: float
    """It waits until there are so many batches."""
    num_learners: int
    max_staleness: int | None
    """Updates since a step was sampled, at most."""
    whole_games: bool
    whole_groups: bool
    stale: int = 0
    """Steps left out so far."""

    def check_capacity(self, batch_size: int) -> None:
        """Raise ValueError if the buffer can never hold as much as is waited for."""
        capacity = call(self.buffer.room) + call(self.buffer.size)
        if self._needed(batch_size) > capacity:
            raise ValueError(
                f"the learner waits for {self._needed(batch_size)} steps (batch_size {batch_size} x"
                f" batch_delay_buffer {self.delay} x num_learners {self.num_learners}), but the"
                f" buffer holds {capacity}: raise max_buffer_size or lower one of them"
            )

    def wait(self, batch_size: int, step: int) -> None:
        """Return when there is enough data; of a buffer that was stopped, one batch is enough.

        Raises:
            RuntimeError: the buffer was stopped and has less.
        """
        pause = 0.01
        while (size := call(self.buffer.size)) < self._needed(batch_size):
            if call(self.buffer.stopped):
                if size >= batch_size:
                    return
                raise RuntimeError(
                    f"collection was stopped after {step} updates{self._why()}: the buffer has"
                    f" {size} of the {batch_size} steps that the next one needs"
                )
            time.sleep(pause)
            pause = min(LONGEST_WAIT, 2.0 * pause)

    def take(self, batch_size: int, step: int) -> list[Step]:
        steps = call(
            self.buffer.get_batch, batch_size,
            whole_games=self.whole_games, whole_groups=self.whole_groups,
        )  # fmt: skip
        fresh = [one for one in steps if not self._is_stale(one, step)]
        self.stale += len(steps) - len(fresh)
        return fresh

    def _why(self) -> str:
        reason = call(self.buffer.stop_reason)
        return f" ({reason})" if reason else ""

    def _needed(self, batch_size: int) -> int:
        return math.ceil(batch_size * self.delay * self.num_learners)

    def _is_stale(self, one: Step, step: int) -> bool:
        """Text of players that are no policy has no age; the base model is as old as the run."""
        if self.max_staleness is None or not getattr(one, "completion_ids", ()):
            return False
        return step - max(one.version, 0) > self.max_staleness
