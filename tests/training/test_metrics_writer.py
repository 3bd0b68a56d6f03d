import importlib
import json
import subprocess
import sys
import threading

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from p2p.contracts import EvalResult, TrainScalars
from p2p.training.metrics.scalars_file import from_line, to_line
from p2p.training.metrics.writer import WRITERS, MissingExtraError, follow

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


def lines(path):
    def strict(name):
        raise AssertionError(f"{name} is no JSON")

    return [json.loads(line, parse_constant=strict) for line in path.read_text().splitlines()]


class Collected:
    def __init__(self):
        self.records, self.closed = [], False

    def write(self, record):
        self.records.append(record)

    def close(self):
        self.closed = True


def test_each_record_is_one_flat_line_as_soon_as_it_is_written(tmp_path):
    writer = WRITERS["jsonl"](tmp_path / "metrics", "run", 0)
    writer.write(train(10, loss=0.5, reward_term_speed=1.0))
    writer.write(evaluation(10))
    first, second = lines(tmp_path / "metrics" / "scalars.jsonl")
    assert first == {
        "type": "train", "global_step": 10, "iteration": 1, "loss": 0.5, "reward_term_speed": 1.0
    }  # fmt: skip
    assert (second["type"], second["all_returns"]) == ("eval", [1.0, 3.0])
    writer.close()


def test_a_number_that_is_not_finite_is_left_out(tmp_path):
    writer = WRITERS["jsonl"](tmp_path, "run", 0)
    writer.write(train(10, loss=NAN, kl=float("inf"), return_=2.0))
    writer.write(evaluation(10, mean=NAN))
    writer.close()
    first, second = lines(tmp_path / "scalars.jsonl")
    assert {"loss", "kl"}.isdisjoint(first)
    assert first["return_"] == 2.0
    assert "mean_return" not in second
    assert second["all_returns"] == [None, 3.0]


def test_lines_read_back_as_the_records_they_were():
    for record in (train(10, loss=0.25, kl=0.5), evaluation(20)):
        assert from_line(to_line(record)) == record
    assert from_line('{"type":"train","global_st') is None
    assert from_line("[1]") is None


def test_resuming_drops_what_lies_beyond_the_step_and_a_torn_line(tmp_path):
    path = tmp_path / "scalars.jsonl"
    writer = WRITERS["jsonl"](tmp_path, "run", 0)
    for step in (10, 20, 30):
        writer.write(train(step))
    writer.write(evaluation(30))
    writer.close()
    with path.open("a") as file:
        file.write('{"type":"train","global_step":5,"itera')
    writer = WRITERS["jsonl"](tmp_path, "run", 20)
    assert [line["global_step"] for line in lines(path)] == [10, 20]
    writer.write(train(30))
    writer.close()
    assert [line["global_step"] for line in lines(path)] == [10, 20, 30]
    assert [p.name for p in tmp_path.iterdir()] == ["scalars.jsonl"]


def test_a_new_run_begins_an_empty_file(tmp_path):
    WRITERS["jsonl"](tmp_path, "run", 0).write(train(10))
    WRITERS["jsonl"](tmp_path, "run", 0).close()
    assert lines(tmp_path / "scalars.jsonl") == []


def scalars(folder):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def test_tensorboard_reads_what_was_written(tmp_path):
    writer = WRITERS["tensorboard"](tmp_path, "run", 0)
    writer.write(train(10, loss=0.5, kl=NAN))
    writer.write(train(20, loss=0.25))
    writer.write(evaluation(20))
    found = scalars(tmp_path / "tensorboard")
    assert found["train/loss"] == [(10, 0.5), (20, 0.25)]
    assert found["eval/mean_return"] == [(20, 1.0)]
    assert found["eval/reward_term_speed"] == [(20, 4.0)]
    assert "train/kl" not in found
    writer.close()


def test_tensorboard_forgets_what_a_resumed_run_does_again(tmp_path):
    writer = WRITERS["tensorboard"](tmp_path, "run", 0)
    for step in (10, 20, 30):
        writer.write(train(step, loss=float(step)))
    resumed = WRITERS["tensorboard"](tmp_path, "run", 20)
    resumed.write(train(30, loss=-1.0))
    assert scalars(tmp_path / "tensorboard")["train/loss"] == [(10, 10.0), (20, 20.0), (30, -1.0)]


def test_tensorboard_needs_no_deep_learning_library(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from p2p.training.metrics.writer import WRITERS\n"
        "heavy = {'torch', 'tensorflow', 'jax', 'tensorboard'}\n"
        "assert not heavy & set(sys.modules)\n"
        f"WRITERS['tensorboard'](Path({str(tmp_path)!r}), 'run', 0)\n"
        "assert heavy & set(sys.modules) == {'tensorboard'}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_writer_that_is_not_installed_names_its_extra(tmp_path, monkeypatch, name):
    real = importlib.import_module

    def without(module, *rest):
        if module == name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(module, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingExtraError, match=rf"pip install 'prompt2policy\[{name}\]'"):
        WRITERS[name](tmp_path, "run", 0)


def test_a_broken_library_is_not_taken_for_a_missing_one(tmp_path, monkeypatch):
    (tmp_path / "wandb.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found") as caught:
        WRITERS["wandb"](tmp_path, "run", 0)
    assert not isinstance(caught.value, MissingExtraError)


def test_following_passes_every_line_on_once_even_over_a_resume(tmp_path):
    path = tmp_path / "scalars.jsonl"
    collected, finished = Collected(), threading.Event()
    thread = threading.Thread(target=follow, args=(path, [collected], finished.is_set, 0.005))
    thread.start()
    writer = WRITERS["jsonl"](tmp_path, "run", 0)
    for step in range(10, 60, 10):
        writer.write(train(step))
        finished.wait(0.01)
    writer.close()
    with path.open("a") as file:
        file.write('{"type":"train"')
    resumed = WRITERS["jsonl"](tmp_path, "run", 30)
    resumed.write(evaluation(30))
    for step in range(40, 90, 10):
        resumed.write(train(step))
    finished.set()
    thread.join(10)
    assert collected.closed
    steps = [r.global_step for r in collected.records if r.type == "train"]
    assert steps == list(range(10, 90, 10))
    assert [r.global_step for r in collected.records if r.type == "eval"] == [30]


def test_following_ends_without_a_file(tmp_path):
    collected = Collected()
    assert follow(tmp_path / "absent.jsonl", [collected], lambda: True) == 0
    assert collected.closed


def test_a_failing_writer_is_heard_and_all_are_closed(tmp_path):
    class Broken(Collected):
        def write(self, _):
            raise ConnectionError("server gone")

    (tmp_path / "s.jsonl").write_text(to_line(train(10)) + "\n")
    both = [Broken(), Collected()]
    with pytest.raises(ConnectionError):
        follow(tmp_path / "s.jsonl", both, lambda: True)
    assert all(writer.closed for writer in both)
