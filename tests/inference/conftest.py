from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from model_servers import ModelServer, ProviderName, Script

from p2p.inference.llm_client import LLMClient
from p2p.inference.question import RetryPolicy
from p2p.settings import Settings, get_settings

QUICK = RetryPolicy(first_s=0.01, timeout_s=20.0)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Neither the machine's keys nor its addresses reach a test."""
    for name, field in Settings.model_fields.items():
        alias = field.validation_alias
        names = getattr(alias, "choices", [alias if isinstance(alias, str) else name])
        for variable in names:
            monkeypatch.delenv(str(variable).upper(), raising=False)
    monkeypatch.chdir(tmp_path)
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModelServer]]:
    """Start a server and lead a provider's client to it."""
    with ExitStack() as stack:

        def start(provider: ProviderName, script: Script) -> ModelServer:
            server = stack.enter_context(ModelServer(script))
            for name, value in server.environment(provider).items():
                monkeypatch.setenv(name, value)
            get_settings.cache_clear()
            return server

        yield start


@pytest.fixture
def client_for(tmp_path: Path) -> Callable[..., LLMClient]:
    """A client with little patience, its exchanges in `llm` below tmp_path."""

    def make(provider: ProviderName, **options: Any) -> LLMClient:
        options.setdefault("retry", QUICK)
        options.setdefault("folder", tmp_path / "llm")
        return LLMClient(ModelServer.model(provider), **options)

    return make
