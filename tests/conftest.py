"""What several tests train with: a run that takes seconds."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from p2p.config import TrainConfig
from p2p.sandbox import set_unsafe_local
from p2p.settings import get_settings
from shared_folders import Shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from p2p.records.iteration_record import IterationRecord

ROOT = Path(__file__).parent.parent
os.environ["XDG_STATE_HOME"] = str(ROOT / ".pytest_cache" / "state")
os.environ["XDG_CONFIG_HOME"] = str(ROOT / ".pytest_cache" / "config")  # no .env of the user's
os.environ["P2P_MODELS_DIR"] = str(ROOT / ".pytest_cache" / "models")
os.environ["P2P_CACHE_DIR"] = str(ROOT / ".pytest_cache" / "p2p")  # compiled once for all tests

# Where bytecode is not kept, each of the hundreds of processes here compiles the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A program started in the background by a script ignores Ctrl-C, and so does all that it starts:
# tests that interrupt a process need it to listen.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is not what is tested, nor how busy the machine is; no chance.
settings.register_profile(
    "p2p", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("p2p")


def four_short_rollouts() -> TrainConfig:
    """Four short rollouts of HalfCheetah, evaluated twice."""
    return TrainConfig(
        num_envs=4,
        num_steps=64,
        num_minibatches=4,
        update_epochs=2,
        total_timesteps=1024,
        max_episode_steps=40,
        num_evals=2,
        num_eval_rounds=1,
        checkpoint_interval=256,
    )


@pytest.fixture(autouse=True)
def sandboxed() -> Iterator[None]:
    """No test leaves it to the next that code runs without a sandbox."""
    yield
    set_unsafe_local(False)


@pytest.fixture
def unsafe_local() -> None:
    """Code runs without a sandbox, as after `--unsafe-local`."""
    set_unsafe_local(True)


@pytest.fixture
def small_config() -> TrainConfig:
    """A run that takes seconds."""
    return four_short_rollouts()


FAULTY = """
import gymnasium as gym, os, signal, time
from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv

class Faulty(InvertedPendulumEnv):
    steps = 0

    def step(self, action):
        Faulty.steps += 1
        if Faulty.steps > {after}:
            {fault}
        return super().step(action)

gym.register("Faulty-v0", entry_point=Faulty, max_episode_steps=30)
"""


@pytest.fixture
def faulty_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, int], str]]:
    """Makes an environment that runs `fault` after so many steps; gives its id."""

    def make(fault: str, after: int) -> str:
        (tmp_path / "faulty.py").write_text(FAULTY.format(fault=fault, after=after))
        return "faulty:Faulty-v0"

    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setenv("P2P_ENV_PATH", str(tmp_path))
    get_settings.cache_clear()
    yield make
    if "gymnasium" in sys.modules:
        sys.modules["gymnasium"].registry.pop("Faulty-v0", None)
    sys.modules.pop("faulty", None)
    get_settings.cache_clear()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Folders that are filled once for all workers of a test run: to be read, never changed."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # of this run of the tests, not of this worker
    return Shared(base)


@pytest.fixture(scope="session")
def trained_run(shared: Shared) -> IterationRecord:
    """A finished run with videos, shared by all tests: to be read, never changed."""
    from p2p.records.iteration_record import IterationRecord
    from p2p.training.runner import run_training

    def train(folder: Path) -> None:
        record = IterationRecord(folder / "session_shared" / "iter_1")
        run_training(four_short_rollouts(), BATCHED_REWARD, record)

    return IterationRecord(shared.folder("run", train) / "session_shared" / "iter_1")


@pytest.fixture
def broken_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that P2P_PRICES names and that is none, and a key for a model that costs money."""
    path = tmp_path / "prices.json"
    path.write_text("{")
    monkeypatch.setenv("P2P_PRICES", str(path))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-that-is-not-used")
    get_settings.cache_clear()
    yield path
    get_settings.cache_clear()


@pytest.fixture
def class_reward() -> str:
    """The class-based example of the documentation."""
    return (ROOT / "examples" / "rewards" / "speed_class.py").read_text()


BATCHED_REWARD = '''
import numpy as np

def reward_fn(obs, action, next_obs, info):
    """
    LaTeX: r = v_x - 0.1 |a|^2
    Terms:
        speed: forward velocity
        ctrl: control penalty
    """
    speed = info["x_velocity"]
    ctrl = -0.1 * np.sum(np.square(action), axis=-1)
    return speed + ctrl, {"speed": speed, "ctrl": ctrl}
'''


@pytest.fixture
def batched_reward() -> str:
    """A reward that takes one transition or a batch."""
    return BATCHED_REWARD


@pytest.fixture
def reward_path(tmp_path: Path, batched_reward: str) -> Path:
    path = tmp_path / "reward.py"
    path.write_text(batched_reward)
    return path
