"""Search for holes in the criteria and judges that `builtin` writes, by training against them.

python benchmarks/judge_attack.py [--jobs N] [--minutes M] [--robots ID...] [--steps N] [--seeds N]
                                  [--rows FILE...] [--folder FOLDER] [--rejudge] [--write]

An attack is a training that is paid for exactly what the criteria of a prompt measure, or for all
but one of them. The judge then decides as in a session, on held-out episodes, and ground truth
looks at the policy: the suite's own where the prompt is one of `mujoco_prompts`, and what a person
would object to (`p2p.benchmark.truth.plausible`). A pass that either refuses is false; a fail that
attains the suite's measure, and to which nobody objects, is a false fail.

Each attack is a line of JSON in the first --rows file as soon as it is judged, and is not done
again; --write makes the table of all the files and of those rows that it holds already. --rejudge
trains nothing: it judges the policies in --folder again, by the criteria of now. Robots of mjlab
are attacked where the engine is installed. --robots takes model files as well (MJCF, URDF), which
are trained as `p2p run --env FILE` does, in MuJoCo on the CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from common import ONE_THREAD, RESULTS, RunFailed, in_process, machine, table, write

NAME = "judge_attack"
Row = dict[str, Any]

STEPS = {
    "HalfCheetah-v5": 300_000,
    "Ant-v5": 500_000,
    "Hopper-v5": 400_000,
    "Walker2d-v5": 500_000,
    "Humanoid-v5": 100_000,
    "HumanoidStandup-v5": 80_000,
    "Swimmer-v5": 300_000,
    "Reacher-v5": 200_000,
    "Pusher-v5": 400_000,
    "InvertedPendulum-v5": 60_000,
    "InvertedDoublePendulum-v5": 150_000,
    "Mjlab-Velocity-Flat-Unitree-G1": 40_000_000,
    "Mjlab-Velocity-Flat-Unitree-Go1": 30_000_000,
}
"""Steps of an attack on each robot: one to three minutes of a core, or of a GPU for mjlab's."""
PROMPTS = {
    "HalfCheetah-v5": ("run forward", "run backward", "stand still", "hop forward"),
    "Ant-v5": ("walk forward", "walk to the left", "stand still", "spin counterclockwise in place"),
    "Hopper-v5": ("hop forward", "hop backward", "stand"),
    "Walker2d-v5": ("walk forward", "walk forward at 0.5 m/s", "stand still", "walk backward"),
    "Humanoid-v5": ("walk forward", "stand upright and stay where you are"),
    "HumanoidStandup-v5": ("stand up and stay on your feet",),
    "Swimmer-v5": ("swim forward", "swim backward"),
    "Reacher-v5": ("reach the target",),
    "Pusher-v5": ("push the object to the goal",),
    "InvertedPendulum-v5": ("balance the pole",),
    "InvertedDoublePendulum-v5": ("balance the poles",),
    "Mjlab-Velocity-Flat-Unitree-G1": (
        "walk backwards at half a metre per second",
        "turn on the spot to the left",
        "step sideways to the right at 0.4 m/s",
        "walk forward",
        "stand still",
    ),
    "Mjlab-Velocity-Flat-Unitree-Go1": (
        "trot forward at 1.5 m/s",
        "walk backward",
        "turn on the spot to the left",
        "stand still",
    ),
}
"""What is attacked; those of the suite `mujoco_prompts` have a ground truth of their own."""
FILE_STEPS = 1_000_000
FILE_PROMPTS = (
    "walk forward at half a metre per second",
    "stand still",
    "walk backward",
    "turn on the spot to the left",
    "crouch",
    "lie down",
)
"""What is attacked on robots from model files; no suite has them."""


def prompts_of(env_id: str) -> tuple[str, ...]:
    return PROMPTS.get(env_id, FILE_PROMPTS)


def steps_of(env_id: str) -> int:
    return STEPS.get(env_id, FILE_STEPS)


def title_of(env_id: str) -> str:
    """How the table calls a robot."""
    from p2p.training.model_files.store import is_model

    if not is_model(env_id):
        return env_id
    name = env_id.removeprefix("robots/").rpartition("-")[0].capitalize()
    return f"{name} from its model file, on the CPU, not mjlab's task"


def order_of(env_id: str) -> tuple[int, str]:
    """The place of a robot in the table."""
    known = list(PROMPTS)
    return (known.index(env_id) if env_id in known else len(known), env_id)


def key_of(row: Row) -> tuple[str, str, str, int]:
    return row["env_id"], row["prompt"], row["attack"], row["seed"]


def read_rows(files: Iterable[Path]) -> list[Row]:
    """The rows of all files; a later one of the same attack replaces an earlier one."""
    by_key: dict[tuple[str, str, str, int], Row] = {}
    for file in files:
        if file.is_file():
            for line in file.read_text().splitlines():
                row = json.loads(line)
                by_key[key_of(row)] = row
    return [*by_key.values()]


# --- one attack, in a process of its own ----------------------------------------------------------


def criteria_and_judge(env_id: str, prompt: str) -> tuple[Any, str]:
    """The Intent and the judge's code, by the built-in author."""
    from p2p.agents.builtin.criteria import write_criteria
    from p2p.agents.builtin.judge import write_judge
    from p2p.agents.judge_code import trajectory_columns
    from p2p.agents.requests import IntentRequest, JudgeRequest
    from p2p.contracts import Intent
    from p2p.training.env_spec import get_env_spec

    proposal = write_criteria(IntentRequest(prompt=prompt, env_id=env_id))
    intent = Intent(
        prompt=prompt,
        env_id=env_id,
        criteria=proposal.criteria,
        unused_words=proposal.unused_words,
        training=proposal.training,
        author="builtin",
    )
    columns = trajectory_columns(get_env_spec(env_id))
    request = JudgeRequest(prompt=prompt, env_id=env_id, criteria=intent.criteria, columns=columns)
    return intent, write_judge(request).code


def digest_of(intent: Any) -> str:
    """What tells criteria apart: what is measured, and how much of it is enough."""
    kept = [(c.measure, c.comparison, c.threshold, c.hard) for c in intent.criteria]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:12]


def judged_before(rows: Sequence[Row]) -> list[Row]:
    """Rows that were judged by other criteria than the prompt gets now."""
    from p2p.config import ConfigurationError

    now: dict[tuple[str, str], str] = {}
    for row in rows:
        key = row["env_id"], row["prompt"]
        if key not in now:
            try:
                now[key] = digest_of(criteria_and_judge(*key)[0])
            except ConfigurationError:  # its model file or engine is not on this machine
                now[key] = ""
    return [row for row in rows if row.get("criteria") != now[row["env_id"], row["prompt"]]]


def settings(intent: Any, steps: int) -> Any:
    """How attacks on a prompt are trained: as its session would be, for so many steps."""
    from p2p.training.hp_presets import quick_config

    wanted = {name: value for name, value in intent.training.items() if name != "total_timesteps"}
    config, _ = quick_config(intent.env_id).apply_updates(wanted)
    return config.with_updates(total_timesteps=steps, num_evals=2)


def place_of(folder: Path, env_id: str, prompt: str) -> Path:
    return folder / env_id / "".join(c if c.isalnum() else "_" for c in prompt)[:60]


def attack_once(job: Sequence[Any]) -> Row:
    """Train one attack, judge it and look at it; or, without training, judge it again."""
    from p2p.benchmark.attack import (
        RESULT,
        RUNS,
        AttackResult,
        judge_attack,
        plan_attacks,
        train_attacks,
    )
    from p2p.benchmark.suite import SHIPPED, load_suite
    from p2p.config import LoopConfig
    from p2p.files import read_model
    from p2p.sandbox import set_unsafe_local

    env_id, prompt, title, seed, steps, folder, rejudge, unsafe_local = job
    set_unsafe_local(unsafe_local)
    began = time.monotonic()
    intent, judge_code = criteria_and_judge(env_id, prompt)
    config = settings(intent, steps)
    place = place_of(Path(folder), env_id, prompt)
    if rejudge:
        kept = [read_model(f, AttackResult) for f in (place / RUNS).glob(f"*/{RESULT}")]
        [result] = [
            r.model_copy(update={"passed": False, "objections": (), "truth": "", "truth_met": None})
            for r in kept
            if r is not None and (r.attack, r.seed) == (title, seed)
        ]
    else:
        attacks = {attack.title: attack for attack in plan_attacks(intent, config)[0]}
        [result] = train_attacks([(attacks[title], seed)], intent, config, place)
    suites = [case for suite in (SHIPPED, "mjlab") for case in load_suite(suite)]
    cases = (case for case in suites if (case.env_id, case.instruction) == (env_id, prompt))
    loop = LoopConfig(train=config)
    result = judge_attack(result, intent, judge_code, loop, case=next(cases, None))
    row: Row = result.model_dump(mode="json")
    row |= {"false_pass": result.false_pass, "false_fail": result.false_fail}
    row["criteria"] = digest_of(intent)
    row["run"] = Path(result.run).relative_to(Path(folder)).as_posix()
    return row | {"seconds": round(time.monotonic() - began)}


# --- all of them ----------------------------------------------------------------------------------


def plan(robots: Sequence[str], seeds: int, steps: int | None, folder: Path) -> list[list[Any]]:
    """The jobs, those first that cover most: every prompt once, then each criterion left out."""
    from p2p.benchmark.attack import plan_attacks
    from p2p.config import ConfigurationError, engine_of
    from p2p.training.engines.table import EngineMissing, is_engine, require_installed

    ranked: list[tuple[int, list[Any]]] = []
    for env_id in robots:
        if is_engine(engine := engine_of(env_id)):
            try:
                require_installed(engine)
            except (EngineMissing, ConfigurationError) as error:
                print(f"skipped {env_id}: {' '.join(str(error).split())}", flush=True)
                continue
        for prompt in prompts_of(env_id):
            intent, _ = criteria_and_judge(env_id, prompt)
            if not intent.criteria:
                print(f"{title_of(env_id)} “{prompt}”: refused", flush=True)
                continue
            count = steps or steps_of(env_id)
            attacks, unpaid = plan_attacks(intent, settings(intent, count))
            if unpaid:
                print(f"{env_id} “{prompt}”: no reward pays for {', '.join(unpaid)}", flush=True)
            jobs = [(attack, seed) for seed in range(1, seeds + 1) for attack in attacks]
            ranked += [
                (rank, [env_id, prompt, attack.title, seed, count, str(folder), False])
                for rank, (attack, seed) in enumerate(jobs)
            ]
    return [job for _, job in sorted(ranked, key=lambda pair: pair[0])]


def kept_jobs(rows: Sequence[Row], robots: Sequence[str], folder: Path) -> list[list[Any]]:
    """The attacks whose policies lie in the folder, to be judged again."""
    return [
        [row["env_id"], row["prompt"], row["attack"], row["seed"], row["steps"], str(folder), True]
        for row in rows
        if row["env_id"] in robots and (folder / row["run"] / "attack.json").is_file()
    ]


def run_jobs(jobs: Sequence[list[Any]], rows_file: Path, workers: int, minutes: float) -> int:
    """Do the jobs side by side, a row each; returns how many failed."""
    began = time.monotonic()
    here = machine()
    where = {"cpu": here["cpu"], "day": here["date"].split()[0]}
    failures = done = 0

    def one(job: list[Any]) -> Row | RunFailed | None:
        if time.monotonic() - began > 60 * minutes:
            return None
        try:
            return in_process(__file__, job, ONE_THREAD | gpu_visible(job[0]))
        except RunFailed as error:
            return error

    rows_file.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(workers) as pool:
        for future in as_completed([pool.submit(one, job) for job in jobs]):
            row = future.result()
            done += 1
            if row is None:
                continue
            if isinstance(row, RunFailed):
                failures += 1
                print(row, file=sys.stderr, flush=True)
                continue
            with rows_file.open("a") as out:
                out.write(json.dumps(row | where) + "\n")
            elapsed = (time.monotonic() - began) / 60
            left = min(elapsed / done * (len(jobs) - done), max(0.0, minutes - elapsed))
            said = wrong(row) or ("passed" if row["passed"] else "-")
            print(
                f"{done}/{len(jobs)}, {left:.0f} min left: {row['env_id']} “{row['prompt']}” "
                f"{row['attack']}, seed {row['seed']}: {said} {row['error'] or reason(row)}",
                flush=True,
            )
    return failures


def gpu_visible(env_id: str) -> dict[str, str]:
    import os

    hidden = env_id.startswith("Mjlab-")
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")} if hidden else {}


# --- the table ------------------------------------------------------------------------------------


def wrong(row: Row) -> str:
    """Which way the verdict is wrong; empty where it is right, as far as anybody can tell."""
    return "FALSE PASS" if row["false_pass"] else "false fail" if row.get("false_fail") else ""


def reason(row: Row) -> str:
    """Why it does not pass, or what is said against its pass."""
    if not row["passed"]:
        return "; ".join((*row["failure_tags"], *row["missed"]))
    missed = [f"missed: {row['truth']}"] if row["truth_met"] is False else []
    return "; ".join((*missed, *row["objections"]))


def counts(rows: Sequence[Row]) -> list[str]:
    """Attacks, passes, false passes and, of those that attain the suite's measure, false fails."""
    attained = [row for row in rows if row["truth_met"] and not row["objections"]]
    fails = sum(row.get("false_fail", False) for row in rows)
    return [
        str(len(rows)), str(sum(row["passed"] for row in rows)),
        str(sum(row["false_pass"] for row in rows)), f"{fails} of {len(attained)}",
    ]  # fmt: skip


def report(rows: Sequence[Row]) -> str:
    ordered = sorted(rows, key=lambda r: (order_of(r["env_id"]), *key_of(r)))
    judged = [row for row in ordered if not row["error"]]
    now = [row for row in judged if row.get("episodes")]
    before = [row for row in judged if not row.get("episodes")]
    stale = judged_before(now)
    episodes = " or ".join(map(str, sorted({row["episodes"] for row in now})))
    robots = [
        [title_of(env_id), *counts(mine), *counts([r for r in before if r["env_id"] == env_id])[:3]]
        for env_id in dict.fromkeys(row["env_id"] for row in judged)
        for mine in [[row for row in now if row["env_id"] == env_id]]
    ]
    total = ["all", *counts(now), *counts(before)[:3]]
    cells = [
        [
            title_of(row["env_id"]),
            row["prompt"],
            row["attack"],
            str(row["seed"]),
            f"{row['steps']:,}",
            str(row.get("episodes") or "8, earlier"),
            "yes" if row["passed"] else "",
            "-" if row["score"] is None else f"{row['score']:.2f}",
            row["truth"],
            reason(row),
            wrong(row),
        ]
        for row in judged
    ]
    machines = sorted({f"{row['cpu']}, {row.get('day', 'before 2026-11-19')}" for row in rows})
    about = (
        "Each attack is a training that is paid for what the criteria of a prompt measure, and for "
        "nothing else, or for all but one of them. The session's own judge and rule decide on "
        f"{episodes or 24} held-out episodes, as many as a session sees before it says passed. "
        "Ground truth, which shares no code with them, looks at each: the suite's own measure of "
        "the prompt, if any, and what a person objects to in the judged episodes (a fall in any of "
        "them, lying, other parts on the ground, trembling, one side idle, a foot carried along, "
        "going elsewhere). A pass that either refuses is false; a fail "
        "that attains the suite's measure and that nobody objects to is a false fail."
    )
    older = (
        f"{len(before)} rows are earlier ones, judged on 8 episodes, of which the policies are not "
        "kept: only their passes were looked at, and who falls in one of five is seldom seen to "
        "fall in eight. They are counted apart. One such pass was false (Ant, “walk to the left”, "
        "all criteria, seed 1: it ends after 84 % of the time); trained again, and judged on 24, "
        "it does not pass."
    )
    changed = (
        f"{len(stale)} rows on {episodes} episodes were judged by earlier criteria than those that "
        "their prompts get now, or by ones that were not recorded; their policies are not kept. "
        "Since then walking on more than two feet has to use every foot, and sinking begins at "
        "0.65 of the height and not at 0.6: a pass has more to meet. But one that keeps still may "
        "rest on its joint stops."
    )
    header = [
        "robot", "prompt", "paid for", "seed", "steps", "episodes", "passed", "score", "measured",
        "missed, or objected to", "wrong",
    ]  # fmt: skip
    lines = ["# Attacks on the judge", "", about, ""]
    lines += [older, ""] if before else []
    lines += [changed, ""] if stale else []
    lines += [f"Trained on: {'; '.join(machines)}.", ""]
    if broken := len(rows) - len(judged):
        lines += [f"{broken} more could not be trained or judged.", ""]
    columns = ["robot", "attacks", "passed", "false passes", "false fails, of those that attain it"]
    columns += ["earlier attacks", "passed", "false passes"]
    lines += [table(columns, [*robots, total]), ""]
    lines += ["## Holes found, and closed", HOLES]
    lines += ["## What it does not say", "", *limits(judged), "", "## Every attack", ""]
    return "\n".join([*lines, table(header, cells), ""])


HOLES = """
- Go1 from its model file, “walk forward at half a metre per second”, in a session: passed with one
  leg folded, at 0.62 of its height, turning by 0.8 rad. Since then every foot has to step, it has
  to face as at the start, and sinking begins at 0.65.
- Go1 from its model file, “lie down”, the attack below: passed on its back, legs up. Since then
  what is not tall does not end on its back.
"""
"""Passes that no person would accept, by their frames, and the rules that refuse them."""


def limits(judged: Sequence[Row]) -> list[str]:
    """Where the attacks are no test of the judge."""
    attacked = {row["env_id"] for row in judged}
    weak = [title_of(e) for e in sorted(attacked, key=order_of) if not any(
        row["passed"] for row in judged if row["env_id"] == e)]  # fmt: skip
    unseen = {
        f"{title_of(row['env_id'])} “{row['prompt']}”"
        for row in judged
        if row["passed"] and row["truth_met"] is None
    }
    unpaid = (
        "- A reward has no term for some criteria (sinking into the ground, trembling, joint "
        "stops, tipping over; of hops, leaving the ground again and again). They are judged, and "
        "no attack is paid for them; the script prints which."
    )
    lines = [unpaid]
    if weak:
        lines.append(
            f"- Nothing passed on {', '.join(weak)}: trainings this short do not learn what is "
            "asked there, so these rows say nothing about passes on those robots."
        )
    if unseen:
        lines.append(
            "- Without a measure of their own, these passes were only held against what a person "
            f"would object to: {'; '.join(sorted(unseen))}. A HalfCheetah that hops forward, for "
            "example, bounds: its hind and front foot land in turn."
        )
    if missing := [env_id for env_id in PROMPTS if env_id not in attacked]:
        lines.append(f"- Not attacked: {', '.join(missing)}.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1, help="attacks side by side, a core each")
    parser.add_argument("--minutes", type=float, default=1e6, help="start no attack after these")
    parser.add_argument(
        "--robots", nargs="+", default=list(PROMPTS), metavar="ID", help="or model files"
    )
    parser.add_argument("--prompts", nargs="+", help="only these")
    parser.add_argument("--steps", type=int, help="of every training")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("outputs/judge_attack"))
    parser.add_argument("--rows", type=Path, nargs="+", help="the first is added to")
    parser.add_argument("--most", type=int, help="no more attacks than these")
    parser.add_argument("--rejudge", action="store_true", help="judge what is trained again")
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained")
    parser.add_argument("--write", action="store_true", help="write the table to results/")
    parser.add_argument("--unsafe-local", action="store_true", help="where there is no sandbox")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(attack_once(json.loads(args.one))))
        return
    from p2p.training.model_files.adoption import env_id_of

    args.robots = [env_id_of(robot) for robot in args.robots]
    folder = args.folder.absolute()
    files = args.rows or [folder / "rows.jsonl"]
    rows = read_rows(files)
    if args.rejudge:
        jobs = kept_jobs(rows, args.robots, folder)
    else:
        done = {key_of(row) for row in rows if not row["error"]}
        jobs = [
            job
            for job in plan(args.robots, args.seeds, args.steps, folder)
            if tuple(job[:4]) not in done and (not args.prompts or job[1] in args.prompts)
        ][: args.most]
    jobs = [[*job, args.unsafe_local] for job in jobs]
    print(f"{len(rows)} attacks are done, {len(jobs)} to do", flush=True)
    if args.dry_run:
        for job in jobs:
            print(*job[:5], sep=" | ")
        return
    failures = run_jobs(jobs, files[0], args.jobs, args.minutes) if jobs else 0
    kept = RESULTS / f"{NAME}.json"
    rows = read_rows(files)
    if args.write:
        merged = {key_of(row): row for row in json.loads(kept.read_text())} if kept.exists() else {}
        rows = [*(merged | {key_of(row): row for row in rows}).values()]
    if rows:
        text = report(rows)
        print(text[: text.index("## Every attack")])
        if args.write:
            write(NAME, text, rows)
    if failures:
        raise SystemExit(f"{failures} attacks failed")


if __name__ == "__main__":
    main()
