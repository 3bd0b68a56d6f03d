"""LocalTrainer with real runs: each a sandboxed training in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import is_there, wait_until

from p2p.config import TrainConfig
from p2p.contracts import IterationAggregation, RunConfigEntry
from p2p.event_log import EventLog, last_event, read_events, use_log
from p2p.records.iteration_record import IterationRecord
from p2p.training import trainer
from p2p.training.cpu_manager import CPUManager
from p2p.training.trainer import LocalTrainer, Trainer

ROLLOUT = 256
PLAIN = RunConfigEntry(config_id="plain")

NEEDS_THE_STATE = """
def reward_fn(obs, action, next_obs, info):
    forward = info["mj_data"].qvel[..., 0]
    return forward, {"forward": forward}
"""


@pytest.fixture
def tiny(small_config: TrainConfig) -> TrainConfig:
    return small_config.with_updates(
        total_timesteps=4 * ROLLOUT, num_evals=1, checkpoint_interval=ROLLOUT
    )


@pytest.fixture
def iteration(tmp_path: Path) -> IterationRecord:
    return IterationRecord(tmp_path / "session_x" / "iter_1")


Train = Callable[..., IterationAggregation]


@pytest.fixture
def train(
    tmp_path: Path, iteration: IterationRecord, tiny: TrainConfig, reward_path: Path
) -> Train:
    """Train these configurations with these seeds; options are those of LocalTrainer."""

    def run(
        configs: list[RunConfigEntry],
        seeds: list[int],
        base: TrainConfig = tiny,
        folder: Path = iteration.path,
        cores: str = "cores",
        **options: Any,
    ) -> IterationAggregation:
        manager = CPUManager(folder=tmp_path / cores)
        return LocalTrainer(cpu_manager=manager, videos=False, **options).train(
            configs, seeds, reward_path=reward_path, base_config=base, iteration_dir=folder
        )

    return run


def test_train_takes_configs_and_seeds_alone(
    tmp_path: Path, iteration: IterationRecord, tiny: TrainConfig, batched_reward: str
) -> None:
    trainer: Trainer = LocalTrainer(
        base_config=tiny,
        iteration_dir=iteration.path,
        cpu_manager=CPUManager(folder=tmp_path / "cores"),
        videos=False,
    )
    configs, seeds = [RunConfigEntry(config_id="base")], [3]
    iteration.save_reward_source(batched_reward)
    aggregation = trainer.train(configs, seeds)
    assert isinstance(aggregation, IterationAggregation)
    assert (aggregation.best_run_id, aggregation.best_config_id) == ("base_seed_3", "base")
    with pytest.raises(ValueError, match="iteration_dir: the folder"):
        LocalTrainer().train(configs, seeds)


def steps(record: IterationRecord) -> int:
    training, _ = record.parse_scalars()
    return int(training[-1]["global_step"]) if training else 0


def processes_naming(text: str) -> list[psutil.Process]:
    """The executors with `text` in their arguments."""
    executors = {}
    for process in psutil.process_iter(["cmdline", "ppid"]):
        arguments = " ".join(process.info["cmdline"] or [])
        if "p2p.executor" in arguments and text in arguments:
            executors[process.pid] = process
    # What an executor starts carries its arguments until it has become another program.
    return [p for p in executors.values() if p.info["ppid"] not in executors]


def with_descendants(processes: list[psutil.Process]) -> list[int]:
    pids = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            pids += [process.pid, *(child.pid for child in process.children(recursive=True))]
    return pids


def files_and_times(record: IterationRecord) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in record.path.rglob("*") if path.is_file()}


@pytest.mark.process
def test_configurations_by_seeds_are_compared_and_bad_ones_reported_and_complete_ones_kept(
    iteration: IterationRecord, tiny: TrainConfig, reward_path: Path, train: Train
) -> None:
    reward_path.write_text(NEEDS_THE_STATE)
    configs = [
        RunConfigEntry(config_id="slow", params={"learning_rate": 1e-4}),
        RunConfigEntry(config_id="quick", label="ten times", params={"learning_rate": 1e-3}),
        RunConfigEntry(config_id="blind", params={"side_info": False}),
        RunConfigEntry(config_id="wrong", params={"num_minibatches": 7, "net_arch": [0]}),
    ]
    progress: list[dict[str, float]] = []
    base = tiny.with_updates(side_info=True)

    aggregation = train(configs, [1, 2], base, on_progress=progress.append)
    rows = {row.config_id: row for row in aggregation.configs}
    assert [record.path.name for record in iteration.runs()] == [
        f"{name}_seed_{seed}" for name in ("blind", "quick", "slow") for seed in (1, 2)
    ]
    for name, rate in (("slow", 1e-4), ("quick", 1e-3)):
        returns = []
        for seed, result in zip((1, 2), rows[name].per_seed, strict=True):
            record = IterationRecord(iteration.path / f"{name}_seed_{seed}")
            config, summary = record.config.read(), record.read_summary()
            assert config is not None
            assert (config.learning_rate, config.seed) == (rate, seed)
            assert record.validate() == []
            assert (record.path / "executor.log").read_text().splitlines()[-1] == str(record.path)
            assert (result.status, result.error) == ("completed", None)
            assert summary is not None
            assert result.final_return == summary.checkpoints[-1].mean_return
            returns.append(result.final_return)
        assert returns[0] != returns[1]
        assert rows[name].mean_return == pytest.approx(statistics.fmean(returns))
        assert rows[name].std_return == pytest.approx(statistics.pstdev(returns))
    best = max(("slow", "quick"), key=lambda name: rows[name].mean_return or 0)
    assert aggregation.best_config_id == best
    assert (aggregation.best_run_id or "").startswith(f"{best}_seed_")

    for result in rows["blind"].per_seed:
        assert result.status == "failed"
        assert "mj_data" in (result.error or "")
    for result in rows["wrong"].per_seed:
        assert result.status == "error"
        assert "net_arch" in (result.error or "")
    assert rows["blind"].mean_return is rows["wrong"].mean_return is None
    assert progress[-1] == dict.fromkeys((record.path.name for record in iteration.runs()), 1.0)

    complete = [record for record in iteration.runs() if record.derive_status() == "completed"]
    assert len(complete) == 4
    before = [files_and_times(record) for record in complete]
    again = train(configs[:2], [1, 2], base)
    assert again.configs == aggregation.configs[:2]
    assert [files_and_times(record) for record in complete] == before


@pytest.mark.slow
def test_a_run_killed_once_goes_on_and_killed_twice_is_reported_and_resumed_by_the_next_call(
    iteration: IterationRecord, train: Train
) -> None:
    rollouts = 30
    reference = RunConfigEntry(
        config_id="reference", params={"backend": "sb3", "total_timesteps": rollouts * ROLLOUT}
    )
    victim = IterationRecord(iteration.path / "reference_seed_1")
    other = IterationRecord(iteration.path / "plain_seed_1")

    def kill() -> None:
        for rollout in (3, 6):
            wait_until(lambda least=rollout: steps(victim) >= least * ROLLOUT)  # type: ignore[misc]
            status = victim.read_status()
            assert status is not None
            assert status.pid is not None
            os.kill(status.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    aggregation = train([reference, PLAIN], [1])
    killer.join()
    victim_result, whole = (row.per_seed[0] for row in aggregation.configs)
    assert victim_result.status == "error"
    assert "the run's process was killed from outside twice" in (victim_result.error or "")
    assert whole.status == "completed"
    assert aggregation.best_run_id == "plain_seed_1"
    assert [row.mean_return for row in aggregation.configs] == [None, whole.final_return]

    first, untouched = victim.parse_scalars()[0][0], files_and_times(other)
    aggregation = train([reference, PLAIN], [1])
    assert [row.per_seed[0].status for row in aggregation.configs] == ["completed", "completed"]
    assert files_and_times(other) == untouched
    lines = [json.loads(line) for line in victim.scalars_path.read_text().splitlines()]
    trained = [line for line in lines if line["type"] == "train"]
    assert [line["global_step"] for line in trained] == [ROLLOUT * (i + 1) for i in range(rollouts)]
    # Times are measured: had the run begun anew, its first line would be another one.
    assert trained[0] == first
    summary = victim.read_summary()
    assert summary is not None
    assert (summary.backend, summary.total_timesteps) == ("sb3", rollouts * ROLLOUT)


@pytest.mark.process
def test_cancelling_stops_every_run_and_leaves_no_process_and_runs_see_no_secret(
    tmp_path: Path,
    iteration: IterationRecord,
    tiny: TrainConfig,
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-very-secret")
    monkeypatch.setenv("P2P_DATABASE_PASSWORD", "sk-very-secret")
    seen: dict[int, bytes] = {}

    def cancelled() -> bool:
        for pid in with_descendants(processes_naming(str(iteration.path))):
            # What is read late replaces what was read before the process had its own environment.
            try:
                seen[pid] = Path(f"/proc/{pid}/environ").read_bytes() or seen.get(pid, b"")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                seen.setdefault(pid, b"")
        return any(steps(record) for record in iteration.runs())

    base = tiny.with_updates(total_timesteps=10**9)
    aggregation = train([PLAIN], [1, 2, 3, 4], base, cancelled=cancelled, max_parallel=2)
    assert [result.status for result in aggregation.configs[0].per_seed] == ["cancelled"] * 4
    assert (aggregation.best_config_id, aggregation.best_run_id) == (None, None)
    assert [record.derive_status() for record in iteration.runs()] == ["cancelled"] * 4
    assert len(seen) >= 2
    assert any(b"PATH=" in environment for environment in seen.values())
    assert not any(b"sk-very-secret" in environment for environment in seen.values())
    wait_until(lambda: not any(map(is_there, seen)), seconds=5)
    manager = CPUManager(folder=tmp_path / "cores")
    assert manager.free_cores() == manager.pool


CALLER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from p2p.config import TrainConfig
    from p2p.contracts import RunConfigEntry
    from p2p.records.iteration_record import IterationRecord
    from p2p.training.cpu_manager import CPUManager
    from p2p.training.trainer import LocalTrainer
    cores, pool, reward, folder, config, *seeds = sys.argv[1:]
    manager = CPUManager(pool=eval(pool), folder=Path(cores))
    LocalTrainer(cpu_manager=manager, videos=False).train(
        [RunConfigEntry(config_id="plain")], [int(seed) for seed in seeds],
        reward_path=Path(reward), base_config=TrainConfig.from_json(config),
        iteration_dir=Path(folder),
    )
    """
)


@pytest.fixture
def call() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a process with a LocalTrainer in it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", CALLER, *map(str, arguments)])
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_run_that_waited_for_cores_says_when_it_has_them(
    train: Train, tmp_path: Path, iteration: IterationRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "WAIT_S", 0.0)
    manager = CPUManager(folder=tmp_path / "cores")
    held = manager.try_allocate(len(manager.pool))
    assert held is not None
    log = EventLog(iteration.path.parent / "events.jsonl")

    def release() -> None:
        wait_until(lambda: last_event(log.path), what="cores.wait")
        held.release()

    thread = threading.Thread(target=release)
    thread.start()
    with use_log(log):
        aggregation = train([PLAIN], [1])
    thread.join(timeout=30)
    assert aggregation.best_run_id == "plain_seed_1"
    events = read_events(log.path)
    assert [event.event for event in events] == ["cores.wait", "cores.granted"]
    pool = len(manager.pool)
    assert f"held: {pool} of {pool} by process {os.getpid()}" in events[0].data["reason"]


def test_without_waiting_runs_share_cores_that_others_hold(train: Train, tmp_path: Path) -> None:
    manager = CPUManager(folder=tmp_path / "cores")
    held = manager.try_allocate(len(manager.pool))
    assert held is not None
    aggregation = train([PLAIN], [1], wait_for_cores=False)
    assert aggregation.best_run_id == "plain_seed_1"
    held.release()


@pytest.mark.process
def test_two_callers_share_the_cores(
    tmp_path: Path, tiny: TrainConfig, call: Callable[..., subprocess.Popen[bytes]]
) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text("import time; time.sleep(0.5); raise ValueError('enough')")
    core = min(os.sched_getaffinity(0))
    folders = [tmp_path / "session_x" / f"iter_{i}" for i in (1, 2)]
    callers = [
        call(tmp_path / "cores", [core], reward, folder, tiny.to_json(), 1, 2) for folder in folders
    ]
    most = 0
    while any(caller.poll() is None for caller in callers):
        most = max(most, len(processes_naming(str(tmp_path))))
        time.sleep(0.02)
    assert [caller.returncode for caller in callers] == [0, 0]
    assert most == 1
    for record in (run for folder in folders for run in IterationRecord(folder).runs()):
        status = record.read_status()
        assert status is not None
        assert (status.status, "enough" in (status.error or "")) == ("failed", True)


@pytest.mark.process
def test_a_run_outlives_a_killed_caller_and_the_next_one_waits_for_it(
    tmp_path: Path,
    iteration: IterationRecord,
    tiny: TrainConfig,
    reward_path: Path,
    train: Train,
    call: Callable[..., subprocess.Popen[bytes]],
) -> None:
    base = tiny.with_updates(total_timesteps=100 * ROLLOUT)
    caller = call(tmp_path / "cores", None, reward_path, iteration.path, base.to_json(), 1)
    run = IterationRecord(iteration.path / "plain_seed_1")
    wait_until(lambda: steps(run) > 0)
    caller.kill()
    caller.wait()
    (orphan,) = processes_naming(str(iteration.path))
    first = run.parse_scalars()[0][0]
    # With cores of its own the next caller does not wait for those, but for run.lock.
    aggregation = train([PLAIN], [1], base, cores="other_cores")
    assert aggregation.configs[0].per_seed[0].status == "completed"
    wait_until(lambda: not is_there(orphan.pid), seconds=10)
    training = run.parse_scalars()[0]
    assert training[0] == first
    assert len(training) == 100
    assert (run.path / "executor.log").read_text().split() == [str(run.path)] * 2


def test_a_directory_that_holds_another_run_is_reported_and_kept(
    iteration: IterationRecord, tiny: TrainConfig, train: Train
) -> None:
    record = IterationRecord(iteration.path / "plain_seed_1")
    record.save_config(tiny.with_updates(learning_rate=1e-5))
    record.set_status("completed")
    before = files_and_times(record)
    aggregation = train([PLAIN], [1])
    (result,) = aggregation.configs[0].per_seed
    assert result.status == "error"
    assert "holds another run" in (result.error or "")
    assert files_and_times(record) == before


@pytest.mark.parametrize("params", [{"seed": 3}, {"iteration_id": "x"}, {"learning_rte": 1.0}])
def test_params_that_make_no_configuration_start_nothing(
    iteration: IterationRecord, train: Train, params: dict[str, object]
) -> None:
    aggregation = train([RunConfigEntry(config_id="bad", params=params)], [1])
    assert next(iter(params)) in (aggregation.configs[0].per_seed[0].error or "")
    assert not iteration.path.exists()


def test_what_cannot_be_one_iteration_is_refused(tmp_path: Path, train: Train) -> None:
    with pytest.raises(ValueError, match=r"twice: plain_seed_1"):
        train([PLAIN], [1, 1])
    with pytest.raises(ValueError, match="named iter_"):
        train([PLAIN], [1], folder=tmp_path / "x")
