"""Rewards against criteria along scripted motions: right, flat and inverted ones."""

from __future__ import annotations

import pytest
from scripted_client import ScriptedClient, fixes, in_turn

from p2p.agents import authoring
from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.judge import write_judge
from p2p.agents.builtin.reward import write_reward
from p2p.agents.judge_code import trajectory_columns
from p2p.agents.requests import CodeDraft, IntentRequest, JudgeRequest, RewardRequest
from p2p.agents.reward_author import RewardAuthor
from p2p.agents.screening import (
    Judged,
    describe_falling,
    describe_gradients,
    find_best_point,
    find_telling_pairs,
    gradients,
    judge_sweeps,
    pay_sweeps,
    rank_correlation,
    rising_share,
)
from p2p.config import TrainConfig
from p2p.contracts import AuthoredCode, Criterion, CriterionGradient, Intent
from p2p.training.env_spec import get_env_spec

CONFIG = TrainConfig(env_id="InvertedPendulum-v5", side_info=True)


def criterion(name: str, threshold: float) -> Criterion:
    return Criterion(
        id=name,
        title=name,
        description=name,
        measure=name,
        comparison="at_least",
        threshold=threshold,
        weight=1.0,
        category="task",
    )


CRITERIA = (criterion("stays_up", 1.0), criterion("on_the_right", 1.0))
JUDGE = """
def judge_fn(trajectory, summary):
    x = float(trajectory["obs"][:, 0].mean())
    up = summary["length"] / summary["max_episode_steps"]
    return {"criteria": {"stays_up": up, "on_the_right": min(1.0, max(0.0, (x + 1.0) / 2.0))}}
"""
RISING = {"stays_up": (0.0, 0.2, 0.5, 0.8, 1.0)}


def points(**scores: tuple[float, ...]) -> list[Judged]:
    rows = [dict(zip(scores, row, strict=True)) for row in zip(*scores.values(), strict=True)]
    means = [sum(row.values()) / len(row) for row in rows]
    return [Judged(score=m, criteria=row) for m, row in zip(means, rows, strict=True)]


@pytest.mark.parametrize(
    ("returns", "correlation"),
    [
        ((1.0, 2.0, 3.0, 4.0, 5.0), 1.0),
        ((5.0, 4.0, 3.0, 2.0, 1.0), -1.0),
        ((3.0, 3.0, 3.0, 3.0, 3.0), 0.0),
        ((1e9, 1e9, 1e9, 1e9, 1e9 + 1), 0.0),  # no more than rounding
        ((1.0, 2.0, 2.0, 2.0, 2.0), 0.4),  # right as far as it goes
    ],
)
def test_a_return_rises_falls_or_stays_with_a_score(
    returns: tuple[float, ...], correlation: float
) -> None:
    pairs = find_telling_pairs(points(**RISING))["stays_up"]
    assert len(pairs) == 10
    assert rank_correlation(pairs, returns) == pytest.approx(correlation)


def test_a_motion_tells_nothing_of_a_criterion_that_it_hardly_moves() -> None:
    assert find_telling_pairs(points(stays_up=(0.5, 0.52, 0.54, 0.5, 0.5))) == {}
    assert find_telling_pairs(points(stays_up=(0.0, 0.0, 0.0, 0.0, 1.0))) != {}


def test_what_one_criterion_gains_at_the_cost_of_another_is_not_held_against_a_reward() -> None:
    fast = (0.0, 0.25, 0.5, 0.75, 1.0)
    assert find_telling_pairs(points(fast=fast, steady=(1.0, 0.9, 0.7, 0.5, 0.3))) == {}
    assert find_telling_pairs(points(fast=fast, steady=(1.0, 0.98, 0.96, 0.95, 0.95))).keys() == {
        "fast"
    }


def test_the_share_counts_what_rises_and_words_name_what_falls() -> None:
    found = tuple(
        CriterionGradient(motion=f"m{i}", criterion="keeps_going", correlation=correlation)
        for i, correlation in enumerate((1.0, 0.6, 0.0, -1.0))
    )
    assert rising_share(found) == 0.5
    assert rising_share(()) is None
    assert describe_falling(found) == ["the reward falls while 'keeps_going' rises: m3"]
    assert describe_gradients(found).splitlines()[0].endswith("in 2 of 4 cases")
    assert describe_gradients(()) == ""


def reward(value: str) -> str:
    return (
        "def reward_fn(obs, action, next_obs, info):\n"
        f"    pay = {value}\n    return pay, {{'pay': pay}}\n"
    )


RIGHT = reward("1.0 + 0.5 * next_obs[..., 0]")
INVERTED = reward("-1.0 - 0.5 * next_obs[..., 0]")
FLAT = reward("0.0 * next_obs[..., 0]")


def test_candidates_carry_how_they_pay_along_motions_that_nobody_learnt() -> None:
    intent = Intent(prompt="up and right", env_id=CONFIG.env_id, criteria=CRITERIA, author="test")
    author = RewardAuthor(ScriptedClient({}), intent, CONFIG)
    author.judge = lambda: JUDGE
    written = [AuthoredCode(code=code, author="test", valid=True) for code in (RIGHT, INVERTED)]
    right, inverted = author.with_gradients(written)
    told = {(g.criterion, g.motion.split()[0]): g.correlation for g in right.gradients}
    assert told == {("stays_up", "hinge"): 1.0, ("on_the_right", "slider"): 1.0}
    assert rising_share(right.gradients) == 1.0
    assert {g.correlation for g in inverted.gradients} == {-1.0}
    assert any("'on_the_right'" in text for text in describe_falling(inverted.gradients))


def test_a_flat_reward_neither_rises_nor_falls_and_one_that_fails_says_nothing() -> None:
    judged = judge_sweeps(JUDGE, CRITERIA, CONFIG)
    flat = gradients(judged, pay_sweeps(FLAT, CONFIG, [*judged]))
    assert {each.correlation for each in flat} == {0.0}
    assert describe_falling(flat) == []
    assert pay_sweeps(reward("1 / 0"), CONFIG, [*judged]) == {}


# --- cheats ---------------------------------------------------------------------------------------

SPEED_ALONE = reward("info['x_velocity']")


def author_of(prompt: str, env_id: str, client: ScriptedClient) -> RewardAuthor:
    criteria = write_criteria(IntentRequest(prompt=prompt, env_id=env_id)).criteria
    columns = trajectory_columns(get_env_spec(env_id))
    request = JudgeRequest(prompt=prompt, env_id=env_id, criteria=criteria, columns=columns)
    intent = Intent(prompt=prompt, env_id=env_id, criteria=criteria, author="test")
    author = RewardAuthor(client, intent, TrainConfig(env_id=env_id, side_info=True))
    author.judge = lambda: write_judge(request).code
    return author


def own_reward(author: RewardAuthor) -> str:
    request = author.request()
    assert isinstance(request, RewardRequest)
    return write_reward(request).code


def test_a_reward_that_pays_a_cheat_as_much_is_not_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authoring, "MAX_FIXES", 1)
    answers = in_turn(CodeDraft(code=SPEED_ALONE))
    client = ScriptedClient({"reward_author": answers, "fix": answers})
    author = author_of("run forward", "HalfCheetah-v5", client)
    assert not author.write(review=False).valid
    [fix] = fixes(client)
    assert fix.ranking
    assert any("lying on its back, moving as asked is paid" in text for text in fix.problems)
    author.code = own_reward(author)
    assert author.screen() == ()


@pytest.mark.parametrize(
    ("env_id", "prompt"),
    [("Ant-v5", "walk forward"), ("Hopper-v5", "hop forward")],
)
def test_the_built_in_author_pays_no_cheat(env_id: str, prompt: str) -> None:
    author = author_of(prompt, env_id, ScriptedClient({}))
    author.code = own_reward(author)
    _, judged = author.judged_cheats
    assert len(judged) > 10
    assert author.screen() == ()


def test_no_motion_stands_for_what_none_comes_near() -> None:
    point = Judged(score=0.9, criteria={}, task=0.3)
    assert find_best_point({"moving": [point]}) is None
    better = point.model_copy(update={"task": 0.7})
    assert find_best_point({"moving": [point, better]}) == ("moving", 1)
