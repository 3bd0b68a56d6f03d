"""Model files come in as uploads: read in the sandbox, bounded, and environments from then on."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from p2p.api.guard import MAX_BODY, UPLOADS
from p2p.settings import get_settings

ROVER = Path(__file__).parents[2] / "examples" / "robots" / "rover.xml"


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own place for models."""
    monkeypatch.setenv("P2P_MODELS_DIR", str(tmp_path / "models"))
    get_settings.cache_clear()
    return tmp_path / "models"


def archive(*members: tuple[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in members:
            target.writestr(name, data)
    return packed.getvalue()


def test_uploaded_model_is_an_environment(client: TestClient) -> None:
    filler = b"<!--" + b" " * MAX_BODY + b"-->"  # larger than any other body may be
    answer = client.post("/api/models?name=my+rover.xml", content=ROVER.read_bytes() + filler)
    assert answer.status_code == 201, answer.text
    env = answer.json()
    assert env["env_id"].startswith("robots/my_rover-")
    assert env["actions"] == 4
    assert "front_left_axle" in env["description"]  # what is doubtful
    assert env in client.get("/api/envs").json()
    body = {"prompt": "drive forward", "env_id": env["env_id"], "model": "builtin"}
    intent = client.post("/api/criteria", json=body)
    assert intent.status_code == 200, intent.text
    assert intent.json()["env_id"] == env["env_id"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("../rover.xml", ROVER.read_bytes(), "the name of a model file ends in"),
        ("rover.py", ROVER.read_bytes(), "the name of a model file ends in"),
        ("rover.xml", b"no model", "is not XML"),
        ("rover.zip", archive(("../../rover.xml", ROVER.read_bytes())), "leads out of it"),
        ("rover.zip", archive(("a.obj", bytes(300 << 20))), "MiB unpacked"),
    ],
)
def test_bad_upload_leaves_nothing(
    client: TestClient, models: Path, name: str, content: bytes, says: str
) -> None:
    answer = client.post("/api/models", params={"name": name}, content=content)
    assert answer.status_code == 422
    assert says in answer.json()["detail"]
    assert "/tmp" not in answer.json()["detail"]
    assert not models.exists() or not list(models.iterdir())


def test_too_large_upload_is_not_read(client: TestClient) -> None:
    length = {"content-length": str(UPLOADS["/api/models"] + 1)}
    answer = client.post("/api/models?name=rover.zip", content=b"", headers=length)
    assert answer.status_code == 413


def test_stranger_uploads_nothing(anybody: TestClient) -> None:
    anybody.headers.pop("Authorization", None)
    answer = anybody.post("/api/models?name=rover.xml", content=ROVER.read_bytes())
    assert answer.status_code == 401
