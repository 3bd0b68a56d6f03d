"""What is read off models that nobody tuned for: roots, limbs, wheels, pivots, targets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.mujoco import MujocoEnv

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.morphology import morphology_of, usual_pose
from p2p.agents.builtin.quantities import quantities_of
from p2p.agents.builtin.reward import Recipe, read_recipe, write_reward
from p2p.agents.requests import IntentRequest, RewardRequest
from p2p.contracts import Criterion
from p2p.training.env_spec import get_env_spec

FLOOR = '<geom type="plane" size="9 9 1"/>'
MASS = '<geom type="sphere" size="0.03" mass="1"/>'


def leg(name: str, x: float, y: float, joint: str) -> str:
    """Two links down to the floor."""
    shape = '<geom type="capsule" fromto="0 0 0 0 0 -0.1" size="0.02" mass="0.2"/>'
    lower = f'<body name="{name}_lower" pos="0 0 -0.1">{shape}</body>'
    hinge = f'<joint name="{joint}" axis="0 1 0" range="-60 60"/>'
    return f'<body name="{name}" pos="{x} {y} 0">{hinge}{shape}{lower}</body>'


SIX = {
    f"p{i}": (x, y) for i, (x, y) in enumerate((x, y) for x in (0.3, 0, -0.3) for y in (0.1, -0.1))
}
MARKED = {f"{mark}_thigh": (x, y) for mark, x, y in
          (("FL", 0.2, 0.1), ("FR", 0.2, -0.1), ("RL", -0.2, 0.1), ("RR", -0.2, -0.1))}  # fmt: skip


def legged(places: dict[str, tuple[float, float]]) -> tuple[str, str]:
    legs = "".join(leg(name, x, y, f"j{i}") for i, (name, (x, y)) in enumerate(places.items()))
    trunk = '<geom type="box" size="0.35 0.1 0.04" mass="3"/>'
    motors = "".join(f'<motor joint="j{i}"/>' for i in range(len(places)))
    return f'{FLOOR}<body name="hull" pos="0 0 0.22"><freejoint/>{trunk}{legs}</body>', motors


def cart(ahead: float = 0.0, up: float = 0.0) -> tuple[str, str]:
    """Four wheels, so far ahead of the frame of the chassis and above it."""
    wheel = '<geom type="cylinder" size="0.06 0.02" euler="90 0 0" mass="0.3"/>'
    wheels = "".join(
        f'<body name="{name}" pos="{x + ahead} {y} {up}"><joint name="{name}" axis="0 1 0"/>{wheel}'
        "</body>"
        for name, x, y in (("a", 0.1, 0.1), ("b", 0.1, -0.1), ("c", -0.1, 0.1), ("d", -0.1, -0.1))
    )
    box = f'<geom type="box" size="0.15 0.07 0.03" pos="{ahead} 0 {up}" mass="2"/>'
    boom = f'<body name="boom" pos="{ahead} 0.9 {up}">{MASS}</body>'
    body = f'<body name="chassis" pos="0 0 {0.06 - up}"><freejoint/>{box}{wheels}{boom}</body>'
    return FLOOR + body, "".join(f'<motor joint="{name}"/>' for name in "abcd")


def biped() -> tuple[str, str]:
    """A trunk of 0.8 m on two legs of 0.95 m, in a plane."""
    leg = '<geom type="capsule" fromto="0 0 0 0 0 -0.9" size="0.05"/>'
    legs = "".join(
        f'<body name="{side}_leg" pos="0 {y} -0.4"><joint name="{side}" axis="0 1 0"/>{leg}</body>'
        for side, y in (("left", 0.1), ("right", -0.1))
    )
    joints = "".join(
        f'<joint name="{name}" type="{kind}" axis="{axis}"/>'
        for name, kind, axis in (("x", "slide", "1 0 0"), ("z", "slide", "0 0 1"),
                                 ("tilt", "hinge", "0 1 0"))
    )  # fmt: skip
    trunk = '<geom type="capsule" fromto="0 0 -0.4 0 0 0.4" size="0.07"/>'
    body = f'<body name="torso" pos="0 0 1.35">{joints}{trunk}{legs}</body>'
    return FLOOR + body, '<motor joint="left"/><motor joint="right"/>'


RAIL = (
    '<body name="cart" pos="0 0 1"><joint name="rail" type="slide" axis="1 0 0" range="-2 2"'
    f' limited="true"/>{MASS}<body name="pole"><joint name="hinge" axis="0 1 0"/>'
    '<geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.02"/></body></body>'
)
PIVOT = '<body name="rod" pos="0 0 1"><joint name="j" axis="0 1 0"/>{}</body>'
STONE = f'<body name="stone" pos="0 0 2"><freejoint/>{MASS}</body>'
ARM = (
    f'<body name="stage"><joint name="x" type="slide" axis="1 0 0" range="-1 1"/>{MASS}</body>'
    '<geom name="target" type="sphere" size="0.05" pos="0.5 0 0" contype="0" conaffinity="0"/>'
)
FIN = f'<body name="fin" pos="0 0.1 0"><joint name="j" axis="1 0 0"/>{MASS}</body>'
FISH = f'<body name="fish" pos="0 0 1"><freejoint/>{MASS}{FIN}</body>'
MODELS: dict[str, tuple[str, str, str]] = {
    "Six-v0": (*legged(SIX), ""),
    "Marked-v0": (*legged(MARKED), ""),
    "Wheels-v0": (*cart(), ""),
    "Car-v0": (*cart(ahead=0.3, up=0.06), ""),
    "Biped-v0": (*biped(), ""),
    "Rail-v0": (RAIL, '<motor joint="rail"/>', ""),
    "Hanging-v0": (
        PIVOT.format('<geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.02"/>'),
        '<motor joint="j"/>', "",
    ),
    "Standing-v0": (
        PIVOT.format('<geom type="capsule" fromto="0 0 0 0 0 0.5" size="0.02"/>'),
        '<motor joint="j"/>', "",
    ),
    "Stage-v0": (STONE + ARM, '<motor tendon="t"/>',
                 '<tendon><fixed name="t"><joint joint="x" coef="1"/></fixed></tendon>'),
    "Fish-v0": (FLOOR + FISH, '<motor joint="j"/>',
                '<option density="1000"><flag gravity="disable"/></option>'),
}  # fmt: skip


class FromModel(MujocoEnv):  # type: ignore[misc]
    """Observes positions and velocities; nothing ends an episode."""

    metadata: ClassVar[dict[str, Any]] = {
        "render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"], "render_fps": 100,
    }  # fmt: skip

    def __init__(self, model_path: str, **kwargs: Any) -> None:
        space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        super().__init__(model_path, 5, observation_space=space, **kwargs)
        size = self.model.nq + self.model.nv
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float64)

    def _get_obs(self) -> np.ndarray:
        return np.concatenate([self.data.qpos, self.data.qvel])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.do_simulation(action, self.frame_skip)
        return self._get_obs(), 0.0, False, False, {}

    def reset_model(self) -> np.ndarray:
        self.set_state(self.init_qpos, self.init_qvel)
        return self._get_obs()


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder: Path = tmp_path_factory.mktemp("models")
    for env_id, (bodies, motors, rest) in MODELS.items():
        path = folder / f"{env_id}.xml"
        path.write_text(
            '<mujoco><default><motor ctrllimited="true" ctrlrange="-1 1"/></default>'
            f"<worldbody>{bodies}</worldbody><actuator>{motors}</actuator>{rest}</mujoco>"
        )
        gym.register(env_id, FromModel, kwargs={"model_path": str(path)}, max_episode_steps=500)
    yield
    for env_id in MODELS:
        del gym.registry[env_id]
    for cached in (get_env_spec, morphology_of, quantities_of, usual_pose):
        cached.cache_clear()


def criteria_of(prompt: str, env_id: str) -> tuple[Criterion, ...]:
    proposal = write_criteria(IntentRequest(prompt=prompt, env_id=env_id))
    assert not proposal.refusal
    return proposal.criteria


def titles(prompt: str, env_id: str) -> set[str]:
    return {criterion.title for criterion in criteria_of(prompt, env_id)}


def recipe_for(prompt: str, env_id: str) -> Recipe:
    criteria = criteria_of(prompt, env_id)
    request = RewardRequest(prompt=prompt, env_id=env_id, criteria=criteria, side_info=True)
    recipe = read_recipe(write_reward(request).code)
    assert recipe is not None
    return recipe


@pytest.mark.parametrize(
    ("phrase", "name"),
    [
        (("front", "left", "leg"), "p0_lower"),
        (("front", "right", "foot"), "p1_lower"),
        (("back", "right", "thigh"), "p5"),
    ],
)
def test_limbs_without_names_are_found_by_place(phrase: tuple[str, ...], name: str) -> None:
    part = morphology_of("Six-v0").limb(phrase)
    assert part is not None
    assert part.name == name


@pytest.mark.parametrize("marks", ["FL", "FR", "RL", "RR"])
def test_letters_in_names_say_the_side(marks: str) -> None:
    sides = {"F": "front", "R": "back"}[marks[0]], {"L": "left", "R": "right"}[marks[1]]
    part = morphology_of("Marked-v0").limb((*sides, "foot"))
    assert part is not None
    assert part.name == f"{marks}_thigh_lower"


def test_what_has_wheels_drives_and_does_not_step() -> None:
    assert {wheel.name for wheel in morphology_of("Wheels-v0").wheels} == {*"abcd"}
    driving, rolling = titles("drive forward", "Wheels-v0"), titles("roll forward", "Wheels-v0")
    assert "Goes forward" in driving & rolling
    assert not {"Steps with both legs in turn", "Uses the legs of both sides"} & driving


@pytest.mark.parametrize("env_id", ["Wheels-v0", "Car-v0"])
def test_what_is_on_wheels_stands_wherever_its_origin_is(env_id: str) -> None:
    model = morphology_of(env_id)
    assert {wheel.name for wheel in model.wheels} == {*"abcd"}
    assert model.cannot_fall
    assert not model.starts_lying


def test_standing_still_on_wheels_pays_nothing() -> None:
    request = IntentRequest(prompt="drive forward at 0.5 m/s", env_id="Wheels-v0")
    criteria = write_criteria(request).criteria
    draft = write_reward(
        RewardRequest(
            prompt=request.prompt, env_id="Wheels-v0", criteria=criteria, side_info=True
        )
    )  # fmt: skip
    recipe = read_recipe(draft.code)
    assert recipe is not None
    assert {"forward_speed"} <= {term.quantity for term in recipe.terms}
    assert not recipe.falls
    assert not [term for term in recipe.terms if term.shape == "alive"]


def test_a_hanging_pole_is_given_time_to_come_up() -> None:
    assert morphology_of("Hanging-v0").hangs
    assert "Has the pole up at the end" in titles("swing the pole up", "Hanging-v0")
    tilt = quantities_of("Hanging-v0")["pole_tilt"].judge_code({"qpos"})
    leans = eval(str(tilt), {"np": np, "trajectory": {"qpos": np.array([[0.0], [np.pi]])}})  # noqa: S307
    assert leans == pytest.approx([np.pi, 0.0], abs=1e-4)


def test_a_pole_that_begins_upright_is_kept_up() -> None:
    assert not morphology_of("Standing-v0").hangs
    assert "Has the pole up at the end" not in titles("balance the pole", "Standing-v0")
    # Nothing ends its episodes: one that hangs would earn the same whatever the cart does.
    falls = recipe_for("balance the pole", "Standing-v0").falls
    assert [fall.quantity for fall in falls] == ["pole_tilt"]
    assert recipe_for("balance the pole", "InvertedPendulum-v5").falls == ()


def test_kneeling_is_a_fall_where_nothing_else_ends_the_episode() -> None:
    falls = {fall.quantity: fall for fall in recipe_for("stand still", "Biped-v0").falls}
    low = falls["height"].below
    assert low is not None
    assert low > 0.5 * 1.35, "it can kneel above half of its height"


def test_cart_may_leave_the_middle_to_swing_a_pole_up() -> None:
    prompt = "swing the pole up and keep the cart in the middle"
    (cost,) = (t for t in recipe_for(prompt, "Rail-v0").terms if t.quantity == "cart_offset")
    assert cost.scale == 2.0, "it grows along the whole rail"
    (centred,) = (c for c in criteria_of(prompt, "Rail-v0") if "in the middle" in c.title)
    assert centred.threshold == 0.5


def test_a_thing_that_nothing_drives_is_not_the_robot() -> None:
    model = morphology_of("Stage-v0")
    assert model.root is None
    assert [joint.name for joint in model.driven] == ["x"]  # through its tendon


def test_a_shape_fixed_to_the_world_is_a_target() -> None:
    (reaches,) = (
        c for c in criteria_of("move to the target", "Stage-v0") if c.title == "Reaches the target"
    )
    assert reaches.threshold >= 0.05, "what is in its shape has reached it"
    code = quantities_of("Stage-v0")["target_distance"].judge_code({"body_position"})
    at_rest = np.zeros((1, 3, 3))
    gap = eval(str(code), {"np": np, "trajectory": {"body_position": at_rest}})  # noqa: S307
    assert gap == pytest.approx([0.5])


def test_what_has_no_weight_swims_and_cannot_fall() -> None:
    model = morphology_of("Fish-v0")
    assert model.root is not None
    assert model.height_joint is None
    assert not model.spec.feet
    proposal = write_criteria(IntentRequest(prompt="swim forward", env_id="Fish-v0"))
    assert (proposal.refusal, proposal.unused_words) == ("", ())
    upright = write_criteria(IntentRequest(prompt="turn upright", env_id="Fish-v0"))
    assert "Stays upright" in {criterion.title for criterion in upright.criteria}


def test_as_fast_as_possible_has_no_speed_that_is_enough() -> None:
    caps = []
    for prompt in ("run forward fast", "run forward as fast as you can"):
        request = IntentRequest(prompt=prompt, env_id="Marked-v0")
        criteria = write_criteria(request).criteria
        draft = write_reward(RewardRequest(prompt=prompt, env_id="Marked-v0", criteria=criteria))
        recipe = read_recipe(draft.code)
        assert recipe is not None
        caps.append(next(t.cap for t in recipe.terms if t.quantity == "forward_speed"))
    assert caps[1] > 3 * caps[0]
