"""An environment of your own: `python examples/own_environment.py`.

examples/environments/long_pole.py registers it with Gymnasium. Its folder is named in P2P_ENV_PATH:
from there the sandbox may import and read, and from nowhere else.
"""

import os
from pathlib import Path

import gymnasium as gym

import p2p
from p2p.training.vec_env import is_fast

HERE = Path(__file__).parent
ENV = "long_pole:LongPole-v0"
os.environ["P2P_ENV_PATH"] = str(HERE / "environments")


def main() -> None:
    spec = p2p.envs(ENV)
    stepped = "in C++" if is_fast(ENV) else "by Gymnasium"
    print(f"{spec.env_id}: {len(spec.observation)} observations, stepped {stepped}")

    run = p2p.train(
        HERE / "rewards" / "hold_pole.py", env=ENV, steps=100_000, num_evals=2,
        num_envs=16, num_steps=128, num_minibatches=16, log_std_init=-1.0,
    )  # fmt: skip
    policy, env = run.policy, gym.make(ENV)
    obs, _ = env.reset(seed=0)
    steps, ended = 0, False
    while not ended:
        obs, _, terminated, truncated, _ = env.step(policy.act(obs))
        steps, ended = steps + 1, terminated or truncated
    print(f"held the pole for {steps} of {spec.max_episode_steps} steps")


if __name__ == "__main__":
    main()
