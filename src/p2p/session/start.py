"""Make, open and run sessions: what every command, the API and the scheduler call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p2p.contracts import SessionConfig, utc_now
from p2p.files import refuse_links
from p2p.records.iteration_record import SessionRecord
from p2p.session.agents import SessionAgents
from p2p.session.context import SessionContext, accept_criteria, local_trainer
from p2p.session.loop import one_process, run_loop
from p2p.session.request import (
    ResumeHere,
    ResumeOptions,
    loop_config,
    minutes_to_resume,
    with_changes,
)
from p2p.session.session_id import new_session_id
from p2p.session.stopping import StopSwitch, read_worked_seconds
from p2p.settings import get_settings, redact, session_path
from p2p.training.model_files.adoption import restore
from p2p.training.model_files.store import copy_into
from p2p.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from p2p.config import LoopConfig
    from p2p.contracts import Criterion, Intent, SessionResult
    from p2p.session.context import TrainerFactory
    from p2p.session.request import SessionRequest


def create_session(
    prompt: str,
    loop: LoopConfig,
    *,
    session_id: str | None = None,
    runs_dir: Path | None = None,
    criteria: Sequence[Criterion] | None = None,
    options: Mapping[str, Any] | None = None,
) -> SessionRecord:
    """A new session's folder with its session.json; `run` then works on it.

    Where the environment is to be chosen, `options` are what `loop` was made of for a stand-in; it
    is made anew for what is chosen.

    Raises ValueError for an empty prompt, an unknown environment or a name that is taken, and
    OSError where the folder cannot be written.
    """
    from p2p.training.env_spec import get_env_spec

    name = session_id or new_session_id()
    path = session_path(name)
    config = SessionConfig(
        session_id=name,
        prompt=redact(prompt),
        loop=loop,
        criteria=tuple(criteria) if criteria is not None else None,
        options=dict(options) if options is not None else None,
        created_at=utc_now(),
        version=__version__,
    )
    if options is None:
        get_env_spec(loop.train.env_id)
    session = SessionRecord((runs_dir or get_settings().runs_dir).absolute() / path)
    session.path.mkdir(parents=True, exist_ok=True)
    if session.config.path.exists():
        raise ValueError(f"{session.path} exists already: choose another name, or resume it")
    if options is None:
        copy_into(session.path, loop.train.env_id)
    session.config.save(config)
    session.set_status("pending")
    return session


def start_session(
    request: SessionRequest, *, session_id: str | None = None, runs_dir: Path | None = None
) -> SessionRecord:
    """Make the folder of the session that is asked for; raises what `create_session` does."""
    options, env_id = request.options(), request.environment
    return create_session(
        request.prompt,
        loop_config(env_id, **options),
        session_id=session_id,
        runs_dir=runs_dir,
        criteria=request.criteria,
        options=options if env_id is None else None,
    )


def open_config(
    session: SessionRecord, changes: ResumeOptions | None = None, *, resume: bool = False
) -> SessionConfig:
    """Read a session's configuration with the changes of a resume.

    One that has used up its time is then given as much again as at first, unless `changes` set it.
    Raises ValueError if it is none, if it has a record that cannot be read (its phase would be done
    again, over what is there) or if the change is not possible; SessionBusy if it is running.
    """
    if problems := session.find_unreadable():
        raise ValueError(f"{session.path} cannot be resumed: {'; '.join(problems)}")
    config = session.config.read()
    if config is None:
        raise ValueError(f"{session.path} is not a session: it has no session.json")
    restore(session.path, config.env_id)
    changes = changes or ResumeOptions()
    if resume and changes.max_minutes is None:
        minutes = minutes_to_resume(config, read_worked_seconds(session))
        changes = changes.model_copy(update={"max_minutes": minutes})
    changed = with_changes(config, changes)
    if changed != config:
        with one_process(session):
            session.config.save(changed)
    return changed


def run(
    session: SessionRecord,
    *,
    resume: bool = False,
    delivers: bool = True,
    review_intent: Callable[[Intent], Intent] = accept_criteria,
    trainer: TrainerFactory = local_trainer,
    switch: StopSwitch | None = None,
    **changes: Any,
) -> SessionResult:
    """Work on a session until it ends, with the models that it names.

    `review_intent` is shown the criteria before anything is written for them, and gives those that
    count. `trainer` makes what trains: `p2p.scheduler.scheduled_trainer.make_trainer` for sessions
    that may name the scheduler. `switch` stops it. `delivers`: see `run_loop`. `changes` are fields
    of ResumeHere. Raises what `open_config` and `run_loop` raise.
    """
    refuse_links(session.path)
    config = open_config(session, ResumeHere(**changes), resume=resume)
    if config.loop.trainer != "local" and trainer is local_trainer:
        raise ValueError(f"trainer={config.loop.trainer}: this process can only train locally")
    switch = switch or StopSwitch()
    agents = SessionAgents(session, config.loop, cancelled=switch.is_cancelled)
    context = SessionContext(session, config, agents, switch, review_intent, trainer)
    try:
        return run_loop(context, resume=resume, delivers=delivers)
    finally:
        agents.close()
