"""The criteria of a prompt: proposed by a model, or written and edited as a file by a person."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from itertools import count
from typing import Any

import tomli_w
from pydantic import ValidationError

from p2p.agents.requests import (
    EnvironmentChoice,
    EnvironmentChoices,
    IntentProposal,
    IntentRequest,
    RejectedCriteria,
)
from p2p.config import TrainConfig
from p2p.contracts import Criterion, Intent, SessionConfig, describe_errors
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
    _check_prompt(prompt)
    choices = {env_id: summarise_body(get_env_spec(env_id)) for env_id in list_env_ids()}

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
    rejected: RejectedCriteria | None = None,
) -> Intent:
    """Return what the prompt means in this environment, as 5 to 30 criteria.

    `usual`: what goes without saying for this robot; it is added to what a model proposes, but for
    what that leaves out with a reason. `pictures`: whether a judge will look, so that a criterion
    may be left to it. `rejected`: why an earlier answer will not do; this one is final.

    Raises:
        NotUnderstood: the prompt asks for nothing that can be done in this environment.
        InferenceError: no answer came.
    """
    _check_prompt(prompt)
    request = IntentRequest(
        prompt=prompt,
        env_id=env_id,
        pictures=pictures,
        usual={each.id: _describe_criterion(each) for each in usual},
        rejected=rejected,
    )
    facts = [body_facts(get_env_spec(env_id))]
    if client.model != BUILTIN:  # which reads the request alone
        from p2p.agents.screening import describe_unaided  # it plays: slow to import

        facts.append(describe_unaided(env_id))
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
        criteria=_add_usual(proposal, usual),
        unused_words=proposal.unused_words,
        note=proposal.note,
        assumptions=(*proposal.assumptions, *left_out),
        idle=proposal.idle.strip(),
        training=proposal.training,
        author=answer.model,
        final=answer.model == BUILTIN or rejected is not None or bool(proposal.idle.strip()),
    )


def check_proposal(
    proposal: IntentProposal, *, pictures: bool = False, usual: Sequence[Criterion] = ()
) -> None:
    """Raises AskAgain with all that is wrong with it; a refusal is right as it is."""
    if proposal.refusal:
        return
    criteria = _add_usual(proposal, usual)
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


def _add_usual(proposal: IntentProposal, usual: Sequence[Criterion]) -> tuple[Criterion, ...]:
    """Return a proposal's criteria followed by the implied ones, without repetition."""
    kept = {each.id: each for each in usual if each.id not in proposal.left_out}

    def repeats(criterion: Criterion) -> bool:
        same = kept.get(criterion.id)
        return same is not None and same == criterion.model_copy(
            update={"title": same.title, "description": same.description}
        )

    return (*(each for each in proposal.criteria if not repeats(each)), *kept.values())


def _describe_criterion(criterion: Criterion) -> str:
    bound = f"{criterion.comparison.replace('_', ' ')} {criterion.threshold:g} {criterion.unit}"
    return f"{criterion.title}: {criterion.measure}, {bound.strip()}"


def _check_prompt(prompt: str) -> None:
    if not prompt.strip():
        raise NotUnderstood("the prompt is empty: say what the robot should do")


def summarise_body(spec: EnvSpec) -> str:
    """Describe a body in one line, for the choice of an environment."""
    bodies = ", ".join(body.name for body in spec.bodies[1:])
    return f"{spec.description}; bodies: {bodies}"


_HEAD = """\
# What the policy is judged by. Change, delete or add [[criteria]]; at least one is a `task`.
# comparison: at_least or at_most. weight: above 0, at most 1.
# event: what must not happen, in the past tense ("fell"): it is counted, in the worst episode.
# category: task, gait, posture, dynamics, stability or efficiency.
# soft_reason: why missing it does not keep a policy from passing; "" where it must be met.
"""


class CriteriaError(ValueError):
    """The text is no list of criteria; the message names each field that is wrong."""


def render_criteria(criteria: Sequence[Criterion]) -> str:
    """The criteria as TOML, with a word on how to edit them."""
    tables = [criterion.model_dump() for criterion in criteria]
    return f"{_HEAD}\n{tomli_w.dumps({'criteria': tables})}"


def parse_criteria(text: str) -> tuple[Criterion, ...]:
    """Read criteria back, from TOML, or from JSON: a list, or an object with the key `criteria`.

    A session's own session.json and intent.json are such objects.
    Raises CriteriaError.
    """
    try:
        document = json.loads(text) if text.lstrip()[:1] in ("{", "[") else tomllib.loads(text)
    # A TOML file may begin with [[criteria]] as a JSON list may begin with [.
    except json.JSONDecodeError as error:
        document = _toml(text, str(error))
    except tomllib.TOMLDecodeError as error:
        raise CriteriaError(f"neither TOML nor JSON: {error}") from None
    entries = document if isinstance(document, list) else document.get("criteria")
    if not isinstance(entries, list) or not entries:
        raise CriteriaError("no criteria: expected [[criteria]] tables, or a JSON list")
    known = {*Intent.model_fields, *SessionConfig.model_fields}
    if extra := set(document) - known if isinstance(document, dict) else set():
        raise CriteriaError(f"unknown keys beside `criteria`: {', '.join(sorted(extra))}")
    problems: list[str] = []
    criteria = [_criterion(number, entry, problems) for number, entry in enumerate(entries, 1)]
    if problems:
        raise CriteriaError("\n".join(problems))
    return _check_criteria(tuple(c for c in criteria if c is not None))


def with_criteria(intent: Intent, criteria: Sequence[Criterion]) -> Intent:
    """The intent with a person's criteria in place of the proposed ones; they are final."""
    if tuple(criteria) == intent.criteria:
        return intent.model_copy(update={"final": True})
    changed = intent.model_dump() | {
        "criteria": [criterion.model_dump() for criterion in criteria],
        "unused_words": (),  # whoever writes the criteria says what the prompt means
        "author": "user",
        "final": True,
    }
    return Intent.model_validate(changed)


def with_visual_criteria(intent: Intent, texts: Sequence[str]) -> Intent:
    """Add visual requirements as criteria, unless the intent has them.

    Raises ValueError where it would have too many.
    """
    there = {criterion.description for criterion in intent.criteria if criterion.visual}
    ids = {criterion.id for criterion in intent.criteria}
    free = (n for n in count(1) if f"seen_{n}" not in ids)
    added = [Criterion.from_remark(next(free), text) for text in texts if text not in there]
    criteria = [*intent.criteria, *added]
    return Intent.model_validate(intent.model_dump() | {"criteria": criteria})


def _toml(text: str, json_error: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CriteriaError(f"neither JSON ({json_error}) nor TOML ({error})") from None


def _criterion(number: int, entry: object, problems: list[str]) -> Criterion | None:
    name = entry.get("id") if isinstance(entry, dict) else None
    where = f"criterion {number}" + (f" ({name})" if isinstance(name, str) else "")
    try:
        return Criterion.model_validate(entry)
    except ValidationError as error:
        problems.append(f"{where}: {describe_errors(error)}")
        return None


def _check_criteria(criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
    try:
        return Intent(prompt="", env_id="", criteria=criteria, author="user").criteria
    except ValidationError as error:
        raise CriteriaError(describe_errors(error)) from None
