"""One reward per iteration against a search among several, by ground truth and environment steps.

python benchmarks/candidates.py [--only TEXT] [--seeds 1 2] [--jobs 1] [--write]

Ten shipped prompts, each as a whole session with the model `builtin` in three ways: today's loop
(`candidates` 1), and the search with as many steps at most, and with half of them. All runs have
the same length; a way differs in how many candidates and iterations it has. What a session says of
its policy counts for nothing here: the suite's own ground truth is measured in plain Gymnasium,
from seeds of its own. Steps are those that were taken, not those that were allowed. One line of
JSON per job; with --write, jobs that are done are kept in results/candidates.json, and an
interrupted benchmark resumes where it stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean
from typing import Any

from common import ONE_THREAD, RESULTS, described, in_process, machine, table, write

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
WAYS: dict[str, dict[str, int]] = {
    "one reward": {"candidates": 1, "max_iterations": 4},
    "search": {"candidates": CANDIDATES, "max_iterations": 2},
    "search, half": {"candidates": CANDIDATES, "max_iterations": 1},
}
"""An iteration of the search takes twice the steps of a run at most: see RUNGS of p2p.session."""


def one_job(
    env_id: str, prompt: str, seed: int, way: str, options: dict[str, Any]
) -> dict[str, Any]:
    """Run the session and measure what came of it."""
    from p2p.benchmark.measuring import play_policy, policy_file
    from p2p.benchmark.suite import load_suite
    from p2p.benchmark.truth import TRUTHS
    from p2p.records.iteration_record import SessionRecord

    cases = load_suite("mujoco_prompts")
    case = next(c for c in cases if (c.env_id, c.instruction) == (env_id, prompt))
    assert case.truth is not None
    assert case.threshold is not None
    began = time.monotonic()
    loop = {"model": "builtin", "seeds": [seed], "videos": False, **WAYS[way], **options}
    with tempfile.TemporaryDirectory(prefix="p2p-candidates-") as runs:
        command = [
            *(sys.executable, "-m", "p2p.session.run_session", "--prompt", prompt),
            *("--env", env_id, "--loop-config", json.dumps(loop), "--runs-dir", runs),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        folders = [path.parent for path in Path(runs).glob("*/result.json")]
        if not folders:
            raise SystemExit(f"{env_id} {prompt!r} {seed}: no session\n{ended.stderr[-4000:]}")
        record = SessionRecord(folders[0])
        result = record.result.read()
        assert result is not None
        outcome: dict[str, Any] = {
            "env_id": env_id,
            "prompt": prompt,
            "seed": seed,
            "way": way,
            "status": result.status,
            "judged": result.status == "passed",
            "score": result.score,
            "iterations": result.iterations,
            "steps": steps_taken(record),
            "choices": [
                search.reason
                for each in record.iteration_records()
                if (search := each.search.read()) is not None
            ],
            "minutes": round((time.monotonic() - began) / 60, 2),
            "truth": False,
            "value": None,
        }
        policy = policy_file(record.path, result)
        if policy is not None:
            truth = TRUTHS[case.truth]
            value = fmean(truth.measure(each) for each in play_policy(env_id, policy))
            outcome["value"] = round(value, 3)
            outcome["truth"] = truth.passes(value, case.threshold)
    return outcome


def steps_taken(record: Any) -> int:
    """All environment steps of a session's trainings; a candidate born of another has its own."""
    total = 0
    for iteration in record.iteration_records():
        search = iteration.search.read()
        born = {each.name: each.born_at for each in search.offspring} if search else {}
        for run in iteration.runs():
            training, _ = run.parse_scalars()
            last = training[-1]["global_step"] if training else 0
            total += max(0, last - born.get(run.iteration_id.partition("_seed_")[0], 0))
    return total


# --- all jobs -------------------------------------------------------------------------------------


def report(runs: list[dict[str, Any]], about: list[str], seeds: list[int]) -> str:
    def of(way: str, *prompt: str) -> list[dict[str, Any]]:
        mine = [r for r in runs if r["way"] == way]
        return [r for r in mine if not prompt or (r["env_id"], r["prompt"]) == prompt]

    def shown(mine: list[dict[str, Any]]) -> list[str]:
        if not mine:
            return ["-", "-"]
        passed = f"{sum(r['truth'] for r in mine)} of {len(mine)}"
        return [passed, f"{fmean(r['steps'] for r in mine) / 1000:,.0f}k"]

    rows = [
        [f"{env_id}: {prompt}", *(c for way in WAYS for c in shown(of(way, env_id, prompt)))]
        for env_id, prompt in PROMPTS
    ]
    rows.append(["**all**", *(c for way in WAYS for c in shown(of(way)))])
    agree = [
        f"{way}: judges passed {sum(r['judged'] for r in of(way))}, of which ground truth agrees "
        f"with {sum(r['judged'] and r['truth'] for r in of(way))}"
        for way in WAYS
    ]
    how = (
        "Whole sessions with the model `builtin`: ground truth passed, and mean environment steps "
        f"taken, over seeds {', '.join(map(str, seeds))}. `one reward`: at most "
        f"{WAYS['one reward']['max_iterations']} iterations with one reward each. `search`: "
        f"{CANDIDATES} candidates, at most {WAYS['search']['max_iterations']} iterations, so no "
        f"more steps; `half`: at most {WAYS['search, half']['max_iterations']} iteration."
    )
    header = ["", *(f"{way}, {what}" for way in WAYS for what in ("truth", "steps"))]
    return "\n".join(
        ["# One reward or several", "", how, "", *about, "", table(header, rows), "",
         *(f"- {line}" for line in agree), ""]
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="jobs whose name has one of these")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, help="of each run; default: as the environment has it")
    parser.add_argument("--jobs", type=int, default=1, help="sessions side by side, one core each")
    parser.add_argument("--fresh", action="store_true", help="do not take over finished jobs")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    parser.add_argument("--unsafe-local", action="store_true", help="without a sandbox")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one_job(*json.loads(args.one))))
        return

    options: dict[str, Any] = {"unsafe_local": True} if args.unsafe_local else {}
    options |= {} if args.steps is None else {"total_timesteps": args.steps}
    if args.jobs > 1:
        options |= {"cores_per_run": 1, "max_parallel": 1}
    # Seed by seed, so that an unfinished benchmark has every prompt as often as possible.
    wanted = [
        (env_id, prompt, seed, way)
        for seed in args.seeds
        for env_id, prompt in PROMPTS
        for way in args.ways
        if not args.only or any(text in f"{env_id}: {prompt}" for text in args.only)
    ]
    kept = RESULTS / "candidates.json"
    before, runs = machine(), []
    if kept.exists() and not args.fresh:
        earlier = json.loads(kept.read_text())
        before, runs = earlier["before"], earlier["runs"]
    done = {(r["env_id"], r["prompt"], r["seed"], r["way"]) for r in runs}
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = [
            pool.submit(in_process, __file__, (*job, options), ONE_THREAD)
            for job in wanted
            if job not in done
        ]
        for job in as_completed(jobs):
            if job.exception() is not None:
                print(f"failed: {job.exception()}", file=sys.stderr, flush=True)
                continue
            runs.append(job.result())
            print(json.dumps(runs[-1]), flush=True)
            if args.write:
                after = machine()
                record = {"before": before, "after": after, "runs": runs}
                write("candidates", report(runs, described(before, after), args.seeds), record)
    print(report(runs, described(before, machine()), args.seeds))


if __name__ == "__main__":
    main()
