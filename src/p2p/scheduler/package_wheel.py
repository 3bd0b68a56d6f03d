"""This program as a wheel, to be sent to other machines.

Made from the packages as they are imported here, installed or in a source folder, so that a node
runs what its scheduler runs. The same files give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import io
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import p2p

DISTRIBUTION = "prompt2policy"
PACKAGES = ("p2p", "unstable")
_LEFT_OUT = ("__pycache__",)
_WHEEL = "Wheel-Version: 1.0\nGenerator: p2p\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True)
class Wheel:
    """A wheel in memory."""

    name: str
    data: bytes
    digest: str
    """Names its folder on a node."""


@cache
def build_wheel() -> Wheel:
    """The packages of this process, once; what is edited later counts in the next process."""
    info = f"{DISTRIBUTION}-{p2p.__version__}.dist-info"
    files = {f"{name}/{path}": data for name in PACKAGES for path, data in _files(name).items()}
    files[f"{info}/METADATA"] = _metadata().encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    record = [f"{name},sha256={_record_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    data = _zipped(files)
    name = f"{DISTRIBUTION}-{p2p.__version__}-py3-none-any.whl"
    return Wheel(name, data, hashlib.sha256(data).hexdigest()[:32])


def _files(package: str) -> dict[str, bytes]:
    """The files of a package by their names below it, in order; without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{package} is not importable, so it cannot be sent to another machine")
    folder = Path(spec.submodule_search_locations[0])
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not set(_LEFT_OUT) & set(path.parts)
    }


def _metadata() -> str:
    try:
        found = importlib.metadata.distribution(DISTRIBUTION).read_text("METADATA")
    except importlib.metadata.PackageNotFoundError:
        found = None
    return found or f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {p2p.__version__}\n"


def _record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            member.external_attr = 0o644 << 16
            archive.writestr(member, data, zipfile.ZIP_DEFLATED)
    return stream.getvalue()
