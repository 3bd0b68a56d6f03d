"""Lessons: few, each once, and the HARD ones checked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.contracts import Lesson, LessonCheck
from p2p.session.lessons import MAX_ACTIVE, active, replaced, violations, with_lesson

CODE = 'def reward_fn(obs, action, next_obs, info):\n    return 1.0, {"alive": info["z"]}\n'

lessons = st.builds(
    Lesson,
    text=st.integers(0, 60).map("lesson {}".format),
    tier=st.sampled_from(["HARD", "STRONG", "SOFT", "RETIRED"]),
    learned_at=st.integers(1, 100),
)


@settings(deadline=None)
@given(st.lists(lessons, max_size=80))
def test_the_active_ones_stay_few_nothing_is_lost_and_nothing_stands_twice(new):
    kept: tuple[Lesson, ...] = ()
    for lesson in new:
        kept = with_lesson(kept, lesson)
        assert len(active(kept)) <= MAX_ACTIVE
    assert sorted(lesson.text for lesson in kept) == sorted({lesson.text for lesson in new})


def test_over_the_bound_the_oldest_of_the_weakest_gives_way():
    hard = tuple(Lesson(text=f"hard {n}", tier="HARD", learned_at=1) for n in range(MAX_ACTIVE))
    soft = tuple(Lesson(text=t, tier="SOFT", learned_at=n) for t, n in [("a", 5), ("b", 3)])
    new = Lesson(text="new", learned_at=9)
    kept = with_lesson((*hard[2:], *soft), new)
    assert [lesson.text for lesson in kept if lesson.tier == "RETIRED"] == ["b"]
    kept = with_lesson(hard, new)
    assert [lesson.text for lesson in kept if lesson.tier == "RETIRED"] == ["new"]


def test_the_same_words_are_one_lesson_and_a_number_makes_another():
    kept = with_lesson((), Lesson(text="A rate over 0.001 diverges.", tier="SOFT", learned_at=2))
    kept = with_lesson(kept, Lesson(text="a rate  over 0.001 diverges", learned_at=5))
    assert [(lesson.tier, lesson.learned_at) for lesson in kept] == [("STRONG", 2)]
    assert len(with_lesson(kept, Lesson(text="a rate over 0.003 diverges", learned_at=6))) == 2


def test_a_retired_lesson_that_is_learnt_again_comes_back():
    old = Lesson(text="x", tier="RETIRED", learned_at=1, reason="wrong")
    (again,) = with_lesson((old,), Lesson(text="x", learned_at=9))
    assert (again.tier, again.reason) == ("STRONG", "learnt again in iteration 9")


def test_a_place_counts_among_those_that_are_shown():
    a, b, c = (Lesson(text=t, learned_at=1) for t in "abc")
    retired = a.model_copy(update={"tier": "RETIRED"})
    assert replaced((retired, b), 0, c) == (retired, c)
    with pytest.raises(IndexError, match="no lesson 1; there are 1"):
        replaced((retired, b), 1, c)


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
