"""Make and pack what `p2p serve --demo` shows: sessions, a benchmark, jobs, a self-play run.

    python scripts/record_demo.py --make                      # all of it, in demo/
    python scripts/record_demo.py --make selfplay             # one kind
    python scripts/record_demo.py --selfplay outputs/.../tictactoe  # what has run already
    python scripts/record_demo.py --session runs/session_... --session runs/session_...

Each kind that is made or given takes the place of that kind in src/p2p/api/demo.tar.xz; the others
stay as they are there. With a session or a benchmark comes its job, if it was one: what the
scheduler beside it knows and what it printed. COMMANDS below has the commands that make it. What no
page shows is left out
(trajectories, weights that are not the best ones, locks, TensorBoard files), videos are made short,
and of the self-play games that can be stepped through the newest are kept.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from contextlib import closing
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import av

from p2p.scheduler.records import ENDED
from p2p.scheduler.store import Store, scheduler_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET = Path(__file__).parents[1] / "src" / "p2p" / "api" / "demo.tar.xz"
PROMPTS = Path(__file__).with_name("demo_prompts.csv")
SESSIONS = (
    # Under its first reward it stands still; under the second it turns over and over.
    ("do a backflip", "HalfCheetah-v5", "--seeds", "2"),
    # These pass at once.
    ("hop forward", "Hopper-v5", "--set", "seeds=[2]"),
    ("walk forward", "Walker2d-v5", "--set", "seeds=[2]"),
    ("reach the target", "Reacher-v5"),
    ("balance both poles", "InvertedDoublePendulum-v5"),
)
"""Prompts, environments and further options: what anyone can see to be right."""
JOB = ("swim forward", "Swimmer-v5", "--cores", "1", "--watch")
"""Of the sessions, the one that is handed to the scheduler."""
COMMANDS = {
    "session": (
        *(
            ("p2p.cli", "run", prompt, "--env", env_id, "--model", "builtin", *options)
            for prompt, env_id, *options in SESSIONS
        ),
        ("p2p.cli", "jobs", "submit", JOB[0], "--env", *JOB[1:], "--model", "builtin"),
    ),
    "benchmark": (
        (
            "p2p.cli",
            "benchmark",
            "--csv",
            str(PROMPTS),
            "--model",
            "builtin",
            "--iterations",
            "2",
            "--yes",
        ),
    ),
    # The recipe that comes with the package: 80 updates, about seven minutes.
    "selfplay": (("unstable.cli", "train"),),
}
"""Modules and their arguments, run in the folder where `runs` and `outputs` are to be."""
KINDS = {"session": "runs/session_", "benchmark": "runs/bm_", "selfplay": "outputs/"}
"""Where in the archive each kind begins."""
GAMES = 60
SECONDS, CRF = 10, 28
LEFT_OUT = (".npz", ".lock", ".log", ".partial", ".txt")
FOLDERS_LEFT_OUT = {"tensorboard", "work", "checkpoints", "judged", "logs", "states"}
JOBS = "runs/scheduler/scheduler.sqlite"
OUTPUT = "runs/scheduler/launches/{launch}/log.txt"
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
    parser.add_argument("--make", nargs="*", choices=KINDS, metavar="KIND", help="run COMMANDS")
    parser.add_argument("--work", type=Path, default=Path("demo"), help="where it is made")
    given = parser.parse_args()
    folders: dict[str, list[Path]] = {kind: getattr(given, kind) for kind in KINDS}
    for kind in given.make or (() if given.make is None else KINDS):
        folders[kind] += make(kind, given.work)
    if not any(folders.values()):
        parser.error("nothing to record")
    entries = [*kept(given.archive, [kind for kind, found in folders.items() if not found])]
    stores = [*jobs_before(given.archive, {Path(name).parts[1] for name, *_ in entries})]
    for kind, found in folders.items():
        for folder in found:
            where = f"{KINDS[kind].partition('/')[0]}/{folder.name}"
            if not where.startswith(KINDS[kind]) or not folder.is_dir():
                parser.error(f"{folder} is no {kind}")
            entries += packed(folder, where)
            if kind != "selfplay":
                stores += jobs_of(folder)
    write(given.archive, [*entries, *packed_jobs(stores)])


def make(kind: str, work: Path) -> list[Path]:
    """Run the commands of a kind; the folders that came of it."""
    work.mkdir(parents=True, exist_ok=True)
    before = made(kind, work)
    for command in COMMANDS[kind]:
        subprocess.run([sys.executable, "-m", *command], cwd=work, check=True)
    return sorted(made(kind, work) - before)


def made(kind: str, work: Path) -> set[Path]:
    """What lies there of a kind."""
    if kind == "selfplay":
        return {path.parent for path in work.glob("outputs/**/metrics.jsonl")}
    return set(work.glob(f"{KINDS[kind]}*"))


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


class RecordedJob(NamedTuple):
    """A job that has ended, as rows of the scheduler's tables, and what its runs printed."""

    created_at: float

    tables: dict[str, list[dict[str, object]]]
    output: dict[str, bytes]
    """By launch."""


def jobs_of(folder: Path) -> Iterator[RecordedJob]:
    """The job that a session or a benchmark was, if it was one."""
    where = scheduler_folder(folder.parent)
    if not (where / Path(JOBS).name).exists():
        return
    with closing(Store(folder.parent)) as store:
        job = store.job(folder.name)
        if job is None:
            return
        runs = store.runs(folder.name)
        if unended := [run.run_id for run in runs if run.state not in ENDED]:
            sys.exit(f"{unended[0]} has not ended")
        output = {
            launch: log.read_bytes().replace(bytes(folder.parent.absolute()), b"runs")
            for run in runs
            for launch in [f"{run.run_id}.{run.attempt}"]
            if (log := where / "launches" / launch / "log.txt").exists()
        }
        yield RecordedJob(job.created_at, rows_of(store.connection, folder.name), output)


def jobs_before(archive: Path, folders: set[str]) -> Iterator[RecordedJob]:
    """The jobs of an archive whose folders stay in it."""
    if not folders or not archive.exists():
        return
    with tarfile.open(archive) as packed_before, tempfile.TemporaryDirectory() as unpacked:
        own = [m for m in packed_before.getmembers() if m.name.startswith("runs/scheduler/")]
        packed_before.extractall(unpacked, own, filter="data")
        for folder in sorted(folders):
            yield from jobs_of(Path(unpacked) / "runs" / folder)


def rows_of(connection: sqlite3.Connection, job_id: str) -> dict[str, list[dict[str, object]]]:
    """What the scheduler's tables hold of a job, without the numbers that order them there."""
    queries = {
        "jobs": "SELECT * FROM jobs WHERE job_id = ?",
        "runs": "SELECT * FROM runs WHERE job_id = ? ORDER BY number",
        "waits": "SELECT * FROM waits WHERE run_id IN (SELECT run_id FROM runs WHERE job_id = ?)",
    }
    tables: dict[str, list[dict[str, object]]] = {}
    for table, query in queries.items():
        cursor = connection.execute(query, (job_id,))
        names = [column[0] for column in cursor.description]
        rows = (dict(zip(names, row, strict=True)) for row in cursor)
        tables[table] = [{k: v for k, v in row.items() if k != "number"} for row in rows]
    return tables


def packed_jobs(jobs: list[RecordedJob]) -> Iterator[Entry]:
    """One store with all of these jobs, and what their runs printed."""
    if not jobs:
        return
    jobs = sorted(jobs, key=lambda job: job.created_at)
    newest = 0
    with tempfile.TemporaryDirectory() as folder:
        with closing(Store(Path(folder))) as store:
            for job in jobs:
                for table, rows in job.tables.items():
                    for row in rows:
                        names, marks = ", ".join(row), ", ".join("?" * len(row))
                        store.connection.execute(
                            f"INSERT INTO {table}({names}) VALUES ({marks})",  # noqa: S608 - its own
                            tuple(row.values()),
                        )
            # Every run that is added counts as one to do, and all of these have ended.
            store.connection.execute("UPDATE jobs SET ready = 0, unended = 0, owner = NULL")
            (newest,) = store.connection.execute("SELECT MAX(ended_at) FROM runs").fetchone()
            store.connection.execute("PRAGMA journal_mode = DELETE")
        yield JOBS, int(newest), (Path(folder) / "scheduler" / Path(JOBS).name).read_bytes()
    for job in jobs:
        for launch, text in job.output.items():
            yield OUTPUT.format(launch=launch), int(newest), text


def write(archive: Path, entries: list[Entry]) -> None:
    """All of it; what is alike lies side by side, which makes it smaller."""
    partial = archive.with_name(f".{archive.name}.partial")
    with (
        lzma.open(partial, "wb", preset=9 | lzma.PRESET_EXTREME) as stream,
        tarfile.open(fileobj=stream, mode="w") as made,
    ):
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
    best_runs = {
        path.parent / run["run_id"]: f"eval_{run['step']}_"
        for path in folder.rglob("best_run.json")
        for run in [json.loads(path.read_text("utf-8"))]
    }
    found = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") for part in inside.parts):
            continue
        too_much = (
            path.suffix.lower() in LEFT_OUT
            or bool(FOLDERS_LEFT_OUT & {*inside.parts[:-1]})
            or (path.suffix == ".mp4" and (of_cases or not best_video(path, best_runs)))
        )
        if path in best or not too_much:
            found.append(path)
    return found


def best_video(path: Path, best_runs: dict[Path, str]) -> bool:
    """Whether a video is of the checkpoint that stands for an iteration."""
    begin = best_runs.get(path.parents[1])
    return begin is not None and path.name.startswith(begin)


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
    """The first seconds of a video, as large and as smooth as they were, in fewer bytes."""
    with tempfile.NamedTemporaryFile(suffix=".mp4") as target:
        with av.open(str(video)) as source, av.open(target.name, "w", options=FAST_START) as made:
            filmed = source.streams.video[0]
            rate = Fraction(filmed.average_rate or 25)
            stream = made.add_stream("libx264", rate=rate)
            stream.width, stream.height, stream.pix_fmt = filmed.width, filmed.height, "yuv420p"
            stream.time_base = 1 / rate
            stream.codec_context.time_base = 1 / rate
            stream.options = {"crf": str(CRF), "preset": "fast"}
            for number, frame in enumerate(islice(source.decode(filmed), round(SECONDS * rate))):
                picture = frame.reformat(format="yuv420p")
                # In units of the new rate; a frame without a time would be shown at once.
                picture.pts, picture.time_base = number, 1 / rate
                made.mux(stream.encode(picture))
            made.mux(stream.encode())
        return Path(target.name).read_bytes()


FAST_START = {"movflags": "faststart"}


if __name__ == "__main__":
    main()
