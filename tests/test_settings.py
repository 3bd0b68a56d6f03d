"""Settings come from the environment, then `.env`, and ids cannot lead out of the runs folder."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest

from p2p import settings


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    for name in (
        "P2P_RUNS_DIR", "RUNS_DIR", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY",
        "GOOGLE_API_KEY", "OPENROUTER_API_KEY", "VLLM_API_KEY", "OLLAMA_API_KEY",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    settings.get_settings.cache_clear()
    yield
    settings.get_settings.cache_clear()


def test_the_runs_folder_is_absolute_and_stays_where_it_was_read(monkeypatch, tmp_path):
    assert settings.get_settings().runs_dir == tmp_path / "runs"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert settings.get_settings().runs_dir == tmp_path / "runs"


@pytest.mark.parametrize("name", ["P2P_RUNS_DIR", "RUNS_DIR"])
def test_the_runs_folder_can_be_set_by_either_name(monkeypatch, tmp_path, name):
    monkeypatch.setenv(name, "my/runs")
    assert settings.get_settings().runs_dir == tmp_path / "my" / "runs"


def test_the_environment_counts_more_than_the_env_file(monkeypatch, tmp_path):
    (tmp_path / ".env").write_text(
        "OPENAI_API_KEY=from-the-file\nANTHROPIC_API_KEY=also-file\nX=1\n"
    )
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    found = settings.get_settings()
    assert found.openai_api_key is not None
    assert found.openai_api_key.get_secret_value() == "from-the-environment"
    assert found.anthropic_api_key is not None


@pytest.mark.parametrize("name", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
def test_both_names_of_the_gemini_key_are_read(monkeypatch, name):
    monkeypatch.setenv(name, "abcdefghij")
    assert settings.get_settings().secrets() == ("abcdefghij",)


def test_an_empty_key_is_no_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    assert settings.get_settings().openai_api_key is None


def test_keys_are_not_shown_and_can_be_taken_out_of_text(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", 'sk-"quoted"-key')
    assert "quoted" not in repr(settings.get_settings())
    shown = settings.redact('plain sk-"quoted"-key, in JSON {"k": "sk-\\"quoted\\"-key"}')
    assert "quoted" not in shown
    assert shown.count("[secret]") == 2


def test_keys_are_found_in_other_writings(monkeypatch):
    key = "sk-can/ary+7f3a9b51c2d84e60_q"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    settings.get_settings.cache_clear()
    once = quote(key, safe="")
    written = [
        key[::-1], quote(key), once, quote(once, safe=""), once.lower(), key.encode().hex().upper(),
        json.dumps(key).replace("/", "\\/"), "".join(f"\\u{ord(c):04X}" for c in key),
        *(encode(bytes(before) + key.encode() + b"?" * after).decode()
          for encode in (b64encode, urlsafe_b64encode)
          for before in range(4) for after in range(3)),
    ]  # fmt: skip
    for text in written:
        shown = settings.redact(f"before {text} after")
        assert "[secret]" in shown, text
        assert len(shown) < len("before [secret] after") + 14, text
    ordinary = "nothing to hide: %20 and c2stY2Fu" + 100_000 * "\\"
    assert settings.redact(ordinary) == ordinary


@pytest.mark.parametrize("bad", ["", "..", "a/../b", "/etc", "a\\b", "a\0b", ".hidden", "../x"])
def test_an_id_that_leads_elsewhere_is_refused(bad):
    with pytest.raises(ValueError, match="not a valid name"):
        settings.resolve_session_dir(bad)


@pytest.mark.parametrize(
    ("session_id", "folder"),
    [
        ("session_20260101_000000_0123abcd", "session_20260101_000000_0123abcd"),
        ("bm_20260101_000000_0123abcd_case7", "bm_20260101_000000_0123abcd/case7"),
        ("bm_0123abcd_case12", "bm_0123abcd/case12"),
        ("bm_0123abcd", "bm_0123abcd"),
        ("bm_xyz_case1", "bm_xyz_case1"),
        ("bm_0123abcd_case1\n", "bm_0123abcd_case1\n"),
    ],
)
def test_a_benchmark_case_lies_inside_its_benchmark(tmp_path, session_id, folder):
    assert settings.resolve_session_dir(session_id) == tmp_path / "runs" / folder
