"""Make the looping pictures of the README from policies that real sessions ended with.

    python scripts/gallery.py                 # of the sessions that come with the package
    python scripts/gallery.py --runs runs     # of other sessions, and of benchmarks' cases

For each row of GALLERY the best session with that prompt is looked up, its policy plays one episode
from a start that neither training nor judging used, and a few seconds become an animated WebP in
docs/images/gallery. gallery.json there names prompt, environment, score and command of each.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("MUJOCO_GL", "egl")

from PIL import Image

from p2p.api.app import demo_folders
from p2p.config import TrainConfig
from p2p.contracts import SessionResult
from p2p.training.evaluation import evaluation_seed, record_episodes
from p2p.training.policies.policy import Policy
from p2p.training.video.encode import frame_rows
from p2p.training.video.scene import pictures

if TYPE_CHECKING:
    from p2p.training.trajectory import RecordedEpisode

TARGET = Path(__file__).parents[1] / "docs" / "images" / "gallery"
WIDTH, HEIGHT = 400, 300
EVERY = 2
"""Frames of a video for one of a picture: 12.5 per second."""
QUALITY = 60
LIMIT_BYTES = 3_000_000
BLOCK = 12
"""Of seeds, for the start of the episode."""


@dataclass(frozen=True)
class Pictured:
    """A behaviour, and the seconds of its episode that show it."""

    file: str
    prompt: str
    env_id: str
    begin_s: float = 1.0
    seconds: float = 3.6


GALLERY = (
    Pictured("halfcheetah-run.webp", "run forward fast", "HalfCheetah-v5"),
    Pictured("halfcheetah-backflip.webp", "do a backflip", "HalfCheetah-v5"),
    Pictured("hopper-hop.webp", "hop forward", "Hopper-v5"),
    Pictured("walker2d-walk.webp", "walk forward", "Walker2d-v5"),
    Pictured("reacher-reach.webp", "reach the target", "Reacher-v5", begin_s=0.0),
    Pictured(
        "inverteddoublependulum-balance.webp",
        "balance the pole",
        "InvertedDoublePendulum-v5",
        begin_s=0.0,
    ),
)


def main() -> None:
    """Make all for which there is a session; say which are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, action="append", default=[], metavar="FOLDER")
    arguments = parser.parse_args()
    TARGET.mkdir(parents=True, exist_ok=True)
    with demo_folders() as (recorded, _):
        sessions = [
            path.parent
            for folder in (*arguments.runs, recorded)
            for path in sorted(folder.rglob("result.json"))
        ]
        rows = [row for each in GALLERY if (row := picture(each, sessions)) is not None]
    (TARGET / "gallery.json").write_text(json.dumps(rows, indent=2) + "\n", "utf-8")
    size = sum(path.stat().st_size for path in TARGET.glob("*.webp"))
    sys.stderr.write(f"{len(rows)} of {len(GALLERY)} pictures, {size:,} bytes in {TARGET}\n")
    if size > LIMIT_BYTES:
        sys.exit(f"more than {LIMIT_BYTES:,} bytes: show less of them")


def picture(wanted: Pictured, sessions: list[Path]) -> dict[str, str | float] | None:
    """Film the policy of the best session of this prompt; its row in gallery.json."""
    passed = [
        (result.confirmed_score or 0.0, session, result)
        for session in sessions
        if (result := passed_with(session, wanted)) is not None
    ]
    if not passed:
        sys.stderr.write(f"{wanted.file}: no session passed {wanted.prompt!r}\n")
        return None
    # Of equals the first: folders of --runs come before what is in the package.
    score, session, result = max(passed, key=lambda each: each[0])
    film(wanted, episode_of(session / str(result.policy)), TARGET / wanted.file)
    return {
        "file": wanted.file,
        "prompt": wanted.prompt,
        "env": wanted.env_id,
        "score": round(score, 3),
        "command": f"p2p run {shlex.quote(wanted.prompt)} --env {wanted.env_id}",
    }


def passed_with(session: Path, wanted: Pictured) -> SessionResult | None:
    """What came of a session, if it passed this prompt in this environment."""
    intent = json.loads((session / "intent.json").read_text("utf-8"))
    result = SessionResult.model_validate_json((session / "result.json").read_text("utf-8"))
    asked = (intent["prompt"], intent["env_id"]) == (wanted.prompt, wanted.env_id)
    return result if asked and result.status == "passed" and result.policy else None


def episode_of(policy: Path) -> RecordedEpisode:
    """One episode of a checkpoint's policy."""
    folder = policy if policy.is_dir() else policy.parent
    config = TrainConfig.model_validate_json((folder.parents[1] / "config.json").read_text("utf-8"))
    act = Policy.load(folder / "policy.safetensors")
    (episode,) = record_episodes(config, act, episodes=1, seed=evaluation_seed(BLOCK))
    return episode


def film(wanted: Pictured, episode: RecordedEpisode, target: Path) -> None:
    """The seconds that were asked for, as an animated WebP that plays in real time for ever."""
    times = episode["timestamp"]
    rows, fps = frame_rows(episode.length, float(times[1] - times[0]))
    first = min(round(wanted.begin_s * fps), max(0, len(rows) - round(wanted.seconds * fps)))
    shown = rows[first : first + round(wanted.seconds * fps) : EVERY]
    frames = [
        Image.fromarray(frame).resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
        for frame in pictures(wanted.env_id, episode, shown, 640, 480)
    ]
    frames[0].save(
        target,
        save_all=True,
        append_images=frames[1:],
        duration=round(1000 * EVERY / fps),
        loop=0,
        quality=QUALITY,
        method=4,
    )


if __name__ == "__main__":
    main()
