"""A reward of your own: check it, train on it, use the policy: `python examples/own_reward.py`."""

from pathlib import Path

import gymnasium as gym

from p2p.config import TrainConfig
from p2p.records.iteration_record import IterationRecord
from p2p.session.session_id import new_session_id
from p2p.training.policies.policy import Policy
from p2p.training.reward_check import check_reward
from p2p.training.runner import run_training

REWARD = Path(__file__).parent / "rewards" / "walk.py"


def main() -> None:
    # In the sandbox, on the real environment: does it run, and what are its values?
    report = check_reward(REWARD, "HalfCheetah-v5")
    for finding in report.findings:
        print(f"{finding.level}: {finding.message}")
    if not report.ok:
        raise SystemExit("not fit to train on")
    print("fit to train on")

    record = IterationRecord(Path("runs") / new_session_id() / "iter_1")
    config = TrainConfig(env_id="HalfCheetah-v5", total_timesteps=100_000, num_evals=1)
    summary = run_training(config, REWARD.read_text(), record)
    print(f"return {summary.final_episodic_return:.0f} after {summary.total_timesteps:,} steps")

    # numpy is enough to act: no torch, no JAX.
    checkpoint = record.checkpoints_dir / f"step_{summary.selected_step}"
    policy = Policy.load(checkpoint / "policy.safetensors")
    env = gym.make("HalfCheetah-v5")
    obs, _ = env.reset(seed=0)
    for _ in range(200):
        obs, *_, info = env.step(policy.act(obs[None])[0])
    print(f"ran {info['x_position']:.1f} m in 10 s")


if __name__ == "__main__":
    main()
