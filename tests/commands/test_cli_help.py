"""`p2p`, `p2p --help` and `p2p --version`."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import typer
from cli_runner import Cli
from typer.testing import CliRunner

from p2p.cli import app
from unstable.cli import app as selfplay_app


def tree(root: typer.Typer = app) -> dict[tuple[str, ...], Any]:
    """Every command there is, and the groups that do something by themselves."""
    commands: dict[tuple[str, ...], Any] = {}
    for name, command in typer.main.get_command(root).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {})
        commands |= {(name, each): inner[each] for each in inner}
        if command.hidden:
            continue
        if not inner or name == "benchmark":
            commands[(name,)] = command
    return commands


def commands() -> list[tuple[str, ...]]:
    return list(tree())


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_shows_each_example_on_a_line_of_its_own(p2p: Cli, command: tuple[str, ...]) -> None:
    shown = p2p(*command, "--help")
    assert shown.status == 0
    lines = [line.strip() for line in shown.out.splitlines()]
    call = " ".join(("p2p", *command))
    examples = [line for line in lines[lines.index("Examples") :] if line.startswith(call)]
    assert len(examples) >= 2
    written = [line.strip() for line in tree()[command].help.splitlines()]
    assert set(examples) <= set(written)  # whole, so that they can be pasted
    assert "--json" in shown.out or command == ("serve",)
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "<bool>" not in shown.out


def without_a_default(command: Any) -> list[str]:
    """Options that take a value, may be left out, and do not say what they are then."""
    return [
        parameter.opts[0]
        for parameter in [*command.params, *getattr(command, "flag_options", ())]
        if parameter.opts[0].startswith("-")
        and not (parameter.hidden or parameter.required)
        and (not parameter.is_flag or parameter.secondary_opts)
        and not isinstance(parameter.show_default, str)
        and parameter.default in (None, "", [])
    ]


@pytest.mark.parametrize("program", [app, selfplay_app], ids=["p2p", "unstable"])
def test_every_option_says_its_default(program: typer.Typer) -> None:
    lacking = {name: without_a_default(command) for name, command in tree(program).items()}
    assert {name: options for name, options in lacking.items() if options} == {}


@pytest.mark.parametrize("command", tree(selfplay_app), ids=" ".join)
def test_the_help_of_self_play_fits_too(command: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(selfplay_app, [*command, "--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    assert "<bool>" not in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    assert f"unstable {' '.join(command)}" in shown.output.partition("Examples")[2]


def test_each_command_is_listed_on_one_line(p2p: Cli) -> None:
    lines = p2p("--help").out.splitlines()
    assert len(lines) <= 50
    assert not [line for line in lines if re.match(r"│ {6,}\S", line)]
    names = {command[0] for command in commands()}
    listed = [line.split()[1] for line in lines if re.match(r"│ {1,2}[a-z]", line)]
    assert set(listed) == names
    assert len(listed) == len(names)


def test_version(p2p: Cli) -> None:
    shown = p2p("--version")
    assert (shown.status, shown.out.split()[0].strip(",")) == (0, "p2p")


@pytest.mark.parametrize(
    "wrong", [("trian",), ("train", "--bogus"), ("train", "x", "--steps", "y")]
)
def test_a_slip_of_the_finger_is_status_two(p2p: Cli, wrong: tuple[str, ...]) -> None:
    shown = p2p(*wrong)
    assert shown.status == 2
    assert wrong[-1] in shown.err or "--steps" in shown.err
    assert "Traceback" not in shown.err


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m p2p.cli rewards | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Ant-v5"
    assert done.stderr == ""
