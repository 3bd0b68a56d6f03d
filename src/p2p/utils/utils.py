"""Text that models and logs write: code out of a reply, lines out of a file."""

from __future__ import annotations

import ast
import re
import threading

from p2p.files import lines_backward, read_lines

__all__ = ["lines_backward", "parse_python", "read_lines", "tidy_code"]

_FENCE = re.compile(r"\A\s*```[\w+-]*[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_PARSING = threading.Lock()


def parse_python(code: str, name: str = "<unknown>") -> ast.Module:
    """`ast.parse` in one thread at a time: two at once may raise SystemError before 3.11.8."""
    with _PARSING:
        return ast.parse(code, name)


def tidy_code(text: str) -> str:
    """The code without a fence around it, ended by one line break; empty stays empty."""
    fenced = _FENCE.match(text)
    code = (fenced[1] if fenced else text).strip("\n").rstrip()
    return f"{code}\n" if code.strip() else ""
