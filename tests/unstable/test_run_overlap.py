"""A run whose games go on while the learner updates, over one copy of the base weights."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import plain_kernels
import pytest
import torch
from learner_parts import assert_close, make_model
from small_run import learned_steps, new_run, small_model

from unstable.actor import NoActorLeftError
from unstable.collector import Collector
from unstable.config import ConfigError, make_config
from unstable.core import EpisodeResult
from unstable.engines import Sampling
from unstable.engines.adapters import load_adapter
from unstable.engines.fused_model import FusedModel
from unstable.engines.transformers_engine import TransformersEngine
from unstable.learners.checkpoints import save_checkpoint
from unstable.learners.policy import copy_adapter, copy_sharing_weights, load_base, load_policy
from unstable.matchmaking import Job
from unstable.run import RunFolder, parse_step
from unstable.run import start as runs
from unstable.run.parts import begin, check
from unstable.run.progress import Progress
from unstable.run.start import start

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overlap")
    model = small_model(folder / "model")
    config, run = new_run(folder / "run", model, mode="overlap", updates=3)
    check(config)
    result = start(config, run, model, lambda _: None)
    assert result.step == 3
    return run.path


def test_overlap_evaluates_its_last_checkpoint(played: Path) -> None:
    assert learned_steps(played) == [1, 2, 3]
    assert {path.name for path in (played / "checkpoints").iterdir()} == {
        "iteration-1", "iteration-2", "iteration-3",
    }  # fmt: skip
    tracker = json.loads((played / "states" / "step-3" / "tracker.json").read_text())
    assert "ckpt-3" in json.dumps(tracker)


def test_overlap_is_resumed_from_its_newest_state(played: Path) -> None:
    run = RunFolder(played)
    config = make_config(json.loads((played / "config.json").read_text()) | {"updates": 4})
    assert start(config, run, config.model, lambda _: None).step == 4
    assert learned_steps(played) == [1, 2, 3, 4]


def test_a_failed_last_evaluation_fails_the_run(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = new_run(tmp_path / "run", model, mode="overlap", updates=2, state_seconds=0)
    whole = Collector._post_eval

    def fail_at_last(self: Collector, job: Job, result: EpisodeResult) -> None:
        if job.meta.ckpt_uid == "ckpt-2":
            raise NoActorLeftError("all actors have died")
        whole(self, job, result)

    monkeypatch.setattr(Collector, "_post_eval", fail_at_last)
    with pytest.raises(NoActorLeftError):
        start(config, run, model, lambda _: None)
    status = run.status()
    assert status is not None
    assert (status.status, status.step) == ("failed", 2)
    monkeypatch.undo()
    assert start(config, run, model, lambda _: None).evaluations[-1]["ckpt_uid"] == "ckpt-2"


def states(run: RunFolder) -> list[int]:
    return [parse_step(state) for state in run.states()]


def test_a_killed_run_loses_what_came_after_its_last_state(tmp_path: Path, model: str) -> None:
    config, run = new_run(
        tmp_path / "run", model, mode="overlap", updates=3, state_seconds=1e6, keep_states=9
    )
    killed = RunFolder(tmp_path / "killed")

    def report(progress: Progress) -> None:
        if progress.step == 2 and not killed.path.exists():  # what a kill would leave
            shutil.copytree(run.path, killed.path)

    assert start(config, run, model, report).step == 3
    assert states(run) == [0, 3]
    assert states(killed) == [0]
    assert start(config, killed, model, lambda _: None).step == 3
    assert learned_steps(killed.path) == [1, 2, 3]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_overlap_saves_when_interrupted(
    tmp_path: Path, model: str, error: type[BaseException]
) -> None:
    config, run = new_run(
        tmp_path / "run", model, mode="overlap", updates=9, state_seconds=1e6, keep_states=9,
        eval_workers=0,
    )  # fmt: skip

    def report(progress: Progress) -> None:
        if progress.step == 2:
            raise error

    with pytest.raises(error):
        start(config, run, model, report)
    assert len(states(run)) == 2
    assert 2 <= states(run)[-1] <= 3  # an update that was under way is finished
    assert learned_steps(run.path) == [*range(1, states(run)[-1] + 1)]


def test_state_seconds_zero_saves_every_update(tmp_path: Path, model: str) -> None:
    config, run = new_run(
        tmp_path / "run", model, mode="overlap", updates=2, state_seconds=0, keep_states=9,
        eval_workers=0,
    )  # fmt: skip
    start(config, run, model, lambda _: None)
    assert states(run) == [0, 1, 2]


def test_a_checkpoint_stays_as_long_as_a_game_is_played_with_it(tmp_path: Path, model: str) -> None:
    config, folder = new_run(
        tmp_path / "run", model, mode="overlap", keep_checkpoints=1, eval_workers=0,
        engine={"max_loras": 1}, pool={"max_active_lora": 1, "sample_mode": "mirror"},
    )  # fmt: skip

    async def played() -> tuple[list[bool], dict[str, int]]:
        parts, actor = runs.make_sharing_parts(config, folder, model, -1)
        begin(config, parts)
        run = runs._Run(config, folder, parts, lambda _: None)
        learner, collector = parts.learner, parts.collector
        learner._step = 1
        checkpoint = learner.save_checkpoint()
        # A game with that checkpoint is under way, and waits while three newer ones come.
        await collector._ready(1)
        (job,) = await collector.matches.training_group("ckpt-1")
        newer = asyncio.Event()

        async def play() -> EpisodeResult:
            await newer.wait()
            return await collector._play(job)

        collector.flight.start(job, play())
        there = []
        for step in (2, 3, 4):
            learner._step = run.step = step
            learner.save_checkpoint()
            await run.save()
            there.append(checkpoint.exists())
        newer.set()
        while not (games := list(collector.flight.pop_finished())):
            await collector.flight.wait(1.0)
        collector._handle_finished(games[0])
        await run.save()
        there.append(checkpoint.exists())
        run.thread.shutdown()
        await collector.close()
        await actor.close()
        return there, dict(collector.counts)

    there, counts = asyncio.run(asyncio.wait_for(played(), 60))
    assert there == [True, True, True, False]
    assert (counts["games"], counts["failed"]) == (1, 0)


def test_overlap_refuses_full_parameters(tmp_path: Path) -> None:
    options = {"algorithm": "Reinforce", "options": {"full_parameters": True}}
    config, _ = new_run(tmp_path / "run", "tiny", mode="overlap", learner=options)
    with pytest.raises(ConfigError, match="full_parameters would train"):
        check(config)


def test_engine_and_learner_have_the_base_weights_once(tmp_path: Path) -> None:
    base, tokenizer = load_base(make_model(tmp_path), CPU, torch.float32)
    trained = copy_sharing_weights(base)
    engine = TransformersEngine(base, tokenizer, device="cpu", beside_learner=True)
    model, _ = load_policy("", CPU, torch.float32, {}, base=(trained, tokenizer))
    frozen = {p.data_ptr() for p in model.parameters() if not p.requires_grad}
    assert frozen == {p.data_ptr() for p in base.parameters()}
    assert all(p.requires_grad for p in model.parameters() if p.data_ptr() not in frozen)
    answer = asyncio.run(engine.generate((3, 4, 5), Sampling(max_tokens=4, seed=0)))
    assert answer.token_ids


def test_weights_that_a_gpu_engine_moved_are_still_the_learners(tmp_path: Path) -> None:
    base, tokenizer = load_base(make_model(tmp_path), CPU, torch.float32)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    trained = copy_sharing_weights(base)
    fused = FusedModel(base, 64, plain_kernels)
    model, _ = load_policy("", CPU, torch.float32, {}, base=(trained, tokenizer))
    adapter = copy_adapter(model, "one", torch.float32)
    fused.bank.reserve(adapter, 3)
    places = [p.data_ptr() for p in base.parameters()]
    others = [copy_adapter(model, name, torch.float32) for name in ("two", "three")]
    assert not fused.bank.hold([adapter, *others])  # nothing had to move
    assert [p.data_ptr() for p in base.parameters()] == places
    shared = {p.data_ptr() for p in model.parameters() if not p.requires_grad}
    assert shared == set(places)
    assert_close(dict(base.state_dict()), before)


def test_adapter_in_memory_equals_the_one_on_disk(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model")
    base, tokenizer = load_base(path, CPU, torch.float32)
    lora = {"lora_rank": 4, "lora_alpha": 6}
    model, _ = load_policy(
        "", CPU, torch.float32, lora, base=(copy_sharing_weights(base), tokenizer)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(len(name)))
    folder = str(save_checkpoint(model, tmp_path / "adapter"))
    read = load_adapter(folder, base, torch.float32, CPU)
    handed = copy_adapter(model, folder, torch.float32)
    assert handed.rank == read.rank
    assert_close(handed.down, read.down, rtol=0, atol=0)
    assert_close(handed.up, read.up)
    engine = TransformersEngine(base, tokenizer, device="cpu", beside_learner=True)
    asked = Sampling(max_tokens=6, seed=1, temperature=1.0, top_p=1.0)

    async def answers() -> list[tuple[float, ...]]:
        engine.put_adapter("nowhere on disk", handed)
        both = [await engine.generate((3, 4), asked, name) for name in ("nowhere on disk", folder)]
        plain = await engine.generate((3, 4), asked)
        return [one.logprobs for one in (*both, plain)]

    in_memory, on_disk, plain = asyncio.run(answers())
    assert in_memory == pytest.approx(on_disk, abs=1e-6)
    assert in_memory != plain
