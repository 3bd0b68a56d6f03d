"""The API as its documentation promises it: every route, by method, path and answer."""

from __future__ import annotations

from typing import Any

import pytest

from p2p.api.app import create_api

PROMISED = """
POST   /api/sessions                                                      StartSessionResponse
GET    /api/sessions                                                      SessionRow[]
GET    /api/sessions/{session_id}                                         SessionDetail
POST   /api/sessions/{session_id}/stop                                    StopResponse
PATCH  /api/sessions/{session_id}                                         UpdateMetadataResponse
DELETE /api/sessions/{session_id}                                         StopResponse
POST   /api/sessions/{session_id}/restore                                 StopResponse
GET    /api/sessions/{session_id}/loop-iterations                         LoopIterationSummary[]
GET    /api/sessions/{session_id}/iterations/{iteration_id}               IterationDetail
GET    /api/sessions/{session_id}/iterations/{iter_num}/runs              IterationRunEntry[]
GET    /api/sessions/{session_id}/iterations/{iter_num}/runs/{run_id}/metrics  RunMetricsDetail
GET    /api/sessions/{session_id}/analysis                                SessionAnalysis
POST   /api/sessions/{session_id}/analyze                                 stream
GET    /api/sessions/{session_id}/events                                  Event[]
GET    /api/sessions/{session_id}/events/{seq}                            Event
GET    /api/iterations                                                    IterationSummary[]
GET    /api/iterations/{iteration_id}                                     IterationDetail
GET    /api/iterations/{iteration_id}/metrics                             RunMetricsDetail
GET    /api/benchmarks/options                                            BenchmarkOptionsResponse
POST   /api/benchmarks                                                    StartBenchmarkResponse
GET    /api/benchmarks                                                    BenchmarkRunSummary[]
GET    /api/benchmarks/{benchmark_id}                                     BenchmarkRunDetail
POST   /api/benchmarks/{benchmark_id}/stop                                StopBenchmarkResponse
PATCH  /api/benchmarks/{benchmark_id}                                     UpdateMetadataResponse
DELETE /api/benchmarks/{benchmark_id}                                     StopResponse
POST   /api/benchmarks/{benchmark_id}/restore                             StopResponse
GET    /api/envs                                                          EnvInfo[]
GET    /api/reward-templates                                              RewardTemplateInfo[]
GET    /api/resources/status                                              ResourceStatusResponse
GET    /api/trash                                                         TrashItem[]
DELETE /api/trash/{entity_id}                                             StopResponse
POST   /api/vlm/api/chat                                                  VlmChatResponse
GET    /api/vlm/api/tags                                                  VlmTags
GET    /api/vlm/status                                                    VlmStatusResponse
"""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_api().openapi()


@pytest.mark.parametrize("promise", PROMISED.strip().splitlines())
def test_documented_route_answers_with_its_model(document: dict[str, Any], promise: str) -> None:
    method, path, wanted = promise.split()
    operation = document["paths"][path][method.lower()]
    answers = operation["responses"]
    good = answers["200"] if "200" in answers else answers["201"]
    if wanted == "stream":
        assert "text/event-stream" in good["content"]
        return
    schema = good["content"]["application/json"]["schema"]
    name = schema.get("items", schema)["$ref"].rpartition("/")[2]
    assert name + ("[]" if "items" in schema else "") == wanted


def test_operations_have_descriptions_and_unique_ids(
    document: dict[str, Any],
) -> None:
    operations = [each for path in document["paths"].values() for each in path.values()]
    assert all(each["description"] for each in operations)
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names)
