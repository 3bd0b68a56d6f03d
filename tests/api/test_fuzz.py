"""Requests that nobody thought of, made from the API's own document: no fault, no surprise.

Nothing is trained and nobody is asked for money: jobs are taken in by a scheduler that never runs,
there are no keys, and the only model that answers is the built-in one. Streams are left out, as
they do not end; they have tests of their own.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from small_runs import TOKEN, make_session

from benchmark_folder import a_benchmark, a_case, end_case
from p2p.api.app import create_api, create_app
from p2p.api.benchmarks import shipped_cases
from p2p.benchmark import suite
from p2p.scheduler.records import JobSpec, RunSpec
from p2p.scheduler.store import Store
from p2p.settings import get_settings

PATIENCE_S = 120.0
MOST_OF_ONE = 220
"""Requests to one operation: some take nothing that could be varied, and get only a few."""
SUITE = "env_id,instruction,category,difficulty\nReacher-v5,hold still,manipulation,easy\n"
ENSURES = (
    "p2p.api.jobs", "p2p.api.sessions",
    "p2p.benchmark.running", "p2p.api.selfplay", "p2p.scheduler.service",
)  # fmt: skip
KEYS = (
    "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY",
    "OPENROUTER_API_KEY", "LLM_MODEL", "VLM_MODEL",
)  # fmt: skip
KNOWN: dict[str, tuple[Any, ...]] = {
    "session_id": ("session_a", "session_b"),
    "iteration_id": ("iter_1", "1", "base_seed_1"),
    "iter_num": ("1",),
    "run_id": ("base_seed_1", "job_run", "nim"),
    "job_id": ("job",),
    "game_id": ("eval-1",),
    "node_id": ("local",),
    "name": ("eval_100_median.mp4",),
    "step": (100,),
    "seq": (1,),
    "number": (0,),
    "index": (0,),
    "entity_id": ("session_b",),
    "video": ("00000000",),
}


@cache
def document() -> dict[str, Any]:
    """The API's own."""
    return create_api().openapi()


@cache
def schema() -> Any:
    """What makes requests; it takes seconds to import, and one worker of the tests needs it."""
    import schemathesis
    from schemathesis.checks import load_all_checks

    load_all_checks()
    return schemathesis.openapi.from_dict(document())


def operations() -> list[tuple[str, str]]:
    """Method and path of every operation but the streams."""
    return [
        (method.upper(), path)
        for path, methods in document()["paths"].items()
        for method in methods
        if not path.endswith("/live")
    ]


class Served(NamedTuple):
    """A server on loopback."""

    url: str
    session: requests.Session
    known: dict[str, tuple[Any, ...]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("fuzz")
    runs = folder / "runs"
    for name in ("session_a", "session_b"):
        make_session(runs, name)
    made, where = a_benchmark(runs, a_case(0), a_case(1))
    end_case(where, 0, "passed", 1.0)
    make_job(runs)
    make_selfplay(folder / "outputs" / "nim")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # away from a .env
        for key in KEYS:
            patch.delenv(key, raising=False)
        for module in ENSURES:
            patch.setattr(f"{module}.ensure_scheduler", lambda _: None)
        for module in (suite, "p2p.api.benchmarks"):
            target = module if isinstance(module, str) else module.__name__
            patch.setattr(f"{target}.shipped_suites", lambda: {"mujoco_prompts": SUITE})
        get_settings.cache_clear()
        shipped_cases.cache_clear()
        with _listening(runs, folder) as url:
            session = requests.Session()
            session.headers["Authorization"] = f"Bearer {TOKEN}"
            yield Served(url, session, {**KNOWN, "benchmark_id": (made.benchmark_id,)})
    get_settings.cache_clear()
    shipped_cases.cache_clear()


def make_job(runs: Path) -> None:
    """One that waits: there is nobody to run it."""
    run = RunSpec(run_id="job_run", folder="job", command=("true",))
    job = JobSpec(job_id="job", kind="command", runs=(run,), created_at=datetime.now(UTC))
    with closing(Store(runs)) as store:
        store.submit(job)


def make_selfplay(folder: Path) -> None:
    """A run with a game that has one move."""
    player = {"seat": 0, "uid": "ckpt-1", "kind": "checkpoint", "version": 1, "learner": True}
    move = {"seat": 0, "observation": "", "shared": 0, "answer": "", "action": "", "legal": True}
    game = {
        "id": "eval-1", "kind": "eval", "env_id": "Nim-v0", "step": 1, "time": 0.0,
        "players": [player], "moves": [move], "rewards": {"0": 1.0}, "reason": "",
    }  # fmt: skip
    played = {
        "ckpt_uid": "ckpt-1", "env_id": "Nim-v0", "opponent": "random-legal", "player_id": 0,
        "rewards": {"0": 1.0, "1": -1.0}, "invalid": False,
    }  # fmt: skip
    files: dict[str, object] = {
        "config.json": {}, "metrics.jsonl": {"step": 1, "learner/loss": 0.5},
        "games/eval.jsonl": game, "eval_data/games.jsonl": played,
    }  # fmt: skip
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content) + "\n")


@contextmanager
def _listening(runs: Path, folder: Path) -> Iterator[str]:
    app = create_app(runs, folder / "outputs", token=TOKEN)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def hold(served: Served, method: str, path: str, requests_made: int) -> int:
    """Send up to so many requests to an operation and look at what comes back; how many it were.

    There are fewer where an operation takes nothing that could be varied.
    """
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    held = [
        not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
        checks.response_schema_conformance,
    ]  # fmt: skip
    operation = schema()[path][method]
    fitting = st.fixed_dictionaries({}, optional={
        name: st.sampled_from(served.known[name])
        for name in served.known if f"{{{name}}}" in path
    })  # fmt: skip
    cases = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )
    sent = 0

    @settings(
        max_examples=requests_made,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases, fitting)
    def request(case: Any, real: dict[str, Any]) -> None:
        nonlocal sent
        sent += 1
        case.path_parameters = {**(case.path_parameters or {}), **real}
        answer = case.call(base_url=served.url, session=served.session, timeout=PATIENCE_S)
        case.validate_response(answer, checks=held)

    request()
    return sent


def faults_of(look: Callable[[str, str], object]) -> list[str]:
    """What is wrong with any operation: all are looked at before a test fails."""
    faults: list[str] = []
    for method, path in operations():
        try:
            look(method, path)
        except Exception as fault:  # noqa: BLE001 - told together with those of the others
            faults.append(f"{method} {path}: {fault}")
    return faults


def test_no_request_makes_it_fail(served: Served) -> None:
    assert faults_of(lambda method, path: hold(served, method, path, 2)) == []


HEADERS = {
    "Origin": ("http://[", "http://[::1", "null", "\xff", "//", "http://a:99999999"),
    "Last-Event-ID": ("9" * 5000, "-1", "²", "1e9", "nan"),
    "Range": ("bytes=" + "9" * 400 + "-", "bytes=-" + "9" * 400, "bytes=5-1", "bytes=0-0," * 500),
    "Cookie": ("p2p_token=\xff", "a=b;" * 2000, '"', "p2p_token"),
    "Content-Type": ("application/json; charset=nothing", "text/plain", "application/problem+json"),
    "Authorization": ("Bearer \xff", "", "Basic =", f"Bearer {TOKEN}"),
    "Accept": ("text/html;q=" + "9" * 400, "*" * 1000),
    "If-Modified-Since": ("Mon, 99 Xxx 9999999999 00:00:00 GMT", "9" * 400),
    "If-Range": ("9" * 400, "\xff"),
}
NUMBERS = ("9" * 400, "9" * 5000, str(2**63), str(-(2**63)), "-1", "1e400", "nan", "٣")
BODIES = {
    "deep": "[" * 100_000,
    "deep object": '{"a":' * 100_000,
    "long number": "9" * 5000,
    "NaN": "NaN",
    "not UTF-8": b"\xff",
    "half a character": '"\\ud800"',
    "nothing": "",
}
VALUES = (
    '"\\ud800"', "9" * 400, '{"total_timesteps": ' + "9" * 400 + "}", "NaN", "-Infinity", "1e400",
    "9" * 5000, str(2**63), str(-(2**63)),
    "-1", "null", "[]", "{}", '""', '"x"', '{"\\ud800": 1}', "[null]",
    "true", "[" * 500 + "]" * 500,
)  # fmt: skip
"""For each field of a body, as JSON or nearly so."""
RUN = {"prompt": "hold still", "env_id": "Reacher-v5", "model": "builtin"}
SOUND: dict[str, dict[str, Any]] = {
    "/api/sessions": RUN,
    "/api/scheduler/jobs": RUN,
    "/api/benchmarks": {"suite": "mujoco_prompts", "model": "builtin"},
    "/api/benchmarks/plan": {"suite": "mujoco_prompts", "model": "builtin"},
    "/api/scheduler/nodes": {"node_id": "n", "kind": "local"},
    "/api/selfplay": {"games": ["TicTacToe-v0"], "model": "tiny"},
    "/api/sessions/{session_id}/labels": {"video": "0", "score": 0.5, "annotator": "me"},
}
"""Bodies that are accepted, so that one field at a time can be wrong."""


VIDEO = "/api/sessions/{session_id}/iterations/{iter_num}/runs/{run_id}/videos/{name}"


def address(served: Served, path: str, **changed: str) -> str:
    """A path filled with what is there."""
    names = [name for name in served.known if f"{{{name}}}" in path]
    values = {name: str(served.known[name][0]) for name in names} | changed
    if "selfplay" in path:
        values |= {"run_id": changed.get("run_id", "nim")}
    return served.url + path.format(**values)


def ask(served: Served, method: str, url: str, **options: Any) -> None:
    """Send a request; what comes back is an answer, and soon."""
    answer = served.session.request(method, url, timeout=PATIENCE_S, stream=True, **options)
    with closing(answer):
        assert answer.status_code < 500, (method, url[:300], answer.status_code, answer.text[:300])


@pytest.mark.parametrize("header", HEADERS)
def test_no_header_makes_it_fail(served: Served, header: str) -> None:
    for value in HEADERS[header]:
        headers = {header: value.encode("latin-1", "replace")}
        for path in ("/api/sessions/{session_id}", "/api/sessions/{session_id}/live", VIDEO):
            ask(served, "GET", address(served, path), headers=headers)
        ask(
            served, "PATCH", address(served, "/api/sessions/{session_id}"), headers=headers, json={}
        )


def test_no_number_makes_it_fail(served: Served) -> None:
    def send_numbers(method: str, path: str) -> None:
        for parameter in document()["paths"][path][method.lower()].get("parameters", []):
            name = parameter["name"]
            for value in NUMBERS:
                if parameter["in"] == "path":
                    ask(served, method, address(served, path, **{name: value}), json={})
                else:
                    ask(served, method, address(served, path), params={name: value}, json={})

    assert faults_of(send_numbers) == []


def test_no_body_makes_it_fail(served: Served) -> None:
    assert faults_of(lambda method, path: send_bodies(served, method, path, VALUES[:3])) == []


@pytest.mark.slow
def test_no_field_of_a_body_makes_it_fail(served: Served) -> None:
    assert faults_of(lambda method, path: send_bodies(served, method, path, VALUES)) == []


def send_bodies(served: Served, method: str, path: str, values: Sequence[str]) -> None:
    """What is no body at all, then sound ones with one field at a time replaced."""
    if "requestBody" not in document()["paths"][path][method.lower()]:
        return
    url, headers = address(served, path), {"Content-Type": "application/json"}
    for nonsense in BODIES.values():
        ask(served, method, url, data=nonsense, headers=headers)
    content = document()["paths"][path][method.lower()]["requestBody"]["content"]
    if "application/json" not in content:
        return  # an upload has no fields
    body = content["application/json"]["schema"]
    name = str(body.get("$ref") or body.get("anyOf", [{}])[0].get("$ref")).rpartition("/")[2]
    sound = SOUND.get(path, {})
    for field in document()["components"]["schemas"].get(name, {}).get("properties", {}):
        rest = json.dumps({key: value for key, value in sound.items() if key != field})[1:-1]
        for value in values:
            wrong = f'{{{rest}{", " if rest else ""}"{field}": {value}}}'
            ask(served, method, url, data=wrong.encode(), headers=headers)


@pytest.mark.slow
def test_no_request_of_ten_thousand_makes_it_fail(served: Served) -> None:
    sent: list[int] = []
    faults = faults_of(lambda method, path: sent.append(hold(served, method, path, MOST_OF_ONE)))
    assert not faults, "\n\n".join(faults)
    assert sum(sent) >= 10_000
