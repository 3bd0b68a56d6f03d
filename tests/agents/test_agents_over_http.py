"""The agents' real prompts over the providers' real protocols, through the real SDKs."""

from __future__ import annotations

import pytest
from model_servers import Failure, ModelServer
from played_by_builtin import REWORDED, played_by_builtin

from p2p.agents import builtin, requests
from p2p.agents.intent_elicitor import elicit
from p2p.contracts import SessionAnalysis
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import Question, RequestRejected
from p2p.settings import get_settings

PROVIDERS = ("anthropic", "openai", "google", "openai-compatible", "vllm", "ollama")
ANSWERS = (
    requests.EnvironmentChoice,
    requests.IntentProposal,
    requests.CodeDraft,
    requests.CodeReview,
    requests.VisualVerdict,
    requests.Synthesis,
    requests.RevisionProposal,
    SessionAnalysis,
)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_form_of_answer_can_be_asked_for(provider, tmp_path, monkeypatch):
    with ModelServer(lambda _: Failure(400, "that is all we wanted to see")) as server:
        for name, value in server.environment(provider).items():
            monkeypatch.setenv(name, value)
        get_settings.cache_clear()
        client = LLMClient(server.model(provider), folder=tmp_path / "llm", thinking_effort="high")
        for answer in ANSWERS:
            question = Question(role="any", instructions="", prompt="Answer.", output=answer)
            with pytest.raises(RequestRejected, match="all we wanted"):
                client.ask(question)
            fields = server.requests[-1].everything
            assert all(f'"{name}"' in fields for name in answer.model_fields)
    get_settings.cache_clear()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_intent_is_the_same_whichever_way_it_was_asked_for(provider, tmp_path, monkeypatch):
    sentence, env_id = "run forward fast", "HalfCheetah-v5"
    direct = LLMClient("builtin", folder=tmp_path / "direct", builtin=builtin.answer)
    expected = elicit(direct, sentence, env_id)
    with ModelServer(played_by_builtin) as server:
        for name, value in server.environment(provider).items():
            monkeypatch.setenv(name, value)
        get_settings.cache_clear()
        try:
            client = LLMClient(server.model(provider), folder=tmp_path / "llm")
            intent = elicit(client, sentence, env_id)
        finally:
            get_settings.cache_clear()
    criteria = tuple(
        each.model_copy(update={"measure": each.measure + REWORDED}) for each in expected.criteria
    )
    assert intent == expected.model_copy(
        update={"author": client.model, "criteria": criteria, "final": False}
    )
    assert len(server.requests) == client.ledger.calls == 1
