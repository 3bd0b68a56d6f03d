import numpy as np
import pytest

from p2p.training.metrics.episodes import EpisodeLog


def one_by_one(rewards, terms, dones):
    """Episodes of (T, N) arrays in the order they end: return, term sums, length."""
    ended, num_envs = [], rewards.shape[1]
    rows = np.stack([rewards, *terms.values(), np.ones_like(rewards)], axis=-1)
    sums = np.zeros((num_envs, rows.shape[-1]))
    for t in range(len(rewards)):
        for n in range(num_envs):
            sums[n] += rows[t, n]
            if dones[t, n]:
                ended.append(sums[n].copy())
                sums[n] = 0
    return ended


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("num_envs", [1, 5])
def test_sums_over_rollouts_are_those_of_whole_episodes(rate, num_envs):
    rng = np.random.default_rng(int(rate * 100) + num_envs)
    shape = (60, num_envs)
    rewards, a, b = rng.normal(size=(3, *shape))
    dones = rng.random(shape) < rate
    log = EpisodeLog(num_envs, window=12)
    cuts = [slice(0, 1), slice(1, 20), slice(20, 60)]
    counts = [log.add(rewards[c], {"a": a[c], "b": b[c]}, dones[c]) for c in cuts]
    expected = one_by_one(rewards, {"a": a, "b": b}, dones)
    assert sum(counts) == log.total == len(expected)
    if not expected:
        assert log.metrics() == {}
        return
    last = np.array(expected[-12:])
    metrics = log.metrics()
    assert metrics["episodic_return"] == pytest.approx(last[:, 0].mean())
    assert metrics["episodic_return_std"] == pytest.approx(last[:, 0].std())
    assert metrics["episodic_return_min"] == pytest.approx(last[:, 0].min())
    assert metrics["episodic_return_max"] == pytest.approx(last[:, 0].max())
    assert metrics["reward_term_a"] == pytest.approx(last[:, 1].mean())
    assert metrics["reward_term_b"] == pytest.approx(last[:, 2].mean())
    assert metrics["episode_length"] == pytest.approx(last[:, 3].mean())


def test_a_reloaded_log_continues_identically():
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(30, 3)) for _ in range(2)]
    dones = [rng.random((30, 3)) < 0.1 for _ in range(2)]
    log, again = EpisodeLog(3, 5), EpisodeLog(3, 5)
    log.add(data[0], {"x": data[0]}, dones[0])
    again.load_state(*log.state())
    for each in (log, again):
        each.add(data[1], {"x": data[1]}, dones[1])
    assert log.metrics() == again.metrics()
    assert log.total == again.total


def test_a_restart_forgets_what_was_under_way():
    log = EpisodeLog(1, 5)
    log.add(np.full((3, 1), 100.0), {}, np.zeros((3, 1), bool))
    log.restart()
    log.add(np.ones((2, 1)), {}, np.array([[False], [True]]))
    assert log.metrics()["episodic_return"] == 2.0
    assert log.metrics()["episode_length"] == 2.0
