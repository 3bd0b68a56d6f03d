"""What a session makes of its best policy once the verdict stands: its file and its video.

Nobody judges by them and each takes seconds, so they come last. What is not there because the
process was killed is made when it is asked for, or when the session is resumed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from p2p.event_log import span
from p2p.records.iteration_record import IterationRecord
from p2p.training.checkpoints import export_policy
from p2p.training.policies.policy import PolicyFileError
from p2p.training.video.rendering import LOWEST, VideoError, draw_video

if TYPE_CHECKING:
    from p2p.records.session_view import SessionView


def deliver(view: SessionView) -> bool:
    """Export each iteration's judged policy and draw the best one's median episode.

    Drawing gives way to all that trains. Returns whether something was made; what cannot be made is
    an event.
    """
    made = False
    for iteration in view.iterations.values():
        best = iteration.record.best_run.read()
        if best is None:
            continue
        run = IterationRecord(iteration.record.path / best.run_id)
        if not (best.policy(iteration.record.path) / "policy.zip").exists():
            # The span tells of what goes wrong.
            with suppress(OSError, PolicyFileError), span("export", step=best.step):
                export_policy(run, best.step)
                made = True
        video = run.videos_dir / f"eval_{best.step}_median.mp4"
        if iteration == view.best and view.loop.videos and not video.exists():
            with suppress(VideoError), span("draw", video=video.name):
                draw_video(video, niceness=LOWEST)
                made = True
    return made
