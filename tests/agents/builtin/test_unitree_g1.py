"""A Unitree G1 that lies, sits or shuffles passes none of these prompts, however it gets about.

Facts and poses were read off mjlab once, by unitree_g1/record.py; the engine is not needed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch._numpy as tensor_numpy
from numpy.typing import NDArray

from p2p.agents.builtin import morphology
from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.judge import write_judge
from p2p.agents.builtin.quantities import quantities_of
from p2p.agents.judge_agent import judge_trajectories
from p2p.agents.judge_code import trajectory_columns
from p2p.agents.requests import IntentRequest, JudgeRequest
from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import Intent, JudgmentResult
from p2p.settings import get_settings
from p2p.training.engines.facts import facts_folder
from p2p.training.env_spec import get_env_spec
from p2p.training.trajectory import (
    NAMES_KEY,
    SCALAR_COLUMNS,
    VECTOR_COLUMNS,
    RecordedEpisode,
)

ENV = "Mjlab-Velocity-Flat-Unitree-G1"
HERE = Path(__file__).parent / "unitree_g1"
POSES = json.loads((HERE / "poses.json").read_text())
CHEATS = ("lies on its back", "sits", "lies on its side")
BACKWARD = "walk backwards at half a metre per second"
TURN = "turn on the spot to the left"
SIDEWAYS = "step sideways to the right at 0.4 m/s"
MOTIONS: dict[str, tuple[float, float, float]] = {
    BACKWARD: (-0.5, 0.0, 0.0),
    TURN: (0.0, 0.0, 1.2),
    SIDEWAYS: (0.0, -0.4, 0.0),
    "stand still": (0.0, 0.0, 0.0),
}
"""How the whole pose moves: forward and to the left in m/s, and counterclockwise in rad/s."""


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the engine would have left of the environment."""
    monkeypatch.setenv("P2P_ENGINES_DIR", str(tmp_path / "engines"))
    get_settings.cache_clear()
    folder = facts_folder("mjlab", ENV)
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text((HERE / "spec.json").read_text())
    start = POSES["stands"]
    pose = np.array(start["body_position"]), np.array(start["xquat"])
    monkeypatch.setattr(morphology, "_first_pose", lambda _: pose)
    yield
    monkeypatch.undo()
    for kept in (get_settings, get_env_spec, morphology.usual_pose, morphology.morphology_of):
        getattr(kept, "cache_clear", lambda: None)()


def turned(vectors: NDArray[np.float64], yaw: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points (T, n, 3) turned about the vertical axis."""
    c, s = np.cos(yaw)[:, None], np.sin(yaw)[:, None]
    x, y = vectors[..., 0] * c - vectors[..., 1] * s, vectors[..., 0] * s + vectors[..., 1] * c
    return np.stack([x, y, vectors[..., 2]], axis=-1)


def moved(pose: str, motion: tuple[float, float, float]) -> RecordedEpisode:
    """An episode in which the pose is carried along, as a shuffle or a spin would."""
    spec, recorded = get_env_spec(ENV), {k: np.array(v) for k, v in POSES[pose].items()}
    steps, dt = int(spec.max_episode_steps or 0), spec.dt
    time = dt * np.arange(1, steps + 1)
    forward, left, turn = motion
    way = np.stack([forward * time, left * time, 0.0 * time], axis=-1)
    root = recorded["body_position"][2] * (1, 1, 0)
    bodies = turned(np.tile(recorded["body_position"] - root, (steps, 1, 1)), turn * time)
    bodies += way[:, None]
    qpos, (w, x, y, z) = np.tile(recorded["qpos"], (steps, 1)), recorded["qpos"][3:7]
    c, s = np.cos(turn * time / 2), np.sin(turn * time / 2)
    qpos[:, :3] = bodies[:, 2]
    qpos[:, 3:7] = np.stack([c * w - s * z, c * x - s * y, c * y + s * x, c * z + s * w], axis=-1)
    # A free joint's rates are its body's own: the vertical axis as the body sees it.
    up = np.array([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)])
    qvel = np.zeros((steps, qpos.shape[1] - 1))
    qvel[:, :3], qvel[:, 3:6] = (forward, left, 0.0), turn * up
    ahead = np.array([1 - 2 * (y * y + z * z), 2 * (x * y + w * z)])
    heading = np.arctan2(ahead[1], ahead[0]) + turn * time
    held = {
        name: np.tile(recorded[name], (steps, *[1] * np.ndim(recorded[name])))
        for name in ("foot_contact", "ground_contact", "penetration")
    }
    nothing = np.zeros(steps)
    return RecordedEpisode.from_arrays(
        {
            **dict.fromkeys(SCALAR_COLUMNS, nothing),
            **{name: np.zeros((steps, 1)) for name in VECTOR_COLUMNS},
            "step": np.arange(steps),
            "timestamp": time,
            "qpos": qpos,
            "qvel": qvel,
            "action": np.zeros((steps, len(spec.actions))),
            "heading": heading,
            "body_position": bodies,
            "body_velocity": np.gradient(bodies, dt, axis=0),
            "foot_height": 0.1 * (held["foot_contact"] == 0),
            **held,
            "terminated": np.zeros(steps, bool),
            "truncated": np.arange(steps) == steps - 1,
            NAMES_KEY: np.array([], np.str_),
        }
    )


def judged(prompt: str, pose: str, folder: Path) -> JudgmentResult:
    proposal = write_criteria(IntentRequest(prompt=prompt, env_id=ENV))
    intent = Intent(prompt=prompt, env_id=ENV, criteria=proposal.criteria, author="builtin")
    columns = trajectory_columns(get_env_spec(ENV))
    request = JudgeRequest(prompt=prompt, env_id=ENV, criteria=intent.criteria, columns=columns)
    file = folder / "trajectory_1_median.npz"
    moved(pose, MOTIONS[prompt]).save(file)
    config = TrainConfig(env_id=ENV, engine="mjlab")
    code, loop = write_judge(request).code, LoopConfig(train=config)
    return judge_trajectories(intent, code, config, [file], step=None, loop=loop)


def met(result: JudgmentResult, name: str) -> bool:
    return next(each.score for each in result.criteria if each.id == name) == 1.0


@pytest.mark.parametrize("prompt", MOTIONS)
@pytest.mark.parametrize("pose", CHEATS)
@pytest.mark.usefixtures("facts")
def test_who_is_not_on_its_feet_does_not_pass(prompt: str, pose: str, tmp_path: Path) -> None:
    result = judged(prompt, pose, tmp_path)
    assert not result.passed
    assert not met(result, "does_not_sink_down")
    assert not met(result, "only_what_carries_it_touches_the_ground")
    assert met(result, "stays_upright") == (pose == "sits")
    assert result.failure_tags


@pytest.mark.usefixtures("facts")
def test_cheats_get_about_as_asked_and_standing_is_no_cheat(tmp_path: Path) -> None:
    assert met(judged(BACKWARD, "lies on its back", tmp_path), "keeps_going")
    assert met(judged(TURN, "sits", tmp_path), "turns_counterclockwise")
    sideways = judged(SIDEWAYS, "lies on its side", tmp_path)
    assert met(sideways, "goes_to_the_right_at_the_speed_asked_for")
    assert judged("stand still", "stands", tmp_path).passed


@pytest.mark.parametrize("prompt", [BACKWARD, TURN, SIDEWAYS])
@pytest.mark.usefixtures("facts")
def test_who_stands_and_slides_as_asked_does_not_pass(prompt: str, tmp_path: Path) -> None:
    result = judged(prompt, "stands", tmp_path)
    assert met(result, "does_not_sink_down")
    assert met(result, "only_what_carries_it_touches_the_ground")
    assert not met(result, "steps_rather_than_slides")
    assert not result.passed


@pytest.mark.usefixtures("facts")
def test_tilt_of_a_robot_that_stands_is_the_same_on_tensors():
    """Else its reward is copied to NumPy in every step of a training on a GPU."""
    code = quantities_of(ENV)["tilt"].reward_code(side_info=True)
    qpos = np.zeros((5, 36))
    tilts = np.array([0.0, 1e-4, 1e-2, 0.5, 3.0])
    qpos[:, 3], qpos[:, 5] = np.cos(tilts / 2), np.sin(tilts / 2)

    def measure(library: Any, qpos: Any) -> Any:
        names = {"np": library, "info": {"mj_data": SimpleNamespace(qpos=qpos)}}
        return eval(str(code), names)  # noqa: S307

    np.testing.assert_allclose(measure(np, qpos), tilts, atol=1e-9)
    single = tensor_numpy.asarray(torch.as_tensor(qpos, dtype=torch.float32))
    found = measure(tensor_numpy, single).tensor.numpy()
    np.testing.assert_allclose(found, tilts, atol=1e-6)
