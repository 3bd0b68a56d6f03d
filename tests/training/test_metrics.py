import json
import threading

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from p2p.contracts import EvalResult, TrainScalars
from p2p.training import metrics
from p2p.training.evaluation import EpisodeLog
from p2p.training.metrics import RunMetrics

NAN = float("nan")


def train(step, **values):
    return TrainScalars(global_step=step, iteration=step // 10, values=values or {"loss": 0.5})


def evaluation(step, mean=1.0):
    return EvalResult(
        global_step=step, all_returns=(mean, 3.0), episode_lengths=(5, 6), mean_return=mean,
        std_return=1.0, min_return=1.0, max_return=3.0, median_return=2.0, p10_return=1.2,
        p90_return=2.8, episode_length=5.5, total_reward=1.0, reward_terms={"speed": 4.0},
        rollouts={"median": 0},
    )  # fmt: skip


def lines(folder):
    def strict(name):
        raise AssertionError(f"{name} is no JSON")

    text = (folder / "scalars.jsonl").read_text()
    return [json.loads(line, parse_constant=strict) for line in text.splitlines()]


def test_each_record_is_one_flat_line_of_strict_json_as_soon_as_it_is_written(tmp_path):
    run = RunMetrics(tmp_path, "run")
    run.write(train(10, loss=0.5, reward_term_speed=1.0, kl=NAN))
    run.write(evaluation(10, mean=NAN))
    first, second = lines(tmp_path)
    assert first == {
        "type": "train", "global_step": 10, "iteration": 1, "loss": 0.5, "reward_term_speed": 1.0
    }  # fmt: skip
    assert (second["type"], second["all_returns"]) == ("eval", [None, 3.0])
    assert "mean_return" not in second
    assert run.close() == []


def test_a_resumed_run_does_not_repeat_what_lies_beyond_its_step(tmp_path):
    run = RunMetrics(tmp_path, "run")
    for step in (10, 20, 30):
        run.write(train(step, loss=float(step), kl=NAN))
    run.write(evaluation(30))
    run.close()
    with (tmp_path / "scalars.jsonl").open("a") as file:
        file.write('{"type":"train","global_step":5,"itera')
    run = RunMetrics(tmp_path, "run", after_step=20)
    assert [line["global_step"] for line in lines(tmp_path)] == [10, 20]
    run.write(train(30, loss=-1.0))
    run.write(evaluation(30))
    run.close()
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    values = [(event.step, event.value) for event in accumulator.Scalars("train/loss")]
    assert values == [(10, 10.0), (20, 20.0), (30, -1.0)]
    assert accumulator.Scalars("eval/reward_term_speed")[-1].value == 4.0
    RunMetrics(tmp_path, "run").close()
    assert lines(tmp_path) == []


class Tracker:
    def __init__(self, fails=False, hangs=False):
        self.written, self.closed = [], threading.Event()
        self.fails, self.hangs = fails, hangs

    def write(self, values, step):
        if self.fails:
            raise ConnectionError("server gone")
        self.written.append((step, values))

    def close(self):
        if not self.hangs:
            self.closed.set()
        else:
            self.closed.wait(10)


@pytest.fixture
def tracker(monkeypatch, request):
    made = Tracker(**getattr(request, "param", {}))
    monkeypatch.setitem(metrics.TRACKERS, "fake", lambda *given: given and made)
    return made


def test_wandb_has_a_run_for_each_training_with_group_and_configuration(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    real, runs = wandb.init, []
    monkeypatch.setattr(wandb, "init", lambda **given: runs.append(real(**given)) or runs[-1])
    for name in ("a", "b"):
        config = {"learning_rate": 3e-4}
        made = RunMetrics(tmp_path / name, name, "session", trackers=("wandb",), config=config)
        made.write(train(10))
        assert made.close() == []
    assert [(run.name, run.group) for run in runs] == [("a", "session"), ("b", "session")]
    assert runs[0].config["learning_rate"] == 3e-4
    assert len(list(tmp_path.glob("*/wandb/offline-run-*/*.wandb"))) == 2
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]  # as in any run


def test_a_tracker_gets_every_record_in_order(tmp_path, tracker):
    run = RunMetrics(tmp_path, "run", trackers=("fake", "jsonl"))
    for step in range(10, 60, 10):
        run.write(train(step))
    run.write(evaluation(60))
    assert run.close() == []
    assert [step for step, _ in tracker.written] == [10, 20, 30, 40, 50, 60]
    assert tracker.written[0][1] == {"train/loss": 0.5}
    assert tracker.closed.is_set()


@pytest.mark.parametrize(
    ("tracker", "problem"),
    [
        ({"fails": True}, "a tracker failed: ConnectionError: server gone"),
        ({"hangs": True}, "a tracker did not finish within 0.2 s"),
    ],
    indirect=["tracker"],
)
def test_a_tracker_in_trouble_costs_a_warning_and_no_more(tmp_path, tracker, problem):
    run = RunMetrics(tmp_path, "run", trackers=("fake",))
    run.write(train(10))
    assert run.close(0.2) == [problem]
    assert len(lines(tmp_path)) == 1
    tracker.closed.set()


# --- sums over episodes ---------------------------------------------------------------------


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
