"""The judge exam: does the code judge that `builtin` writes tell good episodes from tricks?

python benchmarks/judge_exam.py [--cache FOLDER] [--only TEXT] [--labels] [--show] [--write]

Episodes come from trained policies, scripted controllers and kinematic playback (exam_motions.py);
prompts and labels stand in exam_paper.py. Labels are measurements on the simulator's positions that
share no code with the judge: the ground truths of `p2p benchmark` and functions like them. An
episode is good if it attains what is asked in every measure, bad if it clearly misses one, and left
out if it is neither. Then `builtin` writes criteria and the judge for each prompt, and the judge
scores every episode.

Trainings and episodes are kept in the cache and made once. --labels stops before judging, and
writes judge_exam.csv: what is asked, and the answers. --show lists wrong verdicts, but never those
on held-out prompts: nobody looks at them while judges are changed.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import exam_motions as make
import mujoco
import numpy as np
from common import RESULTS, described, machine, table, write
from exam_motions import Floats, lowest
from exam_paper import PROMPTS, Label, Prompt

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.judge import write_judge
from p2p.agents.judge_code import episode_summary, trajectory_columns
from p2p.agents.judge_worker import tidy_reply
from p2p.agents.requests import IntentRequest, JudgeRequest
from p2p.agents.verdicts import JudgedEpisode, code_opinion, sum_up, verdict_of_one
from p2p.benchmark.truth.episode import Episode
from p2p.config import EnvOptions, LoopConfig, TrainConfig
from p2p.training.env_spec import get_env_spec
from p2p.training.envs.registry import make_single
from p2p.training.trajectory import RecordedEpisode

PAPER = Path(__file__).with_name("judge_exam.csv")
THRESHOLD = LoopConfig().pass_threshold
# --- episodes and labels --------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """One line of the paper."""

    prompt: Prompt
    shown: str
    file: Path
    values: tuple[float, ...]

    @property
    def label(self) -> Label:
        labels = [asked.label(v) for asked, v in zip(self.prompt.asked, self.values, strict=True)]
        return next((label for label in ("bad", "unclear") if label in labels), "good")


def states_of(env_id: str, positions: Floats) -> Episode:
    """The episode for ground truths, by its positions alone."""
    env = make_single(EnvOptions(env_id))
    base: Any = env.unwrapped
    model, data = base.model, base.data
    names = tuple(model.body(number).name for number in range(model.nbody))
    feet = tuple(name for name in names if name.startswith("foot"))
    places, turns, heights = [], [], []
    for qpos in positions:
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        places.append(data.xpos.copy())
        turns.append(data.xmat[1].reshape(3, 3).copy())
        heights.append([lowest(model, data, names.index(foot)) for foot in feet])
    assert env.spec is not None
    assert env.spec.max_episode_steps is not None
    return Episode(
        positions, np.array(places), np.array(turns), np.array(heights), names, feet,
        float(base.dt), env.spec.max_episode_steps,
    )  # fmt: skip


def episodes_of(prompt: Prompt, cache: Path) -> list[Answer]:
    """Record what is not recorded yet, and measure all."""
    answers = []
    folder = cache / "episodes" / _file_name(prompt.name)
    folder.mkdir(parents=True, exist_ok=True)
    for number, (shown, motion) in enumerate(prompt.shown.items()):
        file = folder / f"trajectory_{_file_name(shown)}.npz"
        states_file = folder / f"states_{_file_name(shown)}.npy"
        if not states_file.is_file():
            episode, states = make.record(prompt.env_id, motion, 1000 + number, cache)
            episode.save(file)
            np.save(states_file, states)
        seen = states_of(prompt.env_id, np.load(states_file))
        answers.append(Answer(prompt, shown, file, tuple(a.measure(seen) for a in prompt.asked)))
    return answers


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text)[:80]


def write_paper(answers: Sequence[Answer]) -> None:
    with PAPER.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("env_id", "prompt", "held_out", "episode", "label", "measured"))
        for a in answers:
            measured = (f"{q.name} {v:.3g}" for q, v in zip(a.prompt.asked, a.values, strict=True))
            prompt = a.prompt
            held_out = "yes" if prompt.held_out else ""
            out.writerow(
                (prompt.env_id, prompt.text, held_out, a.shown, a.label, "; ".join(measured))
            )


# --- judging --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mark:
    """What the judge says of an episode."""

    answer: Answer
    score: float
    passed: bool
    evidence: str

    @property
    def good(self) -> bool:
        return self.answer.label == "good"


def judge(prompt: Prompt, answers: Sequence[Answer]) -> list[Mark]:
    criteria = write_criteria(IntentRequest(prompt=prompt.text, env_id=prompt.env_id)).criteria
    columns = trajectory_columns(get_env_spec(prompt.env_id))
    request = JudgeRequest(
        prompt=prompt.text, env_id=prompt.env_id, criteria=criteria, columns=columns
    )
    names: dict[str, Any] = {}
    exec(write_judge(request).code, names)  # noqa: S102 - the built-in author's own text
    config = TrainConfig(env_id=prompt.env_id)
    ids = [criterion.id for criterion in criteria]
    marks = []
    for answer in answers:
        recorded = RecordedEpisode.load(answer.file)
        summary = episode_summary(config, recorded)
        reply = tidy_reply(names["judge_fn"](recorded.rows(), summary), ids)
        opinion = code_opinion(reply, criteria)
        verdict = verdict_of_one(opinion, alone=True)
        episode = JudgedEpisode(answer.shown, None, answer.file, summary, opinion, None, verdict)
        result = sum_up([episode], criteria, strategy="code", threshold=THRESHOLD, step=None)
        assert result.intent_score is not None
        said = "; ".join(f"{each.id} {each.score} ({each.value})" for each in opinion.criteria)
        marks.append(Mark(answer, result.intent_score, result.passed, said))
    return marks


# --- figures --------------------------------------------------------------------------------------


def auc(marks: Sequence[Mark]) -> float | None:
    """How often a good episode has the higher score than a bad one; ties count half."""
    good = np.array([m.score for m in marks if m.good])
    bad = np.array([m.score for m in marks if not m.good])
    if not len(good) or not len(bad):
        return None
    above = good[:, None] - bad[None]
    return float(np.mean((above > 0) + 0.5 * (above == 0)))


def interval(marks: Sequence[Mark], draws: int = 2000) -> tuple[float, float]:
    """95 %, by drawing episodes anew."""
    rng = np.random.default_rng(0)
    values = []
    for _ in range(draws):
        drawn = [marks[i] for i in rng.integers(len(marks), size=len(marks))]
        if (value := auc(drawn)) is not None:
            values.append(value)
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


BINS = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 0.9), (0.9, 1.01))


def figures(marks: Sequence[Mark]) -> dict[str, Any]:
    scores = np.array([m.score for m in marks])
    good = np.array([m.good for m in marks])
    passed = np.array([m.passed for m in marks])
    bins = [
        {"from": low, "to": min(high, 1.0), "episodes": int(inside.sum()),
         "score": float(scores[inside].mean()), "good": float(good[inside].mean())}
        for low, high in BINS if (inside := (scores >= low) & (scores < high)).any()
    ]  # fmt: skip
    return {
        "episodes": len(marks),
        "good": int(good.sum()),
        "auc": auc(marks),
        "auc_interval": interval(marks),
        "brier": float(np.mean((scores - good) ** 2)),
        "ece": sum(b["episodes"] * abs(b["score"] - b["good"]) for b in bins) / len(marks),
        "bins": bins,
        "passes": int(passed.sum()),
        "false_passes": int((passed & ~good).sum()),
        "false_fails": int((~passed & good).sum()),
    }


def by_group(marks: Sequence[Mark]) -> dict[str, dict[str, Any]]:
    held_out = [m for m in marks if m.answer.prompt.held_out]
    seen = [m for m in marks if not m.answer.prompt.held_out]
    groups = {"all prompts": list(marks), "looked at": seen, "held out": held_out}
    return {name: figures(group) for name, group in groups.items() if group}


def report(marks: Sequence[Mark], unclear: int, about: Sequence[str]) -> str:
    groups = by_group(marks)
    rows = []
    for name, f in groups.items():
        bad = f["episodes"] - f["good"]
        low, high = f["auc_interval"]
        rows.append([
            name, str(f["episodes"]), str(f["good"]), f"{f['auc']:.3f} ({low:.3f} to {high:.3f})",
            f"{f['false_passes']} of {bad} ({f['false_passes'] / bad:.1%})",
            f"{f['false_fails']} of {f['good']} ({f['false_fails'] / f['good']:.1%})",
            f"{f['brier']:.3f}", f"{f['ece']:.3f}",
        ])  # fmt: skip
    total = table(
        ["", "episodes", "good", "AUC (95 %)", "false passes of bad", "false fails of good",
         "Brier", "calibration error"], rows)  # fmt: skip
    lines = []
    for prompt in PROMPTS:
        mine = [m for m in marks if m.answer.prompt is prompt]
        if mine:
            value = auc(mine)
            good = sum(m.good for m in mine)
            lines.append([
                prompt.name, "yes" if prompt.held_out else "", f"{good} of {len(mine)}",
                "-" if value is None else f"{value:.2f}",
                ", ".join(m.answer.shown for m in mine if m.passed and not m.good) or "-",
                ", ".join(m.answer.shown for m in mine if not m.passed and m.good) or "-",
            ])  # fmt: skip
    bins = [
        [
            f"{b['from']:.1f} to {b['to']:.1f}",
            str(b["episodes"]),
            f"{b['score']:.2f}",
            f"{b['good']:.2f}",
        ]
        for b in groups["all prompts"]["bins"]
    ]
    shown = [m.answer.prompt.shown[m.answer.shown] for m in marks]
    trained = sum(isinstance(motion, make.Trained) for motion in shown)
    played = sum(isinstance(motion, make.Played) for motion in shown)
    how = (
        f"{trained} episodes of trained policies, {len(shown) - trained - played} of scripted "
        f"controllers and {played} of kinematic playback, tricks among them. Labels are "
        "measurements on the simulator's positions that share no code with the "
        f"judge; {unclear} more episodes are neither clearly good nor bad and left out. For each "
        "prompt `builtin` writes criteria and the code judge, which scores every episode; a pass "
        "is the session's own rule on that one episode. Verdicts on held-out prompts were not "
        "looked at while criteria and judges were changed; one whose wrong verdicts were looked at "
        "later counts as looked at. "
        "[Every episode and its label](../judge_exam.csv)."
    )
    return "\n".join([
        "# Judge exam", "", how, "", *about, "", total, "",
        "![Scores by label](judge_exam.png)", "",
        "## By prompt", "",
        table(["prompt", "held out", "good", "AUC", "false passes", "false fails"], lines), "",
        "## Calibration", "",
        "The score is no probability; how many of the episodes with such a score are good:", "",
        table(["score", "episodes", "mean score", "good"], bins), "",
    ])  # fmt: skip


def plot(marks: Sequence[Mark], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=(2, 1))
    edges = np.linspace(0, 1, 21)
    for good, colour in ((False, "#c0504d"), (True, "#4f9d69")):
        scores = [m.score for m in marks if m.good == good]
        left.hist(scores, edges, alpha=0.6, color=colour, label="good" if good else "bad")
    left.axvline(THRESHOLD, color="black", linewidth=0.8, linestyle="--")
    left.set(xlabel="score of the judge", ylabel="episodes")
    left.legend(frameon=False)
    bins = figures(marks)["bins"]
    right.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    right.plot([b["score"] for b in bins], [b["good"] for b in bins], "o-", color="#3b6ea5")
    right.set(
        xlabel="score of the judge", ylabel="share of good episodes", xlim=(0, 1), ylim=(0, 1)
    )
    figure.tight_layout()
    figure.savefig(file, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cache", type=Path, default=Path("outputs/judge_exam"))
    parser.add_argument("--only", default="", help="prompts whose name has this")
    parser.add_argument("--labels", action="store_true", help="write judge_exam.csv, judge nothing")
    parser.add_argument("--show", action="store_true", help="list wrong verdicts with evidence")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    args = parser.parse_args()
    before = machine()
    for reward in make.TRAINED:
        make.train(args.cache, reward)
    prompts = [prompt for prompt in PROMPTS if args.only in prompt.name]
    answers = []
    for prompt in prompts:
        answers += episodes_of(prompt, args.cache)
        print(f"{len(answers)} episodes: {prompt.name}", file=sys.stderr, flush=True)
    if args.labels:
        write_paper(answers)
        labels = [answer.label for answer in answers]
        print({label: labels.count(label) for label in get_args(Label)})
        return
    clear = [answer for answer in answers if answer.label != "unclear"]
    marks = []
    for prompt in prompts:
        marks += judge(prompt, [answer for answer in clear if answer.prompt is prompt])
    if args.show:
        for m in marks:
            if m.passed != m.good and not m.answer.prompt.held_out:
                wrong = "FALSE PASS" if m.passed else "FALSE FAIL"
                where = f"{m.answer.prompt.name} | {m.answer.shown}"
                print(f"{wrong} {where} | {m.score:.3f} | {m.evidence}")
    after = machine()
    text = report(marks, len(answers) - len(clear), described(before, after))
    if args.write:
        rows = [
            {"env_id": m.answer.prompt.env_id, "prompt": m.answer.prompt.text,
             "held_out": m.answer.prompt.held_out, "episode": m.answer.shown,
             "label": m.answer.label, "score": round(m.score, 4), "passed": m.passed}
            for m in marks
        ]  # fmt: skip
        record = {"before": before, "after": after, "figures": by_group(marks), "episodes": rows}
        write("judge_exam", text, record)
        plot(marks, RESULTS / "judge_exam.png")
    else:
        print(
            json.dumps(
                {
                    n: {k: v for k, v in f.items() if k != "bins"}
                    for n, f in by_group(marks).items()
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
