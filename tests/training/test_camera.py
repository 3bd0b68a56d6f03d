import math

import gymnasium
import mujoco
import numpy as np
import pytest

from p2p.training.video.scene import choose_camera, open_model, place

ENVIRONMENTS = [
    f"{name}-v5"
    for name in (
        "HalfCheetah", "Ant", "Hopper", "Walker2d", "Humanoid", "HumanoidStandup", "Swimmer",
        "Reacher", "Pusher", "InvertedPendulum", "InvertedDoublePendulum",
    )
]  # fmt: skip
TRAVELLERS = ENVIRONMENTS[:7]


def at_start(env_id):
    model, config = open_model(env_id)
    data = mujoco.MjData(model)
    place(model, data)
    return model, data, choose_camera(model, data, config)


def seen_at(view, points):
    """Angles left-right and up-down of points, in degrees from the middle of the picture."""
    azimuth, elevation = math.radians(view.azimuth), math.radians(view.elevation)
    forward = np.array(
        [
            math.cos(elevation) * math.cos(azimuth),
            math.cos(elevation) * math.sin(azimuth),
            math.sin(elevation),
        ]
    )
    right = np.array([math.sin(azimuth), -math.cos(azimuth), 0.0])
    offsets = points - (view.lookat - view.distance * forward)
    depth = offsets @ forward
    assert (depth > 0).all(), "behind the camera"
    across, above = offsets @ right, offsets @ np.cross(right, forward)
    return np.degrees(np.arctan2(across, depth)), np.degrees(np.arctan2(above, depth))


def moving_geoms(model, data):
    return data.geom_xpos[model.body_dofnum[model.body_rootid[model.geom_bodyid]] > 0]


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_the_agent_is_in_frame_and_large_enough_to_see(env_id):
    model, data, camera = at_start(env_id)
    across, above = seen_at(camera.at(data), moving_geoms(model, data))
    half = model.vis.global_.fovy / 2
    assert max(np.abs(across).max(), np.abs(above).max()) < 0.95 * half
    assert max(np.ptp(across), np.ptp(above)) > 0.15 * half


@pytest.mark.parametrize("env_id", TRAVELLERS)
def test_what_travels_stays_in_frame(env_id):
    model, data, camera = at_start(env_id)
    data.qpos[:2] += (37.0, 0.0)
    place(model, data)
    across, _ = seen_at(camera.at(data), moving_geoms(model, data))
    assert np.abs(across).max() < model.vis.global_.fovy / 2


@pytest.mark.parametrize("env_id", [e for e in ENVIRONMENTS if e not in TRAVELLERS])
def test_what_stays_in_its_place_is_seen_by_a_camera_that_does_not_move(env_id):
    _, data, camera = at_start(env_id)
    before = np.array(camera.at(data).lookat)
    data.subtree_com += 5.0
    np.testing.assert_array_equal(camera.at(data).lookat, before)


def test_a_jump_is_seen_as_a_jump_but_a_flight_is_followed():
    model, data, camera = at_start("Hopper-v5")
    start = np.array(camera.at(data).lookat)
    data.qpos[1] += 0.1
    place(model, data)
    assert camera.at(data).lookat[2] == pytest.approx(start[2])
    data.qpos[1] += 20.0
    place(model, data)
    _, above = seen_at(camera.at(data), moving_geoms(model, data))
    assert np.abs(above).max() < model.vis.global_.fovy / 2


@pytest.mark.parametrize("env_id", TRAVELLERS)
def test_forward_is_to_the_right(env_id):
    _, data, camera = at_start(env_id)
    view = camera.at(data)
    across, _ = seen_at(view, np.add([view.lookat], [0.5, 0.0, 0.0]))
    assert across[0] > 1


def test_motion_in_the_plane_is_seen_from_above():
    for env_id, from_above in (("Reacher-v5", True), ("Swimmer-v5", True), ("Ant-v5", False)):
        _, _, camera = at_start(env_id)
        assert (camera.elevation < -60) == from_above


def test_an_environment_without_a_model_is_refused_by_name():
    with pytest.raises(ValueError, match="CartPole-v1 has no MuJoCo model"):
        open_model("CartPole-v1")
    assert gymnasium.spec("CartPole-v1")
