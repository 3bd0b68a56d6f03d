"""Scripted motions: poses played in real environments, one thing changing along each sweep."""

from __future__ import annotations

import numpy as np
import pytest

from p2p.config import TrainConfig
from p2p.training.evaluation import play_rounds
from p2p.training.scripted import POINTS, Motion, ScriptedEnv, cheats, scripted_env, sweeps
from p2p.training.specs.quantities import QUANTITIES
from p2p.training.trajectory import RecordedEpisode


def played(env: ScriptedEnv, name: str, *, of_root: bool = False) -> list[RecordedEpisode]:
    for sweep in env.each_sweep(of_root=of_root):
        if sweep.name.startswith(name):
            return list(play_rounds(env, "zero", episodes=POINTS, seed=5))
    raise AssertionError(f"{env.env_id} has no sweep {name!r}")


@pytest.fixture(scope="module")
def cheetah() -> ScriptedEnv:
    env = scripted_env(TrainConfig(env_id="HalfCheetah-v5"), QUANTITIES)
    assert env is not None
    return env


def test_the_environment_reports_the_speed_that_the_script_has(cheetah: ScriptedEnv) -> None:
    speeds = [episode["x_velocity"].mean() for episode in played(cheetah, "moving along x")]
    assert np.allclose(speeds, [-2, -1, 0, 1, 2], atol=1e-5)


def test_who_stops_earlier_gets_less_far(cheetah: ScriptedEnv) -> None:
    episodes = played(cheetah, "moving forward")
    way = [episode["qpos"][-1, 0] - episode["qpos"][0, 0] for episode in episodes]
    assert np.all(np.diff(way) > 0.2)
    assert np.allclose(episodes[0]["x_velocity"][-5:], 0.0, atol=1e-5)


def test_robots_stand_on_the_ground_unless_they_are_to_be_in_the_air(cheetah: ScriptedEnv) -> None:
    above = [episode["airborne"].mean() for episode in played(cheetah, "hovering")]
    assert above == [0.0, 1.0, 1.0, 1.0, 1.0]
    tilted = played(cheetah, "tilted about y")
    assert not any(episode["airborne"].any() for episode in tilted)
    up = [episode["body_up"][0, 1, 2] for episode in tilted]
    assert np.argmax(up) == POINTS // 2
    hops = [episode["airborne"].mean() for episode in played(cheetah, "hopping")]
    assert hops[0] == 0.0
    assert 0.3 < hops[-1] < 1.0


def test_who_steps_on_the_spot_lifts_one_foot_after_the_other(cheetah: ScriptedEnv) -> None:
    episodes = played(cheetah, "stepping", of_root=True)
    leads = [np.subtract(*episode["foot_height"].T) for episode in episodes]
    assert np.ptp(leads[0]) == 0.0
    assert np.min(leads[-1]) < -0.05
    assert np.max(leads[-1]) > 0.05
    assert not episodes[-1]["airborne"].any()


def test_all_points_of_a_sweep_start_alike_and_the_same_seed_plays_the_same(
    cheetah: ScriptedEnv,
) -> None:
    first, again = (played(cheetah, "moving along x") for _ in range(2))
    starts = [episode["obs"][0] for episode in first]
    assert all(np.array_equal(start[1:8], starts[0][1:8]) for start in starts)
    for one, other in zip(first, again, strict=True):
        assert np.array_equal(one["next_obs"], other["next_obs"])


def test_a_free_root_turns_about_every_axis_and_an_end_ends_the_episode() -> None:
    env = scripted_env(TrainConfig(env_id="Ant-v5"), QUANTITIES)
    assert env is not None
    turning = played(env, "turning about z")
    heading = [np.unwrap(episode["heading"])[-1] for episode in turning]
    assert np.all(np.diff(heading) > 0.5)
    over = played(env, "turning over in the air")
    assert over[0]["terminated"][-1]
    assert over[0].length < over[POINTS // 2].length


def test_a_fixed_robot_is_swept_joint_by_joint() -> None:
    env = scripted_env(TrainConfig(env_id="InvertedPendulum-v5"))
    assert env is not None
    names = [sweep.name for sweep in sweeps(env.robot)]
    assert names == ["slider held, from -1 to 1", "hinge held, from -1.57 to 1.57"]
    lengths = [episode.length for episode in played(env, "hinge")]
    assert lengths == [1, 1, env.max_episode_steps, 1, 1]


def test_what_is_not_mujoco_has_no_scripted_motions() -> None:
    assert scripted_env(TrainConfig(env_id="Pendulum-v1")) is None


def test_cheats_lie_sink_shake_and_fall_on_the_ground(cheetah: ScriptedEnv) -> None:
    motions = {"asked": Motion((1.0, 0.0)), **cheats(cheetah.robot, Motion((1.0, 0.0)))}
    names = iter(motions)
    episodes = {
        next(names): episode
        for count in cheetah.each_batch([*motions.values()])
        for episode in play_rounds(cheetah, "zero", episodes=count, seed=5)
    }
    assert episodes.keys() == motions.keys()
    height = {name: episode["body_position"][:, 1, 2].mean() for name, episode in episodes.items()}
    up = {name: episode["body_up"][:, 1, 2] for name, episode in episodes.items()}
    assert height["sunk on folded legs"] < 0.8 * height["asked"]
    assert up["lying on its back"].max() < -0.9
    assert up["falling forward"][0] > 0.9
    assert up["falling forward"][-1] < 0.1
    sliding = episodes["lying on its back, moving as asked"]
    assert np.allclose(sliding["x_velocity"], 1.0, atol=1e-5)
    burst = episodes["one burst at the start, then rest"]["x_velocity"]
    assert burst.mean() == pytest.approx(1.0, abs=0.1)
    assert burst[-1] == pytest.approx(0.0, abs=1e-5)
    joints = episodes["vibrating"]["qpos"][:, 3:]
    assert np.all(np.diff(joints, axis=0)[1:] * np.diff(joints, axis=0)[:-1] < 0)


def test_what_cannot_fall_or_starts_lying_has_no_cheats() -> None:
    for env_id in ("InvertedPendulum-v5", "Reacher-v5", "Swimmer-v5", "HumanoidStandup-v5"):
        env = scripted_env(TrainConfig(env_id=env_id))
        assert env is not None
        assert cheats(env.robot, Motion()) == {}
