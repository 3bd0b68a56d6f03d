"""A model provider on loopback, for tests with the real SDKs over real HTTP.

One server speaks the Anthropic, OpenAI (Responses and Chat Completions) and Gemini protocols, told
apart by the path. What it replies comes from a function of the request, or from a list used up in
order. It keeps every request.

A whole session can be played by giving it what each agent shall answer:

    def answer(role: str, request: dict) -> dict:
        '''`role` and `request` are those of the last <request role="..."> block.'''
        return {"code": "..."} if role == "reward_author" else {...}

    with ModelServer(answering(answer)) as server:
        for name, value in server.environment("anthropic").items():
            monkeypatch.setenv(name, value)
        get_settings.cache_clear()
        client = LLMClient(server.model("anthropic"), folder=tmp_path / "llm")

The answer goes back in the form that the request asks for: a call of the output tool, or JSON.
`tests/servers` is on pytest's path: `from model_servers import ModelServer, answering`.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

from model_wire import (
    Call,
    Content,
    Received,
    anthropic_events,
    output,
    write_error,
    write_reply,
)

CANARY = "sk-canary-7f3a9b51c2d84e60"
"""The key that `environment` sets: it must turn up in request headers and nowhere else."""


@dataclass(frozen=True)
class Answer:
    """The typed answer, as a call of the output tool or as JSON."""

    value: dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """An HTTP error."""

    status: int
    message: str = "it failed"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Malformed:
    """Status 200 and a body that is not JSON, or not a reply."""

    body: str = '{"id": "half a rep'


@dataclass(frozen=True)
class CutOff:
    """The connection breaks in the middle of the body."""


@dataclass(frozen=True)
class Flood:
    """Status 200 and a body of so many spaces, or as many as the client takes."""

    size: int
    gzipped: bool = False


@dataclass(frozen=True)
class Slow:
    """Another reply, late."""

    seconds: float
    then: Reply


Reply = Answer | Content | Call | Failure | Malformed | CutOff | Flood | Slow
Script = Callable[[Received], Reply] | Sequence[Reply]
ProviderName = Literal[
    "anthropic", "openai", "google", "openrouter", "vllm", "ollama", "openai-compatible"
]  # fmt: skip

MODELS: dict[ProviderName, str] = {
    "anthropic": "anthropic:claude-sonnet-5-5",
    "openai": "openai:gpt-6.1-sol",
    "google": "google:gemini-3.8-flash",
    "openrouter": "openrouter:openai/gpt-5.5",
    "vllm": "vllm:a-local-model",
    "ollama": "ollama:a-local-model",
    "openai-compatible": "openai-compatible:some-model",
}
"""Names with a known price, or none to pay."""


def answering(answer: Callable[[str, dict[str, Any]], dict[str, Any]]) -> Script:
    """Reply to every request with what `answer(role, request)` gives for its last request block."""
    return lambda received: Answer(answer(*received.block))


class ModelServer:
    """The server; a context manager. `requests` holds what came in, in order."""

    def __init__(self, script: Script, port: int = 0) -> None:
        self.requests: list[Received] = []
        self._script = script if callable(script) else _in_order(list(script))
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def environment(self, provider: ProviderName) -> dict[str, str]:
        """The variables that lead a provider's client here."""
        port = str(self._server.server_address[1])
        variables = {
            "anthropic": {"ANTHROPIC_API_KEY": CANARY, "ANTHROPIC_BASE_URL": self.url},
            "openai": {"OPENAI_API_KEY": CANARY, "OPENAI_BASE_URL": f"{self.url}/v1"},
            "openai-compatible": {"OPENAI_API_KEY": CANARY, "OPENAI_BASE_URL": f"{self.url}/v1"},
            "google": {"GEMINI_API_KEY": CANARY, "GOOGLE_GEMINI_BASE_URL": self.url},
            "openrouter": {
                "OPENROUTER_API_KEY": CANARY,
                "OPENROUTER_BASE_URL": f"{self.url}/api/v1",
            },
            "vllm": {"VLLM_HOST": "127.0.0.1", "VLLM_PORT": port, "VLLM_API_KEY": CANARY},
            "ollama": {"OLLAMA_URL": self.url, "OLLAMA_API_KEY": CANARY},
        }[provider]
        return {**variables, "NO_PROXY": "127.0.0.1"}

    @staticmethod
    def model(provider: ProviderName) -> str:
        """A model's name for this provider."""
        return MODELS[provider]

    def receive(self, received: Received) -> tuple[int, Reply]:
        """Note a request, and say what to reply."""
        with self._lock:
            self.requests.append(received)
            number = len(self.requests)
        return number, self._script(received)


def _in_order(replies: list[Reply]) -> Callable[[Received], Reply]:
    lock = threading.Lock()

    def following(_: Received) -> Reply:
        with lock:
            return replies.pop(0) if replies else Failure(400, "the script has no reply left")

    return following


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    owner: ModelServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send_body(200 if self.path == "/health" else 404, "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.partition("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items()}
        received = Received(_protocol(path), self.path, headers, body)
        assert isinstance(self.server, _Server)
        number, reply = self.server.owner.receive(received)
        try:
            self._send(received, reply, number)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client did not wait

    def _send(self, received: Received, reply: Reply, number: int) -> None:
        if isinstance(reply, Slow):
            time.sleep(reply.seconds)
            reply = reply.then
        if isinstance(reply, Slow):
            raise TypeError("slow once is enough")
        if isinstance(reply, Failure):
            error = write_error(received.protocol, reply.status, reply.message)
            self._send_body(reply.status, json.dumps(error), reply.headers)
        elif isinstance(reply, Malformed):
            self._send_body(200, reply.body)
        elif isinstance(reply, CutOff):
            self._send_body(200, '{"id": "cut', claimed=4096)
            self.close_connection = True
        elif isinstance(reply, Flood):
            self._flood(received, reply)
        else:
            if isinstance(reply, Answer):
                reply = output(received, reply.value)
            if isinstance(reply, Call):
                reply = Content(calls=(reply,))
            self._send_reply(received, write_reply(received, reply, number))

    def _flood(self, received: Received, flood: Flood) -> None:
        self.close_connection = True
        self.send_response(200)
        is_stream = received.body.get("stream")
        kind = "text/event-stream" if is_stream else "application/json"
        self.send_header("Content-Type", kind)
        if flood.gzipped:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        packer = zlib.compressobj(1, wbits=31)
        block = b" " * (1 << 20)
        for _ in range(flood.size >> 20):
            self.wfile.write(packer.compress(block) if flood.gzipped else block)
        self.wfile.write(packer.flush() if flood.gzipped else b"")

    def _send_reply(self, received: Received, body: dict[str, Any]) -> None:
        if not received.body.get("stream"):
            self._send_body(200, json.dumps(body))
            return
        assert received.protocol == "anthropic", "nobody else streams unasked"
        events = anthropic_events(body)
        text = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)
        self._send_body(200, text, {"Content-Type": "text/event-stream"})

    def _send_body(
        self,
        status: int,
        text: str,
        headers: Mapping[str, str] | None = None,
        claimed: int | None = None,
    ) -> None:
        data = text.encode(errors="surrogateescape")
        self.send_response(status)
        self.send_header("Content-Length", str(claimed or len(data)))
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


def _protocol(path: str) -> Any:
    if path.endswith("/messages"):
        return "anthropic"
    if path.endswith("/responses"):
        return "responses"
    if path.endswith("/chat/completions"):
        return "chat"
    assert path.endswith(":generateContent"), path
    return "google"
