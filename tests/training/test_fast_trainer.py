import math
import subprocess
import sys

import killed_runs
import numpy as np
import pytest
from killed_runs import REWARD, KilledError

from p2p.config import TrainConfig
from p2p.contracts import EvalReady, Finished, ScalarsReady, Started
from p2p.training.checkpoints import FILE_NAME, ResumeError, load_state, state_for
from p2p.training.policies.policy import Policy
from p2p.training.reward_function import RewardError
from p2p.training.trajectory import RecordedEpisode
from p2p.training.worker import train

STATEFUL = """
import numpy as np
from p2p.training.reward_function import RewardFunction

class Travelled(RewardFunction):
    def __init__(self):
        self.steps = None

    def reset(self, rows=None):
        if self.steps is None or rows is None:
            self.steps = None if rows is None else np.zeros(len(rows))
        else:
            self.steps[rows] = 0

    def compute(self, obs, action, next_obs, info):
        if self.steps is None:
            self.steps = np.zeros(np.shape(info["x_velocity"]))
        self.steps = self.steps + 1
        late = 0.01 * self.steps
        return info["x_velocity"] + late, {"speed": info["x_velocity"], "late": late}

    @property
    def latex(self):
        return "r = v + t"

    @property
    def terms(self):
        return {"speed": "forward velocity", "late": "time"}
"""

CONFIG = TrainConfig(
    env_id="Hopper-v5", num_envs=4, num_steps=32, num_minibatches=4, update_epochs=2,
    total_timesteps=6 * 128, num_evals=2, num_eval_envs=2, num_eval_rounds=1, seed=3,
    num_threads=1, max_episode_steps=40, checkpoint_interval=128, reward_term_avg_window=5,
    net_arch=(16,),
)  # fmt: skip

TIMES = ("sps", "elapsed_time", "rollout_time", "train_time")


def run(folder, config=CONFIG, code=REWARD, **options):
    return killed_runs.run(train, folder, config, code, **options)


def parameters(folder):
    arrays, _ = load_state(folder)
    return {name: array for name, array in arrays.items() if name.startswith("learner/")}


def lines(messages):
    """Everything measured, but for the times."""
    measured = {}
    for m in messages:
        if isinstance(m, ScalarsReady):
            values = {k: v for k, v in m.scalars.values.items() if k not in TIMES}
            measured["train", m.scalars.global_step] = values
        elif isinstance(m, EvalReady):
            measured["eval", m.result.global_step] = m.result
    return measured


def same(first, second):
    a, b = parameters(first), parameters(second)
    assert a.keys() == b.keys()
    return all(np.array_equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder)


def test_a_run_reports_every_metric(whole):
    _, messages = whole
    assert isinstance(messages[-1], Finished)
    assert messages[-1].global_step == 768
    assert messages[-1].total_episodes > 10
    started = next(m for m in messages if isinstance(m, Started))
    assert started.reward_calls == "batch"
    assert started.start_step == 0
    scalars = [m.scalars for m in messages if isinstance(m, ScalarsReady)]
    assert [s.global_step for s in scalars] == [128 * i for i in range(1, 7)]
    names = {
        "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "kl_mean_term",
        "explained_variance", "kl_std_term", "mean_shift_normalized", "policy_std",
        "episodic_return", "episodic_return_std", "episodic_return_min", "episodic_return_max",
        "episode_length", "episodes_per_rollout", "grad_norm", "learning_rate", *TIMES,
        "reward_term_speed", "reward_term_effort",
    }  # fmt: skip
    last = scalars[-1].values
    assert last.keys() == names
    assert all(math.isfinite(v) for v in last.values())
    assert last["episodic_return"] == pytest.approx(
        last["reward_term_speed"] + last["reward_term_effort"]
    )
    assert 0 < last["episode_length"] <= 40
    assert last["policy_std"] == pytest.approx(1.0, abs=0.05)
    assert last["entropy"] == pytest.approx(3 * 1.4189, abs=0.1)


def test_each_evaluation_leaves_the_policy_that_was_measured(whole):
    folder, messages = whole
    evaluations = [m for m in messages if isinstance(m, EvalReady)]
    assert [e.result.global_step for e in evaluations] == [384, 768]
    policy = Policy.load(folder / evaluations[-1].policy_file)
    assert policy.env_id == "Hopper-v5"
    for label, name in evaluations[-1].trajectory_files.items():
        episode = RecordedEpisode.load(folder / name)
        index = evaluations[-1].result.rollouts[label]
        assert episode.total_reward == pytest.approx(
            evaluations[-1].result.all_returns[index], rel=1e-5
        )
        actions = policy.act(episode["obs"].astype(np.float64))
        assert np.allclose(actions, episode["action"], atol=1e-3)


def test_the_same_seed_gives_the_same_run_at_any_number_of_threads(whole, tmp_path):
    folder, messages = whole
    again = run(tmp_path / "again", CONFIG.with_updates(num_threads=3))
    assert same(folder, tmp_path / "again")
    assert lines(again) == lines(messages)
    run(tmp_path / "other", CONFIG.with_updates(seed=4, total_timesteps=128))
    assert not same(folder, tmp_path / "other")


@pytest.mark.parametrize("kill_after", [1, 5])
def test_a_killed_run_resumes_to_the_same_result(whole, tmp_path, kill_after):
    folder, messages = whole
    with pytest.raises(KilledError):
        run(tmp_path / "killed", kill_after=kill_after)
    rest = run(tmp_path / "killed", CONFIG.with_updates(num_threads=2))
    started = next(m for m in rest if isinstance(m, Started))
    # It dies while reporting an iteration, so that one is not saved and is done again.
    assert started.start_step == (kill_after - 1) * 128
    assert same(folder, tmp_path / "killed")
    expected = {key: v for key, v in lines(messages).items() if key[1] > started.start_step}
    assert lines(rest) == expected
    assert rest[-1].total_episodes == messages[-1].total_episodes


@pytest.mark.parametrize("code", [REWARD, STATEFUL])
def test_a_run_that_pauses_at_an_evaluation_ends_as_if_it_had_not(whole, tmp_path, code):
    folder, messages = whole if code == REWARD else (tmp_path, run(tmp_path, code=code))
    first = run(tmp_path / "paused", code=code, until=384)
    assert first[-1].global_step == 384
    assert isinstance(first[-1], Finished)
    rest = run(tmp_path / "paused", code=code)
    assert next(m for m in rest if isinstance(m, Started)).start_step == 384
    assert same(folder, tmp_path / "paused")
    assert lines(first) | lines(rest) == lines(messages)


def test_a_reward_with_other_weights_continues_where_another_stands(whole, tmp_path):
    run(tmp_path / "first", until=384)
    heavier = REWARD.replace("-0.1", "-0.2")
    other = CONFIG.with_updates(iteration_id="other")
    (tmp_path / "other").mkdir()
    state_for(other, heavier, tmp_path / "first", tmp_path / "other")
    assert same(tmp_path / "first", tmp_path / "other")
    messages = run(tmp_path / "other", other, heavier)
    assert next(m for m in messages if isinstance(m, Started)).start_step == 384
    assert messages[-1].global_step == 768
    assert not same(whole[0], tmp_path / "other")
    with pytest.raises(ResumeError, match="no state"):
        state_for(other, heavier, tmp_path, tmp_path / "other")


PROGRAM = """
import sys
from pathlib import Path
from p2p.config import TrainConfig
from p2p.training.training_loop import TrainContext
from p2p.training.worker import train
from p2p.training.checkpoints import adopt_state

config, code, folder = sys.argv[1:]
def send(message):
    if message.type == "state":
        adopt_state(Path(folder), message.file)
    print(message.type, flush=True)
train(TrainContext(TrainConfig.from_json(config), code, Path(folder), send))
"""


@pytest.mark.process
def test_a_process_killed_by_the_kernel_resumes_to_the_same_result(whole, tmp_path):
    folder, messages = whole
    command = [sys.executable, "-c", PROGRAM, CONFIG.to_json(), REWARD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines_read = iter(process.stdout.readline, "")
        for _ in range(3):
            next(line for line in lines_read if line.strip() == "scalars")
        process.kill()
    rest = run(tmp_path)
    assert next(m for m in rest if isinstance(m, Started)).start_step >= 256
    assert same(folder, tmp_path)
    assert lines(rest).items() <= lines(messages).items()


def test_checkpoints_change_nothing_for_a_stateless_reward(whole, tmp_path):
    folder, _ = whole
    run(tmp_path / "rare", CONFIG.with_updates(checkpoint_interval=10**6))
    assert same(folder, tmp_path / "rare")


def test_a_run_with_a_stateful_reward_resumes_to_the_same_result(tmp_path):
    messages = run(tmp_path / "whole", code=STATEFUL)
    with pytest.raises(KilledError):
        run(tmp_path / "killed", code=STATEFUL, kill_after=3)
    rest = run(tmp_path / "killed", code=STATEFUL)
    assert same(tmp_path / "whole", tmp_path / "killed")
    assert lines(rest).items() <= lines(messages).items()
    assert lines(messages)["train", 768]["reward_term_late"] > 0


def test_an_environment_that_cannot_be_saved_resumes_to_the_same_result(tmp_path):
    code = """
def reward_fn(obs, action, next_obs, info):
    upright = next_obs[..., 0]
    return upright, {"upright": upright}
"""
    config = CONFIG.with_updates(env_id="Pendulum-v1", num_evals=1)
    messages = run(tmp_path / "whole", config, code)
    with pytest.raises(KilledError):
        run(tmp_path / "killed", config, code, kill_after=3)
    rest = run(tmp_path / "killed", config, code)
    assert next(m for m in rest if isinstance(m, Started)).start_step == 256
    assert same(tmp_path / "whole", tmp_path / "killed")
    assert lines(rest).items() <= lines(messages).items()


def test_a_finished_run_has_nothing_to_do_and_another_run_cannot_continue_it(whole):
    folder, _ = whole
    again = run(folder)
    assert not [m for m in again if isinstance(m, ScalarsReady | EvalReady)]
    assert isinstance(again[-1], Finished)
    for changes in ({"config": CONFIG.with_updates(gamma=0.9)}, {"code": REWARD + "\n# changed"}):
        with pytest.raises(ResumeError, match="another configuration"):
            run(folder, **changes)


def test_a_damaged_state_is_reported(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"\x10\0\0\0\0\0\0\0{not json")
    with pytest.raises(ResumeError, match="cannot be read"):
        run(tmp_path)


def test_a_reward_that_fails_on_the_way_ends_the_run(tmp_path):
    code = """
import numpy as np
calls = []

def reward_fn(obs, action, next_obs, info):
    calls.append(1)
    speed = info["x_velocity"] + (np.nan if len(calls) > 100 else 0.0)
    return speed, {"speed": speed}
"""
    with pytest.raises(RewardError, match="speed"):
        run(tmp_path, CONFIG.with_updates(checkpoint_interval=10**6, num_evals=1), code)


def test_a_reward_for_single_transitions_trains_too(tmp_path):
    code = """
def reward_fn(obs, action, next_obs, info):
    speed = float(info["x_velocity"])
    if speed > 0:
        return speed, {"speed": speed}
    return 0.0, {"speed": 0.0}
"""
    messages = run(tmp_path, CONFIG.with_updates(total_timesteps=128, num_evals=1), code)
    started = next(m for m in messages if isinstance(m, Started))
    assert started.reward_calls == "per_env"
    assert started.note


def test_side_information_reaches_the_reward(tmp_path):
    code = """
def reward_fn(obs, action, next_obs, info):
    height = info["mj_data"].qpos[..., 1]
    return height, {"height": height}
"""
    config = CONFIG.with_updates(side_info=True, total_timesteps=128, num_evals=1)
    messages = run(tmp_path, config, code)
    assert lines(messages)["eval", 128].reward_terms["height"] > 1
