import time

import pytest

from p2p.config import TrainConfig
from p2p.contracts import Alive
from p2p.training.training_loop import Heartbeat, checkpoint_due, evaluation_due, evaluation_steps


def config(**options):
    return TrainConfig(num_envs=8, num_steps=256, **options)


def test_the_last_evaluation_is_at_the_end():
    assert evaluation_steps(config(total_timesteps=1000, num_evals=3)) == [334, 667, 1000]
    assert evaluation_steps(config(total_timesteps=10, num_evals=1)) == [10]


@pytest.mark.parametrize(("total", "evals"), [(300_000, 4), (100_000, 7), (2048, 1), (10_000, 5)])
def test_every_evaluation_is_due_once(total, evals):
    c = config(total_timesteps=total, num_evals=evals)
    ends = [(i + 1) * c.batch_size for i in range(c.num_iterations)]
    due = [end for end in ends if evaluation_due(c, end - c.batch_size, end)]
    assert len(due) == min(evals, len({-(-s // c.batch_size) for s in evaluation_steps(c)}))
    assert due[-1] == ends[-1]


def test_state_is_saved_at_every_interval_and_after_evaluations():
    c = config(total_timesteps=1_000_000, num_evals=1, checkpoint_interval=10_000)
    assert not checkpoint_due(c, 0, 2048)
    assert checkpoint_due(c, 8192, 10_240)
    assert checkpoint_due(c, 9999, 10_000)
    assert not checkpoint_due(c, 10_000, 12_048)
    assert checkpoint_due(c, 999_424, 1_001_472)
    rare = c.with_updates(checkpoint_interval=10**9)
    assert checkpoint_due(rare, 999_424, 1_001_472)


def test_an_interval_shorter_than_a_rollout_saves_after_each():
    c = config(total_timesteps=1_000_000, num_evals=1, checkpoint_interval=100)
    assert all(checkpoint_due(c, i * 2048, (i + 1) * 2048) for i in range(20))


def test_the_heartbeat_is_sparse():
    sent = []
    beat = Heartbeat(sent.append, interval_s=3600)
    beat.global_step = 5
    for _ in range(100):
        beat("rollout")
    assert sent == [Alive(phase="rollout", global_step=5)]


def test_a_long_call_is_reported_from_beside():
    sent = []
    beat = Heartbeat(sent.append, interval_s=0.0)
    with beat.during("update", interval_s=0.01):
        while len(sent) < 3:
            time.sleep(0.01)
    count = len(sent)
    time.sleep(0.05)
    assert len(sent) == count, "it goes on after the call"
