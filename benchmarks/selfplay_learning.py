"""Does self-play learn? The embedded model on one CPU core, against random legal play.

Each run makes the model from nothing, with a seed of its own, and trains it with the recipe that
`unstable train` uses: to half of its updates, then on (`unstable resume`) to the end. Both are
reported, since a gain that does not last is none. Random legal players are met in evaluation only.
Sampled at temperature 1, 400 games, half in each seat; the win rates are of fixed updates, never of
the best one. With --write every run is kept as soon as it is over, so that they can be done one at
a time.

python benchmarks/selfplay_learning.py [--games TicTacToe Nim] [--seeds 0 1 2] [--write]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from common import ONE_THREAD, RESULTS, described, machine, table, write
from learning_curve import draw

import unstable
from unstable.config import load_config
from unstable.games import GameRunner
from unstable.games.players import RandomLegal, play

NAME = "selfplay_learning"
RECIPE = Path(unstable.__file__).parent / "recipes" / "tictactoe.toml"
GAMES = ("TicTacToe", "Nim")
SEEDS = (0, 1, 2)
GOAL, LEAST_GAIN, LEAST_OF_A_SEED, MOST_ILLEGAL = 0.80, 0.20, 0.12, 0.03


def in_child(arguments: list[str]) -> tuple[str, float, float]:
    """What a command of ours says, and its CPU and wall seconds."""
    before, began = children_cpu(), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "unstable.cli", *arguments],
        check=False, capture_output=True, text=True, env={**os.environ, **ONE_THREAD},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{arguments} ended:\n{done.stderr}")
    return done.stdout, children_cpu() - before, time.monotonic() - began


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(game: str, seed: int) -> dict[str, Any]:
    """Make a model and train it."""
    env_id, half = f"{game}-v0-train", load_config(RECIPE).updates // 2
    began = machine()
    cpu: dict[str, float] = {}
    wall: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "model")
        _, cpu["model"], wall["model"] = in_child(
            ["tiny", model, "--game", env_id, "--seed", str(seed), "--json"]
        )
        said, cpu["training"], wall["training"] = in_child(
            ["train", str(RECIPE), "--model", model, "--game", env_id, "--seed", str(seed),
             "--updates", str(half), "--output-dir", folder, "--json"]
        )  # fmt: skip
        run_dir = json.loads(said)["run_dir"]
        said, cpu["doubling"], wall["doubling"] = in_child(
            ["resume", run_dir, "--updates", str(2 * half), "--json"]
        )
        result = json.loads(said)
        games = Path(run_dir) / "eval_data" / "games.jsonl"
        illegal = illegal_moves([json.loads(line) for line in games.read_text().splitlines()])
    points = [
        {
            "update": max(0, int(row["ckpt_uid"].removeprefix("ckpt-"))),
            "win_rate": row["win_rate"],
            "draw_rate": row["draw_rate"],
            "se": math.sqrt(row["win_rate"] * (1 - row["win_rate"]) / row["games"]),
            "games": row["games"],
            "illegal": illegal[row["ckpt_uid"]],
        }
        for row in result["evaluations"]
    ]
    return {
        "game": game,
        "seed": seed,
        "updates": half,
        "points": points,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "machine": {"began": began, "ended": machine()},
    }


def kept() -> list[dict[str, Any]]:
    """The runs in results/."""
    path = RESULTS / f"{NAME}.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    return runs


def merged(runs: list[dict[str, Any]], more: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs in the table's order; of the same game and seed, the later one."""
    found = {(one["game"], one["seed"]): one for one in [*runs, *more]}
    return [found[key] for key in sorted(found, key=lambda key: (GAMES.index(key[0]), key[1]))]


def illegal_moves(games: list[dict[str, Any]]) -> dict[str, float]:
    """The share of illegal ones among the learner's moves, by checkpoint; seats move in turn."""
    moves: dict[str, int] = {}
    wrong: dict[str, int] = {}
    for game in games:
        uid = game["ckpt_uid"]
        own = (game["num_turns"] + (game["player_id"] == 0)) // 2
        moves[uid] = moves.get(uid, 0) + own
        wrong[uid] = wrong.get(uid, 0) + game["invalid"]
    return {uid: wrong[uid] / moves[uid] for uid in moves}


def random_against_random(game: str, games: int = 2000) -> float:
    """The win rate of a random legal player, half in each seat."""
    wins = 0
    for number in range(games):
        players = [RandomLegal(2 * number), RandomLegal(2 * number + 1)]
        rewards = play(GameRunner(f"{game}-v0-train", 2, number), players)
        wins += rewards[number % 2] > rewards[1 - number % 2]
    return wins / games


def point(one: dict[str, Any], update: int) -> dict[str, Any]:
    found: dict[str, Any] = next(p for p in one["points"] if p["update"] == update)
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one game: means over the seeds, and whether they are what was asked for."""
    n = runs[0]["updates"]
    at = {when: [point(one, when) for one in runs] for when in (0, n, 2 * n)}
    rates = {when: [p["win_rate"] for p in points] for when, points in at.items()}
    gains = {
        when: [after - before for before, after in zip(rates[0], rates[when], strict=True)]
        for when in (n, 2 * n)
    }
    return {
        "updates": n,
        "win_rate": {when: fmean(values) for when, values in rates.items()},
        "se": {
            when: stdev(values) / math.sqrt(len(values)) if len(values) > 1 else at[when][0]["se"]
            for when, values in rates.items()
        },
        "gain": {when: fmean(values) for when, values in gains.items()},
        "least_gain": {when: min(values) for when, values in gains.items()},
        "illegal": {when: fmean(p["illegal"] for p in points) for when, points in at.items()},
        "most_illegal": {when: max(p["illegal"] for p in at[when]) for when in (n, 2 * n)},
        "floor": all(
            fmean(gains[when]) >= LEAST_GAIN
            and min(gains[when]) >= LEAST_OF_A_SEED
            and max(p["illegal"] for p in at[when]) < MOST_ILLEGAL
            for when in (n, 2 * n)
        ),
        "goal": [when for when in (n, 2 * n) if fmean(rates[when]) >= GOAL],
    }


def report(runs: list[dict[str, Any]], null: dict[str, float]) -> str:
    machines = [one["machine"] for one in runs]
    first = min((m["began"] for m in machines), key=lambda m: m["date"])
    last = max((m["ended"] for m in machines), key=lambda m: m["date"])
    lines = [
        "# Self-play on one CPU core",
        "",
        "The embedded model, made from nothing with each seed, against random legal play: 400",
        "games, half in each seat, answers sampled at temperature 1. The recipe is that of",
        "`unstable train`, measured at half of its updates and at its end. CPU: the seconds of",
        "making the model and of training it, on a core that other work wanted too.",
        "",
        *described(first, last),
        "",
        "![win rates](selfplay_learning.png)",
        "",
    ]
    for game in dict.fromkeys(one["game"] for one in runs):
        of_game = [one for one in runs if one["game"] == game]
        found, n = summary(of_game), of_game[0]["updates"]
        rows = [
            [
                f"seed {one['seed']}",
                *(f"{p['win_rate']:.3f} ± {p['se']:.3f}" for p in points),
                *(f"{p['illegal']:.1%}" for p in points),
                f"{one['cpu_seconds']['model'] + one['cpu_seconds']['training']:.0f} s",
                f"{sum(one['cpu_seconds'].values()):.0f} s",
            ]
            for one in of_game
            for points in [[point(one, when) for when in (0, n, 2 * n)]]
        ]
        rows.append(
            [
                "mean",
                *(f"**{found['win_rate'][w]:.3f}** ± {found['se'][w]:.3f}" for w in (0, n, 2 * n)),
                *(f"{found['illegal'][when]:.1%}" for when in (0, n, 2 * n)),
                "",
                "",
            ]
        )
        header = [game, "before", f"{n} updates", f"{2 * n} updates"]
        header += ["illegal before", f"at {n}", f"at {2 * n}", f"CPU to {n}", f"CPU to {2 * n}"]
        gain = ", ".join(f"{found['gain'][w]:+.3f} (least {found['least_gain'][w]:+.3f})"
                         for w in (n, 2 * n))  # fmt: skip
        reached = " and ".join(f"after {when}" for when in found["goal"]) or "at neither"
        verdict = (
            f"Gain after {n} and {2 * n} updates: {gain}. Random against random: {null[game]:.3f}."
            f" The floor (gain ≥ {LEAST_GAIN}, no seed < {LEAST_OF_A_SEED}, illegal <"
            f" {MOST_ILLEGAL:.0%}, at both) is {'met' if found['floor'] else '**not met**'}; the"
            f" goal of {GOAL:.2f} is met {reached}."
        )
        lines += [table(header, rows), "", verdict, ""]
    return "\n".join(lines)


def null_of(runs: list[dict[str, Any]]) -> dict[str, float]:
    return {game: random_against_random(game) for game in {one["game"] for one in runs}}


def keep(runs: list[dict[str, Any]]) -> None:
    null = null_of(runs)
    write(NAME, report(runs, null), {"random": null, "runs": runs})
    draw(runs, null, RESULTS / f"{NAME}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", nargs="*", choices=GAMES, default=GAMES)
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    arguments = parser.parse_args()
    runs = kept()
    for game in arguments.games:
        for seed in arguments.seeds:
            one = run(game, seed)
            # Read again: another process may have added runs meanwhile.
            runs = merged(kept() if arguments.write else runs, [one])
            if arguments.write:
                keep(runs)
            rates = ", ".join(f"{p['update']}: {p['win_rate']:.3f}" for p in one["points"])
            print(f"{game}, seed {seed}: {rates}", flush=True)
    if not runs:
        raise SystemExit("no run yet")
    print(report(runs, null_of(runs)))
    if arguments.write:
        keep(runs)


if __name__ == "__main__":
    main()
