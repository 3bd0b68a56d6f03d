"""InvertedPendulum with a pole twice as long, as `long_pole:LongPole-v0`."""

from pathlib import Path

import gymnasium as gym

gym.register(
    "LongPole-v0",
    entry_point="gymnasium.envs.mujoco.inverted_pendulum_v5:InvertedPendulumEnv",
    kwargs={"xml_file": str(Path(__file__).with_name("long_pole.xml"))},
    max_episode_steps=1000,
)
