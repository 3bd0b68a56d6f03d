"""What changed in a folder arrives whole, once, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.scheduler import copying
from p2p.scheduler.copying import Answer, Piece, Stamp, copy_folder, pieces, put, scan, wanted


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


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def copied_in_pieces(source: Path, target: Path, limit: int) -> list[Piece]:
    """As `copy_folder` does it, in pieces of this size."""
    sent: list[Piece] = []
    wants = wanted(target, scan(source))
    while wants:
        answer = pieces(source, wants, limit)
        sent += answer.pieces
        put(target, answer)
        wants = copying.still_wanted(target, wants, answer)
    return sent


def test_a_copy_is_the_same_and_is_not_sent_again(there: Path, here: Path) -> None:
    assert copy_folder(there, here) > 1000
    assert contents(here) == contents(there)
    assert scan(here) == scan(there)
    assert wanted(here, scan(there)) == []


def test_only_what_changed_is_sent(there: Path, here: Path) -> None:
    copy_folder(there, here)
    (there / "config.json").write_text('{"new": 1}')
    assert [want.path for want in wanted(here, scan(there))] == ["config.json"]
    assert copy_folder(there, here) == len('{"new": 1}')
    assert contents(here) == contents(there)


def test_a_change_that_keeps_the_size_is_seen(there: Path, here: Path) -> None:
    copy_folder(there, here)
    before = (there / "config.json").stat()
    (there / "config.json").write_text("[]")
    os.utime(there / "config.json", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    copy_folder(there, here)
    assert (here / "config.json").read_text() == "[]"


def test_of_a_log_only_the_new_lines_are_sent_and_a_reader_keeps_its_place(
    there: Path, here: Path
) -> None:
    copy_folder(there, here)
    with (here / "events.jsonl").open() as reader:
        assert reader.read() == '{"n": 1}\n'
        with (there / "events.jsonl").open("a") as stream:
            stream.write('{"n": 2}\n')
        assert copy_folder(there, here) == len('{"n": 2}\n')
        assert reader.read() == '{"n": 2}\n'
    assert wanted(here, scan(there)) == []


def test_a_log_that_was_cut_back_and_grew_again_is_sent_whole(there: Path, here: Path) -> None:
    copy_folder(there, here)
    (there / "events.jsonl").write_text('{"m": 3}\n{"m": 4}\n')
    copy_folder(there, here)
    assert contents(here) == contents(there)
    (there / "events.jsonl").write_text("{}\n")
    copy_folder(there, here)
    assert contents(here) == contents(there)


@pytest.mark.parametrize("name", ["adapter.safetensors", "long.log"])
def test_a_large_file_comes_in_pieces_and_is_not_there_before_it_is_whole(
    there: Path, here: Path, name: str
) -> None:
    (there / name).write_bytes(os.urandom(10_000))
    wants = [want for want in wanted(here, scan(there)) if want.path == name]
    put(here, pieces(there, wants, 4000))
    assert not (here / name).exists()
    # As if everything had been killed here: what has come already does not come again.
    assert sum(len(piece.data) for piece in copied_in_pieces(there, here, 4000)) < 8000
    assert contents(here) == contents(there)


def test_a_large_file_that_changes_on_the_way_is_never_a_mixture(there: Path, here: Path) -> None:
    (there / "adapter.safetensors").write_bytes(b"a" * 10_000)
    wants = [want for want in wanted(here, scan(there)) if want.path.startswith("adapter")]
    put(here, pieces(there, wants, 4000))
    (there / "adapter.safetensors").write_bytes(b"b" * 10_000)
    copied_in_pieces(there, here, 4000)
    assert (here / "adapter.safetensors").read_bytes() == b"b" * 10_000


@given(st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=200)), max_size=12))
def test_whatever_happens_to_a_log_the_copy_is_the_log(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]]
) -> None:
    base = tmp_path_factory.mktemp("log")
    there, here = base / "there", base / "here"
    there.mkdir()
    for number, (kept, added) in enumerate(changes):
        log = there / "x.log"
        log.write_bytes((log.read_bytes() if log.exists() else b"")[:kept] + added)
        os.utime(log, ns=(number, number))
        copied_in_pieces(there, here, 50)
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
    copy_folder(there, here)
    assert "k-e-y" not in str(contents(here))
    names = ["link", "folder/key", "pipe", "../secret/key", str(secret / "key")]
    answer = pieces(there, [copying.Want(name) for name in names])
    assert answer == Answer((), len(names))


HOSTILE = ["../out", "/etc/x", "a/../../out", "", ".", "a//b", "a\nb", "a\0b", "x" * 300, "\udcff"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused_and_the_others_are_copied(
    here: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stamp = Stamp(2, 1)
    assert [want.path for want in wanted(here, {name: stamp, "good": stamp})] == ["good"]
    both = (Piece(name, 0, stamp, b"no"), Piece("good", 0, stamp, b"ok"))
    assert put(here, Answer(both, 2)) == 2
    assert contents(tmp_path) == {"here/good": b"ok"}
    assert "must not have" in caplog.text


def test_nothing_is_written_through_a_link(here: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.log").write_text("abc")
    here.mkdir()
    (here / "way").symlink_to(outside)
    (here / "x.log").symlink_to(outside / "x.log")
    stamp = Stamp(6, 1)
    put(here, Answer((Piece("way/new", 0, stamp, b"abcdef"),), 1))
    put(here, Answer((Piece("x.log", 3, stamp, b"def"),), 1))
    put(here, Answer((Piece("x.log", 0, stamp, b"abcdef"),), 1))
    assert contents(outside) == {"x.log": b"abc"}
    assert (here / "x.log").read_text() == "abcdef"
    assert not (here / "x.log").is_symlink()


def test_a_folder_in_the_place_of_a_file_keeps_the_rest_from_nothing(
    there: Path, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (here / "config.json").mkdir(parents=True)
    copy_folder(there, here)
    assert set(contents(here)) >= set(contents(there)) - {"config.json"}
    assert "config.json is not copied" in caplog.text


def test_an_answer_that_leads_nowhere_does_not_go_on_for_ever(here: Path) -> None:
    wants = [copying.Want("a"), copying.Want("b")]
    endless = Answer((Piece("a", 0, Stamp(10, 1), b""),), 0)
    rounds = 0
    while wants:
        put(here, endless)
        wants = copying.still_wanted(here, wants, endless)
        rounds += 1
    assert rounds == 2


def test_temporary_files_and_locks_stay_where_they_are(there: Path, here: Path) -> None:
    for name in ("session.lock", ".config.json.12.tmp"):
        (there / name).touch()
    copy_folder(there, here)
    assert not {"session.lock", ".config.json.12.tmp"} & set(contents(here))


def test_nothing_here_is_deleted(there: Path, here: Path) -> None:
    copy_folder(there, here)
    (there / "config.json").unlink()
    copy_folder(there, here)
    assert (here / "config.json").exists()


def test_a_folder_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert scan(tmp_path / "nowhere") == {}
