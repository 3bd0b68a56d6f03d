"""The verdict on an iteration, in one line that can be repeated to a colleague."""

from __future__ import annotations

from pathlib import Path

from p2p.agents.verdicts import JudgedEpisode, Verdict
from p2p.agents.verdicts import sum_up as judge_episodes
from p2p.contracts import (
    AuthoredCode,
    Criterion,
    CriterionScore,
    JudgeOpinion,
    JudgmentResult,
    RolloutJudgment,
)
from p2p.files import save_model
from p2p.records.formatting import describe_evidence
from p2p.records.loop_files import SteeringTaken
from p2p.session.verdict import iteration_line, shorten
from session_folder import INTENT, SessionFolder, judgment


def line(folder: SessionFolder) -> str:
    view = folder.view()
    return iteration_line(view, view.iterations[1])


def test_a_pass_says_what_was_measured_and_on_how_many_unseen_episodes(tmp_path: Path) -> None:
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, 0.92)
    start = '"run forward fast": passed with 0.92; measured: Fast 3.68 of 3 m/s'
    assert line(folder).startswith(start)
    iteration.save_judgment(judgment(1.0))
    iteration.confirmation.save(judgment(1.0))
    assert line(folder) == (
        '"run forward fast": passed with 1.00; held on 2 unseen episodes; '
        "measured: Fast 4 of 3 m/s; 2 of 2 required criteria met"
    )


def test_what_did_not_pass_names_what_it_missed(tmp_path: Path) -> None:
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, 0.799)
    assert line(folder) == (
        '"run forward fast": failed with 0.79; '
        "required criteria missed: Fast 2.4 of 3 m/s; 1 of 2 required criteria met"
    )
    tagged = judgment(0.9).model_copy(update={"passed": False, "failure_tags": ("fell",)})
    iteration.save_judgment(tagged)
    iteration.confirmation.save(tagged)
    start = "failed with 0.90; did not hold on 2 unseen episodes; tagged: fell; 2 of 2"
    assert start in line(folder)


def test_a_soft_criterion_is_told_apart_from_a_hard_one(tmp_path: Path) -> None:
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, 0.9)
    speed, upright = INTENT.criteria
    soft = upright.model_copy(update={"soft_reason": "it is only nicer so"})
    folder.record.intent.save(INTENT.model_copy(update={"criteria": (speed, soft)}))
    missed = CriterionScore(id="upright", score=0.3, value=0.3)
    for passed, start in ((0.9, "passed with 0.90; measured: Fast"), (0.5, "failed with 0.50")):
        verdict = judgment(passed)
        criteria = (verdict.criteria[0], missed)
        iteration.save_judgment(verdict.model_copy(update={"criteria": criteria}))
        assert start in line(folder)
        assert line(folder).endswith(
            f"; {int(passed > 0.8)} of 1 required criteria met; "
            "missed, but soft: Upright 0.3 of 0.9"
        )


def test_words_that_nobody_checked_and_scores_of_people_are_named(tmp_path: Path) -> None:
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, 0.3)
    intent = INTENT.model_copy(update={"unused_words": ("straight", "back")})
    save_model(folder.record.path / "intent.json", intent)
    iteration.steering.save(SteeringTaken(orders=(1,), score=0.3))
    assert "failed with 0.30 by your score" in line(folder)
    assert line(folder).endswith("; not checked: straight, back")
    iteration.save_judgment(judgment(0.9))
    iteration.steering.path.unlink()
    assert '": unverified with 0.90; measured: Fast' in line(folder)
    iteration.steering.save(SteeringTaken(orders=(1,), score=0.9))  # they saw it and accept it
    assert '": passed with 0.90 by your score; ' in line(folder)


def test_a_verdict_says_how_many_training_seeds_passed(tmp_path: Path) -> None:
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, 1.0, seeds=(1, 2))
    weak = iteration.runs()[0]
    weak.judgment.save(judgment(0.215))
    iteration.confirmation.save(judgment(1.0))
    evidence = "1 of 2 training seeds passed; that policy held on 2 unseen episodes"
    assert f"passed with 1.00; {evidence}; measured" in line(folder)
    assert describe_evidence(folder.view().iterations[1]) == evidence
    weak.judgment.path.unlink()  # it still trained when the other held
    assert "; 1 of 2 training seeds passed (1 not judged); that policy held on" in line(folder)


def test_nothing_is_said_before_a_verdict_and_no_zero_without_a_judge(tmp_path: Path) -> None:
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, None)
    assert line(folder) == '"run forward fast": could not be judged (code: it timed out)'
    iteration.judgment_path.unlink()
    assert line(folder) == ""
    broken = AuthoredCode(code="", author="test", valid=False)
    iteration.reward.save(broken)
    assert "not trained: the reward could not be made to run" in line(folder)


def test_a_mean_that_meets_the_target_is_told_apart_from_every_episode(tmp_path: Path) -> None:
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, 0.5)
    scores = judgment(0.5).criteria
    uneven = scores[0].model_copy(update={"value": 3.5})
    verdict = judgment(0.5).model_copy(update={"criteria": (uneven, *scores[1:])})
    iteration.save_judgment(verdict)
    assert "missed: Fast 3.5 of 3 m/s (not in every episode to its end)" in line(folder)


def test_a_criterion_is_met_by_its_value_not_by_a_perfect_score(tmp_path: Path) -> None:
    folder = SessionFolder.create(tmp_path)
    scores = judgment(0.99).criteria
    enough = scores[0].model_copy(update={"value": 3.1})
    verdict = judgment(0.99).model_copy(update={"criteria": (enough, *scores[1:])})
    folder.iterate(1, 0.99).save_judgment(verdict)
    assert line(folder).endswith("measured: Fast 3.1 of 3 m/s; 2 of 2 required criteria met")


def test_long_prompts_and_many_unchecked_words_stay_in_bounds(tmp_path: Path) -> None:
    folder = SessionFolder.create(tmp_path)
    folder.iterate(1, 0.5)
    words = tuple(f"w{number}" for number in range(40))
    folder.record.intent.save(INTENT.model_copy(update={"unused_words": words}))
    assert line(folder).endswith("w11, and 28 more")
    assert shorten("x " * 100, 60) == f"{'x ' * 29}x…"


def test_what_must_never_happen_is_told_in_episodes(tmp_path: Path) -> None:
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, 0.9)
    falls = Criterion(
        id="falls", title="Never falls", description="", measure="number of falls",
        comparison="at_most", threshold=0.0, weight=0.5, category="task", event="fell",
    )  # fmt: skip
    save_model(folder.record.path / "intent.json", INTENT.model_copy(update={"criteria": (falls,)}))
    for counts, words in (
        ([0.0] * 14 + [1.0, 2.0], "criteria missed: fell in 2 of 16 episodes (asked: never)"),
        ([0.0] * 16, "measured: fell in none of 16 episodes (asked: never)"),
    ):
        each = [CriterionScore(id="falls", score=float(not n), value=n) for n in counts]
        rollouts = [
            RolloutJudgment(label=f"seed_{i}", score=score.score, criteria=(score,))
            for i, score in enumerate(each)
        ]
        worst = CriterionScore(id="falls", score=1 - sum(map(bool, counts)) / 16, value=max(counts))
        iteration.save_judgment(
            JudgmentResult(
                intent_score=0.9,
                passed=not any(counts),
                criteria=(worst,),
                rollouts=tuple(rollouts),
            )
        )
        assert words in line(folder)


def test_missing_a_soft_criterion_passes_and_a_hard_one_not() -> None:
    speed, upright = INTENT.criteria
    soft = upright.model_copy(update={"soft_reason": "it is only nicer so"})
    scores = (
        CriterionScore(id="speed", score=1.0, value=3.5),
        CriterionScore(id="upright", score=0.3, value=0.3),
    )
    verdict = Verdict(scores, "", (), 1.0)
    code = JudgeOpinion(judge="code", available=True, criteria=scores)
    episode = JudgedEpisode("seed_7", 7, Path("unused"), {}, code=code, verdict=verdict)
    results = [
        judge_episodes([episode], (speed, each), strategy="code", threshold=0.8, step=1)
        for each in (soft, upright)
    ]
    assert [result.passed for result in results] == [True, False]
    assert results[0].intent_score == results[1].intent_score
