"""Whatever a server replies, a question ends in an answer or in an error, on few resources."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from urllib.parse import quote

import pytest
from greeting import HELLO, question
from model_servers import CANARY, Answer, Failure, Flood, Malformed
from model_wire import output, write_reply

from p2p.event_log import EventLog, use_log
from p2p.inference.question import (
    InferenceError,
    ProviderUnavailable,
    RequestRejected,
    RetryPolicy,
)

EVERY = ("anthropic", "openai", "google", "openrouter", "openai-compatible", "vllm", "ollama")
LONE = "a\ud800b"


@pytest.mark.parametrize("provider", EVERY)
def test_halves_of_characters_are_replaced(serve, client_for, provider):
    server = serve(provider, [Answer({"text": LONE, "times": 2}), Answer(HELLO)])
    answered = client_for(provider).ask(question())
    assert answered.value.text == "a\ufffdb"
    assert len(server.requests) == 1
    later = client_for(provider).ask(question(prompt="Again?", after=answered.conversation))
    assert later.value.text == "hello"


def test_what_an_earlier_version_kept_is_read_without_them(serve, client_for, tmp_path):
    server = serve("anthropic", [Answer({"text": "a?b", "times": 2}), Answer(HELLO)])
    client_for("anthropic").ask(question())
    [path] = (tmp_path / "llm").glob("*.json")
    path.write_text(path.read_text().replace("a?b", "a\\ud800b"))
    answered = client_for("anthropic").ask(question())
    assert answered.value.text == "a\ufffdb"
    client_for("anthropic").ask(question(prompt="Again?", after=answered.conversation))
    assert len(server.requests) == 2


def test_halves_of_characters_in_an_error_can_be_written(serve, client_for, tmp_path):
    serve("openai", lambda _: Failure(400, f"no {LONE}"))
    with use_log(EventLog(tmp_path / "events.jsonl")), pytest.raises(RequestRejected) as caught:
        client_for("openai").ask(question())
    assert "no a\ufffdb" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        CANARY,
        CANARY[::-1],
        quote(CANARY).replace("-", "%2D"),
        "".join(f"%{byte:02x}" for byte in CANARY.encode()),
        base64.b64encode(CANARY.encode()).decode(),
        base64.b64encode(f"x{CANARY}yz".encode()).decode(),
        base64.urlsafe_b64encode(f"xy{CANARY}".encode()).decode(),
    ],
    ids=["plain", "reversed", "percent", "all percent", "base64", "base64 + 1", "base64 + 2"],
)
def test_a_key_in_a_reply_reaches_nobody(serve, client_for, tmp_path, text):
    serve("anthropic", [Answer({"text": f"key: {text}", "times": 1})])
    answered = client_for("anthropic").ask(question())
    [path] = (tmp_path / "llm").glob("*.json")
    for place in (answered.value.text, path.read_text()):
        assert text[4:-4] not in place
        assert "[secret]" in place


def with_usage(tokens):
    """A reply that says so for every count of tokens."""

    def counted(value, inside=False):
        if isinstance(value, dict):
            return {k: counted(v, inside or "usage" in k.lower()) for k, v in value.items()}
        return tokens if inside and isinstance(value, int) else value

    def script(received):
        body = write_reply(received, output(received, HELLO), 1)
        return Malformed(json.dumps(counted(body)))

    return script


@pytest.mark.parametrize("tokens", [-1_000_000, 10**30, 1e300], ids=str)
@pytest.mark.parametrize("provider", ["anthropic", "openai", "google", "openai-compatible"])
def test_tokens_that_cannot_be_give_no_money_back(serve, client_for, provider, tokens):
    serve(provider, with_usage(tokens))
    client = client_for(provider, retry=RetryPolicy(attempts=2, first_s=0.01))
    with suppress(InferenceError):
        client.ask(question())
    assert client.ledger.cost_usd + client.ledger.unanswered_usd >= 0
    assert client.ledger.tokens >= 0
    again = client_for(provider)  # what was kept can be read
    assert again.ledger.cost_usd == client.ledger.cost_usd


BODIES = {
    "deep": "[" * 100_000,
    "deep, in an object": '{"choices": ' + '{"a":' * 100_000,
    "a long number": '{"usage": ' + "9" * 5000 + "}",
    "null": "null",
    "a list": "[]",
    "a number": "1e400",
    "not UTF-8": "\udcff\udcfe",
    "NaN": '{"choices": NaN, "content": Infinity}',
    "nothing": "",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("provider", EVERY)
def test_a_body_that_is_no_reply_is_tried_again(serve, client_for, provider, body):
    server = serve(provider, [Malformed(body), Answer(HELLO)])
    assert client_for(provider).ask(question()).value.text == "hello"
    assert len(server.requests) == 2


@pytest.mark.parametrize("gzipped", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("provider", EVERY)
def test_a_reply_without_end_is_cut(serve, client_for, provider, gzipped):
    server = serve(provider, lambda _: Flood(64 << 20, gzipped))
    client = client_for(provider)
    with pytest.raises(ProviderUnavailable, match="reply is longer than 16 MiB"):
        client.ask(question())
    assert len(server.requests) == 1  # what is so long may have been charged for
    assert client.ledger.unanswered == 1
