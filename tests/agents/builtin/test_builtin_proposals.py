"""Prompts in environments: criteria, rewards and judges that agree."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.judge import write_judge
from p2p.agents.builtin.measures import read_measure
from p2p.agents.builtin.morphology import morphology_of
from p2p.agents.builtin.quantities import quantities_of
from p2p.agents.builtin.reward import ALL_OUT, Recipe, Term, read_recipe, render, write_reward
from p2p.agents.intent_elicitor import check_proposal
from p2p.agents.judge_code import trajectory_columns
from p2p.agents.requests import IntentProposal, IntentRequest, JudgeRequest, RewardRequest
from p2p.config import EnvOptions, TrainConfig
from p2p.contracts import Criterion
from p2p.training.env_spec import get_env_spec, list_env_ids
from p2p.training.reward_check import check_reward
from p2p.training.reward_loader import load_from_code
from p2p.training.specs.quantities import QUANTITIES
from p2p.training.vec_env import make_batched_env

PROMPTS = (
    *("run forward fast", "run backward", "walk forward at 2 m/s", "walk slowly to the right"),
    *("stand still", "do not move", "crawl low", "crouch", "lie down quietly", "get up"),
    *("spin in place clockwise", "turn left", "roll over", "do a backflip", "hop forward"),
    *("jump as high as you can", "balance the pole", "reach the target", "push the object"),
    *("raise the left leg", "raise the front leg", "run forward then stop", "swim forward"),
    *("walk forward upright, smoothly, quietly, efficiently, symmetrically without falling",),
)
CAN = {
    "Ant-v5": "spin in place", "HalfCheetah-v5": "raise the front leg", "Hopper-v5": "hop forward",
    "Humanoid-v5": "raise the left arm symmetrically", "HumanoidStandup-v5": "get up",
    "InvertedDoublePendulum-v5": "balance", "InvertedPendulum-v5": "balance the pole",
    "Pusher-v5": "push the object to the goal", "Reacher-v5": "reach the target",
    "Swimmer-v5": "swim forward then turn left", "Walker2d-v5": "walk forward at 1 m/s",
}  # fmt: skip


def propose(prompt: str, env_id: str) -> IntentProposal:
    return write_criteria(IntentRequest(prompt=prompt, env_id=env_id))


def reward_for(prompt: str, env_id: str, criteria: tuple[Criterion, ...]) -> str:
    request = RewardRequest(prompt=prompt, env_id=env_id, criteria=criteria, side_info=True)
    return write_reward(request).code


def recipe_of(code: str) -> Recipe:
    recipe = read_recipe(code)
    assert recipe is not None
    return recipe


def terms_for(prompt: str, env_id: str) -> dict[str, Term]:
    recipe = recipe_of(reward_for(prompt, env_id, propose(prompt, env_id).criteria))
    return {term.name: term for term in recipe.terms}


@cache
def transitions(env_id: str) -> dict[str, Any]:
    """Some real steps under random actions, as columns (T, N, ...)."""
    env = make_batched_env(EnvOptions(env_id, quantities=QUANTITIES, side_info=True), 3)
    rng = np.random.default_rng(0)
    space = env.single_action_space
    obs = env.reset_batch(7)
    kept: dict[str, list[Any]] = {}
    for t in range(6):
        action = rng.uniform(space.low, space.high, size=(3, len(space.low)))
        step = env.step_batch(action)
        info = {key: np.asarray(value) for key, value in step.info.items()}
        start = {"_episode_start": np.full(3, t == 0)}
        fields = {**info, **env.trajectory_fields(), "obs": obs, "action": action,
                  "next_obs": step.next_obs, **start}  # fmt: skip
        for key, value in fields.items():
            kept.setdefault(key, []).append(np.array(value))
        obs = step.obs
    env.close()
    return {key: np.stack(values) for key, values in kept.items()}


@pytest.mark.parametrize("env_id", list_env_ids())
def test_what_is_proposed_is_sound_in_every_environment(env_id: str) -> None:
    spec, quantities = get_env_spec(env_id), quantities_of(env_id)
    understood = 0
    for prompt in PROMPTS:
        proposal = propose(prompt, env_id)
        if proposal.refusal:
            assert not proposal.criteria
            assert "ANTHROPIC_API_KEY" in proposal.refusal
            continue
        understood += 1
        check_proposal(proposal)
        assert all(read_measure(c.measure, quantities) for c in proposal.criteria)
        code = reward_for(prompt, env_id, proposal.criteria)
        assert render(recipe_of(code)) == code
        request = JudgeRequest(
            prompt=prompt, env_id=env_id, criteria=proposal.criteria,
            columns=trajectory_columns(spec),
        )  # fmt: skip
        judge = write_judge(request).code
        ast.parse(judge)
        assert "UNKNOWN = ()" in judge
    assert understood >= 1


@pytest.mark.parametrize(
    "env_id", ["Ant-v5", "Humanoid-v5", "InvertedDoublePendulum-v5", "Swimmer-v5"]
)
def test_a_reward_passes_the_check_in_the_sandbox(env_id: str) -> None:
    code = reward_for(CAN[env_id], env_id, propose(CAN[env_id], env_id).criteria)
    report = check_reward(code, env_id, steps=50)
    assert report.ok, report.findings
    assert report.result is not None
    assert report.result.batched
    assert set(report.result.spec.terms) == {term.name for term in recipe_of(code).terms}


@pytest.mark.parametrize("env_id", list_env_ids())
def test_rewards_and_judges_measure_the_same(env_id: str) -> None:
    steps = transitions(env_id)
    names: dict[str, Any] = {"np": np}
    clipped = {e.index for e in get_env_spec(env_id).observation if e.clip is not None}
    for key, quantity in quantities_of(env_id).items():
        reward, judge = quantity.reward_code(side_info=True), quantity.judge_code(steps)
        # The way from the origin, or from the start; and what a reward remembers of earlier steps.
        if (
            reward is None
            or quantity.memory
            or "mj_data" in reward
            or key == "drift"
            or key.startswith("stray_")
        ):
            continue
        # Step by step the feet agree; over strides, their phases. One foot is up, or always it is.
        if key.endswith("_match") or key == "spare_foot" or key.startswith("turned_"):
            continue
        if any(f"[..., {i}]" in reward for i in clipped) or key == "joint_speed":
            continue
        for row in range(2):
            column = {name: values[:, row] for name, values in steps.items()}
            arguments = {name: column[name] for name in ("obs", "action", "next_obs")}
            arguments["info"] = column
            ours = eval(reward, {**names, **arguments})  # noqa: S307
            theirs = eval(str(judge), {**names, "trajectory": column})  # noqa: S307
            # How far it turned in the first step a judge cannot see: it has no step before.
            first = 1 if key.startswith(("flip_", "orbit_")) else 0
            assert np.max(np.abs(ours - theirs)[first:]) < 0.02, key


@pytest.mark.parametrize("env_id", list_env_ids())
def test_a_reward_gives_each_row_of_a_batch_what_it_gives_it_alone(env_id: str) -> None:
    steps = transitions(env_id)
    proposal = propose(CAN[env_id], env_id)
    recipe = recipe_of(reward_for(CAN[env_id], env_id, proposal.criteria))
    timeless = tuple(t for t in recipe.terms if t.window == (0.0, 1.0) and t.shape != "swing")
    names: dict[str, Any] = {}
    exec(render(recipe.model_copy(update={"terms": timeless})), names)  # noqa: S102 - our own text
    take = ("obs", "action", "next_obs")
    total, terms = names["reward_fn"](
        *(steps[k][0] for k in take), {k: v[0] for k, v in steps.items()}
    )
    assert np.shape(total) == (3,)
    for row in range(3):
        info = {k: v[0, row] for k, v in steps.items()}
        alone, parts = names["reward_fn"](*(steps[k][0, row] for k in take), info)
        assert alone == pytest.approx(total[row], abs=1e-9)
        assert parts.keys() == terms.keys()


def test_a_raised_foot_is_measured_at_its_lowest_point() -> None:
    proposal = propose("lift the left foot", "Walker2d-v5")
    code = reward_for("lift the left foot", "Walker2d-v5", proposal.criteria)
    assert 'info["foot_height"][..., 1]' in code


def test_a_stated_speed_is_a_target_and_not_a_limit() -> None:
    proposal = propose("walk forward at 2 m/s", "HalfCheetah-v5")
    task = next(c for c in proposal.criteria if c.category == "task")
    assert task.measure == "difference of the mean forward speed from 2 m/s"
    term = recipe_of(reward_for("", "HalfCheetah-v5", proposal.criteria)).terms[0]
    assert (term.shape, term.target) == ("near", 2.0)


@pytest.mark.parametrize("env_id", ["InvertedPendulum-v5", "InvertedDoublePendulum-v5"])
def test_a_pole_that_is_kept_up_is_a_pole_that_is_balanced(env_id: str) -> None:
    kept, balanced = propose("keep the pole up", env_id), propose("balance the pole", env_id)
    assert kept.criteria == balanced.criteria
    assert kept.unused_words == ()


def test_fast_is_faster_than_run_is_faster_than_walk_is_faster_than_slow() -> None:
    def wanted(prompt: str) -> float:
        proposal = propose(prompt, "HalfCheetah-v5")
        measure = read_measure(proposal.criteria[0].measure, quantities_of("HalfCheetah-v5"))
        assert measure is not None
        return measure.low or proposal.criteria[0].threshold

    speeds = [wanted(p) for p in ("run forward fast", "run forward", "walk forward", "walk slowly")]
    assert speeds == sorted(speeds, reverse=True)
    assert len(set(speeds)) == 4


def test_what_is_asked_for_in_so_many_words_belongs_to_the_task() -> None:
    def staying(prompt: str) -> list[str]:
        criteria = propose(prompt, "Ant-v5").criteria
        return [c.category for c in criteria if c.id == "stays_in_place"]

    assert staying("spin") == ["stability"]
    assert staying("spin in place") == staying("in place, spin") == ["task"]


def test_criteria_are_known_again_when_a_person_has_edited_them() -> None:
    criteria = propose("run forward fast", "HalfCheetah-v5").criteria
    edited = (
        criteria[0].model_copy(update={"threshold": 4.0, "title": "Schnell", "id": "schnell"}),
        Criterion(id="low", title="Stay low", description="", measure="how low it crawls",
                  comparison="at_least", threshold=0.8, weight=0.5, category="posture"),
        Criterion(id="joy", title="Joy", description="", measure="how joyful it looks",
                  comparison="at_least", threshold=0.8, weight=0.5, category="gait"),
    )  # fmt: skip
    request = RewardRequest(prompt="run", env_id="HalfCheetah-v5", criteria=edited)
    draft = write_reward(request)
    recipe = recipe_of(draft.code)
    assert recipe.terms[0].target == 4.0
    assert {t.quantity for t in recipe.terms} == {"forward_speed", "height"}
    assert "joy" in draft.explanation
    judge = write_judge(
        JudgeRequest(prompt="run", env_id="HalfCheetah-v5", criteria=edited, columns={})
    )
    assert "UNKNOWN = ('joy',)" in judge.code


def test_a_quantity_falls_back_on_the_observation_where_no_state_is_recorded() -> None:
    height = quantities_of("HalfCheetah-v5")["height"]
    assert height.judge_code({"body_position", "next_obs"}) == (
        'trajectory["body_position"][..., 1, 2]'
    )
    assert height.judge_code({"next_obs"}) == 'trajectory["next_obs"][..., 0] + 0.7'
    assert height.judge_code({"action"}) is None


@settings(max_examples=40)
@given(st.text(max_size=60))
def test_no_prompt_breaks_the_code_that_carries_it(noise: str) -> None:
    prompt = f"run forward {noise}"
    criteria = propose("run forward", "HalfCheetah-v5").criteria
    code = reward_for(prompt, "HalfCheetah-v5", criteria)
    ast.parse(code)
    assert render(recipe_of(code)) == code
    judge = write_judge(
        JudgeRequest(prompt=prompt, env_id="HalfCheetah-v5", criteria=criteria, columns={})
    )
    ast.parse(judge.code)


def test_where_rising_ends_the_episode_rising_costs_before_it_does() -> None:
    asked, end = terms_for("walk forward", "Ant-v5"), get_env_spec("Ant-v5").healthy_ranges["z"][1]
    limit = asked["height_limit"]
    assert (
        morphology_of("Ant-v5").standing_height < limit.target < limit.target + limit.scale == end
    )
    costs = sum(term.weight for term in asked.values() if term.shape in ("under", "over"))
    assert asked["alive"].weight >= costs
    # Who is asked to rise is not charged for it, and a tall agent sinks when it falls.
    assert "height_limit" not in terms_for("jump", "Ant-v5")
    assert "height_limit" not in terms_for("walk forward", "Walker2d-v5")


def test_the_morphology_is_read_off_the_environment() -> None:
    cheetah, standup, pole = (
        morphology_of(e)
        for e in ("HalfCheetah-v5", "HumanoidStandup-v5", "InvertedDoublePendulum-v5")
    )
    assert cheetah.root is not None
    assert cheetah.root.name == "torso"
    assert 0.5 < cheetah.standing_height < 0.7
    assert standup.starts_lying
    assert not morphology_of("Humanoid-v5").starts_lying
    assert standup.standing_height > 1.0
    assert [joint.name for joint in pole.poles] == ["hinge", "hinge2"]
    assert pole.may_end_early
    assert not cheetah.may_end_early
    assert morphology_of("Swimmer-v5").height_joint is None


def test_what_an_environment_cannot_show_is_refused_or_said() -> None:
    assert "turn about the vertical" in propose("turn left", "HalfCheetah-v5").refusal
    partly = propose("walk forward and turn left", "HalfCheetah-v5")
    assert "turn about the vertical" in partly.note
    assert "OPENAI_API_KEY" in propose("juggle", "HalfCheetah-v5").refusal


# --- turning --------------------------------------------------------------------------------------


def paid_for_turning(prompt: str, rates: list[float]) -> list[float]:
    """What the whole reward gives to a standing ant that turns at these rates."""
    names: dict[str, Any] = {}
    exec(reward_for(prompt, "Ant-v5", propose(prompt, "Ant-v5").criteria), names)  # noqa: S102
    obs = np.zeros((len(rates), 105))
    obs[:, 0], obs[:, 1], obs[:, 18] = 0.5, 1.0, rates
    still = np.zeros(len(rates))
    info = {"x_velocity": still, "y_velocity": still, "distance_from_origin": still}
    info["ground_contact"] = np.zeros((len(rates), 14))
    total, _ = names["reward_fn"](obs, np.zeros((len(rates), 8)), obs, info)
    return [float(one) for one in total]


def test_turning_pays_up_to_enough_and_costs_beyond() -> None:
    rates = [-0.4, 0.0, 1.0, 1.5, 2.5, 3.4]
    backward, still, asked, enough, hasty, mad = paid_for_turning("spin in place", rates)
    assert backward < still < asked < enough
    assert enough > hasty > mad
    other_way = paid_for_turning("spin in place clockwise", [-rate for rate in rates])
    assert other_way == [backward, still, asked, enough, hasty, mad]


def test_leaving_costs_where_the_policy_notices_it() -> None:
    assert quantities_of("Ant-v5")["drift"].felt_as == "ground_speed"
    spinning, understood = terms_for("spin in place", "Ant-v5"), terms_for("spin", "Ant-v5")
    assert all(term.quantity != "drift" for term in spinning.values())
    cost = spinning["ground_speed"]
    served = {"stays_in_place", "does_not_travel", "ends_near_where_it_began"}
    assert set(cost.criteria) == served
    assert cost.weight > 2 * understood["ground_speed"].weight  # in place was asked for
    standing = terms_for("stand still", "Ant-v5")
    assert "drift" not in standing
    assert "stays_near_where_it_began" in standing["ground_speed"].criteria


def test_an_agent_that_trembles_in_time_with_the_steps_has_not_flipped() -> None:
    rate = quantities_of("HalfCheetah-v5")["flip_back_rate"]
    angle = np.zeros(100)
    angle[40:60] = np.linspace(0.0, -2 * np.pi, 20)  # once around, nose up
    angle[60:] = -2 * np.pi
    trajectory = {"qpos": np.zeros((100, 9)), "qvel": np.full((100, 9), -3.0)}
    trajectory["qpos"][:, 2] = angle
    code = str(rate.judge_code(trajectory))
    rates = eval(code, {"np": np, "trajectory": trajectory})  # noqa: S307 - our own text
    assert np.sum(rates) * 0.05 / (2 * np.pi) == 1.0
    before, after = np.zeros((2, 17)), np.full((2, 17), -3.0)
    after[:, 1] = [0.0, -0.2]
    names = {"obs": before, "next_obs": after}
    assert eval(str(rate.reward_code()), names).tolist() == [0.0, 4.0]  # noqa: S307 - our own text


def test_a_small_tilt_is_seen_in_single_precision() -> None:
    code = str(quantities_of("Humanoid-v5")["tilt"].reward_code())
    angles = np.array([0.0, 1e-4, 1e-3, 0.5, 3.0])
    obs = np.zeros((5, 348), dtype=np.float32)
    obs[:, 1], obs[:, 2] = np.cos(angles / 2), np.sin(angles / 2)  # the quaternion's w and x
    tilts = eval(code, {"np": np, "next_obs": obs})  # noqa: S307 - our own text
    assert tilts == pytest.approx(angles, rel=1e-3, abs=1e-6)


def test_a_refusal_names_what_was_ignored_and_prompts_that_work() -> None:
    request = IntentRequest(prompt="do the thing with vigour", env_id="Hopper-v5")
    refusal = write_criteria(request).refusal
    assert "thing, vigour" in refusal
    examples = re.findall("“(.*?)”", refusal)
    assert len(examples) == 3
    for prompt in examples:
        assert write_criteria(request.model_copy(update={"prompt": prompt})).criteria, prompt


ROUND = "rate of the fingertip around the target"
RIGHT = "share of time with offset of the cart to the right at least 0.3 m"


def test_a_cart_that_swings_earns_more_than_one_that_trembles_or_rests() -> None:
    env_id, prompt = "InvertedPendulum-v5", "swing the cart from side to side"
    criteria = propose(prompt, env_id).criteria
    request = JudgeRequest(prompt=prompt, env_id=env_id, criteria=criteria, columns={})
    judge_names: dict[str, Any] = {}
    exec(write_judge(request).code, judge_names)  # noqa: S102 - our own text
    seconds = np.arange(1000) * 0.04

    def judged(place: np.ndarray) -> tuple[float, float]:
        """What it earns, and how often it swung."""
        names: dict[str, Any] = {"RewardFunction": object}
        asked = RewardRequest(prompt=prompt, env_id=env_id, criteria=criteria)
        exec(write_reward(asked).code, names)  # noqa: S102 - our own text
        pay = names["Sequence"]().compute
        qpos, qvel = (np.stack([x, 0 * x], axis=-1) for x in (place, np.gradient(place, seconds)))
        action = np.zeros((1000, 1))
        obs = np.column_stack([qpos, qvel])
        total = sum(
            float(pay(obs[t], action[t], obs[t], {"_episode_start": t == 0})[0])
            for t in range(1000)
        )
        trajectory = {"step": np.arange(1000), "qpos": qpos, "qvel": qvel, "action": action}
        scores = judge_names["judge_fn"](trajectory, {"max_episode_steps": 1000, "dt": 0.04})
        return total, scores["criteria"]["swings_from_side_to_side"]["value"]

    swinging, trembling = 0.25 * np.sin(7 * np.pi * seconds / 40), 0.02 * np.sin(15 * seconds)
    earned, swings = zip(*map(judged, (swinging, trembling, 0 * seconds)), strict=True)
    assert earned[0] > max(earned[1:]) + 400
    assert swings == (6.0, 0.0, 0.0)


def test_in_the_water_turning_pays_by_its_mean_and_on_legs_best_at_a_rate() -> None:
    swimming = terms_for("turn counterclockwise", "Swimmer-v5")["turn_left_rate"]
    walking = terms_for("turn counterclockwise", "Ant-v5")["turn_left_rate"]
    assert (swimming.shape, walking.shape) == ("more", "near")
    assert swimming.target < walking.target
    assert swimming.cap * swimming.target > 5  # each stroke turns it faster than that to and fro


def pay(prompt: str, env_id: str, steps: int, **info: Any) -> dict[str, float]:
    """Return the mean of each term over steps; `obs` and `next_obs` among what is given."""
    names: dict[str, Any] = {}
    exec(reward_for(prompt, env_id, propose(prompt, env_id).criteria), names)  # noqa: S102
    spec = get_env_spec(env_id)
    still = np.zeros((steps, len(spec.observation)))
    obs, next_obs = info.pop("obs", still), info.pop("next_obs", still)
    info.setdefault("ground_contact", np.zeros((steps, len(spec.bodies))))
    info.setdefault("foot_height", np.zeros((steps, len(spec.feet))))
    for key in ("x_velocity", "y_velocity"):
        info.setdefault(key, np.zeros(steps))
    _, terms = names["reward_fn"](obs, np.zeros((steps, len(spec.actions))), next_obs, info)
    return {name: float(np.mean(value)) for name, value in terms.items()}


def test_a_jump_pays_for_what_is_above_standing() -> None:
    heights = np.zeros((3, 11))
    heights[:, 0] = (1.1, 1.25, 1.43)
    crouch, stand, jump = (
        pay("jump up high", "Hopper-v5", 1, next_obs=heights[i : i + 1])["height"] for i in range(3)
    )
    assert crouch == 0.0
    assert stand < 0.05
    assert jump > 0.95


def test_swimming_pays_more_than_keeping_its_line_by_holding_still() -> None:
    strokes = np.sin(np.linspace(0.0, 20 * np.pi, 500))
    still = pay("swim backward", "Swimmer-v5", 500)
    slowly = pay("swim backward", "Swimmer-v5", 500, y_velocity=0.5 * strokes,
                 x_velocity=-0.03 + 0.3 * strokes)  # fmt: skip
    assert sum(slowly.values()) > sum(still.values())


def test_hopping_in_place_costs_least_where_it_gets_nowhere() -> None:
    push = np.where(np.arange(200) % 10 == 0, -0.6, 0.0)
    drifting, staying = (
        pay("keep hopping on the spot", "Hopper-v5", 200, x_velocity=speed)["ground_speed"]
        for speed in (push, push - push.mean())
    )
    assert drifting < staying < 0


@pytest.mark.parametrize("env_id", ["Ant-v5", "Walker2d-v5", "HalfCheetah-v5"])
def test_a_march_in_place_pays_for_lifting_the_feet_in_turn(env_id: str) -> None:
    lifts = terms_for("march in place", env_id)["lift_lead"]
    assert (lifts.shape, lifts.weight) == ("swing", 1.0)
    assert lifts.target > 0.12 * morphology_of(env_id).standing_height
    both = terms_for("walk forward, then march in place", env_id)
    assert sum(term.shape == "swing" for term in both.values()) == 1  # a reward follows one


def test_a_circle_pays_alike_wherever_it_may_be_and_nothing_from_afar() -> None:
    def paid_at(distance: float) -> tuple[float, float]:
        obs, next_obs = np.zeros((1, 10)), np.zeros((1, 10))
        obs[:, 8], next_obs[:, 8:10] = distance, distance * np.array([np.cos(0.1), np.sin(0.1)])
        terms = pay("move in circles around the target", "Reacher-v5", 1, obs=obs,
                    next_obs=next_obs)  # fmt: skip
        return terms["target_distance"], terms["orbit_left_rate"]

    assert paid_at(0.035) == pytest.approx(paid_at(0.06))
    assert paid_at(0.085) == pytest.approx(paid_at(0.06))
    assert paid_at(0.06)[1] > 0.7
    assert paid_at(0.02)[0] < paid_at(0.06)[0]
    near, turning = paid_at(0.25)
    assert near < 0 == turning


def test_a_hand_is_drawn_to_what_it_is_to_push() -> None:
    terms = terms_for("push the object away from the goal", "Pusher-v5")
    assert (terms["target_distance"].shape, terms["hand_distance"].shape) == ("more", "reach")
    assert terms["hand_distance"].weight == 0.5 * terms["target_distance"].weight


def test_a_flip_is_tried_boldly_and_often() -> None:
    training = propose("do a backflip", "HalfCheetah-v5").training
    assert training == {"log_std_init": 0.0, "gamma": 0.99, "training_horizon": 150}


def test_parts_of_a_sequence_are_paid_by_the_time_that_the_policy_observes() -> None:
    env_id, prompt = "HalfCheetah-v5", "run forward, then stop and stand still"
    proposal = propose(prompt, env_id)
    assert proposal.training == {"observe_time": True}
    request = RewardRequest(
        prompt=prompt, env_id=env_id, criteria=proposal.criteria, observe_time=True
    )
    draft = write_reward(request)
    names: dict[str, Any] = {}
    exec(draft.code, names)  # noqa: S102 - our own text
    time = np.array([0.0, 0.499, 0.5, 0.999])
    obs = np.column_stack([np.zeros((4, 17)), time])
    info = {"x_velocity": np.full(4, 2.0)}
    _, terms = names["reward_fn"](obs, np.zeros((4, 6)), obs, info)
    assert (terms["forward_speed"] > 0).tolist() == [True, True, False, False]
    assert (terms["ground_speed"] < 0).tolist() == [False, False, True, True]
    assert "drift" not in terms  # one that has run is not to be where it began
    config = TrainConfig(env_id=env_id, observe_time=True)
    report = check_reward(draft.code, config, num_envs=2, steps=5)
    assert report.ok


def test_one_that_rears_is_not_to_be_level_and_tries_often() -> None:
    proposal = propose("stand on your hind legs", "HalfCheetah-v5")
    assert proposal.training == {"training_horizon": 150}
    assert {c.title for c in proposal.criteria if c.category == "task"} == {
        "Stays where it is", "Holds its nose up",
        "Holds still", "Stays near where it began",
    }  # fmt: skip
    assert not any("tilt" in criterion.measure for criterion in proposal.criteria)


def test_two_poles_are_trained_from_many_starts() -> None:
    assert propose("balance", "InvertedDoublePendulum-v5").training == {"training_horizon": 40}
    assert propose("balance", "InvertedPendulum-v5").training == {}


def test_legs_that_swing_without_passing_each_other_earn_nothing() -> None:
    env_id, prompt = "Walker2d-v5", "walk forward"
    code = reward_for(prompt, env_id, propose(prompt, env_id).criteria)
    seconds = np.arange(1000) * 0.008

    def earned(lead: np.ndarray) -> float:
        names: dict[str, Any] = {"RewardFunction": object}
        exec(code, names)  # noqa: S102 - our own text
        reward = names["Sequence"]()
        obs, action = np.zeros((1000, 17)), np.zeros(6)
        obs[:, 5], obs[:, 14] = lead, np.gradient(lead, seconds)
        feet = {"x_velocity": 0.0, "ground_contact": np.zeros(8)}
        infos = ({"_episode_start": t == 0, **feet} for t in range(1000))
        steps = (reward.compute(o, action, o, info) for o, info in zip(obs, infos, strict=True))
        return sum(float(terms["stride"]) for _, terms in steps)

    swing = np.sin(2 * np.pi * seconds)
    stepping, dragging = earned(0.4 * swing), earned(0.4 + 0.3 * swing)
    assert stepping > 300
    assert abs(dragging) < 0.1 * stepping


@pytest.mark.parametrize(
    ("prompt", "steps"),
    [("walk forward", True), ("run backward", True), ("hop forward", False),
     ("walk forward with the left foot off the ground", False),
     ("walk forward without the left foot touching the ground", False)],
)  # fmt: skip
def test_one_on_two_legs_steps_with_both_unless_it_is_asked_not_to(
    prompt: str, steps: bool
) -> None:
    criteria = propose(prompt, "Walker2d-v5").criteria
    assert any(c.title.startswith("Steps with both legs") for c in criteria) == steps
    assert not any(c.title.startswith("Steps") for c in propose(prompt, "Hopper-v5").criteria)


def test_legs_earn_by_swinging_in_turn_up_to_a_usual_rate_and_by_nothing_else() -> None:
    criteria = propose("walk forward", "Walker2d-v5").criteria
    reward = load_from_code(reward_for("walk forward", "Walker2d-v5", criteria))
    weight = terms_for("walk forward", "Walker2d-v5")["stride"].weight
    time = np.arange(1000) * get_env_spec("Walker2d-v5").dt

    def pay(lead: np.ndarray) -> float:
        """Of the term for steps, a step on average, as a share of its weight."""
        total = 0.0
        for step, angle in enumerate(lead):
            seen = np.zeros(17)
            seen[5] = angle  # of the left thigh; the right one stays
            info = {"x_velocity": 0.0, "_episode_start": np.asarray(step == 0)}
            info["ground_contact"] = np.zeros(8)
            total += float(reward(np.zeros(17), np.zeros(6), seen, info)[1]["stride"])
        return total / len(lead) / weight

    usual, fast, flailing = (
        pay(0.4 * np.sin(2 * np.pi * per_second * time)) for per_second in (0.5, 1.0, 8.0)
    )
    assert 0.5 < usual < fast <= 1.0
    assert flailing <= 1.01 * fast  # whoever swings faster than anybody walks earns no more
    assert pay(0.2 * np.sin(2 * np.pi * 4 * time)) < 0.03  # trembling on one spot, paid once
    assert pay(np.full(1000, 0.5)) < 0.03


def test_a_count_is_the_threshold() -> None:
    task = propose("do two backflips", "HalfCheetah-v5").criteria[0]
    assert (task.threshold, task.unit) == (2.0, "turns")


def test_who_stands_with_an_arm_up_must_not_fall_and_has_it_above_the_shoulder() -> None:
    criteria = propose("stand and raise your right arm", "Humanoid-v5").criteria
    tasks = {c.title: c for c in criteria if c.category == "task"}
    assert {"Does not end early", "Stays upright", "Raises the right arm"} <= tasks.keys()
    shoulder = 0.06  # over the torso's origin, in the model
    assert float(tasks["Raises the right arm"].measure.split()[-2]) > shoulder + 0.08


@pytest.mark.parametrize(
    ("prompt", "side"),
    [
        ("roll over onto your belly", "Ends on its front"),
        ("lie face down", "Ends on its front"),
        ("lie on your back", "Ends on its back"),
    ],
)
def test_one_that_lies_ends_on_the_side_asked_for_and_need_not_roll_on(
    prompt: str, side: str
) -> None:
    proposal = propose(prompt, "HumanoidStandup-v5")
    tasks = {c.title for c in proposal.criteria if c.category == "task"}
    assert side in tasks
    assert not any(title.startswith("Rolls") for title in tasks)
    assert proposal.unused_words == ()


def test_the_front_of_one_that_lies_on_its_back_points_up_until_it_is_turned_over() -> None:
    steps = transitions("HumanoidStandup-v5")
    front = quantities_of("HumanoidStandup-v5")["front_up"].reward_code(side_info=False)
    next_obs = steps["next_obs"][0].copy()
    assert np.all(eval(str(front), {"np": np, "next_obs": next_obs}) > 1.2)  # noqa: S307
    next_obs[:, 1:5] = (0, 1, 0, 0)  # half a turn about the axis from feet to head
    assert np.allclose(eval(str(front), {"np": np, "next_obs": next_obs}), -np.pi / 2)  # noqa: S307


def test_a_posture_within_a_band_is_paid_for_much_better_than_standing() -> None:
    height = terms_for("crouch and hold it", "Humanoid-v5")["height"]
    standing = 1.28  # as trained ones do; at the start it is higher
    assert 1.0 < height.target < 1.2
    assert standing - height.target > height.scale


def test_no_two_criteria_exclude_each_other_whatever_two_things_are_asked() -> None:
    motions = ("walk forward", "run fast", "crawl", "spin", "turn left", "roll over", "jump", "hop",
               "hop forward", "stand still", "crouch", "lie down", "go far", "flip")  # fmt: skip
    styles = ("upright", "low", "high", "in place", "on its back", "level", "quietly",
              "on its hind legs", "in a straight line")  # fmt: skip
    accepted = 0
    for env_id in ("Ant-v5", "HalfCheetah-v5", "Humanoid-v5"):
        for first in motions:
            for second in (*motions, *styles):
                proposal = propose(f"{first} and {second}", env_id)
                assert not exclusive(proposal.criteria, env_id), (env_id, first, second)
                accepted += bool(proposal.criteria)
    assert accepted > 300


def exclusive(criteria: tuple[Criterion, ...], env_id: str) -> list[str]:
    """Quantities for which two criteria leave no common value for most of the time."""
    quantities = quantities_of(env_id)
    least: dict[str, float] = {}
    most: dict[str, float] = {}

    def bound(name: str, low: float | None, high: float | None) -> None:
        if low is not None:
            least[name] = max(low, least.get(name, low))
        if high is not None:
            most[name] = min(high, most.get(name, high))

    for criterion in criteria:
        measure = read_measure(criterion.measure, quantities)
        assert measure is not None
        name, at_least = measure.quantity, criterion.comparison == "at_least"
        value = criterion.threshold
        if measure.stat == "share" and value > 0.5:
            bound(name, measure.low, measure.high)
        elif measure.stat in ("mean", "final"):
            bound(name, value if at_least else None, None if at_least else value)
    for way in ("forward", "backward", "left", "right"):
        bound("ground_speed", least.get(f"{way}_speed"), None)
    return [name for name, low in least.items() if low > most.get(name, low)]


@pytest.mark.parametrize(
    ("env_id", "prompt", "falls"),
    [
        ("HalfCheetah-v5", "run forward", {"tilt", "height"}),
        ("Ant-v5", "walk forward", {"tilt", "height"}),
        ("Humanoid-v5", "walk forward", {"tilt", "height"}),
        ("Ant-v5", "lie on your back", set()),
        ("HalfCheetah-v5", "do a backflip", set()),
        ("HumanoidStandup-v5", "stand up", set()),
        ("Swimmer-v5", "swim forward", set()),
        ("InvertedPendulum-v5", "balance the pole", set()),
    ],
)
def test_a_fall_ends_training_where_it_is_to_be_up(
    env_id: str, prompt: str, falls: set[str]
) -> None:
    recipe = recipe_of(reward_for(prompt, env_id, propose(prompt, env_id).criteria))
    assert {fall.quantity for fall in recipe.falls} == falls
    assert read_recipe(render(recipe)) == recipe
    if falls:
        [alive] = [term for term in recipe.terms if term.shape == "alive"]
        assert alive.weight >= sum(term.weight for term in recipe.terms if term.is_cost)
        assert recipe.with_terms([t for t in recipe.terms if t != alive]).falls == ()


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Ant-v5", "Walker2d-v5"])
def test_lying_costs_what_the_task_pays_and_has_failed(env_id: str) -> None:
    code = reward_for("walk forward", env_id, propose("walk forward", env_id).criteria)
    recipe = recipe_of(code)
    task = [term for term in recipe.terms if term.shape in ("more", "swing")]
    lying = [term for term in recipe.terms if term.is_cost and term.quantity in ("tilt", "height")]
    assert sum(t.weight for t in lying) >= sum(t.weight for t in task) - 1e-3
    reward = load_from_code(code)
    env = make_batched_env(EnvOptions(env_id), 1)
    obs = env.reset_batch(0)
    step = env.step_batch(np.zeros((1, *(env.single_action_space.shape or ()))))
    up = step.next_obs
    down = up.copy()
    if env_id == "Ant-v5":
        down[:, 1:5] = (0.0, 1.0, 0.0, 0.0)
    else:
        down[:, 1] = 1.6
    action = np.zeros((1, *(env.single_action_space.shape or ())))
    info = {**step.info, "_episode_start": np.array([True])}
    assert not np.any(reward.failed(obs, action, up, info))
    assert np.all(reward.failed(obs, action, down, info))
    env.close()


def test_speed_alone_pays_without_end() -> None:
    terms = terms_for("run forward as fast as you can", "Ant-v5")
    assert terms["forward_speed"].cap == ALL_OUT
    assert terms["least_stance"].cap == 1.0
    assert all(term.cap <= 3.0 for name, term in terms.items() if name != "forward_speed")
