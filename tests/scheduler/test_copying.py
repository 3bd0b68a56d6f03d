"""What changed in a folder arrives whole, once, and nowhere else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.scheduler import copying
from p2p.scheduler.copying import FileStamp, scan


class Folder:
    """A folder as if it were on another machine; counts what is sent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sent = 0
        self.reads: list[str] = []
        self.pretended: dict[str, FileStamp] = {}

    async def scan(self, held: Mapping[str, FileStamp]) -> dict[str, FileStamp]:
        return {**scan(self.path, held), **self.pretended}

    async def read(self, path: str, offset: int, length: int) -> bytes:
        self.reads.append(path)
        data = copying.read_chunk(self.path / path, offset, length)
        self.sent += len(data)
        return data

    async def put(self, folder: Path, stamps: Mapping[str, FileStamp]) -> None:
        for path, stamp in stamps.items():
            source = self.path.parent / "incoming"
            source.write_bytes((folder / path).read_bytes())
            copying.place(self.path, path, source, stamp.mtime_ns)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    (folder / "iter_1" / "deep").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "iter_1" / "policy.zip").write_bytes(os.urandom(1000))
    (folder / "iter_1" / "deep" / "empty").touch()
    (folder / "events.jsonl").write_text('{"n": 1}\n')
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here"


@pytest.fixture
def in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CHUNK_BYTES", 4000)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(".part.tmp")
    }


def collected(there: Path, here: Path) -> int:
    """Collect; the bytes that were sent."""
    remote = Folder(there)
    asyncio.run(copying.collect(remote, here))
    return remote.sent


def test_a_copy_is_the_same_and_is_not_sent_again(there: Path, here: Path) -> None:
    assert collected(there, here) > 1000
    assert contents(here) == contents(there)
    assert scan(here) == scan(there)
    assert collected(there, here) == 0


def test_a_folder_is_sent_and_only_what_changed_of_it_the_next_time(
    there: Path, here: Path
) -> None:
    asyncio.run(copying.send(Folder(here), there))
    assert scan(here) == scan(there)
    assert collected(here, there) == 0


def test_only_what_changed_is_sent_even_if_it_keeps_its_size(there: Path, here: Path) -> None:
    collected(there, here)
    before = (there / "config.json").stat()
    (there / "config.json").write_text("[]")
    os.utime(there / "config.json", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert collected(there, here) == 2
    assert contents(here) == contents(there)


def test_of_a_log_only_the_new_lines_are_sent_and_a_reader_keeps_its_place(
    there: Path, here: Path
) -> None:
    collected(there, here)
    with (here / "events.jsonl").open() as reader:
        assert reader.read() == '{"n": 1}\n'
        with (there / "events.jsonl").open("a") as stream:
            stream.write('{"n": 2}\n')
        assert collected(there, here) == len('{"n": 2}\n')
        assert reader.read() == '{"n": 2}\n'
    assert collected(there, here) == 0


@pytest.mark.usefixtures("in_chunks")
@pytest.mark.parametrize("name", ["adapter.safetensors", "long.log"])
def test_a_large_file_goes_on_where_it_was_broken_off_and_is_not_there_before_it_is_whole(
    there: Path, here: Path, name: str
) -> None:
    (there / name).write_bytes(os.urandom(10_000))

    class Breaks(Folder):
        async def read(self, path: str, offset: int, length: int) -> bytes:
            if path == name and offset >= 8000:
                raise ConnectionError
            return await super().read(path, offset, length)

    with pytest.raises(ConnectionError):
        asyncio.run(copying.collect(Breaks(there), here))
    assert not (here / name).exists()
    assert collected(there, here) == 2000
    assert contents(here) == contents(there)


@pytest.mark.usefixtures("in_chunks")
def test_a_large_file_that_changes_on_the_way_is_never_a_mixture(there: Path, here: Path) -> None:
    large = there / "adapter.safetensors"
    large.write_bytes(b"a" * 10_000)

    class Changes(Folder):
        async def read(self, path: str, offset: int, length: int) -> bytes:
            if offset == 4000:
                large.write_bytes(b"b" * 10_000)
            return await super().read(path, offset, length)

    asyncio.run(copying.collect(Changes(there), here))
    assert not (here / large.name).exists()
    collected(there, here)
    assert (here / large.name).read_bytes() == b"b" * 10_000


def test_a_file_that_is_replaced_by_a_longer_one_on_the_way_is_not_cut(
    there: Path, here: Path
) -> None:
    remote = Folder(there)
    remote.pretended = {"config.json": FileStamp(1, 1)}
    asyncio.run(copying.collect(remote, here))
    assert not (here / "config.json").exists()
    collected(there, here)
    assert contents(here) == contents(there)


@given(st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=200)), max_size=12))
def test_whatever_happens_to_a_log_the_copy_is_the_log(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]]
) -> None:
    base = tmp_path_factory.mktemp("log")
    there, here = base / "there", base / "here"
    there.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "CHUNK_BYTES", 50)
        for number, (kept, added) in enumerate(changes, 1):
            log = there / "x.log"
            log.write_bytes((log.read_bytes() if log.exists() else b"")[:kept] + added)
            os.utime(log, ns=(number, number))
            collected(there, here)
            assert contents(here) == contents(there)


def test_links_and_special_files_are_neither_followed_nor_copied(
    there: Path, here: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("k-e-y")
    (there / "link").symlink_to(secret / "key")
    (there / "folder").symlink_to(secret)
    os.mkfifo(there / "pipe")
    collected(there, here)
    assert "k-e-y" not in str(contents(here))
    assert [copying.read_chunk(there / name, 0, 9) for name in ("link", "pipe")] == [b"", b""]


HOSTILE = ["../out", "/etc/x", "a/../../out", "", ".", "a//b", "a\nb", "a\0b", "x" * 300, "\udcff"]


def test_hostile_names_are_refused_and_the_others_are_copied(
    there: Path, here: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remote = Folder(there)
    remote.pretended = dict.fromkeys(HOSTILE, FileStamp(2, 1))
    asyncio.run(copying.collect(remote, here))
    assert contents(here) == contents(there)
    assert not set(remote.reads) & set(HOSTILE)
    assert {path.name for path in tmp_path.iterdir()} == {"there", "here"}
    assert caplog.text.count("must not have") == len(HOSTILE)
    for name in HOSTILE:
        with pytest.raises(ValueError, match="must not have"):
            copying.place(here, name, there / "config.json", 1)


def test_nothing_is_written_through_a_link(
    there: Path, here: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "events.jsonl").write_text('{"n"')
    here.mkdir()
    (here / "iter_1").symlink_to(outside)
    (here / "events.jsonl").symlink_to(outside / "events.jsonl")
    collected(there, here)
    assert contents(outside) == {"events.jsonl": b'{"n"'}
    assert (here / "events.jsonl").read_text() == '{"n": 1}\n'
    assert not (here / "events.jsonl").is_symlink()
    assert "iter_1/policy.zip is not copied" in caplog.text


def test_a_folder_in_the_place_of_a_file_keeps_the_rest_from_nothing(
    there: Path, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (here / "config.json").mkdir(parents=True)
    collected(there, here)
    assert set(contents(here)) == set(contents(there)) - {"config.json"}
    assert "config.json is not copied" in caplog.text


def test_temporary_files_and_locks_stay_where_they_are_and_nothing_is_deleted(
    there: Path, here: Path
) -> None:
    for name in ("session.lock", ".config.json.12.tmp"):
        (there / name).touch()
    collected(there, here)
    (there / "config.json").unlink()
    collected(there, here)
    names = set(contents(here))
    assert "config.json" in names
    assert not {"session.lock", ".config.json.12.tmp"} & names


def test_new_feedback_goes_there_once_and_nothing_else_does(there: Path, here: Path) -> None:
    collected(there, here)
    (here / "steering").mkdir()
    (here / "mine.txt").touch()
    for name in ("0001.json", ".lock"):
        (here / "steering" / name).write_text("lower")
    collected(there, here)
    assert (there / "steering" / "0001.json").read_text() == "lower"
    (there / "steering" / "0001.json").write_text("as it was taken")
    collected(there, here)
    assert (here / "steering" / "0001.json").read_text() == "as it was taken"
    assert {path.name for path in (there / "steering").iterdir()} == {"0001.json"}
    assert not (there / "mine.txt").exists()
