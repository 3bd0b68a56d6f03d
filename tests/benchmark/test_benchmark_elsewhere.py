"""The same benchmark on this machine and elsewhere: one flag differs, and no file."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from benchmark_process import SMALL, begin, ended, events
from other_places import PLACES

from p2p.scheduler.store import Store

pytestmark = pytest.mark.slow

SUITE = """env_id,instruction,category,difficulty,truth,threshold
InvertedPendulum-v5,balance,balance,easy,balanced,0.95
InvertedPendulum-v5,xyzzy,x,hard,balanced_swings,4
"""
STAGED = ("--mode", "staged", "--num-stages", "2", "--gate-threshold", "0")
PASSING = re.compile(r"\.lock$|/work/|/streaming_judgments/|executor\.log$")
"""Locks and logs; and early judgements, for which nobody waits."""


class Done(NamedTuple):
    """A benchmark that ended."""

    folder: Path
    report: dict[str, Any]

    def files(self) -> set[str]:
        """Names of the results, without times, processes and the order of what is asked at once."""
        names = (
            str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()
        )
        return {
            re.sub(r"/llm/\d+_", "/llm/", re.sub(r"(\.tfevents)\..*", r"\1", name))
            for name in names
            if not PASSING.search(name)
        }

    def results(self) -> list[Any]:
        return [
            (case["outcome"], case["score"], case["truth"] and case["truth"]["values"])
            for case in self.report["cases"]
        ]


def benchmark_on(backend: str, folder: Path, **variables: str) -> Done:
    (folder / "tiny.csv").write_text(SUITE)
    command = ("--csv", "tiny.csv", *SMALL, *STAGED, "--backend", backend, "--json")
    status, out, err = ended(begin(folder, *command, **variables))
    assert status == 3, err  # one sentence is beyond the author
    report = json.loads(out)
    return Done(folder / "runs" / report["benchmark"]["benchmark_id"], report)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return benchmark_on("local", tmp_path_factory.mktemp("here"))


@pytest.mark.parametrize("backend", PLACES)
def test_elsewhere_a_staged_benchmark_gives_what_it_gives_here(
    here: Done, tmp_path: Path, backend: str
) -> None:
    with PLACES[backend](tmp_path) as place:
        with closing(Store(tmp_path / "runs")) as store:
            store.add_node(place.node)
        there = benchmark_on(backend, tmp_path, **place.variables)
        with closing(Store(tmp_path / "runs")) as store:
            runs = store.runs(there.folder.name)
    places = {re.sub(r"^bm_.*_", "", run.run_id): run.node_id for run in runs}
    assert places == {"case0": "other", "gate0": "local", "case1": "other"}
    assert [run.attempt for run in runs] == [1, 1, 1]
    assert there.results() == here.results()
    assert there.files() == here.files()
    assert len(here.files()) > 50
    assert events(there.folder, 0).count("session.started") == 1
