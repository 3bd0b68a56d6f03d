"""Names of models: read, guessed, defaulted, and refused with a message that says what to set."""

from __future__ import annotations

import pytest

from p2p.inference.providers import (
    BUILTIN,
    PROVIDERS,
    choose_model,
    environment_variables,
    http_client,
    make_model,
    split_model,
)
from p2p.inference.question import AuthenticationFailed, RequestRejected
from p2p.settings import get_settings

KEYS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "google": "GEMINI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
}


def set_keys(monkeypatch, *providers):
    for provider in providers:
        monkeypatch.setenv(KEYS[provider], f"key-of-{provider}")
    get_settings.cache_clear()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("claude-opus-5-5", ("anthropic", "claude-opus-5-5")),
        ("gpt-6.1-sol", ("openai", "gpt-6.1-sol")),
        ("o3", ("openai", "o3")),
        ("o4-mini", ("openai", "o4-mini")),
        ("gemini-3.8-flash", ("google", "gemini-3.8-flash")),
        ("openrouter:openai/gpt-5.5", ("openrouter", "openai/gpt-5.5")),
        ("ollama:llama3.2:8b", ("ollama", "llama3.2:8b")),
        ("vllm:Qwen/Qwen3-VL-8B", ("vllm", "Qwen/Qwen3-VL-8B")),
        ("vllm-Qwen/Qwen3.5-27B", ("vllm", "Qwen/Qwen3.5-27B")),
        ("openai-compatible:any", ("openai-compatible", "any")),
        ("anthropic", ("anthropic", PROVIDERS["anthropic"].default_model)),
        ("google:", ("google", PROVIDERS["google"].default_model)),
        ("builtin", (BUILTIN, "")),
        ("builtin:anything", (BUILTIN, "")),
    ],
)
def test_split_model_reads_provider_and_name(name, expected):
    assert split_model(name) == expected


@pytest.mark.parametrize(
    "name", ["llama3", "acme:model", "gpt-oss-120b", "ollama", "vllm:", "vllm-", "o30"]
)
def test_split_model_refuses_unknown_names(name):
    with pytest.raises(RequestRejected, match=r"PROVIDER:MODEL.*anthropic, openai|:MODEL"):
        split_model(name)


def test_choose_model_takes_first_provider_with_key(monkeypatch):
    assert choose_model() == BUILTIN
    for provider in ("google", "openai", "anthropic"):
        set_keys(monkeypatch, provider)
        assert choose_model() == f"{provider}:{PROVIDERS[provider].default_model}"


def test_choose_model_prefers_name_then_settings(monkeypatch):
    set_keys(monkeypatch, "anthropic", "openai")
    monkeypatch.setenv("LLM_MODEL", "gpt-6-luna")
    get_settings.cache_clear()
    assert choose_model() == "openai:gpt-6-luna"
    assert choose_model("builtin") == BUILTIN


@pytest.mark.parametrize("provider", KEYS)
def test_a_missing_key_is_named(provider):
    with pytest.raises(AuthenticationFailed, match=f"set {KEYS[provider]}"):
        choose_model(f"{provider}:some-model")


def make(name):
    return make_model(name, http_client())


def test_a_missing_address_is_named():
    with pytest.raises(RequestRejected, match="set OPENAI_BASE_URL"):
        make("openai-compatible:x")


@pytest.mark.parametrize("provider", [name for name in PROVIDERS if name != BUILTIN])
def test_every_provider_makes_a_model_of_that_name(monkeypatch, provider):
    set_keys(monkeypatch, *KEYS)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    get_settings.cache_clear()
    assert make(f"{provider}:some/model").model_name == "some/model"


def test_environment_variables_are_of_one_provider():
    needed = {name: environment_variables(name) for name in PROVIDERS}
    assert needed["google"] == ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL")
    assert needed["vllm"] == ("VLLM_API_KEY", "VLLM_HOST", "VLLM_PORT")
    assert needed["ollama"] == ("OLLAMA_API_KEY", "OLLAMA_URL")
    assert needed[BUILTIN] == ()


def test_make_model_uses_address_of_settings(monkeypatch):
    monkeypatch.setenv("OLLAMA_URL", "http://localhost:7/")
    get_settings.cache_clear()
    assert make("ollama:x").base_url.rstrip("/") == "http://localhost:7/v1"


def test_what_a_provider_says_of_a_name_is_passed_on(monkeypatch):
    set_keys(monkeypatch, "openrouter")
    with pytest.raises(RequestRejected, match="upstream provider"):
        make("openrouter:no-slash")


def test_keys_of_all_providers_are_secrets(monkeypatch):
    set_keys(monkeypatch, *KEYS)
    monkeypatch.setenv("VLLM_API_KEY", "key-of-vllm")
    get_settings.cache_clear()
    assert set(get_settings().secrets()) == {"key-of-vllm", *(f"key-of-{name}" for name in KEYS)}
