"""A session that was given no environment: who chooses it, who pays for that, and how often."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from model_servers import Answer, Failure, ModelServer, Reply, Slow
from model_wire import Received
from played_by_builtin import played_by_builtin
from processes import wait_until
from provided_session import ProvidedSessions, events, roles
from session_process import TINY, Sessions

from p2p.config import TrainConfig
from p2p.contracts import SessionConfig, SessionResult
from p2p.records.iteration_record import SessionRecord
from p2p.session.request import loop_config
from p2p.session.start import create_session
from p2p.settings import get_settings
from p2p.training import hp_presets

CHOOSER = "environment_chooser"
TRAIN = {name: value for name, value in TINY.items() if name != "env_id"}


def without_environment(provided: ProvidedSessions, model: str, **options: Any) -> SessionRecord:
    given: dict[str, Any] = {"model": model, **options}
    loop = loop_config(None, **given)
    return create_session(
        "balance", loop, session_id="session_e", runs_dir=provided.folder, options=given
    )


def up_to_the_criteria(received: Received) -> Reply:
    """The built-in author's choice; what comes after it is refused, so that nothing is trained."""
    if received.block[0] != CHOOSER:
        return Failure(401, "no more of this")
    return played_by_builtin(received)


def asked_for(session: SessionRecord) -> SessionConfig:
    found = session.config.read()
    assert found is not None
    return found


def test_the_choice_is_an_exchange_of_the_session_and_is_made_once(
    provided: ProvidedSessions,
) -> None:
    server = provided.serve("anthropic", up_to_the_criteria)
    session = without_environment(provided, server.model("anthropic"), gamma=0.5, configs=2)
    before = asked_for(session)
    assert before.env_id == ""
    result = provided.run(session)
    assert result.status == "auth_error"
    assert roles(server) == [CHOOSER, "intent_elicitor"]
    kept = json.loads((session.llm_dir / f"0001_{CHOOSER}.json").read_text())
    assert kept["call"]["cost_usd"] == pytest.approx(result.cost_usd)
    assert result.cost_usd > 0
    assert [call["role"] for call in events(session, "llm.call")] == [CHOOSER]
    (ended,) = events(session, "environment.end")
    after = asked_for(session)
    assert after.env_id == "InvertedPendulum-v5" == ended["env_id"]
    assert after.env_reason == ended["reason"] != ""
    # As if it had been named from the start.
    named = loop_config(after.env_id, model=server.model("anthropic"), gamma=0.5, configs=2)
    assert after.loop == named
    assert after.options is None
    assert f"{after.env_id} (chosen: {after.env_reason})" in session.report_path.read_text()
    assert provided.run(session, resume=True).status == "auth_error"
    assert roles(server).count(CHOOSER) == 1


def test_what_the_choice_costs_counts_against_the_budget(provided: ProvidedSessions) -> None:
    server = provided.serve("anthropic", played_by_builtin)
    prices = provided.folder.parent / "prices.json"
    prices.write_text(json.dumps({server.model("anthropic"): {"input": 1.0, "output": 1000.0}}))
    provided.monkeypatch.setenv("P2P_PRICES", str(prices))
    get_settings.cache_clear()
    # An answer costs 0.05, and is only asked for where 1.024 are left: there is enough for one.
    session = without_environment(provided, server.model("anthropic"), budget_usd=1.06)
    result = provided.run(session)
    assert result.status == "budget_exhausted"
    assert roles(server) == [CHOOSER]
    assert result.cost_usd == pytest.approx(0.05, abs=0.01)
    assert provided.run(session, resume=True).status == "budget_exhausted"
    assert roles(server) == [CHOOSER]


def test_a_budget_that_was_changed_before_the_choice_stays_changed(
    provided: ProvidedSessions,
) -> None:
    server = provided.serve("anthropic", lambda _: Failure(401, "no such key"))
    session = without_environment(provided, server.model("anthropic"), budget_usd=0.5, seeds=2)
    assert provided.run(session).status == "auth_error"
    server = provided.serve("anthropic", up_to_the_criteria)
    provided.run(session, resume=True, budget_usd=7.0)
    after = asked_for(session)
    assert (after.loop.budget_usd, after.loop.seeds) == (7.0, (1, 2))
    assert after.env_id == "InvertedPendulum-v5"


def no_body(received: Received) -> Reply:
    return Answer({"env_id": None, "reason": "nobody here can fly."})


def refused(
    provided: ProvidedSessions, script: Any, **options: Any
) -> tuple[SessionRecord, SessionResult]:
    server = provided.serve("anthropic", script)
    session = without_environment(provided, server.model("anthropic"), **options)
    return session, provided.run(session)


def test_where_no_body_can_do_it_the_session_ends_with_a_cause(provided: ProvidedSessions) -> None:
    session, result = refused(provided, no_body)
    assert result.status == "error"
    assert result.message == "no environment fits: nobody here can fly."
    status = session.read_status()
    assert status is not None
    assert (status.status, status.error) == ("error", result.message)
    assert not events(session, "session.traceback")


def test_options_that_do_not_fit_what_was_chosen_are_told(provided: ProvidedSessions) -> None:
    """More minibatches than a batch of the pendulum has steps, where its preset has a small one."""

    def preset(env_id: str, **fields: Any) -> TrainConfig:
        return TrainConfig(env_id=env_id, num_steps=8 if "Pendulum" in env_id else 256, **fields)

    provided.monkeypatch.setattr(hp_presets, "quick_config", preset)
    session, result = refused(provided, up_to_the_criteria, num_minibatches=512)
    assert result.status == "error"
    assert result.message.startswith("InvertedPendulum-v5 fits best, but not with these options: ")
    assert "num_minibatches" in result.message
    assert "\n" not in result.message
    assert not events(session, "session.traceback")


@pytest.mark.slow
def test_killed_after_the_choice_it_goes_on_without_asking_for_it_again(tmp_path: Path) -> None:
    def script(received: Received) -> Reply:
        if received.block[0] == CHOOSER:
            return played_by_builtin(received)
        return Slow(2.0, Failure(401, "no more of this"))

    sessions = Sessions(tmp_path)
    with ModelServer(script) as server:
        sessions.env = server.environment("anthropic")
        process = sessions.new("session_k", {"model": server.model("anthropic"), "train": TRAIN})
        wait_until(lambda: len(server.requests) == 2 or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        again = sessions.resume("session_k")
        _, err = again.communicate(timeout=60)
        assert again.returncode == 6, err
        assert roles(server) == [CHOOSER, "intent_elicitor", "intent_elicitor"]
    config = asked_for(sessions.record("session_k"))
    assert config.env_id == "InvertedPendulum-v5"
    assert config.loop.train.num_envs == TRAIN["num_envs"]
