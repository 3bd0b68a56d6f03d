"""The machine's last minutes."""

from __future__ import annotations

from fastapi.testclient import TestClient
from processes import wait_until

from p2p.api.state import KEPT, ResourceHistory


def test_the_last_samples_are_kept_as_shares() -> None:
    history = ResourceHistory()
    for _ in range(KEPT + 5):
        history.sample()
    samples = history.samples()
    assert len(samples) == KEPT
    assert all(0 <= sample.cpu <= 1 and 0 < sample.memory < 1 for sample in samples)
    assert [sample.time for sample in samples] == sorted(sample.time for sample in samples)
    assert history.core_percent


def test_the_first_look_only_begins_the_measurement() -> None:
    history = ResourceHistory()
    history.sample()
    assert history.samples() == []
    history.sample()
    assert len(history.samples()) == 1


def test_a_server_remembers_its_machine_without_being_asked(client: TestClient) -> None:
    wait_until(lambda: len(client.get("/api/resources/history").json()) > 0, 30)
