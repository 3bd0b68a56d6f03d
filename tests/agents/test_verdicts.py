"""Two judges, several episodes, one judgement: the sums."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from scripted_client import criterion

from p2p.agents.verdicts import (
    JudgedEpisode,
    Verdict,
    agree,
    agreement,
    apply_shifts,
    code_opinion,
    mean_shifts,
    merge_opinions,
    split_tags,
    sum_up,
    task_score,
    verdict_of_one,
    weighted_score,
)
from p2p.contracts import Criterion, CriterionScore, JudgeName, JudgeOpinion, JudgmentResult

CRITERIA = (criterion("go", weight=0.6), criterion("calm", "efficiency", weight=0.2))


def opinion(judge: JudgeName, go: float | None, calm: float | None, *tags: str) -> JudgeOpinion:
    scores = (CriterionScore(id="go", score=go), CriterionScore(id="calm", score=calm))
    return JudgeOpinion(
        judge=judge,
        available=True,
        score=weighted_score(scores, CRITERIA),
        criteria=scores,
        diagnosis=f"{judge} says",
        failure_tags=tags,
    )


def episode(number: int, code: JudgeOpinion) -> JudgedEpisode:
    verdict = verdict_of_one(code, alone=True) if code.available else None
    return JudgedEpisode(f"seed_{number}", number, Path("x.npz"), {}, code=code, verdict=verdict)


def episodes(*scores: tuple[float | None, float | None] | None) -> list[JudgedEpisode]:
    bad = JudgeOpinion(judge="code", available=False, reason="it hangs")
    codes = [bad if pair is None else opinion("code", *pair) for pair in scores]
    return [episode(number, code) for number, code in enumerate(codes)]


def judged(
    episodes: list[JudgedEpisode], criteria: Sequence[Criterion] = CRITERIA
) -> JudgmentResult:
    return sum_up(episodes, criteria, strategy="code", threshold=0.8, step=10)


def test_scores_are_weighted_and_the_unjudged_left_out() -> None:
    assert weighted_score(opinion("code", 1.0, 0.0).criteria, CRITERIA) == pytest.approx(0.75)
    assert weighted_score(opinion("code", None, 0.5).criteria, CRITERIA) == 0.5
    assert weighted_score((), CRITERIA) is None
    assert task_score(opinion("code", 0.25, 1.0).criteria, CRITERIA) == 0.25


def test_tags_are_split_into_the_list_and_the_rest() -> None:
    assert split_tags(["Too slow", "fell", "fell", "sad", ""]) == (("too_slow", "fell"), ("sad",))


def test_means_and_spread_over_the_episodes() -> None:
    result = judged(episodes((1.0, 1.0), (0.5, 0.0)))
    assert result.intent_score == pytest.approx((1.0 + 0.375) / 2)
    assert result.score_std == pytest.approx((1.0 - 0.375) / 2)
    go, calm = result.criteria
    assert (go.score, go.std) == (0.75, 0.25)
    assert (calm.score, calm.std) == (0.5, 0.5)
    assert result.confidence == pytest.approx(0.8)
    assert not result.passed


def test_an_episode_that_could_not_be_judged_is_no_zero() -> None:
    result = judged(episodes((1.0, 1.0), None))
    assert result.intent_score == 1.0
    assert result.passed
    assert result.confidence == pytest.approx(0.4)
    assert "1 of 2 episodes judged" in result.diagnosis
    assert result.rollouts[1].score is None


def test_what_two_episodes_say_alike_is_said_once() -> None:
    first, second = episodes((0.5, 0.5), (1.0, 1.0))
    assert first.code is not None
    looked_at = first.code.model_copy(update={"diagnosis": "code says so. Eyes say more."})
    assert second.code is not None
    measured = second.code.model_copy(update={"diagnosis": "code says so."})
    result = judged([episode(0, looked_at), episode(1, measured)])
    assert result.diagnosis.count("code says so.") == 1
    assert "Eyes say more." in result.diagnosis


def test_what_is_said_of_one_episode_is_not_taken_for_another() -> None:
    first, second = episodes((0.5, 0.5), (1.0, 1.0))
    assert first.code is not None
    assert second.code is not None
    fell = first.code.model_copy(update={"diagnosis": "it fell"})
    fine = second.code.model_copy(update={"diagnosis": "every criterion is met"})
    result = judged([episode(0, fell), episode(1, fine)])
    assert "Worst episode: it fell. Middle one: every criterion is met." in result.diagnosis


def test_when_nothing_was_judged_there_is_no_score() -> None:
    result = judged(episodes(None, None))
    assert result.intent_score is None
    assert not result.passed
    assert result.unavailable == {"code": "it hangs"}
    assert "it hangs" in result.diagnosis


def test_without_every_task_criterion_there_is_no_pass() -> None:
    high = (criterion("go", weight=0.1), criterion("calm", "efficiency", weight=1.0))
    result = judged(episodes((0.5, 1.0)), high)
    assert result.intent_score is not None
    assert result.intent_score > 0.9
    assert not result.passed
    assert not judged(episodes((None, 1.0))).passed


@pytest.mark.parametrize(
    ("values", "passed"), [((1.1, 1.2), True), ((0.9, 1.0), False), ((None, None), True)]
)
def test_partial_credit_makes_up_for_no_value_that_falls_short(
    values: tuple[float | None, float | None], passed: bool
) -> None:
    """At least 1 is asked; 0.95 on average scores well and is still less."""
    codes = [
        opinion("code", 0.95, 1.0).model_copy(
            update={"criteria": (CriterionScore(id="go", score=0.95, value=value),)}
        )
        for value in values
    ]
    result = judged([episode(number, code) for number, code in enumerate(codes)], CRITERIA[:1])
    assert result.intent_score == pytest.approx(0.95)
    assert result.passed is passed


def test_judges_agree_where_they_are_near() -> None:
    assert agree(opinion("code", 0.5, 0.5), opinion("vlm", 0.6, 0.7), CRITERIA)
    assert not agree(opinion("code", 0.9, 0.9), opinion("vlm", 0.3, 0.9), CRITERIA)
    assert agree(opinion("code", 0.9, None), opinion("vlm", None, 0.1), CRITERIA)
    assert agreement(opinion("code", 0.9, 0.5), opinion("vlm", 0.3, 0.5)) == pytest.approx(0.7)
    assert agreement(opinion("code", 0.9, None), opinion("vlm", None, 0.5)) is None


def test_what_cannot_be_measured_is_taken_from_the_eye() -> None:
    verdict = merge_opinions(opinion("code", 0.5, None, "fell"), opinion("vlm", 0.6, 0.7, "jerky"))
    assert [each.score for each in verdict.criteria] == [0.5, 0.7]
    assert verdict.failure_tags == ("fell", "jerky")
    assert verdict.confidence == pytest.approx(0.9)


def test_what_was_seen_of_some_counts_for_the_others() -> None:
    code = opinion("code", 1.0, 0.5)
    final = Verdict((CriterionScore(id="go", score=0.2), code.criteria[1]), "a trick", (), 0.9)
    by = mean_shifts([(code, final)])
    assert by == pytest.approx({"go": -0.8, "calm": 0.0})
    moved = apply_shifts(verdict_of_one(opinion("code", 0.9, 0.4), alone=False), by)
    assert [each.score for each in moved.criteria] == pytest.approx([0.1, 0.4])
    low = apply_shifts(verdict_of_one(opinion("code", 0.5, 0.4), alone=False), by)
    assert low.criteria[0].score == 0.0


def test_tags_of_the_run_are_those_of_a_third_of_its_episodes() -> None:
    fell, rare = opinion("code", 0.5, 0.5, "fell"), opinion("code", 0.5, 0.5, "fell", "drifts")
    many = [episode(number, code) for number, code in enumerate((rare, *[fell] * 5))]
    assert judged(many).failure_tags == ("fell",)


def test_a_tagged_failure_keeps_a_run_from_passing() -> None:
    fine, tagged = opinion("code", 1.0, 1.0), opinion("code", 1.0, 1.0, "fell")
    assert judged([episode(0, fine)]).passed
    result = judged([episode(0, tagged)])
    assert (result.intent_score, result.passed) == (1.0, False)


@pytest.mark.parametrize(("missed", "passed"), [(2, True), (3, False)])
@pytest.mark.parametrize("soft_reason", ["", "it is a matter of taste"])
def test_a_mean_makes_up_for_few_episodes_that_clearly_miss(
    missed: int, passed: bool, soft_reason: str
) -> None:
    """Up to 2 of 16 may score below 0.5 on what is hard, however well the others do."""
    rated = (CRITERIA[0], criterion("calm", "efficiency", soft_reason=soft_reason))
    scores = [(1.0, 0.49)] * missed + [(1.0, 0.5)] + [(1.0, 1.0)] * (15 - missed)
    result = judged(episodes(*scores), rated)
    calm = result.criteria[1]
    assert calm.missed == missed / 16
    assert calm.score is not None
    assert calm.score > 0.8
    assert result.passed is (passed or bool(soft_reason))


def falls(*counts: float | None) -> list[JudgedEpisode]:
    """Episodes with this many falls each, by a judge that gives credit for few of them."""
    opinions = [
        code_opinion(
            {
                "criteria": {
                    "go": {"score": 1.0, "value": 2.0, "evidence": ""},
                    "falls": {"score": 0.9, "value": count, "evidence": f"{count} falls"},
                },
                "diagnosis": "",
                "failure_tags": (),
            },
            NEVER_FALLS,
        )
        for count in counts
    ]
    return [episode(number, each) for number, each in enumerate(opinions)]


NEVER_FALLS = (
    criterion("go", weight=0.6),
    criterion("falls", comparison="at_most", threshold=0.0, unit="times", event="fell"),
)


def test_one_fall_in_one_of_sixteen_episodes_fails_what_must_never_happen() -> None:
    clean = judged(falls(*[0] * 16), NEVER_FALLS)
    assert clean.passed
    assert clean.criteria[1].evidence == "fell in 0 of 16 episodes"
    once = judged(falls(*[0] * 15, 3), NEVER_FALLS)
    fell = once.criteria[1]
    assert once.intent_score is not None
    assert once.intent_score > 0.9
    assert not once.passed
    assert (fell.score, fell.value) == (15.25 / 16, 3)
    assert fell.evidence == "fell in 1 of 16 episodes (3 falls)"
    assert "about falls: fell in 1 of 16 episodes" in once.diagnosis
    assert [each.criteria[1].score for each in once.rollouts[-2:]] == [1.0, 0.25]


def test_who_could_only_look_at_an_event_is_believed_by_the_score() -> None:
    seen = [CriterionScore(id="falls", score=score) for score in (1.0, 0.0, None)]
    assert NEVER_FALLS[1].count_happened(seen) == (1, 2)


def test_an_event_is_counted_and_no_share() -> None:
    with pytest.raises(ValueError, match="comparison must be at_most"):
        criterion("falls", event="fell")
