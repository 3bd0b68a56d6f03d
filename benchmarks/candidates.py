"""One reward per iteration against a search among several, by ground truth and environment steps.

python benchmarks/candidates.py [--seeds 1 2] [--jobs 15] [--minutes 9] [--only TEXT] [--write]

Ten shipped prompts, each as a whole session with the model `builtin` in three ways: one reward per
iteration, several candidates, and several of which the revised one starts from the policy that it
revises (`warm_start`). All runs have the same length; a way differs in how many candidates and
iterations it has. What a session says of its policy counts for nothing here: the suite's own ground
truth is measured in plain Gymnasium, from seeds of its own, for the best policy so far after every
iteration. Steps are those that were taken, not those that were allowed.

Sessions lie in --folder, and a line of JSON for each finished one in its cases.jsonl. After
--minutes, or when it is interrupted, the script stops the sessions; the next call with the same
folder resumes them. It needs no network, and one core for each of --jobs. --write keeps the table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from common import ONE_THREAD, descendants, described, machine, table, write

PROMPTS = (
    ("HalfCheetah-v5", "run forward"),
    ("HalfCheetah-v5", "crawl forward low to the ground"),
    ("HalfCheetah-v5", "do a backflip"),
    ("HalfCheetah-v5", "walk forward on your hind legs with the nose pointing up"),
    ("Hopper-v5", "hop forward"),
    ("Hopper-v5", "hop backward"),
    ("Hopper-v5", "jump up high"),
    ("Walker2d-v5", "walk forward"),
    ("Walker2d-v5", "walk backward"),
    ("Walker2d-v5", "walk forward at 0.5 m/s"),
)
CANDIDATES = 3


class Way(NamedTuple):
    """How a session goes about it."""

    candidates: int
    max_iterations: int
    warm_start: bool | None
    """Whether revisions train on from the policy of `based_on`; None: as their author says."""


ROUNDS = 2
"""Iterations of a search: each takes twice the steps of a run at most, see RUNGS of p2p.session."""
COLD, WARM = "candidates", "candidates, warm start"
WAYS = {
    "one reward": Way(1, 2 * ROUNDS, None),
    COLD: Way(CANDIDATES, ROUNDS, False),
    WARM: Way(CANDIDATES, ROUNDS, True),
}
UNMEASURED = ("cancelled", "error")
"""What ends a session so that nothing can be said of its way."""
TO_RESUME = 75
"""The exit status of a session that was stopped on the way."""
STOPPING_S = 60.0
"""What a session that is told to stop may take to say so, before it is killed."""

Case = tuple[str, str, int, str]
"""Environment, prompt, seed, way."""
Row = dict[str, Any]


# --- one session ----------------------------------------------------------------------------------


def session_name(case: Case) -> str:
    env_id, prompt, seed, way = case
    place = [*PROMPTS].index((env_id, prompt))
    return f"session_{place:02}_{seed}_{[*WAYS].index(way)}"


def one_session(case: Case, options: dict[str, Any], folder: Path) -> Row | None:
    """Run or resume the session and measure what came of it; None: it was stopped on the way."""
    from p2p.commands.console import run_app
    from p2p.commands.run import program
    from p2p.records.iteration_record import SessionRecord

    env_id, prompt, seed, way = case
    chosen = WAYS[way]
    record = SessionRecord(folder / session_name(case))
    named = ["--session-id", record.path.name, "--runs-dir", str(folder)]
    named += ["--unsafe-local"] * 2 * options.pop("unsafe_local", False)
    if record.config.exists():
        command = [*named, "--resume"]
    else:
        loop = {
            "model": "builtin",
            "seeds": [seed],
            "videos": False,
            "candidates": chosen.candidates,
            "max_iterations": chosen.max_iterations,
            **options,
        }
        command = [*named, "--prompt", prompt, "--env", env_id, "--loop-config", json.dumps(loop)]
    set_warm_starts(chosen.warm_start)
    result = record.result.read()
    if result is None or result.status in UNMEASURED:
        with suppress(SystemExit):
            run_app(program, "run_session", command)
        result = record.result.read()
    if result is None or result.status == "cancelled":
        return None
    if result.status in UNMEASURED:
        raise SystemExit(f"{record.path.name}: {result.message}")
    clock = record.clock.read()
    course = course_of(record, env_id, prompt)
    return {
        "env_id": env_id,
        "prompt": prompt,
        "seed": seed,
        "way": way,
        "status": result.status,
        "judged": result.status == "passed",
        "score": result.score,
        "iterations": result.iterations,
        "steps": steps_taken(record),
        "truth": bool(course and course[-1]["truth"]),
        "value": course[-1]["value"] if course else None,
        "course": course,
        "warm_starts": sum(
            bool(plan.start_policy)
            for each in record.iteration_records()
            if (plan := each.plan.read()) is not None
        ),
        "choices": [
            search.reason
            for each in record.iteration_records()
            if (search := each.search.read()) is not None
        ],
        "minutes": round(clock.seconds / 60, 2) if clock else None,
        **{key: machine()[key] for key in ("cpu", "date")},
    }


def set_warm_starts(wanted: bool | None) -> None:
    """Let every revision of this process's session start so; None: as its author says."""
    if wanted is None:
        return
    from p2p.session.agents import SessionAgents

    revise = SessionAgents.revise

    def revised(agents: SessionAgents, session: Any, iteration: int) -> Any:
        return revise(agents, session, iteration).model_copy(update={"warm_start": wanted})

    SessionAgents.revise = revised  # type: ignore[method-assign]


def course_of(record: Any, env_id: str, prompt: str) -> list[Row]:
    """After each iteration: the steps so far, and the ground truth of the best policy so far."""
    from p2p.benchmark.measuring import play_policy
    from p2p.benchmark.suite import load_suite
    from p2p.benchmark.truth import TRUTHS

    cases = load_suite("mujoco_prompts")
    suite = next(c for c in cases if (c.env_id, c.instruction) == (env_id, prompt))
    assert suite.truth is not None
    assert suite.threshold is not None
    truth = TRUTHS[suite.truth]
    course: list[Row] = []
    best, value, steps = -math.inf, None, 0
    for each in record.iteration_records():
        steps += iteration_steps(each)
        run, judgment = each.best_run.read(), each.read_judgment()
        # What counts for an iteration is its judgement, which held-out seeds may have lowered.
        score = judgment.intent_score if judgment else None
        if run is not None and score is not None:
            standing = score + (judgment.passed if judgment else False)
            if standing > best:
                policy = run.policy(each.path) / "policy.safetensors"
                value = fmean(truth.measure(e) for e in play_policy(env_id, policy))
                best = standing
        course.append(
            {
                "steps": steps,
                "score": score,
                "value": None if value is None else round(value, 3),
                "truth": value is not None and truth.passes(value, suite.threshold),
            }
        )
    return course


def steps_taken(record: Any) -> int:
    """All environment steps of a session's trainings; one that continues another has its own."""
    return sum(map(iteration_steps, record.iteration_records()))


def iteration_steps(iteration: Any) -> int:
    total = 0
    for run in iteration.runs():
        training, _ = run.parse_scalars()
        config = run.config.read()
        if training and config is not None:
            before = training[0]["global_step"] - config.batch_size
            total += training[-1]["global_step"] - before
    return total


# --- all sessions ---------------------------------------------------------------------------------


class Pool:
    """Sessions side by side, each a process, until it is time to stop."""

    def __init__(self, folder: Path, options: dict[str, Any], end: float) -> None:
        self.folder, self.options, self.end = folder, options, end
        self.stopped = threading.Event()

    def run(self, case: Case) -> Row | None:
        """What came of a case; None: it is left for the next call. Raises RuntimeError."""
        if self.over():
            return None
        job = json.dumps([case, self.options, str(self.folder)])
        log = self.folder / f"{session_name(case)}.log"
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, __file__, "--one", job],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **ONE_THREAD},
                start_new_session=True,
            )
            output = self._wait(process)
        if process.returncode == TO_RESUME or (process.returncode and self.over()):
            return None
        if process.returncode:
            tail = log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{': '.join(map(str, case))} ended with an error:\n{tail}")
        row: Row = json.loads(output.splitlines()[-1])
        return row

    def over(self) -> bool:
        return self.stopped.is_set() or time.monotonic() >= self.end

    def _wait(self, process: subprocess.Popen[str]) -> str:
        killed_at = math.inf
        while True:
            try:
                return process.communicate(timeout=0.5)[0]
            except subprocess.TimeoutExpired:
                now = time.monotonic()
                if self.over() and killed_at == math.inf:
                    process.terminate()
                    killed_at = now + STOPPING_S
                if now >= killed_at:
                    for pid in (process.pid, *descendants(process.pid)):
                        os.kill(pid, signal.SIGKILL)


def read_rows(path: Path) -> list[Row]:
    """The finished cases of a file; a last line that was torn is none."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def case_of(row: Row) -> Case:
    return row["env_id"], row["prompt"], row["seed"], row["way"]


def without_revision(rows: list[Row]) -> list[Row]:
    """Warm-started sessions that need not be run: the same seed passed before any revision."""
    done = {case_of(row) for row in rows}
    same = [{**row, "way": WARM} for row in rows if row["way"] == COLD and row["iterations"] == 1]
    return [row for row in same if case_of(row) not in done]


def after(row: Row, iterations: int) -> Row:
    """How a session stood after so many iterations at most."""
    course = row["course"][:iterations]
    return course[-1] if course else {"truth": False, "steps": 0}


def in_all_ways(rows: list[Row]) -> list[Row]:
    """Rows of prompts and seeds that were run in every way: sums over others would not compare."""
    done, ways = {case_of(row) for row in rows}, {row["way"] for row in rows}
    return [row for row in rows if all((*case_of(row)[:3], way) in done for way in ways)]


def report(rows: list[Row], about: list[str]) -> str:
    compared = in_all_ways(rows)

    def of(way: str, *prompt: str) -> list[Row]:
        if not prompt:
            return [r for r in compared if r["way"] == way]
        return [r for r in rows if (r["way"], r["env_id"], r["prompt"]) == (way, *prompt)]

    def shown(mine: list[Row]) -> list[str]:
        if not mine:
            return ["-", "-"]
        passed = f"{sum(r['truth'] for r in mine)} of {len(mine)}"
        return [passed, f"{fmean(r['steps'] for r in mine) / 1000:,.0f}k"]

    lines = [
        [f"{env_id}: {prompt}", *(c for way in WAYS for c in shown(of(way, env_id, prompt)))]
        for env_id, prompt in PROMPTS
    ]
    lines.append(["**all**", *(c for way in WAYS for c in shown(of(way)))])
    most = max(way.max_iterations for way in WAYS.values())
    limits = [
        [
            f"at most {n}",
            *(
                cell
                for way, chosen in WAYS.items()
                for cell in (
                    shown([after(r, n) for r in of(way)])
                    if n <= chosen.max_iterations
                    else ["", ""]
                )
            ),
        ]
        for n in range(1, most + 1)
    ]
    notes = [
        f"{way}: judges passed {sum(r['judged'] for r in of(way))} of {len(of(way))}, of which "
        f"ground truth agrees with {sum(r['judged'] and r['truth'] for r in of(way))}"
        f"; {sum(r['warm_starts'] for r in of(way))} of "
        f"{sum(max(0, r['iterations'] - 1) for r in of(way))} revisions started from a policy"
        for way in WAYS
    ]
    seeds = sorted({r["seed"] for r in rows})
    how = (
        "Whole sessions with the model `builtin`: ground truth passed, and mean environment steps "
        f"taken, over seeds {', '.join(map(str, seeds)) or 'none'}. `one reward`: at most "
        f"{WAYS['one reward'].max_iterations} iterations with one reward each. `candidates`: "
        f"{CANDIDATES} of them, at most {ROUNDS} iterations, so no more steps; every revision is "
        "trained from the start. `warm start`: the same, but the revised candidate starts from the "
        "policy that it revises; a session without a revision is the same in both."
    )
    header = [f"{way}, {what}" for way in WAYS for what in ("truth", "steps")]
    return "\n".join(
        ["# One reward or several", "", how, "", *about, "", table(["", *header], lines), "",
         "The same sessions, as they stood after so many iterations:", "",
         table(["iterations", *header], limits), "", *(f"- {line}" for line in notes), ""]
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name has one of these")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, help="of each run; default: as the environment has it")
    parser.add_argument("--jobs", type=int, default=1, help="sessions side by side, one core each")
    parser.add_argument("--minutes", type=float, help="stop after so many; the next call resumes")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/candidates"), help="of sessions and cases.jsonl"
    )
    parser.add_argument("--rows", nargs="*", type=Path, default=[], help="cases.jsonl of elsewhere")
    parser.add_argument("--note", action="append", default=[], help="where --rows were measured")
    parser.add_argument("--keep", action="store_true", help="keep the folders of finished sessions")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run, and stop")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    parser.add_argument("--unsafe-local", action="store_true", help="without a sandbox")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        _one(args.one)
        return

    before, end = machine(), time.monotonic() + 60 * (args.minutes or math.inf)
    folder: Path = args.folder.absolute()
    options: dict[str, Any] = {"cores_per_run": 1, "max_parallel": 1}
    options |= {"unsafe_local": True} if args.unsafe_local else {}
    options |= {} if args.steps is None else {"total_timesteps": args.steps}
    # Seed by seed, so that an unfinished benchmark has every prompt as often as possible.
    wanted: list[Case] = [
        (env_id, prompt, seed, way)
        for seed in args.seeds
        for env_id, prompt in PROMPTS
        for way in args.ways
        if not args.only or any(text in f"{env_id}: {prompt}" for text in args.only)
    ]
    lines = folder / "cases.jsonl"
    rows = [row for path in (*args.rows, lines) for row in read_rows(path)]
    done = {case_of(row) for row in rows}
    left = [case for case in wanted if case not in done]
    print(f"{len(done)} cases are done, {len(left)} to do", flush=True)
    if args.dry_run:
        print("\n".join(": ".join(map(str, case)) for case in left))
    elif left:
        folder.mkdir(parents=True, exist_ok=True)
        pool = Pool(folder, options, end)
        for seed in args.seeds:
            mine = [case for case in left if case[2] == seed]
            _run_all(pool, [case for case in mine if case[3] != WARM], rows, args)
            done = {case_of(row) for row in without_revision(rows)}
            _run_all(pool, [c for c in mine if c[3] == WARM and c not in done], rows, args)
    if WARM in args.ways:
        rows += without_revision(rows)
    notes = [f"- {note}" for note in args.note]
    text = report(rows, notes or described(before, machine()))
    print(text)
    if args.write:
        write("candidates", text, {"before": before, "rows": rows})


def _run_all(pool: Pool, left: list[Case], rows: list[Row], args: argparse.Namespace) -> None:
    """Add the rows of these cases, each on disk as soon as it is there."""
    signal.signal(signal.SIGTERM, lambda *_: pool.stopped.set())
    signal.signal(signal.SIGINT, lambda *_: pool.stopped.set())
    waiting = 0
    with ThreadPoolExecutor(args.jobs) as threads:
        for future in as_completed([threads.submit(pool.run, case) for case in left]):
            try:
                row = future.result()
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                continue
            if row is None:
                waiting += 1
                continue
            rows.append(row)
            with (pool.folder / "cases.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
            if not args.keep:
                shutil.rmtree(pool.folder / session_name(case_of(row)), ignore_errors=True)
    if waiting:
        print(f"{waiting} cases are left: the same command resumes them", flush=True)


def _one(job: str) -> None:
    """The process of one session: its row is the last line that it prints."""
    from p2p.session.stopping import kill_descendants

    (env_id, prompt, seed, way), options, folder = json.loads(job)
    row = one_session((env_id, prompt, seed, way), options, Path(folder))
    print(json.dumps(row), flush=True)
    kill_descendants()
    os._exit(TO_RESUME if row is None else 0)  # a thread that still waits does not hold up the end


if __name__ == "__main__":
    main()
