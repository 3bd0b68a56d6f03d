"""What tests of self-play talk to: Ray, and an endpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from chat_endpoint import Endpoint


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
