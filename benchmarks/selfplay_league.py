"""League training against mirror games alone: `python benchmarks/selfplay_league.py --write`.

The embedded model learns KuhnPoker, once against itself only, once against itself, older
checkpoints, rated opponents and a fixed player. Both train on about as many tokens: a game against
somebody else teaches one seat, a mirror game two, so the league plays more games an update.
What is measured is what generalises: the exploitability, and the win rates against random legal
play and against the checkpoint that the run began with.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import tomli_w
from common import RESULTS, described, machine, table, write
from selfplay_learning import RECIPE, in_child

from unstable.config import load_config

NAME = "selfplay_league"
ENV = "KuhnPoker-v0-train"
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
    if kind == "league":
        values["pool"] |= {"sample_mode": LEAGUE, "fixed": ["random-legal"]}
        games = round(games * 2 / (1 + LEAGUE["mirror"]))
    values |= {"games_per_update": games, "name": kind}
    return values


def run(kind: str, seed: int, updates: int, games: int) -> dict[str, Any]:
    began = machine()
    with tempfile.TemporaryDirectory() as folder:
        path, model = Path(folder) / "run.toml", str(Path(folder) / "model")
        path.write_text(tomli_w.dumps(config_of(kind, updates, games)))
        in_child(["tiny", model, "--game", ENV, "--seed", str(seed), "--json"])
        said, cpu, _ = in_child(
            ["train", str(path), "--model", model, "--seed", str(seed), "--output-dir", folder,
             "--json"]
        )  # fmt: skip
        result = json.loads(said)
        metrics = Path(result["run_dir"]) / "metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {
        "kind": kind,
        "seed": seed,
        "updates": updates,
        "steps_trained": sum(line.get("learner/num_steps", 0) for line in lines),
        "cpu_seconds": cpu,
        "evaluations": [
            {
                key: row[key]
                for key in ("ckpt_uid", "opponent", "win_rate", "exploitability", "invalid_rate")
            }
            for row in result["evaluations"]
        ],
        "machine": {"began": began, "ended": machine()},
    }


def last(one: dict[str, Any], opponent: str, key: str) -> float:
    rows = [row for row in one["evaluations"] if row["opponent"] == opponent]
    return float(rows[-1][key])


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
    parser.add_argument("--games", type=int, default=384, help="mirror games an update")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    arguments = parser.parse_args()
    path = RESULTS / f"{NAME}.json"
    runs = json.loads(path.read_text())["runs"] if arguments.write and path.exists() else []
    for seed in arguments.seeds:
        for kind in arguments.kinds or ("mirror", "league"):
            one = run(kind, seed, arguments.updates, arguments.games)
            runs = [other for other in runs if (other["kind"], other["seed"]) != (kind, seed)]
            runs.append(one)
            print(f"{kind}, seed {seed}: {[round(x, 3) for x in curve(one)]}", flush=True)
            if arguments.write:
                write(NAME, report(runs), {"runs": runs})
    print(report(runs))


if __name__ == "__main__":
    main()
