"""An environment that nobody has seen before: a person's own, on MuJoCo."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.mujoco import MujocoEnv

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.judge import write_judge
from p2p.agents.builtin.morphology import morphology_of, usual_pose
from p2p.agents.builtin.quantities import Code, quantities_of
from p2p.agents.builtin.reward import read_recipe, write_reward
from p2p.agents.intent_elicitor import check_proposal
from p2p.agents.judge_code import trajectory_columns
from p2p.agents.requests import IntentRequest, JudgeRequest, RewardRequest
from p2p.training.env_spec import get_env_spec

MODEL = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <geom name="floor" type="plane" size="10 10 0.1"/>
    <body name="trunk" pos="0 0 0.5">
      <joint name="base" type="free"/>
      <geom name="trunk" type="box" size="0.2 0.1 0.05" mass="2"/>
      <body name="left_arm" pos="0 0.15 0">
        <joint name="left_shoulder" type="hinge" axis="1 0 0" range="-2 2" limited="true"/>
        <geom name="left_arm" type="capsule" fromto="0 0 0 0 0.3 0" size="0.03" mass="0.2"/>
      </body>
      <body name="right_arm" pos="0 -0.15 0">
        <joint name="right_shoulder" type="hinge" axis="1 0 0" range="-2 2" limited="true"/>
        <geom name="right_arm" type="capsule" fromto="0 0 0 0 -0.3 0" size="0.03" mass="0.2"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="left" joint="left_shoulder" gear="5" ctrlrange="-1 1" ctrllimited="true"/>
    <motor name="right" joint="right_shoulder" gear="5" ctrlrange="-1 1" ctrllimited="true"/>
  </actuator>
</mujoco>
"""
ENV = "OwnSled-v0"
BLIND = "BlindSled-v0"
SERVOS = "ServoSled-v0"
LIMP = "LimpWalker-v0"


class OwnSled(MujocoEnv):
    metadata: ClassVar[dict[str, Any]] = {
        "render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"],
        "render_fps": 20,
    }

    def __init__(self, model_path: str, **kwargs: Any) -> None:
        space = gym.spaces.Box(-np.inf, np.inf, (17,), np.float64)
        super().__init__(model_path, 5, observation_space=space, **kwargs)

    def _get_obs(self) -> np.ndarray:
        return np.concatenate([self.data.qpos, self.data.qvel])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.do_simulation(action, self.frame_skip)
        return self._get_obs(), 0.0, False, False, {}

    def reset_model(self) -> np.ndarray:
        self.set_state(self.init_qpos, self.init_qvel)
        return self._get_obs()


class BlindSled(OwnSled):
    """Sees how it leans, but not which way it faces; it may begin facing anywhere."""

    def _get_obs(self) -> np.ndarray:
        return np.concatenate([self.data.xmat[1], np.zeros(8)])


@pytest.fixture(scope="module", autouse=True)
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder: Path = tmp_path_factory.mktemp("own")
    motors, servos = folder / "sled.xml", folder / "servos.xml"
    motors.write_text(MODEL)
    servos.write_text(MODEL.replace("<motor", "<position"))
    sleds = {ENV: (OwnSled, motors), BLIND: (BlindSled, motors), SERVOS: (OwnSled, servos)}
    for env_id, (sled, model) in sleds.items():
        gym.register(env_id, sled, kwargs={"model_path": str(model)}, max_episode_steps=50)
    walker, never = (
        "gymnasium.envs.mujoco.walker2d_v5:Walker2dEnv",
        {"terminate_when_unhealthy": False},
    )
    gym.register(LIMP, walker, kwargs=never, max_episode_steps=500)
    yield
    for env_id in (*sleds, LIMP):
        del gym.registry[env_id]
    for cached in (get_env_spec, morphology_of, quantities_of, usual_pose):
        cached.cache_clear()


def test_its_root_its_size_and_its_limbs_are_found() -> None:
    model, quantities = morphology_of(ENV), quantities_of(ENV)
    assert model.root is not None
    assert model.root.name == "trunk"
    assert 0.03 < model.standing_height < 0.3  # it has slid down to the floor
    known = {"forward_speed", "height", "tilt", "turn_left_rate", "rise_left_arm", "asymmetry"}
    assert known <= set(quantities)
    assert quantities["forward_speed"].reward_code() == "next_obs[..., 9]"
    assert quantities["drift"].felt_as == ""  # it observes where it is


def test_a_fall_that_ends_no_episode_is_not_how_it_stands() -> None:
    assert morphology_of(LIMP).standing_height > 1.2
    criteria = write_criteria(IntentRequest(prompt="walk forward", env_id=LIMP)).criteria
    [sunk] = [each for each in criteria if each.title == "Does not sink down"]
    assert float(sunk.measure.rpartition("at least")[2].split()[0]) > 0.6


@pytest.mark.parametrize(
    "prompt", ["go forward", "spin", "raise the left arm", "stand still", "flip over"]
)
def test_motions_can_be_asked_of_it(prompt: str) -> None:
    proposal = write_criteria(IntentRequest(prompt=prompt, env_id=ENV))
    assert not proposal.refusal
    check_proposal(proposal)
    draft = write_reward(RewardRequest(prompt=prompt, env_id=ENV, criteria=proposal.criteria))
    assert read_recipe(draft.code)
    names: dict[str, Any] = {}
    exec(draft.code, names)  # noqa: S102 - our own text
    obs = np.zeros((4, 17))
    obs[:, 3] = 1.0
    total, _ = names["reward_fn"](obs, np.zeros((4, 2)), obs, {})
    assert np.shape(total) == (4,)
    judge = write_judge(
        JudgeRequest(prompt=prompt, env_id=ENV, criteria=proposal.criteria,
                     columns=trajectory_columns(get_env_spec(ENV)))
    )  # fmt: skip
    assert "UNKNOWN = ()" in judge.code


def cost_of_effort(env_id: str, squares: list[float]) -> list[float]:
    """What the reward takes off for actions of these mean squares."""
    criteria = write_criteria(IntentRequest(prompt="go forward", env_id=env_id)).criteria
    draft = write_reward(RewardRequest(prompt="go forward", env_id=env_id, criteria=criteria))
    names: dict[str, Any] = {}
    exec(draft.code, names)  # noqa: S102 - our own text
    obs = np.zeros((len(squares), 17))
    actions = np.sqrt(squares)[:, None] * np.array([1.0, -1.0])
    _, terms = names["reward_fn"](obs, actions, obs, {})
    return [-float(cost) for cost in terms["effort"]]


def test_beyond_a_mean_square_of_1_servos_still_cost_more_and_motors_do_not() -> None:
    assert {action.kind for action in get_env_spec(SERVOS).actions} == {"position servo"}
    squares = [0.25, 0.5, 1.0, 2.0, 4.0, 9.0]
    servo, motor = cost_of_effort(SERVOS, squares), cost_of_effort(ENV, squares)
    assert servo == pytest.approx([0.3 * min(square, 4.0) for square in squares])
    assert motor == pytest.approx([motor[2] * min(square, 1.0) for square in squares])
    assert 0 < motor[2] < servo[2]


def test_the_simulators_state_stands_in_for_what_is_not_observed() -> None:
    speed = quantities_of(ENV)["forward_speed"]
    hidden = replace(speed, code=Code(None, speed.code.judge))
    assert hidden.reward_code() is None
    assert hidden.reward_code(side_info=True) == 'info["mj_data"].qvel[..., 0]'


def test_what_it_has_not_is_said() -> None:
    proposal = write_criteria(IntentRequest(prompt="raise the tail", env_id=ENV))
    assert "raise the tail" in proposal.refusal


def test_an_environment_that_is_seen_to_end_early_is_asked_to_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examples = Path(__file__).parents[3] / "examples" / "environments"
    monkeypatch.syspath_prepend(str(examples))
    pole = "long_pole:LongPole-v0"
    assert morphology_of(pole).may_end_early
    proposal = write_criteria(IntentRequest(prompt="balance the pole", env_id=pole))
    assert "keeps_the_pole_up_to_the_end" in {criterion.id for criterion in proposal.criteria}


def test_forward_is_where_it_faces_for_one_that_does_not_see_which_way_that_is() -> None:
    assert morphology_of(ENV).knows_heading
    assert not morphology_of(BLIND).knows_heading
    trajectory = {"qvel": np.zeros((1, 8)), "heading": np.array([np.pi / 2])}
    trajectory["qvel"][:, :2] = 0.5, 2.0  # mostly along +y, which is where it faces
    speeds = {}
    for key in ("forward_speed", "left_speed"):
        code = str(quantities_of(BLIND)[key].judge_code(trajectory))
        speeds[key] = float(eval(code, {"np": np, "trajectory": trajectory})[0])  # noqa: S307 - our own text
    assert speeds == pytest.approx({"forward_speed": 2.0, "left_speed": -0.5})
    blind, seeing = (
        write_criteria(IntentRequest(prompt="go ahead", env_id=env_id)).criteria
        for env_id in (BLIND, ENV)
    )
    assert "Keeps its direction" not in {criterion.title for criterion in seeing}
    # Going round in circles is not going ahead: a pass needs it.
    assert ("Keeps its direction", "task") in {(c.title, c.category) for c in blind}
    request = RewardRequest(prompt="go ahead", env_id=BLIND, criteria=blind, side_info=True)
    recipe = read_recipe(write_reward(request).code)
    assert recipe is not None
    assert "turn_left_rate" not in {term.quantity for term in recipe.terms}
    [veer] = [term for term in recipe.terms if term.quantity == "veer"]
    assert veer.criteria == ("keeps_its_direction",)


def test_who_sways_keeps_its_direction_and_who_drifts_does_not() -> None:
    """One that does not see its heading learns from what it does now, not from where it got."""
    code, dt = quantities_of(BLIND)["veer"], get_env_spec(BLIND).dt
    assert code.memory is not None
    time = dt * np.arange(1, 401)

    def rates(heading: Any) -> tuple[float, float]:
        faced, paid = heading[0], []
        for i, now in enumerate(heading):
            names = {"np": np, "info": {"heading": now}, "start": i == 0,
                     "self": SimpleNamespace(_faced=faced)}  # fmt: skip
            update = code.memory.update.replace("{heading}", 'info["heading"]')
            names["self"]._faced = faced = eval(update, names)  # noqa: S307 - our own text
            paid.append(eval(str(code.reward_code(side_info=True)), names))  # noqa: S307
        judge = str(code.judge_code({"heading": heading}))
        judged = eval(judge, {"np": np, "trajectory": {"heading": heading}})  # noqa: S307
        return float(np.mean(np.abs(paid[-100:]))), float(np.mean(judged))

    swaying, drifting = 0.1 * np.sin(2 * np.pi * 1.5 * time), 0.2 * time
    paid, judged = rates(swaying)
    assert paid < 0.05  # its own rate is 0.6 rad/s on average
    assert abs(judged) < 0.02
    assert rates(drifting) == pytest.approx((0.2, 0.2), rel=0.1)


def test_where_it_faces_is_paid_and_judged_from_the_start_of_each_episode() -> None:
    criteria = write_criteria(IntentRequest(prompt="go ahead", env_id=BLIND)).criteria
    facing = quantities_of(BLIND)["facing"]
    # By its rate alone it might turn by half a circle.
    [faces] = [c for c in criteria if c.title.startswith("Faces the way it faced")]
    assert faces.hard
    assert facing.words in faces.measure
    request = RewardRequest(prompt="go ahead", env_id=BLIND, criteria=criteria, side_info=True)
    names: dict[str, Any] = {"RewardFunction": object}
    exec(write_reward(request).code, names)  # noqa: S102 - our own text
    reward = names["Sequence"]()
    obs, parts = np.zeros((2, 17)), len(get_env_spec(BLIND).bodies)
    state = SimpleNamespace(qpos=np.zeros((2, 9)), qvel=np.zeros((2, 8)))

    def paid(heading: tuple[float, float], *start: bool) -> list[float]:
        info = {"heading": np.array(heading), "_episode_start": np.array(start),
                "body_velocity": np.zeros((2, parts, 3)), "body_position": np.zeros((2, parts, 3)),
                "ground_contact": np.zeros((2, parts)), "mj_data": state}  # fmt: skip
        _, terms = reward.compute(obs, np.zeros((2, 2)), obs, info)
        return [round(float(term), 3) for term in terms["facing"]]

    assert paid((2.0, -1.0), True, True) == [0.0, 0.0]
    turned, straight = paid((2.5, -1.0), False, False)
    assert turned < straight == 0.0
    assert paid((2.5, -1.0), True, False) == [0.0, 0.0]
