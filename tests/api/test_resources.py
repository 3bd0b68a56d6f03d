"""The machine's last minutes."""

from __future__ import annotations

from fastapi.testclient import TestClient
from processes import wait_until

from p2p.api.state import KEPT, ResourceHistory


def test_resource_history_keeps_last_samples() -> None:
    history = ResourceHistory()
    for _ in range(KEPT + 5):
        history.sample()
    samples = history.samples()
    assert len(samples) == KEPT
    assert all(0 <= sample.cpu <= 1 and 0 < sample.memory < 1 for sample in samples)
    assert [sample.time for sample in samples] == sorted(sample.time for sample in samples)
    assert history.core_percent


def test_server_samples_resources_by_itself(client: TestClient) -> None:
    wait_until(lambda: len(client.get("/api/resources/history").json()) > 0, 30)
