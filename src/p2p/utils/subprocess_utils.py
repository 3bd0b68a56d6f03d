"""Programs of this package as processes of their own."""

from __future__ import annotations

import sys


def python_command(module: str, *arguments: str) -> list[str]:
    """`python -m module arguments`, with the interpreter that runs this."""
    return [sys.executable, "-m", module, *arguments]
