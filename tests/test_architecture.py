"""Layers and the absence of cycles, read off the source by scripts/structure.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from structure import cycles, import_graph, imported, ours

LAYERS = (
    {
        "validation", "contracts", "settings", "config", "event_log", "files", "resource_auto",
        "utils", "version",
    },
    {"records", "sandbox", "analysis", "inference"},
    {"training", "rewards", "evaluator_isaaclab"},
    {"prompts", "agents"},
    {"session"},
    {"scheduler", "benchmark"},
    {"api", "executor", "commands", "cli", "interface", "notebook"},
)  # fmt: skip
"""From the ground up; a module imports from its own layer or from below."""

UNSTABLE_LAYERS = (
    {"core", "config", "foreign_text"},
    {"reward_transformations", "algorithms", "engines", "games", "tiny", "utils"},
    {
        "buffer", "model_pool", "samplers", "trackers", "writers", "evaluation", "actor",
        "learners",
    },
    {"episodes", "matchmaking"},
    {"collector"},
    {"run", "models", "dashboard", "console"},
    {"export", "interface", "terminal_interface", "commands"},
    {"cli"},
)  # fmt: skip

HEAVY = (
    "mujoco", "jax", "torch", "gymnasium", "stable_baselines3", "ray", "transformers", "textarena",
)  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Each module with what it imports from here."""
    return import_graph()


def layer_of(module: str) -> int:
    """The layer of a module in its package; a bare package is its interface, above all."""
    package, *parts = module.split(".")
    if not parts:
        return len(LAYERS) if package == "p2p" else len(UNSTABLE_LAYERS) - 1
    plan = {"p2p": LAYERS, "unstable": UNSTABLE_LAYERS}[package]
    layers = [number for number, names in enumerate(plan) if parts[0] in names]
    assert layers, f"{module} is in no layer: give {package}.{parts[0]} a place in LAYERS"
    return layers[0]


def test_modules_import_from_their_own_layer_or_below(graph: dict[str, set[str]]) -> None:
    upward = {
        f"{name} -> {target}"
        for name, targets in graph.items()
        for target in targets
        if layer_of(target) > layer_of(name)
    }
    assert not upward


def test_no_imports_go_round_in_a_circle_not_even_for_types(graph: dict[str, set[str]]) -> None:
    assert [" -> ".join(cycle) for cycle in cycles(graph)] == []


def test_what_is_imported_from_here_exists(graph: dict[str, set[str]]) -> None:
    assert not {(name, target) for name in graph for target in graph[name] - graph.keys()}


def test_unstable_never_imports_p2p(graph: dict[str, set[str]]) -> None:
    assert not {
        f"{name} -> {target}"
        for name, targets in graph.items()
        for target in targets
        if name.split(".")[0] == "unstable" and target.split(".")[0] == "p2p"
    }


def test_a_cycle_and_an_import_for_types_would_be_seen(tmp_path: Path) -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert [set(cycle) for cycle in cycles(graph)] == [{"a", "b", "c"}]
    file = tmp_path / "file.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "from p2p import files\n"
        "if TYPE_CHECKING:\n    from p2p.session import session_id\n"
        "def f():\n    import p2p.cli\n"
    )
    assert ours(imported(file)) == {"p2p.files", "p2p.session.session_id", "p2p.cli"}


@pytest.mark.parametrize(
    ("module", "also"),
    [
        ("p2p", ("pydantic",)),
        ("unstable", ()),
        ("p2p.cli", ("numpy", "pydantic", "av")),
        ("unstable.cli", ()),
        ("p2p.sandbox", ("numpy", "pydantic", "subprocess", "ctypes")),
        ("p2p.agents.judge_worker", ("pydantic", "pydantic_ai")),
        ("p2p.training.video.rendering", ("av", "PIL")),
        ("p2p.scheduler.supervisor", ("pydantic",)),
    ],
)
def test_importing_loads_nothing_heavy(module: str, also: tuple[str, ...]) -> None:
    heavy = {*HEAVY, *also}
    code = f"import {module}, sys; print(*sorted(set(sys.modules) & {heavy!r}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert loaded.stdout.split() == []
