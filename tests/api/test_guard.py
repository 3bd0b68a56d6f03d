"""Nobody comes in who should not."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from small_runs import TOKEN

from p2p.api.app import create_app
from p2p.api.guard import MAX_BODY


@pytest.mark.parametrize("path", ["/api/sessions", "/api/live", "/openapi.json", "/api/trash"])
def test_request_without_token_gets_401(anybody: TestClient, path: str) -> None:
    answer = anybody.get(path)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert "p2p serve" in answer.json()["detail"]


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "ü"])
def test_wrong_token_gets_401(anybody: TestClient, token: str) -> None:
    headers = [(b"authorization", f"Bearer {token}".encode())]
    assert anybody.get("/api/sessions", headers=headers).status_code == 401
    assert anybody.get("/", params={"token": token}, follow_redirects=False).status_code == 401


def test_token_in_address_becomes_httponly_cookie(
    anybody: TestClient,
) -> None:
    answer = anybody.get(f"/e2e?token={TOKEN}&tab=1", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/e2e?tab=1"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in answer.headers["set-cookie"]
    assert anybody.get("/api/sessions").status_code == 200


def test_redirect_stays_on_this_site(anybody: TestClient) -> None:
    answer = anybody.get(f"//evil.example/x?token={TOKEN}", follow_redirects=False)
    assert not answer.headers.get("location", "/").startswith("//")


def test_cookie_write_from_other_site_gets_403(anybody: TestClient) -> None:
    anybody.get(f"/?token={TOKEN}")
    change = {"json": {"starred": True}}
    there = "/api/sessions/session_a"
    evil = {"Origin": "http://evil.example"}
    assert anybody.patch(there, headers=evil, **change).status_code == 403
    assert anybody.patch(there, headers={"Origin": "null"}, **change).status_code == 403
    assert anybody.patch(there, **change).status_code == 403, "no word of where it comes from"
    own = {"Origin": "http://localhost"}
    assert anybody.patch(there, headers=own, **change).status_code == 200


def test_unknown_host_name_gets_421(anybody: TestClient) -> None:
    headers = {"Host": "evil.example", "Authorization": f"Bearer {TOKEN}"}
    assert anybody.get("/api/sessions", headers=headers).status_code == 421


def test_cookie_of_earlier_server_gets_401(anybody: TestClient, runs: Path) -> None:
    anybody.get(f"/?token={TOKEN}")
    cookies = dict(anybody.cookies)
    app = create_app(runs, token="another-token")
    with TestClient(app, base_url="http://localhost", cookies=cookies) as later:
        assert later.get("/api/sessions").status_code == 401


def test_large_body_gets_413(client: TestClient) -> None:
    there = "/api/sessions/session_a/steer"
    large = b'{"remark": "' + b"x" * MAX_BODY + b'"}'
    headers = {"content-type": "application/json"}
    assert client.post(there, content=large, headers=headers).status_code == 413

    def pieces():
        for start in range(0, len(large), 50_000):
            yield large[start : start + 50_000]

    assert client.post(there, content=pieces(), headers=headers).status_code == 413


def test_every_answer_has_security_headers(anybody: TestClient) -> None:
    for path in ("/api/sessions", "/", "/nothing"):
        headers = anybody.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in anybody.get("/api/sessions").headers


def test_create_app_needs_a_token(runs: Path) -> None:
    with pytest.raises(ValueError, match="token"):
        create_app(runs, token="")
