"""Prompts to policies without a language model: does the built-in author get there?

python benchmarks/builtin_prompts.py [--only TEXT] [--skip TEXT] [--seeds 1 2] [--jobs 1] [--write]

Each job is a whole session with the model `builtin`: criteria, reward, judge, training, judgement,
confirmation on held-out seeds, revision. What the session says of its policy is then held against a
measurement that knows nothing of criteria and judges: the policy is played in plain Gymnasium, from
seeds of its own, and the asked motion is read off the simulator. One line of JSON per job; with
--write, jobs that are done are kept in results/builtin_prompts.json, and an interrupted benchmark
resumes where it stopped. A list `notes` in that file is kept and stands under the table: what a
reader must know of sessions that are not in it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
from common import ONE_THREAD, RESULTS, described, in_process, machine, table, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EPISODES, FIRST_SEED = 8, 20_000
MAX_ITERATIONS = 4


# --- what a motion is, seen from outside ----------------------------------------------------------


@dataclass(frozen=True)
class Played:
    """One episode in plain Gymnasium: the state after each step."""

    qpos: np.ndarray
    qvel: np.ndarray
    xpos: np.ndarray
    dt: float
    horizon: int

    @property
    def seconds(self) -> float:
        """Of the whole time there was, not only of what was used."""
        return self.horizon * self.dt

    @property
    def lasted(self) -> float:
        """Share of the time that was used."""
        return len(self.qpos) / self.horizon


def forward_speed(e: Played) -> float:
    return float(e.xpos[-1, 1, 0] - e.xpos[0, 1, 0]) / e.seconds


def backward_speed(e: Played) -> float:
    return -forward_speed(e)


def wandering(e: Played) -> float:
    """How far the torso got from its start at most, in metres."""
    return float(np.max(np.linalg.norm(e.xpos[:, 1, :2] - e.xpos[0, 1, :2], axis=-1)))


def torso_height(e: Played) -> float:
    return float(np.mean(e.xpos[:, 1, 2]))


def last_height(e: Played) -> float:
    return float(np.mean(e.xpos[-len(e.xpos) // 5 :, 1, 2]))


def turning(e: Played) -> float:
    """Of a free body: how fast its heading turns counterclockwise, in rad/s."""
    w, x, y, z = e.qpos[:, 3:7].T
    heading = np.unwrap(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))
    return float(heading[-1] - heading[0]) / e.seconds


def lasted(e: Played) -> float:
    return e.lasted


def last_gap(e: Played) -> float:
    """Reacher: fingertip to target in the last fifth of the time, in metres."""
    gap = np.linalg.norm(e.xpos[:, 3, :2] - e.xpos[:, 4, :2], axis=-1)
    return float(np.mean(gap[-len(gap) // 5 :]))


Measure = tuple[str, "Callable[[Played], float]"]
SPEED: Measure = ("forward speed, m/s", forward_speed)
BACK: Measure = ("backward speed, m/s", backward_speed)
PLACE: Measure = ("farthest from the start, m", wandering)
HEIGHT: Measure = ("torso height, m", torso_height)
LASTED: Measure = ("share of the time lasted", lasted)
TURN: Measure = ("turning rate, rad/s", turning)

PROMPTS: dict[tuple[str, str], tuple[Measure, ...]] = {
    ("HalfCheetah-v5", "run forward fast"): (SPEED,),
    ("HalfCheetah-v5", "run backward"): (BACK,),
    ("HalfCheetah-v5", "stand still"): (PLACE,),
    ("HalfCheetah-v5", "crawl low"): (HEIGHT, SPEED),
    ("Ant-v5", "walk forward"): (SPEED, LASTED),
    ("Ant-v5", "walk backward"): (BACK, LASTED),
    ("Ant-v5", "spin in place"): (TURN, PLACE),
    ("Ant-v5", "stand still"): (PLACE, LASTED),
    ("Hopper-v5", "hop forward"): (SPEED, LASTED),
    ("Hopper-v5", "stand"): (LASTED, PLACE),
    ("Walker2d-v5", "walk forward"): (SPEED, LASTED),
    ("Swimmer-v5", "swim forward"): (SPEED,),
    ("Reacher-v5", "reach the target"): (("distance at the end, m", last_gap),),
    ("InvertedPendulum-v5", "balance"): (LASTED,),
    ("InvertedDoublePendulum-v5", "balance"): (LASTED,),
    ("HumanoidStandup-v5", "get up"): (("torso height at the end, m", last_height),),
}


def play(env_id: str, policy_file: Path) -> list[Played]:
    """Deterministic episodes of a saved policy, in plain Gymnasium."""
    import gymnasium as gym
    from gymnasium.wrappers import TimeAwareObservation

    from p2p.training.policies.policy import Policy

    policy = Policy.load(policy_file)
    env: gym.Env[Any, Any] = gym.make(env_id)
    if policy.observe_time:
        env = TimeAwareObservation(env, normalize_time=True)
    horizon = env.spec.max_episode_steps if env.spec and env.spec.max_episode_steps else 1000
    episodes = []
    for seed in range(FIRST_SEED, FIRST_SEED + EPISODES):
        obs, _ = env.reset(seed=seed)
        data, over = env.unwrapped.data, False  # type: ignore[attr-defined]
        states: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        while not over:
            obs, _, terminated, truncated, _ = env.step(policy.act(obs[None])[0])
            states.append((data.qpos.copy(), data.qvel.copy(), data.xpos.copy()))
            over = terminated or truncated
        qpos, qvel, xpos = (np.stack(part) for part in zip(*states, strict=True))
        episodes.append(Played(qpos, qvel, xpos, env.unwrapped.dt, horizon))  # type: ignore[attr-defined]
    return episodes


# --- one job: a session in a process of its own ---------------------------------------------------


def one_job(env_id: str, prompt: str, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Run the session and measure what came of it."""
    began = time.monotonic()
    unsafe = ["--unsafe-local"] * 2 * options.pop("unsafe_local", False)
    loop = {
        "model": "builtin",
        "seeds": [seed],
        "max_iterations": MAX_ITERATIONS,
        "videos": False,
        **options,
    }
    with tempfile.TemporaryDirectory(prefix="p2p-prompts-") as runs:
        command = [
            *(sys.executable, "-m", "p2p.session.run_session", "--prompt", prompt),
            *("--env", env_id, "--loop-config", json.dumps(loop), "--runs-dir", runs),
            *unsafe,
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        minutes = (time.monotonic() - began) / 60
        folders = [path.parent for path in Path(runs).glob("*/result.json")]
        if not folders:
            raise SystemExit(f"{env_id} {prompt!r} {seed}: no session\n{ended.stderr[-4000:]}")
        result = json.loads((folders[0] / "result.json").read_text())
        outcome: dict[str, Any] = {
            "env_id": env_id,
            "prompt": prompt,
            "seed": seed,
            "status": result["status"],
            "passed": result["status"] == "passed",
            "score": result["score"],
            "confirmed": result["confirmed_score"],
            "iterations": result["iterations"],
            "minutes": round(minutes, 2),
            "measured": {},
        }
        if result["policy"]:
            archive = folders[0] / result["policy"]
            episodes = play(env_id, archive.with_name("policy.safetensors"))
            outcome["measured"] = {
                name: round(mean(measure(e) for e in episodes), 3)
                for name, measure in PROMPTS[env_id, prompt]
            }
        if not outcome["passed"]:
            outcome["message"] = result["message"]
            outcome["criteria"] = _last_scores(folders[0])
    return outcome


def _last_scores(session: Path) -> dict[str, float | None]:
    """Per criterion, in the last iteration that was judged."""
    files = sorted(session.glob("iter_*/judgment.json"))
    if not files:
        return {}
    judgment = json.loads(files[-1].read_text())
    return {c["id"]: c["score"] and round(c["score"], 2) for c in judgment["criteria"]}


# --- all jobs -------------------------------------------------------------------------------------


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.3g}"


def report(
    runs: Sequence[dict[str, Any]],
    about: Sequence[str],
    seeds: Sequence[int],
    notes: Sequence[str] = (),
) -> str:
    rows = []
    for (env_id, prompt), measures in PROMPTS.items():
        mine = [r for r in runs if (r["env_id"], r["prompt"]) == (env_id, prompt)]
        mine.sort(key=lambda run: run["seed"])
        if not mine:  # shown, so that a count of passes never hides what was left out
            rows.append([f"{env_id}: {prompt}", "no finished session", *["-"] * 4])
            continue
        scores = [r["confirmed"] if r["confirmed"] is not None else r["score"] for r in mine]
        measured = [
            f"{name}: {', '.join(_shown(run['measured'].get(name)) for run in mine)}"
            for name, _ in measures
        ]
        rows.append(
            [
                f"{env_id}: {prompt}",
                f"{sum(r['passed'] for r in mine)} of {len(mine)}",
                ", ".join(map(_shown, scores)),
                "; ".join(measured),
                ", ".join(str(r["iterations"]) for r in mine),
                ", ".join(f"{r['minutes']:.1f}" for r in mine),
            ]
        )
    passed = sum(run["passed"] for run in runs)
    asked = {(run["env_id"], run["prompt"]) for run in runs}
    count = (
        f"Passed: {passed} of {len(runs)} finished sessions, over {len(asked)} of the "
        f"{len(PROMPTS)} prompts; {len(PROMPTS) * len(seeds)} sessions make the whole table."
    )
    how = (
        "Whole sessions with the model `builtin`, at most "
        f"{MAX_ITERATIONS} iterations each; numbers are per seed ({', '.join(map(str, seeds))}, "
        "in this order). "
        "A pass is confirmed on 16 starts that training never saw. The measurement is the mean of "
        f"{EPISODES} further episodes in plain Gymnasium and knows nothing of the judge; speeds "
        "and rates are over the full time, also where an episode ended early."
    )
    header = ["", "passed", "score", "measured independently", "iterations", "minutes"]
    return "\n".join(
        ["# Built-in author", "", how, "", *about, "",
         count, "", table(header, rows), "", *(f"- {note}" for note in notes), ""]
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="jobs whose name has one of these")
    parser.add_argument("--skip", nargs="*", default=[], help="but none whose name has these")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
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
    if args.jobs > 1:
        options |= {"cores_per_run": 1, "max_parallel": 1}
    threads = ONE_THREAD if args.jobs > 1 else {"JAX_PLATFORMS": "cpu"}
    # Seed by seed, so that an unfinished benchmark has every prompt as often as possible.
    wanted = [
        (env_id, prompt, seed)
        for seed in args.seeds
        for env_id, prompt in PROMPTS
        if not args.only or any(text in f"{env_id}: {prompt}" for text in args.only)
        if not any(text in f"{env_id}: {prompt}" for text in args.skip)
    ]
    kept = RESULTS / "builtin_prompts.json"
    before, runs, notes = machine(), [], []
    if kept.exists() and not args.fresh:
        earlier = json.loads(kept.read_text())
        before, runs, notes = earlier["before"], earlier["runs"], earlier.get("notes", [])
    done = {(r["env_id"], r["prompt"], r["seed"]) for r in runs}
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = [
            pool.submit(in_process, __file__, (*job, options), threads)
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
                text = report(runs, described(before, after), args.seeds, notes)
                record = {"before": before, "after": after, "notes": notes, "runs": runs}
                write("builtin_prompts", text, record)
    print(report(runs, described(before, machine()), args.seeds, notes))


if __name__ == "__main__":
    main()
