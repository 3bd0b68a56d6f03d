"""The index says what the files say."""

from __future__ import annotations

import os
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from processes import wait_until
from small_runs import make_session

from p2p.api.index import SessionIndex, SessionQuery
from p2p.api.state import AppState
from p2p.contracts import StatusData
from p2p.files import save_model
from p2p.records.iteration_record import SessionRecord


def names(index: SessionIndex, **query: object) -> list[str]:
    index.refresh()
    entries, _ = index.find(SessionQuery(**query))  # type: ignore[arg-type]
    return [each.row.session_id for each in entries]


def test_index_follows_changed_files(tmp_path: Path) -> None:
    index = SessionIndex(tmp_path)
    assert names(index) == []
    make_session(tmp_path, "session_a")
    (tmp_path / "no_session").mkdir()
    assert names(index) == ["session_a"]
    record = SessionRecord(tmp_path / "session_a")
    record.update_metadata(alias="x")
    assert names(index, q="x") == ["session_a"]
    record.set_status("error", "it broke")
    assert names(index, status="error") == ["session_a"]
    shutil.rmtree(record.path)
    assert names(index) == []


def test_newest_with_finds_newest_session_of_run(tmp_path: Path) -> None:
    old = make_session(tmp_path, "session_a")
    make_session(tmp_path, "session_b")
    (old.iteration(2).path / "fast_seed_1").mkdir(parents=True)
    index = SessionIndex(tmp_path)
    index.refresh()
    assert index.newest_with("base_seed_1") == index.newest_with("iter_1") == ["session_b"]
    assert index.newest_with("fast_seed_1") == index.newest_with("iter_2") == ["session_a"]
    assert index.newest_with("nothing") == []
    SessionRecord(tmp_path / "session_b").update_metadata(deleted_at=datetime.now(UTC))
    index.refresh()
    assert index.newest_with("base_seed_1") == ["session_a"]
    shutil.rmtree(old.path)
    index.refresh()
    assert index.newest_with("base_seed_1") == []


def test_index_sorts_and_counts_pages(tmp_path: Path) -> None:
    for number, score in enumerate((0.2, 0.9, 0.5)):
        make_session(tmp_path, f"session_{number}", score=score)
    make_session(tmp_path / "bm_0a", "case7", prompt="a case")
    index = SessionIndex(tmp_path)
    assert names(index, sort="best_score")[:2] == ["session_1", "bm_0a_case7"]
    assert names(index, sort="best_score", order="asc")[0] == "session_0"
    rows, total = index.find(SessionQuery(limit=2, offset=3))
    assert (len(rows), total) == (1, 4)
    assert names(index, q="a case") == ["bm_0a_case7"]
    assert names(index, cases=True) == ["bm_0a_case7"]
    assert set(names(index, cases=False)) == set(names(index)) - {"bm_0a_case7"}


def test_index_marks_session_of_dead_process_stale(tmp_path: Path) -> None:
    record = make_session(tmp_path, "session_a")
    record.set_status("running")
    index = SessionIndex(tmp_path)
    assert names(index, status="running") == ["session_a"]
    long_ago = StatusData(
        status="running", updated_at=datetime(2020, 1, 1, tzinfo=UTC), pid=2**22, pid_started=0.0
    )
    save_model(record.status_path, long_ago)
    os.utime(record.status_path, (0, 0))
    assert names(index, status="running") == []
    assert names(index, status="stale") == ["session_a"]


def test_index_recovers_after_unreadable_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = AppState(tmp_path, tmp_path / "outputs")
    state.open()
    refused = threading.Event()

    def refuse(_: Path) -> None:
        refused.set()
        raise PermissionError(13, "not now")

    try:
        with monkeypatch.context() as patch:
            patch.setattr("p2p.api.index.session_folders", refuse)
            assert refused.wait(30)
        make_session(tmp_path, "session_a")
        wait_until(lambda: state.index.find(SessionQuery())[1] == 1, 30)
    finally:
        state.close()
