"""Models are asked by POST only, for a bounded sum, and refused with reasons."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from model_servers import Answer, ModelServer

from p2p.records.iteration_record import SessionRecord
from p2p.settings import get_settings

ANALYZE = "/api/sessions/session_a/analyze"
PICTURE = base64.b64encode(b"\x89PNG rest").decode()


def heard(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The messages of a stream that has ended."""
    blocks = [block.splitlines() for block in text.replace("\r\n", "\n").split("\n\n") if block]
    lines = [dict(line.split(": ", 1) for line in block if ": " in line) for block in blocks]
    return [(each["event"], json.loads(each["data"])) for each in lines if "event" in each]


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)  # away from a .env
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "LLM_MODEL", "VLM_MODEL"):
        monkeypatch.delenv(name, raising=False)
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()


@pytest.fixture
def provider(no_keys: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A paid model that always answers the same."""
    with ModelServer(lambda _: Answer({"text": "a cheetah"})) as server:
        for name, value in server.environment("anthropic").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("VLM_MODEL", server.model("anthropic"))
        get_settings.cache_clear()
        yield server


def test_vlm_chat_sends_picture_and_question(
    client: TestClient, provider: ModelServer, runs: Path
) -> None:
    body = {
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "what is it?", "images": [PICTURE]},
        ]
    }
    answer = client.post("/api/vlm/api/chat", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["message"] == {"role": "assistant", "content": "a cheetah", "images": []}
    (asked,) = provider.requests
    assert asked.media == [("image/png", base64.b64decode(PICTURE))]
    assert "Be short." in asked.everything
    assert list((runs / ".vlm").glob("*_vlm_chat.json"))
    assert [row["session_id"] for row in client.get("/api/sessions").json()] == ["session_a"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/vlm/api/chat", {"messages": [{"role": "user", "content": "what is it?"}]}),
        ("/api/criteria", {"prompt": "run forward", "env_id": "HalfCheetah-v5"}),
    ],
)
def test_model_routes_keep_to_the_budget(
    client: TestClient, provider: ModelServer, path: str, body: dict[str, Any]
) -> None:
    asked = {**body, "model": provider.model("anthropic"), "budget_usd": 1e-6}
    answer = client.post(path, json=asked)
    assert answer.status_code == 409
    assert "budget" in answer.json()["detail"]
    assert provider.requests == []


def test_analysis_is_streamed_and_kept(client: TestClient, runs: Path) -> None:
    assert client.get("/api/sessions/session_a/analysis").status_code == 404
    answer = client.post(ANALYZE, json={"model": "builtin"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    messages = heard(answer.text)
    assert messages[0][0] == "status"
    kind, analysis = messages[-1]
    assert kind == "analysis", messages
    assert analysis["summary"]
    assert client.get("/api/sessions/session_a/analysis").json() == analysis
    calls = len(list(SessionRecord(runs / "session_a").llm_dir.glob("*.json")))
    assert heard(client.post(ANALYZE).text)[-1][1] == analysis
    assert len(list(SessionRecord(runs / "session_a").llm_dir.glob("*.json"))) == calls


@pytest.mark.usefixtures("no_keys")
def test_analyze_refuses_unusable_model_before_streaming(client: TestClient) -> None:
    assert client.post(ANALYZE, json={"model": "nobody"}).status_code == 422
    refused = client.post(ANALYZE, json={"model": "anthropic:claude-x"})
    assert refused.status_code == 409
    assert "ANTHROPIC_API_KEY" in refused.json()["detail"]
    assert client.post("/api/sessions/none/analyze").status_code == 404


@pytest.mark.usefixtures("no_keys")
def test_vlm_status_says_why_none_is_configured(client: TestClient) -> None:
    said = client.get("/api/vlm/status").json()
    assert said["configured"] is False
    assert "VLM_MODEL" in said["message"]
    assert client.get("/api/vlm/api/tags").json() == {"models": []}
    body = {"messages": [{"role": "user", "content": "what is it?", "images": [PICTURE]}]}
    refused = client.post("/api/vlm/api/chat", json=body)
    assert refused.status_code == 409
    assert "VLM_MODEL" in refused.json()["detail"]
    assert client.post("/api/vlm/api/chat", json={**body, "model": "builtin"}).status_code == 422


@pytest.mark.usefixtures("no_keys")
def test_vlm_status_of_absent_local_server(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLM_MODEL", "ollama:llava")
    monkeypatch.setenv("OLLAMA_URL", "http://127.0.0.1:9")
    get_settings.cache_clear()
    said = client.get("/api/vlm/status").json()
    assert (said["configured"], said["reachable"]) == (True, False)
    assert client.get("/api/vlm/api/tags").json()["models"][0]["name"] == "ollama:llava"


@pytest.mark.parametrize("image", ["no base64!", base64.b64encode(b"GIF89a").decode()])
def test_vlm_chat_refuses_what_is_no_picture(client: TestClient, image: str) -> None:
    body = {
        "model": "ollama:llava",
        "messages": [{"role": "user", "content": "", "images": [image]}],
    }
    answer = client.post("/api/vlm/api/chat", json=body)
    assert answer.status_code == 422
    assert "images" in answer.json()["detail"]


def test_propose_criteria_makes_no_session(client: TestClient, runs: Path) -> None:
    asked = {"prompt": "run backward", "env_id": "HalfCheetah-v5", "model": "builtin"}
    answer = client.post("/api/criteria", json=asked)
    assert answer.status_code == 200
    assert "goes_backward" in [criterion["id"] for criterion in answer.json()["criteria"]]
    listed = client.get("/api/sessions").json()
    assert [row["session_id"] for row in listed] == ["session_a"]
    assert list((runs / ".proposals" / "llm").glob("*.json"))


def test_propose_criteria_refuses_nonsense_with_reason(client: TestClient) -> None:
    answer = client.post("/api/criteria", json={"prompt": "purple monday", "model": "builtin"})
    assert answer.status_code == 422
    assert answer.json()["detail"]
    assert "validation error" not in answer.json()["detail"]
