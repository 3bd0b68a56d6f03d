"""Finding what a model named, or telling it what there is instead."""

from __future__ import annotations

from collections.abc import Iterable

from p2p.contracts import JudgmentResult
from p2p.records.session_view import IterationView, RunView, SessionView


class Mistake(ValueError):
    """What the model asked for does not exist or makes no sense; the text is for the model."""


def find_iteration(view: SessionView, iteration: int | None) -> IterationView:
    """The iteration of this number; None: the last one."""
    iterations = view.iterations
    if not iterations:
        raise Mistake("there is no iteration yet")
    wanted = max(iterations) if iteration is None else iteration
    if wanted not in iterations:
        raise Mistake(f"there is no iteration {wanted}; there are {_listed(iterations)}")
    return iterations[wanted]


def find_run(iteration: IterationView, run_id: str) -> RunView:
    """The run of this name; empty: the best one."""
    best = iteration.best_run
    if best is None:
        raise Mistake(f"iteration {iteration.number} has no runs")
    if not run_id:
        return best
    runs = {run.run_id: run for run in iteration.runs}
    if run_id not in runs:
        raise Mistake(f"iteration {iteration.number} has no run {run_id}; it has {_listed(runs)}")
    return runs[run_id]


def find_judgments(run: RunView) -> dict[int, JudgmentResult]:
    """The judged checkpoints of a run; there is at least one."""
    judgments = dict(run.checkpoint_judgments)
    if not judgments:
        raise Mistake(f"no checkpoint of {run.run_id} is judged")
    return judgments


def judgment_at(judgments: dict[int, JudgmentResult], step: int) -> JudgmentResult:
    """The judgement of this step."""
    if step not in judgments:
        raise Mistake(f"no judgement of step {step}; judged are {_listed(judgments)}")
    return judgments[step]


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, list(names)[-50:]))
