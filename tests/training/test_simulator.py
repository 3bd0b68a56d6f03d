from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest

from p2p.training.env_spec import get_env_spec, list_env_ids
from p2p.training.simulator import SimulatorBackend, get_simulator
from p2p.training.specs import spec_text
from p2p.training.video.scene import choose_camera, open_model, place

BACKEND: SimulatorBackend = get_simulator("mujoco")


def test_an_unknown_engine_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'warp'; known: mujoco"):
        get_simulator("warp")


def test_a_backend_is_made_once() -> None:
    assert get_simulator("mujoco") is BACKEND
    assert BACKEND.engine_name == "mujoco"


def test_side_info_is_live() -> None:
    env: Any = gym.make("Hopper-v5")
    env.reset(seed=0)
    side = BACKEND.extract_side_info(env)
    before = side["mj_data"].qpos.copy()
    env.step(env.action_space.sample())
    assert isinstance(side["mj_model"], mujoco.MjModel)
    np.testing.assert_array_equal(side["mj_data"].qpos, env.unwrapped.data.qpos)
    assert not np.array_equal(side["mj_data"].qpos, before)
    env.close()


def test_rewards_find_the_engine_in_their_namespace() -> None:
    assert BACKEND.reward_namespace() == {"mujoco": mujoco}


@pytest.mark.parametrize("env_id", list_env_ids())
def test_texts_name_everything(env_id: str) -> None:
    spec = get_env_spec(env_id)
    observation, actions = spec_text.observation_table(spec), spec_text.action_table(spec)
    for entry in spec.observation:
        assert f"\n{entry.index} | {entry.name} | {entry.source}" in observation
    for action in spec.actions:
        assert f"\n{action.index} | {action.name} | " in actions
    joints, geometry = spec_text.joint_semantics(spec), spec_text.body_geometry(spec)
    for joint in spec.joints:
        assert f"- {joint.name}: {joint.type}" in joints
        assert f"joint {joint.name}:" in geometry
    info = spec_text.body_info(spec)
    for body in spec.bodies[1:]:
        assert f"- {body.name}: " in geometry
        assert f"- {body.id} " in info


def test_the_observation_text_says_what_is_left_out() -> None:
    text = spec_text.observation_table(get_env_spec("HalfCheetah-v5"))
    assert text.endswith("Not observed: rootx (qpos[0])")
    ant = spec_text.observation_table(get_env_spec("Ant-v5"))
    assert ant.endswith("Not observed: root_x (qpos[0]), root_y (qpos[1])")
    assert "Not observed" not in spec_text.observation_table(get_env_spec("InvertedPendulum-v5"))


def test_image_axes_are_those_of_mujoco() -> None:
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><geom size='1'/></worldbody></mujoco>"
    )
    scene, data = mujoco.MjvScene(model, 10), mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = mujoco.MjvCamera()
    camera.azimuth, camera.elevation, camera.distance = 37.0, -25.0, 3.0
    mujoco.mjv_updateScene(model, data, mujoco.MjvOption(), None, camera,
                           mujoco.mjtCatBit.mjCAT_ALL, scene)  # fmt: skip
    forward, up = np.array(scene.camera[0].forward), np.array(scene.camera[0].up)
    right = np.cross(forward, up)
    for k, amounts in enumerate(spec_text.image_axes(37.0, -25.0).values()):
        np.testing.assert_allclose(amounts, (right[k], up[k], forward[k]), atol=1e-6)


def test_the_camera_text_says_where_forward_is() -> None:
    text = spec_text.camera_text(get_env_spec("HalfCheetah-v5"))
    assert "+x goes right;" in text
    assert "follows torso" in text
    assert "stays fixed" in spec_text.camera_text(get_env_spec("Reacher-v5"))


@pytest.mark.parametrize("env_id", list_env_ids())
def test_the_camera_is_the_one_that_videos_are_drawn_with(env_id: str) -> None:
    model, settings = open_model(env_id)
    data = mujoco.MjData(model)
    place(model, data)
    drawn, told = choose_camera(model, data, settings), get_env_spec(env_id).camera
    assert (told.azimuth, told.elevation) == (drawn.azimuth, drawn.elevation)
    assert told.distance == pytest.approx(drawn.distance)
    np.testing.assert_allclose(told.lookat, drawn.lookat, atol=1e-8)
    followed = None if drawn.tracked_body is None else model.body(drawn.tracked_body).name
    assert told.track_body == followed
