import gymnasium
import gymnasium as gym
import numpy as np
import pytest
from test_reward_runner import COUNTER

from p2p.agents.judge_code import trajectory_columns
from p2p.config import EnvOptions, TrainConfig
from p2p.training.env_spec import get_env_spec, list_env_ids
from p2p.training.evaluation import (
    PLAYED_ROWS,
    evaluate,
    evaluation_seed,
    record_episodes,
    representative_episodes,
)
from p2p.training.policies.policy import Policy
from p2p.training.reward_runner import RewardRunner
from p2p.training.trajectory import RecordedEpisode
from p2p.training.vec_env import make_batched_env

N = 4
SPEED = """
def reward_fn(obs, action, next_obs, info):
    speed = info["x_velocity"]
    cost = -0.1 * np.sum(np.square(action), axis=-1)
    return speed + cost, {"speed": speed, "cost": cost}
"""


def act(obs):
    weights = np.sin(np.arange(obs.shape[1] * 3)).reshape(obs.shape[1], 3)
    return np.tanh(obs @ weights).astype(np.float32)


@pytest.fixture(scope="module")
def hopper():
    env = make_batched_env(EnvOptions("Hopper-v5", side_info=True), N)
    yield env
    env.close()


def play(env, code=SPEED, *, rounds=2, block=0, side_info=None, **options):
    reward = RewardRunner(code, N, batched=True, side_info=side_info)
    return evaluate(env, reward, act, rounds=rounds, seed=evaluation_seed(block), step=7, **options)


def gymnasium_episode(seed):
    env = gymnasium.make("Hopper-v5")
    obs, _ = env.reset(seed=seed)
    rows = []
    while True:
        action = act(obs[None])[0]
        obs, _, terminated, truncated, info = env.step(action)
        cost = -0.1 * np.sum(np.square(action))
        data = env.unwrapped.data
        rows.append((info["x_velocity"], cost, obs, data.qpos.copy(), data.xpos.copy()))
        if terminated or truncated:
            return rows


def test_episodes_are_those_gymnasium_plays_from_the_documented_seeds(hopper):
    result, kept = play(hopper)
    assert len(set(result.episode_lengths)) > 1, "episodes should end at different steps"
    for episode in range(2 * N):
        rows = gymnasium_episode(evaluation_seed() + episode)
        assert result.episode_lengths[episode] == len(rows)
        expected = sum(speed + cost for speed, cost, *_ in rows)
        assert result.all_returns[episode] == pytest.approx(expected, abs=1e-5)
        for label in (label for label, e in result.rollouts.items() if e == episode):
            trajectory = kept[label]
            np.testing.assert_allclose(trajectory["next_obs"], [r[2] for r in rows], atol=1e-5)
            np.testing.assert_allclose(trajectory["qpos"], [r[3] for r in rows], atol=1e-6)
            np.testing.assert_allclose(trajectory["xpos"], [r[4] for r in rows], atol=1e-6)


def test_a_loop_over_gymnasium_environments_is_evaluated_alike(hopper):
    loop = make_batched_env(EnvOptions("Hopper-v5", side_info=True), N, backend="gym")
    fast, slow = play(hopper), play(loop)
    loop.close()
    assert slow[0].episode_lengths == fast[0].episode_lengths
    np.testing.assert_allclose(slow[0].all_returns, fast[0].all_returns, atol=1e-5)
    assert slow[0].rollouts == fast[0].rollouts
    for label, trajectory in slow[1].items():
        assert set(trajectory.columns) == set(fast[1][label].columns)
        for name, column in trajectory.columns.items():
            np.testing.assert_allclose(column, fast[1][label][name], atol=1e-4, err_msg=name)


def test_an_environment_without_mujoco_is_evaluated_too():
    env = make_batched_env(EnvOptions("Pendulum-v1", max_episode_steps=20), N, backend="gym")
    reward = RewardRunner(
        "def reward_fn(o, a, n, i):\n    return 1.0, {'one': 1.0}", N, batched=False
    )

    def still(obs):
        return np.zeros((len(obs), 1), np.float32)

    result, kept = evaluate(env, reward, still, rounds=1, seed=evaluation_seed(), step=0)
    env.close()
    assert result.all_returns == (20.0,) * N
    assert "qpos" not in kept["median"].columns
    assert kept["median"]["truncated"].tolist() == [False] * 19 + [True]


def test_a_trajectory_is_one_whole_episode_and_agrees_with_the_result(hopper):
    result, kept = play(hopper)
    assert set(kept) == {"p10", "median", "p90"}
    for label, trajectory in kept.items():
        episode = result.rollouts[label]
        length = result.episode_lengths[episode]
        assert trajectory["step"].tolist() == list(range(length))
        assert trajectory["terminated"].tolist() == [False] * (length - 1) + [True]
        assert trajectory.total_reward == pytest.approx(result.all_returns[episode], rel=1e-5)
        np.testing.assert_allclose(trajectory["obs"][1:], trajectory["next_obs"][:-1])
        total = sum(np.asarray(term, np.float64) for term in trajectory.reward_terms.values())
        np.testing.assert_allclose(total, trajectory["reward"], atol=1e-5)
        assert trajectory["timestamp"][0] == pytest.approx(hopper.dt)


def test_statistics_are_those_of_the_episodes(hopper):
    result, _ = play(hopper)
    returns = np.array(result.all_returns)
    assert result.global_step == 7
    assert result.mean_return == pytest.approx(returns.mean())
    assert result.std_return == pytest.approx(returns.std())
    assert (result.min_return, result.max_return) == (returns.min(), returns.max())
    assert result.total_reward == returns[result.rollouts["median"]]
    assert sum(result.reward_terms.values()) == pytest.approx(returns.mean())
    assert result.p10_return <= result.median_return <= result.p90_return


def test_the_same_policy_gives_the_same_result_whatever_happened_before(hopper):
    first, _ = play(hopper)
    hopper.reset_batch(99)
    for _ in range(30):
        hopper.step_batch(np.full((N, 3), 0.5, np.float32))
    again, _ = play(hopper)
    assert again == first
    assert play(hopper, block=1)[0].all_returns != first.all_returns


def test_a_stateful_reward_starts_anew_with_every_episode(hopper):
    result, _ = play(hopper, COUNTER)
    lengths = np.array(result.episode_lengths)
    assert result.all_returns == tuple((lengths * (lengths + 1) / 2).tolist())


def test_a_stride_keeps_every_nth_step_and_the_last(hopper):
    whole, dense = play(hopper)
    result, kept = play(hopper, stride=10)
    assert result == whole
    for label, trajectory in kept.items():
        length = result.episode_lengths[result.rollouts[label]]
        expected = sorted({*range(0, length, 10), length - 1})
        assert trajectory["step"].tolist() == expected
        np.testing.assert_array_equal(trajectory["obs"], dense[label]["obs"][expected])
        assert trajectory.total_reward == dense[label].total_reward


def test_little_memory_means_fewer_recorded_rows_but_the_same_statistics(hopper):
    whole, _ = play(hopper)
    result, kept = play(hopper, record_bytes=1)
    assert result.all_returns == whole.all_returns
    assert all(episode % N < 3 for episode in result.rollouts.values())
    for label, trajectory in kept.items():
        assert trajectory.total_reward == pytest.approx(
            result.all_returns[result.rollouts[label]], rel=1e-5
        )


def test_side_information_reaches_the_reward(hopper):
    code = """
def reward_fn(obs, action, next_obs, info):
    x = info["mj_data"].qpos[..., 0]
    return x, {"x": x}
"""
    _, kept = play(hopper, code, side_info=hopper)
    np.testing.assert_allclose(kept["median"]["reward"], kept["median"]["qpos"][:, 0], rtol=1e-6)


@pytest.mark.parametrize("count", [3, 4, 8, 10, 24, 101])
def test_three_episodes_stand_for_low_middle_and_high(count):
    returns = np.random.default_rng(count).permutation(count).astype(float)
    chosen = representative_episodes(returns)
    assert len(set(chosen.values())) == 3
    low, middle, high = (returns[chosen[label]] for label in ("p10", "median", "p90"))
    assert low < middle < high
    assert np.mean(returns <= low) >= 0.1 > np.mean(returns < low)
    assert np.mean(returns <= high) >= 0.9 > np.mean(returns < high)


def test_one_episode_stands_for_all():
    assert representative_episodes([5.0]) == {"p10": 0, "median": 0, "p90": 0}


SEED = 1 << 32


def same(one: RecordedEpisode, other: RecordedEpisode) -> bool:
    return one.columns.keys() == other.columns.keys() and all(
        np.array_equal(one[name], other[name]) for name in one.columns
    )


def small_policy(env_id: str) -> Policy:
    from p2p.training.policies.network import NetworkShape, initial_parameters

    spec = get_env_spec(env_id)
    shape = NetworkShape(spec.obs_dim, spec.action_dim, (8,), "tanh")
    tensors = initial_parameters(shape, np.random.default_rng(3), ortho_init=True, log_std_init=0.0)
    return Policy(
        shape=shape,
        tensors=tensors,
        obs_mean=np.zeros(spec.obs_dim),
        obs_var=np.ones(spec.obs_dim),
        action_low=np.array([a.low for a in spec.actions], np.float32),
        action_high=np.array([a.high for a in spec.actions], np.float32),
        env_id=env_id,
    )


@pytest.mark.parametrize("env_id", list_env_ids())
def test_every_column_a_judge_is_told_of_is_there(env_id: str) -> None:
    config = TrainConfig(env_id=env_id, max_episode_steps=5)
    trajectory = record_episodes(config, "random", episodes=1, seed=SEED)[0]
    told = trajectory_columns(get_env_spec(env_id))
    assert set(trajectory.drop_rewards().columns) == set(told)
    assert {"reward", "cumulative_reward", "env_reward"} <= set(trajectory.columns) - set(told)
    for name, text in told.items():
        shape = text[text.index("(") + 1 : text.index(")")].replace("T", str(trajectory.length))
        wanted = tuple(int(n) for n in shape.split(",") if n.strip())
        if "array of" not in text:
            assert trajectory[name].shape == wanted, name


def test_it_is_what_gymnasium_plays() -> None:
    env = gym.make("Hopper-v5")
    env.reset(seed=SEED)
    rewards, speeds = [], []
    for _ in range(200):
        _, reward, terminated, _, info = env.step(np.zeros(3))
        rewards.append(float(reward))
        speeds.append(info["x_velocity"])
        if terminated:
            break
    played = record_episodes(TrainConfig(env_id="Hopper-v5"), "zero", episodes=1, seed=SEED)[0]
    assert played.length == len(rewards)
    assert played["terminated"][-1]
    assert not played["terminated"][:-1].any()
    np.testing.assert_allclose(played["x_velocity"], speeds, atol=1e-5)
    np.testing.assert_allclose(played["reward"], rewards, atol=1e-5)
    np.testing.assert_allclose(played["env_reward"], rewards, atol=1e-5)
    assert played.total_reward == pytest.approx(sum(rewards), rel=1e-5)
    np.testing.assert_allclose(
        played["timestamp"], 0.008 * np.arange(1, len(rewards) + 1), rtol=1e-5
    )


@pytest.mark.parametrize("act", ["zero", "random", "policy"])
def test_fewer_episodes_are_the_first_of_more(act: str) -> None:
    config = TrainConfig(env_id="Hopper-v5", max_episode_steps=60)
    behaviour = small_policy("Hopper-v5") if act == "policy" else act
    more = record_episodes(config, behaviour, episodes=PLAYED_ROWS + 2, seed=SEED)  # type: ignore[arg-type]
    fewer = record_episodes(config, behaviour, episodes=2, seed=SEED)  # type: ignore[arg-type]
    assert len(more) == PLAYED_ROWS + 2
    assert all(same(a, b) for a, b in zip(fewer, more, strict=False))
    later = record_episodes(config, behaviour, episodes=1, seed=SEED + PLAYED_ROWS)  # type: ignore[arg-type]
    assert same(later[0], more[PLAYED_ROWS])
    assert not same(more[0], more[1])


def test_horizon_and_termination_are_those_of_the_configuration() -> None:
    config = TrainConfig(env_id="Hopper-v5", max_episode_steps=40, terminate_when_unhealthy=False)
    for trajectory in record_episodes(config, "random", episodes=2, seed=SEED):
        assert trajectory.length == 40
        assert trajectory["truncated"][-1]
        assert not trajectory["terminated"].any()


def test_rows_give_columns_by_name() -> None:
    config = TrainConfig(env_id="Hopper-v5", max_episode_steps=10)
    trajectory = record_episodes(config, "zero", episodes=1, seed=SEED)[0]
    rows = trajectory.rows()
    assert np.array_equal(rows["x_velocity"], [row["x_velocity"] for row in rows])
    assert np.array_equal(rows["qpos"][:, 1], [row["qpos"][1] for row in rows])
    assert "x_velocity" in rows
    assert "speed" not in rows
    with pytest.raises(KeyError, match="x_velocity"):
        rows["speed"]
    part = trajectory.part(slice(2, 5))
    assert part.length == 3
    assert np.array_equal(part["qpos"], trajectory["qpos"][2:5])
