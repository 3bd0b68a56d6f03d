"""League training against mirror games alone: `python benchmarks/selfplay_league.py --write`.

The embedded model learns KuhnPoker, once against itself only, once against itself, older
checkpoints, rated opponents and a fixed player. Both train on about as many tokens: a game against
somebody else teaches one seat, a mirror game two, so the league plays more games an update.
What is measured is what generalises: the exploitability, and the win rates against random legal
play and against the checkpoint that the run began with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from common import described, machine, table, write

import unstable
from unstable.config import load_config, make_config
from unstable.run import RunFolder
from unstable.run.progress import Progress
from unstable.run.start import start
from unstable.tiny import make_tiny

NAME = "selfplay_league"
ENV = "KuhnPoker-v0-train"
RECIPE = Path(unstable.__file__).parent / "recipes" / "tictactoe.toml"
SEEDS = (0, 1, 2)
LEAGUE = {"mirror": 0.5, "lagged": 0.2, "match-quality": 0.2, "fixed": 0.1}
COLLAPSE = 0.1
"""A run has collapsed whose exploitability ends that far above its least."""


def config_of(kind: str, updates: int, games: int) -> dict[str, Any]:
    """The recipe of `unstable train`, with other opponents."""
    values = load_config(RECIPE).model_dump(mode="json", exclude_none=True)
    values |= {"updates": updates, "eval_every": max(1, updates // 15), "eval_games": 200}
    values["games"] |= {
        "train": [[ENV, 2, "bare"]], "opponent": ["random-legal", "first-checkpoint"],
        "random_opening_moves": 0,
    }  # fmt: skip
    values["pool"] |= {"sample_mode": "mirror"}
    # Fewer games an update than in the recipe, and no lines to be found: smaller steps, which get
    # smaller over the whole run.
    values["learner"] |= {"learning_rate": 1e-3}
    values["learner"]["algorithm_options"] |= {"value_learning_rate": 1e-3}
    values["learner"]["options"] |= {"steps_per_batch": 4, "lr_total": updates, "lr_floor": 0.1}
    if kind == "league":
        values["pool"] |= {"sample_mode": LEAGUE, "fixed": ["random-legal"]}
        games = round(games * 2 / (1 + LEAGUE["mirror"]))
    values |= {"games_per_update": games, "name": kind}
    return values


class TimeIsUp(Exception):
    """As long as was asked."""


def run(
    kind: str,
    seed: int,
    updates: int,
    games: int,
    work: Path,
    end: float,
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Train, or go on with what is in `work`, until `end` at the latest; `keep` gets all of it."""
    folder = RunFolder(work / f"{kind}-{seed}")
    model = work / f"model-{kind}-{seed}"
    status = work / f"{kind}-{seed}.json"
    one: dict[str, Any] = {
        "kind": kind, "seed": seed, "updates": 0, "steps_trained": 0.0, "cpu_seconds": 0.0,
        "evaluations": [], "machine": {"began": machine(), "ended": machine()},
    }  # fmt: skip
    if status.exists():
        one = json.loads(status.read_text())
    used, began = one["cpu_seconds"], time.process_time()
    if not model.exists():
        make_tiny(model, (ENV,), seed)
    config = make_config(config_of(kind, updates, games) | {"model": str(model), "seed": seed})
    if not folder.path.exists():
        folder.path.mkdir(parents=True)
        folder.write_config(config)

    def report(progress: Progress) -> None:
        one["updates"] = progress.step
        one["cpu_seconds"] = used + time.process_time() - began
        one["evaluations"] = [{key: row[key] for key in KEPT} for row in progress.evaluations]
        one["machine"]["ended"] = machine()
        if progress.phase == "playing":
            one["steps_trained"] = trained(folder)
            status.write_text(json.dumps(one))
            keep(one)
            if time.monotonic() > end:
                raise TimeIsUp

    with contextlib.suppress(TimeIsUp):
        result = start(config, folder, str(model), report)
        one["updates"] = result.step
        one["evaluations"] = [{key: row[key] for key in KEPT} for row in result.evaluations]
        one["steps_trained"] = trained(folder)
    status.write_text(json.dumps(one))
    keep(one)
    return one


KEPT = ("ckpt_uid", "opponent", "win_rate", "exploitability", "invalid_rate")


def trained(folder: RunFolder) -> float:
    """Steps that the run has learnt from."""
    metrics = folder.path / "metrics.jsonl"
    if not metrics.exists():
        return 0.0
    lines = [json.loads(line) for line in metrics.read_text().splitlines() if line.endswith("}")]
    return float(sum(line.get("learner/num_steps", 0) for line in lines))


def last(one: dict[str, Any], opponent: str, key: str) -> float:
    rows = [row for row in one["evaluations"] if row["opponent"] == opponent]
    return float(rows[-1][key]) if rows else float("nan")


def curve(one: dict[str, Any]) -> list[float]:
    """The exploitability at every evaluation."""
    rows = [row for row in one["evaluations"] if row["opponent"] == "random-legal"]
    return [row["exploitability"] for row in rows]


def report(runs: list[dict[str, Any]]) -> str:
    first = min((one["machine"]["began"] for one in runs), key=lambda m: m["date"])
    latest = max((one["machine"]["ended"] for one in runs), key=lambda m: m["date"])
    rows = [
        [
            one["kind"], str(one["seed"]), str(one["updates"]), f"{one['steps_trained']:,.0f}",
            f"{curve(one)[0]:.3f}", f"{min(curve(one)):.3f}", f"**{curve(one)[-1]:.3f}**",
            f"{last(one, 'random-legal', 'win_rate'):.3f}",
            f"{last(one, 'first-checkpoint', 'win_rate'):.3f}",
            f"{last(one, 'random-legal', 'invalid_rate'):.1%}", f"{one['cpu_seconds']:.0f} s",
        ]
        for one in runs
    ]  # fmt: skip
    header = ["opponents", "seed", "updates", "turns trained", "exploitability before", "least",
              "at the end", "won against random-legal", "against the first checkpoint",
              "games lost by an illegal move", "CPU"]  # fmt: skip
    lines = ["# League and mirror", "", *__doc__.strip().splitlines()[2:], ""]
    lines += [*described(first, latest), "", table(header, rows), ""]
    ends = {
        kind: fmean(curve(one)[-1] for one in runs if one["kind"] == kind)
        for kind in {one["kind"] for one in runs}
    }
    collapsed = [
        f"{one['kind']} {one['seed']}"
        for one in runs
        if curve(one)[-1] > min(curve(one)) + COLLAPSE
    ]
    if len(ends) == 2:
        lines.append(
            f"At the end: mirror {ends['mirror']:.3f}, league {ends['league']:.3f}, a ratio of"
            f" {ends['league'] / max(ends['mirror'], 1e-9):.2f} (goal: 0.50). Collapsed:"
            f" {', '.join(collapsed) or 'none'}."
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", choices=("mirror", "league"), default=None)
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--games", type=int, default=96, help="mirror games an update")
    parser.add_argument("--work", type=Path, default=None, help="runs are kept and resumed here")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop then, with what there is")
    parser.add_argument("--out", type=Path, help="have the runs in this file at all times")
    parser.add_argument("--table", nargs="*", type=Path, help="make the table of such files")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    end = time.monotonic() + 60 * arguments.minutes
    runs: dict[tuple[str, int], dict[str, Any]] = {}

    def keep(one: dict[str, Any]) -> None:
        runs[one["kind"], one["seed"]] = one
        if arguments.out:
            arguments.out.write_text(json.dumps({"runs": list(runs.values())}))

    for path in arguments.table or ():
        for one in json.loads(path.read_text())["runs"]:
            runs[one["kind"], one["seed"]] = one
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for seed in arguments.seeds if not arguments.table else ():
            for kind in arguments.kinds or ("mirror", "league"):
                one = run(kind, seed, arguments.updates, arguments.games, work, end, keep)
                print(f"{kind}, seed {seed}: {[round(x, 3) for x in curve(one)]}", flush=True)
    measured = sorted(
        (one for one in runs.values() if curve(one)), key=lambda o: (o["seed"], o["kind"])
    )
    text = report(measured)
    print(text)
    if arguments.write:
        write(NAME, text)


if __name__ == "__main__":
    main()
