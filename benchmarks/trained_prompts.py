"""Sessions on prompts that nobody tuned anything for: their verdicts against ground truth.

python benchmarks/trained_prompts.py SESSION... [--write]

Each SESSION is the folder of a `p2p run PROMPT --env ID --model builtin --iterations 1` on a row of
`paraphrases_trained.csv`, which was committed before any of them was read by the author. What its
prompt means to a person stands in `MEANINGS` as numbers of an episode in plain Gymnasium: positions
and MuJoCo's own contacts, no quantity and no judge. Rows are kept in results/, and replaced by a
later session on the same prompt.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from common import RESULTS, described, machine, table, write

from p2p.benchmark.measuring import play
from p2p.benchmark.truth.episode import Episode
from p2p.benchmark.truth.plausible import objections, watch
from p2p.training.policies.policy import Policy
from p2p.training.video.scene import open_model

NAME = "trained_prompts"
PROMPTS = RESULTS.parent / "paraphrases_trained.csv"
SEEDS = range(7000, 7005)
Row = dict[str, Any]


@dataclass
class Played:
    """One episode, with the actions that were taken in it."""

    episode: Episode
    actions: np.ndarray
    """As shares of the strongest."""
    model: mujoco.MjModel

    @property
    def lasted(self) -> float:
        return self.episode.steps / self.episode.horizon

    def speed(self, axis: int, first: float = 0.0, last: float = np.inf) -> float:
        """m/s along an axis of the world between two moments, in s."""
        dt, place = self.episode.dt, self.episode.torso[:, axis]
        a, b = (min(round(t / dt), self.episode.horizon) for t in (first, min(last, 1e6)))
        gained = place[min(b, len(place) - 1)] - place[min(a, len(place) - 1)]
        return float(gained / ((b - a) * dt))

    @property
    def effort(self) -> float:
        return float(np.mean(np.square(self.actions)))

    @property
    def height(self) -> np.ndarray:
        return self.episode.torso[1:, 2] / self.episode.torso[0, 2]

    def share(self, mask: np.ndarray) -> float:
        """Of the whole time that there was."""
        return float(np.count_nonzero(mask)) / self.episode.horizon

    @cached_property
    def in_the_air(self) -> np.ndarray:
        """Per step, whether nothing touches what does not move."""
        data = mujoco.MjData(self.model)
        fixed = self.model.body_weldid[self.model.geom_bodyid] == 0
        air = []
        for pose in self.episode.qpos[1:]:
            data.qpos[:] = pose
            mujoco.mj_fwdPosition(self.model, data)
            air.append(not any(fixed[c.geom1] != fixed[c.geom2] for c in data.contact))
        return np.array(air)

    def landings(self, body: str) -> np.ndarray:
        """The steps in which contact of a body with what does not move begins."""
        data, number = mujoco.MjData(self.model), self.model.body(body).id
        fixed = self.model.body_weldid[self.model.geom_bodyid] == 0
        on = []
        for pose in self.episode.qpos[1:]:
            data.qpos[:] = pose
            mujoco.mj_fwdPosition(self.model, data)
            pairs = [{c.geom1, c.geom2} for c in data.contact if fixed[c.geom1] != fixed[c.geom2]]
            on.append(any(self.model.geom_bodyid[g] == number for pair in pairs for g in pair))
        touches = np.array(on)
        return np.flatnonzero(touches[1:] & ~touches[:-1]) + 1


Measured = Callable[[Played], float]
Wanted = tuple[str, Measured, float, float]
"""What is measured, how, and between which numbers its mean is to be."""
ANY = np.inf
LASTS: Wanted = ("lasts", lambda p: p.lasted, 0.95, ANY)


def near(p: Played) -> float:
    return float(np.linalg.norm(p.episode.moved, axis=-1).max())


def galloped(p: Played) -> float:
    """The share of the hind foot's strides in which the front foot lands once, well apart."""
    hind, front = p.landings("bfoot"), p.landings("ffoot")
    strides = [(front[(front >= a) & (front < b)] - a) / (b - a) for a, b in pairwise(hind)]
    good = [len(phases) == 1 and 0.3 < phases[0] < 0.7 for phases in strides]
    return float(np.mean(good)) if good else 0.0


MEANINGS: dict[str, tuple[Wanted, ...]] = {
    "Swim the wrong way": (("speed along -x, m/s", lambda p: -p.speed(0), 0.1, ANY),),
    "Glide forward while": (
        ("speed along +x, m/s", lambda p: p.speed(0), 0.1, ANY),
        ("mean square of the actions", lambda p: p.effort, 0.0, 0.3),
    ),
    "Creep along": (
        ("speed along -y, m/s", lambda p: -p.speed(1), 0.35, 0.65),
        ("time lower than at first", lambda p: p.share(p.height < 0.8), 0.5, ANY),
        LASTS,
    ),
    "Spin clockwise": (
        ("turning to the right, rad/s", lambda p: -p.episode.speed(p.episode.heading), 0.5, ANY),
        ("farthest from the start, m", near, 0.0, 1.5),
        LASTS,
    ),
    "Stroll ahead": (("speed along +x, m/s", lambda p: p.speed(0), 0.3, 1.05), LASTS),
    "Walk for three": (
        ("speed in the first 3 s, m/s", lambda p: p.speed(0, 0.0, 3.0), 0.3, ANY),
        ("speed after 4 s, m/s", lambda p: abs(p.speed(0, 4.0, p.episode.seconds)), 0.0, 0.1),
        LASTS,
    ),
    "Hop the other way": (
        ("speed along -x, m/s", lambda p: -p.speed(0), 0.3, ANY),
        ("time in the air", lambda p: p.share(p.in_the_air), 0.1, ANY),
        LASTS,
    ),
    "Duck as low": (
        ("time lower than at first", lambda p: p.share(p.height < 0.85), 0.7, ANY),
        ("farthest from the start, m", near, 0.0, 0.5),
        LASTS,
    ),
    "Gallop forward": (
        ("speed along +x, m/s", lambda p: p.speed(0), 1.5, ANY),
        ("strides with the feet apart", galloped, 0.5, ANY),
    ),
    "Do the opposite": (("speed along -x, m/s", lambda p: -p.speed(0), 1.6, 2.4),),
    "Make headway": (
        ("speed along +x, m/s", lambda p: p.speed(0), 0.1, ANY),
        ("mean square of the actions", lambda p: p.effort, 0.0, 0.3),
    ),
    "Stand like": (
        ("farthest from the start, m", near, 0.0, 0.3),
        ("time as high as at first", lambda p: p.share(p.height > 0.85), 0.9, ANY),
        LASTS,
    ),
}
"""What a person means by the prompts that begin so."""


@dataclass
class Recorder:
    """Acts, and keeps what it did."""

    policy: Policy
    strongest: np.ndarray
    actions: list[np.ndarray] = field(default_factory=list)

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        action: np.ndarray = self.policy.act(obs[None])[0]
        self.actions.append(np.clip(action / self.strongest, -1.0, 1.0))
        return action


def play_session(env_id: str, file: Path) -> list[Played]:
    model, _ = open_model(env_id)
    strongest = np.abs(model.actuator_ctrlrange).max(axis=1)
    policy, played = Policy.load(file), []
    for seed in SEEDS:
        act = Recorder(policy, strongest)
        [episode] = play(env_id, act, [seed], observe_time=policy.observe_time)
        played.append(Played(episode, np.array(act.actions), model))
    return played


def row_of(session: Path) -> Row:
    """The verdict of a session, and what is true of its policy."""
    result = json.loads((session / "result.json").read_text())
    asked = json.loads((session / "intent.json").read_text())
    prompt, env_id = asked["prompt"], asked["env_id"]
    [wanted] = [wanted for begins, wanted in MEANINGS.items() if prompt.startswith(begins)]
    played = play_session(env_id, (session / result["policy"]).with_name("policy.safetensors"))
    values = [float(np.mean([measure(each) for each in played])) for _, measure, _, _ in wanted]
    met = all(low <= v <= high for v, (_, _, low, high) in zip(values, wanted, strict=True))
    episodes = [each.episode for each in played]
    model = played[0].model
    seen = [watch(model, e.qpos, dt=e.dt, horizon=e.horizon) for e in episodes]
    return {
        "env_id": env_id,
        "prompt": prompt,
        "status": result["status"],
        "score": result["score"],
        "unchecked": result["unchecked_words"],
        "measured": "; ".join(f"{w[0]} {v:.2f}" for w, v in zip(wanted, values, strict=True)),
        "truth": met,
        # Which way and how fast it is to go stands in MEANINGS.
        "objections": [o for o in objections(prompt, seen) if not o.startswith(("gets ", "goes "))],
        "minutes": round(result["seconds"] / 60, 1),
    }


def outcome(row: Row) -> str:
    """Of a verdict and the truth; an unverified one is neither true nor false."""
    good = row["truth"] and not row["objections"]
    if row["status"] == "passed":
        return "true pass" if good else "FALSE PASS"
    if row["status"] == "unverified":
        return "unverified"
    return "false fail" if good else "truly not passed"


def report(rows: list[Row], lines: list[str]) -> str:
    order = [row["prompt"] for row in csv.DictReader(PROMPTS.open(newline=""))]
    ordered = sorted(rows, key=lambda row: order.index(row["prompt"]))
    kinds = ("true pass", "FALSE PASS", "false fail", "truly not passed", "unverified")
    counts = [sum(outcome(row) == kind for row in rows) for kind in kinds]
    cells = [
        [
            row["env_id"],
            row["prompt"],
            outcome(row),
            "-" if row["score"] is None else f"{row['score']:.2f}",
            ", ".join(row["unchecked"]) or "-",
            row["measured"],
            "; ".join(row["objections"]) or "-",
        ]
        for row in ordered
    ]
    missing = [prompt for prompt in order if prompt not in {row["prompt"] for row in rows}]
    about = (
        "Prompts that were written before their author had seen the words of the built-in author. "
        "One iteration each, `--model builtin`, a pass confirmed on 16 held-out seeds. The ground "
        "truth is the mean of five or ten further episodes in plain Gymnasium, by positions and "
        "contacts, and what a person would object to. The opposite of running forward was read as "
        "running forward at first, and trained after the words were revised with these prompts in "
        "view; the other five before. That a gallop is told by its strides was added to the ground "
        "truth after its session, which without it counts as a false fail."
    )
    return "\n".join(
        [
            "# Verdicts on prompts that nobody tuned for",
            "",
            about,
            "",
            *lines,
            "",
            table(list(kinds), [[str(count) for count in counts]]),
            "",
            table(
                ["robot", "prompt", "outcome", "score", "unchecked", "measured", "objections"],
                cells,
            ),
            "",
            *([f"Not run yet: {'; '.join(missing)}.", ""] if missing else []),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sessions", nargs="*", type=Path, help="folders of sessions")
    parser.add_argument("--write", action="store_true", help="keep rows and table in results/")
    args = parser.parse_args()
    kept = RESULTS / f"{NAME}.json"
    record = json.loads(kept.read_text()) if kept.exists() else {"rows": []}
    before = machine()
    here = [row_of(session) for session in args.sessions]
    rows = {row["prompt"]: row for row in (*record["rows"], *here)}
    text = report([*rows.values()], described(before, machine()))
    print(text)
    if args.write:
        write(NAME, text, {"machine": before, "rows": [*rows.values()]})


if __name__ == "__main__":
    main()
