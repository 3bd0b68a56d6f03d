"""What the commands share: where output goes, and how errors are said."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from p2p.utils.subprocess_utils import interrupt_on_sigterm
from unstable.commands import (
    CommandError,
    CommandGroup,
    JsonFlag,
    UsageError,
    complain,
    err,
    out,
    print_json,
)

__all__ = [
    "CommandError",
    "CommandGroup",
    "JsonFlag",
    "UsageError",
    "complain",
    "err",
    "out",
    "print_json",
]


def _take_unsafe_local(times: int) -> int:
    from p2p.sandbox import choose_unsafe_local, set_unsafe_local

    if not times:
        set_unsafe_local(False)  # without what a sandbox needs
        return 0
    with reject_argument("", ValueError):
        choose_unsafe_local(times)
    return times


UnsafeFlag = Annotated[
    int,
    typer.Option(
        "--unsafe-local",
        count=True,
        show_default=False,
        callback=_take_unsafe_local,
        help="Run rewards unsandboxed where none works.",
    ),
]
EXIT_INTERRUPTED = 130
DISK_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
    errno.ELOOP, errno.EFBIG, errno.ENODEV, errno.ENXIO,  # of `files.open_data`
)  # fmt: skip
"""Errors that are the disk's or its owner's, whichever command meets them; others are ours."""


def translate_error(error: Exception) -> CommandError | None:
    """Return an expected error as a CommandError, or None for a bug."""
    from p2p.inference.question import InferenceError
    from p2p.records.statuses import EXIT_CODES
    from p2p.sandbox import SandboxUnavailable
    from p2p.scheduler.backends import BackendError
    from p2p.scheduler.store import StoreError
    from p2p.session.stopping import status_of
    from p2p.training.reward_function import RewardRefused
    from p2p.training.runner import TrainingFailed

    match error:
        case CommandError():
            return error
        case TrainingFailed():
            return CommandError(error, error.detail)
        case InferenceError():  # as a session that ends so
            return CommandError(error, status=EXIT_CODES[status_of(error)])
        case SandboxUnavailable() | BackendError() | StoreError() | RewardRefused():
            return CommandError(error)
        case OSError() if error.errno in DISK_ERRORS:
            return CommandError(f"{error.filename or 'the disk'}: {error.strerror}")
    return None


def run_app(app: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> None:
    """Run a program; what may go wrong in any command is one line, not a traceback."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    interrupt_on_sigterm()
    try:
        app(args=typed, prog_name=name)
    except Exception as error:
        known = translate_error(error)
        if known is None:
            raise
        if "--json" in typed:
            print_json({"error": str(known), "detail": known.detail})
        complain(known)
        sys.exit(known.status)


def answer(value: Any, text: str, *, as_json: bool) -> None:
    """What a command came to: as JSON, or as a line."""
    if as_json:
        print_json(value)
    else:
        out.print(text, soft_wrap=True)


@contextmanager
def reject_argument(where: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise errors of these kinds as a UsageError of the argument `where`."""
    try:
        yield
    except kinds as error:
        raise UsageError(f"{where}: {error}" if where else error) from error


def display_path(path: Path) -> str:
    """Return a path relative to the current folder, if it lies inside of it."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


def read_text(path: Path, what: str) -> str:
    """The text of a file that the user named; of standard input for `-`."""
    if str(path) == "-":
        return sys.stdin.read()
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"{what}: {path} does not exist") from error
    except IsADirectoryError as error:
        raise UsageError(f"{what}: {path} is a directory, not a file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{what}: {path} is not a text file in UTF-8") from error
    except OSError as error:
        raise UsageError(f"{what}: {path} cannot be read: {error.strerror}") from error


def flag_names(context: typer.Context) -> dict[str, str]:
    """The flags of a command, by the names of its parameters."""
    parameters = context.command.get_params(context)
    names = {str(parameter.name): max(parameter.opts, key=len) for parameter in parameters}
    return {name: flag if flag[0] == "-" else flag.upper() for name, flag in names.items()}


def flags_given(context: typer.Context) -> dict[str, str]:
    """Return the flags that were given."""
    names = flag_names(context)
    sources = {name: context.get_parameter_source(name) for name in names}
    typed = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    return {name.partition("__")[0]: names[name] for name in typed}


@contextmanager
def usage_errors(
    names: Mapping[str, str] | None = None,
    where: str = "",
    formats: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Turn what is wrong with arguments into a UsageError; see `describe_errors`."""
    from p2p.config import TrainConfig
    from p2p.contracts import describe_errors
    from p2p.inference.question import RequestRejected

    try:
        yield
    except RequestRejected as error:
        raise UsageError(f"--model, --vlm: {error}") from error
    except ValueError as error:
        known = TrainConfig.model_fields
        message = describe_errors(error, names, known=known, formats=formats)
        raise UsageError(f"{where}: {message}" if where else message) from error
