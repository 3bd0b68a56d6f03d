"""From a suite to sessions and one job."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_folder import a_benchmark, a_case, a_request
from p2p.benchmark.planning import job_of, plan, prepare, split_into_stages, workload
from p2p.benchmark.records import BENCHMARK_ID, Benchmark, case_record, read_benchmark
from p2p.benchmark.suite import SHIPPED, Case, load_suite
from p2p.config import LoopConfig
from p2p.scheduler.records import JobSpec
from p2p.session.request import loop_config
from p2p.settings import session_path

CASES = [a_case(number) for number in (2, 3, 5, 7)]


def test_plan_without_options_gives_trainable_configs() -> None:
    made = plan(load_suite(SHIPPED), SHIPPED, a_request({}))
    for case in made.cases:
        loop = loop_config(case.env_id, **made.options)
        assert loop.train.num_envs >= 1
        assert loop.pass_threshold == LoopConfig().pass_threshold
        assert loop.max_iterations == LoopConfig().max_iterations


def test_sessions_lie_where_their_ids_say_and_have_the_options(tmp_path: Path) -> None:
    options = {"configs": 3, "seeds": [4, 5], "total_timesteps": 1000, "num_envs": None}
    made, folder = a_benchmark(tmp_path, *CASES, options=options)
    assert BENCHMARK_ID.fullmatch(folder.name)
    for case in CASES:
        session = case_record(folder, case.number)
        asked = session.config.read()
        assert asked is not None
        assert tmp_path / session_path(asked.session_id) == session.path
        assert (asked.prompt, asked.env_id) == (case.instruction, case.env_id)
        assert len(asked.loop.configs) == 3
        assert asked.loop.seeds == (4, 5)
        assert asked.loop.train.total_timesteps == 1000
        assert session.derive_status() == "pending"
    assert read_benchmark(folder) == made
    with pytest.raises(ValueError, match="every case must be in one of them, once"):
        Benchmark.model_validate({**made.model_dump(), "stages": ((2, 3), (5,))})


def test_no_session_is_told_its_truth(tmp_path: Path) -> None:
    case = a_case(0, truth="reach_gap", threshold=0.0123)
    _, folder = a_benchmark(tmp_path, case)
    files = [path for path in (folder / "case0").rglob("*") if path.is_file()]
    assert files
    assert not any(b"reach_gap" in f.read_bytes() or b"0.0123" in f.read_bytes() for f in files)


def test_prepare_again_makes_only_what_is_missing(tmp_path: Path) -> None:
    made, folder = a_benchmark(tmp_path, *CASES)
    kept, lost = case_record(folder, 2), case_record(folder, 3)
    kept.set_status("running")
    before = kept.config.path.read_bytes()
    lost.config.path.unlink()
    assert prepare(made, tmp_path) == folder
    assert kept.config.path.read_bytes() == before
    assert kept.read_status() is not None
    assert lost.config.path.exists()


def names(job: JobSpec) -> list[str]:
    return [run.run_id.removeprefix(f"{job.job_id}_") for run in job.runs]


def test_a_flat_job_has_a_run_for_each_case_and_no_gate(tmp_path: Path) -> None:
    made, _ = a_benchmark(tmp_path, *CASES, cores_per_run=2, max_parallel=3)
    job = job_of(made, tmp_path)
    assert (job.kind, job.max_parallel, job.job_id) == ("benchmark", 3, made.benchmark_id)
    assert names(job) == ["case2", "case3", "case5", "case7"]
    assert {run.cores for run in job.runs} == {2}
    assert not any(run.after or run.requires for run in job.runs)
    assert [run.folder for run in job.runs] == [f"{job.job_id}/case{n}" for n in (2, 3, 5, 7)]


def test_staged_job_orders_cases_and_gates(
    tmp_path: Path,
) -> None:
    made, folder = a_benchmark(tmp_path, *CASES, mode="staged", num_stages=3, gate_threshold=0.5)
    job = job_of(made, tmp_path)
    assert names(job) == ["case2", "gate0", "case3", "gate1", "case5", "case7"]
    runs = dict(zip(names(job), job.runs, strict=True))
    assert runs["case3"].requires == (runs["gate0"].run_id,)
    assert runs["case7"].requires == (runs["gate1"].run_id,)
    assert runs["gate1"].after == (runs["case3"].run_id,)
    assert runs["gate1"].nodes == ("local",)
    assert (folder / "gate1").is_dir()
    assert not (folder / "gate2").exists()


def test_benchmark_job_names_keys_and_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from p2p.settings import get_settings

    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-to-be-written")
    get_settings.cache_clear()
    options = {"model": "anthropic:claude-x", "trackers": ["wandb"]}
    made, folder = a_benchmark(tmp_path, a_case(0), options=options)
    job = job_of(made, tmp_path)
    get_settings.cache_clear()
    assert "ANTHROPIC_API_KEY" in job.runs[0].secrets
    assert "WANDB_API_KEY" in job.runs[0].secrets
    texts = [job.model_dump_json(), *(p.read_text() for p in folder.rglob("*.json"))]
    assert not any("sk-not-to-be-written" in text for text in texts)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_envs": 0}, "num_envs"),
        ({"pass_threshold": 2}, "pass_threshold"),
        ({"configs": 99}, "99 is not 1 to"),
        ({"max_itertions": 1}, "did you mean max_iterations"),
    ],
)
def test_plan_refuses_options_of_no_session(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        plan(CASES, "x.csv", a_request(options))


# --- stages ---------------------------------------------------------------------------------------

SUITES = st.lists(
    st.tuples(st.sampled_from(["easy", "medium", "hard"]), st.sampled_from("ABC")), min_size=1
).map(lambda rows: [a_case(n, difficulty=hard, env_id=env) for n, (hard, env) in enumerate(rows)])


@given(SUITES, st.integers(1, 40))
def test_split_into_stages_covers_all_cases_evenly(cases: list[Case], num_stages: int) -> None:
    stages = split_into_stages(cases, num_stages)
    assert sorted(case.number for stage in stages for case in stage) == list(range(len(cases)))
    sizes = [len(stage) for stage in stages]
    assert len(stages) == min(num_stages, len(cases))
    assert max(sizes) - min(sizes) <= 1


def test_stages_of_shipped_suite_are_balanced() -> None:
    for stage in split_into_stages(load_suite(SHIPPED), 5):
        counts = Counter(case.difficulty for case in stage)
        assert len(counts) == 3
        assert max(counts.values()) - min(counts.values()) <= 2
        assert len({case.env_id for case in stage}) >= 6
    with pytest.raises(ValueError, match="0 is too few"):
        split_into_stages(CASES, 0)


def test_workload_counts_more_time_for_sac() -> None:
    cases = load_suite("mujoco_prompts")[:2]
    usual, slower = (
        workload(plan(cases, "x", a_request({"algorithm": name, "total_timesteps": 100_000})), 1)
        for name in ("ppo", "sac")
    )
    assert usual.steps == slower.steps
    assert slower.minutes[0] > 3 * usual.minutes[0]


def test_workload_has_cost_and_limit_of_paid_model() -> None:
    cases = [a_case(0), a_case(1)]
    options = {"model": "openai:gpt-5", "max_iterations": 4}
    needed = workload(plan(cases, "x", a_request(options)), 2)
    assert needed.cost_usd is not None
    assert needed.cost_usd[1] == pytest.approx(4 * needed.cost_usd[0])
    assert needed.cost_usd[0] > 0
    assert "no limit (--budget-usd)" in needed.lines[-1]
    bounded = workload(plan(cases, "x", a_request({**options, "budget_usd": 2.0})), 2)
    assert "at most $2 a prompt" in bounded.lines[-1]
    unpriced = workload(plan(cases, "x", a_request({"model": "openai:nobody-knows-me"})), 2)
    assert "unknown price" in unpriced.lines[-1]
