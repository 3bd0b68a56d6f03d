"""The sandboxed side of ranking: what a reward pays for behaviour that is known already."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from p2p.config import TrainConfig
from p2p.training.evaluation import evaluate
from p2p.training.policies.policy import Policy
from p2p.training.recording import acting
from p2p.training.reward.runner import RewardRunner
from p2p.training.reward_function import RewardError
from p2p.training.vec_env import make_batched_env


def main(payload: Mapping[str, Any], send: Callable[[bytes], None]) -> None:
    """Play each behaviour of the payload with the reward; one line for each."""
    config = TrainConfig.model_validate(payload["config"])
    episodes, seed = payload["episodes"], payload["seed"]
    env = make_batched_env(
        config.env_id,
        episodes,
        max_episode_steps=config.max_episode_steps,
        terminate_when_unhealthy=config.terminate_when_unhealthy,
        side_info=config.side_info,
    )

    def say(message: dict[str, Any]) -> None:
        send(json.dumps(message).encode())

    for name in payload["behaviours"]:
        act = Policy.load(Path(payload["policy"])) if name == "previous_best" else name
        say({"type": "begun", "name": name})
        try:
            reward = RewardRunner(payload["code"], episodes, batched=False, engine=config.engine)
            result, _ = evaluate(
                env,
                reward,
                acting(act, env, seed),
                rounds=1,
                seed=seed,
                step=0,
                side_info=config.side_info,
                record_bytes=0,
                alive=lambda: say({"type": "alive"}),
            )
        except RewardError as error:
            text = f"{error}\n{error.traceback}".strip()[:8000]
            say({"type": "failed", "name": name, "reason": text})
            return
        say(
            {
                "type": "paid",
                "name": name,
                "returns": result.all_returns,
                "lengths": result.episode_lengths,
                "terms": result.reward_terms,
            }
        )
