"""What a language model wrote in whole sessions, answered again over its provider's protocol.

Prompts may change; what a strong model answers must still be understood, run and be reviewed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from model_servers import ModelServer, Reply
from model_wire import Call, Content, Received

from p2p.agents.intent_elicitor import elicit
from p2p.agents.judge_author import BY_RULE, write_judge
from p2p.agents.requests import RevisionProposal, VisualVerdict
from p2p.agents.reward_author import RewardAuthor, write_candidates
from p2p.agents.visual_judge import check_answer
from p2p.config import TrainConfig
from p2p.inference.llm_client import LLMClient
from p2p.settings import get_settings
from p2p.utils.utils import tidy_code

FOLDER = Path(__file__).parent / "exchanges"
QUICK = "trace_a_figure_eight"
EXCHANGES = [
    pytest.param(file, id=file.stem, marks=() if file.stem == QUICK else pytest.mark.slow)
    for file in sorted(FOLDER.glob("*.json"))
]
SPEAKERS = {"fix": "reward_author", "alternative": "reward_author"}
"""Whose conversation a later turn belongs to."""


class Recorded:
    """Answers as they were given, each role's in its order; the last again where more is asked."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self.by_role: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for answer in answers:
            self.by_role[answer["role"]].append(answer)

    def __call__(self, received: Received) -> Reply:
        role, _ = received.block
        left = self.by_role[SPEAKERS.get(role, role)]
        answer = left.pop(0) if len(left) > 1 else left[0]
        return Content(calls=(Call(answer["tool"], answer["args"]),))


def given(recorded: dict[str, Any], *roles: str) -> list[dict[str, Any]]:
    """The answers under these roles."""
    called = (a for a in recorded["answers"] if a["role"] in roles and a["tool"] == "final_result")
    return [answer["args"] for answer in called]


def codes(recorded: dict[str, Any], *roles: str) -> set[str]:
    return {tidy_code(answer["code"]) for answer in given(recorded, *roles)} - {""}


@pytest.mark.parametrize("file", EXCHANGES)
def test_what_a_model_wrote_is_understood_run_and_reviewed_again(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = json.loads(file.read_text())
    provider = recorded["model"].partition(":")[0]
    with ModelServer(Recorded(recorded["answers"])) as server:
        for name, value in server.environment(provider).items():
            monkeypatch.setenv(name, value)
        get_settings.cache_clear()
        client = LLMClient(recorded["model"], folder=tmp_path / "llm")
        intent = elicit(
            client, recorded["prompt"], recorded["env_id"], pictures=bool(recorded["vlm_model"])
        )
        short = TrainConfig(env_id=recorded["env_id"], max_episode_steps=50)
        config = short.with_updates(**intent.training)
        judge = write_judge(client, intent, config, review=True)
        rewards = write_candidates(
            client,
            intent,
            config,
            max(1, recorded["candidates"]),
            review=True,
            judge=lambda: judge.code,
        )
    get_settings.cache_clear()

    [proposed] = given(recorded, "intent_elicitor")
    assert [each.id for each in intent.criteria] == [each["id"] for each in proposed["criteria"]]
    assert judge.valid
    assert judge.code.partition(BY_RULE)[0] in codes(recorded, "judge_author", "judge_reviewer")
    assert len(rewards) == max(1, recorded["candidates"])
    for reward in rewards:
        assert reward.valid
        assert reward.code in codes(recorded, "reward_author", "reward_reviewer")
    for seen in given(recorded, "visual_judge"):
        check_answer(VisualVerdict.model_validate(seen), intent.criteria)
    for answer in given(recorded, "revise_agent"):
        proposal = RevisionProposal.model_validate(answer)
        assert config.tuning_problems(proposal.hp_changes) == []
        revised = RewardAuthor(client, intent, config).check(tidy_code(proposal.reward_code))
        assert revised.problems == ()
