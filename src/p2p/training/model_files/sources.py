"""The files that a model consists of, found and copied in the sandbox before MuJoCo sees any.

Only files of the model's folder, below it, with the suffixes of models and their assets.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from pathlib import Path
from xml.etree import ElementTree as ET

ASSET_SUFFIXES = (
    *(".xml", ".urdf", ".stl", ".obj", ".msh", ".dae", ".mtl", ".bin", ".skn"),
    *(".png", ".ktx", ".jpg", ".jpeg", ".hf"),
)
MAX_FILES = 2_000
MAX_BYTES = 256 << 20
MAX_XML_BYTES = 16 << 20
MAX_DEPTH = 8
MAX_ELEMENTS = 200_000
_FILES = (
    "file",
    "filename",
    "fileright",
    "fileleft",
    "fileup",
    "filedown",
    "filefront",
    "fileback",
)
_FOLDERS = ("meshdir", "texturedir", "assetdir")
_OF_URDF = ("link", "joint", "material", "mujoco")
"""What MuJoCo reads of a URDF; the rest is for other programs, such as Gazebo's plugins."""


class ModelFileError(Exception):
    """The model cannot be used; the message names the file and says what to change."""


def unpack(archive: Path, target: Path) -> Path:
    """Unpack an archive's model files and TOML; returns the model, the one nearest to its top."""
    suffixes = (*ASSET_SUFFIXES, ".mjb", ".toml")
    target.mkdir(parents=True)
    total = 0
    try:
        with zipfile.ZipFile(archive) as opened:
            members = [m for m in opened.infolist() if Path(m.filename).suffix.lower() in suffixes]
            if len(members) > MAX_FILES:
                raise ModelFileError(f"{archive.name}: more than {MAX_FILES:,} files")
            for member in members:
                place = _normal(Path(member.filename))
                if place is None or place.is_absolute():
                    raise ModelFileError(f"{archive.name}: {member.filename!r} leads out of it")
                (target / place).parent.mkdir(parents=True, exist_ok=True)
                with opened.open(member) as stream:
                    data = stream.read(MAX_BYTES - total + 1)
                total += len(data)
                if total > MAX_BYTES:
                    raise ModelFileError(f"{archive.name}: over {MAX_BYTES >> 20} MiB unpacked")
                (target / place).write_bytes(data)
    except (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, NotImplementedError) as error:
        raise ModelFileError(f"{archive.name} cannot be unpacked: {error}") from None
    return _choose_model(archive.name, target)


def _choose_model(name: str, folder: Path) -> Path:
    """The model of an unpacked archive: nothing in it names it, and it lies nearest to the top."""
    models = [p for p in folder.rglob("*") if p.suffix.lower() in (".xml", ".urdf", ".mjb")]
    texts = [p.read_bytes() for p in models if p.suffix.lower() != ".mjb"]
    alone = [p for p in models if not any(p.name.encode() in text for text in texts)]
    if not alone:
        raise ModelFileError(f"{name}: there is no .xml, .urdf or .mjb model in it")
    depths = {path: len(path.relative_to(folder).parts) for path in alone}
    top = [path for path in alone if depths[path] == min(depths.values())]
    if len(top) > 1:
        names = ", ".join(sorted(path.name for path in top)[:8])
        raise ModelFileError(f"{name}: which of them is the model: {names}? Leave one at the top")
    return top[0]


def collect(main: Path, root: Path, target: Path) -> Path:
    """Copy `main` and all that it names to `target`, under their paths below `root`."""
    return _Collector(root, target).collect(main)


class _Collector:
    def __init__(self, root: Path, target: Path) -> None:
        self.root, self.target = root.resolve(), target
        self.copied: set[Path] = set()
        self.bytes = 0
        self.elements = 0

    def collect(self, main: Path) -> Path:
        place = self._copy(main, named=main.name)
        if main.suffix.lower() != ".mjb":
            self._follow(place, place.parent, [], 0)
        return self.target / place

    def _follow(self, file: Path, base: Path, folders: list[Path], depth: int) -> None:
        """Copy what this file names, and what the files that it includes name."""
        if depth > MAX_DEPTH:
            raise ModelFileError(f"{file}: includes go deeper than {MAX_DEPTH} files: merge some")
        model = self._read(file)
        elements = list(model.iter())
        named = [value for e in elements for name in _FOLDERS if (value := e.get(name))]
        folders = [*folders, *(base / _plain(value, file) for value in named)]
        for element in elements:
            for value in filter(None, map(element.get, _FILES)):
                place = self._find(value, file, base, folders)
                if place is None:
                    continue  # MuJoCo says which file is missing, and for what
                self._copy(self.root / place, named=value)
                if element.get(
                    "filename"
                ):  # of a URDF, by where it is from there: MuJoCo knows no packages
                    element.set("filename", os.path.relpath(place, file.parent))
                if element.tag == "include":
                    self._follow(place, base, folders, depth + 1)
                elif element.tag == "model":
                    self._follow(place, place.parent, [], depth + 1)
        if file.suffix.lower() == ".urdf":
            (self.target / file).write_bytes(ET.tostring(model, "utf-8"))

    def _find(self, value: str, file: Path, base: Path, folders: list[Path]) -> Path | None:
        """The place of a named file below the root; None where there is none."""
        plain = _plain(value, file)
        places = [folder / plain for folder in (*folders, base, file.parent, Path())]
        if value.startswith("package://"):  # where its name is that of a folder
            places.append(base / value.removeprefix("package://"))
        inside = [_normal(place) for place in places]
        for place in inside:
            if place is not None and (self.root / place).is_file():
                return place
        if None in inside:
            raise ModelFileError(
                f"{file}: {value!r} lies outside of the model's folder ({places[0]}): put the "
                "file below it, or give a .zip of both"
            )
        return None

    def _copy(self, path: Path, *, named: str) -> Path:
        """Copy a file of the folder, once; its path below the root."""
        place = path.relative_to(self.root) if path.is_relative_to(self.root) else Path(path.name)
        if place in self.copied:
            return place
        if not path.resolve().is_relative_to(self.root):
            raise ModelFileError(
                f"{named!r} is a link out of the model's folder: put the file there"
            )
        if path.suffix.lower() not in (*ASSET_SUFFIXES, ".mjb"):
            raise ModelFileError(
                f"{named!r} is not a file of a model; known: {', '.join(ASSET_SUFFIXES)}"
            )
        try:
            self.bytes += path.stat().st_size
            if self.bytes > MAX_BYTES or len(self.copied) >= MAX_FILES:
                raise ModelFileError(
                    f"{named!r}: with it the model has over {MAX_BYTES >> 20} MiB or {MAX_FILES:,} "
                    "files: use coarser meshes"
                )
            data = path.read_bytes()
        except OSError as error:
            raise ModelFileError(f"{named!r} cannot be read: {error.strerror}") from None
        (self.target / place).parent.mkdir(parents=True, exist_ok=True)
        (self.target / place).write_bytes(data)
        self.copied.add(place)
        return place

    def _read(self, file: Path) -> ET.Element:
        """The elements of a file that MuJoCo is to see."""
        model = self._parse(file)
        if file.suffix.lower() == ".urdf":
            for other in [e for e in model if e.tag not in _OF_URDF]:
                model.remove(other)
        elements = list(model.iter())
        self.elements += len(elements)
        if self.elements > MAX_ELEMENTS:
            raise ModelFileError(f"{file}: more than {MAX_ELEMENTS:,} elements: simplify the model")
        if any(element.tag == "plugin" for element in elements):
            raise ModelFileError(
                f"{file}: plugins are not loaded here: take <plugin> and <extension> out"
            )
        return model

    def _parse(self, file: Path) -> ET.Element:
        data = (self.target / file).read_bytes()
        if len(data) > MAX_XML_BYTES:
            raise ModelFileError(f"{file}: more than {MAX_XML_BYTES >> 20} MiB of XML")
        try:
            text = data.decode().strip("\0\ufeff \r\n\t")
        except UnicodeDecodeError as error:
            raise ModelFileError(
                f"{file} is not UTF-8 text (byte {error.start}): save it as UTF-8"
            ) from None
        if re.search(r"<!(DOCTYPE|ENTITY)", text):
            raise ModelFileError(f"{file}: document types and entities are not read: take them out")
        try:
            return ET.fromstring(text)  # noqa: S314 - no entities, bounded size, in the sandbox
        except ET.ParseError as error:
            raise ModelFileError(f"{file} is not XML: {error}") from None


def _plain(value: str, file: Path) -> str:
    """A file name as it stands in a model, without `package://` and `file://`."""
    if value.startswith("package://"):
        return value.removeprefix("package://").partition("/")[2]
    value = value.removeprefix("file://").replace("\\", "/")
    if value.startswith("/"):
        raise ModelFileError(
            f"{file}: {value!r} is an absolute path: name files relative to the model's folder"
        )
    return value


def _normal(path: Path) -> Path | None:
    """Normalise a path without `..`; None if it leads out of the folder."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and not parts:
            return None
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return Path(*parts)
