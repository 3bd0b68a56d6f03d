"""`p2p`, `p2p --help` and `p2p --version`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer
from cli_runner import Cli

from p2p.cli import app


def commands() -> list[tuple[str, ...]]:
    """Every command there is, and the groups that do something by themselves."""
    tree: Any = typer.main.get_command(app)
    names: list[tuple[str, ...]] = [("benchmark",)]
    for name, command in tree.commands.items():
        names += [(name, inner) for inner in getattr(command, "commands", {})]
        names += [] if hasattr(command, "commands") else [(name,)]
    return names


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_shows_each_example_on_a_line_of_its_own(p2p: Cli, command: tuple[str, ...]) -> None:
    shown = p2p(*command, "--help")
    assert shown.status == 0
    lines = [line.strip() for line in shown.out.splitlines()]
    call = " ".join(("p2p", *command))
    examples = [line for line in lines[lines.index("Examples") :] if line.startswith(call)]
    assert len(examples) >= 2
    assert all(line.count(call) == 1 for line in examples)
    assert "--json" in shown.out or command == ("serve",)
    assert max(map(len, shown.out.splitlines())) <= 80


def test_without_arguments_it_lists_the_commands(p2p: Cli) -> None:
    shown = p2p()
    assert all(command[0] in shown.out + shown.err for command in commands())


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


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys, p2p.cli\n"
        "heavy = {'numpy', 'mujoco', 'gymnasium', 'jax', 'torch', 'pydantic', 'av'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m p2p.cli rewards | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Ant-v5"
    assert done.stderr == ""
