"""The session that a person means: by its folder, its name, the start of it, or `last`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2p.commands.console import UsageError, did_you_mean

if TYPE_CHECKING:
    from p2p.records.iteration_record import SessionRecord

SessionArgument = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="Its folder, its name or the start of it, or `last`."),
]
RunsDirOption = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where sessions lie (default: runs).")
]


def runs_folder(runs_dir: Path | None) -> Path:
    """The folder named, else the one of the settings."""
    from p2p.settings import get_settings

    return runs_dir.expanduser().absolute() if runs_dir else get_settings().runs_dir


def session_names(folder: Path) -> list[str]:
    """Names of the sessions there, oldest first."""
    try:
        return sorted(p.name for p in folder.iterdir() if p.name[0] != "." and _is_session(p))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"--runs-dir: {folder} cannot be read: {error.strerror}") from error


def _is_session(path: Path) -> bool:
    return (path / "session.json").is_file() or any(path.glob("iter_*/"))


def open_session(text: str, runs_dir: Path | None = None) -> SessionRecord:
    """The session meant; UsageError if there is none, or more than one."""
    from p2p.records.iteration_record import SessionRecord

    given = Path(text)
    if ("/" in text or given.is_dir()) and _is_session(given):
        return SessionRecord(given.absolute())
    folder = runs_folder(runs_dir)
    names = session_names(folder)
    if text == "last" and names:
        return SessionRecord(folder / names[-1])
    found = [name for name in names if name == text] or [n for n in names if n.startswith(text)]
    if len(found) == 1:
        return SessionRecord(folder / found[0])
    if found:
        raise UsageError(f"SESSION: {text} may be {', '.join(found[-5:])}: type more of the name")
    where = f"there is no session {text} in {folder}"
    raise UsageError(f"SESSION: {where}{did_you_mean(text, names)}")
