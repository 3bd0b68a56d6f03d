"""Prompts that `builtin` cannot do, with a language model: what came of recorded sessions.

python benchmarks/live_model.py SESSION... [--exchanges FOLDER] [--write]

Each SESSION is the folder of a session that ended. Its best policy is played in plain Gymnasium,
from seeds of its own, and what was asked is read off the simulator by code that no agent wrote.
With --exchanges, what the model answered is kept there, one small file for each session, for tests
that replay the agents' side.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from builtin_prompts import Played, play
from common import table, write

PROTOCOLS = {"anthropic": "Anthropic", "google": "Gemini", "openai-compatible": "OpenAI"}
"""What is spoken with a provider."""


# --- what was asked, seen from outside ------------------------------------------------------------


def loops(e: Played) -> str:
    """The two loops of the fingertip's path: their signed areas have opposite signs."""
    path = e.xpos[10:, 3, :2] - e.xpos[10:, 3, :2].mean(axis=0)
    areas = []
    for side in (1, -1):
        x, y = path[side * path[:, 1] > 0].T
        areas.append(0.5e4 * float(np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y)))
    return f"loops of {areas[0]:+.0f} and {areas[1]:+.0f} cm²"


def sitting(e: Played) -> str:
    rear, front = np.median(e.xpos[40:, 2, 2]), np.median(e.xpos[40:, 5, 2])
    return f"rear end {rear:.2f} m, front end {front:.2f} m high"


def beats(e: Played) -> str:
    """Falls of the front foot through the middle of its range; the hind foot for comparison."""
    foot, hind = e.xpos[20:, 7, 2], e.xpos[20:, 4, 2]
    low = foot < (foot.max() + foot.min()) / 2
    count = int(np.sum(low[1:] & ~low[:-1])) if np.ptp(foot) > 0.03 else 0
    rate = count / (len(foot) * e.dt)
    travel = np.ptp(e.qpos[20:, 0])
    return (
        f"{rate:.1f} beats/s, hind foot moves {np.ptp(hind):.2f} m up and down, {travel:.1f} m away"
    )


def moonwalk(e: Played) -> str:
    speed = -(e.qpos[-1, 0] - e.qpos[0, 0]) / e.seconds
    lead = e.xpos[:, 4, 0] - e.xpos[:, 7, 0]
    signs = np.sign(lead[np.abs(lead) > 0.05])
    passes = int(np.sum(signs[1:] != signs[:-1]))
    return (
        f"{speed:.2f} m/s backward over {100 * e.lasted:.0f} % of the time, the feet pass each "
        f"other {passes} times"
    )


def halves(e: Played) -> str:
    """How far the middle of the body, between its two joints, moves in each half."""
    middle = (e.xpos[:, 2, :2] + e.xpos[:, 3, :2]) / 2
    half = len(middle) // 2
    first, second = (
        float(np.linalg.norm(part[-1] - part[0])) for part in (middle[:half], middle[half:])
    )
    return f"{first:.2f} m in the first half, {second:.2f} m in the second"


def bows(e: Played) -> str:
    count, down, depth = 0, False, 1.0
    for height in e.xpos[20:, 5, 2]:
        depth = min(depth, float(height))
        if not down and height < 0.36:
            down = True
        elif down and height > 0.5:
            count, down = count + 1, False
    times = f"{count} bow{'' if count == 1 else 's'}"
    return f"{times}, front end down to {depth:.2f} m"


TRUTH: dict[str, tuple[Callable[[Played], str], Callable[[Played], float], str]] = {
    "trace a figure eight with the fingertip": (
        loops,
        lambda e: float(e.xpos[-1, 3, 0]),
        "the fingertip draws both loops and ends at their crossing",
    ),
    "sit like a dog: rear on the floor, front raised, and stay there": (
        sitting,
        lambda e: float(np.median(e.xpos[40:, 2, 2])),
        "kneels with the front raised and stays; the rear end does not reach the floor",
    ),
    "drum on the floor with the front foot": (
        beats,
        lambda e: float(np.ptp(e.qpos[20:, 0])),
        "stands on the hind foot and beats the floor with the front one",
    ),
    "moonwalk: glide backward while facing forward": (
        moonwalk,
        lambda e: float(e.qpos[-1, 0]),
        "glides backward on its heels, upright, the same foot in front",
    ),
    "play dead for the first half, then swim away": (
        halves,
        lambda e: float(np.linalg.norm(e.qpos[-1, :2])),
        "one push at the start, lies still, then swims away in waves",
    ),
    "bow: lower the front of the torso twice and come up again": (
        bows,
        lambda e: float(e.xpos[20:, 5, 2].min()),
        "bows deeply, stays down, and comes up only at the end",
    ),
}
"""By prompt: the measurement in words, what orders the episodes, and what the video shows."""


# --- a session ------------------------------------------------------------------------------------


def described(session: Path) -> dict[str, Any]:
    """What a session came to, and what its policy does in plain Gymnasium."""
    started = json.loads((session / "session.json").read_text())
    result = json.loads((session / "result.json").read_text())
    prompt, loop = started["prompt"], started["loop"]
    words, order, seen = TRUTH[prompt]
    policy = session / Path(result["policy"]).with_name("policy.safetensors")
    episodes = sorted(play(loop["train"]["env_id"], policy), key=order)
    steps = [
        max(int(each.name.removeprefix("step_")) for each in folder.iterdir())
        for folder in session.glob("iter_*/**/checkpoints")
        if any(folder.iterdir())
    ]
    return {
        "prompt": prompt,
        "env": loop["train"]["env_id"],
        "protocol": PROTOCOLS[loop["model"].partition(":")[0]],
        "looks": bool(loop["vlm_model"]),
        "builtin": ignored(prompt, loop["train"]["env_id"]),
        "iterations": result["iterations"],
        "status": result["status"],
        "score": result["score"],
        "truth": words(episodes[len(episodes) // 2]),
        "seen": seen,
        "steps": sum(steps),
        "calls": result["model_calls"],
    }


def ignored(prompt: str, env_id: str) -> tuple[str, ...]:
    """The words that `builtin` makes nothing of; none: it refuses the prompt."""
    from p2p.agents import builtin
    from p2p.agents.intent_elicitor import elicit
    from p2p.inference.llm_client import LLMClient
    from p2p.inference.question import NotUnderstood

    with tempfile.TemporaryDirectory() as folder:
        client = LLMClient("builtin", folder=Path(folder), builtin=builtin.answer)
        try:
            return elicit(client, prompt, env_id).unused_words
        except NotUnderstood:
            return ()


def exchanges(session: Path) -> dict[str, Any]:
    """What was asked for and answered, without the long prompts around it."""
    started = json.loads((session / "session.json").read_text())
    loop = started["loop"]
    answers = []
    for path in sorted((session / "llm").glob("*.json")):
        exchange = json.loads(path.read_text())
        for part in (exchange["response"] or {"parts": []})["parts"]:
            if part["part_kind"] == "tool-call":
                args = part["args"]
                if isinstance(args, str):  # as OpenAI's protocol writes them
                    args = json.loads(args)
                role = exchange["call"]["role"]
                answers.append({"role": role, "tool": part["tool_name"], "args": args})
    return {
        "prompt": started["prompt"],
        "env_id": loop["train"]["env_id"],
        "model": loop["model"],
        "vlm_model": loop["vlm_model"],
        "candidates": loop["candidates"],
        "answers": answers,
    }


def report(rows: list[dict[str, Any]]) -> str:
    header = ["prompt", "environment", "`builtin`", "protocol", "iterations", "steps", "calls"]
    header.append("judges")
    header += ["plain Gymnasium, median of 8 episodes", "the video shows"]
    lines = [
        [
            row["prompt"],
            row["env"],
            f"ignores {', '.join(row['builtin'])}" if row["builtin"] else "refuses",
            row["protocol"] + (", looks" if row["looks"] else ""),
            str(row["iterations"]),
            f"{row['steps']:,}",
            str(row["calls"]),
            f"{row['status'].replace('_', ' ')}, {row['score']:.2f}",
            row["truth"],
            row["seen"],
        ]
        for row in rows
    ]
    passed = sum(row["status"] == "passed" for row in rows)
    refused = sum(not row["builtin"] for row in rows)
    calls = median(row["calls"] for row in rows)
    return f"""# Prompts that need a language model

The model: answers written by hand through an OpenAI-compatible endpoint (which also speaks
Anthropic's and Gemini's protocols), from the requests alone. No paid model answered.

`builtin` refuses {refused} of these {len(rows)} prompts; of the others it ignores words.
{passed} of {len(rows)} passed; the median session took {calls:.0f} calls.
"Looks": pictures or the video were judged, too. Two or three iterations at most, on two cores.

{table(header, lines)}

Where judges and simulator differ:

- The moonwalk's judge told by the lowest point which foot is in front, and counted rocking feet as
  steps. It was a criterion of the gait; the task, to glide backward, is met.
- The swimmer's push at the start falls into the second that its criterion leaves out. It missed the
  pass by a threshold that doing nothing misses, too: what zero actions give was not yet told.
- The dog's hind legs are held by springs, of which its author was not yet told.

Made by `python benchmarks/live_model.py SESSION... --write` from the folders of the sessions.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sessions", nargs="+", type=Path)
    parser.add_argument("--exchanges", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.exchanges:
        options.exchanges.mkdir(parents=True, exist_ok=True)
        for session in options.sessions:
            kept = exchanges(session)
            name = "_".join(kept["prompt"].replace(":", "").split()[:4])
            text = json.dumps(kept, indent=1, ensure_ascii=False)
            (options.exchanges / f"{name}.json").write_text(f"{text}\n")
    rows = [described(session) for session in options.sessions]
    text = report(rows)
    print(text)
    if options.write:
        write("live_model", text)


if __name__ == "__main__":
    main()
