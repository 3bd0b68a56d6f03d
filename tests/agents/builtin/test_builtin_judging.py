"""What the judge makes of episodes that are known to be good or bad."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.judge import write_judge
from p2p.agents.builtin.morphology import morphology_of
from p2p.agents.requests import IntentRequest, JudgeRequest
from p2p.contracts import FAILURE_TAGS
from p2p.training.env_spec import get_env_spec

Columns = dict[str, Any]


def episode(env_id: str, steps: int, **columns: Any) -> Columns:
    """A made-up episode: everything at rest but these columns."""
    spec = get_env_spec(env_id)
    nq = sum(joint.qpos_size for joint in spec.joints)
    nv = sum(joint.qvel_size for joint in spec.joints)
    rest = np.concatenate([joint.rest for joint in spec.joints])
    places = np.array([body.rest_position for body in spec.bodies])
    resting: Columns = {
        "step": np.arange(steps),
        "obs": np.zeros((steps, spec.obs_dim)),
        "next_obs": np.zeros((steps, spec.obs_dim)),
        "action": np.zeros((steps, spec.action_dim)),
        "qpos": np.tile(rest[:nq], (steps, 1)),
        "qvel": np.zeros((steps, nv)),
        **{key: np.zeros(steps) for key in spec.info_keys},
        **{key: np.zeros((steps, *entry.shape)) for key, entry in spec.quantities.items()},
        "body_position": np.tile(places, (steps, 1, 1)),
        "body_com": np.tile(places + [body.centre for body in spec.bodies], (steps, 1, 1)),
        "airborne": np.zeros(steps, dtype=bool),
    }
    return resting | columns


def judged(
    prompt: str, env_id: str, columns: Columns, *, ended: bool = False
) -> tuple[float, dict[str, Any]]:
    """The weighted score of an episode, and what the judge returns."""
    criteria = write_criteria(IntentRequest(prompt=prompt, env_id=env_id)).criteria
    request = JudgeRequest(prompt=prompt, env_id=env_id, criteria=criteria, columns={})
    names: dict[str, Any] = {}
    exec(write_judge(request).code, names)  # noqa: S102 - our own text
    spec = get_env_spec(env_id)
    summary = {"max_episode_steps": spec.max_episode_steps, "dt": spec.dt, "terminated": ended}
    reply = names["judge_fn"](columns, summary)
    assert set(reply["failure_tags"]) <= set(FAILURE_TAGS)
    scores = {name: entry["score"] for name, entry in reply["criteria"].items()}
    assert set(scores) == {c.id for c in criteria}
    assert all(0 <= score <= 1 for score in scores.values())
    total = sum(scores[c.id] * c.weight for c in criteria) / sum(c.weight for c in criteria)
    return total, reply


def cheetah(prompt: str, speed: Any) -> tuple[float, dict[str, Any]]:
    """A cheetah that goes at this speed."""
    columns = episode("HalfCheetah-v5", 1000, x_velocity=np.broadcast_to(speed, 1000))
    columns["body_velocity"][..., 0] = columns["x_velocity"][:, None]
    steps = 0.1 * (np.arange(1000)[:, None] // 10 % 2 == [0, 1])
    columns["foot_height"][:] = steps * (np.mean(columns["x_velocity"]) > 0)
    return judged(prompt, "HalfCheetah-v5", columns)


def test_running_beats_walking_beats_standing_beats_going_back() -> None:
    scores, replies = zip(
        *(cheetah("run forward fast", v) for v in (4.0, 1.0, 0.0, -3.0)), strict=True
    )
    assert scores[0] == pytest.approx(1.0)
    assert list(scores) == sorted(scores, reverse=True)
    assert scores[2] < 0.6
    assert replies[0]["failure_tags"] == []
    for reply, tag in zip(replies[1:], ("too_slow", "no_motion", "wrong_direction"), strict=True):
        assert tag in reply["failure_tags"]


def test_only_what_meets_its_threshold_is_called_met() -> None:
    criteria = write_criteria(IntentRequest(prompt="run forward fast", env_id="HalfCheetah-v5"))
    asked = max(c.threshold for c in criteria.criteria if c.unit == "m/s")
    _, near = cheetah("run forward fast", 0.95 * asked)
    scores = {name: entry["score"] for name, entry in near["criteria"].items()}
    missed = [name for name, score in scores.items() if score < 1]
    assert missed
    assert min(scores.values()) > 0.8
    assert all(name in near["diagnosis"] for name in missed)
    assert cheetah("run forward fast", 1.01 * asked)[1]["diagnosis"] == "every criterion is met"


def test_standing_is_best_at_standing_still() -> None:
    still, (moved, reply) = cheetah("stand still", 0.0)[0], cheetah("stand still", 2.0)
    assert still == pytest.approx(1.0)
    assert moved < 0.7
    assert "drifts" in reply["failure_tags"]


def walker(steps: int, lead: float) -> tuple[float, dict[str, Any]]:
    """A walker at a good pace, one leg ahead by this angle, then the other, every half second."""
    columns = episode("Walker2d-v5", steps, x_velocity=np.full(steps, 3.0))
    ahead = lead * np.sign(np.sin(2 * np.pi * np.arange(steps) * 0.008))
    columns["qpos"][:, 3], columns["qpos"][:, 6] = ahead / 2, -ahead / 2
    stride = np.arange(steps)[:, None] * 0.008 + np.array([0.0, 0.5])
    columns["foot_contact"] = stride % 1.0 < 0.6
    columns["foot_height"] = 0.1 * (stride % 1.0 >= 0.6)
    return judged("walk forward", "Walker2d-v5", columns)


def test_an_episode_that_ends_early_counts_for_what_it_lasted() -> None:
    whole, _ = walker(1000, 0.4)
    cut, reply = walker(100, 0.4)
    assert whole > 0.95
    assert cut < 0.3
    assert {"early_end", "fell"} <= set(reply["failure_tags"])
    assert "wasteful" not in reply["failure_tags"]
    assert walker(1, 0.4)[0] < 0.1


def test_one_that_drags_a_leg_does_not_walk() -> None:
    (walks, reply), (limps, dragged) = walker(1000, 0.4), walker(1000, 0.1)
    steps = "steps_with_both_legs_in_turn"
    assert reply["criteria"][steps]["value"] == 15
    assert dragged["criteria"][steps]["value"] == 0
    assert dragged["criteria"][steps]["score"] == 0
    assert limps < walks - 0.15
    assert "asymmetric" in dragged["failure_tags"]


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [("walk forward", True), ("walk in a circle", True), ("walk on three legs", False),
     ("hop forward", False), ("keep the front left leg off the ground and walk", False)],
)  # fmt: skip
def test_one_that_walks_steps_with_every_foot(prompt: str, asked: bool) -> None:
    criteria = write_criteria(IntentRequest(prompt=prompt, env_id="Ant-v5")).criteria
    assert any(c.title == "Steps with every foot" for c in criteria) == asked


def test_a_foot_that_is_carried_does_not_step() -> None:
    def measured(flicks: float) -> float:
        columns = episode("Ant-v5", 1000)
        phase = np.arange(1000)[:, None] * 0.05 + np.array([0.0, 0.25, 0.5, 0.75])
        columns["foot_contact"] = 1.0 * (phase % 1.0 < np.array([0.6, 0.6, 0.6, flicks]))
        _, reply = judged("walk forward", "Ant-v5", columns)
        return float(reply["criteria"]["steps_with_every_foot"]["score"])

    assert (measured(0.6), measured(0.0)) == (1.0, 0.0)
    assert measured(0.03) < 0.8


@pytest.mark.parametrize(
    ("env_id", "prompt", "asked"),
    [("Ant-v5", "walk forward", True), ("Ant-v5", "spin in place", True),
     ("HalfCheetah-v5", "run backward", True), ("Humanoid-v5", "turn to the left", True),
     ("Humanoid-v5", "shuffle forward", False), ("Humanoid-v5", "glide forward", False),
     ("Ant-v5", "crawl forward", False), ("Ant-v5", "stand still", False),
     ("Ant-v5", "walk forward and hardly lift your feet", False),
     ("Humanoid-v5", "moonwalk", False), ("Humanoid-v5", "walk 2 m forward", False),
     ("Humanoid-v5", "take three steps forward", False),
     ("Ant-v5", "turn left by 90 degrees", False),
     ("Walker2d-v5", "walk forward on one leg", False), ("Hopper-v5", "hop forward", False)],
)  # fmt: skip
def test_who_walks_or_turns_does_not_slide(env_id: str, prompt: str, asked: bool) -> None:
    criteria = write_criteria(IntentRequest(prompt=prompt, env_id=env_id)).criteria
    assert any(c.title == "Steps rather than slides" for c in criteria) == asked


def test_feet_that_slide_over_the_ground_do_not_step() -> None:
    def measured(lifted_share: float, height: float) -> float:
        columns = episode("Ant-v5", 1000)
        phase = np.arange(1000)[:, None] * 0.05 + np.array([0.0, 0.25, 0.5, 0.75])
        columns["foot_height"] = height * (phase % 1.0 < lifted_share)
        _, reply = judged("walk forward", "Ant-v5", columns)
        return float(reply["criteria"]["steps_rather_than_slides"]["score"])

    assert measured(0.4, 0.03) == measured(0.15, 0.03) == 1.0
    assert measured(0.4, 0.003) == measured(0.0, 0.03) == 0.0  # it vibrates; it never lifts them


def test_a_leg_that_lies_on_the_ground_does_not_carry() -> None:
    def kneeling(knee_height: float) -> float:
        columns = episode("Ant-v5", 1000)
        knees = [part.id for part in morphology_of("Ant-v5").shanks]
        assert len(knees) == 4
        columns["body_position"][:, knees[0], 2] = knee_height
        _, reply = judged("stand still", "Ant-v5", columns)
        return float(reply["criteria"]["only_what_carries_it_touches_the_ground"]["score"])

    assert (kneeling(0.3), kneeling(0.03)) == (1.0, 0.0)


def test_one_that_stays_on_the_ground_does_not_hop() -> None:
    def hopper(in_the_air: float) -> tuple[float, dict[str, Any]]:
        columns = episode("Hopper-v5", 1000, x_velocity=np.full(1000, 1.5))
        columns["airborne"] = np.arange(1000) % 100 < 100 * in_the_air
        columns["foot_height"][:, 0] = 0.1 * columns["airborne"]
        columns["qvel"][:, 1] = 0.5
        return judged("hop forward", "Hopper-v5", columns)

    (hops, reply), (slides, on_the_ground) = hopper(0.4), hopper(0.0)
    assert reply["criteria"]["leaves_the_ground"]["value"] == pytest.approx(0.4)
    assert on_the_ground["criteria"]["leaves_the_ground"]["score"] == 0
    assert slides < 0.9 < hops


def test_lying_on_its_back_is_not_upright() -> None:
    columns = episode("HalfCheetah-v5", 1000, x_velocity=np.full(1000, 4.0))
    columns["qpos"][:, 2] = np.pi
    score, reply = judged("run forward fast", "HalfCheetah-v5", columns)
    assert reply["criteria"]["stays_upright"]["score"] == 0
    assert "fell" in reply["failure_tags"]
    assert score < 1


def test_a_stated_speed_can_be_missed_on_both_sides() -> None:
    right, slow, fast = (cheetah("run forward at 2 m/s", speed) for speed in (2.0, 0.8, 3.5))
    assert right[0] > max(slow[0], fast[0])
    assert "too_slow" in slow[1]["failure_tags"]
    assert "too_fast" in fast[1]["failure_tags"]


def test_each_part_of_a_sequence_is_judged_in_its_time() -> None:
    speed = np.concatenate([np.full(500, 2.0), np.zeros(500)])
    prompt = "run forward then stand still"
    right, half, wrong = (cheetah(prompt, s) for s in (speed, 2.0, speed[::-1]))
    assert right[0] > half[0] > wrong[0]
    assert "incomplete" in half[1]["failure_tags"]


def test_a_raised_limb_is_one_that_is_higher_than_usual() -> None:
    names = [body.name for body in get_env_spec("Humanoid-v5").bodies]
    up = episode("Humanoid-v5", 1000)
    up["body_com"][:, names.index("left_lower_arm"), 2] += 0.5
    (raised, _), (hanging, down) = (
        judged("raise the left arm", "Humanoid-v5", columns)
        for columns in (up, episode("Humanoid-v5", 1000))
    )
    assert raised > hanging + 0.25
    assert down["criteria"]["raises_the_left_arm"]["score"] < 0.1
    now_and_then = episode("Humanoid-v5", 1000)
    now_and_then["body_com"][:400, names.index("left_lower_arm"), 2] += 2.0
    _, reply = judged("raise the left arm", "Humanoid-v5", now_and_then)
    assert reply["criteria"]["raises_the_left_arm"]["value"] == pytest.approx(0.4)
    assert reply["criteria"]["raises_the_left_arm"]["score"] < 0.8


def test_what_is_reached_counts_even_if_that_ends_the_episode() -> None:
    columns = episode("Reacher-v5", 10)
    columns["body_position"][:, 3] = columns["body_position"][:, 4]
    _, reply = judged("reach the target", "Reacher-v5", columns)
    assert reply["criteria"]["reaches_the_target"]["score"] == 1


def test_falls_that_are_forbidden_are_counted() -> None:
    tilt = np.zeros(1000)
    for begin in (200, 400):
        tilt[begin : begin + 20] = 3.0  # for 4 % of the time: a share of it would pass
    spec = get_env_spec("HalfCheetah-v5")
    qpos = episode("HalfCheetah-v5", 1000)["qpos"]
    address = next(joint.qpos_address for joint in spec.joints if joint.name == "rooty")
    qpos[:, address] = tilt
    fallen = episode("HalfCheetah-v5", 1000, qpos=qpos, x_velocity=np.full(1000, 4.0))
    _, reply = judged("run forward fast without falling", "HalfCheetah-v5", fallen)
    over = reply["criteria"]["never_tips_over"]
    assert (over["value"], over["score"]) == (2.0, 0.0)
    assert over["evidence"] == "2 times, wanted at most 0"
    assert "fell" in reply["failure_tags"]
    for ended, falls in ((True, 1.0), (False, 0.0)):
        hopping = episode("Hopper-v5", 990, x_velocity=np.full(990, 2.0))
        _, reply = judged("hop forward and never fall", "Hopper-v5", hopping, ended=ended)
        assert reply["criteria"]["never_falls"]["value"] == falls


def test_a_foot_that_must_not_touch_the_ground_is_counted() -> None:
    prompt = "walk forward without the left foot touching the ground"
    criteria = write_criteria(IntentRequest(prompt=prompt, env_id="Walker2d-v5")).criteria
    [never] = [each for each in criteria if each.event and each.category == "task"]
    assert (never.category, never.target) == ("task", "never")
    assert never.event == "the left foot touched the ground"
    steps = episode("Walker2d-v5", 1000)
    [foot] = [f for f, e in enumerate(get_env_spec("Walker2d-v5").feet) if e.name == "foot_left"]
    steps["foot_height"][50:, foot] = 0.4
    steps["foot_height"][500:510, foot] = 0.0
    _, reply = judged(prompt, "Walker2d-v5", steps)
    assert reply["criteria"][never.id]["value"] == 1.0


def test_hops_that_are_asked_for_are_counted_as_such() -> None:
    _, reply = judged("keep hopping on the spot", "Hopper-v5", episode("Hopper-v5", 1000))
    assert reply["criteria"]["hops_again_and_again"]["evidence"] == "0 times, wanted at least 5"
