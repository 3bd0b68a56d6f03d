"""The loop with scripted thought and runs at hand: what it does with every outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import session_process
from scripted_agents import ScriptedAgents, context_of, criterion, reward
from session_process import status

from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import Intent, SessionResult, SteeringOrder, utc_now
from p2p.event_log import read_events
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.loop_files import JudgeAmendment
from p2p.session.loop import run_loop
from p2p.session.plan import place_start, start_of
from p2p.session.request import ResumeOptions, loop_config
from p2p.session.start import create_session, open_config
from p2p.session.steering import give_feedback
from p2p.session.stopping import StopSwitch, TrainingUnavailable, read_worked_seconds
from p2p.training.hp_presets import quick_config
from p2p.training.runner import RunOptions, run_training
from shared_folders import Shared

TINY = TrainConfig(**{**session_process.TINY, "total_timesteps": 256, "max_episode_steps": 20})

Made = Callable[..., SessionRecord]
Run = Callable[..., SessionResult]


@pytest.fixture(scope="module")
def trained(shared: Shared) -> Path:
    """One real run; the iterations of these tests are copies of it."""

    def train(folder: Path) -> None:
        record = IterationRecord(folder / "session_t" / "base_seed_1")
        config = TINY.with_updates(iteration_id="base_seed_1")
        run_training(config, reward(1.0), record, options=RunOptions(videos=False))

    return shared.folder("pole-run", train) / "session_t" / "base_seed_1"


@pytest.fixture
def session(tmp_path: Path) -> Made:
    def make(
        name: str = "session_a", prompt: str = "balance the pole", **options: Any
    ) -> SessionRecord:
        loop = loop_config(
            TINY.env_id, train=TINY, **{"videos": False, "max_iterations": 3, **options}
        )
        return create_session(prompt, loop, session_id=name, runs_dir=tmp_path)

    return make


@pytest.fixture
def run(trained: Path) -> Run:
    def go(session: SessionRecord, *, resume: bool = False, **script: Any) -> SessionResult:
        return run_loop(context_of(session, script, trained), resume=resume)

    return go


def calls(session: SessionRecord) -> list[str]:
    return ScriptedAgents(session, LoopConfig()).calls()


def feedback(session: SessionRecord, **parts: Any) -> None:
    give_feedback(session.path, SteeringOrder(given_at=utc_now(), **parts))


def test_a_pass_is_confirmed_on_fresh_starts_and_ends_the_session(session: Made, run: Run) -> None:
    made = session()
    result = run(made, scores={"1": [0.9, 0.85]})
    assert (result.status, result.best_iteration, result.iterations) == ("passed", 1, 1)
    assert (result.score, result.confirmed_score) == (0.85, 0.85)
    assert result.policy is not None
    assert (made.path / result.policy).is_file()
    assert sorted(calls(made)) == sorted(
        ["elicit", "write_reward", "write_judge upright", "judge 1 block 1", "confirm 1 block 2"]
    )
    assert status(made) == "passed"
    assert made.validate() == []
    names = [event.event for event in read_events(made.events_path, limit=1000)]
    for phase in ("intent", "plan", "reward", "judge_code", "train", "judge", "confirm"):
        assert {f"{phase}.start", f"{phase}.end"} <= set(names)
    assert (names[0], names[-1]) == ("session.started", "session.ended")
    assert "passed" in made.report_path.read_text()
    assert "calls, 7 tokens, $0.2500\n" in made.report_path.read_text()
    first = made.iteration(1)
    assert first.read_reward_spec()["terms"] == {"upright": "stay up"}
    assert first.prompt_path.read_text() == f"{open_config(made).prompt}\n"
    assert not first.revised_reward_path.exists()


def test_requests_that_may_have_cost_money_are_told_apart(session: Made, run: Run) -> None:
    made = session()
    result = run(made, unanswered=2, raises={"elicit": ["ProviderUnavailable"]})
    assert (result.cost_usd, result.unanswered, result.unanswered_usd) == (0.25, 2, 0.25)
    told = "7 tokens, $0.2500; 2 without an answer, which may have cost up to $0.2500\n"
    assert told in made.report_path.read_text()


def test_what_does_not_hold_on_held_out_seeds_is_no_pass_and_each_try_has_new_ones(
    session: Made, run: Run
) -> None:
    made = session()
    result = run(made, scores={"1": [0.9, 0.3], "2": [0.95, 0.6], "3": [0.9, 0.5]})
    assert (result.status, result.best_iteration, result.score) == ("max_iterations", 2, 0.6)
    confirmations = [call for call in calls(made) if call.startswith("confirm")]
    assert confirmations == ["confirm 1 block 2", "confirm 2 block 3", "confirm 3 block 4"]
    verdict = made.iteration(1).read_judgment()
    assert verdict is not None
    assert not verdict.passed
    assert "unseen episodes" in verdict.diagnosis
    lineage = made.lineage.read()
    assert lineage is not None
    assert [(n.iteration, n.parent, n.score) for n in lineage.nodes] == [
        (1, None, 0.3), (2, 1, 0.6), (3, 2, 0.5),
    ]  # fmt: skip
    assert "revise 3" not in calls(made)


def test_early_checkpoints_are_shown_to_all_judges_where_that_is_asked_for(
    session: Made, run: Run
) -> None:
    made = session(max_iterations=1, vlm_model="openai:none", judge_every_checkpoint=True)
    run(made)
    judged = made.iteration(1).runs()[0].read_streaming()
    summary = made.iteration(1).runs()[0].read_summary()
    assert summary is not None
    assert [point.step for point in summary.checkpoints] == sorted({*judged, summary.selected_step})
    assert calls(made).count("judge 1 block 1") == 2
    assert made.validate() == []


def test_a_session_out_of_iterations_goes_on_with_more(session: Made, run: Run) -> None:
    made = session(max_iterations=1)
    assert run(made).status == "max_iterations"
    before = calls(made)
    assert run(made).status == "max_iterations"
    assert calls(made) == before
    open_config(made, ResumeOptions(max_iterations=2))
    assert run(made, scores={"2": [0.9, 0.9]}).status == "passed"
    assert calls(made)[len(before) :] == [
        "revise 1", "repair_reward 2", "judge 2 block 1", "confirm 2 block 2",
    ]  # fmt: skip
    revision = made.iteration(1).revision.read()
    assert revision is not None
    assert made.iteration(1).revised_reward_path.read_text() == revision.reward_code


def test_a_reward_that_fails_in_training_is_told_to_the_reviser(session: Made, run: Run) -> None:
    made = session()
    broken = reward(1.0).replace("return", "assert next_obs.sum() > 1e9, 'boom'\n    return")
    result = run(made, code={"2": broken}, scores={"3": [0.9, 0.9]})
    assert (result.status, result.best_iteration) == ("passed", 3)
    second = made.iteration(2)
    assert second.read_judgment() is None
    history = made.read_history()
    assert history is not None
    assert "boom" in history["iterations"][1]["training_error"]
    lineage = made.lineage.read()
    assert lineage is not None
    assert lineage.nodes[1].score is None
    assert lineage.nodes[1].lesson == ""


def test_a_first_reward_that_cannot_be_made_to_run_is_the_end(session: Made, run: Run) -> None:
    made = session()
    result = run(made, invalid=[1])
    assert result.status == status(made) == "invalid_code"
    assert "no such name: x" in result.message
    assert made.iteration(1).reward_fn_path.is_file()
    assert not made.iteration(1).runs()


def test_resumed_after_giving_up_the_first_reward_is_revised_by_the_agent_or_the_user(
    session: Made, run: Run
) -> None:
    for name, code in (("session_a", None), ("session_b", reward(7.0))):
        made = session(name)
        run(made, invalid=[1])
        if code is not None:
            feedback(made, reward_code=code)
        result = run(made, resume=True, invalid=[1], scores={"2": [0.9, 0.9]})
        assert (result.status, result.best_iteration) == ("passed", 2)
        assert calls(made).count("write_reward") == 1
        assert ("revise 1" in calls(made)) == (code is None)
        assert code in (None, made.iteration(2).read_reward_source())


def test_resumed_after_giving_up_the_judge_is_written_anew(session: Made, run: Run) -> None:
    made = session()
    assert run(made, bad_judges=1).status == "invalid_code"
    result = run(made, resume=True, bad_judges=1, scores={"1": [0.9, 0.9]})
    assert result.status == "passed"
    assert "forget judge_author judge_reviewer" in calls(made)
    assert (made.path / "judge_invalid.json").is_file()
    assert made.validate() == []


def test_an_absent_judge_is_asked_again_and_then_the_session_waits_for_a_better_time(
    session: Made, run: Run
) -> None:
    made = session()
    first = run(made, scores={"1": [[None, None, 0.4], 0]} | {"2": [None, None]})
    assert first.status == status(made) == "error"
    assert "no judge could judge iteration 2 (code: it is out)" in first.message
    assert calls(made).count("judge 1 block 1") == calls(made).count("judge 2 block 1") == 3
    assert not made.iteration(2).judgment_path.exists()
    lineage = made.lineage.read()
    assert lineage is not None
    assert [node.iteration for node in lineage.nodes] == [1]
    before = len(calls(made))
    assert run(made, scores={"2": [0.9, 0.9]}).status == "passed"
    assert calls(made)[before:] == ["judge 2 block 1", "confirm 2 block 2"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("RateLimited", "rate_limited"),
        ("AuthenticationFailed", "auth_error"),
        ("BudgetExhausted", "budget_exhausted"),
        ("ProviderUnavailable", "error"),
        ("NotUnderstood", "error"),
    ],
)
def test_what_a_provider_refuses_has_a_status_of_its_own_and_can_go_on(
    session: Made, run: Run, error: str, expected: str
) -> None:
    made = session(max_iterations=1)
    result = run(made, raises={"write_reward": [error]})
    assert result.status == status(made) == expected
    assert result.message == f"planned: {error}"
    # The judge was written side by side: its answer is kept.
    assert made.judge.read() is not None
    assert run(made).status == "max_iterations"
    assert calls(made).count("write_judge upright") == calls(made).count("elicit") == 1


def test_out_of_time_a_session_keeps_what_it_has_and_goes_on_with_more(
    session: Made, run: Run
) -> None:
    made = session(max_iterations=1)
    assert run(made, scores={"1": [0.6, 0.6]}).status == "max_iterations"
    before = calls(made)
    open_config(
        made, ResumeOptions(max_iterations=2, max_minutes=(read_worked_seconds(made) + 1.5) / 60)
    )
    result = run(made, resume=True, slow=120.0)
    assert result.status == status(made) == "time_exhausted"
    assert (result.best_iteration, result.score, result.iterations) == (1, 0.6, 1)
    assert result.policy is not None
    assert calls(made) == [*before, "revise 1"]
    assert not made.iteration(2).path.exists()
    told = made.read_status()
    assert told is not None
    assert told.error == result.message
    assert f"`p2p resume {made.path}` gives it as much again" in result.message
    assert "out of time" in made.report_path.read_text()
    last = read_events(made.events_path, limit=1000)[-1]
    assert (last.event, last.data["message"]) == ("session.ended", result.message)
    # The time that it took is taken: nothing more is asked.
    assert run(made, resume=True).status == "time_exhausted"
    assert calls(made) == [*before, "revise 1"]
    open_config(made, ResumeOptions(max_minutes=60))
    assert run(made, resume=True, scores={"2": [0.9, 0.9]}).status == "passed"
    assert made.validate() == []


@pytest.mark.parametrize(
    ("ask", "expected"),
    [(StopSwitch.stop_for_time, "time_exhausted"), (StopSwitch.ask, "cancelled")],
)
def test_what_an_interruption_made_fail_is_no_fault(
    session: Made, ask: Callable[[StopSwitch], None], expected: str
) -> None:
    made = session(max_minutes=60)
    context = context_of(made, {})

    def imported(*_: object) -> Intent:
        try:
            ask(context.switch)
            threading.Event().wait(60)
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error
        raise AssertionError("nobody interrupted it")

    context.agents.elicit = imported  # type: ignore[method-assign]
    result = run_loop(context)
    assert result.status == status(made) == expected
    assert "initialization" not in result.message


def test_a_user_who_edits_the_criteria_takes_none_of_the_time(session: Made, trained: Path) -> None:
    made = session(max_iterations=1, max_minutes=1 / 60)

    def edited(intent: Intent) -> Intent:
        time.sleep(2.0)
        feedback(made, pause=True)
        return intent

    assert run_loop(replace(context_of(made, {}, trained), review_intent=edited)).status == "paused"
    assert read_worked_seconds(made) < 2.0
    shown = made.intent.read()
    assert shown is not None
    assert shown.final  # what a user has accepted, nobody rewrites


def test_a_fault_of_ours_is_an_error_with_its_trace_kept_and_raised(
    session: Made, run: Run
) -> None:
    made = session()
    context = context_of(made, {})

    def stumble(*_: object) -> None:
        raise ZeroDivisionError("by hand")

    context.agents.elicit = stumble  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        run_loop(context)
    found = made.read_status()
    assert found is not None
    assert (found.status, found.error) == ("error", "ZeroDivisionError: by hand")
    assert '"session.traceback"' in made.events_path.read_text()
    assert "in stumble" in made.events_path.read_text()


# --- steering -------------------------------------------------------------------------------------


def test_feedback_to_pause_ends_the_process_after_the_iteration_and_resuming_lifts_it(
    session: Made, run: Run
) -> None:
    made = session(max_iterations=2)
    feedback(made, pause=True)
    feedback(made, remark="first of all: slowly")
    assert run(made).status == status(made) == "paused"
    assert calls(made) == ["elicit"]
    feedback(made, pause=True)
    assert run(made).status == "max_iterations"
    assert made.iteration(1).steering.read() is None


def test_the_first_iteration_trains_as_the_task_needs_it_unless_the_user_says_how(
    session: Made, run: Run
) -> None:
    made = session(max_iterations=1, gamma=0.9)
    run(made, training={"training_horizon": 15, "gamma": 0.5, "seed": 3})
    plan = made.iteration(1).plan.read()
    assert plan is not None
    assert (plan.train.training_horizon, plan.train.gamma) == (15, 0.9)
    assert plan.hp_changes == {"training_horizon": 15}
    assert any("gamma is fixed" in note for note in plan.notes)


def test_what_an_algorithm_has_as_usual_was_not_chosen_by_the_user(
    tmp_path: Path, run: Run
) -> None:
    usual = quick_config(TINY.env_id, algorithm="sac").learning_rate
    train = TINY.with_updates(algorithm="sac", learning_rate=usual)
    loop = loop_config(TINY.env_id, train=train, videos=False, max_iterations=1)
    made = create_session("balance the pole", loop, session_id="session_a", runs_dir=tmp_path)
    run(made, training={"learning_rate": 1e-4})
    plan = made.iteration(1).plan.read()
    assert plan is not None
    assert plan.hp_changes == {"learning_rate": 1e-4}


def test_a_warm_start_lays_the_judged_policy_into_the_next_runs(session: Made, run: Run) -> None:
    made = session(max_iterations=2, seeds=(1, 2))
    run(made, warm_start=True)
    plan = made.iteration(2).plan.read()
    best = made.iteration(1).best_run.read()
    assert plan is not None
    assert best is not None
    source = made.path / plan.start_policy
    assert source.parent.name == f"step_{best.step}"
    assert f"iter_1/{best.run_id}/" in plan.start_policy
    for each in made.iteration(2).runs():
        assert each.start_policy_path.read_bytes() == source.read_bytes()
    assert not any(each.start_policy_path.exists() for each in made.iteration(1).runs())


@pytest.mark.parametrize(
    ("options", "script", "why"),
    [
        ({}, {"hp_changes": {"net_arch": (8,)}}, "its network or observation differs"),
        ({"backend": "sb3"}, {}, "only PPO and SAC of the fast backend"),
        ({"algorithm": "sac"}, {}, "the state of its training is gone"),
    ],
)
def test_a_warm_start_that_cannot_be_is_noted_and_training_starts_anew(
    session: Made, run: Run, options: dict[str, Any], script: dict[str, Any], why: str
) -> None:
    made = session(max_iterations=2, **options)
    run(made, warm_start=True, **script)
    plan = made.iteration(2).plan.read()
    assert plan is not None
    assert plan.start_policy == ""
    assert any(why in note for note in plan.notes)


def test_a_policy_to_start_from_that_is_gone_ends_the_session_with_its_name(
    session: Made, trained: Path
) -> None:
    context = context_of(session(), {}, trained)
    with pytest.raises(
        TrainingUnavailable, match=r"cannot start from iter_1/none.safetensors: .*No such"
    ):
        place_start(context, "iter_1/none.safetensors", [], reward(1.0))


SAC = {"algorithm": "sac", "replay_batch_size": 16, "replay_size": 10_000, "net_arch": (8,)}


def test_sac_continues_its_training_with_the_same_reward_and_settings(tmp_path: Path) -> None:
    loop = loop_config(TINY.env_id, train=TINY.with_updates(**SAC), videos=False, max_iterations=2)
    made = create_session("balance the pole", loop, session_id="session_a", runs_dir=tmp_path)
    script = {"reward_code": reward(1.0), "hp_changes": {"total_timesteps": 1024}}
    context = context_of(made, {"raises": {"revise 1": ["RateLimited"]}})
    assert run_loop(context).status == "rate_limited"
    config = made.iteration(1).runs()[0].config.read()
    assert config is not None
    with pytest.raises(ValueError, match="rewards of another reward function"):
        start_of(context, 1, config, reward(2.0))
    with pytest.raises(ValueError, match="the same settings, not gamma"):
        start_of(context, 1, config.with_updates(gamma=0.9), reward(1.0))
    result = run_loop(context_of(made, {"warm_start": True, **script}), resume=True)
    assert result.status == "max_iterations"
    plan = made.iteration(2).plan.read()
    assert plan is not None
    assert plan.start_policy == "iter_1/base_seed_1/work/resume.safetensors"
    first, second = (made.iteration(number).runs()[0] for number in (1, 2))
    steps = [row["global_step"] for row in second.parse_scalars()[0]]
    assert steps == [*range(384, 1025, 128)]
    summary = second.read_summary()
    assert summary is not None
    assert summary.algorithm == "sac"
    assert not first.work_dir.exists()
    assert not second.work_dir.exists()


def test_a_users_own_criteria_are_trained_for_as_the_prompt_needs_it(
    tmp_path: Path, run: Run
) -> None:
    loop = loop_config(TINY.env_id, train=TINY, videos=False, max_iterations=1)
    prompt = "balance the pole, then move the cart to the right"
    made = create_session(
        prompt, loop, session_id="session_a", runs_dir=tmp_path, criteria=[criterion()]
    )
    run(made)
    plan = made.iteration(1).plan.read()
    assert plan is not None
    assert plan.train.observe_time
    assert plan.train.total_timesteps == TINY.total_timesteps  # which somebody has chosen


def test_feedback_between_iterations_reaches_the_next_one(session: Made, run: Run) -> None:
    made = session(max_iterations=2, configs=1)
    assert run(made, scores={"1": [0.2, 0]}, raises={"revise 1": ["RateLimited"]}).status == (
        "rate_limited"
    )
    feedback(made, pause=True)
    assert run(made).status == "paused"
    feedback(made, remark="keep the cart in the middle", score=0.6)
    feedback(made, hp_changes={"learning_rate": 1e-4, "gamma": 7, "env_id": "Ant-v5"})
    feedback(made, criteria=(criterion("steady"), criterion("calm")))
    changes = {"learning_rate": 1e-3, "ent_coef": 0.01}
    result = run(made, hp_changes=changes, notes=["clip_coef\nclamped to 0.4"])
    assert result.status == "max_iterations"
    taken = made.iteration(1).steering.read()
    assert taken is not None
    assert (taken.orders, taken.score) == ((1, 2, 3, 4), 0.6)
    revision = made.iteration(1).revision.read()
    assert revision is not None
    assert revision.remarks_taken_up == "keep the cart in the middle"
    plan = made.iteration(2).plan.read()
    assert plan is not None
    assert (plan.train.learning_rate, plan.train.ent_coef, plan.train.gamma) == (1e-4, 0.01, 0.99)
    assert any("learning_rate is fixed" in note for note in plan.notes)
    assert any("gamma=7 refused" in note for note in plan.notes)
    report = made.report_path.read_text()
    assert "- changed because: more of it\n" in report
    assert "- remarks taken up: keep the cart in the middle\n" in report
    assert "- note: clip_coef clamped to 0.4\n" in report
    assert f"- note: {plan.notes[0]}\n" in report
    intent = made.intent.read()
    assert intent is not None
    assert [c.id for c in intent.criteria] == ["steady", "calm"]
    assert "write_judge steady,calm" in calls(made)
    judgment = made.iteration(2).read_judgment()
    assert judgment is not None
    assert [c.id for c in judgment.criteria] == ["steady", "calm"]
    # What was judged by other criteria does not compare.
    lineage = made.lineage.read()
    assert lineage is not None
    assert [node.score for node in lineage.nodes] == [None, 0.5]


def test_what_took_up_a_remark_on_a_pass_is_best_though_it_scores_no_higher(
    session: Made, run: Run
) -> None:
    unremarked = session("session_b", max_iterations=2)
    assert run(unremarked, scores={"1": [0.5, 0], "2": [0.5, 0]}).best_iteration == 1
    made = session(max_iterations=4)
    equal = {str(number): [0.9, 0.9] for number in range(1, 5)}
    assert run(made, scores=equal).best_iteration == 1
    for remark, newest in (("with the cart in the middle", 2), ("and slowly", 3)):
        feedback(made, remark=remark)
        result = run(made, resume=True, scores=equal)
        assert (result.status, result.best_iteration) == ("passed", newest)
        assert result.policy is not None
        assert result.policy.startswith(f"iter_{newest}/")
    feedback(made, remark="faster")
    assert run(made, resume=True, scores={"4": [0.7, 0.7]}).best_iteration == 3


def test_a_users_score_counts_instead_of_the_judges(session: Made, run: Run) -> None:
    made = session(max_iterations=2)
    assert run(made, feedback={"judge 1 block 1": [{"pause": True}]}).status == "paused"
    feedback(made, score=0.95)
    result = run(made)
    assert (result.status, result.score, result.best_iteration) == ("passed", 0.95, 1)
    assert "revise 1" not in calls(made)


def test_a_users_reward_is_trained_without_asking_anyone(session: Made, run: Run) -> None:
    made = session(max_iterations=2)
    feedback(made, pause=True)
    assert run(made).status == "paused"
    feedback(made, reward_code=reward(42.0))
    assert run(made, scores={"1": [0.9, 0.9], "2": [0.9, 0.9]}).status == "passed"
    assert made.iteration(1).read_reward_source() == reward(42.0)
    assert "write_reward" not in calls(made)


def test_a_pass_does_not_end_a_session_whose_user_wants_more(session: Made, run: Run) -> None:
    made = session(max_iterations=3)
    assert run(made, scores={"1": [0.9, 0.9]}).status == "passed"
    feedback(made, reward_code=reward(42.0))
    result = run(made, scores={"1": [0.9, 0.9], "2": [1.0, 1.0]})
    assert (result.status, result.best_iteration) == ("passed", 2)
    assert "revise 1" not in calls(made)
    assert made.iteration(2).read_reward_source() == reward(42.0)


def test_a_pass_stands_where_no_iteration_is_left_for_the_feedback_after_it(
    session: Made, run: Run
) -> None:
    made = session(max_iterations=1)
    assert run(made, scores={"1": [0.9, 0.9]}).status == "passed"
    feedback(made, remark="a little slower")
    asked = calls(made)
    result = run(made, resume=True)
    assert (result.status, status(made), result.best_iteration) == ("passed", "passed", 1)
    assert calls(made) == asked
    assert result.message.endswith(f"p2p resume {made.path} --iterations 2")
    # The command that is named does what the feedback asks for; a worse iteration takes nothing.
    open_config(made, ResumeOptions(max_iterations=2))
    result = run(made, resume=True, scores={"2": [0.4, 0]})
    assert (result.status, result.best_iteration, result.iterations) == ("passed", 1, 2)
    assert "revise 1" in calls(made)
    assert "no pass within 2 iterations" in result.message


def test_what_a_judge_writes_makes_no_links_or_pictures_in_the_report(
    session: Made, run: Run
) -> None:
    made = session(prompt="stand ![x](http://x.test/a.png) <img src=x> \x1b]0;x\x07")
    run(made)
    report = made.report_path.read_text()
    assert r"!\[x\](http://x.test/a.png) \<img src=x>" in report
    assert "\x1b" not in report


def test_what_no_criterion_measures_stands_beside_the_verdict_until_the_user_writes_the_criteria(
    session: Made, run: Run
) -> None:
    made = session()
    intent = Intent(
        prompt="balance gladly", env_id=TINY.env_id, criteria=(criterion("up"),), author="test",
        unused_words=("gladly",),
    )  # fmt: skip
    made.intent.save(intent)
    first = run(made, scores={"1": [0.9, 0.9]})
    assert (first.status, first.unchecked_words) == ("unverified", ("gladly",))
    assert first.message.endswith("no criterion measures: gladly")
    assert "- **not checked**: gladly" in made.report_path.read_text()
    feedback(made, remark="higher", criteria=(criterion("high"),))
    result = run(made, scores={"1": [0.9, 0.9], "2": [1.0, 1.0]})
    assert (result.status, result.unchecked_words) == ("passed", ())


def test_what_the_arbiter_finds_amends_the_judge_of_later_iterations_and_is_kept(
    session: Made, run: Run
) -> None:
    made = session(max_iterations=2)
    found = {"1": ["upright: a pole that lies still is not up"]}
    assert run(made, amendments=found).status == "max_iterations"
    assert made.iteration(1).amendment.load() == JudgeAmendment(findings=tuple(found["1"]))
    written = [call for call in calls(made) if call.startswith("write_judge")]
    assert written == [
        "write_judge upright",
        "write_judge upright amended: upright: a pole that lies still is not up",
    ]
    assert made.iteration(2).judge.read() == made.judge.read()
    assert "the judge is amended for later iterations: upright" in made.report_path.read_text()
    # Resumed with more iterations, it is neither forgotten nor written again.
    open_config(made, ResumeOptions(max_iterations=3))
    run(made)
    assert [call for call in calls(made) if call.startswith("write_judge")] == written


def test_an_amended_judge_that_does_not_run_leaves_the_one_before(session: Made, run: Run) -> None:
    made = session(max_iterations=2)
    run(made, amendments={"1": ["upright: wrong"]}, bad_judges_from=2)
    judge = made.iteration(2).judge.read()
    assert judge is not None
    assert judge.valid
