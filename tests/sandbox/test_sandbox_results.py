"""What comes out of a sandbox is read without being trusted."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.sandbox import UntrustedResultError, read_arrays, read_result
from p2p.sandbox.results import parse_npz

if TYPE_CHECKING:
    from pathlib import Path

    from sandbox_runner import Runner


def test_arrays_written_inside_are_read_outside(sandbox: Runner) -> None:
    ended = sandbox(
        """
        import numpy as np
        arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(True),
                  "c": np.zeros((0, 4), "i4"),
                  "f": np.asfortranarray(np.arange(6, dtype="f4").reshape(2, 3))}
        np.savez_compressed("compressed.npz", **arrays)
        np.savez("plain.npz", **arrays)
        """
    )
    assert ended.exit.ok, ended.exit
    for name in ("compressed.npz", "plain.npz"):
        arrays = read_arrays(ended.folder, name)
        assert set(arrays) == {"a", "b", "c", "f"}
        np.testing.assert_array_equal(arrays["a"], np.arange(6.0).reshape(2, 3))
        np.testing.assert_array_equal(arrays["f"], np.arange(6, dtype="f4").reshape(2, 3))
        assert arrays["b"].shape == ()
        assert arrays["c"].shape == (0, 4)
        arrays["a"][0, 0] = 5  # the caller owns them


def test_links_and_special_files_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (folder / "symlink").symlink_to(secret)
    (folder / "hard").hardlink_to(secret)
    os.mkfifo(folder / "fifo")
    (folder / "directory").mkdir()
    (folder / "big").write_bytes(bytes(101))
    (folder / "fine").write_bytes(bytes(100))
    messages = {
        "symlink": "symbolic link", "hard": "hard links", "fifo": "not a regular file",
        "directory": "not a regular file", "big": "larger than 100", "missing": "not written",
        "../secret": "plain file name", "": "plain file name", "..": "plain file name",
        "a\0b": "plain file name", "x" * 300: "cannot be opened",
    }  # fmt: skip
    for name, message in messages.items():
        with pytest.raises(UntrustedResultError, match=message):
            read_result(folder, name, 100)
    assert read_result(folder, "fine", 100) == bytes(100)


def test_links_made_without_a_sandbox_are_refused(
    unsafe_local: None, sandbox: Runner, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.npz"
    np.savez(secret, a=np.ones(3))
    sandbox(
        "import os; os.symlink(secret, 'a.npz'); os.link(secret, 'b.npz'); os.mkfifo('c.npz')",
        {"secret": str(secret)},
    )
    for name in ("a.npz", "b.npz", "c.npz"):
        with pytest.raises(UntrustedResultError):
            read_arrays(sandbox.folder, name)


class _Boom:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os._exit, ("99",))


def _npz(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return stream.getvalue()


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def _header(descr: object, shape: object) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f8", "fortran_order": False, "shape": (1,)}
    )
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps(_Boom()), "not a readable"),
        (_npz(a=pickle.dumps(_Boom())), "not an array"),
        (_npz(a=_npy(np.array([_Boom()], dtype=object))), "pickle"),
        (_npz(a=_npy(np.array([b"bytes"]))), "plain numbers"),
        (_npz(a=_npy(np.zeros(2, [("x", "f8")]))), "plain numbers"),
        (_npz(a=_npy(np.zeros(2, "M8[s]"))), "plain numbers"),
        (_npz(a=_npy(np.zeros(2, ">f8"))), "plain numbers"),
        (_npz(a=_header("<f8", (1 << 40,)) + bytes(8)), "size"),
        (_npz(a=_header("<f8", (-1,)) + bytes(8)), "size|not an array"),
        (_npz(a=_header("<f8", (1,) * 40) + bytes(8)), "size|not an array"),
        (_npz(a=_npy(np.zeros(1 << 20))), "unpacks to more"),
        (_npz(**{f"a{i}": b"" for i in range(2000)}), "too many"),
        (_npz(**{"../a": b""}), "not an array"),
        (b"", "not a readable"),
    ],
)
def test_npz_files_that_are_not_plain_arrays_are_refused(
    tmp_path: Path, data: bytes, message: str
) -> None:
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(UntrustedResultError, match=message):
        read_arrays(tmp_path, "x.npz", max_bytes=4 << 20)


def test_an_archive_that_lies_about_its_sizes_stays_within_the_bound(tmp_path: Path) -> None:
    bomb = _npz(a=_npy(np.zeros(32 << 20, np.uint8)))
    lied = bomb.replace(struct.pack("<I", (32 << 20) + 128), struct.pack("<I", 4096))
    assert lied != bomb
    (tmp_path / "bomb.npz").write_bytes(lied)
    with pytest.raises(UntrustedResultError):
        read_arrays(tmp_path, "bomb.npz", max_bytes=1 << 20)


def test_other_kinds_of_files_are_not_arrays(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"")
    with pytest.raises(UntrustedResultError, match="not a readable"):
        read_arrays(tmp_path, "x.pt")


_GOOD_NPZ = _npz(a=_npy(np.arange(9.0)), b=_npy(np.ones((2, 2), np.int32)))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_files_are_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    damaged = bytearray(_GOOD_NPZ)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(_GOOD_NPZ) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(_GOOD_NPZ)))])
    for content in (bytes(damaged), cut):
        with contextlib.suppress(UntrustedResultError):
            parse_npz("x", content, 1 << 20)
