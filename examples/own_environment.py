"""An environment of your own: `python examples/own_environment.py`.

examples/environments/long_pole.py registers it with Gymnasium. Its folder is named in P2P_ENV_PATH:
from there the sandbox may import and read, and from nowhere else.
"""

import os
from pathlib import Path

import gymnasium as gym

from p2p.records.iteration_record import IterationRecord
from p2p.session.session_id import new_session_id
from p2p.training.env_spec import get_env_spec
from p2p.training.hp_presets import quick_config
from p2p.training.policies.policy import Policy
from p2p.training.runner import run_training
from p2p.training.vec_env import is_fast

HERE = Path(__file__).parent
ENV = "long_pole:LongPole-v0"
os.environ["P2P_ENV_PATH"] = str(HERE / "environments")


def main() -> None:
    spec = get_env_spec(ENV)
    stepped = "in C++" if is_fast(ENV) else "by Gymnasium"
    print(f"{spec.env_id}: {len(spec.observation)} observations, stepped {stepped}")

    record = IterationRecord(Path("runs") / new_session_id() / "iter_1")
    config = quick_config(ENV, total_timesteps=100_000, learning_rate=3e-4, num_evals=2)
    summary = run_training(config, (HERE / "rewards" / "hold_pole.py").read_text(), record)

    checkpoint = record.checkpoints_dir / f"step_{summary.selected_step}"
    policy = Policy.load(checkpoint / "policy.safetensors")
    env = gym.make(ENV)
    obs, _ = env.reset(seed=0)
    steps, ended = 0, False
    while not ended:
        obs, _, terminated, truncated, _ = env.step(policy.act(obs[None])[0])
        steps, ended = steps + 1, terminated or truncated
    print(f"held the pole for {steps} of {spec.max_episode_steps} steps")


if __name__ == "__main__":
    main()
