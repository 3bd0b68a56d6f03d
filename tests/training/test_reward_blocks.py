from __future__ import annotations

import numpy as np
import pytest

from p2p.training.reward.calls import Transition
from p2p.training.reward.runner import ROWS_AT_ONCE, RewardRunner, trial_transitions
from p2p.training.reward_function import RewardError
from p2p.training.vec_env import make_batched_env

NUM_ENVS = 4

PLAIN = """
import numpy as np

def reward_fn(obs, action, next_obs, info):
    speed = info["x_velocity"]
    ctrl = -0.1 * np.sum(np.square(action), axis=-1)
    rise = next_obs[..., 0] - obs[..., 0]
    return speed + ctrl + rise, {"speed": speed, "ctrl": ctrl, "rise": rise, "alive": 1.0}
"""

HIDDEN_STATE = """
import numpy as np
seen = np.zeros(())

def reward_fn(obs, action, next_obs, info):
    np.add(seen, 1.0, out=seen)
    late = seen + 0.0 * info["x_velocity"]
    return late, {"late": late}
"""

FAILS_LATE = """
import numpy as np

def reward_fn(obs, action, next_obs, info):
    far = np.where(info["marked"] > 0, np.nan, 1.0)
    return far, {"far": far}
"""


def steps_of(count: int) -> list[Transition]:
    env = make_batched_env("HalfCheetah-v5", NUM_ENVS)
    steps = list(trial_transitions(env, count, seed=3))
    env.close()
    return steps


def rewarded_singly(code: str, steps: list[Transition]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    runner = RewardRunner(code, NUM_ENVS, batched=True)
    found = [runner(step) for step in steps]
    terms = {name: np.stack([t[name] for _, t in found]) for name in runner.term_names}
    return np.stack([total for total, _ in found]), terms


def in_blocks(runner: RewardRunner, steps: list[Transition], size: int) -> np.ndarray:
    return np.concatenate(
        [runner.block(steps[i : i + size])[0] for i in range(0, len(steps), size)]
    )


def test_blocks_give_what_single_steps_give():
    steps = steps_of(30)
    runner = RewardRunner(PLAIN, NUM_ENVS, batched=True)
    assert runner.block_steps == ROWS_AT_ONCE // NUM_ENVS
    total, terms = rewarded_singly(PLAIN, steps)
    np.testing.assert_allclose(in_blocks(runner, steps, 10), total, rtol=1e-6)
    again, again_terms = runner.block(steps)
    np.testing.assert_allclose(again, total, rtol=1e-6)
    assert again_terms.keys() == terms.keys()
    for name, values in terms.items():
        np.testing.assert_allclose(again_terms[name], values, rtol=1e-6)


def test_state_that_the_source_does_not_show_is_found_out():
    steps = steps_of(12)
    runner = RewardRunner(HIDDEN_STATE, NUM_ENVS, batched=True)
    assert not runner.stateful  # else this tests nothing
    total, _ = rewarded_singly(HIDDEN_STATE, steps)
    np.testing.assert_array_equal(in_blocks(runner, steps, 4), total)
    assert runner.block_steps == 1


@pytest.mark.parametrize("block", [0, 2])
def test_an_error_names_the_step_and_environment_to_blame(block: int):
    steps = [step._replace(info={"marked": np.zeros(NUM_ENVS)}) for step in steps_of(12)]
    bad = 4 * block + 3
    steps[bad].info["marked"][2] = 1.0
    runner = RewardRunner(FAILS_LATE, NUM_ENVS, batched=True)
    with pytest.raises(RewardError) as caught:
        in_blocks(runner, steps, 4)
    assert (caught.value.step, caught.value.row, caught.value.term) == (bad, 2, "far")


def test_rewards_that_could_tell_are_called_step_by_step():
    stateful = PLAIN.replace('info["x_velocity"]', 'info["x_velocity"] * info["_episode_start"]')
    assert RewardRunner(stateful, NUM_ENVS, batched=True).block_steps == 1
    assert RewardRunner(PLAIN, NUM_ENVS, batched=False).block_steps == 1
    env = make_batched_env("HalfCheetah-v5", NUM_ENVS)
    assert RewardRunner(PLAIN, NUM_ENVS, batched=True, side_info=env).block_steps == 1
    env.close()


def test_steps_whose_info_differs_are_rewarded_singly():
    steps = steps_of(4)
    steps[2] = steps[2]._replace(info={**steps[2].info, "rare": np.ones(NUM_ENVS)})
    runner = RewardRunner(PLAIN, NUM_ENVS, batched=True)
    np.testing.assert_array_equal(runner.block(steps)[0], rewarded_singly(PLAIN, steps)[0])
