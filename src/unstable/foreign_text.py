"""Sanitised foreign text: without secrets, and without halves of characters."""

from __future__ import annotations

import base64
import json
import re
from contextlib import suppress
from functools import lru_cache

_HALF_IN_JSON = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
_SHORTEST = 8
"""Characters; what is shorter is no key, and could not be told from ordinary text."""


def without_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """Remove these secrets from a text.

    Plain, escaped as in JSON or an address, reversed, in hexadecimal and in base64.
    """
    for pattern in _patterns(secrets):
        text = pattern.sub("[secret]", text)
    return text


@lru_cache(maxsize=8)
def _patterns(secrets: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Return patterns for each secret that is long enough to differ from ordinary text."""
    return tuple(
        re.compile(pattern)
        for secret in secrets
        if len(secret) >= _SHORTEST
        for pattern in (
            "".join(map(_escape_pattern, secret)),
            "".join(map(_escape_pattern, reversed(secret))),
            _either_case(secret.encode().hex()),
            *(_in_base64(secret.encode(), before) for before in range(3)),
        )
    )


def _escape_pattern(character: str) -> str:
    """Return a pattern for a character as it is, in percent encoding, and as JSON escapes it."""
    percent = "".join(f"%(?:25)*{_either_case(f'{byte:02x}')}" for byte in character.encode())
    digits = _either_case(f"{ord(character):04x}")
    slashes = r"\\{0,8}" if character in '"\\/' else ""
    return rf"(?:{slashes}{re.escape(character)}|{percent}|\\{{1,8}}u{digits})"


def _either_case(digits: str) -> str:
    return "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in digits)


def _in_base64(secret: bytes, before: int) -> str:
    """Return a pattern for the secret in base64, after so many other bytes of a group of three.

    Without the digits at both ends that depend on what stands beside it.
    """
    digits = base64.b64encode(bytes(before) + secret).decode().rstrip("=")
    first = (0, 2, 3)[before]
    whole = (before + len(secret)) * 8 // 6
    return "".join(
        {"+": "[+-]", "/": r"(?:\\{0,8}/|_)"}.get(digit, digit) for digit in digits[first:whole]
    )


def whole_characters(text: str) -> str:
    """Replace every half of a character, also where JSON writes one."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if _HALF_IN_JSON.search(text):
        with suppress(ValueError, RecursionError):
            written = json.dumps(json.loads(text), ensure_ascii=False)
            return written.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
