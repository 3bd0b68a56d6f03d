"""The index says what the files say."""

from __future__ import annotations

import shutil
from pathlib import Path

from small_runs import make_session

from p2p.api.index import SessionIndex, Wanted
from p2p.session.iteration_record import SessionRecord


def names(index: SessionIndex, **wanted: object) -> list[str]:
    index.refresh()
    rows, _ = index.find(Wanted(**wanted))  # type: ignore[arg-type]
    return [row.session_id for row in rows]


def test_it_follows_what_happens_to_the_files(tmp_path: Path) -> None:
    index = SessionIndex(tmp_path)
    assert names(index) == []
    make_session(tmp_path, "session_a")
    (tmp_path / "no_session").mkdir()
    assert names(index) == ["session_a"]
    record = SessionRecord(tmp_path / "session_a")
    record.update_metadata(alias="x")
    assert names(index, text="x") == ["session_a"]
    record.set_status("error", "it broke")
    assert names(index, status="error") == ["session_a"]
    shutil.rmtree(record.path)
    assert names(index) == []


def test_a_missing_or_broken_index_is_made_anew(tmp_path: Path) -> None:
    make_session(tmp_path, "session_a")
    first = SessionIndex(tmp_path)
    assert names(first) == ["session_a"]
    first.close()
    first.path.write_bytes(b"this is no database at all" * 100)
    second = SessionIndex(tmp_path)
    assert names(second) == ["session_a"]
    second.close()
    second.path.unlink()
    assert names(SessionIndex(tmp_path)) == ["session_a"]


def test_pages_are_sorted_and_counted(tmp_path: Path) -> None:
    for number, score in enumerate((0.2, 0.9, 0.5)):
        make_session(tmp_path, f"session_{number}", score=score)
    make_session(tmp_path / "bm_0a", "case7", prompt="a case")
    index = SessionIndex(tmp_path)
    assert names(index, sort="best_score")[:2] == ["session_1", "bm_0a_case7"]
    assert names(index, sort="best_score", descending=False)[0] == "session_0"
    rows, total = index.find(Wanted(limit=2, offset=3))
    assert (len(rows), total) == (1, 4)
    assert names(index, text="a case") == ["bm_0a_case7"]


def test_a_session_whose_process_is_gone_does_not_stay_running(tmp_path: Path) -> None:
    record = make_session(tmp_path, "session_a")
    record.set_status("running")
    index = SessionIndex(tmp_path)
    assert names(index, status="running") == ["session_a"]
    text = record.status_path.read_text()
    pid = record.read_status().pid  # type: ignore[union-attr]
    record.status_path.write_text(text.replace(f'"pid": {pid}', '"pid": 4194304'))
    import os

    old = (1_000_000_000, 1_000_000_000)
    record.status_path.write_text(
        record.status_path.read_text().replace("2026", "2020").replace("2027", "2020")
    )
    os.utime(record.status_path, old)
    assert names(index, status="running") == []
    assert names(index, status="stale") == ["session_a"]
