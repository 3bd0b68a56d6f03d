"""Pack what `p2p serve --demo` shows: sessions, benchmarks and self-play runs that really ran.

    python scripts/record_demo.py --runs runs --outputs outputs

takes all of both folders, leaves out what no page shows (trajectories, weights that are not the
best ones, locks, TensorBoard files), makes the videos short and small, keeps the newest of the
self-play games that can be stepped through, and writes
src/p2p/api/demo.tar.xz. Rarely run: when the files of a session have changed.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import sys
import tarfile
import tempfile
from pathlib import Path

import av

TARGET = Path(__file__).parents[1] / "src" / "p2p" / "api" / "demo.tar.xz"
GAMES = 60
SIDE, FPS, SECONDS, CRF = 240, 15, 4.0, 34
LEFT_OUT = (".npz", ".lock", ".log", ".partial", ".txt", ".sqlite", ".sqlite-wal", ".sqlite-shm")
FOLDERS_LEFT_OUT = {"tensorboard", "work", "scheduler", "checkpoints", "judged", "logs", "states"}


def main() -> None:
    """Pack both folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--outputs", type=Path, required=True)
    given = parser.parse_args()
    with tarfile.open(TARGET, "w:xz", preset=9 | lzma.PRESET_EXTREME) as archive:
        for name, folder in (("runs", given.runs), ("outputs", given.outputs)):
            kept = chosen(folder)
            for path in sorted(kept, key=lambda path: (path.suffix, path)):
                inside = f"{name}/{path.relative_to(folder)}"
                data = content(path)
                entry = tarfile.TarInfo(inside)
                entry.size, entry.mtime = len(data), int(path.stat().st_mtime)
                archive.addfile(entry, io.BytesIO(data))
                sys.stderr.write(f"{len(data):>9,} {inside}\n")
    sys.stderr.write(f"{TARGET.stat().st_size:,} bytes in {TARGET}\n")


def chosen(folder: Path) -> list[Path]:
    """The files that a page shows, or that a person may download from there."""
    best = named_by_results(folder)
    found = []
    for path in folder.rglob("*"):
        inside = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") for part in inside.parts):
            continue
        of_a_case = inside.parts[0].startswith("bm_")
        too_much = (
            path.suffix in LEFT_OUT
            or bool(FOLDERS_LEFT_OUT & {*inside.parts[:-1]})
            or (path.suffix == ".mp4" and of_a_case)
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
    """The first seconds of a video, smaller."""
    with tempfile.NamedTemporaryFile(suffix=".mp4") as target:
        with av.open(str(video)) as source, av.open(target.name, "w", options=FAST_START) as made:
            stream = made.add_stream("libx264", rate=FPS)
            stream.width = stream.height = SIDE
            stream.pix_fmt = "yuv420p"
            stream.options = {"crf": str(CRF), "preset": "veryslow"}
            shown = -1
            for frame in source.decode(video=0):
                number = int((frame.time or 0.0) * FPS)
                if (frame.time or 0.0) >= SECONDS:
                    break
                if number == shown:
                    continue
                shown = number
                picture = frame.reformat(width=SIDE, height=SIDE, format="yuv420p")
                picture.pts = None
                made.mux(stream.encode(picture))
            made.mux(stream.encode())
        return Path(target.name).read_bytes()


FAST_START = {"movflags": "faststart"}


if __name__ == "__main__":
    main()
