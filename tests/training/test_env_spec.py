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
    list_env_ids,
    max_steps_for_duration,
)

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
    assert list_env_ids() == ENV_IDS


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


def test_ant_observes_105_numbers_with_contact_forces() -> None:
    spec = get_env_spec("Ant-v5")
    assert spec.obs_dim == 105
    contacts = [e for e in spec.observation if e.source and e.source.startswith("cfrc_ext")]
    assert len(contacts) == 78
    assert all(e.clip == (-1.0, 1.0) for e in contacts)
    assert spec.observation[31].name == "torso_contact_force_y"
    (ankle,) = (e for e in spec.observation if e.source == "cfrc_ext[4, 0]")
    assert "left_ankle_geom" in ankle.description


def test_humanoid_has_17_driven_hinges() -> None:
    spec = get_env_spec("Humanoid-v5")
    hinges = [j for j in spec.joints if j.type == "hinge"]
    assert len(hinges) == spec.action_dim == 17
    assert (hinges[0].qpos_address, hinges[-1].qpos_address) == (7, 23)
    assert (hinges[0].qvel_address, hinges[-1].qvel_address) == (6, 22)
    assert spec.uses_quaternion_orientation
    sources = [str(e.source).split("[")[0] for e in spec.observation]
    assert {s: sources.count(s) for s in sources} == {
        "qpos": 22, "qvel": 23, "cinert": 130, "cvel": 78, "qfrc_actuator": 17, "cfrc_ext": 78,
    }  # fmt: skip


def test_clipped_velocities_say_so() -> None:
    for env_id in ("Hopper-v5", "Walker2d-v5"):
        for entry in get_env_spec(env_id).observation:
            is_velocity = str(entry.source).startswith("qvel")
            assert entry.clip == ((-10.0, 10.0) if is_velocity else None)
    assert all(e.clip is None for e in get_env_spec("HalfCheetah-v5").observation)


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


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_positions_in_info_are_what_they_are_said_to_be(env_id: str) -> None:
    env: Any = gym.make(env_id)
    env.action_space.seed(1)
    env.reset(seed=1)
    data, start = env.unwrapped.data, env.unwrapped.init_qpos
    info = env.step(env.action_space.sample())[4]
    height = get_env_spec(env_id).z_height_qpos_idx
    meant = {
        "x_position": data.qpos[0],
        "y_position": data.qpos[1],
        "distance_from_origin": np.hypot(data.qpos[0], data.qpos[1]),
        "z_distance_from_origin": data.qpos[height] - start[height] if height else None,
    }
    for key in meant.keys() & info.keys():
        assert info[key] == pytest.approx(meant[key])
    for key in ("reward_ctrl", "reward_contact", "reward_quadctrl", "reward_impact", "reward_dist",
                "reward_near", "distance_penalty", "velocity_penalty"):  # fmt: skip
        assert info.get(key, 0.0) <= 0.0
    env.close()


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


def test_a_package_that_is_not_there_is_an_unknown_environment() -> None:
    with pytest.raises(UnknownEnvironmentError):
        get_env_spec("no_such_package_here:Some-v0")


def test_an_environment_without_mujoco_is_refused_with_a_reason() -> None:
    with pytest.raises(UnsupportedEnvironmentError, match="not a MuJoCo environment"):
        get_env_spec("CartPole-v1")


def test_the_spec_survives_json() -> None:
    for env_id in ENV_IDS:
        spec = get_env_spec(env_id)
        assert EnvSpec.model_validate_json(spec.model_dump_json()) == spec


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
