"""What the built-in author answers to each role."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from p2p.agents.builtin import answer, answer_request, requests_in
from p2p.agents.builtin.reward import read_recipe
from p2p.agents.requests import (
    AlternativeRequest,
    AnalysisRequest,
    CodeDraft,
    EnvironmentChoice,
    EnvironmentChoices,
    FixRequest,
    IntentProposal,
    IntentRequest,
    JudgeRequest,
    PastIteration,
    ReviewRequest,
    ReviseRequest,
    RevisionProposal,
    RewardRequest,
    Synthesis,
    SynthesisRequest,
    VisualRequest,
)
from p2p.contracts import CriterionScore, JudgeOpinion, Record, SessionAnalysis
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import AskAgain, Question, RequestRejected
from p2p.prompts import request_block
from p2p.training.env_spec import list_env_ids

ENV = "HalfCheetah-v5"
CHOICES = dict.fromkeys(list_env_ids(), "")


def ask(role: str, request: Record) -> Record:
    return answer_request([(role, request)])


def intent(prompt: str = "run forward fast") -> IntentProposal:
    proposal = ask("intent_elicitor", IntentRequest(prompt=prompt, env_id=ENV))
    assert isinstance(proposal, IntentProposal)
    return proposal


def draft(**changes: object) -> CodeDraft:
    request = RewardRequest(prompt="run", env_id=ENV, criteria=intent().criteria)
    draft = ask("reward_author", request.model_copy(update=changes))
    assert isinstance(draft, CodeDraft)
    return draft


def test_it_answers_the_request_in_a_prompt() -> None:
    block = request_block("intent_elicitor", IntentRequest(prompt="run fast", env_id=ENV))
    assert answer([f"Facts.\n{block}\nGo."], 0) == intent("run fast")


def test_a_conversation_goes_on_to_a_simpler_reward(tmp_path: Path) -> None:
    client = LLMClient("builtin", folder=tmp_path, builtin=answer)
    request = RewardRequest(prompt="run", env_id=ENV, criteria=intent().criteria)
    asked = Question(
        role="reward_author", instructions="", output=CodeDraft,
        prompt=request_block("reward_author", request),
    )  # fmt: skip
    first = client.ask(asked)
    fix = request_block("fix", FixRequest(problems=("term 'tilt' was 0 at every step",)))
    second = client.ask(replace(asked, prompt=fix, after=first.conversation))
    recipe = read_recipe(second.value.code)
    assert recipe is not None
    assert "tilt" not in {term.name for term in recipe.terms}
    assert "forward_speed" in {term.name for term in recipe.terms}


def test_a_revision_that_comes_back_is_followed_by_another(tmp_path: Path) -> None:
    scores = tuple(CriterionScore(id=c.id, score=0.3) for c in intent().criteria)
    request = ReviseRequest(
        prompt="run", env_id=ENV, criteria=intent().criteria, iteration=1, best_iteration=1,
        reward_code=draft().code, score=0.3, pass_threshold=0.8, criterion_scores=scores,
        failure_tags=(), diagnosis="", dynamics="", hyperparameters={"total_timesteps": 1000},
        history=(PastIteration(iteration=1, parent=None, score=0.3, final_return=0.0),),
    )  # fmt: skip
    proposals: list[RevisionProposal] = []

    def check(proposal: RevisionProposal) -> None:
        proposals.append(proposal)
        if len(proposals) < 4:
            raise AskAgain("it was tried before")

    LLMClient("builtin", folder=tmp_path, builtin=answer).ask(
        Question(
            role="revise_agent",
            instructions="",
            output=RevisionProposal,
            check=check,
            prompt=request_block("revise_agent", request),
        )
    )
    assert len({(p.reward_code, str(p.hp_changes)) for p in proposals}) == 4


def test_environments_are_chosen_by_name_or_by_what_they_can_do() -> None:
    wanted = {
        "run fast": ENV,
        "make the ant walk": "Ant-v5",
        "humanoid, get up": "HumanoidStandup-v5",
        "balance the pole": "InvertedPendulum-v5",
        "balance the double pendulum": "InvertedDoublePendulum-v5",
        "swim forward": "Swimmer-v5",
        "hop forward": "Hopper-v5",
        "reach the target": "Reacher-v5",
        "spin in place": "Ant-v5",
        "a half cheetah that walks": ENV,
        "a person raises the left arm": "Humanoid-v5",
        "raise the front left leg": "Ant-v5",
        "write a poem": None,
    }
    for prompt, env_id in wanted.items():
        choice = ask("environment_chooser", EnvironmentChoices(prompt=prompt, environments=CHOICES))
        assert isinstance(choice, EnvironmentChoice)
        assert choice.env_id == env_id
        assert choice.reason


def test_a_review_finds_what_does_not_exist() -> None:
    code = draft().code
    request = ReviewRequest(prompt="run", env_id=ENV, criteria=intent().criteria, code=code)
    measured = code.replace('info["x_velocity"]', 'info["com_velocity"][..., 0]')
    for right in (code, measured):
        assert ask("reward_reviewer", request.model_copy(update={"code": right})).approved
    for wrong in (code.replace("next_obs[..., 1]", "next_obs[..., 99]"),
                  code.replace('info["x_velocity"]', 'info["speed"]'), "def broken(:"):  # fmt: skip
        review = ask("reward_reviewer", request.model_copy(update={"code": wrong}))
        assert not review.approved
        assert review.findings
        assert read_recipe(review.code)


def test_a_judge_that_forgets_a_criterion_is_not_approved() -> None:
    criteria = intent().criteria
    judge = ask("judge_author", JudgeRequest(prompt="", env_id=ENV, criteria=criteria, columns={}))
    request = ReviewRequest(prompt="", env_id=ENV, criteria=criteria, code=judge.code)
    assert ask("judge_reviewer", request).approved
    cut = judge.code.replace(criteria[0].id, "other")
    assert not ask("judge_reviewer", request.model_copy(update={"code": cut})).approved


def test_it_says_that_it_cannot_see() -> None:
    request = VisualRequest(prompt="", env_id=ENV, criteria=(), camera="", seconds=1, frames=1)
    with pytest.raises(RequestRejected, match="has no vision"):
        ask("visual_judge", request)


def test_two_judges_are_weighed_and_disagreement_costs_confidence() -> None:
    criteria = intent().criteria[:1]
    name = criteria[0].id

    def opinion(judge: str, score: float) -> JudgeOpinion:
        scores = (CriterionScore(id=name, score=score),)
        return JudgeOpinion(judge=judge, available=True, score=score, criteria=scores)

    def weighed(seen: float) -> Synthesis:
        request = SynthesisRequest(prompt="", env_id=ENV, criteria=criteria, calls_left=0,
                                   code=opinion("code", 1.0), vlm=opinion("vlm", seen))  # fmt: skip
        synthesis = ask("synthesiser", request)
        assert isinstance(synthesis, Synthesis)
        return synthesis

    assert weighed(1.0).confidence == 1
    assert weighed(0.0).confidence < 0.2
    assert weighed(0.0).criteria[0].score == pytest.approx(0.7)


def test_a_session_is_analysed_from_its_history() -> None:
    history = (
        PastIteration(iteration=1, parent=None, score=0.4, final_return=1, failure_tags=("fell",)),
        PastIteration(iteration=2, parent=1, score=0.6, final_return=2, failure_tags=("fell",),
                      changes="alive 1 to 2"),
    )  # fmt: skip
    name = intent().criteria[0].id
    request = AnalysisRequest(
        prompt="run", env_id=ENV, status="max_iterations", criteria=intent().criteria,
        history=history, criterion_scores={2: (CriterionScore(id=name, score=0.6),)},
    )  # fmt: skip
    analysis = ask("session_analyzer", request)
    assert isinstance(analysis, SessionAnalysis)
    assert "0.60" in analysis.summary
    assert any("alive 1 to 2" in text for text in analysis.worked)
    assert any("fell" in text for text in analysis.causes)
    assert analysis.suggestions
    empty = ask("session_analyzer", request.model_copy(update={"history": ()}))
    assert isinstance(empty, SessionAnalysis)


@pytest.mark.parametrize(
    "text",
    ["no request at all", '<request role="poet">\n{}\n</request>',
     '<request role="intent_elicitor">\n{"prompt": 3}\n</request>'],
)  # fmt: skip
def test_what_is_no_request_is_rejected(text: str) -> None:
    with pytest.raises(RequestRejected):
        answer_request(requests_in([text]))


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "InvertedPendulum-v5", "Reacher-v5"])
def test_further_rewards_differ_from_the_first_and_from_each_other(env_id: str) -> None:
    prompts = {"Reacher-v5": "reach the target", "InvertedPendulum-v5": "balance"}
    prompt = prompts.get(env_id, "run forward")
    proposal = ask("intent_elicitor", IntentRequest(prompt=prompt, env_id=env_id))
    assert isinstance(proposal, IntentProposal)
    request = RewardRequest(prompt=prompt, env_id=env_id, criteria=proposal.criteria)
    first = ask("reward_author", request)
    assert isinstance(first, CodeDraft)
    codes = {first.code}
    for number in range(2, 6):
        alternative = AlternativeRequest(number=number, of=5, code=first.code)
        other = answer_request([("reward_author", request), ("alternative", alternative)])
        assert isinstance(other, CodeDraft)
        assert other == answer_request([("reward_author", request), ("alternative", alternative)])
        assert other.explanation.startswith("As the first, but ")
        codes.add(other.code)
    assert len(codes) == 5
    terms = [{term.name for term in recipe.terms} for c in codes if (recipe := read_recipe(c))]
    assert all(names == terms[0] for names in terms)


def test_there_is_nothing_to_vary_before_a_reward_was_asked_for() -> None:
    with pytest.raises(RequestRejected, match="no reward was asked for"):
        ask("alternative", AlternativeRequest(number=2, of=2, code=""))
