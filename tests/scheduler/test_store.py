"""The store: one winner for every change, nothing lost, nothing hostile taken in."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs_for_tests import job_of, plain_job, saying, the_run, with_slots
from pydantic import ValidationError

from p2p.scheduler.job_files import Exporter, manifest_path
from p2p.scheduler.records import ENDED, JobSpec, NodeConfig, RunRow, RunSpec
from p2p.scheduler.store import Store, StoreError
from p2p.scheduler.writer import NotOurRun, Writer

HOSTILE = [
    "-oProxyCommand=touch /tmp/x", "a; rm -rf ~", "..", "../up", "a/../../b", "$(reboot)",
    "knoten-é", "a\nb", "a\x00b", "", " ", "x" * 10_000,
]  # fmt: skip


def states(store: Store, job_id: str) -> list[str]:
    return [run.state for run in store.runs(job_id)]


def scheduling(runs_dir: Path, slots: int, job: JobSpec) -> tuple[Store, Writer]:
    """A store with a job, and the scheduler that has taken it."""
    store = with_slots(runs_dir, slots)
    store.submit(job)
    writer = Writer(Store(runs_dir))
    writer.take_jobs()
    return store, writer


def test_submit_refuses_taken_names_as_a_whole(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.submit(plain_job("j", 2))
    with pytest.raises(StoreError, match="job j exists already"):
        store.submit(plain_job("j", 1))
    with pytest.raises(StoreError, match="run j-1 is there already, in another job"):
        store.submit(job_of("other", [saying("x"), saying("j-1")]))
    with pytest.raises(StoreError, match="unknown node there; known: local"):
        store.submit(plain_job("k", 1, nodes=("there",)))
    assert [job.job_id for job in store.jobs()] == ["j"]
    assert len(store.runs()) == 2


def test_run_is_assigned_by_one_scheduler_only(tmp_path: Path) -> None:
    with_slots(tmp_path, 64).submit(plain_job("j", 64))
    given_out: list[list[RunRow]] = []

    def schedule() -> None:
        writer = Writer(Store(tmp_path))
        writer.take_jobs()
        given_out.append(writer.assign())

    threads = [threading.Thread(target=schedule) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(runs) for runs in given_out) == [0, 0, 0, 64]


def test_two_schedulers_never_overbook_a_node(
    tmp_path: Path,
) -> None:
    store = with_slots(tmp_path, 3)
    writers = []
    for name in ("a", "b"):
        store.submit(plain_job(name, 5))
        writers.append(Writer(Store(tmp_path)))
        writers[-1].take_jobs(name)
    assert [len(writer.assign()) for writer in writers] == [3, 0]
    run = writers[0].live_runs()[0]
    writers[0].finish(run, "succeeded")
    assert [run.job_id for run in writers[1].assign()] == ["b"]


def test_jobs_of_killed_scheduler_are_taken_over(tmp_path: Path) -> None:
    with_slots(tmp_path, 2).submit(plain_job("j", 2))
    program = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from p2p.scheduler.store import Store\nfrom p2p.scheduler.writer import Writer\n"
        "writer = Writer(Store(Path(sys.argv[1]))); writer.take_jobs()\n"
        "assert len(writer.assign()) == 2\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -9
    writer = Writer(Store(tmp_path))
    writer.take_jobs()
    assert {run.state for run in writer.live_runs()} == {"starting"}
    assert len(writer.live_runs()) == 2


def test_scheduler_keeps_its_jobs_until_its_lock_is_free(tmp_path: Path) -> None:
    store = with_slots(tmp_path, 2)
    store.submit(plain_job("j", 2))
    first, second = Writer(Store(tmp_path)), Writer(Store(tmp_path))
    first.take_jobs()
    second.take_jobs()
    assert second.assign() == []
    (run, _) = first.assign()
    first._held.close()  # as when its process is killed
    second.take_jobs()
    assert len(second.live_runs()) == 2
    for act in (first.mark_running, lambda run: first.finish(run, "failed")):
        with pytest.raises(NotOurRun):
            act(run)
    second.finish(run, "succeeded")
    assert states(store, "j") == ["succeeded", "starting"]


def test_old_attempt_cannot_end_a_new_one(tmp_path: Path) -> None:
    store, writer = scheduling(tmp_path, 1, plain_job("j", 1))
    (first,) = writer.assign()
    writer.try_again(first, "lost")
    (second,) = writer.assign()
    assert (first.launch_id, second.launch_id) == ("j-0.1", "j-0.2")
    with pytest.raises(NotOurRun):
        writer.finish(first, "failed")
    writer.finish(second, "succeeded")
    assert states(store, "j") == ["succeeded"]


def test_retry_restores_attempts(tmp_path: Path) -> None:
    store, writer = scheduling(tmp_path, 1, job_of("j", [saying("r", max_attempts=2)]))

    def lose() -> str:
        (run,) = writer.assign()
        writer.try_again(run, "gone")
        return the_run(store, "r").state

    assert [lose(), lose()] == ["pending", "failed"]
    assert store.retry("j") == 1
    writer.take_jobs()
    assert [lose(), lose()] == ["pending", "failed"]
    assert the_run(store, "r").message == "gone (attempt 4, the last)"


def test_cancel_stands_in_every_state(tmp_path: Path) -> None:
    """Whatever a scheduler does between two of its steps, the wish is still there after it."""
    moments = ("pending", "starting", "running", "lost")
    for moment in moments:
        store, writer = scheduling(tmp_path / moment, 1, job_of("j", [saying("r")]))
        if moment == "pending":
            store.cancel("j")
            assert writer.assign() == []
            assert states(store, "j") == ["cancelled"]
            continue
        (run,) = writer.assign()
        if moment == "starting":
            store.cancel("j")
        writer.mark_running(run)
        if moment in ("running", "lost"):
            store.cancel("j")
        writer.note(run, "something")
        assert [run.cancel_requested for run in writer.live_runs()] == [True]
        writer.try_again(run, "lost")
        assert states(store, "j") == ["cancelled"]


def test_dependent_runs_start_or_are_skipped(
    tmp_path: Path,
) -> None:
    runs = [
        saying("a"),
        saying("b"),
        saying("gate", after=("a", "b")),
        saying("next", requires=("gate",)),
        saying("last", requires=("next",)),
        saying("report", after=("last", "next")),
    ]
    store, writer = scheduling(tmp_path, 8, job_of("j", runs))
    a, b = writer.assign()
    writer.finish(a, "failed")
    assert writer.assign() == []
    writer.finish(b, "succeeded")
    (gate,) = writer.assign()
    writer.finish(gate, "failed")
    (report,) = writer.assign()
    writer.finish(report, "succeeded")
    assert states(store, "j") == [
        "failed", "succeeded", "failed", "skipped", "skipped", "succeeded",
    ]  # fmt: skip
    assert the_run(store, "last").message == "it needs next, which is skipped"
    assert store.retry("j", ["gate"]) == 3
    assert states(store, "j") == [
        "failed", "succeeded", "pending", "pending", "pending", "succeeded",
    ]  # fmt: skip
    writer.take_jobs()
    assert [run.run_id for run in writer.assign()] == ["gate"]


def test_retry_without_its_need_is_skipped_again(tmp_path: Path) -> None:
    store = with_slots(tmp_path, 8)
    store.submit(job_of("j", [saying("a"), saying("b", requires=("a",))]))
    store.cancel("j", ["a"])
    assert states(store, "j") == ["cancelled", "skipped"]
    store.retry("j", ["b"])
    assert states(store, "j") == ["cancelled", "skipped"]
    store.retry("j")
    assert states(store, "j") == ["pending", "pending"]


def test_remove_node_needs_give_up_for_live_runs(tmp_path: Path) -> None:
    store, writer = scheduling(tmp_path, 1, plain_job("j", 1))
    writer.assign()
    with pytest.raises(StoreError, match="1 runs are on node local, such as j-0"):
        store.remove_node("local")
    assert store.remove_node("local", give_up=True) == ["j-0"]
    assert states(store, "j") == ["failed"]


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_store_counters_match_its_rows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The numbers that triggers keep are those that counting gives, whatever happens."""
    folder = tmp_path_factory.mktemp("store")
    store = with_slots(folder, 3)
    writer = Writer(Store(folder))
    runs: list[RunSpec] = []
    for n in range(data.draw(st.integers(1, 5))):
        earlier = st.lists(st.sampled_from([run.run_id for run in runs] or ["-"]), max_size=2)
        after, requires = (data.draw(earlier) if runs else [] for _ in range(2))
        runs.append(saying(f"r{n}", after=tuple(after), requires=tuple(requires), max_attempts=2))
    store.submit(job_of("j", runs))
    for _ in range(data.draw(st.integers(1, 12))):
        writer.take_jobs()
        act = data.draw(st.sampled_from(["assign", "succeed", "fail", "lose", "cancel", "retry"]))
        on_nodes = writer.live_runs()
        name = data.draw(st.sampled_from([run.run_id for run in runs]))
        if act == "assign":
            writer.assign()
        elif act == "cancel":
            store.cancel("j", [name])
        elif act == "retry":
            store.retry("j", [name])
        elif on_nodes:
            run = data.draw(st.sampled_from(on_nodes))
            if act == "lose":
                writer.try_again(run, "lost")
            else:
                writer.finish(run, "succeeded" if act == "succeed" else "failed")
        found = {run.run_id: run for run in store.runs("j")}
        (ready, unended) = store.connection.execute("SELECT ready, unended FROM jobs").fetchone()
        assert unended == sum(run.state not in ENDED for run in found.values())
        startable = [
            spec.run_id
            for spec in runs
            if found[spec.run_id].state == "pending"
            and all(found[name].state in ENDED for name in spec.after)
            and all(found[name].state == "succeeded" for name in spec.requires)
        ]
        assert ready == len(startable)
        live = sum(run.state in ("starting", "running") for run in found.values())
        assert live <= 3
        query = "SELECT live, used_cores FROM jobs UNION ALL SELECT live, used_cores FROM nodes"
        assert set(store.connection.execute(query).fetchall()) == {(live, live)}
    writer.close()
    store.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(name: str) -> None:
    for field in ("node_id", "host", "user", "base_dir", "python", "key_file", "partition"):
        given_fields = {"node_id": "n", "cores": 1, field: name}
        with pytest.raises(ValidationError, match=field):
            NodeConfig.model_validate(given_fields)
    for field in ("run_id", "folder", "after", "secrets"):
        value = (name,) if field in ("after", "secrets") else name
        given_fields = {"run_id": "r", "folder": "r", "command": ("x",), field: value}
        with pytest.raises(ValidationError, match=field):
            RunSpec.model_validate(given_fields)
    with pytest.raises(ValidationError, match="job_id"):
        plain_job(name, 0)


def test_run_may_not_use_scheduler_folder() -> None:
    with pytest.raises(ValidationError, match="the scheduler's own"):
        saying("r", folder="scheduler/jobs")


def test_manifest_shows_state_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-1234")
    store = with_slots(tmp_path, 4)
    store.submit(job_of("j", [saying("r", secrets=("OPENAI_API_KEY",))]))
    exporter = Exporter(store)
    exporter.export()
    store.cancel("j")
    exporter.export(everything=True)
    found = json.loads(manifest_path(store, "j").read_text())
    assert (found["status"], found["runs"][0]["state"]) == ("cancelled", "cancelled")
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for path in store.folder.rglob("*"):
        assert not path.is_file() or b"sk-very-secret" not in path.read_bytes()


def test_store_names_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "scheduler.sqlite").write_text("not a database, not at all" * 100)
    with pytest.raises(StoreError, match=r"scheduler\.sqlite cannot be used"):
        Store(tmp_path)


def test_store_refuses_database_of_another_version(tmp_path: Path) -> None:
    path = Store(tmp_path).path
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="another version"):
        Store(tmp_path)


def test_run_nodes_count_before_job_nodes(
    tmp_path: Path,
) -> None:
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
