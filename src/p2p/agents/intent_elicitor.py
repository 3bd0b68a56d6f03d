"""From a prompt to an environment that can do it, and to criteria that can be measured on it."""

from __future__ import annotations

from collections.abc import Sequence

from p2p.agents.known_behaviour import unaided
from p2p.agents.requests import (
    EnvironmentChoice,
    EnvironmentChoices,
    IntentProposal,
    IntentRequest,
)
from p2p.config import TrainConfig
from p2p.contracts import Criterion, Intent
from p2p.inference.llm_client import LLMClient
from p2p.inference.providers import BUILTIN
from p2p.inference.question import AskAgain, NotUnderstood
from p2p.prompts import body_facts, question
from p2p.training.env_spec import EnvSpec, get_env_spec, list_env_ids

FEWEST, MOST = 5, 30
"""Criteria of a proposal; a person may keep fewer or add more."""


def choose_environment(client: LLMClient, prompt: str) -> EnvironmentChoice:
    """The listed environment that fits best; `env_id` is None if none of them can do it.

    Raises InferenceError.
    """
    _not_empty(prompt)
    choices = {env_id: in_a_line(get_env_spec(env_id)) for env_id in list_env_ids()}

    def check(choice: EnvironmentChoice) -> None:
        if choice.env_id is not None and choice.env_id not in choices:
            raise AskAgain(f"{choice.env_id!r} is not one of {', '.join(choices)}")

    request = EnvironmentChoices(prompt=prompt, environments=choices)
    asked = question("environment_chooser", request, EnvironmentChoice, {}, check=check)
    return client.ask(asked).value


def elicit(
    client: LLMClient,
    prompt: str,
    env_id: str,
    *,
    usual: Sequence[Criterion] = (),
    pictures: bool = False,
) -> Intent:
    """What the prompt means in this environment, as 5 to 30 criteria.

    `usual`: what goes without saying for this robot; it is added to what a model proposes, but for
    what that leaves out with a reason. `pictures`: whether a judge will look, so that a criterion
    may be left to it.

    Raises:
        NotUnderstood: the prompt asks for nothing that can be done in this environment.
        InferenceError: no answer came.
    """
    _not_empty(prompt)
    request = IntentRequest(
        prompt=prompt,
        env_id=env_id,
        pictures=pictures,
        usual={each.id: _in_words(each) for each in usual},
    )
    facts = [body_facts(get_env_spec(env_id))]
    if client.model != BUILTIN:  # which reads the request alone
        facts.append(unaided(env_id))
    sections = {"environment": "\n\n".join(facts)}

    def check(proposal: IntentProposal) -> None:
        check_proposal(proposal, pictures=pictures, usual=usual)

    asked = question("intent_elicitor", request, IntentProposal, sections, check=check)
    answer = client.ask(asked)
    proposal = answer.value
    if proposal.refusal:
        raise NotUnderstood(proposal.refusal)
    left_out = (
        f"Not asked of it: “{each.title}”: {proposal.left_out[each.id]}"
        for each in usual
        if each.id in proposal.left_out
    )
    return Intent(
        prompt=prompt,
        env_id=env_id,
        criteria=_with_usual(proposal, usual),
        unused_words=proposal.unused_words,
        note=proposal.note,
        assumptions=(*proposal.assumptions, *left_out),
        idle=proposal.idle.strip(),
        training=proposal.training,
        author=answer.model,
    )


def check_proposal(
    proposal: IntentProposal, *, pictures: bool = False, usual: Sequence[Criterion] = ()
) -> None:
    """Raises AskAgain with all that is wrong with it; a refusal is right as it is."""
    if proposal.refusal:
        return
    criteria = _with_usual(proposal, usual)
    wrong = []
    if not FEWEST <= len(criteria) <= MOST:
        kept = len(criteria) - len(proposal.criteria)
        count = f"{len(proposal.criteria)} criteria" + (
            f" beside {kept} usual ones" if kept else ""
        )
        wrong.append(f"there are {count}; give {max(1, FEWEST - kept)} to {MOST - kept}")
    for name, values in (
        ("id", [c.id for c in criteria]),
        ("title", [c.title.strip().lower() for c in criteria]),
        ("measure", [c.measure.strip().lower() for c in criteria]),
    ):
        if twice := sorted({value for value in values if values.count(value) > 1}):
            wrong.append(f"several criteria have the same {name}: {'; '.join(twice)}")
    if not pictures and any(criterion.visual for criterion in criteria):
        wrong.append("`visual` is true, but nobody looks at pictures: measure a number instead")
    wrong += [f"training: {text}" for text in TrainConfig().tuning_problems(proposal.training)]
    if not any(criterion.category == "task" and criterion.hard for criterion in criteria):
        wrong.append("no hard criterion has the category `task`; at least one must")
    known = {each.id for each in usual}
    wrong += [
        f"{name} of `left_out` is no id of `usual`, which has {', '.join(sorted(known)) or 'none'}"
        for name in proposal.left_out.keys() - known
    ]
    wrong += [
        f"left_out: say what in the wish contradicts {name}"
        for name, reason in proposal.left_out.items()
        if not reason.strip()
    ]
    if wrong:
        raise AskAgain("\n".join(wrong))


def _with_usual(proposal: IntentProposal, usual: Sequence[Criterion]) -> tuple[Criterion, ...]:
    """The criteria of a proposal, then those that go without saying; repeated ones count once."""
    kept = {each.id: each for each in usual if each.id not in proposal.left_out}

    def repeats(criterion: Criterion) -> bool:
        same = kept.get(criterion.id)
        return same is not None and same == criterion.model_copy(
            update={"title": same.title, "description": same.description}
        )

    return (*(each for each in proposal.criteria if not repeats(each)), *kept.values())


def _in_words(criterion: Criterion) -> str:
    bound = f"{criterion.comparison.replace('_', ' ')} {criterion.threshold:g} {criterion.unit}"
    return f"{criterion.title}: {criterion.measure}, {bound.strip()}"


def _not_empty(prompt: str) -> None:
    if not prompt.strip():
        raise NotUnderstood("the prompt is empty: say what the robot should do")


def in_a_line(spec: EnvSpec) -> str:
    """A body in a few words, as the choice of one needs it."""
    bodies = ", ".join(body.name for body in spec.bodies[1:])
    return f"{spec.description}; bodies: {bodies}"
