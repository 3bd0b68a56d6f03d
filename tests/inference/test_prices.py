"""What a call costs, from the public list and from a file of one's own."""

from __future__ import annotations

import json

import pytest
from pydantic_ai.usage import RequestUsage

from p2p.inference import prices
from p2p.inference.providers import DEFAULT_ORDER, PROVIDERS
from p2p.inference.question import InferenceError
from p2p.settings import get_settings

USED = RequestUsage(input_tokens=1000, output_tokens=2000)


def use_file(monkeypatch, path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    monkeypatch.setenv("P2P_PRICES", str(path))
    get_settings.cache_clear()


@pytest.mark.parametrize("provider", DEFAULT_ORDER)
def test_the_default_models_have_a_price(provider):
    found = prices.cost(f"{provider}:{PROVIDERS[provider].default_model}", USED)
    assert found is not None
    assert 0 < found < 1


def test_prices_follow_the_public_list():
    assert prices.cost("anthropic:claude-sonnet-5-5", USED) == pytest.approx(0.002 + 0.02)
    assert prices.cost("anthropic:claude-of-tomorrow", USED) is None
    assert prices.cost("openai-compatible:claude-sonnet-5-5", USED) is None


@pytest.mark.parametrize("model", ["builtin", "vllm:any", "ollama:any:8b"])
def test_what_runs_here_costs_nothing(model):
    assert prices.cost(model, USED) == 0.0
    estimate = prices.estimate(model, 1000)
    assert estimate is not None
    assert estimate.tokens_for(0.0) > 1_000_000


@pytest.mark.parametrize("name", ["anthropic:claude-sonnet-5-5", "claude-sonnet-5-5"])
def test_a_file_of_ones_own_counts_more(monkeypatch, tmp_path, name):
    use_file(monkeypatch, tmp_path / "prices.json", {name: {"input": 1, "output": 100}})
    assert prices.cost("anthropic:claude-sonnet-5-5", USED) == pytest.approx(0.001 + 0.2)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        {"m": {"input": 1}},
        {"m": {"input": -1, "output": 1}},
        {"m": {"input": "NaN", "output": 1}},
        {"m": {"input": 1, "output": 1, "cached": 1}},
    ],
)
def test_a_bad_file_is_an_error_that_names_it(monkeypatch, tmp_path, content):
    use_file(monkeypatch, tmp_path / "prices.json", content)
    with pytest.raises(InferenceError, match=r"prices\.json"):
        prices.cost("anthropic:claude-sonnet-5-5", USED)


def test_a_missing_file_is_an_error_that_names_it(monkeypatch, tmp_path):
    monkeypatch.setenv("P2P_PRICES", str(tmp_path / "nowhere.json"))
    get_settings.cache_clear()
    with pytest.raises(InferenceError, match=r"nowhere\.json"):
        prices.cost("builtin", USED)


def test_an_estimate_says_how_much_answer_the_money_buys():
    estimate = prices.estimate("anthropic:claude-sonnet-5-5", 1000)
    assert estimate is not None
    assert estimate.total(2000) == pytest.approx(0.022)
    assert estimate.tokens_for(0.022) == pytest.approx(2000, abs=1)
    assert estimate.tokens_for(0.001) < 0
