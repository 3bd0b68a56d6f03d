"""What the next iteration does differently: asked of a model, and held to what is allowed."""

from __future__ import annotations

from p2p.agents.requests import PastIteration, ReviseRequest, RevisionProposal
from p2p.agents.revise_checks import Weighed, fixed_hyperparameters, weigh
from p2p.agents.revise_tool_dispatch import SessionTools
from p2p.agents.reward_author import access
from p2p.agents.reward_source import SHORT_DIGEST, reward_digest
from p2p.agents.session_text import history, tunables
from p2p.config import TrainConfig
from p2p.contracts import JudgmentResult, LineageNode, Revision
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import AskAgain
from p2p.prompts import question
from p2p.prompts.env_facts import all_facts
from p2p.records.session_view import IterationView, RunView, SessionView
from p2p.training.env_spec import get_env_spec

MAX_TOOL_CALLS = 24
STAGNATION = 3
"""So many judged iterations without a new best one are a plateau."""
_MOST_POINTS = 40
_NEVER_RUN = "no run was trained"


def revise(client: LLMClient, view: SessionView, iteration: int) -> Revision:
    """What to train after this iteration, whose node stands in the lineage already.

    A proposal that was tried before, is based on nothing, breaks a HARD lesson that code can check
    or passes over the person's remarks goes back to the model; hyperparameters that may not change
    stay, with a note. Raises an InferenceError, and ValueError where there is nothing to revise.
    """
    request = revise_request(view, iteration)
    tools = SessionTools(view, iteration)

    def weighed(proposal: RevisionProposal) -> Weighed:
        return weigh(view, iteration, proposal, tools.updates.values())

    def check(proposal: RevisionProposal) -> None:
        if problems := weighed(proposal).problems:
            raise AskAgain("\n".join(problems))

    answer = client.ask(
        question(
            "revise_agent",
            request,
            RevisionProposal,
            {"environment": environment_facts(view.iterations[iteration].config)},
            tools=tools.all(),
            max_tool_calls=MAX_TOOL_CALLS,
            check=check,
        )
    )
    proposal, outcome = answer.value, weighed(answer.value)
    return Revision(
        based_on=proposal.based_on,
        diagnosis=proposal.diagnosis,
        lesson=outcome.lesson,
        changes=proposal.changes,
        rule=proposal.rule,
        reward_code=proposal.reward_code,
        hp_changes=outcome.hp_changes,
        lessons=outcome.lessons,
        remarks_taken_up=proposal.remarks_taken_up,
        notes=outcome.notes,
        author=answer.model,
    )


def environment_facts(config: TrainConfig) -> str:
    """The environment, and what of it a reward can reach."""
    facts = all_facts(get_env_spec(config.env_id, config.engine))
    return f"{facts}\n\n{access(side_info=config.side_info)}"


def revise_request(view: SessionView, iteration: int) -> ReviseRequest:
    """The request after an iteration, whose node stands in the lineage already.

    Raises ValueError where the session has no criteria, or the iteration or its node are missing.
    """
    intent, current = view.intent, view.iterations.get(iteration)
    lineage = view.lineage
    node, best = lineage.node(iteration), lineage.best
    if intent is None or current is None or node is None:
        missing = "criteria" if intent is None else f"iteration {iteration} in its lineage"
        raise ValueError(f"the session has no {missing}: there is nothing to revise")
    judgment = current.judgment or JudgmentResult(intent_score=None)
    run, elsewhere = current.best_run, best is not None and best.iteration != iteration
    best_view = view.iterations.get(best.iteration) if best and elsewhere else None
    return ReviseRequest(
        prompt=intent.prompt,
        env_id=intent.env_id,
        criteria=intent.criteria,
        iteration=iteration,
        best_iteration=best.iteration if best else None,
        reward_code=current.reward_code,
        best_reward_code=best_view.reward_code if best_view else "",
        score=node.score,
        pass_threshold=view.loop.pass_threshold,
        criterion_scores=judgment.criteria,
        failure_tags=judgment.failure_tags,
        diagnosis=judgment.diagnosis[:4000],
        dynamics=run.dynamics().text() if run else _NEVER_RUN,
        term_shares=dict(run.term_shares) if run else {},
        learning_curve=_thinned(run.curve) if run else (),
        still_improving=_still_improving(run),
        hyperparameters=tunables(current.config),
        fixed=fixed_hyperparameters(view),
        history=_history(view, current.config),
        lessons=lineage.active_lessons,
        remarks=view.remarks,
        stagnation=_stagnation(best, lineage.since_best),
        trained=not current.error,
        training_error=_training_error(node, current, judgment),
    )


def _history(view: SessionView, config: TrainConfig) -> tuple[PastIteration, ...]:
    """The iterations so far, with hyperparameters where they differ from this configuration."""
    here = tunables(config)

    def tried(past: PastIteration) -> PastIteration:
        iteration, node = view.iterations.get(past.iteration), view.lineage.node(past.iteration)
        code = iteration.reward_code if iteration else ""
        settings = tunables(iteration.config) if iteration else {}
        details = {
            "rule": node.rule if node else "",
            "reward_digest": reward_digest(code)[:SHORT_DIGEST] if code else "",
            "hyperparameters": {n: v for n, v in settings.items() if v != here[n]},
        }
        return past.model_copy(update=details)

    return tuple(map(tried, history(view)))


def _still_improving(run: RunView | None) -> bool | None:
    states = {"rising": True, "plateau": False, "falling": False}
    return states.get(run.dynamics().returns.state) if run else None


def _thinned(curve: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """Evenly, with the first and the last point."""
    if len(curve) <= _MOST_POINTS:
        return curve
    last = len(curve) - 1
    return tuple(curve[round(i * last / (_MOST_POINTS - 1))] for i in range(_MOST_POINTS))


def _stagnation(best: LineageNode | None, since_best: int) -> str:
    if best is None or since_best < STAGNATION:
        return ""
    return (
        f"{since_best} judged iterations have come after the best one, {best.iteration}, and none "
        "was better. Small changes do not help any more: change the structure of the reward "
        "(other terms, another way to measure), not weights alone."
    )


def _training_error(node: LineageNode, iteration: IterationView, judgment: JudgmentResult) -> str:
    if node.score is not None:
        return ""
    judges = (f"the {judge} judge: {why}" for judge, why in judgment.unavailable.items())
    reason = iteration.error or "; ".join(judges) or node.diagnosis
    return reason[:2000] or "it was not judged, and nobody said why"
