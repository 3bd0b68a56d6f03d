"""What the next iteration does differently: asked of a model, and held to what is allowed."""

from __future__ import annotations

from p2p.agents.requests import RevisionProposal
from p2p.agents.revise_checks import Weighed, weigh
from p2p.agents.revise_request import revise_request
from p2p.agents.revise_tool_dispatch import SessionTools
from p2p.agents.reward_author import access
from p2p.config import TrainConfig
from p2p.contracts import Revision
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import AskAgain, Question
from p2p.prompts import build
from p2p.prompts.env_facts import all_facts
from p2p.records.session_view import SessionView
from p2p.training.env_spec import get_env_spec

MAX_TOOL_CALLS = 24


def revise(
    client: LLMClient, view: SessionView, iteration: int, *, max_tool_calls: int = MAX_TOOL_CALLS
) -> Revision:
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

    facts = environment_facts(view.iterations[iteration].config)
    instructions, prompt = build("revise_agent", request, environment=facts)
    answer = client.ask(
        Question(
            role="revise_agent",
            instructions=instructions,
            prompt=prompt,
            output=RevisionProposal,
            tools=tools.all(),
            max_tool_calls=max_tool_calls,
            check=check,
        )
    )
    proposal, outcome = answer.value, weighed(answer.value)
    return Revision(
        based_on=proposal.based_on,
        diagnosis=proposal.diagnosis,
        lesson=outcome.lesson,
        changes=proposal.changes,
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
