"""Benchmarks on disk, written with the project's own records, and policies that do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from p2p.benchmark.planning import BenchmarkRequest, plan, prepare
from p2p.benchmark.records import Benchmark, case_record
from p2p.benchmark.suite import Case
from p2p.contracts import JudgmentResult, SessionResult, StatusLiteral
from p2p.training.policies.network import NetworkShape
from p2p.training.policies.policy import Policy
from session_folder import INTENT


def a_case(number: int, **fields: Any) -> Case:
    given = {
        "env_id": "Reacher-v5",
        "instruction": f"prompt {number}",
        "category": "manipulation",
        "difficulty": "easy",
    }
    return Case.model_validate({"number": number, **given, **fields})


def a_benchmark(runs_dir: Path, *cases: Case, **how: Any) -> tuple[Benchmark, Path]:
    """A new benchmark with its folders."""
    nodes = how.get("nodes", ())
    made = plan(cases, "tests.csv", a_request(how.pop("options", {}), **how), nodes)
    return made, prepare(made, runs_dir)


def a_request(options: Mapping[str, Any], **how: Any) -> BenchmarkRequest:
    """These options of the sessions, by the names of LoopConfig and TrainConfig."""
    fields = {"model": "builtin", "vlm_model": "", "gate_threshold": 0.0, **options, **how}
    own = {name: v for name, v in fields.items() if name in BenchmarkRequest.model_fields}
    settings = {name: v for name, v in fields.items() if name not in own}
    return BenchmarkRequest.model_validate({**own, "settings": settings})


def idle_policy(obs_dim: int, action_dim: int, *, push: float = 0.0) -> Policy:
    """It gives the same action at every step: by default none."""
    shape = NetworkShape(obs_dim, action_dim, (4,), "tanh")
    tensors = {name: np.zeros(dims, np.float32) for name, dims in shape.parameters().items()}
    tensors["action_net.bias"] += np.float32(push)
    return Policy(
        shape=shape,
        tensors=tensors,
        obs_mean=np.zeros(obs_dim),
        obs_var=np.ones(obs_dim),
        action_low=np.full(action_dim, -1, np.float32),
        action_high=np.full(action_dim, 1, np.float32),
        env_id="",
    )


def end_case(
    folder: Path,
    number: int,
    status: StatusLiteral,
    score: float | None = None,
    *,
    policy: Policy | None = None,
    unchecked: tuple[str, ...] = (),
    **fields: Any,
) -> None:
    """A session that ended so, with the policy it made."""
    record = case_record(folder, number)
    if unchecked:
        record.intent.save(INTENT.model_copy(update={"unused_words": unchecked}))
    where: dict[str, Any] = {}
    if policy is not None:
        run = record.iteration(1).path / "base_seed_1"
        step = run / "checkpoints" / "step_100"
        step.mkdir(parents=True)
        policy.save(step / "policy.safetensors")
        where = {
            "best_iteration": 1,
            "run_id": "base_seed_1",
            "step": 100,
            "policy": "iter_1/base_seed_1/checkpoints/step_100/policy.zip",
            "videos": ("iter_1/base_seed_1/videos/eval_100_median.mp4",),
        }
    if score is not None:
        judged = JudgmentResult(intent_score=score, passed=status == "passed")
        record.iteration(1).save_judgment(judged)
    result = SessionResult(status=status, score=score, iterations=1, **{**where, **fields})
    record.result.save(result)
    record.set_status("running")
    record.set_status(status, fields.get("message"))
