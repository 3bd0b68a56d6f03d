"""Whatever a provider does, a question ends in an answer or in an error that says what to do."""

from __future__ import annotations

import pytest
from greeting import HELLO, question
from model_servers import CANARY, Answer, CutOff, Failure, Malformed, Slow
from model_wire import Call, Content
from pydantic_ai.exceptions import ModelRateLimitError

from p2p.event_log import EventLog, read_events, use_log
from p2p.inference.llm_client import MAX_TOKENS, TIMES_ASKED_AGAIN
from p2p.inference.metered import read_retry_delay
from p2p.inference.question import (
    AskAgain,
    AuthenticationFailed,
    BadReply,
    ProviderUnavailable,
    RateLimited,
    RequestRejected,
    RetryPolicy,
)

HOSTED = ("anthropic", "openai", "google")
FINE = Answer(HELLO)


@pytest.mark.parametrize("provider", HOSTED)
def test_rate_limit_waits_as_long_as_asked(serve, client_for, provider, tmp_path):
    server = serve(provider, [Failure(429, "slow down", {"Retry-After": "1"}), FINE])
    with use_log(EventLog(tmp_path / "events.jsonl")):
        client = client_for(provider)
        assert client.ask(question()).value.text == "hello"
    assert len(server.requests) == 2
    wait, call = read_events(tmp_path / "events.jsonl")
    assert wait.event == "llm.wait"
    assert 1.0 <= wait.data["seconds"] < 1.5
    assert {key: wait.data[key] for key in ("role", "attempt", "model")} == {
        "role": "greeter", "attempt": 1, "model": client.model
    }  # fmt: skip
    assert "slow down" in wait.data["reason"]
    assert (call.event, call.data["retries"]) == ("llm.call", 1)


def test_geminis_own_way_to_ask_for_a_wait_is_understood():
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}]
    error = ModelRateLimitError("gemini", "slow down", body={"error": {"details": details}})
    assert read_retry_delay(error) == 34.5
    assert read_retry_delay(ModelRateLimitError("gemini", "slow down", retry_after=3.0)) == 3.0
    assert read_retry_delay(ModelRateLimitError("gemini", "slow down")) is None


@pytest.mark.parametrize("provider", HOSTED)
@pytest.mark.parametrize(
    "hiccup",
    [Failure(500, "oops"), Failure(503, "overloaded"), Malformed(), CutOff()],
    ids=["500", "503", "malformed", "cut off"],
)
def test_a_hiccup_is_tried_again(serve, client_for, provider, hiccup):
    server = serve(provider, [hiccup, hiccup, FINE])
    assert client_for(provider).ask(question()).value.text == "hello"
    assert len(server.requests) == 3


@pytest.mark.parametrize("provider", HOSTED)
def test_a_provider_that_stays_down_is_given_up(serve, client_for, provider):
    server = serve(provider, lambda _: Failure(500, "the database is on fire"))
    client = client_for(provider, retry=RetryPolicy(attempts=3, first_s=0.01))
    with pytest.raises(ProviderUnavailable, match=r"tried 3 times.*database is on fire"):
        client.ask(question())
    assert len(server.requests) == 3


@pytest.mark.parametrize("provider", [*HOSTED, "vllm"])
@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (Failure(429, "come back", {"Retry-After": "3600"}), RateLimited, "wait 3600 s"),
        (Failure(401, f"bad key {CANARY}"), AuthenticationFailed, "key is refused"),
        (Failure(400, "no such thing"), RequestRejected, "no such thing"),
        (Failure(404, "no such thing"), RequestRejected, "no such thing"),
        (Content("I will not greet.", ends="refusal"), RequestRejected, "refuses to answer"),
    ],
    ids=["wait beyond our patience", "key", "400", "404", "refusal"],
)
def test_permanent_errors_are_not_retried(serve, client_for, provider, reply, error, words):
    server = serve(provider, lambda _: reply)
    with pytest.raises(error, match=words) as caught:
        client_for(provider).ask(question())
    assert len(server.requests) == 1
    assert CANARY not in str(caught.value)


def test_timeouts_are_tried_less_often_than_quick_failures(serve, client_for):
    server = serve("anthropic", lambda _: Slow(30, FINE))
    client = client_for("anthropic", retry=RetryPolicy(first_s=0.01, timeout_s=1.0, timeouts=2))
    with pytest.raises(ProviderUnavailable, match="in time"):
        client.ask(question())
    assert len(server.requests) == 2


def test_404_at_own_address_suggests_other_protocol(serve, client_for, monkeypatch):
    page = "<!DOCTYPE HTML><html><body><h1>Nothing matches the given URI.</h1></body></html>"
    serve("openai", lambda _: Failure(404, page))
    with pytest.raises(RequestRejected) as caught:
        client_for("openai").ask(question())
    text = str(caught.value)
    assert "http://127.0.0.1" in text
    assert "openai-compatible:" in text
    assert "<h1>" not in text


@pytest.mark.parametrize(
    ("address", "patient"),
    [
        ("http://127.0.0.1:8080/v1", True),
        ("http://localhost:1/v1", True),
        ("http://a.net/v1", False),
    ],
)
def test_on_this_machine_reads_loopback_addresses(monkeypatch, address, patient):
    from p2p.inference.providers import on_this_machine
    from p2p.settings import get_settings

    monkeypatch.setenv("OPENAI_BASE_URL", address)
    get_settings.cache_clear()
    assert on_this_machine("openai-compatible:anything") is patient
    assert not on_this_machine("openai:gpt-6.1-sol")


# --- replies that will not do -----------------------------------------------------------------


@pytest.mark.parametrize("provider", HOSTED)
def test_invalid_answer_is_asked_again_with_error(serve, client_for, provider):
    server = serve(provider, [Answer({"text": "hello", "times": "often"}), FINE])
    assert client_for(provider).ask(question()).value.times == 1
    assert "valid integer" in server.requests[1].everything


@pytest.mark.parametrize("provider", HOSTED)
def test_cut_off_answer_is_asked_again_with_higher_limit(serve, client_for, provider):
    server = serve(provider, [Content("", ends="length"), Content("Hel", ends="length"), FINE])
    assert client_for(provider).ask(question()).value.text == "hello"
    limits = [_answer_limit(received.body) for received in server.requests]
    assert limits == [MAX_TOKENS, 2 * MAX_TOKENS, 4 * MAX_TOKENS]


@pytest.mark.parametrize("provider", ["openai", "openai-compatible"])
def test_arguments_cut_off_in_the_middle_are_asked_again(serve, client_for, provider):
    half = Call("final_result", '{"text": "hel')
    server = serve(provider, [Content(calls=(half,), ends="length"), Content(calls=(half,)), FINE])
    assert client_for(provider).ask(question()).value.text == "hello"
    assert len(server.requests) == 3


def _answer_limit(body):
    for name in ("max_tokens", "max_output_tokens"):
        if name in body:
            return body[name]
    return body["generationConfig"]["maxOutputTokens"]


@pytest.mark.parametrize("provider", [*HOSTED, "vllm"])
def test_what_the_check_says_goes_back_to_the_model(serve, client_for, provider):
    server = serve(provider, [FINE, Answer({"text": "good day", "times": 1})])

    def check(value):
        if value.text == "hello":
            raise AskAgain("be more formal")

    assert client_for(provider).ask(question(check=check)).value.text == "good day"
    assert "be more formal" in server.requests[1].everything


@pytest.mark.parametrize("provider", ["anthropic", "vllm"])
def test_asking_again_has_an_end(serve, client_for, provider):
    server = serve(provider, lambda _: FINE)

    def never(value):
        raise AskAgain("still not formal enough")

    with pytest.raises(BadReply, match=r"greeter.*still not formal enough"):
        client_for(provider).ask(question(check=never))
    assert len(server.requests) == 1 + TIMES_ASKED_AGAIN


# --- replies that want more than was offered --------------------------------------------------


@pytest.mark.parametrize("provider", HOSTED)
def test_a_tool_that_was_not_offered_is_not_called(serve, client_for, provider, tmp_path):
    target = tmp_path / "touched"
    evil = Content(calls=(
        Call("bash", {"command": f"touch {target}"}),
        Call("os.system", {"command": f"touch {target}"}),
        Call("__import__", {"name": "os"}),
    ))  # fmt: skip
    server = serve(provider, [evil, FINE])
    used = []

    def look(where: str) -> str:
        """Look somewhere."""
        used.append(where)
        return "nothing"

    answered = client_for(provider).ask(question(tools=(look,), max_tool_calls=2))
    assert answered.value.text == "hello"
    assert not used
    assert not target.exists()
    assert "Unknown tool" in server.requests[1].everything
