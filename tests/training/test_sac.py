import killed_runs
import numpy as np
import pytest
from killed_runs import REWARD, KilledError

from p2p.config import TrainConfig
from p2p.contracts import WORKER_MESSAGE, EvalReady, Failed, Finished, ScalarsReady
from p2p.training import sac, worker
from p2p.training.checkpoints import (
    ResumeError,
    adopt_state,
    load_state,
    part,
    save_state,
    state_for,
)
from p2p.training.policies.network import NetworkShape
from p2p.training.policies.policy import Policy
from p2p.training.policies.sb3_export import save_sb3_zip
from p2p.training.sac import (
    STEPS_OF_RETURN,
    Batches,
    Replay,
    SACLearner,
    SacSettings,
    gaussian,
    initial_state,
    layers_of,
    make_sac_update,
    state_from,
)
from p2p.training.training_loop import (
    TrainContext,
    TrainingDivergedError,
    TrainingLoop,
)
from p2p.training.worker import train

STATEFUL = """
steps = 0

def reward_fn(obs, action, next_obs, info):
    global steps
    steps = steps + 1
    return info["x_velocity"] + 0.01 * steps, {"speed": info["x_velocity"]}
"""

ALIVE = """
def reward_fn(obs, action, next_obs, info):
    return 1.0 + 0.0 * obs[..., 0], {"alive": 1.0 + 0.0 * obs[..., 0]}
"""

CONFIG = TrainConfig(
    env_id="Hopper-v5", algorithm="sac", num_envs=4, num_steps=64, total_timesteps=4 * 256,
    num_evals=2, num_eval_envs=2, num_eval_rounds=1, seed=3, num_threads=1,
    max_episode_steps=40, checkpoint_interval=256, net_arch=(16,), replay_batch_size=16,
    replay_size=10_000,
)  # fmt: skip


def run(folder, code=REWARD, config=CONFIG, **options):
    return killed_runs.run(train, folder, config, code, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder)


def test_a_run_reports_its_losses_and_leaves_each_policy_that_was_measured(whole):
    folder, messages = whole
    values = [m.scalars.values for m in messages if isinstance(m, ScalarsReady)]
    assert {"critic_loss", "q_value", "entropy", "temperature", "episodic_return"} <= set(
        values[-1]
    )
    steps = [m.result.global_step for m in messages if isinstance(m, EvalReady)]
    assert steps == [512, 1024]
    assert all((folder / f"policy_{step}.safetensors").exists() for step in steps)


@pytest.mark.parametrize("code", [REWARD, STATEFUL], ids=["plain", "stateful"])
def test_a_killed_run_resumes_to_the_same_result(whole, tmp_path, code):
    if code == REWARD:
        expected = whole[0]
    else:
        expected = tmp_path / "whole"
        run(expected, code)
    with pytest.raises(KilledError):
        run(tmp_path / "killed", code, kill_after=3)
    run(tmp_path / "killed", code)
    (first, _), (second, _) = load_state(expected), load_state(tmp_path / "killed")
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_a_state_of_another_version_is_refused_and_kept(whole, tmp_path):
    arrays, meta = load_state(whole[0])
    older = {name: array for name, array in arrays.items() if name != "learner/3"}
    adopt_state(tmp_path, save_state(tmp_path, 512, older, meta))
    with pytest.raises(ResumeError, match="another version of SAC; start the run anew"):
        run(tmp_path)
    assert load_state(tmp_path)[0].keys() == older.keys()


def test_another_reward_continues_without_the_steps_that_the_first_rewarded(tmp_path):
    run(tmp_path / "first", until=512)
    heavier = REWARD.replace("-0.1", "-0.2")
    (tmp_path / "other").mkdir()
    state_for(CONFIG, heavier, tmp_path / "first", tmp_path / "other")
    messages = run(tmp_path / "other", heavier)
    steps = [m.scalars.global_step for m in messages if isinstance(m, ScalarsReady)]
    assert steps == [768, 1024]
    state = load_state(tmp_path / "other")[0]
    assert len(state["replay/rewards"]) * CONFIG.num_envs == 512


def test_a_run_that_is_trained_longer_is_as_one_that_was_long_from_the_start(whole, tmp_path):
    run(tmp_path / "first", config=CONFIG.with_updates(total_timesteps=512))
    (tmp_path / "longer").mkdir()
    state_for(CONFIG, REWARD, tmp_path / "first", tmp_path / "longer", same_reward=True)
    run(tmp_path / "longer")
    (longer, _), (expected, _) = load_state(tmp_path / "longer"), load_state(whole[0])
    assert longer.keys() == expected.keys()
    assert all(np.array_equal(longer[name], expected[name]) for name in longer)


@pytest.mark.parametrize("iteration", [4, -1, "2", None], ids=["its end", "before", "text", "none"])
def test_a_state_with_nothing_left_to_train_is_not_continued(whole, tmp_path, iteration):
    arrays, meta = load_state(whole[0])
    adopt_state(tmp_path, save_state(tmp_path, 0, arrays, {**meta, "iteration": iteration}))
    with pytest.raises(ResumeError, match="nothing is left to be trained"):
        state_for(CONFIG, REWARD, tmp_path, tmp_path / "longer", same_reward=True)


def test_the_saved_policy_is_the_squashed_mean_of_the_averaged_actor(whole):
    folder, _ = whole
    policy = Policy.load(folder / "policy_1024.safetensors")
    assert policy.shape == NetworkShape.from_config(CONFIG, 11, 3)
    arrays, _ = load_state(folder)
    settings = SacSettings(11, 3, CONFIG.net_arch)
    learner = state_from(settings, part("learner", arrays))
    assert not np.allclose(learner.policy, learner.actor.parameters)
    layers = layers_of(settings.actor_layers(), learner.policy)
    obs = np.random.default_rng(0).normal(policy.obs_mean, np.sqrt(policy.obs_var), (50, 11))
    mean, _ = gaussian(layers, policy.normalize_observations(obs), np)
    assert np.allclose(policy.act(obs), np.tanh(mean), atol=1e-6)


def test_sb3_reads_the_exported_policy_and_acts_within_bounds_that_are_not_one(tmp_path):
    from stable_baselines3 import PPO

    config = CONFIG.with_updates(env_id="InvertedPendulum-v5")
    sac = TrainingLoop(TrainContext(config, ALIVE, tmp_path, lambda _: None), SACLearner).learner
    average = sac.rng.normal(0, 1, sac.parameters.shape).astype(np.float32)
    sac.learner = sac.learner._replace(policy=average)
    policy = sac.policy()
    obs = sac.rng.normal(0, 0.01, (50, 4))
    layers = layers_of(sac.settings.actor_layers(), average)
    expected = 3 * np.tanh(gaussian(layers, policy.normalize_observations(obs), np)[0])
    assert np.ptp(expected) > 1
    save_sb3_zip(policy, config, tmp_path / "policy.zip", obs)
    actions, _ = PPO.load(tmp_path / "policy.zip").predict(obs, deterministic=True)
    assert np.allclose(actions, expected, atol=1e-3)


def returns_of(replay, t, env, gamma):
    """What `sample` should give for one step, by the definition."""
    total, discount = 0.0, 1.0
    for step in range(t, t + STEPS_OF_RETURN):
        if replay.ended[step, env] and not replay.terminated[step, env]:
            return total, discount, step
        total += discount * replay.rewards[step, env]
        discount *= gamma
        if replay.terminated[step, env]:
            return total, 0.0, step + 1
    return total, discount, t + STEPS_OF_RETURN


def test_returns_stop_at_the_ends_of_episodes():
    rng = np.random.default_rng(0)
    replay = Replay(200, 2, 1, 1)
    terminated = rng.random((100, 2)) < 0.1
    replay.add(
        obs=np.arange(200).reshape(100, 2, 1),
        actions=np.zeros((100, 2, 1)),
        rewards=rng.normal(size=(100, 2)),
        terminated=terminated,
        ended=terminated | (rng.random((100, 2)) < 0.1),
    )
    drawn = {name: array[0] for name, array in replay.sample(rng, 1, 500, 0.9).items()}
    weights = set()
    for i in range(500):
        t, env = divmod(int(drawn["obs"][i, 0]), 2)
        total, discount, later = returns_of(replay, t, env, 0.9)
        assert drawn["returns"][i] == pytest.approx(total, abs=1e-5)
        assert drawn["discounts"][i] == pytest.approx(discount, abs=1e-6)
        assert drawn["weights"][i] == (later != t)
        weights.add(float(drawn["weights"][i]))
        if discount > 0:
            assert drawn["next_obs"][i, 0] == 2 * later + env
    assert weights == {0.0, 1.0}


def test_only_the_newest_steps_are_drawn():
    replay = Replay(20, 1, 1, 1)
    for start in range(0, 50, 5):
        steps = np.arange(start, start + 5)
        replay.add(
            obs=steps.reshape(5, 1, 1), actions=np.zeros((5, 1, 1)), rewards=np.zeros((5, 1)),
            terminated=np.zeros((5, 1), bool), ended=np.zeros((5, 1), bool),
        )  # fmt: skip
    drawn = replay.sample(np.random.default_rng(0), 1, 500, 0.9)
    assert set(drawn["obs"].ravel()) == set(range(30, 47))
    assert np.array_equal(drawn["next_obs"], drawn["obs"] + STEPS_OF_RETURN)


def test_a_replay_holds_no_more_than_its_bytes_and_the_newest_of_a_long_rollout(monkeypatch):
    monkeypatch.setattr(sac, "REPLAY_BYTES", 10 * 14)  # steps of three floats and two flags
    replay = Replay(10**9, 1, 1, 1)
    assert not replay.ready
    steps = np.arange(25.0)
    replay.add(
        obs=steps.reshape(25, 1, 1), actions=np.zeros((25, 1, 1)), rewards=steps.reshape(25, 1),
        terminated=np.zeros((25, 1), bool), ended=np.zeros((25, 1), bool),
    )  # fmt: skip
    assert replay.ready
    assert len(replay.obs) == 10
    drawn = replay.sample(np.random.default_rng(0), 1, 200, 1.0)
    assert set(drawn["obs"].ravel()) == set(range(15, 22))


TINY = {"num_steps": 1, "total_timesteps": 24, "num_evals": 1, "checkpoint_interval": 10**9}


@pytest.mark.parametrize(
    "changes",
    [
        {"updates_per_step": 16.0},  # updates are due before a return is known
        {"updates_per_step": 16.0, "training_horizon": 1},  # nothing can be learnt from any step
        {"total_timesteps": 1},
    ],
    ids=["few steps", "every step cut", "one step"],
)
def test_the_shortest_runs_finish(tmp_path, changes):
    messages = run(tmp_path, config=CONFIG.with_updates(**{**TINY, **changes}))
    assert isinstance(messages[-1], Finished)


def test_updates_that_diverge_end_the_run_and_not_as_the_rewards_fault(tmp_path):
    loop = TrainingLoop(TrainContext(CONFIG, REWARD, tmp_path, lambda _: None), SACLearner)
    critics = loop.learner.learner.critics
    broken = critics._replace(parameters=np.full_like(critics.parameters, np.nan))
    loop.learner.learner = loop.learner.learner._replace(critics=broken)
    with pytest.raises(TrainingDivergedError, match="no longer finite: critic_loss"):
        loop.run()


def test_updates_lead_to_the_action_that_is_rewarded():
    settings = SacSettings(obs_dim=1, action_dim=1, net_arch=(32,))
    rng = np.random.default_rng(0)
    state, update = initial_state(settings, rng), make_sac_update(settings)
    for _ in range(20):
        actions = rng.uniform(-1, 1, (32, 64, 1)).astype(np.float32)
        obs = np.zeros((32, 64, 1), np.float32)
        ones = np.ones((32, 64), np.float32)
        noise = rng.standard_normal((32, 64, 2, 1)).astype(np.float32)
        reward = -4 * (actions[..., 0] - 0.5) ** 2
        state, _ = update(state, Batches(obs, actions, reward, obs, 0 * ones, ones, noise), 3e-3)
    for parameters in (state.actor.parameters, state.policy):
        layers = layers_of(settings.actor_layers(), np.array(parameters))
        mean, _ = gaussian(layers, np.zeros((1, 1), np.float32), np)
        assert np.tanh(mean[0, 0]) == pytest.approx(0.5, abs=0.1)


def test_the_policy_is_the_first_actor_then_a_mean_of_the_late_ones():
    settings = SacSettings(obs_dim=1, action_dim=1, net_arch=(4,))
    rng = np.random.default_rng(0)
    state, update = initial_state(settings, rng), make_sac_update(settings)
    actors, policies = [], []
    for _ in range(41):  # one update of the actor in every second
        rows = rng.standard_normal((1, 8, 1)).astype(np.float32)
        ones = np.ones((1, 8), np.float32)
        noise = rng.standard_normal((1, 8, 2, 1)).astype(np.float32)
        state, _ = update(state, Batches(rows, rows, ones, rows, ones, ones, noise), 1e-2)
        actors.append(np.array(state.actor.parameters))
        policies.append(np.array(state.policy))
    assert np.allclose(actors[0], policies[0], atol=1e-6)
    expected = actors[0]
    for turn, actor in enumerate(actors[2::2], start=2):
        expected = expected + 5 / (turn + 4) * (actor - expected)
    assert np.allclose(policies[-1], expected, atol=1e-6)


def test_what_it_cannot_do_is_refused_with_what_to_use_instead(tmp_path):
    config = CONFIG.with_updates(backend="sb3")
    messages = []
    payload = {"config": config.model_dump(), "reward_code": REWARD, "folder": str(tmp_path)}
    worker.main(payload, lambda line: messages.append(WORKER_MESSAGE.validate_json(line)))
    assert isinstance(messages[-1], Failed)
    assert messages[-1].kind == "config"
    assert "use backend 'auto'" in messages[-1].message
