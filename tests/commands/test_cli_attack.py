"""`p2p attack`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_runner import Cli

from p2p.agents.builtin.judge import write_judge
from p2p.agents.requests import JudgeRequest
from p2p.commands.runs import open_run
from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import AuthoredCode, Criterion, Intent, SessionConfig, utc_now
from p2p.records.iteration_record import SessionRecord


def write_session(folder: Path, train: TrainConfig, prompt: str, criterion: Criterion) -> None:
    """A session with one criterion and the built-in judge of it."""
    record = SessionRecord(folder / "session_20260101_000000_00000000")
    loop = LoopConfig(train=train)
    record.config.save(
        SessionConfig(
            session_id=record.session_id, prompt=prompt, loop=loop, created_at=utc_now(),
            version="0",
        )
    )  # fmt: skip
    criteria = (criterion,)
    record.intent.save(Intent(prompt=prompt, env_id=train.env_id, criteria=criteria, author="user"))
    request = JudgeRequest(prompt=prompt, env_id=train.env_id, criteria=criteria, columns={})
    record.judge.save(AuthoredCode(code=write_judge(request).code, author="builtin", valid=True))
    record.set_status("passed")


def speed(threshold: float) -> Criterion:
    return Criterion(
        id="speed", title="Goes forward", description="", measure="mean forward speed",
        comparison="at_least", threshold=threshold, unit="m/s", weight=1.0, category="task",
    )  # fmt: skip


def test_a_hole_is_found_and_can_be_watched(
    p2p: Cli, tmp_path: Path, small_config: TrainConfig
) -> None:
    write_session(tmp_path / "runs", small_config, "sprint backward", speed(-3.0))
    outcome = p2p("attack", "last", "--jobs", 1)
    assert outcome.status == 3, outcome.err
    assert "FALSE PASS" in outcome.out
    assert max(map(len, outcome.out.split("\n\n")[0].splitlines())) <= 80
    watch = re.search(r"p2p play (\S+)", outcome.out)
    assert watch is not None
    record, config, _ = open_run(watch[1])
    assert record.path.is_relative_to("runs/session_20260101_000000_00000000/attack")
    assert config.env_id == "HalfCheetah-v5"


def test_without_a_hole_it_succeeds(p2p: Cli, tmp_path: Path, small_config: TrainConfig) -> None:
    balance = Criterion(
        id="lasts", title="Does not end early", description="",
        measure="share of the full time that the episode lasts", comparison="at_least",
        threshold=0.95, weight=1.0, category="task",
    )  # fmt: skip
    train = small_config.with_updates(env_id="InvertedPendulum-v5")
    write_session(tmp_path / "runs", train, "balance the pole", balance)
    outcome = p2p("attack", "last", "--json", "--jobs", 1)
    assert outcome.status == 0, outcome.err
    [attack] = outcome.json["attacks"]
    assert (attack["passed"], attack["error"], attack["missed"]) == (
        False, "", ["Does not end early"],
    )  # fmt: skip


@pytest.mark.parametrize("missing", ["intent.json", "judge.json"])
def test_without_criteria_or_judge_it_says_so(
    p2p: Cli, tmp_path: Path, small_config: TrainConfig, missing: str
) -> None:
    write_session(tmp_path / "runs", small_config, "run forward", speed(1.0))
    (tmp_path / "runs" / "session_20260101_000000_00000000" / missing).unlink()
    assert "nothing to attack yet" in p2p("attack", "last").error
