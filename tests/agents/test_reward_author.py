"""Rewards: drafted, run in the sandbox on the real environment, reviewed, ranked, repaired."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from scripted_client import (
    ScriptedClient,
    blocks,
    fixes,
    hopper_intent,
    in_turn,
    kinds,
    prompt_text,
)

from p2p.agents import screening
from p2p.agents.requests import AlternativeRequest, CodeDraft, CodeReview, FixRequest, ReviewRequest
from p2p.agents.reward_author import RewardAuthor, write_candidates
from p2p.agents.screening import pay_behaviours, shorten_episodes
from p2p.config import TrainConfig
from p2p.contracts import AuthoredCode
from p2p.inference.question import BadReply
from p2p.training import reward_check
from p2p.training.reward_function import EnvironmentFailed

CONFIG = TrainConfig(env_id="Hopper-v5")
INTENT = hopper_intent()


def reward(body: str) -> str:
    return f"def reward_fn(obs, action, next_obs, info):\n{body}"


UPRIGHT = reward(
    "    up = np.exp(-10.0 * np.square(next_obs[..., 1]))\n"
    "    calm = -0.001 * np.sum(np.square(action), axis=-1)\n"
    "    return up + calm, {'up': up, 'calm': calm}\n"
)
WRONG_KEY = reward("    return info['speed'], {'speed': info['speed']}\n")
COSTS = reward("    cost = -1.0 - np.square(next_obs[..., 1])\n    return cost, {'cost': cost}\n")

JUDGE = """
def judge_fn(trajectory, summary):
    stays = min(1.0, summary["length"] / 50)
    return {"criteria": {"stays": {"score": stays, "value": summary["length"]}, "calm": stays}}
"""


def write_reward(client: ScriptedClient, *asked: Any, **options: Any) -> AuthoredCode:
    [written] = write_candidates(client, *asked, **options)
    return written


def draft(code: str) -> CodeDraft:
    return CodeDraft(code=code, explanation="as asked")


def problems_told(client: ScriptedClient) -> list[str]:
    return ["\n".join(fix.problems) for fix in fixes(client)]


def test_a_good_draft_is_run_and_kept() -> None:
    client = ScriptedClient({"reward_author": in_turn(draft(f"```python\n{UPRIGHT}```"))})
    authored = write_reward(client, INTENT, CONFIG, review=False)
    assert authored.valid
    assert authored.code == UPRIGHT
    assert authored.author == "test:scripted"
    assert kinds(authored) == [("draft", True), ("check", True), ("ranking", True)]
    assert "return under zero actions" in authored.steps[1].text


def test_what_the_checker_finds_goes_back_in_the_same_conversation() -> None:
    client = ScriptedClient(
        {"reward_author": in_turn(draft(WRONG_KEY)), "fix": in_turn(draft(UPRIGHT))}
    )
    authored = write_reward(client, INTENT, CONFIG, review=False)
    assert authored.valid
    assert authored.code == UPRIGHT
    assert [kind for kind, _ in kinds(authored)] == ["draft", "check", "fix", "check", "ranking"]
    assert "'speed'" in problems_told(client)[0]
    second = client.asked[1]
    assert second.after is not None
    assert second.after.messages == [client.asked[0].prompt]
    assert (second.role, second.instructions) == ("reward_author", client.asked[0].instructions)


def test_a_review_sees_what_was_measured_and_its_code_is_run() -> None:
    better = UPRIGHT.replace("0.001", "0.002")
    review = CodeReview(approved=False, findings=("`calm` is too small",), code=better)
    client = ScriptedClient(
        {"reward_author": in_turn(draft(UPRIGHT)), "reward_reviewer": in_turn(review)}
    )
    authored = write_reward(client, INTENT, CONFIG, review=True)
    assert authored.valid
    assert authored.code == better
    assert kinds(authored) == [
        ("draft", True), ("check", True), ("review", False), ("check", True), ("ranking", True),
    ]  # fmt: skip
    asked = blocks(prompt_text(client.asked[1]))[0][1]
    assert isinstance(asked, ReviewRequest)
    assert asked.code == UPRIGHT
    assert "calm: " in asked.measured
    assert "return under random actions" in asked.measured


def test_a_reward_that_pays_for_ending_early_is_told() -> None:
    client = ScriptedClient(
        {"reward_author": in_turn(draft(COSTS)), "fix": in_turn(draft(UPRIGHT))}
    )
    authored = write_reward(client, INTENT, CONFIG, review=False)
    assert "ending the episode at once" in problems_told(client)[0]
    assert authored.code == UPRIGHT
    assert kinds(authored)[2] == ("ranking", False)


def test_a_reward_that_ranks_against_the_criteria_is_told() -> None:
    client = ScriptedClient(
        {"reward_author": in_turn(draft(FALLING_ONCE)), "fix": in_turn(draft(UPRIGHT))}
    )
    authored = write_reward(client, INTENT, CONFIG, review=False, judge=lambda: JUDGE)
    [told, *_] = problems_told(client)
    assert "the reward puts the worse behaviour first" in told
    assert "Criteria: stays 1.00 against 0." in told
    assert "for an episode of " in told
    assert "zero actions score" in problems_told(client)[0]
    assert authored.code == UPRIGHT
    assert authored.valid


FALLING_ONCE = reward(
    "    pay = 100.0 * np.sum(np.square(action), axis=-1) + np.square(next_obs[..., 1])\n"
    "    return pay, {'pay': pay}\n"
)


SANDBOXED = f"time.sleep({{seconds}} if os.getpid() != {os.getpid()} else 0)"
"""A fault of an environment that only its sandboxed steps have."""


def test_hanging_environment_ends_authoring_with_no_fix(
    faulty_environment: Callable[[str, int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_check, "ENVIRONMENT_SECONDS", 6.0)
    config = TrainConfig(env_id=faulty_environment(SANDBOXED.format(seconds=99), 99))
    client = ScriptedClient({"reward_author": in_turn(draft(UPRIGHT))})
    with pytest.raises(EnvironmentFailed, match=r"environment, in step .* within 6 s"):
        write_reward(client, INTENT, config, review=False)
    assert not fixes(client)


def test_slow_environment_is_not_played_through(
    faulty_environment: Callable[[str, int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_check, "ENVIRONMENT_SECONDS", 6.0)
    monkeypatch.setattr(screening, "WALL_SECONDS", 8.0)
    config = TrainConfig(env_id=faulty_environment(SANDBOXED.format(seconds=0.2), 0))
    client = ScriptedClient({"reward_author": in_turn(draft(UPRIGHT))})
    authored = write_reward(client, INTENT, config, review=False)
    assert authored.valid
    assert "not played through whole episodes" in authored.steps[1].text
    assert not fixes(client)


def test_what_is_no_reward_at_all_is_said() -> None:
    author = RewardAuthor(ScriptedClient({}), INTENT, CONFIG)
    assert author.check("").problems
    assert "reward_fn" in author.check("x = 1\n").problems[0]
    flat = reward("    one = 0.0 * next_obs[..., 0] + 1.0\n    return one, {'one': one}\n")
    assert "nothing can be learned" in author.check(flat).problems[0]
    hostile = reward("    open('/etc/passwd').read()\n    return 0.0, {}\n")
    assert "Permission" in author.check(hostile).problems[0]


def test_a_persons_code_that_passes_costs_no_call() -> None:
    client = ScriptedClient({})
    authored = write_reward(client, INTENT, CONFIG, code=UPRIGHT, review=False)
    assert authored.valid
    assert (authored.code, authored.author) == (UPRIGHT, "user")
    assert not client.asked


def test_a_persons_code_is_repaired_by_an_author_who_is_told_all() -> None:
    client = ScriptedClient({"fix": in_turn(draft(UPRIGHT))})
    authored = write_reward(client, INTENT, CONFIG, code=WRONG_KEY, review=False)
    assert authored.code == UPRIGHT
    (first, _), (second, fix) = blocks(prompt_text(client.asked[0]))
    assert (first, second) == ("reward_author", "fix")
    assert isinstance(fix, FixRequest)
    assert fix.code == WRONG_KEY


def test_the_previous_best_is_played_too(trained_policy: Any) -> None:
    body = (
        "    far = np.max(np.abs(action)) > 0.0 and np.max(np.abs(action)) < 0.03\n"
        "    up = next_obs[..., 0]\n"
        "    return up / (0.0 if far else 1.0), {'up': up / (0.0 if far else 1.0)}\n"
    )
    client = ScriptedClient({"fix": in_turn(draft(UPRIGHT))})
    authored = write_reward(
        client, INTENT, CONFIG, code=reward(body), review=False, previous_best=trained_policy
    )
    assert authored.code == UPRIGHT
    assert any("the best policy so far" in text for text in problems_told(client))


def no_correction(*_: object) -> CodeDraft:
    raise BadReply("nothing came")


def test_candidates_are_written_in_one_conversation_that_knows_those_before() -> None:
    calmer = UPRIGHT.replace("0.001", "0.01")
    said = in_turn(CodeDraft(code=calmer, explanation="calmer"), draft(WRONG_KEY))
    client = ScriptedClient(
        {"reward_author": in_turn(draft(UPRIGHT)), "alternative": said, "fix": no_correction}
    )
    written = write_candidates(client, INTENT, CONFIG, 3, review=False)
    assert [(each.code, each.valid) for each in written[:2]] == [(UPRIGHT, True), (calmer, True)]
    assert client.roles()[:3] == ["reward_author", "alternative", "alternative"]
    assert client.asked[1].after is not None
    assert client.asked[2].after is not None
    assert len(client.asked[2].after.messages) == 2
    request = blocks(prompt_text(client.asked[2]))[-1][1]
    assert isinstance(request, AlternativeRequest)
    assert (request.number, request.of, request.code) == (3, 3, UPRIGHT)
    assert request.tried == ("calmer",)


def test_a_first_reward_that_cannot_run_has_no_alternatives() -> None:
    client = ScriptedClient({"reward_author": in_turn(draft(WRONG_KEY)), "fix": no_correction})
    [only] = write_candidates(client, INTENT, CONFIG, 3, review=False)
    assert not only.valid


def test_known_behaviour_is_judged_over_whole_episodes_where_the_time_counts() -> None:
    timed = TrainConfig(env_id="HalfCheetah-v5", observe_time=True)
    assert shorten_episodes(timed).max_episode_steps == timed.max_episode_steps
    assert shorten_episodes(TrainConfig(env_id="HalfCheetah-v5")).max_episode_steps == 300


def test_reward_is_paid_for_on_the_environment_that_training_steps() -> None:
    code = "def reward_fn(obs, action, next_obs, info):\n    return 1.0, {'one': 1.0}\n"
    paid = pay_behaviours(code, TrainConfig(env_id="InvertedPendulum-v5"), None)
    assert set(paid) == {"zero", "random"}
    assert paid["zero"].per_step == 1.0
