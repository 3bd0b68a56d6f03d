"""Holds the specs against the live environments."""

from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest

from p2p.training.env_spec import (
    EnvSpec,
    UnknownEnvironmentError,
    UnsupportedEnvironmentError,
    get_env_spec,
    get_spec_by_name,
    gymnasium_env_ids,
    max_steps_for_duration,
)
from p2p.training.simulator import SimulatorBackend, get_simulator
from p2p.training.specs import spec_text
from p2p.training.video.scene import choose_camera, open_model, place

ENV_IDS = (
    "Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5",
    "InvertedDoublePendulum-v5", "InvertedPendulum-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5",
    "Walker2d-v5",
)  # fmt: skip


FIELDS = ("qpos", "qvel", "xpos", "cinert", "cvel", "cfrc_ext", "qfrc_actuator", "qfrc_constraint")


def fields(data: Any) -> dict[str, np.ndarray]:
    return {name: getattr(data, name) for name in FIELDS}


def value_of(source: str, data: Any) -> float:
    """Evaluate an entry's source on a live MjData, by nothing but its text."""
    names = {"__builtins__": {}, "sin": np.sin, "cos": np.cos}
    return float(eval(source, names, fields(data)))  # noqa: S307


def expected_observation(spec: EnvSpec, data: Any) -> np.ndarray:
    values = []
    for entry in spec.observation:
        assert entry.source is not None, f"obs[{entry.index}] is not identified"
        value = value_of(entry.source, data)
        low, high = entry.clip or (None, None)
        values.append(
            np.clip(value, -np.inf if low is None else low, np.inf if high is None else high)
        )
    return np.array(values)


def test_the_eleven_environments_are_found_in_the_registry() -> None:
    assert gymnasium_env_ids() == ENV_IDS


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_every_observed_number_is_what_its_entry_says(env_id: str) -> None:
    spec = get_env_spec(env_id)
    env: Any = gym.make(env_id)
    assert [e.index for e in spec.observation] == list(range(env.observation_space.shape[0]))
    assert len({e.name for e in spec.observation}) == spec.obs_dim
    assert all(e.description for e in spec.observation)
    env.action_space.seed(123)
    observation, _ = env.reset(seed=123)
    np.testing.assert_array_equal(observation, expected_observation(spec, env.unwrapped.data))
    for _ in range(60):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        np.testing.assert_array_equal(observation, expected_observation(spec, env.unwrapped.data))
        if terminated or truncated:
            env.reset()
    # What random play leaves at zero (most contacts) shows itself in a state of random numbers.
    rng = np.random.default_rng(5)
    for view in fields(env.unwrapped.data).values():
        view[...] = rng.uniform(-20.0, 20.0, view.shape)
    observation = env.unwrapped._get_obs()
    np.testing.assert_array_equal(observation, expected_observation(spec, env.unwrapped.data))
    env.close()


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_spec_agrees_with_the_live_spaces_and_model(env_id: str) -> None:
    spec = get_env_spec(env_id)
    env: Any = gym.make(env_id)
    base, model = env.unwrapped, env.unwrapped.model
    assert spec.action_dim == env.action_space.shape[0] == model.nu
    for action in spec.actions:
        assert (action.low, action.high) == (
            env.action_space.low[action.index], env.action_space.high[action.index])  # fmt: skip
        assert action.joint == model.joint(model.actuator_trnid[action.index, 0]).name
        assert action.gear == model.actuator_gear[action.index, 0]
    assert sum(j.qpos_size for j in spec.joints) == model.nq
    assert sum(j.qvel_size for j in spec.joints) == model.nv
    for joint in spec.joints:
        assert joint.qpos_address == model.joint(joint.name).qposadr[0]
        assert joint.qvel_address == model.joint(joint.name).dofadr[0]
        assert (joint.range is not None) == bool(model.jnt_limited[joint.id])
    assert [b.mass for b in spec.bodies] == model.body_mass.tolist()
    assert [b.parent for b in spec.bodies] == model.body_parentid.tolist()
    assert len(spec.geoms) == model.ngeom
    assert spec.total_mass == pytest.approx(model.body_mass.sum())
    assert (spec.dt, spec.frame_skip) == (base.dt, base.frame_skip)
    assert spec.max_episode_steps == env.spec.max_episode_steps
    env.reset(seed=3)
    info = env.step(env.action_space.sample())[4]
    assert set(spec.info_keys) == set(info)
    assert "no description" not in spec.info_keys.values()
    env.close()


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_signs_are_what_the_model_does(env_id: str) -> None:
    spec = get_env_spec(env_id)
    env: Any = gym.make(env_id)
    model = env.unwrapped.model
    for joint in spec.joints:
        _, marker, way = joint.sign.partition(" towards ")
        if not marker or joint.sign.startswith("positive turns"):
            continue
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        owner = int(model.jnt_bodyid[joint.id])
        before = data.subtree_com[owner].copy()
        data.qpos[joint.qpos_address] += 1e-4
        mujoco.mj_forward(model, data)
        change = data.subtree_com[owner] - before
        share = dict(zip("xyz", change / np.abs(change).max(), strict=True))
        for named in way.split(" and "):
            assert float(f"{named[0]}1") * share.pop(named[1]) > 0.25, joint
        assert all(abs(rest) < 0.35 for rest in share.values()), joint
    env.close()


def test_special_observations_are_named() -> None:
    reacher = [e.source for e in get_env_spec("Reacher-v5").observation]
    assert reacher[:4] == ["cos(qpos[0])", "cos(qpos[1])", "sin(qpos[0])", "sin(qpos[1])"]
    assert get_env_spec("Reacher-v5").observation[8].name == "fingertip_minus_target_x"
    pusher = [e.name for e in get_env_spec("Pusher-v5").observation]
    assert pusher[14] == "tips_arm_position_x"
    assert pusher[20] == "goal_position_x"
    double = get_env_spec("InvertedDoublePendulum-v5").observation
    assert double[8].source == "qfrc_constraint[0]"
    assert double[8].clip == (-10.0, 10.0)


@pytest.mark.parametrize(
    ("env_id", "height", "angle", "rate", "quaternion"),
    [
        ("HalfCheetah-v5", 1, 2, 2, False),
        ("Hopper-v5", 1, 2, 2, False),
        ("Ant-v5", 2, None, None, True),
        ("Swimmer-v5", None, 2, 2, False),
        ("Reacher-v5", None, None, None, False),
        ("InvertedPendulum-v5", None, None, None, False),
    ],
)
def test_torso_is_found(
    env_id: str, height: int | None, angle: int | None, rate: int | None, quaternion: bool
) -> None:
    spec = get_env_spec(env_id)
    assert spec.z_height_qpos_idx == height
    assert (spec.torso_angle_qpos_idx, spec.torso_angvel_qvel_idx) == (angle, rate)
    assert spec.uses_quaternion_orientation is quaternion


def test_a_slide_that_starts_at_zero_says_how_high_the_body_is() -> None:
    offsets = {e: get_env_spec(e).joints[1].height_offset for e in ("HalfCheetah-v5", "Hopper-v5")}
    assert offsets == {"HalfCheetah-v5": 0.7, "Hopper-v5": 0.0}


def test_healthy_ranges_are_the_live_ones() -> None:
    assert get_env_spec("Ant-v5").healthy_ranges == {"z": (0.2, 1.0)}
    hopper = get_env_spec("Hopper-v5")
    assert hopper.healthy_ranges["angle"] == (-0.2, 0.2)
    assert hopper.healthy_ranges["z"] == (0.7, None)
    assert hopper.terminate_when_unhealthy is True
    assert get_env_spec("HalfCheetah-v5").terminate_when_unhealthy is None


@pytest.mark.parametrize(
    ("env_id", "joint"), [("InvertedPendulum-v5", 1), ("InvertedDoublePendulum-v5", 1)]
)
def test_pendulum_rules_in_words_are_the_live_ones(env_id: str, joint: int) -> None:
    """Lean the pole until the episode ends, and compare with the sentence of the spec."""
    env: Any = gym.make(env_id)
    base = env.unwrapped
    lean = next(
        angle
        for angle in np.arange(0.0, 2.0, 0.02)
        if _ends(env, np.eye(base.model.nq)[joint] * angle)
    )
    rule = get_env_spec(env_id).termination
    if env_id.startswith("InvertedPendulum"):
        assert "0.2 rad" in rule
        assert lean == pytest.approx(0.2, abs=0.03)
    else:
        assert "1 m high" in rule
        assert 1.2 * np.cos(lean) == pytest.approx(1.0, abs=0.03)
    env.close()


def _ends(env: Any, qpos: np.ndarray) -> bool:
    env.reset(seed=0)
    env.unwrapped.set_state(qpos, np.zeros(env.unwrapped.model.nv))
    return bool(env.step(np.zeros(env.action_space.shape, np.float32))[2])


def test_a_duration_becomes_steps() -> None:
    steps = {
        n: max_steps_for_duration(f"{n}-v5", 5.0) for n in ("HalfCheetah", "Hopper", "Humanoid")
    }
    assert steps == {"HalfCheetah": 100, "Hopper": 625, "Humanoid": 333}
    assert max_steps_for_duration("Reacher-v5", 0.0) == 1


def test_lookup_by_name_and_id() -> None:
    for name in ("HalfCheetah", "half cheetah", "HALFCHEETAH-V5", "HalfCheetah-v5"):
        assert get_spec_by_name(name).env_id == "HalfCheetah-v5"
    assert get_env_spec("Ant-v5") is get_env_spec("Ant-v5")


@pytest.mark.parametrize("env_id", ["HalfCheta-v5", "HalfCheetah-v99", "halfcheetah"])
def test_an_unknown_id_names_near_ones(env_id: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match="did you mean HalfCheetah-v5"):
        get_env_spec(env_id)


def test_an_environment_without_mujoco_is_refused_with_a_reason() -> None:
    with pytest.raises(UnsupportedEnvironmentError, match="not a MuJoCo environment"):
        get_env_spec("CartPole-v1")


def settled(env_id: str) -> tuple[Any, Any, dict[str, float]]:
    """Model, data and named observation after standing still for a while."""
    env: Any = gym.make(env_id, terminate_when_unhealthy=False, **UNCLIPPED.get(env_id, {}))
    env.reset(seed=0)
    observation = np.zeros(0)
    for _ in range(200):
        observation = env.step(np.zeros(env.action_space.shape, np.float32))[0]
    names = [entry.name for entry in get_env_spec(env_id).observation]
    return env.unwrapped.model, env.unwrapped.data, dict(zip(names, observation, strict=True))


UNCLIPPED = {"Ant-v5": {"contact_force_range": (-np.inf, np.inf)}}


def test_contact_forces_carry_the_weight_of_a_standing_ant() -> None:
    model, _, named = settled("Ant-v5")
    upwards = sum(v for name, v in named.items() if name.endswith("_contact_force_z"))
    sideways = sum(v for name, v in named.items() if name.endswith("_contact_force_x"))
    weight = 9.81 * model.body_mass.sum()
    assert upwards == pytest.approx(weight, rel=0.02)
    assert abs(sideways) < 0.02 * weight


def test_parts_of_inertia_and_velocity_have_the_right_names() -> None:
    model, data, named = settled("Humanoid-v5")
    centre = data.subtree_com[1]
    for i in range(1, model.nbody):
        body = model.body(i).name
        assert named[f"{body}_mass"] == model.body_mass[i]
        offset = model.body_mass[i] * (data.xipos[i] - centre)
        got = [named[f"{body}_mass_offset_{a}"] for a in "xyz"]
        np.testing.assert_allclose(got, offset, atol=1e-9)
        frame, arm = data.ximat[i].reshape(3, 3), data.xipos[i] - centre
        about_centre = frame @ np.diag(model.body_inertia[i]) @ frame.T + model.body_mass[i] * (
            arm @ arm * np.eye(3) - np.outer(arm, arm)
        )
        for a, b in ("xx", "yy", "zz", "xy", "xz", "yz"):
            value = about_centre["xyz".index(a), "xyz".index(b)]
            assert named[f"{body}_inertia_{a}{b}"] == pytest.approx(value, abs=1e-9)
    velocity = np.zeros(6)
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_BODY, 1, velocity, 0)
    got = [named[f"torso_spatial_angular_velocity_{a}"] for a in "xyz"]
    np.testing.assert_allclose(got, velocity[:3], atol=1e-9)


BACKEND: SimulatorBackend = get_simulator("mujoco")


def test_an_unknown_engine_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'warp'; known: isaaclab, mjlab, mujoco"):
        get_simulator("warp")


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


@pytest.mark.parametrize("env_id", gymnasium_env_ids())
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


@pytest.mark.parametrize("env_id", gymnasium_env_ids())
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
