"""Several rewards in an iteration: screen, trained rung by rung, halved, one of them chosen."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from session_process import TINY, Sessions, kill_all

from p2p.agents.reward_source import reweight
from p2p.commands.sessions import candidate_lines
from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import (
    AuthoredCode,
    AuthoringStep,
    CheckpointInfo,
    CriterionGradient,
    CriterionScore,
    JudgmentResult,
    RewardSpec,
    SessionConfig,
    TrainSummary,
    utc_now,
)
from p2p.files import save_model
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.loop_files import IterationPlan, RewardSearch, RungResult, candidate_rows
from p2p.records.session_view import IterationView
from p2p.records.summaries import IterationDetail
from p2p.resource_auto import Machine
from p2p.scheduler.store import Store
from p2p.session import search as searching
from p2p.session.agents import SessionAgents
from p2p.session.context import SessionContext
from p2p.session.early_stop import EarlyJudge
from p2p.session.search import (
    RUNGS,
    CandidateSearch,
    candidate_count,
    rung_step,
    screen,
    select_candidates,
    weight_changes,
)
from p2p.session.stopping import SessionCancelled, TrainingUnavailable
from p2p.training.policies.policy import Policy
from p2p.training.runner import RunOptions, run_training
from p2p.training.trainer import LocalTrainer

TRAIN = {**TINY, "num_evals": 4}
LOOP = {
    "model": "builtin",
    "train": TRAIN,
    "candidates": 2,
    "max_iterations": 1,
    "pass_threshold": 1.0,
    "videos": False,
    "judge_episodes": 2,
    "review_reward": False,
    "review_judge": False,
}


def authored(code: str, *, valid: bool = True, ranked: bool = True) -> AuthoredCode:
    steps = (
        AuthoringStep(kind="check", ok=valid, text="line 1: no"),
        AuthoringStep(kind="ranking", ok=ranked, text="" if ranked else "the wrong way round"),
    )
    return AuthoredCode(code=code, author="test", valid=valid, steps=steps if valid else steps[:1])


def rewards(*weights: float) -> list[str]:
    return [f"def reward_fn(o, a, n, i):\n    return {w}, {{'x': {w}}}\n" for w in weights]


# --- who is trained -------------------------------------------------------------------------------


def test_screening_keeps_out_what_does_not_run_or_is_there_twice_and_puts_doubts_last() -> None:
    one, two, three = rewards(1.0, 2.0, 3.0)
    candidates = screen(
        [
            authored(one, ranked=False),
            authored(f"# the same\n{one}"),
            authored(two, valid=False),
            authored(three),
        ]
    ).candidates
    assert [(c.name, c.usable) for c in candidates] == [
        ("c4", True), ("c1", True), ("c2", False), ("c3", False),
    ]  # fmt: skip
    assert candidates[1].problems == ("the wrong way round",)
    assert candidates[2].problems == ("same as c1",)


def test_screening_puts_first_what_rises_with_the_criteria_and_says_what_falls() -> None:
    def with_gradients(code: str, *correlations: float) -> AuthoredCode:
        found = tuple(
            CriterionGradient(motion="moving along x", criterion="keeps_going", correlation=each)
            for each in correlations
        )
        return authored(code).model_copy(update={"gradients": found})

    one, two, three, four = rewards(1.0, 2.0, 3.0, 4.0)
    candidates = screen(
        [
            with_gradients(one, 1.0, -1.0, 0.0),
            with_gradients(two, 1.0, 1.0, 0.0),
            with_gradients(three, 1.0, 1.0, 0.1),
            with_gradients(four, 1.0, 1.0, 1.0).model_copy(update={"valid": False}),
        ]
    ).candidates
    assert [(c.name, c.usable) for c in candidates] == [
        ("c2", True), ("c3", True), ("c1", True), ("c4", False),
    ]  # fmt: skip
    assert candidates[2].problems == ("the reward falls while 'keeps_going' rises: moving along x",)


def test_the_first_is_tried_alone_then_all_then_the_better_half_then_the_best() -> None:
    names, search = ["c1", "c2", "c3"], RewardSearch()
    assert select_candidates(search, names, RUNGS[0]) == ["c1"]
    search = RewardSearch(rungs=(RungResult(step=1, scores={"c1": 0.2}),))
    assert select_candidates(search, names, RUNGS[1]) == ["c1", "c2", "c3"]
    scores = {"c1": 0.2, "c2": None, "c3": 0.5}
    search = RewardSearch(rungs=(*search.rungs, RungResult(step=1, scores=scores)))
    assert select_candidates(search, names, RUNGS[2]) == ["c3", "c1"]
    scores = {"c3": 0.4, "c1": 0.4, "c4": 0.3}
    search = RewardSearch(rungs=(*search.rungs, RungResult(step=2, scores=scores)))
    assert select_candidates(search, names, RUNGS[3]) == ["c3"]  # of equals, who stood higher


def test_rungs_end_where_training_is_evaluated_anyway() -> None:
    steps = [rung_step(TrainConfig(total_timesteps=1000, num_evals=4), rung) for rung in RUNGS]
    assert steps == [250, 250, 500, 1000]
    once = [rung_step(TrainConfig(total_timesteps=1000, num_evals=1), rung) for rung in RUNGS]
    assert once == [1000] * 4


@pytest.mark.parametrize(
    ("cores", "options", "count"),
    [
        (2, {}, 1),
        (16, {}, 4),
        (8, {}, 2),
        (64, {"candidates": 1}, 1),
        (1, {"candidates": 5}, 5),
        (64, {"budget_usd": 1.0}, 2),
        (64, {"max_minutes": 5.0}, 1),
        (64, {"trainer": "scheduled"}, 1),
        (64, {"use_code_judge": False, "vlm_model": "x"}, 1),
        (64, {"train": TrainConfig(total_timesteps=50_000)}, 1),
    ],
)
def test_how_many_candidates_is_chosen_by_cores_and_budget(
    monkeypatch: pytest.MonkeyPatch, cores: int, options: dict[str, object], count: int
) -> None:
    monkeypatch.setattr(searching, "detect_machine", lambda: Machine(cores, 1 << 40))
    loop = LoopConfig.model_validate(options)
    assert candidate_count(loop, loop.train) == count


@pytest.mark.parametrize(("asked", "count"), [(0, 1), (3, 3)])
def test_an_engine_trains_one_reward_unless_more_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: int, count: int
) -> None:
    monkeypatch.setattr(searching, "detect_machine", lambda: Machine(64, 1 << 40))
    train = TrainConfig(env_id="Mjlab-Cartpole-Balance")
    assert candidate_count(LoopConfig(train=train, candidates=asked), train) == count


def test_candidates_that_nobody_could_compare_are_refused() -> None:
    with pytest.raises(ValueError, match="candidates"):
        LoopConfig(candidates=2, use_code_judge=False, vlm_model="x")


def test_the_steps_left_are_those_of_the_rungs_to_come() -> None:
    ladder = ((250, 1), (250, 3), (500, 3), (1000, 1))
    search = RewardSearch(ladder=ladder)
    assert search.steps_left({}) == 250 + 2 * 250 + 3 * 250 + 500
    assert search.steps_left({"c1": 100}) == search.steps_left({}) - 100
    search = RewardSearch(ladder=ladder, rungs=(RungResult(step=250, scores={"c1": 0.0}),))
    assert search.steps_left({"c1": 250, "c2": 50}) == 200 + 250 + 750 + 500


# --- other weights --------------------------------------------------------------------------------


def test_what_is_not_met_counts_more_first() -> None:
    judgment = JudgmentResult(
        intent_score=0.5,
        criteria=(CriterionScore(id="lasts", score=0.2), CriterionScore(id="calm", score=1.0)),
    )
    [(text, factors), *_] = weight_changes(rewards(1.0)[0], ("x",), judgment, LoopConfig())
    assert (text, factors) == ("x counts twice", {"x": 2.0})


def test_any_reward_function_can_be_weighed_anew() -> None:
    code = "def reward_fn(o, a, n, i):\n    return 3.0 * o, {'x': 2.0 * o, 'y': 1.0 * o}\n"
    changed = reweight(code, {"x": 0.5})
    assert changed is not None
    scope: dict[str, object] = {}
    exec(changed, scope)  # noqa: S102 - our own text
    reward = scope["reward_fn"]
    assert callable(reward)
    assert reward(1.0, 0, 0, {}) == (2.0, {"x": 1.0, "y": 1.0})
    assert reweight(changed, {"x": 2.0}) is None
    assert reweight("class Own(RewardFunction):\n    pass\n", {"x": 2.0}) is None


# --- the flow, with trainings that a script tells -------------------------------------------------


class ScriptedTrainer(LocalTrainer):
    """Leaves what a training leaves, at once; scores come from a table of candidate and step."""

    def __init__(self, scores: Mapping[str, Sequence[float | None]]) -> None:
        super().__init__()
        self.scores, self.calls = scores, []

    def train_runs(self, runs, iteration_dir, *, until=None, pause=False):
        self.calls.append(([config.iteration_id for config, _ in runs], until, pause))
        for config, code in runs:
            run = IterationRecord(iteration_dir / config.iteration_id)
            name, step = config.iteration_id.partition("_")[0], until or config.total_timesteps
            run.save_config(config)
            run.save_reward_source(code)
            run.save_reward_spec(RewardSpec(terms={"x": "what is asked"}))
            score = self.scores[name][step * 4 // config.total_timesteps - 1]
            if score is None:
                run.set_status("failed", "the reward raised")
                continue
            (run.checkpoints_dir / f"step_{step}").mkdir(parents=True, exist_ok=True)
            (run.checkpoints_dir / f"step_{step}" / "policy.safetensors").touch()
            save_model(run.streaming_dir / f"{step}.json", judged(score, step))
            run.set_status("queued" if pause else "completed")
            if not pause:
                run.save_summary(summary(config, step))
        return {}


def summary(config: TrainConfig, step: int) -> TrainSummary:
    return TrainSummary(
        env_id=config.env_id,
        seed=config.seed,
        backend="fast",
        total_timesteps=step,
        training_time_s=1.0,
        total_episodes=1,
        final_episodic_return=1.0,
        reward_calls="batch",
        checkpoints=(CheckpointInfo(step=step, mean_return=1.0, std_return=0.0),),
        selected_step=step,
    )


def judged(score: float, step: int) -> JudgmentResult:
    return JudgmentResult(intent_score=score, passed=score >= 0.8, step=step)


@dataclass
class ScriptedEarlyJudge:
    """Finds what the trainer has laid there; what passes holds on held-out seeds, or does not."""

    holds: bool
    confirmations: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(passed=None))

    def judge_recorded(self, run: IterationRecord, step: int) -> JudgmentResult | None:
        return run.read_streaming().get(step)

    def try_pass(self, run: IterationRecord, step: int) -> bool:
        return self.holds


def a_search(
    folder: Path,
    scores: Mapping[str, Sequence[float | None]],
    *,
    would_confirm: bool = True,
    **options: object,
) -> CandidateSearch:
    """A search among rewards 1.0, 2.0, ... with these scores at quarters of 400 steps."""
    session = SessionRecord(folder / "session_x")
    record = session.iteration(1)
    record.path.mkdir(parents=True, exist_ok=True)
    train = TrainConfig(total_timesteps=400, num_evals=4)
    loop = LoopConfig.model_validate({"train": train, "candidates": 3, **options})
    codes = rewards(*range(1, 1 + sum(name in ("c1", "c2", "c3") for name in scores)))
    if not record.candidates.exists():
        record.candidates.save(screen([authored(code) for code in codes]))
    config = SessionConfig(
        session_id="session_x", prompt="balance", created_at=utc_now(), version="1", loop=loop
    )
    return CandidateSearch(
        context=SessionContext(session, config, SessionAgents(session, loop)),
        record=record,
        plan=IterationPlan(
            iteration=1, train=train, configs=loop.configs, seeds=loop.seeds, candidates=3
        ),
        trainer=ScriptedTrainer(scores),
        early=cast("EarlyJudge", ScriptedEarlyJudge(would_confirm)),
    )


FOUR: dict[str, tuple[float | None, ...]] = {
    "c1": (0.3, 0.35),
    "c2": (0.1,),
    "c3": (0.4, 0.5, 0.55, 0.6),
    "c4": (0.0, 0.45),
}
"""The fourth is the third with other weights, from its first quarter on."""


def test_the_best_at_each_rung_goes_on_and_the_others_end(tmp_path: Path) -> None:
    search = a_search(tmp_path, FOUR)
    reward, aggregation = search.run()
    assert reward.code == rewards(3)[0]
    assert search.trainer.calls[:4] == [
        (["c1_seed_1"], 100, True),
        (["c2_seed_1", "c3_seed_1"], 100, True),
        (["c3_seed_1", "c1_seed_1", "c4_seed_1"], 200, True),
        (["c3_seed_1"], 400, False),
    ]
    record = search.record.search.read()
    assert record is not None
    assert record.winner == "c3"
    assert record.reason == "c3 was the best after 200 steps: c3 0.50, c1 0.35, c4 0.45"
    assert record.offspring[0].parent == "c3"
    assert "_WEIGHTS" in record.offspring[0].reward.code
    assert aggregation.best_run_id == "c3_seed_1"
    ends = {
        run.run_id: (run.status, run.error) for each in aggregation.configs for run in each.per_seed
    }
    assert ends["c2_seed_1"] == ("cancelled", "another candidate was better: 0.10")
    assert ends["c1_seed_1"] == ("cancelled", "another candidate was better: 0.35")


def test_weights_are_not_changed_where_one_update_is_all_of_the_training(tmp_path: Path) -> None:
    scores = {"c1": 0.3, "c2": 0.1, "c3": 0.4}
    search = a_search(tmp_path, {name: (score,) * 4 for name, score in scores.items()})
    for name, score in scores.items():
        run = IterationRecord(search.record.path / f"{name}_seed_1")
        (run.checkpoints_dir / "step_400").mkdir(parents=True)
        (run.checkpoints_dir / "step_400" / "policy.safetensors").touch()
        save_model(run.streaming_dir / "400.json", judged(score, 400))
    search.run()
    record = search.record.search.read()
    assert record is not None
    assert (record.winner, record.offspring) == ("c3", ())


def test_where_the_first_meets_all_criteria_nothing_else_is_trained(tmp_path: Path) -> None:
    search = a_search(tmp_path, {"c1": (0.9,), "c2": (), "c3": ()})
    reward, aggregation = search.run()
    assert reward.code == rewards(1)[0]
    assert [names for names, _, _ in search.trainer.calls] == [["c1_seed_1"]] * 3
    record = search.record.search.read()
    assert record is not None
    assert record.reason == "c1 met all criteria after 100 of 400 steps"
    assert aggregation.best_run_id == "c1_seed_1"


def test_a_pass_that_does_not_hold_on_other_episodes_does_not_end_the_search(
    tmp_path: Path,
) -> None:
    search = a_search(
        tmp_path,
        {"c1": (0.9, 0.9, 0.9, 0.9), "c2": (0.1,), "c3": (0.2, 0.2), "c4": (0, 0.1)},
        would_confirm=False,
    )
    search.run()
    record = search.record.search.read()
    assert record is not None
    assert [rung.met for rung in record.rungs] == [""] * 4


def test_a_candidate_that_cannot_be_trained_is_left_behind(tmp_path: Path) -> None:
    search = a_search(
        tmp_path, {"c1": (None,), "c2": (0.1, 0.1, 0.1, 0.1), "c3": (None,), "c4": (0, 0)}
    )
    reward, aggregation = search.run()
    assert reward.code == rewards(2)[0]
    assert {run.status for each in aggregation.configs for run in each.per_seed} == {
        "completed", "failed", "cancelled",
    }  # fmt: skip


@pytest.mark.parametrize("killed_at", [1, 2, 3, 4])
def test_a_search_that_is_killed_goes_on_where_it_was_and_ends_alike(
    tmp_path: Path, killed_at: int
) -> None:
    whole = a_search(tmp_path / "whole", FOUR)
    whole.run()
    search = a_search(tmp_path / "killed", FOUR)
    calls = search.trainer.calls
    train_runs = search.trainer.train_runs

    def killed(*args: object, **options: object) -> dict[str, str]:
        problems = train_runs(*args, **options)
        if len(calls) == killed_at:
            raise KilledError
        return problems

    search.trainer.train_runs = killed
    with pytest.raises(KilledError):
        search.run()
    again = a_search(tmp_path / "killed", FOUR)
    again.run()
    assert again.record.search.read() == whole.record.search.read()
    trained = [name for names, _, _ in again.trainer.calls[:-1] for name in names]
    done = {1: "c1_seed_1", 2: "c2_seed_1"}.get(killed_at)
    assert done not in trained[:1]


def test_a_machine_that_cannot_train_is_not_held_against_the_candidates(tmp_path: Path) -> None:
    search = a_search(tmp_path, FOUR)

    def broken(runs, iteration_dir, **_):
        for config, _ in runs:
            IterationRecord(iteration_dir / config.iteration_id).set_status("error", "no memory")
        return {}

    search.trainer.train_runs = broken
    with pytest.raises(TrainingUnavailable, match="no memory"):
        search.run()
    a_search(tmp_path, FOUR).run()
    record = search.record.search.read()
    assert record is not None
    assert record.winner == "c3"


def test_a_cancel_leaves_no_candidate_waiting(tmp_path: Path) -> None:
    search = a_search(tmp_path, FOUR)
    switch = search.context.switch
    train_runs = search.trainer.train_runs

    def cancelled(*args: object, **options: object) -> dict[str, str]:
        switch.ask()
        return train_runs(*args, **options)

    search.trainer.train_runs = cancelled
    with pytest.raises(SessionCancelled):
        search.run()
    assert [run.stated_status() for run in search.record.runs()] == ["cancelled"]


def test_the_winner_is_trained_with_every_configuration_and_seed(tmp_path: Path) -> None:
    configs = [{"config_id": "base"}, {"config_id": "far", "params": {"gamma": 0.999}}]
    search = a_search(tmp_path, FOUR | {"c3-far": (0, 0, 0, 0.1)}, configs=configs, seeds=(1, 2))
    _, aggregation = search.run()
    names = [run.run_id for each in aggregation.configs[:2] for run in each.per_seed]
    assert names == ["c3_seed_1", "c3_seed_2", "c3-far_seed_1", "c3-far_seed_2"]


def test_the_api_and_show_tell_of_every_candidate(tmp_path: Path) -> None:
    search = a_search(tmp_path, FOUR)
    search.run()
    detail = IterationDetail.model_validate(IterationView(search.record, 1, TrainConfig()))
    assert [(row.name, row.steps, row.won) for row in detail.candidates] == [
        ("c1", 200, False), ("c2", 100, False), ("c3", 400, True), ("c4", 100, False),
    ]  # fmt: skip
    assert detail.candidates[0].scores == {100: 0.3, 200: 0.35}
    assert detail.choice.startswith("c3 was the best after 200 steps")
    lines = candidate_lines(IterationView(search.record, 1, TrainConfig()))
    assert lines[2] == "* c3 0.40 → 0.50 → 0.60 (400 steps)"
    assert lines[3].startswith("· c4 0.45 (100 steps): As c3, but ")
    assert lines[4] == f"chosen: {detail.choice}"


class KilledError(Exception):
    pass


# --- a whole search -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    sessions = Sessions(tmp_path_factory.mktemp("search"))
    yield sessions
    sessions.clean_up()


@pytest.fixture(scope="module")
def searched(sessions: Sessions) -> SessionRecord:
    """A session of one iteration with two candidates, which nobody has disturbed."""
    process = sessions.new("session_a", LOOP)
    _, err = process.communicate(timeout=280)
    assert process.returncode == 3, err
    return sessions.record("session_a")


@pytest.mark.slow
def test_every_candidate_and_every_rung_is_on_record(searched: SessionRecord) -> None:
    record = searched.iteration(1)
    search = record.search.read()
    assert search is not None
    assert [rung.step for rung in search.rungs] == [256, 256, 512, 1024]
    assert [list(rung.scores) for rung in search.rungs[:2]] == [["c1"], ["c1", "c2"]]
    assert len(search.rungs[2].scores) == 2  # the better one and its offspring
    assert search.winner in search.rungs[2].scores
    assert search.winner in search.reason
    rows = candidate_rows(record.candidates.read(), search)
    assert [row.name for row in rows] == ["c1", "c2", "c3"]
    assert rows[2].parent in ("c1", "c2")
    assert [row.won for row in rows].count(True) == 1
    assert searched.validate() == []


@pytest.mark.slow
def test_the_winner_stands_for_the_iteration_and_the_others_say_why_they_ended(
    searched: SessionRecord,
) -> None:
    record = searched.iteration(1)
    view = IterationView(record, 1, TrainConfig())
    search, reward = record.search.read(), record.reward.read()
    assert search is not None
    assert reward is not None
    best = record.best_run.read()
    assert best is not None
    assert best.run_id == f"{search.winner}_seed_1"
    assert reward.code == record.read_reward_source()
    winner = IterationRecord(record.path / best.run_id)
    assert winner.read_reward_source() == reward.code
    others = [run for run in view.runs if run.run_id != best.run_id]
    assert {run.status for run in others} == {"cancelled"}
    assert all("another candidate was better" in run.error for run in others)
    assert not any(run.record.work_dir.exists() for run in view.runs)


@pytest.mark.slow
def test_a_candidate_that_is_paused_and_continued_is_the_run_it_would_have_been(
    searched: SessionRecord, tmp_path: Path
) -> None:
    record = searched.iteration(1)
    run = record.runs()[0]  # c1: of its own weights, whether it won or not
    config = run.config.read()
    assert config is not None
    last = max(run.checkpoints_dir.iterdir(), key=lambda folder: int(folder.name[5:]))
    alone = IterationRecord(tmp_path / "iter_1")
    until = int(last.name.removeprefix("step_"))
    run_training(
        config, run.read_reward_source(), alone, options=RunOptions(videos=False, until=until)
    )
    policies = [
        Policy.load(folder / "policy.safetensors")
        for folder in (last, alone.checkpoints_dir / last.name)
    ]
    for name, tensor in policies[0].tensors.items():
        assert np.array_equal(tensor, policies[1].tensors[name]), name


@pytest.mark.slow
def test_killed_in_every_rung_and_resumed_it_comes_to_the_same(
    sessions: Sessions, searched: SessionRecord
) -> None:
    record = sessions.record("session_k")
    process = sessions.new("session_k", LOOP)
    for wait_for in ("candidates.json", "search.json", "c2_seed_1/checkpoints", "c3_seed_1"):
        path = record.path / "iter_1" / wait_for
        deadline = time.monotonic() + 120
        while process.poll() is None and not path.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        kill_all(process)
        process = sessions.resume("session_k")
    _, err = process.communicate(timeout=280)
    assert process.returncode == 3, err
    ours, theirs = (
        json.loads(each.iteration(1).search.path.read_text()) for each in (record, searched)
    )
    assert ours == theirs
    assert record.iteration(1).read_judgment() == searched.iteration(1).read_judgment()


@pytest.mark.slow
def test_scheduled_on_a_node_it_comes_to_the_same(
    sessions: Sessions, searched: SessionRecord
) -> None:
    process = sessions.new("session_s", {**LOOP, "trainer": "scheduled"})
    _, err = process.communicate(timeout=280)
    assert process.returncode == 3, err
    record = sessions.record("session_s")
    ours, theirs = (each.iteration(1).search.read() for each in (record, searched))
    assert ours == theirs
    assert record.iteration(1).read_judgment() == searched.iteration(1).read_judgment()
    with closing(Store(sessions.runs)) as store:
        jobs = store.jobs()
        assert {job.state for job in jobs} == {"succeeded"}
        assert len(jobs) >= 4  # a job for each rung
