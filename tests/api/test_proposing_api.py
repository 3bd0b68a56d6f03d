"""Criteria are proposed before anything is started."""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient


def test_a_sentence_becomes_criteria_and_no_session(client: TestClient, runs: Path) -> None:
    asked = {"prompt": "run backward", "env_id": "HalfCheetah-v5", "model": "builtin"}
    answer = client.post("/api/criteria", json=asked)
    assert answer.status_code == 200
    assert "goes_backward" in [criterion["id"] for criterion in answer.json()["criteria"]]
    listed = client.get("/api/sessions").json()
    assert [row["session_id"] for row in listed] == ["session_a"]
    assert list((runs / ".proposals" / "llm").glob("*.json"))


def test_what_nobody_understands_is_refused_with_a_reason(client: TestClient) -> None:
    answer = client.post("/api/criteria", json={"prompt": "purple monday", "model": "builtin"})
    assert answer.status_code == 422
    assert answer.json()["detail"]
    assert "validation error" not in answer.json()["detail"]


def test_a_model_that_nobody_knows_is_named(client: TestClient) -> None:
    asked = {"prompt": "run forward", "env_id": "HalfCheetah-v5", "model": "nobody"}
    answer = client.post("/api/criteria", json=asked)
    assert answer.status_code == 422
    assert "nobody" in answer.json()["detail"]
