"""The session's own files."""

from __future__ import annotations

import re
import threading

import pytest

from p2p.contracts import EntityMetadata
from p2p.records.iteration_record import SessionRecord
from p2p.session.session_id import is_session_id, new_session_id


def test_a_session_id_has_its_form_and_is_new_each_time():
    ids = {new_session_id() for _ in range(100)}
    assert len(ids) == 100
    for session_id in ids:
        assert re.fullmatch(r"session_\d{8}_\d{6}_[0-9a-f]{8}", session_id)
        assert is_session_id(session_id)


@pytest.mark.parametrize("bad", ["", "session_", "session_20260101_000000_0123abcd\n", "../x"])
def test_other_text_is_no_session_id(bad):
    assert not is_session_id(bad)


def test_history_and_analysis_read_back_and_broken_ones_are_none(tmp_path):
    session = SessionRecord(tmp_path / "session_x")
    assert session.session_id == "session_x"
    assert session.read_history() is None
    session.save_history({"iterations": [1]})
    session.save_analysis({"text": "ä"})
    assert session.read_history() == {"iterations": [1]}
    assert session.read_analysis() == {"text": "ä"}
    session.history_path.write_text('{"iterations": [')
    session.analysis_path.write_text("[]")
    assert session.read_history() is None
    assert session.read_analysis() is None
    assert [p.split(":")[0] for p in session.validate()] == [
        "status.json", "loop_history.json", "analysis.json",
    ]  # fmt: skip


def test_metadata_is_changed_piece_by_piece(tmp_path):
    session = SessionRecord(tmp_path)
    assert session.read_metadata() == EntityMetadata()
    session.update_metadata(alias="a")
    assert session.update_metadata(tags=["x"]) == EntityMetadata(alias="a", tags=("x",))
    assert session.read_metadata() == EntityMetadata(alias="a", tags=("x",))
    with pytest.raises(ValueError, match="colour"):
        session.update_metadata(colour="red")
    assert session.read_metadata().alias == "a"


def test_unreadable_metadata_is_kept_when_it_is_replaced(tmp_path):
    session = SessionRecord(tmp_path)
    session.metadata_path.write_text("torn {")
    assert session.read_metadata() == EntityMetadata()
    session.update_metadata(starred=True)
    assert session.read_metadata().starred
    assert (tmp_path / "metadata.unreadable").read_text() == "torn {"


def test_changes_from_many_sides_are_all_kept(tmp_path):
    session = SessionRecord(tmp_path)
    changes = [{"alias": "a"}, {"starred": True}, {"tags": ["t"]}] * 3
    threads = [threading.Thread(target=session.update_metadata, kwargs=c) for c in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.read_metadata() == EntityMetadata(alias="a", starred=True, tags=("t",))
