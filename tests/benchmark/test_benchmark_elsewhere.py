"""The same benchmark on this machine and on another one: the same files."""

from __future__ import annotations

import json
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from benchmark_process import SMALL, Start, ended, events
from ssh_server import WHY_NOT, SSHServer

from p2p.scheduler.records import NodeConfig
from p2p.scheduler.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

SUITE = """env_id,instruction,category,difficulty,truth,threshold
InvertedPendulum-v5,balance,balance,easy,balanced,0.95
InvertedPendulum-v5,xyzzy,x,hard,balanced_swings,4
"""
PASSING = re.compile(r"\.lock$|/work/|/streaming_judgments/|executor\.log$")
"""Locks and logs; and early judgements, for which nobody waits."""


def files(folder: Path) -> set[str]:
    """Names of the results; those of TensorBoard without the time and the process in them."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {
        re.sub(r"(events\.out\.tfevents)\..*", r"\1", name)
        for name in names
        if not PASSING.search(name)
    }


def results(report: dict[str, Any]) -> list[Any]:
    return [
        (case["outcome"], case["score"], case["truth"] and case["truth"]["values"])
        for case in report["cases"]
    ]


def test_over_ssh_a_staged_benchmark_gives_what_it_gives_here(start: Start, tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").write_text(SUITE)
    staged = ("--mode", "staged", "--num-stages", "2", "--gate-threshold", "0")
    server = SSHServer(tmp_path / "ssh")
    server.start()
    with closing(Store(tmp_path / "runs")) as store:
        store.add_node(
            NodeConfig(
                node_id="other",
                backend="ssh",
                cores=1,
                host=server.address,
                port=server.port,
                base_dir=str(server.base_dir),
                python=sys.executable,
                key_file=str(server.user_key),
                known_hosts=str(server.known_hosts),
            )
        )
    reports, folders = {}, {}
    try:
        for backend in ("local", "ssh"):
            command = ("--csv", "tiny.csv", *SMALL, *staged, "--backend", backend, "--json")
            status, out, err = ended(start(*command))
            assert status == 3, err
            reports[backend] = json.loads(out)
            folders[backend] = tmp_path / "runs" / reports[backend]["benchmark"]["benchmark_id"]
        with closing(Store(tmp_path / "runs")) as store:
            places = {
                re.sub(r"^bm_.*_", "", run.run_id): run.node_id
                for run in store.runs(folders["ssh"].name)
            }
    finally:
        server.stop()
    assert places == {"case0": "other", "gate0": "local", "case1": "other"}
    assert results(reports["ssh"]) == results(reports["local"])
    assert files(folders["ssh"]) == files(folders["local"])
    assert events(folders["ssh"], 0).count("session.started") == 1
