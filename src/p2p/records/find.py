"""Find sessions by what people call them: a name, the start of it, `last`, `best`, or a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from p2p.files import is_session
from p2p.records.iteration_record import SessionRecord
from p2p.records.session_view import SessionView
from p2p.validation import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

ANY_SESSION = "a session (its name, the start of it, `last`, `best`, or its folder)"


class NotFound(ValueError):
    """Nothing has this name, or several things; the message says what there is."""


def find_name(text: str, names: Sequence[str], noun: str, place: Path) -> str:
    """The name meant: all of it, its start, its short name, or `last`; raises NotFound."""
    if not names:
        raise NotFound(f"no {noun}s in {place} yet")
    if text == "last":
        return names[-1]
    matches = [text] if text in names else starting_with(text, names)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise NotFound(f"{text} may be {', '.join(matches[-5:])}: type more of the name")
    raise NotFound(f"no {noun} {text!r} in {place}{did_you_mean(text, names)}")


def starting_with(text: str, names: Sequence[str]) -> list[str]:
    """The names that begin so, or whose short names do."""
    whole = [name for name in names if name.startswith(text)]
    return whole or [name for name in names if text and short_name(name).startswith(text)]


def short_name(name: str) -> str:
    """`e379e8f0` of session_20260101_120000_e379e8f0; a name that a person gave stays whole."""
    generated = re.fullmatch(r"\w+_\d{8}_\d{6}_([0-9a-f]{8})", name)
    return generated[1] if generated else name


def session_names(folder: Path) -> list[str]:
    """The names of all sessions in a folder, oldest first; raises NotFound if it is unreadable."""
    try:
        return sorted(p.name for p in folder.iterdir() if p.name[0] != "." and is_session(p))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise NotFound(f"{folder} cannot be read: {error.strerror}") from error


def find_session(text: str, folder: Path) -> SessionRecord:
    """The session meant, in a folder of sessions or by its own; raises NotFound."""
    path = Path(text)
    if ("/" in text or path.is_dir()) and is_session(path):
        return SessionRecord(path.absolute())
    names = session_names(folder)
    if text == "last":
        kept = (name for name in reversed(names) if not is_in_trash(SessionRecord(folder / name)))
        text = next(kept, text)
    if text == "best" and names:
        return _best_session([SessionRecord(folder / name) for name in names], folder)
    return SessionRecord(folder / find_name(text, names, "session", folder))


def is_in_trash(session: SessionRecord) -> bool:
    """Return whether it was deleted, and can be restored."""
    return session.read_metadata().deleted_at is not None


def _best_session(records: Sequence[SessionRecord], folder: Path) -> SessionRecord:
    """Return the best session by outcome, then by score; of equals the newest."""
    views = [SessionView(record) for record in records if not is_in_trash(record)]
    outcomes = ("not_passed", "unverified", "passed")
    ranks = [
        (outcomes.index(view.outcome_of(view.best)), view.best_score, position)
        for position, view in enumerate(views)
        if view.best is not None and view.best_score is not None
    ]
    if not ranks:
        raise NotFound(f"no session in {folder} has a score yet: name one, or `last`")
    return views[max(ranks)[2]].record
