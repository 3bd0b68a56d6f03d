"""What changed in a folder arrives whole, once, and nowhere else: by rsync, and in an archive."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from p2p.scheduler import transfer
from p2p.scheduler.transfer import TransferError, read_stamps

Move = Callable[[Path, Path], None]
"""Brings what is new from a folder to another."""


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
def shell(tmp_path: Path) -> str:
    """Logs in to this machine."""
    if not shutil.which("rsync"):
        pytest.skip("there is no rsync")
    script = tmp_path / "shell"
    script.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture(params=["rsync", "archive"])
def move(request: pytest.FixtureRequest, tmp_path: Path) -> Move:
    if request.param == "rsync":
        shell = request.getfixturevalue("shell")
        return lambda there, here: asyncio.run(transfer.collect(shell, f"node:{there}", here))

    def by_archive(there: Path, here: Path) -> None:
        transfer.pack(there, tmp_path / "files.tar", read_stamps(here))
        transfer.unpack(tmp_path / "files.tar", here)

    return by_archive


def contents(folder: Path) -> dict[str, bytes]:
    paths = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths if p.is_file()}


def test_copy_has_content_and_times_and_only_changes_are_sent(
    there: Path, here: Path, move: Move
) -> None:
    move(there, here)
    assert contents(here) == contents(there)
    inodes = {path: (here / path).stat().st_ino for path in contents(here)}
    before = (there / "config.json").stat()
    (there / "config.json").write_text("[]")  # of the same size
    os.utime(there / "config.json", ns=(0, before.st_mtime_ns + 1_000_000))
    (there / "events.jsonl").open("a").write('{"n": 2}\n')
    (there / "iter_1" / "policy.zip").rename(there / "elsewhere")
    move(there, here)
    assert {**contents(there), "iter_1/policy.zip": contents(here)["elsewhere"]} == contents(here)
    kept = {path for path, inode in inodes.items() if (here / path).stat().st_ino == inode}
    assert kept == {"iter_1/policy.zip", "iter_1/deep/empty"}


def test_links_special_files_and_temporary_ones_are_not_copied(
    there: Path, here: Path, move: Move, tmp_path: Path
) -> None:
    whole = contents(there)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("k-e-y")
    (there / "link").symlink_to(secret / "key")
    (there / "folder").symlink_to(secret)
    os.mkfifo(there / "pipe")
    for name in ("session.lock", ".config.json.12.tmp", "wake.sock", "a\nb", "a\x1bb"):
        (there / name).touch()
    if os.geteuid() == 0:
        os.mknod(there / "device", 0o020666, os.makedev(1, 3))
    move(there, here)
    assert contents(here) == whole
    assert not any(path.is_symlink() or path.is_fifo() for path in here.rglob("*"))


def test_nothing_is_written_through_a_link(
    there: Path, here: Path, move: Move, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "events.jsonl").write_text('{"n"')
    here.mkdir()
    (here / "iter_1").symlink_to(outside)
    (here / "events.jsonl").symlink_to(outside / "events.jsonl")
    move(there, here)
    assert contents(outside) == {"events.jsonl": b'{"n"'}
    assert (here / "events.jsonl").read_text() == '{"n": 1}\n'
    assert not (here / "events.jsonl").is_symlink()


def test_folder_in_the_place_of_a_file_stops_no_other(
    there: Path, here: Path, move: Move, caplog: pytest.LogCaptureFixture
) -> None:
    (here / "config.json" / "full").mkdir(parents=True)
    move(there, here)
    assert set(contents(here)) == set(contents(there)) - {"config.json"}
    assert "config.json" in caplog.text


def test_file_above_the_bound_is_left_out(
    there: Path, here: Path, move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (there / "huge").open("wb") as stream:
        stream.truncate(1 << 20)
    monkeypatch.setattr(transfer, "MAX_FILE_BYTES", 1 << 16)
    words = [w if "max-size" not in w else f"--max-size={1 << 16}" for w in transfer.RSYNC]
    monkeypatch.setattr(transfer, "RSYNC", tuple(words))
    move(there, here)
    assert "huge" not in contents(here)


def test_folder_that_is_not_there_brings_nothing(here: Path, shell: str, tmp_path: Path) -> None:
    asyncio.run(transfer.collect(shell, f"node:{tmp_path / 'absent'}", here))
    assert contents(here) == {}


def test_new_feedback_goes_there_once_and_nothing_else_does(
    there: Path, here: Path, shell: str
) -> None:
    (here / "steering").mkdir(parents=True)
    (here / "mine.txt").touch()
    for name in ("0001.json", ".lock"):
        (here / "steering" / name).write_text("lower")
    asyncio.run(transfer.collect(shell, f"node:{there}", here))
    assert [path.name for path in (there / "steering").iterdir()] == ["0001.json"]
    (there / "steering" / "0001.json").write_text("as it was taken")
    asyncio.run(transfer.collect(shell, f"node:{there}", here))
    assert (here / "steering" / "0001.json").read_text() == "as it was taken"
    assert not (there / "mine.txt").exists()


def test_missing_rsync_is_said_with_how_to_install_it(
    here: Path, shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rsync = shutil.which("rsync")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(bin_))
    transfer.check_rsync.cache_clear()
    with pytest.raises(TransferError, match=r"no rsync on this machine: .*apt-get install rsync"):
        transfer.check_rsync()
    monkeypatch.setattr(transfer, "check_rsync", lambda: None)
    monkeypatch.setattr(transfer, "RSYNC", (str(rsync), "--recursive"))
    with pytest.raises(TransferError, match=r"no rsync on the node: .*apt-get install rsync"):
        asyncio.run(transfer.collect(shell, "node:/tmp", here))


HOSTILE = ["../out", "/etc/x", "a/../../out", ".", "a//b", "a\nb", "x" * 300, "\udcff", "x.lock"]


def test_hostile_archive_leads_nowhere(
    here: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = tmp_path / "files.tar"
    with tarfile.open(archive, "w") as tar:
        for name in [*HOSTILE, "good"]:
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"data"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo(f"kind{kind.decode()}")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    transfer.unpack(archive, here)
    assert contents(here) == {"good": b"data"}
    assert len(list(here.rglob("*"))) == 1
    assert caplog.text.count("is not copied") == len(HOSTILE) + 4
    archive.write_bytes(b"not an archive" * 200)
    with pytest.raises(TransferError, match="not an archive"):
        transfer.unpack(archive, here)
