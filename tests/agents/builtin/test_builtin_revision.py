"""Revisions by rule: what is changed after an iteration, and that there is always something new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from p2p.agents.builtin import answer
from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.revise import revise
from p2p.agents.builtin.reward import Recipe, read_recipe, write_reward
from p2p.agents.requests import IntentRequest, PastIteration, ReviseRequest, RewardRequest
from p2p.agents.revise_agent import revise as revise_session
from p2p.agents.revise_tool_dispatch import tunable_settings
from p2p.agents.reward_source import reward_digest
from p2p.config import TrainConfig
from p2p.contracts import CriterionScore, Lesson, LessonCheck, Revision
from p2p.inference.llm_client import LLMClient
from p2p.records.iteration_record import IterationRecord
from p2p.training.hp_presets import quick_config
from session_folder import INTENT, TRAIN, SessionFolder, reward

ENV, PROMPT = "Hopper-v5", "hop forward"
CRITERIA = write_criteria(IntentRequest(prompt=PROMPT, env_id=ENV)).criteria
CODE = write_reward(RewardRequest(prompt=PROMPT, env_id=ENV, criteria=CRITERIA)).code
OURS = write_reward(
    RewardRequest(prompt=INTENT.prompt, env_id=INTENT.env_id, criteria=INTENT.criteria)
).code
TUNABLE = quick_config(ENV, log_std_init=-1.0).model_dump(
    include={"total_timesteps", "learning_rate", "gamma", "ent_coef", "log_std_init"}
)
FAILED = -1.0
"""In place of a score: the training failed."""


# --- one request ----------------------------------------------------------------------------------


def past(iteration: int, score: float, parent: int | None = None, **fields: Any) -> PastIteration:
    return PastIteration(
        iteration=iteration, parent=parent, score=score, final_return=1.0, **fields
    )


def request(scores: dict[str, float] | None = None, **changes: Any) -> ReviseRequest:
    all_scores = {c.id: 1.0 for c in CRITERIA} | (scores or {})
    fields: dict[str, Any] = {
        "prompt": PROMPT,
        "env_id": ENV,
        "criteria": CRITERIA,
        "iteration": 1,
        "best_iteration": 1,
        "reward_code": CODE,
        "score": min(all_scores.values()),
        "pass_threshold": 0.8,
        "criterion_scores": tuple(CriterionScore(id=n, score=s) for n, s in all_scores.items()),
        "failure_tags": (),
        "diagnosis": "",
        "dynamics": "",
        "hyperparameters": TUNABLE,
        "history": (past(1, 0.5),),
        **changes,
    }
    return ReviseRequest.model_validate(fields)


def recipe_of(code: str) -> Recipe:
    recipe = read_recipe(code)
    assert recipe is not None
    return recipe


def weights(code: str) -> dict[str, float]:
    return {term.name: term.weight for term in recipe_of(code).terms}


FELL = ("early_end", "fell")
SITUATIONS: dict[str, tuple[Any, ...]] = {
    "nearly met": ({"goes_forward": 0.6}, {"still_improving": True}, "train_longer",
                   {"total_timesteps"}, {"forward_speed"}, set()),
    "it falls": ({"does_not_fall": 0.2}, {"failure_tags": FELL}, "stay_up",
                 {"gamma"}, {"alive", "tilt"}, set()),
    "a rare fall is not what is fixed first": (
        {"goes_up_and_down": 0.2}, {"failure_tags": FELL}, "style", set(), {"bounce"}, set()),
    "nothing moves": ({"goes_forward": 0.0}, {"failure_tags": ("no_motion",)}, "explore",
                      {"log_std_init"}, set(), {"effort"}),
    "only the style is missing": (
        {"does_not_shake": 0.3}, {}, "style", set(), {"effort"}, set()),
    "all is fixed": ({"goes_forward": 0.4}, {"still_improving": True, "fixed": tuple(TUNABLE)},
                     "train_longer", set(), {"forward_speed"}, set()),
}  # fmt: skip
"""Scores and fields of the request; the rule, settings, and heavier and lighter terms."""


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_what_went_wrong_decides_what_is_changed(situation) -> None:
    scores, fields, rule, changed, heavier, lighter = situation
    proposal = revise(request(scores, **fields))
    before, after = weights(CODE), weights(proposal.reward_code)
    assert proposal.rule == rule
    assert set(proposal.hp_changes) == changed
    assert proposal.warm_start == (rule == "train_longer")
    assert heavier <= {name for name in before if after[name] > before[name]}
    assert lighter <= {name for name in before if after[name] < before[name]}
    for name in {"forward_speed", "tilt"} - heavier - lighter:
        assert after[name] == before[name] or rule == "explore"
    if "total_timesteps" in changed:
        assert proposal.hp_changes["total_timesteps"] == 2 * TUNABLE["total_timesteps"]
        assert "Goes forward" in proposal.diagnosis


def test_sac_continues_what_still_rises_with_the_very_same_reward() -> None:
    sac = {**TUNABLE, "replay_batch_size": 256}
    fields = {"failure_tags": FELL, "still_improving": True, "hyperparameters": sac}
    proposal = revise(request({"does_not_fall": 0.2}, **fields))
    assert (proposal.rule, proposal.warm_start) == ("train_longer", True)
    assert proposal.reward_code == CODE
    assert proposal.hp_changes == {"total_timesteps": 2 * TUNABLE["total_timesteps"]}


def test_it_goes_back_to_the_best_when_the_last_was_worse() -> None:
    worse = CODE.replace("Hop forward", "Something else")
    history = (past(1, 0.7), past(2, 0.3, 1, changes="alive 1 to 9"))
    proposal = revise(
        request({"goes_forward": 0.3}, iteration=2, best_iteration=1, reward_code=worse,
                best_reward_code=CODE, history=history)
    )  # fmt: skip
    assert proposal.based_on == 1
    assert "Something else" not in proposal.reward_code
    assert "hurt" in proposal.lesson


def test_the_history_is_data_and_its_words_decide_nothing() -> None:
    """A number in somebody's words is no setting, and a reason in words no rule."""
    words = "total_timesteps from 100 to 300; weigh the task more: it is missing"
    settings = {"total_timesteps": 2 * TUNABLE["total_timesteps"]}
    fields = {"iteration": 2, "best_iteration": 1, "reward_code": CODE, "best_reward_code": CODE,
              "hyperparameters": TUNABLE | settings, "score": 0.2}  # fmt: skip
    differs = {"total_timesteps": TUNABLE["total_timesteps"]}
    plain, worded = (
        revise(
            request({"goes_forward": 0.2}, **fields,
                    history=(past(1, 0.6, hyperparameters=differs), past(2, 0.2, 1, changes=text)))
        )
        for text in ("", words)
    )  # fmt: skip
    assert plain.model_copy(update={"lesson": worded.lesson}) == worded
    tried = revise(
        request({"goes_forward": 0.2}, **fields,
                history=(past(1, 0.6, hyperparameters=differs), past(2, 0.2, 1, rule=plain.rule)))
    )  # fmt: skip
    assert tried.rule != plain.rule


@pytest.mark.parametrize(
    ("remark", "term", "attribute"),
    [("make it faster", "forward_speed", "target"), ("smoother please", "effort", "weight")],
)
def test_remarks_are_taken_up(remark: str, term: str, attribute: str) -> None:
    proposal = revise(request({"goes_forward": 0.9}, remarks=(remark,)))
    after, before = (
        next(getattr(t, attribute) for t in recipe_of(code).terms if t.name == term)
        for code in (proposal.reward_code, CODE)
    )
    assert after > before
    assert proposal.remarks_taken_up


def test_a_remark_may_ask_for_something_new_or_be_beyond_us() -> None:
    terms = recipe_of(revise(request(remarks=("crouch low",))).reward_code).terms
    assert any(t.quantity == "height" and t.shape in ("under", "near") for t in terms)
    assert len({term.name for term in terms}) == len(terms)
    beyond = revise(request({"goes_forward": 0.3}, remarks=("more pizzazz",)))
    assert "pizzazz" in beyond.remarks_taken_up


def test_what_could_not_be_trained_is_made_simpler() -> None:
    proposal = revise(
        request(training_error="it diverged", trained=False, score=None, best_iteration=None)
    )
    assert set(weights(proposal.reward_code)) == {"forward_speed", "alive"}
    assert proposal.hp_changes["learning_rate"] < TUNABLE["learning_rate"]
    assert "it diverged" in proposal.diagnosis


# --- whole sessions -------------------------------------------------------------------------------


@dataclass
class Course:
    """A session that does what each revision says, and gets these scores for it."""

    folder: SessionFolder
    trained: list[tuple[str, TrainConfig]] = field(default_factory=list)
    revisions: list[Revision] = field(default_factory=list)

    @property
    def steps(self) -> list[int]:
        return [config.total_timesteps for _, config in self.trained]

    def distinct(self) -> bool:
        """Whether every iteration was another."""
        seen = {
            (reward_digest(code), str(tunable_settings(config))) for code, config in self.trained
        }
        return len(seen) == len(self.trained)


def run(
    path: Path,
    scores: Sequence[float | None],
    *,
    code: str = OURS,
    remark: str = "",
    lessons: Sequence[Lesson] = (),
    **loop: object,
) -> Course:
    """The session, with a revision after every score; raises what a session would end with."""
    course = Course(SessionFolder.create(path, **loop))
    client = LLMClient("builtin", folder=path / "llm", builtin=answer)
    train, parent, changes, rule = TRAIN, None, "", ""
    for number, score in enumerate(scores, start=1):
        failed = score == FAILED
        record = course.folder.iterate(
            number, None if failed else score, code=code, train=train, parent=parent,
            changes=changes, rule=rule,
        )  # fmt: skip
        if failed:
            IterationRecord(record.path / "base_seed_1").set_status("failed", "it diverged")
        if number == 1 and lessons:
            lineage = course.folder.view().lineage
            for lesson in lessons:
                lineage = lineage.learn(lesson)
            course.folder.save_lineage(lineage)
        if remark:
            course.folder.remark(number, remark)
        course.trained.append((code, train))
        revision = revise_session(client, course.folder.view(), number)
        course.revisions.append(revision)
        code, parent = revision.reward_code, revision.based_on
        changes, rule = revision.changes, revision.rule
        train, notes = course.trained[parent - 1][1].apply_updates(revision.hp_changes)
        assert notes == []
    course.trained.append((code, train))
    return course


DROPS = [0.4, 0.3, 0.3, None, FAILED]
NO_TUNING, STEPS_FIXED = {"hp_tuning": False}, {"fixed": ("total_timesteps", "gamma")}


@settings(max_examples=5, deadline=None, derandomize=True)
@example(scores=[0.4] * 10, code=OURS, remark="", loop={})
@example(scores=[0.4, 0.5, 0.6, 0.5], code=OURS, remark="", loop={})
@example(scores=[None] * 4, code=OURS, remark="", loop={})
@example(scores=[0.4, FAILED, FAILED, 0.3, FAILED], code=OURS, remark="", loop={})
@example(scores=DROPS, code=OURS, remark="", loop=NO_TUNING)
@example(scores=DROPS, code=OURS, remark="do not jump", loop=STEPS_FIXED)
@example(scores=DROPS, code=reward(1), remark="do not jump", loop=STEPS_FIXED)
@given(
    scores=st.lists(
        st.sampled_from([0.0, 0.3, 0.4, 0.5, 0.7, None, FAILED]), min_size=2, max_size=8
    ),
    code=st.sampled_from([OURS, reward(1)]),
    remark=st.sampled_from(["", "do not jump", "smoother please", "more pizzazz"]),
    loop=st.sampled_from([{}, NO_TUNING, STEPS_FIXED]),
)
def test_whatever_the_scores_the_next_step_is_new(tmp_path_factory, scores, code, remark, loop):
    course = run(tmp_path_factory.mktemp("s"), scores, code=code, remark=remark, **loop)
    assert course.distinct()
    assert max(course.steps) <= 4 * TRAIN.total_timesteps
    assert all(revision.changes for revision in course.revisions)
    assert all(bool(revision.remarks_taken_up) == bool(remark) for revision in course.revisions)
    if loop:
        assert set(course.steps) == {TRAIN.total_timesteps}
    if loop is NO_TUNING:
        assert all(not revision.hp_changes for revision in course.revisions)


def test_a_persons_code_stays_while_there_is_anything_else_to_change(tmp_path):
    course = run(tmp_path, [0.4], code=reward(1))
    assert course.revisions[0].reward_code == reward(1)
    bound = run(tmp_path / "bound", [0.4, 0.3, 0.3], code=reward(1), hp_tuning=False)
    assert bound.revisions[0].rule == "rewrite"
    assert bound.distinct()


def test_after_a_drop_the_best_is_changed_by_another_rule(tmp_path):
    course = run(tmp_path, [0.5, 0.3, 0.3, 0.4, 0.4])
    assert [revision.based_on for revision in course.revisions[1:]] == [1] * 4
    assert course.revisions[1].changes.startswith("back to iteration 1; ")
    assert len({revision.rule for revision in course.revisions[:3]}) == 3
    for revision in course.revisions:
        before = tunable_settings(course.trained[revision.based_on - 1][1])
        for name, value in revision.hp_changes.items():
            assert f"{name} {before[name]} to {value}" in revision.changes


def test_what_nobody_judged_is_done_again_nearly_as_it_was(tmp_path):
    course = run(tmp_path, [0.4, None, None, None])
    for revision in course.revisions[1:]:
        before = weights(course.trained[revision.based_on - 1][0])
        assert weights(revision.reward_code) == pytest.approx(before, rel=0.1)
        assert revision.hp_changes == {}
        assert revision.rule == "repeat"
    assert [revision.based_on for revision in course.revisions[1:]] == [2, 1, 1]


def test_a_training_that_failed_leads_to_a_simpler_reward(tmp_path):
    course = run(tmp_path, [0.4, FAILED, FAILED, FAILED])
    assert list(weights(course.revisions[1].reward_code)) == ["forward_speed", "alive"]
    rates = {config.learning_rate for _, config in course.trained}
    assert min(rates) == TRAIN.learning_rate / 2


def hard(kind: str, name: str, value: float | None = None) -> Lesson:
    check = LessonCheck(kind=kind, name=name, value=value)  # type: ignore[arg-type]
    return Lesson(text=f"{kind} {name}", tier="HARD", learned_at=1, check=check)


def test_hard_lessons_are_kept_to(tmp_path):
    lessons = [
        hard("term_forbidden", "tilt"),
        hard("term_required", "forward_speed"),
        hard("hyperparameter_at_most", "total_timesteps", 150_000),
        hard("hyperparameter_at_most", "gamma", 0.98),
    ]
    course = run(tmp_path, [0.4, 0.5, 0.3, 0.4], lessons=lessons)
    for code, config in course.trained[1:]:
        assert list(weights(code)) == ["forward_speed", "alive"]
        assert config.total_timesteps <= 150_000
        assert config.gamma == 0.98
    tiers = {lesson.tier for lesson in course.revisions[-1].lessons if lesson.check}
    assert tiers == {"HARD"}


def test_a_hard_lesson_that_no_reward_here_can_keep_to_is_not_hard_any_more(tmp_path):
    course = run(tmp_path, [0.4, 0.4], lessons=[hard("term_required", "grace")])
    assert course.distinct()
    (lesson,) = [lesson for lesson in course.revisions[0].lessons if lesson.check]
    assert lesson.tier == "STRONG"
    assert "built-in author" in lesson.reason
