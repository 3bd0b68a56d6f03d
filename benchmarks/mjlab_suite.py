"""The suite `mjlab` with the built-in author on one GPU: verdicts against ground truth.

python benchmarks/mjlab_suite.py --minutes M --write [--jobs N] [--folder FOLDER] [--rows FILE...]
    [--mps FOLDER]

Each prompt of the suite is a session (`p2p run --model builtin --iterations 1 --no-videos`).
Several of them share the GPU, in the order of the suite: worst first. No session starts when there
is too little time left for it; one that runs at the end of the time is stopped and gives no row.
The policy that a session delivers is played for ten episodes on seeds of their own, and measured by
plain MuJoCo (`p2p.benchmark.truth.legged`). Each prompt is a line of JSON in the first --rows file
as soon as it is measured, and is not done again: neither what any of these files has, nor what the
committed table has, unless --cases names it. With --write, all of these rows are
results/mjlab_suite.md, from the first measured prompt on; --minutes 0 only writes. Exit status 1:
a prompt failed for another reason than the time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from common import ONE_THREAD, RESULTS, machine, table, write

from p2p.benchmark.measuring import EPISODES, NotPlayable, play_policy, policy_file
from p2p.benchmark.suite import Case, load_suite
from p2p.benchmark.truth import TRUTHS
from p2p.records.iteration_record import SessionRecord
from p2p.records.statuses import STATUS
from p2p.resource_auto import detect_machine

NAME, SUITE = "mjlab_suite", "mjlab"
STEPS = {
    "Mjlab-Velocity-Flat-Unitree-G1": 20_000_000,
    "Mjlab-Velocity-Flat-Unitree-Go1": 11_000_000,
}
"""Of a training: fewer than a session's own 60 million, for the time there is."""
ENVS = 4096
KEPT = ("intent.json", "result.json", "iter_1/judgment.json", "iter_1/confirmation.json")
ENDED = {0, 3, 7, 11}
"""Exit statuses of sessions that came to a verdict, or to no reward; others are tried again."""
CLOSING_S = 45.0
"""To measure the ground truth of one session."""

Row = dict[str, Any]


# --- running --------------------------------------------------------------------------------------


class Suite:
    """Runs prompts until the time is over."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.folder
        self.files: list[Path] = options.rows or [options.folder / "rows.jsonl"]
        self.failed = 0
        self.end = time.monotonic() + 60 * options.minutes
        self.lengths: list[float] = []
        self.lock = threading.Lock()
        self.ready: dict[str, Future[None]] = {}

    def run(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        numbers = self.options.cases
        done = {row["case"] for row in committed_and(self.files)[1]} if numbers is None else set()
        cases = [
            case
            for case in load_suite(SUITE)
            if case.number not in done and (numbers is None or case.number in numbers)
        ]
        print(f"{len(done)} prompts are done, {len(cases)} to do, worst first", flush=True)
        if not cases:
            return
        self.keep({"machine": machine_with_gpu(), "settings": self.settings()})
        with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(self.options.jobs) as pool:
            # One robot after the other, that of the first prompt first: the second adds its kernels
            # to those of the first.
            for env_id in dict.fromkeys(case.env_id for case in cases):
                self.ready[env_id] = first.submit(prepare, env_id)
            attempts = [pool.submit(self.attempt, case) for case in cases]
            try:
                for future in attempts:
                    future.result()
            except KeyboardInterrupt:
                self.end = time.monotonic()  # which stops the sessions that run
                raise

    def settings(self) -> Row:
        return {
            "num_envs": self.options.envs,
            "steps": self.steps,
            "jobs": self.options.jobs,
            "mps": self.options.mps is not None,
        }

    @property
    def steps(self) -> dict[str, int]:
        given = self.options.steps
        return STEPS if given is None else dict.fromkeys(STEPS, given)

    def attempt(self, case: Case) -> None:
        """Do a prompt if there is time; what goes wrong with one is said, and ends no other."""
        try:
            self.ready[case.env_id].result()
            if self.left() < self.expected():
                print(f"{case.number} {case.instruction}: no time left", flush=True)
                return
            began = time.monotonic()
            session = self.session(case)
            if session is None:
                print(f"{case.number} {case.instruction}: stopped, no time left", flush=True)
                return
            with self.lock:
                self.lengths.append(time.monotonic() - began)
            self.keep(self.measure(case, session, self.lengths[-1] / 60))
        except Exception as error:  # noqa: BLE001
            self.failed += 1
            print(f"{case.number} {case.instruction}: {error!r}", flush=True)

    def left(self) -> float:
        return self.end - time.monotonic()

    def expected(self) -> float:
        with self.lock:
            return median(self.lengths) if self.lengths else 60 * self.options.least_minutes

    def session(self, case: Case) -> Path | None:
        """Run the session of a prompt; None: it was stopped at the end of the time."""
        home = self.folder / f"case{case.number}"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        command = [
            sys.executable, "-m", "p2p.cli", "run", case.instruction, "--env", case.env_id,
            "--model", "builtin", "--iterations", "1", "--no-videos", "--runs-dir", str(home),
            "--steps", str(self.steps[case.env_id]), "--set", f"num_envs={self.options.envs}",
            "--set", "num_evals=3", "--seeds", "1", "--json",
            # A session's training takes all cores otherwise, and the others wait for it.
            "--cores-per-run", str(max(1, detect_machine().cores // self.options.jobs)),
            *self.options.extra,
        ]  # fmt: skip
        env = {**os.environ, **ONE_THREAD}
        env.pop("CUDA_VISIBLE_DEVICES")
        if self.options.mps:
            command += ["--unsafe-local", "--unsafe-local"]
            env["CUDA_MPS_PIPE_DIRECTORY"] = str(self.options.mps)
        with (home / "log").open("w") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=env, start_new_session=True
            )
            while process.poll() is None and self.left() > CLOSING_S:
                time.sleep(0.5)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                return None
        found = sorted(home.glob("session_*"))
        if not found or process.returncode not in ENDED:
            raise RuntimeError((home / "log").read_text()[-2000:])
        return found[-1]

    def measure(self, case: Case, session: Path, minutes: float) -> Row:
        """The row of a session; its papers, policy and one episode are kept beside the rows."""
        record = SessionRecord(session)
        result = record.result.read()
        assert case.truth is not None
        assert case.threshold is not None
        truth = TRUTHS[case.truth]
        kept = self.folder / "kept" / f"case{case.number}"
        kept.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            if (session / name).exists():
                shutil.copy(session / name, kept / name.replace("/", "_"))
        for reward in sorted(session.glob("iter_1/**/reward*.py"))[:1]:
            shutil.copy(reward, kept)
        row = {
            "case": case.number, "env_id": case.env_id, "prompt": case.instruction,
            "outcome": STATUS[result.status].outcome if result else "error",
            "message": result.message if result else "",
            "score": result.score if result else None,
            "confirmed_score": result.confirmed_score if result else None,
            "unchecked": list(result.unchecked_words) if result else [],
            "minutes": round(minutes, 2), "steps": self.steps[case.env_id],
            "truth": False, "measured": "no policy", "values": [],
        }  # fmt: skip
        path = policy_file(session, result)
        if path is None:
            return row
        shutil.copy(path, kept)
        try:
            episodes = play_policy(case.env_id, path)
        except NotPlayable as error:
            return {**row, "measured": str(error)}
        values = [truth.measure(episode) for episode in episodes]
        value = fmean(values)
        middle = episodes[int(np.argsort(values)[len(values) // 2])]
        np.savez_compressed(kept / "episode.npz", qpos=middle.qpos.astype(np.float32), dt=middle.dt)
        return {
            **row,
            "truth": truth.passes(value, case.threshold),
            "measured": f"{case.truth} {value:.3g} {truth.unit}, {case.threshold:g} asked",
            "values": [round(each, 4) for each in values],
            "height": round(float(np.mean([e.torso[1:, 2].mean() for e in episodes])), 3),
            "lasted": round(float(np.mean([e.steps / e.horizon for e in episodes])), 3),
        }

    def keep(self, row: Row) -> None:
        with self.lock:
            with self.files[0].open("a") as file:
                file.write(json.dumps(row) + "\n")
            if self.options.write and "case" in row:
                write_table(self.files)
        if "case" in row:
            print(json.dumps({k: v for k, v in row.items() if k != "values"}), flush=True)


def prepare(env_id: str) -> None:
    """Read an environment's facts, which also compiles the kernels that its sessions share."""
    from p2p.training.engines.facts import read_facts

    began = time.monotonic()
    said = partial(print, env_id, flush=True)
    last = [""]

    def progress(what: str, seconds: float) -> None:
        if what != last[0]:
            said(f"{seconds:.0f} s: {what}")
            last[0] = what

    read_facts("mjlab", env_id, progress)
    said(f"facts and kernels after {time.monotonic() - began:.0f} s")


def machine_with_gpu() -> Row:
    seen = machine()
    try:
        names = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, check=True,
        ).stdout.split("\n")  # fmt: skip
        seen["cpu"] = f"{names[0]}; {seen['cpu']}"
    except (OSError, subprocess.CalledProcessError):
        pass
    return seen


# --- the table ------------------------------------------------------------------------------------


def lines_of(files: list[Path]) -> list[Row]:
    texts = [file.read_text() for file in files if file.exists()]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def committed_and(files: list[Path]) -> tuple[list[Row], list[Row]]:
    """Machines and settings, and the newest row of each prompt in the order of the suite."""
    kept = RESULTS / f"{NAME}.json"
    before = json.loads(kept.read_text()) if kept.exists() else {"rows": [], "about": []}
    lines = [*before["about"], *before["rows"], *lines_of(files)]
    newest = {line["case"]: line for line in lines if "case" in line}
    about = [line for i, line in enumerate(lines) if "machine" in line and line not in lines[:i]]
    return about, [newest[case] for case in sorted(newest)]


def write_table(files: list[Path]) -> None:
    about, rows = committed_and(files)
    write(NAME, report(rows, about), {"about": about, "rows": rows})


def report(rows: list[Row], about: list[Row]) -> str:
    cases = load_suite(SUITE)
    passed = [row for row in rows if row["outcome"] == "passed"]
    false = [row for row in passed if not row["truth"]]
    missed = [row for row in rows if row["truth"] and row["outcome"] != "passed"]
    cells = [
        [
            f"{row['env_id'].rpartition('-')[2]}: {row['prompt']}",
            row["outcome"].replace("_", " "),
            "" if row["score"] is None else f"{row['score']:.2f}",
            "met" if row["truth"] else "missed",
            row["measured"],
            f"{row.get('height', 0):.2f} m, {row.get('lasted', 0):.0%}",
            f"{row['minutes']:.1f}",
        ]
        for row in rows
    ]
    settings = [
        f"- {each['machine']['cpu']}, {each['machine']['date']}: {each['settings']['num_envs']:,} "
        f"environments, {each['settings']['jobs']} sessions at a time, "
        + ", ".join(
            f"{n / 1e6:g} M steps for {env_id.rpartition('-')[2]}"
            for env_id, n in each["settings"]["steps"].items()
        )
        + ("; outside the sandbox, so that CUDA's MPS shares the GPU out" * each["settings"]["mps"])
        for each in about
    ]
    parts = []
    for robot in ("G1", "Go1"):
        own = [row for row in rows if row["env_id"].endswith(f"-{robot}")]
        there = [case for case in cases if case.env_id.endswith(f"-{robot}")]
        parts.append([
            robot, f"{len(own)} of {len(there)}",
            str(sum(row["outcome"] == "passed" for row in own)),
            str(sum(row["truth"] for row in own)),
            str(sum(row in false for row in own)), str(sum(row in missed for row in own)),
        ])  # fmt: skip
    not_run = [case for case in cases if case.number not in {row["case"] for row in rows}]
    how = (
        "`p2p run PROMPT --env ID --model builtin --iterations 1 --no-videos`, a session for each "
        "prompt of the suite `mjlab`, with shorter trainings than a session's own 60 M steps. The "
        f"delivered policy is played for {EPISODES} episodes of 20 s on seeds of their own; ground "
        "truth is measured on its positions by plain MuJoCo "
        "([legged.py](../../src/p2p/benchmark/truth/legged.py))."
    )
    counted = (
        f"Passes that are true: {len(passed) - len(false)} of {len(passed)}. Height is the mean "
        "height of pelvis or trunk; beside it, how much of their time episodes lasted."
    )
    header = ["robot", "prompts run", "passed", "ground truth met", "false passes", "false fails"]
    columns = [
        "prompt",
        "verdict",
        "score",
        "ground truth",
        "measured",
        "height, lasted",
        "minutes",
    ]
    lines = [
        "# Prompts on mjlab's robots, on one GPU", "", how, "", *settings, "",
        table(header, parts), "", counted, "", table(columns, cells), "",
    ]  # fmt: skip
    if not_run:
        lines += [f"Not run, for lack of time: {'; '.join(c.instruction for c in not_run)}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="start nothing after these")
    parser.add_argument("--least-minutes", type=float, default=5.0, help="a session's, at first")
    parser.add_argument("--jobs", type=int, default=4, help="sessions at a time")
    parser.add_argument("--envs", type=int, default=ENVS)
    parser.add_argument("--steps", type=int, help="of every training, instead of the robot's own")
    parser.add_argument("--cases", type=int, nargs="+", help="rows of the suite, from 0")
    parser.add_argument(
        "--mps", type=Path, help="pipe folder of CUDA's MPS: share the GPU there, unsandboxed"
    )
    parser.add_argument("--folder", type=Path, default=Path("outputs/mjlab_suite"))
    parser.add_argument("--rows", type=Path, nargs="+", help="the first is added to")
    parser.add_argument("--write", action="store_true", help="write the table to results/")
    parser.add_argument("--extra", nargs="*", default=[], help="more arguments of `p2p run`")
    options = parser.parse_args()
    suite = Suite(options)
    if options.minutes > 0:
        suite.run()
    if options.write and committed_and(suite.files)[1]:
        write_table(suite.files)
    if suite.failed:
        raise SystemExit(f"{suite.failed} prompts failed")


if __name__ == "__main__":
    main()
