"""A Unitree G1 asked to walk: verdict, time and training log of a session on one GPU.

`forward_speed` is 1 less how far the speed along the heading is from 1 m/s, `forward_speed_1` is at
most 1.04, from 0.64 m/s on. `turn_left_rate` is 0.51 where it does not turn and 0 at 1 rad/s, to
and fro as well as round and round. `stride` is 0.79 where the legs swing past each other, by 0.3
rad to each side, at least 1.5 times a second. `tilt` is -0.255 for each radian that the pelvis
leans, and `effort` is -0.3 for each 1 of the mean square of the actions, at most -1.2.

    python benchmarks/g1_session.py SESSION [--command TEXT] [--note TEXT] [--write]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common import table, write

NAME = "g1_session"
TERM = "reward_term_"
EVERY = 20
"""Updates from one row to the next."""
PHASES = {
    "reward": "criteria, judge and reward", "train": "training", "judge": "judging",
    "confirm": "held-out seeds",
}  # fmt: skip
"""Events that last, and what they are called here; the others end within seconds or in these."""

Row = dict[str, Any]


def rows_of(log: Path) -> tuple[list[Row], Row | None]:
    """Rows of training, and the last evaluation."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    training = [line for line in lines if line["type"] == "train" and "episode_length" in line]
    evaluations = [line for line in lines if line["type"] == "eval"]
    chosen = [*training[:1], *training[EVERY - 1 :: EVERY], *training[-1:]]
    unique = {line["global_step"]: line for line in chosen}
    return [*unique.values()], evaluations[-1] if evaluations else None


def verdict_of(session: Path) -> list[str]:
    """What the last judgment found, criterion by criterion, and how long everything took."""
    judged = sorted(session.glob("iter_*/confirmation.json")) or sorted(
        session.glob("iter_*/judgment.json")
    )
    judgment = json.loads(judged[-1].read_text())
    intent = json.loads((session / "intent.json").read_text())
    found = {each["id"]: each for each in judgment["criteria"]}
    signs = {"at_least": "≥", "at_most": "≤"}
    cells = [
        [c["title"], f"{signs.get(c['comparison'], '')} {c['threshold']:g} {c['unit']}".strip(),
         f"{found[c['id']]['value']:.3g}", f"{found[c['id']]['score']:.2f}"]
        for c in intent["criteria"]
    ]  # fmt: skip
    lines = (session / "events.jsonl").read_text().splitlines()
    seconds: dict[str, float] = {}
    for event in map(json.loads, lines):
        name = PHASES.get(event["event"].removesuffix(".end"))
        if name and event["duration_ms"]:
            seconds[name] = seconds.get(name, 0.0) + event["duration_ms"] / 1000
    whole = json.loads((session / "clock.json").read_text())["seconds"]
    parts = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
    outcome = "Passed" if judgment["passed"] else "Not passed"
    where = "held-out seeds" if judged[-1].stem == "confirmation" else "the seeds of its iteration"
    line = (
        f"{outcome} with {judgment['intent_score']:.2f}, on {where}, {whole / 60:.1f} minutes "
        f"after the prompt (goal: 10): {parts}."
    )
    header = ["criterion", "asked", "measured", "score"]
    return ["## Verdict", "", line, "", table(header, cells), ""]


def report(
    command: str,
    notes: list[str],
    verdict: list[str],
    training: list[Row],
    evaluation: Row | None,
) -> str:
    names = [key.removeprefix(TERM) for key in training[0] if key.startswith(TERM)]
    cells = [
        [
            f"{row['global_step'] / 1e6:.1f} M", f"{row['elapsed_time']:.0f}", f"{row['sps']:,.0f}",
            f"{row['episodic_return']:,.0f}", f"{row['episode_length']:,.0f}",
            f"{row['policy_std']:.2f}",
            *(f"{row[TERM + name] / row['episode_length']:.2f}" for name in names),
        ]
        for row in training
    ]  # fmt: skip
    header = ["steps", "seconds", "steps/s", "return", "length", "noise", *names]
    lines = [
        "# A prompt on a Unitree G1, on one GPU", "", f"`{command}`", "",
        *(f"- {note}" for note in notes), "", *verdict,
    ]  # fmt: skip
    if evaluation is not None:
        lengths, terms = evaluation["episode_lengths"], evaluation["reward_terms"]
        what = (
            f"{len(lengths)} episodes of at least {min(lengths):,} steps without noise, return "
            f"{evaluation['mean_return']:,.0f}. Terms a step, of the median one:"
        )
        lines += [
            f"## Evaluation after {evaluation['global_step'] / 1e6:.1f} million steps", "",
            what, "",
            table([*names], [[f"{terms[name] / max(lengths):.3f}" for name in names]]), "",
        ]  # fmt: skip
    lines += [
        "## Training", "",
        *(part.replace("\n", " ") + "\n" for part in (__doc__ or "").split("\n\n")[1:-1]),
        "Over the episodes that ended last, with the noise of exploration; each term a step.", "",
        table(header, cells), "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("session", type=Path, help="its folder")
    parser.add_argument("--command", default="", help="that the session was started with")
    parser.add_argument("--note", action="append", default=[], help="to stand above the tables")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    args = parser.parse_args()
    log = max(args.session.glob("iter_*/base_seed_*/metrics/scalars.jsonl"))
    training, evaluation = rows_of(log)
    verdict = verdict_of(args.session)
    text = report(args.command, args.note, verdict, training, evaluation)
    print(text)
    if args.write:
        write(NAME, text)


if __name__ == "__main__":
    main()
