"""What came of an iteration, read off its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2p.contracts import JudgmentResult

if TYPE_CHECKING:
    from p2p.contracts import AuthoredCode, IterationAggregation
    from p2p.records.loop_files import BestRun
    from p2p.session.phases import Work


@dataclass(frozen=True)
class Outcome:
    """What an iteration came to, as far as it is done."""

    number: int
    best: BestRun | None
    judgment: JudgmentResult | None
    """The verdict: of its best run, with the confirmation and the person's score counted in."""
    confirmation: JudgmentResult | None
    training_error: str
    """Why nothing could be trained; empty if something could."""

    @property
    def passed(self) -> bool:
        """Whether it is what was asked for."""
        return self.judgment is not None and self.judgment.passed

    @property
    def score(self) -> float | None:
        """The verdict's; None: not judged."""
        return self.judgment.intent_score if self.judgment else None


def read_outcome(work: Work, number: int) -> Outcome:
    """The outcome of an iteration."""
    iteration = work.session.iteration(number)
    return Outcome(
        number=number,
        best=iteration.best_run.read(),
        judgment=iteration.read_judgment(),
        confirmation=iteration.confirmation.read(),
        training_error=training_error(iteration.reward.read(), iteration.aggregation.read()),
    )


def training_error(reward: AuthoredCode | None, aggregation: IterationAggregation | None) -> str:
    """Why no run of an iteration could be trained; empty if one could, or nobody tried yet."""
    if reward is not None and not reward.valid:
        failed = [step.text for step in reward.steps if not step.ok]
        return f"the reward could not be made to run: {failed[-1] if failed else 'no reason given'}"
    if aggregation is None or aggregation.best_run_id is not None:
        return ""
    runs = [run for config in aggregation.configs for run in config.per_seed]
    reasons = dict.fromkeys(run.error or f"the run is {run.status}" for run in runs)
    return "; ".join(reasons) or "no run was trained"


def verdict(
    first: JudgmentResult,
    confirmation: JudgmentResult | None,
    person: float | None,
    threshold: float,
) -> JudgmentResult:
    """What counts for an iteration: the person's word, else fresh starts, else the first look."""
    final = first
    if confirmation is not None:
        final = confirmation.model_copy(update={"passed": first.passed and confirmation.passed})
        if not final.passed:
            note = f"passed with {_shown(first)}, but on fresh starts {_shown(confirmation)}"
            text = f"{note}. {confirmation.diagnosis}".strip()
            final = final.model_copy(update={"diagnosis": text})
    if person is not None:
        text = f"the person's score is {person:g} (the judges': {_shown(final)}). {final.diagnosis}"
        final = final.model_copy(
            update={
                "intent_score": person,
                "passed": person >= threshold,
                "diagnosis": text.strip(),
            }
        )
    return final


def _shown(judgment: JudgmentResult) -> str:
    score = judgment.intent_score
    return "no score" if score is None else f"{score:.2f}"
