"""What tests of self-play share: models that nobody changes, Ray, and an endpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from chat_endpoint import Endpoint


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of a few thousand weights."""
    from learner_parts import make_model

    return make_model(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The embedded model, hardly warmed up."""
    from small_run import small_model

    return small_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model before it has learned anything."""
    from unstable.tiny.model import byte_tokenizer, new_model, save_tokenizer

    path = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = byte_tokenizer()
    new_model(tokenizer, seed=3).save_pretrained(path)
    save_tokenizer(tokenizer, path)
    return path


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A Ray of this machine for the tests of one module; its address."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else any load at all keeps workers waiting
        patch.setenv("OMP_NUM_THREADS", "1")
        ray.init(
            "local", namespace="unstable", num_cpus=16, include_dashboard=False,
            log_to_driver=False, object_store_memory=100 * 1024 * 1024, configure_logging=False,
        )  # fmt: skip
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Endpoint]]:
    """An endpoint that the environment names; its class has what it was asked."""

    class Own(Endpoint):
        asked: ClassVar[list[dict[str, Any]]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    yield Own
    server.shutdown()
    server.server_close()
    thread.join()
