"""A reward of your own: check it, train on it, use the policy: `python examples/own_reward.py`."""

from pathlib import Path

import gymnasium as gym

import p2p

REWARD = Path(__file__).parent / "rewards" / "walk.py"  # a function or a class does, too


def main() -> None:
    # In the sandbox, on the real environment: does it run, and what are its values?
    report = p2p.check(REWARD, env="HalfCheetah-v5")
    for finding in report.findings:
        print(f"{finding.level}: {finding.message}")
    print("fit to train on" if report.ok else "not fit to train on")

    run = p2p.train(REWARD, env="HalfCheetah-v5", steps=100_000, num_evals=1)
    print(f"return {run.mean_return:.0f} after {run.policy.step:,} steps")

    # numpy is enough to act: no torch, no JAX.
    env = gym.make("HalfCheetah-v5")
    obs, _ = env.reset(seed=0)
    for _ in range(200):
        obs, *_, info = env.step(run.policy.act(obs))
    print(f"ran {info['x_position']:.1f} m in 10 s")


if __name__ == "__main__":
    main()
