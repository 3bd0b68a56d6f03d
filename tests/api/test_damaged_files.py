"""Every file that the API reads, damaged in turn: each route answers, and says no nonsense."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from small_runs import make_session, signed_in
from test_fuzz import document, make_job, make_selfplay

from benchmark_folder import a_benchmark, a_case, end_case
from p2p.contracts import SteeringOrder, utc_now
from p2p.session.labels import add_label
from p2p.session.steering import give_feedback
from unstable.config import RunConfig
from unstable.run import RunFolder, SelfPlayStatus

NOT_READ = (".lock", ".mp4", ".zip", ".sqlite")
KNOWN = {
    "session_id": "session_a", "iteration_id": "iter_1", "iter_num": "1", "run_id": "base_seed_1",
    "name": "eval_100_median.mp4", "game_id": "eval-1", "step": "100", "seq": "1", "number": "0",
    "video": "none",
}  # fmt: skip
ELSEWHERE = (
    "/api/envs", "/api/reward-templates", "/api/resources", "/api/providers", "/api/vlm",
    "/api/scheduler", "/api/benchmarks/options", "/api/selfplay/options",
)  # fmt: skip
"""What is read from no folder."""


def numbers(value: Any, other: str) -> Any:
    """The value with every number in it replaced."""
    if isinstance(value, dict):
        return {key: numbers(item, other) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item, other) for item in value]
    return other if isinstance(value, int | float) and not isinstance(value, bool) else value


def texts(value: Any, other: str) -> Any:
    """The value with every text in it replaced."""
    if isinstance(value, dict):
        return {key: texts(item, other) for key, item in value.items()}
    if isinstance(value, list):
        return [texts(item, other) for item in value]
    return other if isinstance(value, str) else value


def fields(value: Any, other: str) -> Any:
    """The value with every field of it replaced."""
    return dict.fromkeys(value, other) if isinstance(value, dict) else other


Change = Callable[[Any, str], Any]


def each_line(change: Change, other: str) -> Callable[[bytes], bytes]:
    """Damage to the JSON of a file, or to that of each of its lines; `other` is put in as it is."""

    def damaged(data: bytes) -> bytes:
        try:
            values = [json.loads(data)]
        except ValueError:
            values = [json.loads(line) for line in data.splitlines() if line[:1] == b"{"]
        lines = (json.dumps(change(value, "@other")) for value in values)
        return "".join(f"{line}\n" for line in lines).replace('"@other"', other).encode()

    return damaged


def whole(content: bytes) -> Callable[[bytes], bytes]:
    return lambda _: content


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": whole(b""),
    "truncated": lambda data: data[: len(data) // 2],
    "null": whole(b"null\n"),
    "list": whole(b"[]\n"),
    "number": whole(b"1e400\n"),
    "long number": whole(b"9" * 5000 + b"\n"),
    "deep": whole(b"[" * 100_000 + b"\n"),
    "deep object": whole(b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n"),
    "not UTF-8": whole(b'\xff\xfe{"a": 1}\n'),
    "NaN in numbers": each_line(numbers, "NaN"),
    "infinite numbers": each_line(numbers, "1e400"),
    "large numbers": each_line(numbers, "9" * 400),
    "negative numbers": each_line(numbers, "-5"),
    "text for numbers": each_line(numbers, '"x"'),
    "half characters": each_line(texts, '"\\ud800"'),
    "numbers for texts": each_line(texts, "5"),
    "null fields": each_line(fields, "null"),
    "objects for fields": each_line(fields, '{"1": null}'),
    "lists for fields": each_line(fields, "[{}]"),
    "deep fields": each_line(fields, "[" * 900 + "]" * 900),
}


@contextmanager
def served(folder: Path) -> Iterator[tuple[TestClient, str]]:
    """A server over one of everything, and the id of its benchmark."""
    runs, outputs = folder / "runs", folder / "outputs"
    session = make_session(runs, "session_a")
    session.llm_dir.mkdir()
    exchange = {"call": {"number": 1}, "response": {"text": "a"}}
    (session.llm_dir / "0001_intent.json").write_text(json.dumps(exchange))
    session.update_metadata(alias="a name")
    add_label(session, "iter_1/base_seed_1/videos/eval_100_median.mp4", 0.5, "me", "")
    give_feedback(session.path, SteeringOrder(remark="further", given_at=utc_now()))
    made, where = a_benchmark(runs, a_case(0), a_case(1))
    end_case(where, 0, "passed", 1.0)
    make_job(runs)
    make_selfplay(outputs / "nim")
    run = RunFolder(outputs / "nim")
    run.write_config(RunConfig())
    run.write_status(SelfPlayStatus("completed", 2, 2))
    shown = {"run_name": "nim", "step": 3, "match_counts": [["a", "b", 3]], "scalars": {"x": 1.0}}
    (run.path / "interface.json").write_text(json.dumps(shown))
    solved = {"ckpt_uid": "ckpt-1", "env_id": "Nim-v0", "exploitability": 0.5}
    (run.path / "eval_data" / "exploitability.jsonl").write_text(json.dumps(solved) + "\n")
    with signed_in(runs, outputs) as client:
        yield client, made.benchmark_id


def routes(benchmark_id: str) -> list[str]:
    """The addresses of everything that is read from folders."""
    names = {**KNOWN, "benchmark_id": benchmark_id}
    paths = [
        path for path, operations in document()["paths"].items()
        if "get" in operations and not path.endswith("/live") and not path.startswith(ELSEWHERE)
    ]  # fmt: skip
    return [
        path.format(**names | {"run_id": "nim"} if "selfplay" in path else names) for path in paths
    ]


def files(root: Path) -> list[Path]:
    found = (path for path in root.rglob("*") if path.is_file() and path.suffix not in NOT_READ)
    return sorted(path for path in found if not path.name.startswith("."))


def reads(path: str, route: str) -> bool:
    """Whether a route may look at a file: the lists look at all of them."""
    if "outputs" in path:
        return "/selfplay" in route
    of_one = next((name for name in ("session_a", "bm_", "/selfplay") if name in route), "")
    return not of_one or of_one in path


QUICK = ("half characters", "large numbers")
"""Two that have found much; each of the others takes as long."""


@pytest.mark.parametrize(
    "damage",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in DAMAGES],
)
def test_damaged_file_is_no_internal_error(tmp_path: Path, damage: str) -> None:
    with served(tmp_path) as (client, benchmark_id):
        index = client.app.app.state.p2p.index  # type: ignore[attr-defined]
        addresses = routes(benchmark_id)
        assert len(addresses) > 25
        for path in (*files(tmp_path / "runs"), *files(tmp_path / "outputs")):
            name, data = str(path.relative_to(tmp_path)), path.read_bytes()
            try:
                changed = DAMAGES[damage](data)
            except ValueError:  # it holds no JSON
                continue
            path.write_bytes(changed)
            os.utime(path.parent, ns=(time.time_ns(), time.time_ns()))
            index.refresh()
            for address in addresses:
                if reads(name, address):
                    answer = client.get(address)
                    assert answer.status_code < 500, (name, address, answer.text[:300])
            path.write_bytes(data)


def test_pipe_in_selfplay_folder_does_not_block(tmp_path: Path) -> None:
    with served(tmp_path) as (client, _):
        for path in files(tmp_path / "outputs"):
            if path.name == "config.json":
                continue
            data = path.read_bytes()
            path.unlink()
            os.mkfifo(path)
            assert client.get("/api/selfplay").status_code == 200
            assert client.get("/api/selfplay/nim").status_code in (200, 404)
            path.unlink()
            path.write_bytes(data)
