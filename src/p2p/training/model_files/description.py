"""A model file's environment in words, as TOML to edit, and as a picture."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from p2p.training.model_files.store import folder_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2p.training.env_spec import EnvSpec
    from p2p.training.model_files.record import RobotModel

STARTS = {
    "key frame": "the key frame, put on the floor",
    "model": "the model's own pose, put on the floor",
    "settled": "the pose in which it settled on the floor",
    "given": "as the TOML says",
}


UNITS = {"position": "N m/rad (N/m)", "velocity": "N m s/rad"}


def describe_record(record: RobotModel, spec: EnvSpec) -> list[str]:
    """Describe the decisions about a model file, a line each."""
    seconds, skip = record.max_episode_steps * spec.dt, record.frame_skip
    lines = [
        f"an action every {spec.dt:g} s, {skip} physics steps; episodes of {seconds:g} s",
        f"starts in {STARTS[record.start]}; joints and speeds differ by {record.start_noise:g}",
        f"trunk: {record.trunk or 'none, its base is fixed'}",
        f"faces {record.forward} in its file, and +x in the environment",
        spec.termination,
    ]
    if record.floor:
        lines.append("a floor was added: there was none")
    if record.free_base:
        lines.append("its base was set free: the file fixes it to the world")
    elif record.trunk is None and record.main.lower().endswith(".urdf"):
        lines.append('its base is fixed, as URDFs of arms have it; base = "free" sets it free')
    if record.rounded:
        lines.append(f"inertia of no solid, taken as that of a ball: {_join_names(record.rounded)}")
    for kind, words in (("position", "servos"), ("velocity", "servos of speed, for wheels,")):
        given = [f"{s.joint} {s.stiffness:.3g}" for s in record.servos if s.kind == kind]
        if given:
            lines.append(
                f"{words} were added, for there are no actuators: "
                f"{_join_names(given)} {UNITS[kind]}"
            )
    if record.fixed:
        lines.append(f"fixed joints: {', '.join(record.fixed)}")
    hidden = "" if record.observe_heading else "; x, y and heading are not observed"
    lines.append(f"actions are scaled to [-1, 1] by the range of each actuator{hidden}")
    return lines


def _join_names(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")


def as_toml(record: RobotModel, spec: EnvSpec) -> str:
    """Return the inferred settings as TOML."""
    start = record.start_qpos
    single = [j for j in spec.joints if j.type in ("slide", "hinge")]
    root = {j.name for j in spec.joints if j.qpos_address == spec.z_height_qpos_idx}
    trunk = next((j.body for j in spec.joints if j.name in root), None)
    joints = [j for j in single if j.body != trunk or j.parent != "world"]
    free = next((j for j in spec.joints if j.type == "free" and j.body == trunk), None)
    lines = [
        f"# Of the environment that {Path(record.main).name} makes; what is left out is inferred.",
        f"control_step = {spec.dt!r}  # seconds between two actions",
        f"episode = {record.max_episode_steps * spec.dt!r}  # seconds",
        *([f"trunk = {_text(record.trunk)}"] if record.trunk else []),
        f'forward = "{record.forward}"  # where it faces in its file',
        f"fixed = {json.dumps(list(record.fixed))}  # joints to take out",
        f"start_noise = {record.start_noise!r}",
        f"observe_heading = {str(record.observe_heading).lower()}  # for a place to reach",
        "",
        "[start]",
    ]
    if free is not None:
        q = free.qpos_address
        lines.append(f"height = {start[q + 2]!r}")
    elif spec.z_height_qpos_idx is not None:
        lines.append(f"height = {start[spec.z_height_qpos_idx]!r}")
    lines += ["", "[start.joints]"]
    lines += [f"{_text(j.name)} = {start[j.qpos_address]!r}" for j in joints]
    lines += ["", "[start.ranges]  # joints that begin anywhere between two values"]
    lines += [f"{_text(name)} = {list(ends)}" for name, ends in record.start_ranges.items()]
    lines += ["", "[ends]  # what ends an episode"]
    low, high = record.ends.height or (None, None)
    if low is None and high is None:
        lines.append("# height = [0.3, 2.0]  # of the trunk, in metres")
    else:
        lines.append(f"height = [{-1e3 if low is None else low}, {1e3 if high is None else high}]")
    tilt = record.ends.tilt
    lines.append("# tilt = 1.0  # radians from its start" if tilt is None else f"tilt = {tilt!r}")
    lines += ["", '[parts]  # words for bodies, such as "front left leg" = "FL_thigh"']
    lines += [f"{_text(words)} = {_text(body)}" for words, body in record.parts.items()]
    for servo in record.servos:
        lines += ["", f"[servos.{_text(servo.joint)}]", f"stiffness = {servo.stiffness!r}"]
        lines.append(f"damping = {servo.damping!r}")
        lines += [] if servo.effort is None else [f"effort = {servo.effort!r}"]
    return "\n".join(lines) + "\n"


def _text(value: str | None) -> str:
    return json.dumps(value or "", ensure_ascii=False)


def draw(env_id: str) -> Path | str:
    """A picture of its start, kept with it; else why there is none."""
    from p2p.config import TrainConfig
    from p2p.training.model_files.playing import play_in_sandbox
    from p2p.training.video.rendering import RenderJob, render

    picture = folder_of(env_id) / "picture.png"
    if picture.is_file():
        return picture
    config = TrainConfig(env_id=env_id, max_episode_steps=10)
    (episode,) = play_in_sandbox(config, "zero", rows=1, episodes=1, seed=0)
    with tempfile.TemporaryDirectory(prefix="p2p-picture-") as folder:
        trajectory = Path(folder) / "episode.npz"
        episode.save(trajectory)
        outcome = render(
            RenderJob(env_id=env_id, trajectory=trajectory, output=picture, view="initial_frame")
        )
    return picture if outcome.ok else f"no picture: {outcome.error}"
