"""The sandboxed side of ranking: what a reward pays for behaviour that is known already."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from p2p.config import TrainConfig
from p2p.training.base_trainer import make_environment, make_reward
from p2p.training.evaluation import acting, evaluate
from p2p.training.policies.policy import Policy
from p2p.training.reward_function import RewardError


def main(payload: Mapping[str, Any], send: Callable[[bytes], None]) -> None:
    """Play each behaviour of the payload with the reward; one line for each."""
    config = TrainConfig.model_validate(payload["config"])
    episodes, seed = payload["episodes"], payload["seed"]
    env = make_environment(config, episodes, payload["code"])

    def say(message: dict[str, Any]) -> None:
        send(json.dumps(message).encode())

    for name in payload["behaviours"]:
        act = Policy.load(Path(payload["policy"])) if name == "previous_best" else name
        say({"type": "begun", "name": name})
        try:
            reward = make_reward(config, payload["code"], env, batched=False)
            result, _ = evaluate(
                env,
                reward,
                acting(act, env, seed),
                rounds=1,
                seed=seed,
                step=0,
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
