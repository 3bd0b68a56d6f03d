"""Names of sessions."""

from __future__ import annotations

import secrets
from datetime import datetime


def new_session_id() -> str:
    """`session_{YYYYmmdd_HHMMSS}_{hex8}`, in local time: sorts by age, never taken twice."""
    now = datetime.now().astimezone()
    return f"session_{now:%Y%m%d_%H%M%S}_{secrets.token_hex(4)}"
