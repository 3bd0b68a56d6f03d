"""A whole session with every kind of model provider: real SDKs, real HTTP, real training."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_servers import Answer, Failure, ProviderName, Reply
from model_wire import TOKENS_IN, TOKENS_OUT, Received
from played_by_builtin import REWORDED, played_by_builtin, too_easy_at_first
from provided_session import ProvidedSessions, events, provided_sessions, roles

from p2p.contracts import Intent, SessionResult
from p2p.records.folder import ModelFile
from p2p.records.iteration_record import SessionRecord
from p2p.settings import get_settings

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def by_builtin(kept: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the built-in author's session comes to."""
    with (
        pytest.MonkeyPatch.context() as patch,
        provided_sessions(tmp_path_factory.mktemp("b"), kept, patch) as sessions,
    ):
        record = sessions.new("session_b", "builtin")
        return outcome(record, sessions.run(record))


def outcome(session: SessionRecord, result: SessionResult) -> dict[str, Any]:
    """What a session came to, whoever has thought."""
    intent, judge = session.intent.read(), session.judge.read()
    assert intent is not None
    assert judge is not None
    iterations = []
    for iteration in session.iteration_records():
        reward, judgment = iteration.reward.read(), iteration.read_judgment()
        revision = iteration.revision.read()
        assert reward is not None
        assert judgment is not None
        iterations.append(
            (reward.code, judgment, revision and (revision.changes, revision.hp_changes))
        )
    return {
        "criteria": [
            each.model_copy(update={"measure": each.measure.removesuffix(REWORDED)})
            for each in intent.criteria
        ],
        "judge": judge.code,
        "iterations": iterations,
        "status": result.status,
        "best": (result.best_iteration, result.score),
        "questions": len(exchanges(session)),
    }


def exchanges(session: SessionRecord) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(session.llm_dir.glob("*.json"))]


def test_a_session_by_a_provider_ends_like_that_of_the_builtin_author(
    provided: ProvidedSessions, by_builtin: dict[str, Any]
) -> None:
    server = provided.serve("anthropic", played_by_builtin)
    session = provided.new("session_a", server.model("anthropic"))
    result = provided.run(session)
    assert outcome(session, result) == by_builtin
    assert result.status == "max_iterations"
    # Every request is metered and kept, in an event and a file of its own.
    calls = len(server.requests)
    assert (
        result.model_calls == calls == len(exchanges(session)) == len(events(session, "llm.call"))
    )
    assert result.tokens == calls * (TOKENS_IN + TOKENS_OUT)
    assert result.cost_usd > 0
    intent = session.intent.read()
    assert intent is not None
    assert intent.author == server.model("anthropic")
    assert provided.files_with_the_key() == []


@pytest.mark.parametrize("provider", ["openai", "google", "openai-compatible"])
def test_every_provider_brings_a_session_to_its_first_verdict(
    provided: ProvidedSessions, by_builtin: dict[str, Any], provider: ProviderName
) -> None:
    """The same up to the revision, and without reviews."""
    server = provided.serve(provider, played_by_builtin)
    options = {"max_iterations": 1, "review_reward": False, "review_judge": False}
    session = provided.new(f"session_{provider}", server.model(provider), **options)
    result = provided.run(session)
    found = outcome(session, result)
    assert result.status == "max_iterations"
    assert found["criteria"] == by_builtin["criteria"]
    assert [i[:2] for i in found["iterations"]] == [i[:2] for i in by_builtin["iterations"][:1]]
    assert result.model_calls == len(server.requests) == len(exchanges(session))
    assert provided.files_with_the_key() == []


def test_criteria_that_take_no_skill_are_rewritten_once(
    provided: ProvidedSessions, by_builtin: dict[str, Any]
) -> None:
    server = provided.serve("anthropic", too_easy_at_first)
    session = provided.new("session_e", server.model("anthropic"), max_iterations=1)
    save = ModelFile.save

    def stop_before_the_last(file: ModelFile[Any], value: Any) -> None:
        if isinstance(value, Intent) and value.final:
            raise KeyboardInterrupt
        save(file, value)

    with provided.monkeypatch.context() as patch:  # the criteria are paid for and not yet saved
        patch.setattr(ModelFile, "save", stop_before_the_last)
        assert provided.run(session).status == "cancelled"
    result = provided.run(session, resume=True)
    found = outcome(session, result)
    assert found["criteria"] == by_builtin["criteria"]
    assert found["iterations"][0][:2] == by_builtin["iterations"][0][:2]
    assert result.model_calls == len(server.requests) == len(exchanges(session))
    asked = [received.block for received in server.requests]
    [first, second] = [request for role, request in asked if role == "intent_elicitor"]
    assert "rejected" not in first
    assert {c["threshold"] for c in second["rejected"]["criteria"]} == {1e-3, 1e6}
    assert second["rejected"]["measured"][0].startswith("zero actions, episode 1: keeps_the_pole")
    [fix] = [request for role, request in asked if role == "fix"]
    assert "give it unchanged" in fix["problems"][-1]
    told = "criteria rewritten: zero actions and random actions met the first ones."
    assert told in session.report_path.read_text()
    assert session.validate() == []


def sees(score: float) -> Callable[[Received], Reply]:
    """A provider's model that also looks, and gives every criterion this score."""

    def reply(received: Received) -> Reply:
        role, request = received.block
        if role != "visual_judge":
            return played_by_builtin(received)
        seen = [{"id": c["id"], "score": score, "evidence": "seen"} for c in request["criteria"]]
        return Answer(
            {"analysis": "it falls", "criteria": seen, "diagnosis": "it stands", "failure_tags": []}
        )

    return reply


def pictures(received: Received) -> list[Any]:
    """What was shown, decoded."""
    import av
    from PIL import Image

    found: list[Any] = []
    for kind, data in received.media:
        if kind == "video/mp4":
            with av.open(io.BytesIO(data)) as container:
                found += [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        else:
            found.append(Image.open(io.BytesIO(data)).convert("RGB"))
    return found


@pytest.mark.parametrize("provider", ["openai", pytest.param("google", marks=pytest.mark.slow)])
def test_a_model_that_looks_sees_real_pictures_and_disagreement_is_settled(
    provided: ProvidedSessions, provider: ProviderName
) -> None:
    import numpy as np

    server = provided.serve(provider, sees(1.0))
    model = server.model(provider)
    session = provided.new("session_v", model, vlm_model=model, max_iterations=1)
    result = provided.run(session)
    assert result.status == "max_iterations"
    looks = [received for received in server.requests if received.block[0] == "visual_judge"]
    judgment, intent = session.iteration(1).read_judgment(), session.intent.read()
    assert judgment is not None
    assert intent is not None
    hard = {criterion.id for criterion in intent.criteria if criterion.hard}
    missed = [
        {each.id for each in opinion.criteria if each.id in hard and each.score != 1}
        for rollout in judgment.rollouts
        for opinion in rollout.opinions
        if opinion.judge == "code"
    ]
    # Where code finds one missed in every episode, and that is upheld, one look is enough.
    assert len(looks) == (1 if set.intersection(*missed) else 3)
    for look in looks:
        shown = pictures(look)
        assert len(shown) >= 2
        assert all(np.asarray(picture).std() > 5 for picture in shown)  # nothing black or blank
    assert "synthesiser" in roles(server)  # the code judge says less than one
    assert judgment.unavailable == {}
    assert judgment.strategy == "both"
    assert {o.judge for r in judgment.rollouts for o in r.opinions} == {"code", "vlm"}
    assert result.model_calls == len(server.requests)
    assert provided.files_with_the_key() == []


def test_a_budget_ends_a_session_and_a_higher_one_goes_on_without_paying_twice(
    provided: ProvidedSessions, by_builtin: dict[str, Any]
) -> None:
    server = provided.serve("anthropic", played_by_builtin)
    dear = {"input": 1.0, "output": 1000.0}  # an answer costs 0.05, and may cost more than a dollar
    prices = provided.folder.parent / "prices.json"
    prices.write_text(json.dumps({server.model("anthropic"): dear}))
    provided.monkeypatch.setenv("P2P_PRICES", str(prices))
    get_settings.cache_clear()
    session = provided.new("session_m", server.model("anthropic"), budget_usd=1.15)
    result = provided.run(session)
    assert result.status == "budget_exhausted"
    assert "resume with a higher one" in result.message
    paid = [exchange["key"] for exchange in exchanges(session)]
    assert len(paid) == result.model_calls == len(server.requests) == 3
    assert result.cost_usd == pytest.approx(0.15, abs=0.01)
    again = provided.run(session, resume=True, budget_usd=50.0)
    assert outcome(session, again) == by_builtin
    keys = [exchange["key"] for exchange in exchanges(session)]
    assert keys[: len(paid)] == paid
    assert len(set(keys)) == len(keys) == len(server.requests)


@pytest.mark.parametrize(
    ("provider", "failure", "status", "told", "asked"),
    [
        ("anthropic", Failure(429, "slow down"), "rate_limited", "slow down", 3),
        ("openai", Failure(429, "slow down", {"Retry-After": "3600"}), "rate_limited", "3600 s", 1),
        ("google", Failure(429, "slow down"), "rate_limited", "tried 3 times", 3),
        ("anthropic", Failure(401, "no such key"), "auth_error", "the key is refused", 1),
        ("openai", Failure(401, "no such key"), "auth_error", "the key is refused", 1),
        ("google", Failure(401, "no such key"), "auth_error", "the key is refused", 1),
        ("openai-compatible", Failure(404, "no model"), "error", "no such model", 1),
    ],
)
def test_a_provider_that_refuses_ends_the_session_with_its_status(
    provided: ProvidedSessions,
    provider: ProviderName,
    failure: Failure,
    status: str,
    told: str,
    asked: int,
) -> None:
    server = provided.serve(provider, lambda _: failure)
    session = provided.new("session_r", server.model(provider))
    result = provided.run(session)
    assert (result.status, len(server.requests)) == (status, asked)
    assert told in result.message
    assert "\n" not in result.message
    found = session.read_status()
    assert found is not None
    assert (found.status, found.error) == (status, result.message)
    assert provided.files_with_the_key() == []
