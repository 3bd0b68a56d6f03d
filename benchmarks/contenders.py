"""The trainers that ppo_throughput.py compares, each in a process of its own.

Started as `python contenders.py '{"name": ..., "env_id": ..., ...}'`. A contender sets itself up,
prints a line, and then for every line with a number on stdin does so many rollouts with their
updates and prints a line again. Whoever started it measures.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from common import PPO, REWARD, peak_rss_mb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EPOCHS, MINIBATCH = 10, 64


def requests() -> Iterator[int]:
    """The numbers of rollouts asked for; says that the one before is done."""
    while True:
        print("ready", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        yield int(line)


# --- Stable-Baselines3 and sbx ----------------------------------------------------------------


class Rewarded(gym.Wrapper[Any, Any, Any, Any]):
    """The least a user has to write for a reward of their own: nothing is checked or kept."""

    def __init__(self, env: gym.Env[Any, Any], reward_fn: Callable[..., Any]) -> None:
        super().__init__(env)
        self.reward_fn = reward_fn
        self.obs: Any = None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self.obs, info = self.env.reset(**options)
        return self.obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, with our reward."""
        before = self.obs
        self.obs, _, terminated, truncated, info = self.env.step(action)
        reward, _ = self.reward_fn(before, action, self.obs, info)
        return self.obs, float(reward), terminated, truncated, info


def rewarded(env: gym.Env[Any, Any], reward: str = str(REWARD)) -> gym.Env[Any, Any]:
    return Rewarded(env, runpy.run_path(reward)["reward_fn"])


def stable_baselines3(settings: dict[str, Any], library: str, vec_env: str) -> None:
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

    torch.set_num_threads(settings["torch_threads"])
    algorithm = importlib.import_module(library).PPO
    envs = VecNormalize(
        make_vec_env(
            settings["env_id"],
            settings["envs"],
            seed=1,
            wrapper_class=rewarded,
            wrapper_kwargs={"reward": settings.get("reward", str(REWARD))},
            vec_env_cls=SubprocVecEnv if vec_env == "subproc" else DummyVecEnv,
        )
    )
    model = algorithm(
        "MlpPolicy",
        envs,
        n_steps=settings["steps"],
        batch_size=MINIBATCH,
        n_epochs=EPOCHS,
        clip_range=0.2,
        policy_kwargs={"net_arch": {"pi": [settings["width"]] * 2, "vf": [settings["width"]] * 2}},
        seed=1,
        device="cpu",
        **PPO,
    )
    for rollouts in requests():
        model.learn(rollouts * settings["steps"] * settings["envs"], reset_num_timesteps=False)
    envs.close()


# --- ours -------------------------------------------------------------------------------------


def ours(settings: dict[str, Any], threads: int) -> None:
    """The trainer itself, as it runs in the sandbox; it is held up where it reports a rollout."""
    from p2p.config import TrainConfig
    from p2p.contracts import ScalarsReady, WorkerMessage
    from p2p.training.training_loop import TrainContext
    from p2p.training.worker import train

    asked = requests()
    left = 0

    def send(message: WorkerMessage) -> None:
        nonlocal left
        message.model_dump_json().encode()
        if isinstance(message, ScalarsReady):
            left -= 1
            while left == 0:
                left = next(asked, -1)
            if left < 0:
                sys.exit()

    config = TrainConfig(
        env_id=settings["env_id"],
        num_envs=settings["envs"],
        num_steps=settings["steps"],
        num_threads=threads,
        num_minibatches=settings["envs"] * settings["steps"] // MINIBATCH,
        update_epochs=EPOCHS,
        clip_coef=0.2,
        net_arch=(settings["width"],) * 2,
        total_timesteps=10**12,  # so that the evaluation at the end is never reached
        num_evals=1,
        **PPO,
    )
    left = next(asked)
    reward = Path(settings.get("reward", REWARD)).read_text()
    with tempfile.TemporaryDirectory() as folder:
        train(TrainContext(config, reward, Path(folder), send))


def memory(settings: dict[str, Any]) -> None:
    """Three rollouts and an evaluation of ours; prints the most memory used."""
    from p2p.config import TrainConfig
    from p2p.training.training_loop import TrainContext
    from p2p.training.worker import train

    batch = settings["envs"] * settings["steps"]
    config = TrainConfig(
        env_id=settings["env_id"],
        num_envs=settings["envs"],
        num_steps=settings["steps"],
        num_threads=1,
        num_minibatches=batch // MINIBATCH,
        net_arch=(settings["width"],) * 2,
        total_timesteps=3 * batch,
        num_evals=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        train(TrainContext(config, REWARD.read_text(), Path(folder), lambda _: None))
    print(peak_rss_mb(), flush=True)


# --- the ceiling ------------------------------------------------------------------------------


def ceiling(settings: dict[str, Any]) -> None:
    """Nothing but physics, in C++, from states and with actions that training meets at its start.

    Segments of a rollout with random actions are recorded, resets left out, and simulated again
    by mujoco.rollout in this thread. What is simulated is therefore the same, falls included.
    """
    import mujoco
    import numpy as np
    from mujoco.rollout import Rollout

    from p2p.config import EnvOptions
    from p2p.training.vec_env import MujocoVecEnv

    length, rng = 8, np.random.default_rng(1)
    env = MujocoVecEnv(EnvOptions(settings["env_id"]), settings["envs"])
    env.reset_batch(1)
    space, skip = env.single_action_space, env._frame_skip  # noqa: SLF001
    states, controls = [], []
    # Past the first falls, so that episodes are of all ages.
    for _ in range(2 * settings["steps"] // length):
        begun = env.state_dict()["state"]
        noise = rng.standard_normal((length, settings["envs"], env.model.nu), np.float32)
        actions = np.clip(noise, space.low, space.high)
        whole = np.ones(settings["envs"], np.bool_)
        for action in actions:
            step = env.step_batch(action)
            whole &= ~(step.terminated | step.truncated)
        states.append(begun[whole])
        applied = env._kernel.control(actions.reshape(-1, env.model.nu))  # noqa: SLF001
        controls.append(applied.reshape(actions.shape).swapaxes(0, 1)[whole])
    full, wanted = mujoco.mjtState.mjSTATE_INTEGRATION, mujoco.mjtState.mjSTATE_FULLPHYSICS
    data, whole = mujoco.MjData(env.model), np.concatenate(states)
    initial = np.empty((len(whole), mujoco.mj_stateSize(env.model, wanted)))
    warmstart = np.empty((len(whole), env.model.nv))
    for state, physics, guess in zip(whole, initial, warmstart, strict=True):
        mujoco.mj_setState(env.model, data, state, full)
        mujoco.mj_getState(env.model, data, physics, wanted)
        guess[:] = data.qacc_warmstart
    control = np.repeat(np.concatenate(controls), skip, axis=1).astype(np.float64)
    segments = settings["envs"] * settings["steps"] // length
    output = np.empty((segments, length * skip, initial.shape[1]))
    sensors = np.empty((segments, length * skip, env.model.nsensordata))
    with Rollout(nthread=0) as simulate:
        for rollouts in requests():
            for _ in range(rollouts):
                rows = rng.integers(len(initial), size=segments)
                simulate.rollout(
                    env.model,
                    data,
                    initial[rows],
                    control[rows],
                    initial_warmstart=warmstart[rows],
                    state=output,
                    sensordata=sensors,
                )


def stepping(settings: dict[str, Any]) -> None:
    """Physics with observations and resets, in batches, by random actions: no policy."""
    import numpy as np

    from p2p.config import EnvOptions
    from p2p.training.vec_env import MujocoVecEnv

    env, rng = (
        MujocoVecEnv(EnvOptions(settings["env_id"]), settings["envs"]),
        np.random.default_rng(1),
    )
    env.reset_batch(1)
    space, shape = env.single_action_space, (settings["envs"], env.model.nu)
    for rollouts in requests():
        for _ in range(rollouts * settings["steps"]):
            noise = rng.standard_normal(shape, np.float32)
            env.step_batch(np.clip(noise, space.low, space.high))


CONTENDERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "sb3_subproc": lambda settings: stable_baselines3(settings, "stable_baselines3", "subproc"),
    "sb3_dummy": lambda settings: stable_baselines3(settings, "stable_baselines3", "dummy"),
    "sbx_dummy": lambda settings: stable_baselines3(settings, "sbx", "dummy"),
    "ours": lambda settings: ours(settings, 1),
    "ours_all_cores": lambda settings: ours(settings, 0),
    "ceiling": ceiling,
    "stepping": stepping,
    "memory": memory,
}

if __name__ == "__main__":
    from p2p.training.envs.registry import find_spec

    request = json.loads(sys.argv[1])
    find_spec(request["env_id"])  # that of a model file, too
    CONTENDERS[request["name"]](request)
