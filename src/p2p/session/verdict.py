"""The verdict on an iteration in one line: what was asked, what was measured, what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p2p.records.formatting import describe_evidence, format_score, format_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2p.contracts import Criterion, CriterionScore, JudgmentResult
    from p2p.records.session_view import IterationView, SessionView

NAMED = 3
"""How many criteria a line names; the others are counted."""
WORDS = 12
"""How many unchecked words a line names; the others are counted."""
PROMPT_LENGTH = 60
HINT = (
    "say it as something measurable, add a criterion (--criteria), or watch the video and accept it"
)
"""What to do about words that no criterion measures."""
EVIDENCE_LENGTH = 120


def iteration_line(session: SessionView, iteration: IterationView) -> str:
    """The verdict, with the prompt before it; empty while there is none."""
    sentence = verdict_sentence(session, iteration)
    return f'"{shorten(session.prompt, PROMPT_LENGTH)}": {sentence}' if sentence else ""


def shorten(text: str, length: int) -> str:
    """Shorten a text to one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1].rstrip()}…"


def words_text(words: Sequence[str]) -> str:
    """`on, ice, and 3 more`."""
    rest = len(words) - WORDS
    return ", ".join((*words[:WORDS], *([f"and {rest} more"] if rest > 0 else ())))


def verdict_sentence(session: SessionView, iteration: IterationView) -> str:
    """`passed with 0.92; held on 16 unseen episodes; measured: ...`; empty while there is none.

    A pass names what was asked for, a failure the required criteria that were missed.
    """
    judgment = iteration.judgment
    if judgment is None:
        return f"not trained: {iteration.training_error}" if iteration.training_error else ""
    if judgment.intent_score is None:
        reasons = "; ".join(f"{judge}: {why}" for judge, why in judgment.unavailable.items())
        return f"could not be judged ({reasons or judgment.diagnosis or 'no reason'})"
    outcome = str(session.outcome_of(iteration)).replace("not_passed", "failed")
    by_user = " by your score" if iteration.steering.score is not None else ""
    parts = [f"{outcome} with {format_score(judgment.intent_score)}{by_user}"]
    parts += [evidence] if (evidence := describe_evidence(iteration)) else []
    parts += _criteria(session, judgment)
    if session.unchecked_words:
        parts.append(f"not checked: {words_text(session.unchecked_words)}")
    return "; ".join(parts)


def _criteria(session: SessionView, judgment: JudgmentResult) -> list[str]:
    """What was measured of the task, or what keeps it from passing; then what is missed and soft.

    `required criteria missed: Stays upright 0.3 of 0.9; 3 of 4 required criteria met; missed, but
    soft: Does not shake 0.5 (asked: ≤ 0.4)`.
    """
    rubric = {each.id: each for each in session.intent.criteria} if session.intent else {}
    judged = [(rubric[each.id], each) for each in judgment.criteria if each.id in rubric]
    if not judged:
        return []
    share = session.loop.pass_threshold
    missed = [pair for pair in judged if not pair[0].is_met(pair[1], share)]
    missed.sort(key=lambda pair: pair[1].score or 0.0)
    required = [pair for pair in missed if pair[0].hard]
    soft = [pair for pair in missed if not pair[0].hard]

    def name(pairs: Sequence[tuple[Criterion, CriterionScore]]) -> str:
        texts = [_criterion(*pair, share, judgment) for pair in pairs[:NAMED]]
        more = [f"{len(pairs) - NAMED} more"] if len(pairs) > NAMED else []
        return ", ".join((*texts, *more))

    parts = []
    if judgment.passed and (task := [pair for pair in judged if pair[0].category == "task"]):
        parts.append(f"measured: {name(task)}")
    elif required:
        parts.append(f"required criteria missed: {name(required)}")
    elif judgment.failure_tags:
        parts.append(f"tagged: {', '.join(judgment.failure_tags).replace('_', ' ')}")
    hard = sum(criterion.hard for criterion, _ in judged)
    parts.append(f"{hard - len(required)} of {hard} required criteria met")
    if soft:
        parts.append(f"missed, but soft: {name(soft)}")
    return parts


def _criterion(
    criterion: Criterion, score: CriterionScore, share: float, judgment: JudgmentResult
) -> str:
    """`Goes forward 1.35 of 3 m/s`, or `fell in 2 of 16 episodes (asked: never)`."""
    if criterion.event:
        rollouts = (each for rollout in judgment.rollouts for each in rollout.criteria)
        episodes, judged = criterion.count_happened(
            each for each in rollouts if each.id == criterion.id
        )
        if judged:
            often = "" if criterion.target == "never" else " too often"
            text = f"{criterion.event}{often} in {episodes or 'none'} of {judged} episodes"
            return f"{text} (asked: {criterion.target})"
    name, asked = criterion.event or criterion.title, f"(asked: {criterion.target})"
    if score.value is None:
        text = "not judged" if score.score is None else f"scored {format_score(score.score)}"
        evidence = score.evidence if score.score is not None else ""
        return (
            f"{name} {text}{f': {shorten(evidence, EVIDENCE_LENGTH)}' if evidence else ''} {asked}"
        )
    text = f"{name} {criterion.with_unit(score.value, format_value(score.value))} {asked}"
    if criterion.comparison == "at_least":
        target = criterion.with_unit(criterion.threshold, f"{criterion.threshold:g}")
        text = f"{name} {format_value(score.value)} of {target}"
    # A mean can meet the target where too few episodes do.
    by_value = score.model_copy(update={"score": 1.0})
    uneven = criterion.is_met(by_value, share) and not criterion.is_met(score, share)
    return text + (" (not in every episode to its end)" if uneven else "")
