"""Lines come out whole, in either direction, whatever a killed writer left."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p import files


def _lines(*values: object) -> bytes:
    return b"".join(json.dumps(v).encode() + b"\n" for v in values)


def test_a_new_line_never_continues_a_torn_one(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(_lines({"a": 1}) + b'{"a": 2, "b')
    size = files.append_line(path, b'{"a": 3}')
    assert size == path.stat().st_size
    lines, _ = files.read_from(path)
    assert [files.parse_line(line) for line in lines] == [{"a": 1}, None, {"a": 3}]


def test_a_torn_last_line_is_read_when_it_is_complete_and_not_before(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(_lines({"a": 1}) + b'{"a"')
    lines, offset = files.read_from(path)
    assert len(lines) == 1
    with path.open("ab") as stream:
        stream.write(b": 2}\n")
    assert files.read_from(path, offset)[0] == [b'{"a": 2}']


def test_a_replaced_shorter_file_is_read_anew(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(_lines({"a": 1}))
    assert files.read_from(path, offset=1000)[0] == [b'{"a": 1}']


def test_a_line_longer_than_the_chunk_is_read_whole(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(_lines({"a": "z" * 1000}, {"b": 1}))
    lines, offset = files.read_from(path, 0, max_bytes=10)
    while len(lines) < 2:
        more, offset = files.read_from(path, offset, max_bytes=10)
        lines += more
    assert [len(line) for line in lines] == [1009, 8]


def test_an_absent_file_or_a_folder_has_no_lines(tmp_path):
    assert files.read_from(tmp_path / "no") == ([], 0)
    assert files.read_from(tmp_path) == ([], 0)
    assert list(files.lines_backward(tmp_path / "no")) == []
    assert files.last_record(tmp_path) is None


@pytest.mark.parametrize("line", [b"", b"[1]", b"3", b"{", b"\xff", b"[" * 100_000, b'"\\ud8"'])
def test_what_is_not_an_object_is_none(line):
    assert files.parse_line(line) is None


@given(
    st.lists(st.binary(max_size=50).map(lambda b: b.replace(b"\n", b"")).filter(bool), max_size=9),
    st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")),
    st.sampled_from([1, 2, 7, 1 << 14]),
)
def test_backward_is_forward_reversed(tmp_path_factory, lines, torn, block):
    path = tmp_path_factory.mktemp("jsonl") / "x"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + torn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_BLOCK", block)
        assert list(files.lines_backward(path)) == lines[::-1]
        with_torn = list(files.lines_backward(path, unfinished=True))
    assert with_torn == ([torn] if torn else []) + lines[::-1]


def test_the_last_record_of_a_big_file_is_found_without_reading_it_all(tmp_path):
    path = tmp_path / "big"
    with path.open("wb") as stream:
        stream.seek(1 << 33)  # a hole of 8 GiB that no test could read
        stream.write(b"\n" + _lines({"a": 1}) + b"foreign\n[]\ntorn")
    assert files.last_record(path) == {"a": 1}
