"""Opponents behind an endpoint, over real HTTP on loopback."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from unstable.engines import EngineError, Sampling
from unstable.engines.remote import RemoteModel

KEY = "sk-canary-51c2d84e60"
CHAT = [{"role": "user", "content": "your move"}]


def completion(text: str | None, **usage: Any) -> tuple[int, dict[str, str], bytes]:
    body = {"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage}
    return 200, {}, json.dumps(body).encode()


def failure(status: int, **headers: str) -> tuple[int, dict[str, str], bytes]:
    soon = {"retry-after-ms": "1"}
    return status, soon | headers, b'{"error": "busy"}'


class Endpoint:
    """Answers with what it was told, in order; keeps what it was asked."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, dict[str, str], bytes] | str] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                endpoint.asked.append(json.loads(self.rfile.read(length)))
                endpoint.headers.append((self.path, self.headers))
                reply = endpoint.replies.pop(0)
                if reply == "silence":
                    time.sleep(0.6)
                    return
                if reply == "cut off":
                    self.send_response(200)
                    self.send_header("content-length", "1000")
                    self.end_headers()
                    self.wfile.write(b'{"choices": [')
                    return
                status, headers, body = reply
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    endpoint = Endpoint()
    thread = threading.Thread(target=endpoint.server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url + "/")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()


def ask(model: RemoteModel, **sampling: Any) -> str:
    async def once() -> str:
        try:
            return await model.ask(CHAT, Sampling(**sampling))
        finally:
            await model.close()

    return asyncio.run(once())


def test_remote_request_has_sampling_and_cost(endpoint: Endpoint):
    endpoint.replies = [
        completion("[4]", cost=0.25),
        completion(None),
    ]
    model = RemoteModel("some/model")
    assert ask(model, temperature=0.6, top_p=0.5, max_tokens=7, seed=3) == "[4]"
    assert endpoint.asked == [
        {
            "model": "some/model", "messages": CHAT, "temperature": 0.6, "top_p": 0.5,
            "max_tokens": 7, "seed": 3,
        }
    ]  # fmt: skip
    ((path, headers),) = endpoint.headers
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert ask(model) == ""
    assert model.cost_usd == 0.25


def test_remote_retries_transient_errors(endpoint: Endpoint):
    endpoint.replies = [
        failure(429), failure(500), (200, {}, b"<html>"), "cut off",
        (200, {}, b"[]"), (200, {}, b'{"error": {"code": 502}}'), "silence", completion("[4]"),
    ]  # fmt: skip
    assert ask(RemoteModel("m", tries=8, timeout=0.3)) == "[4]"
    assert len(endpoint.asked) == 8
    assert all(body == endpoint.asked[0] for body in endpoint.asked)


def test_remote_answers_are_sanitised(endpoint: Endpoint):
    shown = f"a\ud800b {KEY} {KEY[::-1]} {b64encode(KEY.encode()).decode()}"
    endpoint.replies = [completion(shown, cost="NaN"), completion("[4]", cost=-5.0)]
    model = RemoteModel("m")
    assert ask(model).startswith("a\ufffdb [secret] [secret] [secret]")
    assert ask(model) == "[4]"
    assert model.cost_usd == 0.0
    endpoint.replies = [(400, {}, f"no such key: {KEY}".encode())]
    with pytest.raises(EngineError, match=r"no such key: \[secret\]"):
        ask(model)


@pytest.mark.parametrize("body", [b"[" * 100_000, b"9" * 5000, b'{"choices": NaN}', b"\xff"])
def test_remote_retries_malformed_replies(endpoint: Endpoint, body: bytes):
    endpoint.replies = [(200, {}, body), completion("[4]")]
    assert ask(RemoteModel("m")) == "[4]"
    assert len(endpoint.asked) == 2


@pytest.mark.parametrize("packed", [False, True])
def test_remote_reply_length_is_bounded(endpoint: Endpoint, packed: bool):
    body = b" " * (40 << 20)
    headers = {"content-encoding": "gzip"} if packed else {}
    endpoint.replies = [(200, headers, gzip.compress(body, 1) if packed else body)]
    with pytest.raises(EngineError, match="longer than 16 MiB"):
        ask(RemoteModel("m", tries=1))


def test_remote_gives_up_after_its_tries(endpoint: Endpoint):
    endpoint.replies = [failure(503)] * 3
    with pytest.raises(EngineError, match=r"m: .*status 503"):
        ask(RemoteModel("m", tries=3))
    assert len(endpoint.asked) == 3


def test_remote_without_server_is_an_error(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(EngineError, match="ConnectError"):
        ask(RemoteModel("m", tries=1))


@pytest.mark.parametrize("status", [400, 401, 404])
def test_remote_does_not_retry_client_errors(endpoint: Endpoint, status: int):
    endpoint.replies = [failure(status)]
    with pytest.raises(EngineError, match=f"status {status}.*busy") as caught:
        ask(RemoteModel("m"))
    assert KEY not in str(caught.value)
    assert len(endpoint.asked) == 1


def test_remote_answers_concurrent_requests(endpoint: Endpoint):
    endpoint.replies = [completion("[4]", cost=0.5)] * 100

    async def everybody(model: RemoteModel) -> list[str]:
        replies = await asyncio.gather(*(model.ask(CHAT, Sampling()) for _ in range(100)))
        await model.close()
        return replies

    model = RemoteModel("m")
    assert len(asyncio.run(everybody(model))) == 100
    assert model.cost_usd == 50.0


def test_remote_endpoint_comes_from_environment(monkeypatch: pytest.MonkeyPatch):
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EngineError, match="OPENROUTER_API_KEY"):
        RemoteModel("google/some")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert RemoteModel("m").url == "https://api.openai.com/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://here:1/v1")
    assert RemoteModel("m").url == "http://here:1/v1"
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
    model = RemoteModel("m")
    assert model.url == "https://openrouter.ai/api/v1"
    assert KEY not in repr(model)
