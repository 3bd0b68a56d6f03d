"""What is changed after an iteration, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.revise import revise
from p2p.agents.builtin.reward import read_recipe, write_reward
from p2p.agents.requests import IntentRequest, PastIteration, ReviseRequest, RewardRequest
from p2p.contracts import CriterionScore
from p2p.training.hp_presets import quick_config

ENV, PROMPT = "Hopper-v5", "hop forward"
CRITERIA = write_criteria(IntentRequest(prompt=PROMPT, env_id=ENV)).criteria
CODE = write_reward(RewardRequest(prompt=PROMPT, env_id=ENV, criteria=CRITERIA)).code
TUNABLE = quick_config(ENV).model_dump(
    include={"total_timesteps", "learning_rate", "gamma", "ent_coef", "log_std_init"}
)


def request(scores: dict[str, float] | None = None, **changes: Any) -> ReviseRequest:
    given = {c.id: 1.0 for c in CRITERIA} | (scores or {})
    fields: dict[str, Any] = {
        "prompt": PROMPT,
        "env_id": ENV,
        "criteria": CRITERIA,
        "iteration": 1,
        "best_iteration": 1,
        "reward_code": CODE,
        "score": min(given.values()),
        "pass_threshold": 0.8,
        "criterion_scores": tuple(CriterionScore(id=n, score=s) for n, s in given.items()),
        "failure_tags": (),
        "diagnosis": "",
        "dynamics": "",
        "hyperparameters": TUNABLE,
        "history": (PastIteration(iteration=1, parent=None, score=0.5, final_return=1.0),),
        **changes,
    }
    return ReviseRequest.model_validate(fields)


def weights(code: str) -> dict[str, float]:
    recipe = read_recipe(code)
    assert recipe is not None
    return {term.name: term.weight for term in recipe.terms}


def test_a_task_that_is_nearly_met_gets_more_steps_and_more_weight() -> None:
    found = revise(request({"goes_forward": 0.6}, still_improving=True))
    assert found.hp_changes["total_timesteps"] == 2 * TUNABLE["total_timesteps"]
    assert weights(found.reward_code)["forward_speed"] > weights(CODE)["forward_speed"]
    assert "Goes forward" in found.diagnosis


def test_after_falls_staying_up_counts_more() -> None:
    found = revise(request({"does_not_end_early": 0.2}, failure_tags=("early_end", "fell")))
    assert weights(found.reward_code)["alive"] > weights(CODE)["alive"]
    assert found.hp_changes["gamma"] > TUNABLE["gamma"]


def test_a_rare_fall_is_not_what_is_mended_first() -> None:
    found = revise(request({"goes_up_and_down": 0.2}, failure_tags=("early_end", "fell")))
    before, after = weights(CODE), weights(found.reward_code)
    assert after["bounce"] > before["bounce"]
    assert after["tilt"] == before["tilt"]


def test_where_nothing_moves_costs_count_less() -> None:
    found = revise(request({"goes_forward": 0.0}, failure_tags=("no_motion",)))
    before, after = weights(CODE), weights(found.reward_code)
    assert after["effort"] < before["effort"]
    assert after["forward_speed"] == before["forward_speed"]


def test_manner_counts_more_once_the_task_is_met() -> None:
    found = revise(request({"does_not_shake": 0.3}))
    assert weights(found.reward_code)["effort"] > weights(CODE)["effort"]
    assert not found.hp_changes


def test_what_is_fixed_stays() -> None:
    fixed = ("total_timesteps", "gamma", "log_std_init", "ent_coef", "learning_rate")
    found = revise(request({"goes_forward": 0.4}, still_improving=True, fixed=fixed))
    assert not found.hp_changes
    assert found.reward_code != CODE


def test_nothing_is_proposed_twice() -> None:
    history = [PastIteration(iteration=1, parent=None, score=0.5, final_return=1.0)]
    seen: set[str] = set()
    for number in range(1, 12):
        found = revise(
            request({"goes_forward": 0.4}, iteration=number, best_iteration=number,
                    history=tuple(history), failure_tags=("too_slow",))
        )  # fmt: skip
        assert found.changes not in seen
        seen.add(found.changes)
        history.append(
            PastIteration(iteration=number + 1, parent=1, score=0.5, final_return=1.0,
                          changes=found.changes)
        )  # fmt: skip


def test_a_refused_proposal_is_followed_by_another() -> None:
    asked = request({"goes_forward": 0.4}, failure_tags=("too_slow",))
    proposals = [revise(asked, refusals) for refusals in range(4)]
    assert len({(p.reward_code, str(p.hp_changes)) for p in proposals}) == 4


def test_it_goes_back_to_the_best_when_the_last_was_worse() -> None:
    worse = CODE.replace("Hop forward", "Something else")
    history = (
        PastIteration(iteration=1, parent=None, score=0.7, final_return=1.0),
        PastIteration(iteration=2, parent=1, score=0.3, final_return=1.0, changes="alive 1 to 9"),
    )
    found = revise(
        request({"goes_forward": 0.3}, iteration=2, best_iteration=1, reward_code=worse,
                best_reward_code=CODE, history=history)
    )  # fmt: skip
    assert found.based_on == 1
    assert "Something else" not in found.reward_code
    assert "hurt" in found.lesson


@pytest.mark.parametrize(
    ("remark", "term", "field"),
    [("make it faster", "forward_speed", "target"), ("smoother please", "effort", "weight")],
)
def test_remarks_are_taken_up(remark: str, term: str, field: str) -> None:
    found = revise(request({"goes_forward": 0.9}, remarks=(remark,)))
    recipe, before = read_recipe(found.reward_code), read_recipe(CODE)
    assert recipe is not None
    assert before is not None
    new, old = (
        next(getattr(t, field) for t in r.terms if t.name == term) for r in (recipe, before)
    )
    assert new > old
    assert found.remarks_taken_up


def test_a_remark_may_ask_for_something_new_or_be_beyond_us() -> None:
    found = revise(request(remarks=("crouch low",)))
    recipe = read_recipe(found.reward_code)
    assert recipe is not None
    assert any(t.quantity == "height" and t.shape in ("under", "near") for t in recipe.terms)
    told = revise(request({"goes_forward": 0.3}, remarks=("more pizzazz",)))
    assert "pizzazz" in told.remarks_taken_up


def test_a_persons_own_reward_is_kept_and_trained_longer() -> None:
    own = "def reward_fn(obs, action, next_obs, info):\n    return 0.0, {}\n"
    found = revise(request({"goes_forward": 0.2}, reward_code=own))
    assert found.reward_code == own
    assert found.hp_changes


def test_what_could_not_be_trained_is_made_simpler() -> None:
    found = revise(request(training_error="it diverged", score=None, best_iteration=None))
    assert set(weights(found.reward_code)) == {"forward_speed", "alive"}
    assert found.hp_changes["learning_rate"] < TUNABLE["learning_rate"]
    assert "it diverged" in found.diagnosis
