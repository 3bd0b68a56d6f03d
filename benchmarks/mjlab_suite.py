"""The suite `mjlab` with the built-in author: verdicts against ground truth.

python benchmarks/mjlab_suite.py prepare [--cases N...] [--jobs N]
python benchmarks/mjlab_suite.py train --minutes M [--jobs N] [--mps PIPES]
python benchmarks/mjlab_suite.py judge [--jobs N] --write
python benchmarks/mjlab_suite.py again [--jobs N] --write

Each prompt of the suite is a session (`p2p run --model builtin --iterations 1 --no-videos`), in the
order of the suite: worst first. Only its training needs a GPU, so it is done in three stages, and
`--folder` may be carried to another machine between them: `prepare` ends each session where its
training begins, `train` resumes them for so many minutes, and `judge` resumes those that are
trained, to their verdict. Called again, a stage does what it has not done.

The policy that a session delivers is played for ten episodes on seeds of their own, and measured by
plain MuJoCo (`p2p.benchmark.truth.legged`). `again` judges the delivered policies by the criteria
that the built-in author writes now; nothing is trained. With --write, all measured prompts are
results/mjlab_suite.md, with the rows that it has already. Exit status 1: a session failed.

Trainings that share a GPU take turns. CUDA's MPS lets them run side by side: start
`nvidia-cuda-mps-control -d` and name its pipe folder with --mps. A sandbox reaches no daemon, so
these trainings run outside of it; the rewards are `builtin`'s.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
from common import ONE_THREAD, RESULTS, machine, table, write

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.judge import write_judge
from p2p.agents.judge_agent import judge_trajectories
from p2p.agents.judge_code import trajectory_columns
from p2p.agents.requests import IntentRequest, JudgeRequest
from p2p.benchmark.attack import record_unseen_episodes
from p2p.benchmark.measuring import EPISODES, NotPlayable, play_policy, policy_file
from p2p.benchmark.suite import Case, load_suite
from p2p.benchmark.truth import TRUTHS
from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import Intent
from p2p.event_log import read_events
from p2p.files import read_lines
from p2p.records.iteration_record import SessionRecord
from p2p.records.statuses import STATUS
from p2p.resource_auto import detect_machine
from p2p.training.env_spec import get_env_spec

NAME, SUITE = "mjlab_suite", "mjlab"
SETTINGS = {
    "num_evals": 4, "num_eval_envs": 8, "num_eval_rounds": 1, "target_kl": 0.02, "ent_coef": 0.004,
}  # fmt: skip
"""Of a training. Many at once fill the GPU with few environments each, so rollouts are small and
there are many updates; each may change the policy by twice what the engine's own settings allow."""
SIZES = {
    "Mjlab-Velocity-Flat-Unitree-G1": {"num_envs": 2048, "total_timesteps": 14_000_000},
    "Mjlab-Velocity-Flat-Unitree-Go1": {"num_envs": 1024, "total_timesteps": 6_000_000},
}
"""A session has 60 million steps of its own: fewer, for the time there is."""
KEPT = ("intent.json", "result.json", "iter_1/judgment.json", "iter_1/confirmation.json")
STAGES = ("prepare", "train", "judge")
UNSEEN = 16
"""Episodes to judge a policy again, as a session does before it passes."""
EVENTS = 10_000
"""More than a session of one iteration has."""
ENDING_S = 60.0
"""For a session that is interrupted to end."""

Row = dict[str, Any]
Stage = Literal["", "prepare", "train", "judge", "again"]


# --- running --------------------------------------------------------------------------------------


class Suite:
    """Brings the sessions of a suite to a stage, several at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.folder
        self.rows = self.folder / "rows.jsonl"
        self.measured = {line["case"]: line for line in lines_of(self.rows) if "case" in line}
        self.failed = 0
        self.end = time.monotonic() + 60 * options.minutes
        self.lock = threading.Lock()

    def run(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        wanted, stage = self.options.cases, self.options.stage
        cases = [case for case in load_suite(SUITE) if wanted is None or case.number in wanted]
        if stage == "train":
            settings = {"jobs": self.options.jobs, "mps": self.options.mps is not None}
            self.keep({"machine": machine_with_gpu(), "settings": settings})
        with ThreadPoolExecutor(self.options.jobs) as pool:
            attempts = [pool.submit(self.attempt, case) for case in cases]
            try:
                for future in attempts:
                    future.result()
            except KeyboardInterrupt:
                self.end = time.monotonic()  # which stops the sessions that run
                raise

    def attempt(self, case: Case) -> None:
        """Bring a prompt to the stage; what goes wrong with one is said, and ends no other."""
        stage: Stage = self.options.stage
        try:
            if stage == "again":
                if case.number in self.measured:
                    self.keep(judge_again(case, self.session_of(case), self.measured[case.number]))
                return
            reached = self.advance(case, stage)
            print(f"{case.number} {case.instruction}: {reached or 'nothing'} done", flush=True)
            if reached == stage == "judge" and case.number not in self.measured:
                self.keep(self.measure(case, self.session_of(case)))
        except Exception as error:  # noqa: BLE001
            self.failed += 1
            print(f"{case.number} {case.instruction}: {error!r}", flush=True)

    def home(self, case: Case) -> Path:
        return self.folder / f"case{case.number}"

    def session_of(self, case: Case) -> Path:
        return next(self.home(case).glob("session_*"))

    def reached(self, case: Case) -> Stage:
        """Return the last stage that is done."""
        found = list(self.home(case).glob("session_*"))
        if not found:
            return ""
        result = SessionRecord(found[0]).result.read()
        if result is not None and result.status != "cancelled":
            return "judge"
        events = {event.event for event in read_events(found[0] / "events.jsonl", limit=EVENTS)}
        return "train" if "train.end" in events else "prepare" if "train.start" in events else ""

    def advance(self, case: Case, stage: Stage) -> Stage:
        """Run the session of a prompt until the stage is done or the time is over."""
        before = self.reached(case)
        needs = STAGES.index(stage) - 1
        if (before and STAGES.index(before) > needs) or self.end <= time.monotonic():
            return before
        if needs >= 0 and before != STAGES[needs]:
            return before
        home = self.home(case)
        if stage == "prepare":
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
        with (home / "log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "p2p.cli", *self.command(case)],
                stdout=log, stderr=log, env=self.environment(), start_new_session=True,
            )  # fmt: skip
            while process.poll() is None and time.monotonic() < self.end:
                if stage != "judge" and self.is_done(case, stage):
                    break
                time.sleep(0.5)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                try:
                    process.wait(ENDING_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
        if not self.is_done(case, stage) and time.monotonic() < self.end:
            raise RuntimeError((home / "log").read_text()[-2000:])
        return self.reached(case)

    def is_done(self, case: Case, stage: Stage) -> bool:
        """Return whether a stage is done; a session that passes early ends in its training."""
        reached = self.reached(case)
        return bool(reached) and STAGES.index(reached) >= STAGES.index(stage)

    def command(self, case: Case) -> list[str]:
        # A session's training takes all cores otherwise, and the others wait for it.
        cores = str(max(1, detect_machine().cores // self.options.jobs))
        if self.options.stage == "prepare":
            size = SIZES[case.env_id]
            steps = size["total_timesteps"]
            settings = {
                **SETTINGS, "num_envs": size["num_envs"], "checkpoint_interval": steps // 4,
            }  # fmt: skip
            return [
                "run", case.instruction, "--env", case.env_id, "--model", "builtin",
                "--iterations", "1", "--no-videos", "--runs-dir", str(self.home(case)),
                "--steps", str(steps), "--seeds", "1", "--cores-per-run", cores,
                *(word for name, n in settings.items() for word in ("--set", f"{name}={n}")),
            ]  # fmt: skip
        unsafe = ["--unsafe-local"] * 2 if self.options.mps else []
        return ["resume", str(self.session_of(case)), "--cores-per-run", cores, *unsafe]

    def environment(self) -> dict[str, str]:
        env = {**os.environ, **ONE_THREAD}
        env.pop("CUDA_VISIBLE_DEVICES")
        if self.options.mps:
            env["CUDA_MPS_PIPE_DIRECTORY"] = str(self.options.mps)
        return env

    def measure(self, case: Case, session: Path) -> Row:
        """The row of a session; its papers, policy and one episode are kept beside the rows."""
        record = SessionRecord(session)
        result = record.result.read()
        assert result is not None
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
        plan = json.loads((session / "iter_1" / "plan.json").read_text())
        row = {
            "case": case.number, "env_id": case.env_id, "prompt": case.instruction,
            "outcome": STATUS[result.status].outcome, "message": result.message,
            "score": result.score, "confirmed_score": result.confirmed_score,
            "unchecked": list(result.unchecked_words),
            "steps": plan["train"]["total_timesteps"],
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
            with self.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            if self.options.write and "case" in row:
                write_table(self.rows)
        if "case" in row:
            print(json.dumps({k: v for k, v in row.items() if k != "values"}), flush=True)


def judge_again(case: Case, session: Path, row: Row) -> Row:
    """The row of a policy with the verdict by the criteria that `builtin` writes now."""
    result = SessionRecord(session).result.read()
    path = policy_file(session, result)
    if path is None:
        return row
    plan = json.loads((session / "iter_1" / "plan.json").read_text())
    config = TrainConfig.model_validate(plan["train"])
    prompt, env_id = case.instruction, case.env_id
    criteria = write_criteria(IntentRequest(prompt=prompt, env_id=env_id)).criteria
    columns = trajectory_columns(get_env_spec(env_id))
    request = JudgeRequest(prompt=prompt, env_id=env_id, criteria=criteria, columns=columns)
    intent = Intent(prompt=prompt, env_id=env_id, criteria=criteria, author="builtin")
    loop = LoopConfig(train=config)
    code = write_judge(request).code
    with tempfile.TemporaryDirectory() as folder:
        files = record_unseen_episodes(config, path, Path(folder), UNSEEN)
        judgment = judge_trajectories(intent, code, config, files, step=None, loop=loop)
    scores = {each.id: each for each in judgment.criteria}
    missed = [
        c.title for c in criteria if c.hard and not c.is_met(scores[c.id], loop.pass_threshold)
    ]
    verdict = "passed" if judgment.passed else "not_passed"
    return {**row, "again": verdict, "again_score": judgment.intent_score, "again_missed": missed}


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


def lines_of(file: Path) -> list[Row]:
    return list(read_lines(file)) if file.exists() else []


def committed_and(file: Path) -> tuple[list[Row], list[Row]]:
    """Machines and settings, and the newest row of each prompt in the order of the suite."""
    kept = RESULTS / f"{NAME}.json"
    before = json.loads(kept.read_text()) if kept.exists() else {"rows": [], "about": []}
    lines = [*before["about"], *before["rows"], *lines_of(file)]
    newest = {line["case"]: line for line in lines if "case" in line}
    about = [line for i, line in enumerate(lines) if "machine" in line and line not in lines[:i]]
    return about, [newest[case] for case in sorted(newest)]


def write_table(file: Path) -> None:
    about, rows = committed_and(file)
    write(NAME, report(rows, about), {"about": about, "rows": rows})


def verdict(row: Row) -> str:
    """The verdict by today's criteria, or that of the session."""
    return str(row.get("again") or row["outcome"])


def report(rows: list[Row], about: list[Row]) -> str:
    cases = load_suite(SUITE)
    passed = [row for row in rows if verdict(row) == "passed"]
    false = [row for row in passed if not row["truth"]]
    missed = [row for row in rows if row["truth"] and verdict(row) != "passed"]
    again = any("again" in row for row in rows)
    cells = [
        [
            f"{row['env_id'].rpartition('-')[2]}: {row['prompt']}",
            verdict(row).replace("_", " "),
            *([row["outcome"].replace("_", " ")] * again),
            "" if row["score"] is None else f"{row.get('again_score', row['score']):.2f}",
            "met" if row["truth"] else "missed",
            row["measured"],
            f"{row.get('height', 0):.2f} m, {row.get('lasted', 0):.0%}",
            f"{row['steps'] / 1e6:.0f} M",
            *(["; ".join(row.get("again_missed", ()))] * again),
        ]
        for row in rows
    ]
    settings = [
        f"- {each['machine']['cpu']}, {each['machine']['date']}: {each['settings']['jobs']} "
        "trainings at a time"
        + (", outside the sandbox, where CUDA's MPS shares the GPU out" * each["settings"]["mps"])
        for each in about
    ]
    parts = []
    for robot in ("G1", "Go1"):
        own = [row for row in rows if row["env_id"].endswith(f"-{robot}")]
        there = [case for case in cases if case.env_id.endswith(f"-{robot}")]
        parts.append([
            robot, f"{len(own)} of {len(there)}",
            str(sum(verdict(row) == "passed" for row in own)),
            str(sum(row["truth"] for row in own)),
            str(sum(row in false for row in own)), str(sum(row in missed for row in own)),
        ])  # fmt: skip
    not_run = [case for case in cases if case.number not in {row["case"] for row in rows}]
    sizes = " or ".join(f"{size['num_envs']:,}" for size in SIZES.values())
    how = (
        "`p2p run PROMPT --env ID --model builtin --iterations 1 --no-videos`, a session for each "
        f"prompt of the suite `mjlab`, trained on a GPU with {sizes} environments and for fewer "
        f"steps than a session's own 60 M, with target_kl {SETTINGS['target_kl']} and ent_coef "
        f"{SETTINGS['ent_coef']}; prepared, and judged where it had not passed in training, on a "
        "CPU in the sandbox. The "
        f"delivered policy is played for {EPISODES} episodes of 20 s on seeds of their own; ground "
        "truth is measured on its positions by plain MuJoCo "
        "([legged.py](../../src/p2p/benchmark/truth/legged.py))."
    )
    counted = (
        f"Passes that are true: {len(passed) - len(false)} of {len(passed)}. Height is the mean "
        "height of pelvis or trunk; beside it, how much of their time episodes lasted."
    )
    if again:
        then = [row for row in rows if row["outcome"] == "passed"]
        left = sum("again" not in row for row in rows)
        counted += (
            "\n\nThe sessions wrote their criteria, and the rewards that were trained on, before "
            f"today's: by them {len(then)} passed, {sum(not row['truth'] for row in then)} of them "
            "falsely. The verdict is by today's criteria, some of which were made for those, on "
            f"{UNSEEN} unseen episodes; {left} that had not passed were not judged again."
        )
    header = ["robot", "prompts run", "passed", "ground truth met", "false passes", "false fails"]
    columns = [
        "prompt", "verdict", *(["in its session"] * again), "score", "ground truth", "measured",
        "height, lasted", "trained", *(["required, but missed"] * again),
    ]  # fmt: skip
    lines = [
        "# Prompts on mjlab's robots, on one GPU", "", how, "", *settings, "",
        table(header, parts), "", counted, "", table(columns, cells), "",
    ]  # fmt: skip
    if not_run:
        lines += [f"Not run, for lack of time: {'; '.join(c.instruction for c in not_run)}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=[*STAGES, "again", "table"])
    parser.add_argument("--minutes", type=float, default=600.0, help="end after these")
    parser.add_argument("--jobs", type=int, default=2, help="sessions at a time")
    parser.add_argument("--cases", type=int, nargs="+", help="rows of the suite, from 0")
    parser.add_argument("--mps", type=Path, help="pipe folder of CUDA's MPS; not sandboxed")
    parser.add_argument("--folder", type=Path, default=Path("outputs/mjlab_suite"))
    parser.add_argument("--write", action="store_true", help="write the table to results/")
    options = parser.parse_args()
    suite = Suite(options)
    if options.stage != "table":
        suite.run()
    if options.write and committed_and(suite.rows)[1]:
        write_table(suite.rows)
    if suite.failed:
        raise SystemExit(f"{suite.failed} sessions failed")


if __name__ == "__main__":
    main()
