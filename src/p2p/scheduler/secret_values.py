"""Keys that a run may ask for by name: looked up when it starts, kept nowhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pydantic import SecretStr

from p2p.settings import get_settings

if TYPE_CHECKING:
    from collections.abc import Iterable


def secret_values(names: Iterable[str]) -> dict[str, str]:
    """Those of the variables that are set: in the environment, or else in `.env`."""
    settings = get_settings()
    found: dict[str, str] = {}
    for name in names:
        value = os.environ.get(name)
        if value is None:
            known = getattr(settings, name.lower(), None)
            value = known.get_secret_value() if isinstance(known, SecretStr) else known
        if isinstance(value, str) and value:
            found[name] = value
    return found
