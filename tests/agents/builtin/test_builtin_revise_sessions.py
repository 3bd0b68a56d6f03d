"""Whole sessions of revisions by rule: there is always something new to try, and it is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.agents.builtin import answer
from p2p.agents.builtin.reward import read_recipe, write_reward
from p2p.agents.requests import RewardRequest
from p2p.agents.revise_agent import revise
from p2p.agents.reward_source import reward_digest
from p2p.agents.session_text import tunables
from p2p.config import TrainConfig
from p2p.contracts import Lesson, LessonCheck, Revision
from p2p.inference.llm_client import LLMClient
from p2p.records.iteration_record import IterationRecord
from session_folder import INTENT, TRAIN, SessionFolder, reward

OURS = write_reward(
    RewardRequest(prompt=INTENT.prompt, env_id=INTENT.env_id, criteria=INTENT.criteria)
).code
FAILED = -1.0
"""In place of a score: the training failed."""


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
        seen = {(reward_digest(code), str(tunables(config))) for code, config in self.trained}
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
    train, parent, changes = TRAIN, None, ""
    for number, score in enumerate(scores, start=1):
        failed = score == FAILED
        record = course.folder.iterate(
            number, None if failed else score, code=code, train=train, parent=parent,
            changes=changes,
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
        revision = revise(client, course.folder.view(), number)
        course.revisions.append(revision)
        code, parent, changes = revision.reward_code, revision.based_on, revision.changes
        train, notes = course.trained[parent - 1][1].apply_updates(revision.hp_changes)
        assert notes == []
    course.trained.append((code, train))
    return course


SEQUENCES: dict[str, list[float | None]] = {
    "constant": [0.4] * 10,
    "rises and drops": [0.4, 0.5, 0.6, 0.5],
    "drops": [0.4, 0.3, 0.3, 0.3, 0.3, 0.3],
    "unjudged": [0.4, None, None, None],
    "never judged": [None] * 4,
    "fails": [0.4, FAILED, FAILED, 0.3, FAILED],
}


@pytest.mark.parametrize("scores", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize(
    "loop",
    [{}, {"hp_tuning": False}, {"fixed": ("total_timesteps",)}],
    ids=["free", "no tuning", "steps fixed"],
)
def test_a_session_never_runs_out_of_things_to_try(tmp_path, scores, loop):
    course = run(tmp_path, scores, **loop)
    assert course.distinct()
    assert max(course.steps) <= 4 * TRAIN.total_timesteps
    if loop:
        assert set(course.steps) == {TRAIN.total_timesteps}
    if "hp_tuning" in loop:
        assert all(not revision.hp_changes for revision in course.revisions)


scores_seen = st.lists(
    st.sampled_from([0.0, 0.3, 0.4, 0.5, 0.7, None, FAILED]), min_size=2, max_size=10
)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    scores=scores_seen,
    code=st.sampled_from([OURS, reward(1)]),
    remark=st.sampled_from(["", "do not jump", "smoother please", "more pizzazz"]),
    loop=st.sampled_from([{}, {"hp_tuning": False}, {"fixed": ("total_timesteps", "gamma")}]),
)
def test_whatever_the_scores_the_next_step_is_new(tmp_path_factory, scores, code, remark, loop):
    course = run(tmp_path_factory.mktemp("s"), scores, code=code, remark=remark, **loop)
    assert course.distinct()
    assert max(course.steps) <= 4 * TRAIN.total_timesteps
    assert all(revision.changes for revision in course.revisions)


@pytest.mark.parametrize("code", [OURS, reward(1)], ids=["ours", "a person's"])
def test_a_remark_said_again_and_again_has_an_answer_each_time(tmp_path, code):
    course = run(tmp_path, [0.4, 0.3, 0.3, 0.3], code=code, remark="do not jump",
                 fixed=("total_timesteps",))  # fmt: skip
    assert course.distinct()
    assert all("jump" in revision.remarks_taken_up for revision in course.revisions)


def test_a_persons_code_stays_while_there_is_anything_else_to_change(tmp_path):
    course = run(tmp_path, [0.4], code=reward(1))
    assert course.revisions[0].reward_code == reward(1)
    bound = run(tmp_path / "bound", [0.4, 0.3, 0.3], code=reward(1), hp_tuning=False)
    assert "written anew" in bound.revisions[0].changes
    assert bound.distinct()


def test_after_a_drop_the_best_is_changed_for_another_reason(tmp_path):
    course = run(tmp_path, [0.5, 0.3, 0.3])
    first, second, third = course.revisions
    assert (second.based_on, third.based_on) == (1, 1)
    assert second.changes.startswith("back to iteration 1; ")
    reasons = [r.changes.partition("because")[2].partition(":")[0] for r in (first, second, third)]
    assert len(set(reasons)) == 3


def test_what_is_said_of_a_hyperparameter_is_true_also_on_the_way_back(tmp_path):
    course = run(tmp_path, [0.5, 0.4, 0.4, 0.4, 0.4, 0.4])
    for revision in course.revisions:
        before = tunables(course.trained[revision.based_on - 1][1])
        for name, value in revision.hp_changes.items():
            assert f"{name} {before[name]} to {value}" in revision.changes


def test_what_nobody_judged_is_done_again_nearly_as_it_was(tmp_path):
    course = run(tmp_path, [0.4, None, None, None])
    for revision in course.revisions[1:]:
        base = course.trained[revision.based_on - 1][0]
        before, after = (
            {term.name: term.weight for term in read_recipe(code).terms}
            for code in (base, revision.reward_code)
        )
        assert after == pytest.approx(before, rel=0.1)
        assert revision.hp_changes == {}
    again = course.revisions[1]
    assert again.based_on == 2
    assert "nobody could judge it" in again.changes
    assert [r.based_on for r in course.revisions[2:]] == [1, 1]


def test_a_training_that_failed_leads_to_a_simpler_reward(tmp_path):
    course = run(tmp_path, [0.4, FAILED, FAILED, FAILED])
    simpler = read_recipe(course.revisions[1].reward_code)
    assert [term.name for term in simpler.terms] == ["forward_speed"]
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
    course = run(tmp_path, [0.4, 0.5, 0.3, 0.3, 0.4], lessons=lessons)
    for code, config in course.trained[1:]:
        assert [term.name for term in read_recipe(code).terms] == ["forward_speed"]
        assert config.total_timesteps <= 150_000
        assert config.gamma == 0.98
    tiers = {lesson.tier for lesson in course.revisions[-1].lessons if lesson.check}
    assert tiers == {"HARD"}


def test_a_hard_lesson_that_no_reward_here_can_keep_to_is_not_hard_any_more(tmp_path):
    course = run(tmp_path, [0.4, 0.4], lessons=[hard("term_required", "grace")])
    assert course.distinct()
    (lesson,) = [found for found in course.revisions[0].lessons if found.check]
    assert lesson.tier == "STRONG"
    assert "built-in author" in lesson.reason
