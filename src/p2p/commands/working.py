"""Work on sessions and training runs in this process, and show how they go."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from p2p.commands.live import TrainingProgress, in_notebook
from p2p.commands.session_progress import SessionProgress
from p2p.scheduler.scheduled_trainer import make_trainer
from p2p.session.context import accept_criteria
from p2p.session.request import PromptRefused
from p2p.session.start import run as run_session
from p2p.session.stopping import StopSwitch
from unstable.commands import SafeConsole

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from p2p.config import TrainConfig
    from p2p.contracts import Intent, SessionResult, TrainSummary
    from p2p.records.iteration_record import IterationRecord, SessionRecord
    from p2p.session.request import ResumeHere
    from p2p.training.runner import RunOptions


def work_on(
    record: SessionRecord,
    changes: ResumeHere | None = None,
    *,
    review: Callable[[Intent], Intent] | None = None,
    show: bool = True,
) -> SessionResult:
    """Work on a session until it ends, or resume it with `changes`, and show how it goes.

    Raises KeyboardInterrupt after an interrupt, when the session has ended as one that can be
    resumed; PromptRefused where no model was needed to refuse the prompt: the session is gone then.
    """
    resume, options, switch = changes is not None, {}, StopSwitch()
    if changes is not None:
        changes.check_models()
        options = changes.options()
    with SessionProgress(progress_console(quiet=not show), record) as view:
        asking = view.pause_display(review) if review else accept_criteria
        result = run_session(
            record,
            resume=resume,
            review_intent=asking,
            trainer=make_trainer,
            switch=switch,
            **options,
        )
    if switch.interrupted:
        raise KeyboardInterrupt(f"{record.session_id} can be resumed")
    if result.refused and not result.model_calls:
        shutil.rmtree(record.path)
        raise PromptRefused(result.message)
    return result


def train_in(
    record: IterationRecord,
    config: TrainConfig,
    code: str,
    options: RunOptions | None = None,
    *,
    show: bool = True,
) -> TrainSummary:
    """Train in this folder, and show how it goes; where it has begun before, it is resumed."""
    from p2p.training.runner import run_training

    with TrainingProgress(progress_console(quiet=not show), config.total_timesteps) as view:
        return run_training(config, code, record, options=options, on_message=view)


def progress_console(*, quiet: bool = False) -> Console:
    """Return where progress goes: standard error, in a notebook below its cell."""
    return SafeConsole(stderr=not in_notebook(), force_jupyter=False, highlight=False, quiet=quiet)
