"""ScheduledTrainer with real runs on two nodes, behind the same protocol as LocalTrainer."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from processes import wait_until
from ssh_node import Node
from ssh_server import WHY_NOT, SSHServer

from p2p.config import TrainConfig
from p2p.contracts import RunConfigEntry
from p2p.records.iteration_record import IterationRecord
from p2p.scheduler.records import NodeConfig
from p2p.scheduler.scheduled_trainer import ScheduledTrainer, make_trainer
from p2p.scheduler.service import is_running
from p2p.scheduler.store import Store
from p2p.session.request import loop_config
from p2p.session.stopping import StopSwitch
from p2p.training.checkpoints import checkpoint_dir, checkpoint_steps
from p2p.training.policies.policy import Policy
from p2p.training.runner import RunOptions, run_training
from p2p.training.trainer import LocalTrainer

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("own_cores")]

PLAIN = RunConfigEntry(config_id="plain")
BROKEN = RunConfigEntry(config_id="broken", params={"num_minibatches": 7})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "runs")
    for name in ("local", "other"):
        made.add_node(NodeConfig(node_id=name, cores=1), replace=True)
    return made


def test_scheduled_trainer_spreads_runs_and_reports_errors(
    store: Store, reward_path: Path, small_config: TrainConfig
) -> None:
    tiny = small_config.with_updates(num_evals=1)
    iteration = store.runs_dir / "session_x" / "iter_1"
    trainer = ScheduledTrainer(videos=False)

    def train() -> object:
        return trainer.train(
            [PLAIN, BROKEN],
            [1, 2],
            reward_path=reward_path,
            base_config=tiny,
            iteration_dir=iteration,
        )

    found = train()
    plain, broken = found.configs  # type: ignore[attr-defined]
    assert [run.status for run in plain.per_seed] == ["completed", "completed"]
    assert [run.status for run in broken.per_seed] == ["error", "error"]
    assert "num_minibatches" in (broken.per_seed[0].error or "")
    assert {run.node_id for run in store.runs()} == {"local", "other"}
    # What is complete on disk is not done again.
    assert train() == found
    assert len(store.jobs()) == 1
    wait_until(lambda: not is_running(store.runs_dir))


@pytest.mark.slow
def test_paused_run_continues_from_its_weights(
    store: Store, tmp_path: Path, batched_reward: str, small_config: TrainConfig
) -> None:
    config = small_config.with_updates(num_evals=2, iteration_id="c1_seed_1")
    iteration = store.runs_dir / "session_x" / "iter_1"
    trainer = ScheduledTrainer(videos=False)
    runs = [(config, batched_reward)]
    half = config.total_timesteps // 2
    assert trainer.train_runs(runs, iteration, until=half, pause=True) == {}
    record = IterationRecord(iteration / "c1_seed_1")
    assert record.stated_status() == "queued"
    assert len(checkpoint_steps(record)) == 1
    assert trainer.train_runs(runs, iteration) == {}
    assert record.stated_status() == "completed"
    alone = IterationRecord(tmp_path / "iter_1")
    run_training(config, batched_reward, alone, options=RunOptions(videos=False))
    last = max(checkpoint_steps(record))
    ours, theirs = (
        Policy.load(checkpoint_dir(each, last) / "policy.safetensors") for each in (record, alone)
    )
    for name, tensor in ours.tensors.items():
        assert np.array_equal(tensor, theirs.tensors[name]), name


@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_paused_run_continues_on_another_node(
    store: Store, tmp_path: Path, batched_reward: str, small_config: TrainConfig
) -> None:
    server = SSHServer(tmp_path / "server")
    server.start()
    try:
        for name in ("local", "other"):
            store.add_node(NodeConfig(node_id=name, cores=1, enabled=False), replace=True)
        store.add_node(Node(server, store.runs_dir).config(node_id="there"))
        config = small_config.with_updates(num_evals=2, iteration_id="c1_seed_1")
        iteration = store.runs_dir / "session_x" / "iter_1"
        runs, half = [(config, batched_reward)], config.total_timesteps // 2
        trainer = ScheduledTrainer(videos=False)
        assert trainer.train_runs(runs, iteration, until=half, pause=True) == {}
        record = IterationRecord(iteration / "c1_seed_1")
        assert record.stated_status() == "queued"
        store.add_node(NodeConfig(node_id="there", cores=1, enabled=False), replace=True)
        store.add_node(NodeConfig(node_id="local", cores=1), replace=True)
        assert trainer.train_runs(runs, iteration) == {}
    finally:
        server.stop()
    assert record.stated_status() == "completed"
    first, last = sorted(checkpoint_steps(record))
    training, _ = record.parse_scalars()
    steps = [row["global_step"] for row in training]
    assert first < last
    assert steps == sorted(set(steps))  # continued, and not begun anew
    assert [run.node_id for run in store.runs()] == ["there", "local"]


def test_failing_reward_ends_scheduled_run_as_failed(
    store: Store, tmp_path: Path, small_config: TrainConfig
) -> None:
    path = tmp_path / "bad.py"
    path.write_text("def reward_fn(obs, action, next_obs, info):\n    return 1 / 0, {}\n")
    found = ScheduledTrainer(videos=False).train(
        [PLAIN],
        [1],
        reward_path=path,
        base_config=small_config,
        iteration_dir=store.runs_dir / "session_x" / "iter_1",
    )
    (run,) = found.configs[0].per_seed
    assert (run.status, found.best_run_id) == ("failed", None)
    assert "division" in (run.error or "")


def test_cancelled_scheduled_runs_count_as_cancelled(
    store: Store, reward_path: Path, small_config: TrainConfig
) -> None:
    long = small_config.with_updates(total_timesteps=50_000_000)
    stop = threading.Event()
    iteration = store.runs_dir / "session_x" / "iter_1"
    trainer = ScheduledTrainer(videos=False, cancelled=stop.is_set)

    def stop_when_it_runs() -> None:
        wait_until(IterationRecord(iteration / "plain_seed_1").scalars_path.exists)
        stop.set()

    thread = threading.Thread(target=stop_when_it_runs)
    thread.start()
    found = trainer.train(
        [PLAIN], [1, 2, 3], reward_path=reward_path, base_config=long, iteration_dir=iteration
    )
    thread.join()
    assert [run.status for run in found.configs[0].per_seed] == ["cancelled"] * 3
    assert {run.state for run in store.runs()} == {"cancelled"}


@pytest.mark.parametrize(
    ("trainer", "launch_id", "kind"),
    [
        ("local", "", LocalTrainer),
        ("scheduled", "", ScheduledTrainer),
        ("scheduled", "session_x.1", LocalTrainer),  # itself a job: it trains on its own cores
    ],
)
def test_make_trainer_follows_session_and_job(
    monkeypatch: pytest.MonkeyPatch, trainer: str, launch_id: str, kind: type
) -> None:
    monkeypatch.delenv("P2P_LAUNCH_ID", raising=False)
    if launch_id:
        monkeypatch.setenv("P2P_LAUNCH_ID", launch_id)
    loop = loop_config("HalfCheetah-v5", trainer=trainer, cores_per_run=2)
    made = make_trainer(loop, StopSwitch())
    assert isinstance(made, kind)
    assert made.cores_per_run == 2
