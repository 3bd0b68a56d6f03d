"""Lessons: few, each once, and the HARD ones checked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.agents.revise_checks import violations
from p2p.contracts import Lesson, LessonCheck, LineageData
from p2p.records.lineage import MAX_ACTIVE_LESSONS, Lineage

CODE = 'def reward_fn(obs, action, next_obs, info):\n    return 1.0, {"alive": info["z"]}\n'


def learn(*lessons: Lesson, known: tuple[Lesson, ...] = ()) -> Lineage:
    lineage = Lineage(LineageData(lessons=known))
    for lesson in lessons:
        lineage = lineage.learn(lesson)
    return lineage


LESSONS = st.builds(
    Lesson,
    text=st.integers(0, 60).map("lesson {}".format),
    tier=st.sampled_from(["HARD", "STRONG", "SOFT", "RETIRED"]),
    learned_at=st.integers(1, 100),
)


@settings(deadline=None)
@given(st.lists(LESSONS, max_size=80))
def test_the_active_ones_stay_few_nothing_is_lost_and_nothing_stands_twice(new):
    lineage = Lineage()
    for lesson in new:
        lineage = lineage.learn(lesson)
        assert len(lineage.active_lessons) <= MAX_ACTIVE_LESSONS
    kept = [lesson.text for lesson in lineage.data.lessons]
    assert sorted(kept) == sorted({lesson.text for lesson in new})


def test_over_the_bound_the_oldest_of_the_weakest_gives_way():
    hard = tuple(
        Lesson(text=f"hard {n}", tier="HARD", learned_at=1) for n in range(MAX_ACTIVE_LESSONS)
    )
    soft = tuple(Lesson(text=t, tier="SOFT", learned_at=n) for t, n in [("a", 5), ("b", 3)])
    new = Lesson(text="new", learned_at=9)
    for known, retired in (((*hard[2:], *soft), "b"), (hard, "new")):
        kept = learn(new, known=known).data.lessons
        assert [lesson.text for lesson in kept if lesson.tier == "RETIRED"] == [retired]


def test_the_same_words_are_one_lesson_and_a_number_makes_another():
    lineage = learn(
        Lesson(text="A rate over 0.001 diverges.", tier="SOFT", learned_at=2),
        Lesson(text="a rate  over 0.001 diverges", learned_at=5),
    )
    assert [(x.tier, x.learned_at) for x in lineage.data.lessons] == [("STRONG", 2)]
    other = lineage.learn(Lesson(text="a rate over 0.003 diverges", learned_at=6))
    assert len(other.data.lessons) == 2


def test_a_retired_lesson_that_is_learnt_again_comes_back():
    old = Lesson(text="x", tier="RETIRED", learned_at=1, reason="wrong")
    (again,) = learn(Lesson(text="x", learned_at=9), known=(old,)).data.lessons
    assert (again.tier, again.reason) == ("STRONG", "learnt again in iteration 9")


def test_a_place_counts_among_those_that_are_shown():
    a, b, c = (Lesson(text=t, learned_at=1) for t in "abc")
    retired = a.model_copy(update={"tier": "RETIRED"})
    lineage = learn(known=(retired, b))
    assert lineage.replace_lesson(0, c).data.lessons == (retired, c)
    with pytest.raises(IndexError, match="no lesson 1; there are 1"):
        lineage.replace_lesson(1, c)


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (("term_required", "alive", None), ""),
        (("term_required", "speed", None), "has no reward term `speed`"),
        (("term_required", "z", None), "has no reward term `z`"),
        (("term_forbidden", "alive", None), "has the reward term `alive`"),
        (("term_forbidden", "z", None), ""),
        (("code_forbidden", 'info["z"]', None), "in its code"),
        (("code_forbidden", "np.exp", None), ""),
        (("hyperparameter_at_most", "gamma", 0.9), "sets gamma=0.95, over 0.9"),
        (("hyperparameter_at_most", "gamma", 0.95), ""),
        (("hyperparameter_at_least", "gamma", 0.99), "sets gamma=0.95, under 0.99"),
        (("hyperparameter_at_least", "unheard_of", 0.99), ""),
        (("hyperparameter_at_least", "gamma", None), ""),
        (("hyperparameter_at_most", "net_arch", 3.0), ""),
    ],
)
def test_a_hard_lesson_is_held_against_a_proposal(check, broken):
    kind, name, value = check
    lesson = Lesson(
        text="told", tier="HARD", learned_at=1, check=LessonCheck(kind=kind, name=name, value=value)
    )
    hyperparameters = {"gamma": 0.95, "net_arch": [64, 64]}
    found = violations((lesson,), CODE, hyperparameters)
    assert bool(found) == bool(broken)
    assert all(broken in text and "told" in text for text in found)
    softer = lesson.model_copy(update={"tier": "STRONG"})
    assert violations((softer,), CODE, hyperparameters) == []
