"""Make the looping pictures of the README from policies that real sessions ended with.

    python scripts/gallery.py                 # of the sessions that come with the package
    python scripts/gallery.py --runs runs     # of other sessions, and of benchmarks' cases
    python scripts/gallery.py --robots g1.xml go1.xml   # model files that stand, in one picture

For each row of GALLERY the first session that passed with that prompt is looked up. Its policy
plays from starts that neither training nor judging used, and a few seconds become an animated WebP
in docs/images/gallery. gallery.json there names prompt, environment, score and command of each.
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
from p2p.training.evaluation import evaluation_seed, play_episodes
from p2p.training.policies.policy import Policy
from p2p.training.video.playback import FPS, frame_rows
from p2p.training.video.scene import pictures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from p2p.training.trajectory import RecordedEpisode

TARGET = Path(__file__).parents[1] / "docs" / "images" / "gallery"
WIDTH, HEIGHT = 400, 300
EVERY = 2
"""Frames of a video for one of a picture: 12.5 per second."""
QUALITY = 60
LIMIT_BYTES = 3_000_000
EPISODES, BLOCK = 4, 12
"""Played at most, and the block of seeds for their starts."""


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
    Pictured(
        "halfcheetah-backflip.webp", "do a backflip", "HalfCheetah-v5", begin_s=5.4, seconds=2.5
    ),
    Pictured("hopper-hop.webp", "hop forward", "Hopper-v5"),
    Pictured("walker2d-walk.webp", "walk forward", "Walker2d-v5"),
    Pictured("reacher-reach.webp", "reach the target", "Reacher-v5", begin_s=0.0),
    Pictured(
        "inverteddoublependulum-balance.webp",
        "balance both poles",
        "InvertedDoublePendulum-v5",
        begin_s=0.0,
    ),
    Pictured("go1-trot.webp", "trot forward at 1.5 m/s", "Mjlab-Velocity-Flat-Unitree-Go1"),
    Pictured(
        "go1-pace.webp",
        "pace forward, both left legs together, then both right legs",
        "Mjlab-Velocity-Flat-Unitree-Go1",
    ),
)


def main() -> None:
    """Make all for which there is a session; say which are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, action="append", default=[], metavar="FOLDER")
    parser.add_argument("--robots", type=Path, nargs="+", default=[], metavar="FILE")
    arguments = parser.parse_args()
    TARGET.mkdir(parents=True, exist_ok=True)
    if arguments.robots:
        draw_robots(arguments.robots)
        return
    with demo_folders() as (recorded, _):
        sessions = [
            path.parent
            for folder in (*arguments.runs, recorded)
            for path in sorted(folder.rglob("result.json"))
        ]
        listing = TARGET / "gallery.json"
        before = json.loads(listing.read_text("utf-8")) if listing.exists() else []
        known = {row["file"]: row for row in before}
        for each in GALLERY:
            row = picture(each, sessions)
            if row is not None:
                known[each.file] = row
    rows = [known[each.file] for each in GALLERY if each.file in known]
    listing.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")
    size = sum(path.stat().st_size for path in TARGET.glob("*.webp"))
    sys.stderr.write(f"{len(rows)} of {len(GALLERY)} pictures, {size:,} bytes in {TARGET}\n")
    if size > LIMIT_BYTES:
        sys.exit(f"more than {LIMIT_BYTES:,} bytes: show less of them")


def picture(wanted: Pictured, sessions: list[Path]) -> dict[str, str | float] | None:
    """Film the policy of the first session of this prompt; its row in gallery.json."""
    for session in sessions:
        result = passed_with(session, wanted)
        if result is not None:
            break
    else:
        sys.stderr.write(f"{wanted.file}: left as it is; no session passed {wanted.prompt!r}\n")
        return None
    film(wanted, episodes_of(session / str(result.policy)), TARGET / wanted.file)
    return {
        "file": wanted.file,
        "prompt": wanted.prompt,
        "env": wanted.env_id,
        "score": round(result.confirmed_score or 0.0, 3),
        "command": f"p2p run {shlex.quote(wanted.prompt)} --env {wanted.env_id}{seeds_of(session)}",
    }


def draw_robots(files: list[Path]) -> None:
    """Draw model files side by side, after five seconds of zero actions."""
    from p2p.training.model_files.adoption import adopt
    from p2p.training.model_files.playing import play_in_sandbox

    stills = []
    for file in files:
        config = TrainConfig(env_id=adopt(file), max_episode_steps=250)
        (episode,) = play_in_sandbox(config, "zero", rows=1, episodes=1, seed=0)
        (frame,) = pictures(config.env_id, episode, [episode.length - 1], 640, 480)
        stills.append(Image.fromarray(frame).resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS))
    row = Image.new("RGB", (WIDTH * len(stills), HEIGHT))
    for place, still in enumerate(stills):
        row.paste(still, (place * WIDTH, 0))
    row.save(TARGET.parent / "robots.webp", quality=QUALITY)


def seeds_of(session: Path) -> str:
    """The option that asks for the seeds of a session, if they are not what goes without saying."""
    seeds = json.loads((session / "session.json").read_text("utf-8"))["loop"]["seeds"]
    if seeds == [1]:
        return ""
    if seeds == [*range(1, len(seeds) + 1)]:
        return f" --seeds {len(seeds)}"
    return f" --set 'seeds={seeds}'"


def passed_with(session: Path, wanted: Pictured) -> SessionResult | None:
    """What came of a session, if it passed this prompt in this environment."""
    intent = json.loads((session / "intent.json").read_text("utf-8"))
    result = SessionResult.model_validate_json((session / "result.json").read_text("utf-8"))
    asked = (intent["prompt"], intent["env_id"]) == (wanted.prompt, wanted.env_id)
    return result if asked and result.status == "passed" and result.policy else None


def episodes_of(policy: Path) -> Iterator[RecordedEpisode]:
    """Episodes of a checkpoint's policy, one after the other."""
    folder = policy if policy.is_dir() else policy.parent
    config = TrainConfig.model_validate_json((folder.parents[1] / "config.json").read_text("utf-8"))
    act = Policy.load(folder / "policy.safetensors")
    return play_episodes(config, act, episodes=EPISODES, seed=evaluation_seed(BLOCK))


def film(wanted: Pictured, episodes: Iterator[RecordedEpisode], target: Path) -> None:
    """The seconds that were asked for, as an animated WebP that plays in real time for ever.

    Where an episode is shorter, the next one follows.
    """
    frames: list[Image.Image] = []
    needed = round(wanted.seconds * FPS / EVERY)
    for episode in episodes:
        times = episode["timestamp"]
        rows, _ = frame_rows(episode.length, float(times[1] - times[0]))
        shown = rows[round(wanted.begin_s * FPS) :: EVERY][: needed - len(frames)]
        frames += [
            Image.fromarray(frame).resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
            for frame in pictures(wanted.env_id, episode, shown, 640, 480)
        ]
        if len(frames) >= needed:
            break
    frames[0].save(
        target,
        save_all=True,
        append_images=frames[1:],
        duration=1000 * EVERY // FPS,
        loop=0,
        quality=QUALITY,
        method=4,
    )


if __name__ == "__main__":
    main()
