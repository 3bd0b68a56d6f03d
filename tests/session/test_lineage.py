"""The tree of iterations: its file, its words, and its lessons, of which the HARD are checked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.agents.revise_tool_dispatch import lineage_text
from p2p.agents.reward_source import find_breaches
from p2p.contracts import Lesson, LessonCheck, LineageData, LineageNode
from p2p.files import UnreadableError
from p2p.records.lineage import MAX_ACTIVE_LESSONS, Lineage


@st.composite
def trees(draw: st.DrawFn) -> Lineage:
    """Iterations 1 to n, each from an earlier one, some not judged."""
    lineage = Lineage()
    for number in range(1, draw(st.integers(1, 20)) + 1):
        parent = draw(st.integers(1, number - 1)) if number > 1 else None
        score = draw(st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1))
        node = LineageNode(
            iteration=number,
            parent=parent,
            score=score,
            lesson=draw(st.text(max_size=50)),
            diagnosis=draw(st.integers(0, 3000).map("ä ".__mul__)),
            changes=draw(st.integers(0, 3000).map("b ".__mul__)),
            failure_tags=tuple(draw(st.lists(st.sampled_from(["fell", "jerky"]), max_size=2))),
        )
        lineage = lineage.add(node)
    return lineage


@settings(deadline=None, max_examples=50)
@given(trees())
def test_the_best_is_the_first_of_the_highest_and_what_was_not_judged_teaches_nothing(lineage):
    assert not [node for node in lineage.data.nodes if node.score is None and node.lesson]
    best, judged = lineage.best, [n for n in lineage.data.nodes if n.score is not None]
    assert (best is None) == (not judged)
    if best is not None:
        assert all(
            (node.score, -node.iteration) <= (best.score, -best.iteration) for node in judged
        )
        assert lineage.since_best == sum(node.iteration > best.iteration for node in judged)


@settings(deadline=None, max_examples=50)
@given(trees(), st.randoms())
def test_the_order_of_adding_again_does_not_matter(lineage, random):
    nodes = list(lineage.data.nodes)
    random.shuffle(nodes)
    again = lineage
    for node in nodes:
        again = again.add(node)
    assert again == lineage


def test_a_long_history_is_shortened_but_keeps_its_best():
    lineage = Lineage()
    for number in range(1, 301):
        lineage = lineage.add(LineageNode(iteration=number, score=0.9 if number == 3 else 0.1))
    text = lineage_text(lineage)
    assert "*3 (new): score 0.90" in text
    assert "(249 earlier iterations left out)" in text
    assert len(text) < 16_000


def test_parents_must_be_there_and_come_before():
    lineage = Lineage().add(LineageNode(iteration=1))
    with pytest.raises(ValueError, match="iteration 2 comes from 7, which is none"):
        lineage.add(LineageNode(iteration=2, parent=7))
    with pytest.raises(ValueError, match="cannot come from 1"):
        lineage.add(LineageNode(iteration=1, parent=1))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"nodes": [', "not JSON"),
        ("[]", "not a JSON object"),
        ('{"iterations": {}}', "iterations: no such field"),
        ('{"nodes": [{"iteration": 1}, {"iteration": 1}]}', "iteration 1 twice"),
        (
            '{"nodes": [{"iteration": 1, "parent": 2}, {"iteration": 2, "parent": 1}]}',
            "cannot come",
        ),
        ('{"nodes": [{"iteration": 1, "score": 1.5}]}', "nodes.0.score"),
    ],
)
def test_a_torn_or_foreign_file_is_reported_by_its_name(tmp_path, text, complaint):
    path = tmp_path / "lineage.json"
    path.write_text(text)
    with pytest.raises(UnreadableError, match=complaint) as raised:
        Lineage.load(path)
    assert str(path) in str(raised.value)


# --- lessons ----------------------------------------------------------------------------------

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
    found = find_breaches((lesson,), CODE, hyperparameters)
    assert bool(found) == bool(broken)
    assert all(broken in text and "told" in text for text in found)
    softer = lesson.model_copy(update={"tier": "STRONG"})
    assert find_breaches((softer,), CODE, hyperparameters) == []
