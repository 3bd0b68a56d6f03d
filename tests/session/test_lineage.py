"""The tree of iterations, its file and its words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.agents.session_text import lineage_text
from p2p.contracts import Lesson, LineageNode
from p2p.files import UnreadableError
from p2p.records.lineage import Lineage


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
def test_the_best_is_judged_none_is_better_and_of_equals_it_is_the_first(lineage):
    best, judged = lineage.best, [n for n in lineage.data.nodes if n.score is not None]
    assert (best is None) == (not judged)
    if best is not None:
        assert all(
            (node.score, -node.iteration) <= (best.score, -best.iteration) for node in judged
        )
        assert lineage.since_best == sum(node.iteration > best.iteration for node in judged)


@settings(deadline=None, max_examples=50)
@given(trees())
def test_what_was_not_judged_teaches_nothing(lineage):
    assert not [node for node in lineage.data.nodes if node.score is None and node.lesson]


@settings(deadline=None, max_examples=50)
@given(trees(), st.randoms())
def test_the_order_of_adding_again_does_not_matter(lineage, random):
    nodes = list(lineage.data.nodes)
    random.shuffle(nodes)
    again = lineage
    for node in nodes:
        again = again.add(node)
    assert again == lineage


@settings(deadline=None, max_examples=50)
@given(trees())
def test_the_words_are_bounded_and_name_the_best(lineage):
    text = lineage_text(lineage)
    assert len(text) < 16_000
    if lineage.best is not None:
        assert f"*{lineage.best.iteration} (" in text


def test_a_long_history_is_shortened_but_keeps_its_best():
    lineage = Lineage()
    for number in range(1, 301):
        lineage = lineage.add(LineageNode(iteration=number, score=0.9 if number == 3 else 0.1))
    text = lineage_text(lineage)
    assert "*3 (new): score 0.900" in text
    assert "(249 earlier iterations left out)" in text
    assert len(text) < 16_000


def test_parents_must_be_there_and_come_before():
    lineage = Lineage().add(LineageNode(iteration=1))
    with pytest.raises(ValueError, match="iteration 2 comes from 7, which is none"):
        lineage.add(LineageNode(iteration=2, parent=7))
    with pytest.raises(ValueError, match="cannot come from 1"):
        lineage.add(LineageNode(iteration=1, parent=1))


def test_it_reads_back_as_it_was(tmp_path):
    path = tmp_path / "lineage.json"
    assert Lineage.load(path) == Lineage()
    lineage = Lineage().add(LineageNode(iteration=1, score=0.5, hp_changes={"net_arch": [8, 8]}))
    lineage = lineage.learn(Lesson(text="höher", learned_at=1))
    lineage.save(path)
    assert Lineage.load(path) == lineage


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"nodes": [', "not JSON"),
        ("[]", "not a JSON object"),
        ('{"iterations": {}}', "iterations: Extra inputs"),
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
