import numpy as np
import pytest
from test_reward_loader import CLASS, FUNCTION, MAKER

from p2p.config import EnvOptions
from p2p.training.reward_function import RewardError
from p2p.training.reward_runner import (
    ROWS_AT_ONCE,
    RewardRunner,
    Transition,
    decide_batched,
    trial_transitions,
)
from p2p.training.vec_env import make_batched_env

N, D, A = 8, 17, 6

BATCHED = """
def reward_fn(obs, action, next_obs, info):
    speed = info["x_velocity"]
    ctrl = -0.1 * np.sum(np.square(action), axis=-1)
    return speed + ctrl + 1.0, {"speed": speed, "ctrl": ctrl, "alive": 1.0}
"""

SMOOTH = """
class Smooth(RewardFunction):
    latex = "r = -|a - a'|^2"
    terms = {"smooth": "action change", "first": "first step"}
    def __init__(self):
        self.last = 0.0
    def compute(self, obs, action, next_obs, info):
        start = np.asarray(info["_episode_start"])
        last = np.where(start[..., None], action, self.last)
        self.last = np.array(action)
        smooth = -np.sum(np.square(action - last), axis=-1)
        first = 1.0 * start
        return smooth + first, {"smooth": smooth, "first": first}
"""

COUNTER = """
class Counter(RewardFunction):
    latex = "n"
    terms = {"n": "steps in this episode"}
    n = 0
    def reset(self, rows=None):
        self.n = 0 if rows is None else np.where(rows, 0, self.n)
    def compute(self, obs, action, next_obs, info):
        self.n = self.n + np.ones(np.shape(next_obs)[:-1])
        return self.n, {"n": self.n}
"""


@pytest.fixture(scope="module")
def env():
    env = make_batched_env(EnvOptions("HalfCheetah-v5"), N)
    yield env
    env.close()


def inputs(n=N, seed=0):
    rng = np.random.default_rng(seed)
    info = {key: rng.normal(size=n) for key in ("x_velocity", "x_position")}
    action = rng.normal(size=(n, A)).astype(np.float32)
    return rng.normal(size=(n, D)), action, rng.normal(size=(n, D)), info


def run(runner, start=None, **changes):
    obs, action, next_obs, info = inputs(runner.num_envs)
    info = {**info, **changes}
    start = np.zeros(runner.num_envs, bool) if start is None else np.array(start)
    return runner(Transition(obs, action, next_obs, info, start))


def fails(code, batched, **changes):
    runner = RewardRunner(code, N, batched=batched)
    with pytest.raises(RewardError) as caught:
        run(runner, **changes)
    return caught.value


def function(body):
    return f"def reward_fn(obs, action, next_obs, info):\n    {body}\n"


@pytest.mark.parametrize("batched", [True, False])
def test_rewards_and_terms_come_out_per_row(batched):
    _, action, _, info = inputs()
    runner = RewardRunner(BATCHED, N, batched=batched)
    reward, terms = run(runner)
    assert runner.term_names == ("speed", "ctrl", "alive")
    np.testing.assert_array_equal(terms["speed"], info["x_velocity"])
    np.testing.assert_allclose(terms["ctrl"], -0.1 * (action**2).sum(1), rtol=1e-6)
    np.testing.assert_array_equal(terms["alive"], np.ones(N))
    np.testing.assert_allclose(reward, sum(terms.values()), rtol=1e-12)
    assert reward.dtype == np.float64
    assert not runner.stateful


def test_returned_arrays_stay_as_they_were():
    code = "buffer = np.zeros(8)\n" + function("buffer[:] += 1; return buffer, {'n': buffer}")
    runner = RewardRunner(code, N, batched=True)
    first, terms = run(runner)
    run(runner)
    assert first[0] == terms["n"][0] == 1.0


@pytest.mark.parametrize("batched", [True, False])
def test_inputs_cannot_be_changed(batched):
    error = fails(function("next_obs[..., 0] = 0.0; return 0.0, {}"), batched)
    assert "work on a copy" in str(error)
    assert error.line == 2


@pytest.mark.parametrize("batched", [True, False])
def test_not_finite_names_term_step_row_and_values(batched):
    velocity = inputs()[3]["x_velocity"]
    velocity[5] = np.nan
    runner = RewardRunner(BATCHED, N, batched=batched)
    run(runner)
    with pytest.raises(RewardError) as caught:
        run(runner, x_velocity=velocity)
    error = caught.value
    assert error.row == 5
    assert error.step == 1
    assert error.term == "speed"
    text = str(error)
    assert "term 'speed' is nan" in text
    assert "(step 1, environment 5)" in text
    assert "x_velocity: nan" in text
    assert f"{inputs()[1][5][0]:.3f}"[:5] in text


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    ("body", "problem", "term"),
    [
        ("return 0.0, {'a': 1.0, 'b': np.inf}", "term 'b' is inf", "b"),
        ("return 1e308 * 10, {}", "the total is inf", "total"),
        ("return 'good', {}", "the total is a str", "total"),
        ("return None, {}", "the total is None", "total"),
        ("return 1j, {}", "the total is a complex", "total"),
        ("return 0.0, {'a': None}", "term 'a' is None", "a"),
        ("return action, {}", "the total has shape", "total"),
        ("return 0.0, {'a': [[1.0]]}", "term 'a' has shape (1, 1)", "a"),
        ("return 1.0", "returned a float; it must return (total, {term: value})", None),
        ("return None", "returned None", None),
        ("return 1.0, {}, {}", "returned 3 values", None),
        ("return 1.0, 2.0", "returned a float as its terms", None),
        ("return 1.0, {3: 1.0}", "term names must be non-empty strings, not 3", None),
    ],
)  # fmt: skip
def test_bad_returns_are_named(body, problem, term, batched):
    error = fails(function(body), batched)
    assert problem in str(error)
    assert error.term == term


@pytest.mark.parametrize("batched", [True, False])
def test_terms_must_stay_the_same(batched):
    code = "calls = []\n" + function(
        "calls.append(1); return 0.0, {'a': 1.0, 'b': 1.0} if len(calls) < 3 else {'a': 1.0}"
    )
    runner = RewardRunner(code, N, batched=batched)
    run(runner)
    run(runner)
    with pytest.raises(RewardError, match=r"terms changed \(b missing\)"):
        run(runner)


@pytest.mark.parametrize("batched", [True, False])
def test_exceptions_show_the_line_and_the_values(batched):
    error = fails("\n" + function("v = info['speed']\n    return v, {}"), batched)
    assert str(error).startswith("reward_fn.py:3: KeyError: 'speed'; info has")
    assert "x_velocity" in str(error)
    assert error.line == 3
    assert "v = info['speed']" in error.traceback
    assert "reward_calls" not in error.traceback
    assert error.row == (None if batched else 0)


def test_exit_is_an_error():
    assert "must not exit" in str(fails(function("raise SystemExit(0)"), True))


@pytest.mark.parametrize("batched", [True, False])
def test_episode_start_reaches_the_reward(batched):
    start = np.arange(N) % 2 == 0
    _, terms = run(RewardRunner(SMOOTH, N, batched=batched), start)
    np.testing.assert_array_equal(terms["first"], start)


@pytest.mark.parametrize("batched", [True, False])
def test_reset_is_told_which_rows_begin(batched):
    runner = RewardRunner(COUNTER, N, batched=batched)
    assert runner.stateful
    run(runner, np.ones(N, bool))
    run(runner)
    some = np.arange(N) < 3
    _, terms = run(runner, some)
    np.testing.assert_array_equal(terms["n"], np.where(some, 1, 3))


def test_reset_without_rows_is_called_too():
    code = COUNTER.replace("rows=None", "").replace(
        "if rows is None else np.where(rows, 0, self.n)", ""
    )
    runner = RewardRunner(code, N, batched=False)
    run(runner)
    some = np.arange(N) < 3
    np.testing.assert_array_equal(run(runner, some)[0], np.where(some, 1, 2))


def test_closures_begin_anew_with_each_episode_of_their_row():
    runner = RewardRunner(MAKER, N, batched=False)
    run(runner, np.ones(N, bool))
    run(runner)
    some = np.arange(N) < 3
    np.testing.assert_array_equal(run(runner, some)[0], np.where(some, 1, 3))


def test_restart_forgets_everything():
    runner = RewardRunner(COUNTER, N, batched=True)
    run(runner)
    runner.restart()
    np.testing.assert_array_equal(run(runner)[0], np.ones(N))


def test_side_info_goes_to_the_batch_or_to_the_row():
    class Source:
        def side_info(self):
            return {"mj_data": np.arange(N) * 1.0}

        def row_side_info(self, i):
            return {"mj_data": float(i)}

    code = function("return info['mj_data'], {}")
    for batched in (True, False):
        runner = RewardRunner(code, N, batched=batched, side_info=Source())
        np.testing.assert_array_equal(run(runner)[0], np.arange(N))


@pytest.mark.parametrize("code", [BATCHED, SMOOTH, COUNTER])
def test_batch_transparent_rewards_are_found_to_be(code, env):
    assert decide_batched(code, env) == (True, "")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (CLASS, "on a batch: reward_fn.py:6: TypeError"),
        (FUNCTION, "on a batch: reward_fn.py:8: TypeError"),
        (MAKER, "count at step 11 in environment"),
        (function("return np.sum(action), {}"), "the total at step 0 in environment"),
        (function("return next_obs[0], {}"), "on a batch: reward_fn.py: the total has shape"),
        (function("return (1.0 if info['x_velocity'] > 0 else 0.0), {}"), "truth value"),
        (function("return np.mean(next_obs[..., 8] > 0), {}"), "the total at step"),
        (function("return np.random.rand(), {}"), "the total at step 0"),
    ],
)  # fmt: skip
def test_other_rewards_are_called_per_environment_and_told_why(code, why, env):
    batched, reason = decide_batched(code, env)
    assert not batched
    assert why in reason


def test_one_environment_is_never_batched():
    env = make_batched_env(EnvOptions("HalfCheetah-v5"), 1)
    assert decide_batched(BATCHED, env)[0] is False


def test_a_reward_that_fails_on_single_transitions_is_an_error(env):
    with pytest.raises(RewardError, match="NameError"):
        decide_batched(function("return speed, {}"), env)
    with pytest.raises(RewardError, match=r"x\[\.\.\., i\]"):
        decide_batched(function("return next_obs[:, 8], {}"), env)


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
    env = make_batched_env(EnvOptions("HalfCheetah-v5"), NUM_ENVS)
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
    env = make_batched_env(EnvOptions("HalfCheetah-v5"), NUM_ENVS)
    watching = PLAIN.replace('info["x_velocity"]', 'info["mj_data"].qvel[..., 0]')
    assert RewardRunner(watching, NUM_ENVS, batched=True, side_info=env).block_steps == 1
    assert RewardRunner(PLAIN, NUM_ENVS, batched=True, side_info=env).block_steps > 1
    env.close()


def test_steps_whose_info_differs_are_rewarded_singly():
    steps = steps_of(4)
    steps[2] = steps[2]._replace(info={**steps[2].info, "rare": np.ones(NUM_ENVS)})
    runner = RewardRunner(PLAIN, NUM_ENVS, batched=True)
    np.testing.assert_array_equal(runner.block(steps)[0], rewarded_singly(PLAIN, steps)[0])
