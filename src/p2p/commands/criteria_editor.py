"""`--interactive`: the user edits the criteria before anything is trained for them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.prompt import Confirm, Prompt

from p2p.agents.intent_elicitor import CriteriaError, parse_criteria, render_criteria, with_criteria
from p2p.commands.console import err
from p2p.commands.live import plain_table
from p2p.commands.session_progress import intent_lines, kind_text
from p2p.contracts import describe_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from p2p.contracts import Criterion, Intent

HELP = (
    "[bold]enter[/] accept   [bold]drop 3[/]   [bold]threshold 3 2.5[/]   [bold]weight 3 0.5[/]\n"
    "[bold]soft 3 why it need not be met[/]   [bold]hard 3[/]\n"
    "[bold]edit[/] all of them, or add some, in your editor   [bold]quit[/]"
)


def edit_criteria(intent: Intent) -> Intent:
    """Show the criteria, apply the user's changes, and return the result.

    What the prompt asks and no criterion measures stays on record, except for words that a
    criterion of the user's names. Raises KeyboardInterrupt where the user quits.
    """
    unchecked = intent.unused_words
    while True:
        _show(intent)
        command = Prompt.ask("criteria", console=err, default="", show_default=False).split()
        if not command:
            return intent
        if command[0] in ("quit", "q"):
            raise KeyboardInterrupt
        try:
            criteria = apply(intent.criteria, command)
            words = _find_unnamed(unchecked, criteria)
            intent = with_criteria(intent, criteria).model_copy(update={"unused_words": words})
        except ValueError as error:
            err.print(f"[yellow]{escape(describe_errors(error))}[/]")


def _find_unnamed(words: tuple[str, ...], criteria: tuple[Criterion, ...]) -> tuple[str, ...]:
    text = " ".join(f"{c.title} {c.description} {c.measure}" for c in criteria)
    return tuple(w for w in words if not re.search(rf"\b{re.escape(w)}\b", text, re.IGNORECASE))


def _show(intent: Intent) -> None:
    table = plain_table("", "category", "weight")
    table.add_column("asked", ratio=1)
    for number, criterion in enumerate(intent.criteria, 1):
        text = f"{escape(criterion.demand)}: [dim]{escape(criterion.measure)}[/]"
        table.add_row(f"[bold]{number}[/]", kind_text(criterion), f"{criterion.weight:g}", text)
    err.print(table)
    for line in intent_lines(intent):
        err.print(line, soft_wrap=True)
    err.print(HELP)


def apply(criteria: tuple[Criterion, ...], command: list[str]) -> tuple[Criterion, ...]:
    """The criteria after one command; raises ValueError that says what is wrong with it."""
    verb, rest = command[0], command[1:]
    if verb not in COMMANDS:
        raise ValueError(f"{verb}: not one of {', '.join(COMMANDS)}, or just enter")
    return COMMANDS[verb](criteria, rest)


def _parse_choice(criteria: tuple[Criterion, ...], text: list[str], wanted: int) -> int:
    if len(text) != wanted or not text[0].isdecimal():
        raise ValueError("name a criterion by its number, as in: drop 3, or threshold 3 2.5")
    number = int(text[0])
    if not 1 <= number <= len(criteria):
        raise ValueError(f"{number}: there are 1 to {len(criteria)}")
    return number - 1


def _drop(criteria: tuple[Criterion, ...], text: list[str]) -> tuple[Criterion, ...]:
    i = _parse_choice(criteria, text, 1)
    return criteria[:i] + criteria[i + 1 :]


def _set(field: str) -> Callable[[tuple[Criterion, ...], list[str]], tuple[Criterion, ...]]:
    def change(criteria: tuple[Criterion, ...], text: list[str]) -> tuple[Criterion, ...]:
        i = _parse_choice(criteria, text, 2)
        try:
            value = float(text[1])
        except ValueError:
            raise ValueError(f"{text[1]}: not a number") from None
        return _change_criterion(criteria, i, field, value)

    return change


def _change_criterion(
    criteria: tuple[Criterion, ...], i: int, field: str, value: float | str
) -> tuple[Criterion, ...]:
    changed = type(criteria[i]).model_validate({**criteria[i].model_dump(), field: value})
    return (*criteria[:i], changed, *criteria[i + 1 :])


def _soften(criteria: tuple[Criterion, ...], text: list[str]) -> tuple[Criterion, ...]:
    i = _parse_choice(criteria, text[:1], 1)
    if len(text) < 2:
        raise ValueError(f"say why it need not be met, as in: soft {i + 1} it is only nicer so")
    return _change_criterion(criteria, i, "soft_reason", " ".join(text[1:]))


def _harden(criteria: tuple[Criterion, ...], text: list[str]) -> tuple[Criterion, ...]:
    return _change_criterion(criteria, _parse_choice(criteria, text, 1), "soft_reason", "")


def _edit(criteria: tuple[Criterion, ...], _: list[str]) -> tuple[Criterion, ...]:
    """Edit the criteria in the user's editor, again until they can be read."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="p2p-criteria-") as folder:
        path = Path(folder) / "criteria.toml"
        path.write_text(render_criteria(criteria), encoding="utf-8")
        while True:
            try:
                subprocess.run([*shlex.split(editor), str(path)], check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise ValueError(f"{editor} does not open ({error}): set EDITOR") from error
            try:
                return parse_criteria(path.read_text(encoding="utf-8"))
            except CriteriaError as error:
                err.print(f"[yellow]{escape(str(error))}[/]")
                if not Confirm.ask("edit it again", console=err, default=True):
                    return criteria


COMMANDS = {
    "drop": _drop,
    "threshold": _set("threshold"),
    "weight": _set("weight"),
    "soft": _soften,
    "hard": _harden,
    "edit": _edit,
}
