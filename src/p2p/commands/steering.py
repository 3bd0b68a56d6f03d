"""`p2p stop` and `p2p steer`: cancel a session, and give it feedback."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from p2p.commands.arguments import (
    RunsDirOption,
    SessionArgument,
    open_session,
    parse_settings,
)
from p2p.commands.console import (
    CommandError,
    JsonFlag,
    UsageError,
    answer,
    display_path,
    err,
    read_text,
    reject_argument,
)

if TYPE_CHECKING:
    from p2p.contracts import Criterion, SteeringOrder
    from p2p.records.iteration_record import SessionRecord

GRACE_S = 30.0


def stop(
    session: SessionArgument,
    wait: Annotated[bool, typer.Option(help="Wait until its processes have ended.")] = True,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Stop a running session; `p2p resume` continues it.

    [bold]Examples[/]

      p2p stop last
      p2p stop session_20260101_120000_0123abcd --no-wait
    """
    from p2p.records.statuses import status_words
    from p2p.session.stopping import cancel, command_name, resume_command

    record = open_session(session, runs_dir)
    queued = _cancel_run(record)
    processes = cancel(record)
    if processes is None and not queued:
        words = status_words(record.derive_status())
        raise CommandError(f"{record.session_id} is not running: it is {words}")
    for pid, started in (processes or ()) if wait else ():
        _wait_for(pid, started, command_name(record))
    value = {"session_id": record.session_id, "status": "cancelled"}
    answer(value, f"stopped; resume with: {resume_command(record)}", as_json=as_json)


def _cancel_run(record: SessionRecord) -> bool:
    """End the scheduler's run of this session, which may be on another machine, or still wait."""
    for runs_dir in record.path.parents[:2]:
        if (runs_dir / "scheduler" / "scheduler.sqlite").is_file():
            from p2p.commands.scheduler import open_store
            from p2p.scheduler.service import cancel_run_in

            with open_store(runs_dir) as store:
                return cancel_run_in(store, runs_dir, record.path)
    return False


def _wait_for(pid: int, started: float | None, name: str) -> None:
    from p2p.utils.subprocess_utils import process_is_alive

    deadline = time.monotonic() + GRACE_S
    with err.status("ending its processes"):
        while process_is_alive(pid, started):
            if time.monotonic() > deadline:
                raise CommandError(
                    f"process {pid} has not ended within {GRACE_S:.0f} s: it was asked to stop, "
                    f"look again with `p2p show {name}`, or end it with: kill {pid}"
                )
            time.sleep(0.1)


def steer(
    session: SessionArgument,
    remark: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="What to do differently, for the next revision.",
            show_default="none",
        ),
    ] = "",
    score: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="0..1",
            help="Your score of the last iteration.",
            show_default="none",
        ),
    ] = None,
    pause: Annotated[
        bool | None,
        typer.Option(
            "--pause/--continue",
            help="Pause after this iteration, or do not.",
            show_default="unchanged",
        ),
    ] = None,
    criteria: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Criteria to judge by from now on.", show_default="unchanged"
        ),
    ] = None,
    reward: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The reward of the next iteration.", show_default="revised"
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="A hyperparameter; repeatable.",
            show_default="unchanged",
        ),
    ] = None,
    withdraw: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="NUMBER",
            help="Withdraw pending feedback, and nothing else.",
            show_default="none",
        ),
    ] = None,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Give feedback; it takes effect when the current iteration ends.

    `p2p show SESSION --criteria > criteria.toml` writes the criteria to edit.
    Feedback has a number, which is printed; `--withdraw` takes it back until then.

    [bold]Examples[/]

      p2p steer last --remark "keep the body lower"
      p2p steer last --pause
      p2p steer last --withdraw 2
      p2p steer last --reward mine.py --set learning_rate=1e-4 --continue
    """
    from p2p.records.statuses import status_words
    from p2p.session.steering import give_feedback
    from p2p.session.stopping import resume_command

    record = open_session(session, runs_dir)
    if withdraw is not None:
        parts = (remark.strip(), score, pause, criteria, reward, setting)
        if any(part not in (None, "", []) for part in parts):
            raise UsageError("--withdraw: not with other feedback; give that on its own")
        _withdraw(record, withdraw, as_json=as_json)
        return
    order = _order(
        remark=remark.strip(),
        score=score,
        pause=pause,
        criteria=read_criteria(criteria),
        reward_code=read_text(reward, "--reward") if reward else None,
        hp_changes=_hyperparameters(setting or [], record),
    )
    path = give_feedback(record.path, order)
    status = record.derive_status()
    words = status_words(status)
    waits = f"; the session is not running ({words}): apply it with {resume_command(record)}"
    then = "" if status == "running" else waits
    number = int(path.stem)
    value = {
        "session_id": record.session_id,
        "number": number,
        "order": order.model_dump(mode="json"),
    }
    answer(
        value, f"feedback {number}: saved as {escape(display_path(path))}{then}", as_json=as_json
    )


def _withdraw(record: SessionRecord, number: int, *, as_json: bool) -> None:
    from p2p.session.steering import NotPending, withdraw_feedback

    try:
        order = withdraw_feedback(record, number)
    except NotPending as error:
        raise CommandError(f"--withdraw: {error}") from None
    value = {"session_id": record.session_id, "withdrawn": order.model_dump(mode="json")}
    answer(value, f"withdrew feedback {number}", as_json=as_json)


def _order(**parts: Any) -> SteeringOrder:
    from p2p.contracts import SteeringOrder, utc_now

    if not any(value not in (None, "", {}) for value in parts.values()):
        raise UsageError("say what to change: --remark, --score, --pause, --criteria, ...")
    return SteeringOrder(given_at=utc_now(), **parts)


def read_criteria(path: Path | None) -> tuple[Criterion, ...] | None:
    if path is None:
        return None
    from p2p.agents.intent_elicitor import CriteriaError, parse_criteria

    with reject_argument(f"--criteria: {path}", CriteriaError):
        return parse_criteria(read_text(path, "--criteria"))


def _hyperparameters(items: list[str], record: SessionRecord) -> dict[str, Any]:
    from p2p.config import TrainConfig
    from p2p.session.steering import check_settings

    changes = parse_settings(items, TrainConfig.model_fields)
    config = record.config.read()
    try:
        check_settings(changes, config.loop.train if config else TrainConfig())
    except ValueError as error:
        raise UsageError(f"--set {error}") from None
    return changes
