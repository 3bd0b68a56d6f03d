"""The files of a session's loop that say what an iteration is to do and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from p2p.config import TrainConfig
from p2p.contracts import AuthoredCode, Criterion, Record, RunConfigEntry, Score

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class IterationPlan(Record):
    """plan.json: what an iteration trains."""

    iteration: int
    parent: int | None = None
    """The iteration whose reward and configuration this one changes; None: the first."""
    train: TrainConfig
    configs: Annotated[tuple[RunConfigEntry, ...], Field(min_length=1)]
    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    candidates: Annotated[int, Field(ge=1)] = 1
    """Rewards to write and choose from."""
    start_policy: str = ""
    """What training starts from, a policy's file or a run's state below the session's folder."""
    hp_changes: dict[str, Any] = Field(default_factory=dict)
    """Against the parent, as they were taken over."""
    notes: tuple[str, ...] = ()
    """What of the changes was refused or had to be fitted."""


class RewardCandidate(Record):
    """One of the rewards that an iteration chooses from."""

    name: Annotated[str, Field(pattern=r"^c[1-9][0-9]*$")]
    """Its first run is `<name>_seed_<seed>`."""
    reward: AuthoredCode
    parent: str = ""
    """The candidate whose weights were changed for this one, and whose training it continues."""
    born_at: int = 0
    """The step from which it does so."""
    problems: tuple[str, ...] = ()
    """Why it is not trained, or only after the others: what screening found."""
    usable: bool = True


class RewardCandidates(Record):
    """candidates.json: the rewards of an iteration as their author wrote them, screened."""

    candidates: Annotated[tuple[RewardCandidate, ...], Field(min_length=1)]


class RungResult(Record):
    """What a rung of the search came to."""

    step: int
    """To which its candidates were trained."""
    scores: dict[str, Score | None]
    """Of each candidate, by the code judge on the evaluation episodes; None: not judged."""
    met: str = ""
    """The candidate that met all criteria, where training therefore stopped."""


class RewardSearch(Record):
    """search.json: how an iteration chose its reward. It grows with each rung."""

    offspring: tuple[RewardCandidate, ...] = ()
    """Those that came of the candidates on the way: their terms with other weights."""
    ladder: tuple[tuple[int, int], ...] = ()
    """Of all rungs: the step, and how many candidates are trained to it."""
    rungs: tuple[RungResult, ...] = ()
    winner: str = ""
    """Empty while the search goes on."""
    reason: str = ""

    def trained_to(self, name: str) -> int:
        """Return the step to which a candidate was trained."""
        return max((rung.step for rung in self.rungs if name in rung.scores), default=0)

    def steps_left(self, reached: Mapping[str, int]) -> int:
        """The environment steps until the end, if no candidate meets all criteria before.

        `reached`: the steps of the candidates that are being trained.
        """
        if self.winner or len(self.rungs) >= len(self.ladder):
            return 0
        (step, count), *later = self.ladder[len(self.rungs) :]
        most = sorted((max(0, step - each) for each in reached.values()), reverse=True)
        left = sum(most[:count]) + max(0, count - len(most)) * step
        for further, survivors in later:
            # Who has not been trained before begins at the start.
            left += survivors * (further - step) + max(0, survivors - count) * step
            step, count = further, max(count, survivors)
        return left


class CandidateRow(Record):
    """A candidate as a table shows it."""

    name: str
    explanation: str = ""
    parent: str = ""
    problems: tuple[str, ...] = ()
    scores: dict[int, Score | None] = Field(default_factory=dict)
    """By the step at which it was judged."""
    steps: int = 0
    """Environment steps of its own."""
    won: bool = False


def candidate_rows(
    written: RewardCandidates | None, search: RewardSearch | None
) -> tuple[CandidateRow, ...]:
    """Return each candidate of an iteration and its outcome; none if there was one reward."""
    search = search or RewardSearch()
    candidates = (*(written.candidates if written else ()), *search.offspring)
    return tuple(
        CandidateRow(
            name=each.name,
            explanation=each.reward.explanation,
            parent=each.parent,
            problems=each.problems,
            scores={
                rung.step: rung.scores[each.name]
                for rung in search.rungs
                if each.name in rung.scores
            },
            steps=max(0, search.trained_to(each.name) - each.born_at),
            won=each.name == search.winner,
        )
        for each in candidates
    )


class JudgeAmendment(Record):
    """judge_amendment.json: what judging an iteration has shown the code judge to measure wrongly.

    The judge of later iterations is rewritten by it, and whoever looks is told.
    """

    findings: Annotated[tuple[str, ...], Field(min_length=1)]


class BestRun(Record):
    """best_run.json: the run that stands for the iteration, by intent score, then by return."""

    run_id: str
    step: int
    score: Score | None
    final_return: float | None = None

    def policy(self, iteration: Path) -> Path:
        """The folder of its policy."""
        return iteration / self.run_id / "checkpoints" / f"step_{self.step}"


class ClockReading(Record):
    """clock.json: how long a session has been worked on, by whoever works on it, as it goes on."""

    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


MOST_TRIES = 3
"""On held-out seeds, in one iteration: the last is for its end."""


class ConfirmationTry(Record):
    """A checkpoint that was judged on held-out seeds, or is being judged on them."""

    run_id: str
    step: int
    block: int
    """Of `evaluation_seed`: no two tries of a session share a seed."""
    passed: bool | None = None
    """None: not known yet."""


class ConfirmationTries(Record):
    """confirmation_tries.json: an iteration's tries, in their order."""

    tries: tuple[ConfirmationTry, ...] = ()
    error: str = ""
    """What first kept a checkpoint from being judged while training went on."""


class StopRequest(Record):
    """stop.json: a run is to end with this checkpoint, which then stands for it."""

    step: int


class SteeringTaken(Record):
    """steering.json: the feedback that was taken up after an iteration, and what it amounts to.

    It lies in the iteration's folder; the one in the session's own is from before the first.
    """

    orders: tuple[int, ...] = ()
    """Numbers of the files in steering/."""
    paused: bool = False
    """Whether the session was stopped here; it is not stopped a second time."""
    remarks: tuple[str, ...] = ()
    score: Score | None = None
    criteria: tuple[Criterion, ...] | None = None
    reward_code: str | None = None
    hp_changes: dict[str, Any] = Field(default_factory=dict)

    @property
    def wants_more(self) -> bool:
        """Whether the user wants another iteration, also after a pass."""
        return bool(
            self.remarks or self.criteria or self.reward_code is not None or self.hp_changes
        )
