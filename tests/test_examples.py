"""The scripts of examples/, as the documents run them; their own page shows the same output.

Those of self-play are tested in tests/unstable/test_unstable_package.py, and
examples/first_policy.py in tests/test_docs.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from model_servers import CANARY, ModelServer
from played_by_builtin import played_by_builtin

from p2p.config import EnvOptions
from p2p.training.reward_runner import decide_batched
from p2p.training.vec_env import make_batched_env

ROOT = Path(__file__).parents[1]
EXAMPLES, TUTORIALS = ROOT / "examples", ROOT / "docs" / "tutorials"


def run_example(name: str, folder: Path, *words: str, **environment: str) -> str:
    """What a script prints, in a folder of its own."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *words],
        cwd=folder, capture_output=True, text=True, check=False, timeout=900,
        env={
            **os.environ, "PYTHONPATH": str(ROOT / "src"), "MUJOCO_GL": "off",
            "RUNS_DIR": str(folder / "runs"), **environment,
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def shape(output: str) -> list[str]:
    """The lines without what differs from run to run: numbers, folders, order."""
    plain = re.sub(r"\S*/?runs/session_\w+", "RUNS", output)
    return sorted(re.sub(r"-?\d[\d,.e-]*", "N", line).strip() for line in plain.splitlines())


def shown(name: str) -> list[str]:
    """The output that the example's page shows."""
    page = (TUTORIALS / f"{name}.md").read_text()
    block = re.search(
        rf"^\$ python examples/{name}\.py[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    assert block, name
    return shape(block[1])


def test_every_example_has_a_page_that_links_to_it() -> None:
    pages = "".join(page.read_text() for page in TUTORIALS.parent.rglob("*.md"))
    for script in EXAMPLES.glob("*.py"):
        assert f"../examples/{script.name})" in pages, script.name


def test_the_reward_of_the_page_is_that_of_the_example() -> None:
    page = (TUTORIALS / "own_reward.md").read_text()
    assert (EXAMPLES / "rewards" / "walk.py").read_text() in page


CELLS = """
import ast, json, linecache, sys

for number, cell in enumerate(json.load(open(sys.argv[1]))["cells"]):
    if cell["cell_type"] == "code":
        code, name = "".join(cell["source"]), f"cell {number}"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        *body, last = ast.parse(code).body
        exec(compile(ast.Module(body, []), name, "exec"))
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"))
            print(getattr(value, "_repr_html_", value.__repr__)()[:2000])
        else:
            exec(compile(ast.Module([last], []), name, "exec"))
"""
"""A notebook's cells as its kernel runs them, which is not needed for that."""


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text(CELLS)
    notebook = str(EXAMPLES / "first_policy.ipynb")
    output = run_example(str(tmp_path / "cells.py"), tmp_path, notebook)
    for part in (
        "hinge_angle",
        "balance the pole",
        "<th>asked</th>",
        "Keeps the pole upright",
        "True",
    ):
        assert part in output
    assert "Training run" in output


@pytest.mark.slow
def test_the_reward_for_cart_poles_is_called_once_per_batch() -> None:
    env = make_batched_env(EnvOptions("InvertedPendulum-v5", side_info=True), 4)
    code = (EXAMPLES / "rewards" / "balance.py").read_text()
    assert decide_batched(code, env, side_info=True) == (True, "")
    env.close()


def run_alone(name: str, folder: Path) -> str:
    """What a script prints, with cores and a scheduler of its own."""
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    return run_example(name, folder, P2P_CORE_LOCKS=str(runtime))


@pytest.mark.parametrize("name", ["own_reward", "own_environment"])
def test_an_example_prints_what_its_page_shows(name: str, tmp_path: Path) -> None:
    assert shape(run_alone(f"{name}.py", tmp_path)) == shown(name)


@pytest.mark.slow
def test_the_example_of_jobs_compares_what_it_submitted(tmp_path: Path) -> None:
    lines = [*["learning rate N: return N"] * 3, *["learning rate N: succeeded"] * 3]
    assert shape(run_alone("cluster.py", tmp_path)) == lines


@pytest.mark.slow
def test_a_live_model_writes_reward_and_judge_within_its_budget(tmp_path: Path) -> None:
    with ModelServer(played_by_builtin) as server:
        environment = server.environment("anthropic")
        output = run_example(
            "live_model.py", tmp_path, "anthropic:claude-sonnet-5-5", **environment
        )
        asked = len(server.requests)
    assert asked > 3
    assert shape(output) == shown("live_model")
    assert CANARY not in output
    kept = (path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file())
    assert not any(CANARY.encode() in data for data in kept)
