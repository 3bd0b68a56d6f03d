"""The one error for an environment that nobody registered."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnknownEnvironmentError(ValueError):
    """No environment is registered under this id; the message names near matches, or the reason."""

    def __init__(self, env_id: str, known: Iterable[str], reason: str = "") -> None:
        by_lower_case = {name.lower(): name for name in known}
        close = difflib.get_close_matches(env_id.lower(), by_lower_case, n=3, cutoff=0.5)
        self.env_id = env_id
        self.near = [by_lower_case[name] for name in close]
        hint = f"; did you mean {' or '.join(self.near)}?" if self.near else ""
        why = reason or f"no environment {env_id!r} is registered{hint}"
        super().__init__(f"{why} (`p2p envs` lists them)")
