"""Money that may have gone to requests without an answer: counted at its most, and said so."""

from __future__ import annotations

import json

import pytest
from greeting import HELLO, question
from model_servers import Answer, CutOff, Failure, Malformed, Slow

from p2p.event_log import EventLog, read_events, use_log
from p2p.inference.llm_client import MAX_TOKENS
from p2p.inference.question import (
    AskingCancelled,
    BudgetExhausted,
    ProviderUnavailable,
    RetryPolicy,
)
from p2p.settings import get_settings

FINE = Answer(HELLO)
HASTY = RetryPolicy(first_s=0.01, timeout_s=1.0, local_timeout_s=1.0)
PER_TOKEN = 10e-6
"""What the model asks for an answer's token."""


@pytest.mark.parametrize("provider", ["anthropic", "openai", "google"])
def test_timed_out_request_counts_its_highest_cost(serve, client_for, provider, tmp_path):
    serve(provider, [Slow(30, FINE), FINE])
    with use_log(EventLog(tmp_path / "events.jsonl")):
        client = client_for(provider, retry=HASTY)
        assert client.ask(question()).value.text == "hello"
    lost, answered = (json.loads(p.read_text()) for p in sorted((tmp_path / "llm").glob("*.json")))
    assert (lost["response"], lost["replay"]) == (None, False)
    assert lost["call"]["no_answer"]
    assert lost["call"]["output_tokens"] == lost["request"]["max_tokens"] == MAX_TOKENS
    assert lost["call"]["cost_usd"] > 100 * answered["call"]["cost_usd"]
    assert answered["call"]["no_answer"] == ""
    # It is no call, and no known cost; a later process counts it, too.
    for seen in (client, client_for(provider)):
        assert (seen.ledger.calls, seen.ledger.cost_usd) == (1, answered["call"]["cost_usd"])
        assert (seen.ledger.unanswered, seen.ledger.unanswered_usd) == (1, lost["call"]["cost_usd"])
    told = [(e.event, e.data.get("no_answer")) for e in read_events(tmp_path / "events.jsonl")]
    reason = lost["call"]["no_answer"]
    assert told == [("llm.no_answer", reason), ("llm.wait", None), ("llm.call", None)]


@pytest.mark.parametrize("broken", [CutOff(), Malformed()], ids=["cut off", "malformed"])
def test_an_answer_that_came_in_pieces_may_be_charged_for(serve, client_for, broken):
    serve("anthropic", [broken, FINE])
    client = client_for("anthropic")
    client.ask(question())
    assert (client.ledger.calls, client.ledger.unanswered) == (1, 1)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_the_provider_itself_says_has_failed_costs_nothing(serve, client_for, status):
    serve("anthropic", [Failure(status), FINE])
    client = client_for("anthropic")
    client.ask(question())
    for seen in (client.ledger, client_for("anthropic").ledger):
        assert (seen.calls, seen.unanswered, seen.unanswered_usd) == (1, 0, 0.0)


def test_a_request_leaves_a_trace_before_it_is_sent(serve, client_for, tmp_path):
    traces = []

    def look(_):
        (trace,) = (tmp_path / "llm").glob("*.json")
        traces.append(json.loads(trace.read_text()))
        return FINE

    serve("anthropic", look)
    client_for("anthropic").ask(question())
    (trace,) = traces
    assert (trace["response"], trace["replay"]) == (None, False)
    assert trace["call"]["no_answer"]
    assert trace["call"]["cost_usd"] > MAX_TOKENS * PER_TOKEN
    (path,) = (tmp_path / "llm").glob("*.json")
    answered = json.loads(path.read_text())
    assert (answered["call"]["no_answer"], answered["replay"]) == ("", True)
    assert answered["request"] == trace["request"]


def test_a_question_cancelled_on_its_way_may_be_charged(serve, client_for):
    server = serve("anthropic", lambda _: Slow(5, FINE))
    client = client_for("anthropic", cancelled=lambda: bool(server.requests))
    with pytest.raises(AskingCancelled):
        client.ask(question())
    for seen in (client.ledger, client_for("anthropic").ledger):
        assert (seen.calls, seen.unanswered) == (0, 1)
        assert seen.unanswered_usd > MAX_TOKENS * PER_TOKEN


@pytest.mark.parametrize("provider", ["anthropic", "openai", "google"])
def test_a_provider_that_was_not_reached_charges_nothing(serve, client_for, provider, monkeypatch):
    server = serve(provider, [])
    for name, value in server.environment(provider).items():
        monkeypatch.setenv(name, value.replace(server.url, "http://127.0.0.1:9"))
    get_settings.cache_clear()
    client = client_for(provider, retry=RetryPolicy(attempts=2, first_s=0.01))
    with pytest.raises(ProviderUnavailable):
        client.ask(question())
    assert client.ledger.unanswered == 0


def test_the_budget_counts_it_as_spent_until_there_is_more(serve, client_for):
    """Enough for two of the longest answers and a little more: not for a third try."""
    server = serve("anthropic", lambda _: Slow(30, FINE))
    budget = 2.2 * MAX_TOKENS * PER_TOKEN
    patience = RetryPolicy(first_s=0.01, timeout_s=1.0, timeouts=9)
    client = client_for("anthropic", budget_usd=budget, retry=patience)
    with pytest.raises(BudgetExhausted, match="went to requests without an answer"):
        client.ask(question())
    assert 0.9 * budget < client.ledger.unanswered_usd <= budget
    asked = [received.body["max_tokens"] for received in server.requests]
    assert asked[:2] == [MAX_TOKENS, MAX_TOKENS]
    assert all(tokens < MAX_TOKENS for tokens in asked[2:])  # as many as could still be paid
    assert len(asked) == client.ledger.unanswered
    # A later process does not try its luck with money that may be gone.
    with pytest.raises(BudgetExhausted):
        client_for("anthropic", budget_usd=budget).ask(question())
    assert len(server.requests) == len(asked)


def test_unanswered_request_without_price_is_counted(serve, client_for):
    serve("openai-compatible", [Slow(30, FINE), FINE])
    client = client_for("openai-compatible", retry=HASTY)
    client.ask(question())
    assert (client.ledger.unanswered, client.ledger.unanswered_usd) == (1, 0.0)
