"""The house stands on its floors: who imports whom, read off the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

FLOORS = (
    {"contracts", "settings", "config", "event_log", "atomic", "jsonl", "resource_auto"},
    {"sandbox", "analysis", "inference"},
    {"training", "rewards"},
    {"prompts", "agents"},
    {"session"},
    {"scheduler", "benchmark"},
    {"api", "executor", "commands", "cli"},
)
"""From the ground up; an import goes to the same floor or down."""

UNSTABLE_FLOORS = (
    {"core", "config"},
    {"reward_transformations", "algorithms", "engines", "games", "tiny", "utils"},
    {
        "buffer", "stores", "model_pool", "ratings", "samplers", "trackers", "writers",
        "transcripts", "evaluation", "actor", "learners",
    },
    {"collection"},
    {"collector"},
    {"run"},
    {"terminal_interface", "dashboard", "commands"},
    {"cli"},
)  # fmt: skip
"""The same for self-play, which stands on its own ground."""

HEAVY = (
    "mujoco", "jax", "torch", "gymnasium", "stable_baselines3", "ray", "transformers", "textarena",
)  # fmt: skip


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in SRC.rglob("*.py")}


def import_nodes(node: ast.AST, *, at_import: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports below a node; `at_import`: only those that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif at_import and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif at_import and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from import_nodes(other, at_import=True)
        else:
            yield from import_nodes(child, at_import=at_import)


def imported(path: Path, *, at_import: bool = False) -> set[str]:
    """The modules a file imports; `from package import module` counts as the module."""
    found: set[str] = set()
    for node in import_nodes(ast.parse(path.read_text()), at_import=at_import):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{path}: a relative import"
            base = node.module or ""
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else base for name in names}
    return found


def ours(names: set[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] in ("p2p", "unstable")}


def floor_of(module: str) -> int:
    """The floor of a module in its house; the bare package is the ground."""
    house, *rooms = module.split(".")
    if not rooms:
        return 0
    plan = {"p2p": FLOORS, "unstable": UNSTABLE_FLOORS}[house]
    floors = [number for number, level in enumerate(plan) if rooms[0] in level]
    assert floors, f"{module} is on no floor: give {house}.{rooms[0]} a place in FLOORS"
    return floors[0]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_from_its_own_floor_or_below(module: str) -> None:
    floor = floor_of(module)
    wrong = {name for name in ours(imported(MODULES[module])) if floor_of(name) > floor}
    assert not wrong, f"{module} (floor {floor}) reaches up to {sorted(wrong)}"


def test_no_imports_go_round_in_a_circle() -> None:
    graph = {name: ours(imported(path, at_import=True)) - {name} for name, path in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_what_is_imported_from_here_exists() -> None:
    missing = {
        (module, name)
        for module, path in MODULES.items()
        for name in ours(imported(path))
        if name not in MODULES
    }
    assert not missing


def test_unstable_stands_on_its_own_ground() -> None:
    for module, path in MODULES.items():
        if module.split(".")[0] == "unstable":
            assert not {n for n in imported(path) if n.split(".")[0] == "p2p"}, module


def test_a_circle_and_a_way_up_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "from p2p import atomic\n"
        "if TYPE_CHECKING:\n    from p2p.session import session_id\n"
        "def f():\n    import p2p.cli\n"
    )
    assert ours(imported(file)) == {"p2p.atomic", "p2p.session.session_id", "p2p.cli"}
    assert ours(imported(file, at_import=True)) == {"p2p.atomic"}
    assert floor_of("p2p.cli") > floor_of("p2p.session.session_id") > floor_of("p2p.atomic")


@pytest.mark.parametrize("module", ["p2p", "unstable", "p2p.cli", "unstable.cli"])
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; print(*sorted(set(sys.modules) & set({HEAVY!r})))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert loaded.stdout.split() == []
