"""One session from the command line: `python -m p2p.session.run_session --prompt "run fast"`.

The last line of standard output is the session's folder; everything else goes to standard error.
Keys of model providers come from the environment or `.env`, never from an argument.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p import __version__
from p2p.contracts import SessionConfig, describe_errors, utc_now
from p2p.files import refuse_links
from p2p.records.iteration_record import SessionRecord
from p2p.records.statuses import EXIT_BAD_INPUT, EXIT_BUSY, EXIT_CODES
from p2p.records.upstream import loop_fields
from p2p.sandbox import choose_unsafe_local
from p2p.session.agents import SessionAgents
from p2p.session.context import SessionContext, accept, local_trainer
from p2p.session.endings import SessionBusy
from p2p.session.loop import one_process, run_loop
from p2p.session.request import SessionRequest, loop_config, with_changes
from p2p.session.session_id import new_session_id
from p2p.session.stopping import StopSwitch, kill_descendants
from p2p.settings import get_settings, redact, session_path
from p2p.utils.subprocess_utils import interrupt_on_sigterm
from unstable.utils.logging import print_plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from p2p.config import LoopConfig
    from p2p.contracts import Criterion, Intent, SessionResult
    from p2p.session.context import TrainerFactory

EPILOG = """examples:
  python -m p2p.session.run_session --prompt "run forward fast" --env HalfCheetah-v5
  python -m p2p.session.run_session --prompt-file prompt.txt --loop-config loop.json
  echo "balance" | python -m p2p.session.run_session --prompt - --loop-config '{"seeds": 2}'
  python -m p2p.session.run_session --session-id session_x --resume --budget-usd 5

exit status: 0 passed, 1 error, 2 bad arguments or files, 3 no pass within the iterations, 4 paused,
5 rate limited, 6 a key is missing or refused, 7 no reward could be made to run, 8 budget used up,
9 another process works on the session, 10 time used up, 11 unverified (no criterion measures some
words of the prompt), 130 cancelled. All but 0, 2 and 11 can be resumed with --resume.
"""


CHANGES = ("max_iterations", "budget_usd", "max_minutes")
"""What has a flag, with --resume."""


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="python -m p2p.session.run_session",
        description="Run one session: from a prompt to a policy.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = arguments.add_argument
    add("--session-id", help="name of the session and its folder (default: a new one)")
    add("--prompt", help="what the agent should do; `-` reads it from standard input")
    add("--prompt-file", type=Path, help="a file with the prompt")
    add(
        "--loop-config",
        metavar="JSON",
        help="fields of LoopConfig and TrainConfig as a JSON object: a file, the text, or `-`",
    )
    add("--env", help="environment (default: that of --loop-config, else chosen)")
    add("--runs-dir", type=Path, help="folder of the sessions (default: runs)")
    add("--resume", action="store_true", help="resume a session")
    add("--max-iterations", type=int, help="with --resume: a new limit")
    add("--budget-usd", type=float, help="with --resume: a new budget")
    add("--max-minutes", type=float, help="with --resume: a new limit, in total")
    add(
        "--unsafe-local", action="count", default=0,
        help="run code without a sandbox where the kernel has none (given twice: also where it has "
        "one): it can then read your files and use the network",
    )  # fmt: skip
    return arguments


# --- making and opening sessions ------------------------------------------------------------------


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
        raise ValueError(f"{session.path} is there already: choose another name, or resume it")
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


def open_config(session: SessionRecord, changes: Mapping[str, Any] | None = None) -> SessionConfig:
    """What a session was asked for, with what is to be different when it goes on.

    Raises ValueError if it is none, if it has a record that cannot be read (its phase would be done
    again, over what is there) or if the change is not possible; SessionBusy if it is running.
    """
    if problems := session.unreadable():
        raise ValueError(f"{session.path} cannot be resumed: {'; '.join(problems)}")
    config = session.config.read()
    if config is None:
        raise ValueError(f"{session.path} is no session: it has no session.json")
    changed = with_changes(config, changes or {})
    if changed != config:
        with one_process(session):
            session.config.save(changed)
    return changed


def run(
    session: SessionRecord,
    *,
    resume: bool = False,
    review_intent: Callable[[Intent], Intent] = accept,
    trainer: TrainerFactory = local_trainer,
    **changes: Any,
) -> SessionResult:
    """Work on a session until it ends, with the models that it names.

    `review_intent` is shown the criteria before anything is written for them, and gives those that
    count. `trainer` makes what trains: `p2p.scheduler.scheduled_trainer.make_trainer` for sessions
    that may name the scheduler. `changes` are fields of LoopConfig that may be different when a
    session is resumed. Raises what `open_config` and `run_loop` raise.
    """
    refuse_links(session.path)
    config = open_config(session, changes)
    if config.loop.trainer != "local" and trainer is local_trainer:
        raise ValueError(f"trainer={config.loop.trainer}: this process can only train locally")
    switch = StopSwitch()
    agents = SessionAgents(session, config.loop, cancelled=switch.cancelled)
    context = SessionContext(session, config, agents, switch, review_intent, trainer)
    try:
        return run_loop(context, resume=resume)
    finally:
        agents.close()


# --- the command ----------------------------------------------------------------------------------


def _read(path: Path, flag: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"{flag}: {path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{flag}: {path} cannot be read: {error}") from error


def _prompt(arguments: argparse.Namespace, settings: dict[str, Any]) -> str:
    """What the flags say, else what a session_config.json has; it is then no setting any more."""
    stored = settings.pop("prompt", None)
    if isinstance(stored, str) and arguments.prompt is None and arguments.prompt_file is None:
        return stored.strip()
    if (arguments.prompt is None) == (arguments.prompt_file is None):
        raise ValueError("say what the agent should do: --prompt TEXT or --prompt-file FILE")
    if arguments.prompt_file is not None:
        text = _read(arguments.prompt_file, "--prompt-file")
    else:
        text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    if not text.strip():
        raise ValueError("the prompt is empty: say what the agent should do")
    return str(text).strip()


def _settings(source: str | None) -> dict[str, Any]:
    if source is None:
        return {}
    if source == "-":
        text = sys.stdin.read()
    else:
        text = source if source.lstrip().startswith("{") else _read(Path(source), "--loop-config")
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--loop-config: not JSON: {error}") from error
    if isinstance(settings, dict):
        ours, note = loop_fields(settings)
        if note:
            print_plainly(f"note: --loop-config: {note}")
        return ours
    raise ValueError('--loop-config: not a JSON object, such as {"max_iterations": 3}')


def _changes(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in CHANGES}


def _session(arguments: argparse.Namespace) -> SessionRecord:
    runs_dir = (arguments.runs_dir or get_settings().runs_dir).absolute()
    if arguments.resume:
        if arguments.session_id is None:
            raise ValueError("--resume: name the session with --session-id")
        return SessionRecord(runs_dir / session_path(arguments.session_id))
    if any(value is not None for value in _changes(arguments).values()):
        flags = "--max-iterations, --budget-usd and --max-minutes"
        raise ValueError(f"{flags} go with --resume; else --loop-config")
    if arguments.prompt == arguments.loop_config == "-":
        raise ValueError("only one of --prompt and --loop-config can come from standard input")
    settings = _settings(arguments.loop_config)
    request = SessionRequest(
        prompt=_prompt(arguments, settings), env_id=arguments.env, settings=settings
    )
    return start_session(request, session_id=arguments.session_id, runs_dir=runs_dir)


def main(argv: list[str] | None = None, trainer: TrainerFactory = local_trainer) -> int:
    """Run the command; returns its exit status."""
    arguments = parser().parse_args(argv)
    interrupt_on_sigterm()
    try:
        choose_unsafe_local(arguments.unsafe_local)
        session = _session(arguments)
        print_plainly(f"session: {session.path}")
        result = run(session, resume=arguments.resume, trainer=trainer, **_changes(arguments))
    except ValueError as error:
        print_plainly(f"error: {describe_errors(error)}")
        return EXIT_BAD_INPUT
    except SessionBusy as error:
        print_plainly(f"error: {error}")
        return EXIT_BUSY
    except OSError as error:
        print_plainly(f"error: {error}")
        return EXIT_CODES["error"]
    except KeyboardInterrupt:
        print_plainly("cancelled")
        return EXIT_CODES["cancelled"]
    print_plainly(f"{result.status}: {result.message}")
    print(session.path)  # noqa: T201 - the interface: the session's folder, last
    return EXIT_CODES.get(result.status, 1)


if __name__ == "__main__":
    from p2p.scheduler.scheduled_trainer import make_trainer

    code = main(trainer=make_trainer)
    kill_descendants()
    sys.stdout.flush()
    os._exit(code)  # a thread that still waits for a model does not hold up the end
