"""This program as a zip file, to be sent to other machines: they run what their scheduler runs.

Made from the packages as they are imported here, installed or in a source folder. The same files
give the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import secrets
import shutil
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("p2p", "unstable")


class Package(NamedTuple):
    """A zip file in memory; its digest names its folder on another machine."""

    digest: str
    data: bytes


@cache
def build_package() -> Package:
    """The packages of this process, once; what is edited later counts in the next process."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in PACKAGES:
            folder = _folder(name)
            for path in sorted(folder.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    member = zipfile.ZipInfo(f"{name}/{path.relative_to(folder)}")  # dated 1980
                    member.external_attr = 0o644 << 16
                    archive.writestr(member, path.read_bytes(), zipfile.ZIP_DEFLATED)
    data = stream.getvalue()
    return Package(hashlib.sha256(data).hexdigest()[:32], data)


def _folder(package: str) -> Path:
    """The folder of a package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{package} is not importable, so it cannot be sent to another machine")
    return Path(spec.submodule_search_locations[0])


def package_folder(base: Path, digest: str) -> Path:
    return base / "packages" / digest


def unpack(base: Path, digest: str, archive: Path | bytes) -> Path:
    """Put the package into its folder, where it is whole or not at all; returns the folder."""
    folder = package_folder(base, digest)
    if folder.is_dir():
        return folder
    temporary = folder.with_name(f".{digest}.{secrets.token_hex(6)}.tmp")
    temporary.mkdir(parents=True)
    try:
        with zipfile.ZipFile(
            io.BytesIO(archive) if isinstance(archive, bytes) else archive
        ) as zip_:
            zip_.extractall(temporary)
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():  # else somebody was faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
