"""A run that names its nodes, in the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs_for_tests import job_of, saying, with_slots

from p2p.scheduler.records import NodeConfig
from p2p.scheduler.store import StoreError
from p2p.scheduler.writer import Writer


def test_it_goes_there_and_the_rest_of_its_job_where_the_job_may(tmp_path: Path) -> None:
    store = with_slots(tmp_path, 2)
    store.add_node(NodeConfig(node_id="other", cores=2))
    runs = [saying("case"), saying("gate", nodes=("local",))]
    store.submit(job_of("job", runs, nodes=("other",)))
    writer = Writer(store)
    writer.take_jobs()
    assert {run.run_id: run.node_id for run in writer.assign()} == {
        "case": "other",
        "gate": "local",
    }
    writer.close()
    store.close()


def test_a_node_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    store = with_slots(tmp_path, 1)
    with pytest.raises(StoreError, match="there is no node mars, only local"):
        store.submit(job_of("job", [saying("gate", nodes=("mars",))]))
    assert store.job("job") is None
    store.close()
