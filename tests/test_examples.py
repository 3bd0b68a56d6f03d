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
from typing import Any

import nbformat
import pytest
from model_servers import CANARY, ModelServer
from nbclient import NotebookClient
from nbformat import NotebookNode
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


class WatchedNotebook(NotebookClient):
    """Runs a notebook in a real kernel, and keeps every picture of its progress."""

    redrawn: list[str]

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        if msg["msg_type"] == "update_display_data":
            self.redrawn.append(msg["content"]["data"]["text/html"])
        return super().process_message(msg, cell, cell_index)


def test_notebook_runs_in_a_kernel_with_progress(tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLES / "first_policy.ipynb", as_version=4)
    client = WatchedNotebook(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.redrawn = []
    (tmp_path / "cores").mkdir(mode=0o700)
    own = {"P2P_RUNS_DIR": "runs", "P2P_CORE_LOCKS": "cores", "IPYTHONDIR": "ipython"}
    client.execute(env=os.environ | {name: str(tmp_path / own[name]) for name in own})
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    text = " ".join("".join(output.get("text", "") for output in outputs).split())
    shown = [o.data["text/html"] for o in outputs if "text/html" in o.get("data", ())]
    environment, region, session, region_of_run, run = shown
    assert "hinge_angle" in environment
    for part in ("balance the pole", "<th>asked</th>", "Keeps the pole upright", "<video", "<svg"):
        assert part in session
    assert "Training run" in run
    assert "required criteria met" in text
    assert (region, region_of_run) == ("", "")  # taken away at the end
    assert any("of 40k" in picture and "━" in picture for picture in client.redrawn)


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
