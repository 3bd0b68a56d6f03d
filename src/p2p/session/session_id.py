"""Names of sessions."""

from __future__ import annotations

import re
import secrets
from datetime import datetime

SESSION_ID = re.compile(r"session_\d{8}_\d{6}_[0-9a-f]{8}")


def new_session_id() -> str:
    """`session_{YYYYmmdd_HHMMSS}_{hex8}`, in local time: sorts by age, never taken twice."""
    now = datetime.now().astimezone()
    return f"session_{now:%Y%m%d_%H%M%S}_{secrets.token_hex(4)}"


def is_session_id(text: str) -> bool:
    """Whether `new_session_id` could have made this."""
    return SESSION_ID.fullmatch(text) is not None
