"""Addresses of the public Prompt2Policy's API that are others here: the answer says which."""

from __future__ import annotations

from fastapi import APIRouter, Request

from p2p.api.problems import Moved

SESSION, BENCHMARK = "/api/sessions/{session_id}", "/api/benchmarks/{benchmark_id}"
RESOURCES = "GET /api/resources/status"
MOVED = {
    "POST /api/elaborate-intent": "POST /api/criteria",
    f"GET {SESSION}/config": f"GET {SESSION}, field `config`",
    f"GET {SESSION}/lineage": f"GET {SESSION}, field `lineage`",
    f"GET {SESSION}/iterations/{{iter_num}}/configs/{{config_id}}/aggregated-metrics": (
        f"GET {SESSION}/iterations/{{iter_num}}/metrics"
    ),
    "GET /api/resources/cpu-usage": f"{RESOURCES}, fields `cores` and `load`",
    "GET /api/resources/gpu-usage": f"{RESOURCES}, field `gpus`",
    "GET /api/resources/auto": f"{RESOURCES}; runs share the cores unless `cores_per_run` is set",
    "GET /api/resources/nodes": "GET /api/scheduler/nodes",
    "DELETE /api/trash": "DELETE /api/trash/ID, for each of GET /api/trash",
    f"GET {BENCHMARK}/config": f"GET {BENCHMARK}, field `benchmark`",
    "POST /api/scheduler/jobs/session": "POST /api/sessions",
    "POST /api/scheduler/jobs/benchmark": "POST /api/benchmarks",
}
router = APIRouter(include_in_schema=False)


def _moved_to(place: str) -> None:
    method, address = place.split()

    def answer(request: Request) -> None:
        raise Moved(f"{MOVED[place].format_map(request.path_params)} is where this is now")

    router.add_api_route(address, answer, methods=[method])


for name in MOVED:
    _moved_to(name)
