"""Pack what `p2p serve --demo` shows: sessions, a benchmark and a self-play run that really ran.

    python scripts/record_demo.py --session runs/session_... --session runs/session_...
    python scripts/record_demo.py --benchmark runs/bm_...
    python scripts/record_demo.py --selfplay outputs/.../tictactoe

Each kind that is given takes the place of that kind in src/p2p/api/demo.tar.xz; the others stay as
they are there. What no page shows is left out (trajectories, weights that are not the best ones,
locks, TensorBoard files), videos are made short and small, and of the self-play games that can be
stepped through the newest are kept. docs/dashboard.md has the commands that made the recording.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import math
import sys
import tarfile
import tempfile
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import av

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET = Path(__file__).parents[1] / "src" / "p2p" / "api" / "demo.tar.xz"
KINDS = {"session": "runs/session_", "benchmark": "runs/bm_", "selfplay": "outputs/"}
"""Where in the archive each kind begins."""
GAMES = 60
SIDE, MAX_FPS, SECONDS, CRF = 320, 15, 5, 31
LEFT_OUT = (".npz", ".lock", ".log", ".partial", ".txt", ".sqlite", ".sqlite-wal", ".sqlite-shm")
FOLDERS_LEFT_OUT = {"tensorboard", "work", "scheduler", "checkpoints", "judged", "logs", "states"}
Entry = tuple[str, int, bytes]
"""A file of the archive: its name there, when it was last changed, what is in it."""


def main() -> None:
    """Pack what is given, beside what is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=Path, action="append", default=[], metavar="FOLDER")
    parser.add_argument("--archive", type=Path, default=TARGET)
    given = parser.parse_args()
    folders: dict[str, list[Path]] = {kind: getattr(given, kind) for kind in KINDS}
    if not any(folders.values()):
        parser.error("nothing to record")
    entries = [*kept(given.archive, [kind for kind, found in folders.items() if not found])]
    for kind, found in folders.items():
        for folder in found:
            where = f"{KINDS[kind].partition('/')[0]}/{folder.name}"
            if not where.startswith(KINDS[kind]):
                parser.error(f"{folder} is no {kind}")
            entries += packed(folder, where)
    write(given.archive, entries)


def kept(archive: Path, kinds: list[str]) -> Iterator[Entry]:
    """What an archive has of these kinds."""
    if not kinds or not archive.exists():
        return
    begins = tuple(KINDS[kind] for kind in kinds)
    with tarfile.open(archive) as packed_before:
        for member in packed_before:
            stream = packed_before.extractfile(member)
            if stream is not None and member.name.startswith(begins):
                yield member.name, int(member.mtime), stream.read()


def packed(folder: Path, where: str) -> Iterator[Entry]:
    """A session, a benchmark or a self-play run, without what no page shows."""
    for path in chosen(folder):
        name = f"{where}/{path.relative_to(folder)}"
        yield name, int(path.stat().st_mtime), content(path)


def write(archive: Path, entries: list[Entry]) -> None:
    """All of it; what is alike lies side by side, which makes it smaller."""
    partial = archive.with_name(f".{archive.name}.partial")
    with tarfile.open(partial, "w:xz", preset=9 | lzma.PRESET_EXTREME) as made:
        for name, changed, data in sorted(
            entries, key=lambda entry: (Path(entry[0]).suffix, entry)
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), changed
            made.addfile(entry, io.BytesIO(data))
    partial.replace(archive)
    sys.stderr.write(f"{archive.stat().st_size:,} bytes, {len(entries)} files in {archive}\n")


def chosen(folder: Path) -> list[Path]:
    """The files that a page shows, or that a person may download from there."""
    best = named_by_results(folder)
    of_cases = folder.name.startswith("bm_")
    found = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") for part in inside.parts):
            continue
        too_much = (
            path.suffix.lower() in LEFT_OUT
            or bool(FOLDERS_LEFT_OUT & {*inside.parts[:-1]})
            or (path.suffix == ".mp4" and of_cases)
        )
        if path in best or not too_much:
            found.append(path)
    return found


def named_by_results(folder: Path) -> set[Path]:
    """The policies that results name, in both of their forms, and the videos."""
    found = set()
    for path in folder.rglob("result.json"):
        result, session = json.loads(path.read_text("utf-8")), path.parent
        found |= {session / video for video in result["videos"]}
        if result["policy"]:
            policy = session / result["policy"]
            where = policy if policy.is_dir() else policy.parent
            found |= {where / "policy.zip", where / "policy.safetensors"}
    return found


def content(path: Path) -> bytes:
    """What is packed of a file."""
    if path.suffix == ".mp4":
        return small(path)
    if path.parent.name == "games":
        return b"".join(path.read_bytes().splitlines(keepends=True)[-GAMES:])
    return path.read_bytes()


def small(video: Path) -> bytes:
    """The first seconds of a video, smaller and as fast as they were: every k-th frame."""
    with tempfile.NamedTemporaryFile(suffix=".mp4") as target:
        with av.open(str(video)) as source, av.open(target.name, "w", options=FAST_START) as made:
            rate = Fraction(source.streams.video[0].average_rate or MAX_FPS)
            every = math.ceil(rate / MAX_FPS)
            fps = rate / every
            stream = made.add_stream("libx264", rate=fps)
            stream.width = stream.height = SIDE
            stream.pix_fmt = "yuv420p"
            stream.time_base = 1 / fps
            stream.codec_context.time_base = 1 / fps
            stream.options = {"crf": str(CRF), "preset": "veryslow"}
            shown = islice(source.decode(video=0), 0, round(SECONDS * rate), every)
            for number, frame in enumerate(shown):
                picture = frame.reformat(width=SIDE, height=SIDE, format="yuv420p")
                # In units of the new rate; a frame without a time would be shown at once.
                picture.pts, picture.time_base = number, 1 / fps
                made.mux(stream.encode(picture))
            made.mux(stream.encode())
        return Path(target.name).read_bytes()


FAST_START = {"movflags": "faststart"}


if __name__ == "__main__":
    main()
