"""The package as it is sent to other machines."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import p2p
from p2p.scheduler.node_agent import missing_packages
from p2p.scheduler.node_bootstrap import lengths, unpack
from p2p.scheduler.package_wheel import build_wheel


def test_the_same_files_give_the_same_wheel() -> None:
    first = build_wheel()
    build_wheel.cache_clear()
    again = build_wheel()
    assert again.data == first.data
    assert first.digest == hashlib.sha256(first.data).hexdigest()[:32]


def test_it_has_every_file_of_both_packages_and_nothing_else() -> None:
    with zipfile.ZipFile(io.BytesIO(build_wheel().data)) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA")))
    source = Path(p2p.__file__).parent
    ours = {
        f"p2p/{path.relative_to(source)}"
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert ours <= names
    assert {"p2p/py.typed", "unstable/__init__.py"} <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "p2p", "unstable", "prompt2policy"
    }  # fmt: skip
    assert b"Name: prompt2policy" in metadata


def test_pip_takes_it_for_a_wheel(tmp_path: Path) -> None:
    wheel = build_wheel()
    (tmp_path / wheel.name).write_bytes(wheel.data)
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
        "--no-compile", "--disable-pip-version-check", "--root-user-action=ignore",
        "--target", str(tmp_path / "there"), str(tmp_path / wheel.name),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    assert (tmp_path / "there" / "p2p" / "py.typed").exists()


def test_what_is_unpacked_runs_and_is_found_there_the_next_time(tmp_path: Path) -> None:
    wheel = build_wheel()
    unpack(tmp_path, wheel.digest, wheel.data)
    unpack(tmp_path, wheel.digest, wheel.data)
    package = tmp_path / "packages" / wheel.digest
    assert list((tmp_path / "packages").iterdir()) == [package]
    code = "import p2p.scheduler.attend as a; print(a.__file__)"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(package)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert said.stdout.strip() == str(package / "p2p" / "scheduler" / "attend.py")


def test_a_wheel_that_was_damaged_on_its_way_is_refused(tmp_path: Path) -> None:
    wheel = build_wheel()
    with pytest.raises(ValueError, match="damaged"):
        unpack(tmp_path, wheel.digest, wheel.data[:-1])
    assert not (tmp_path / "packages").exists()


@pytest.mark.parametrize("line", [b"", b"1\n", b"x 1\n", b"-1 2\n", b"1 2 3\n", b"9" * 20 + b" 1"])
def test_what_is_no_message_is_not_taken_for_one(line: bytes) -> None:
    with pytest.raises(ValueError, match="is not the beginning"):
        lengths(line)


def test_a_message_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        lengths(b"10 99999999999\n")


def test_what_a_node_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["numpy>=1", "no-such-thing>=2,<3; python_version > '3'", "absent; extra == 'more'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: needs)
    assert missing_packages() == ["no-such-thing"]
