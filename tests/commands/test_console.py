"""Nothing that a model or its code wrote controls the terminal."""

from __future__ import annotations

import io

import pytest
from rich.table import Table
from rich.text import Text

from unstable.commands import SafeConsole

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
HOSTILE = [CLIPBOARD, "\x1b[2J", "\x9b31m", "a\rb", "\x08", "\u202eevil\u202c", "\u2066x", "\ud800"]


@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_do_not_reach_the_terminal(text: str) -> None:
    stream = io.StringIO()
    console = SafeConsole(file=stream, force_terminal=True, width=80, highlight=False)
    table = Table("column")
    table.add_row(f"in a cell {text}")
    console.print(f"plain {text}", markup=False)
    console.print(Text(f"styled {text}", "bold red"))
    console.print(table)
    console.print(f"[green]marked up[/] {text}", soft_wrap=True)
    printed = stream.getvalue()
    assert text not in printed
    assert "\x1b[32mmarked up" in printed, "our own colours are kept"
    assert all(word in printed for word in ("plain", "styled", "in a cell"))
