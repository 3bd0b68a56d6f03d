"""The sandboxed side of ranking: what a reward pays for what is known or scripted already."""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2p.config import TrainConfig
from p2p.training.engines.table import is_engine
from p2p.training.evaluation import Behaviour, acting, play_paid, side_by_side
from p2p.training.policies.policy import Policy
from p2p.training.reward_function import RewardError
from p2p.training.reward_loader import parse_source
from p2p.training.reward_runner import RewardRunner, Transition
from p2p.training.specs.quantities import QUANTITIES
from p2p.training.training_loop import make_environment, make_reward

if TYPE_CHECKING:
    from p2p.training.envs.batched_env import F64, BatchedEnv
    from p2p.training.scripted import ScriptedEnv


def main(payload: Mapping[str, Any], send: Callable[[bytes], None]) -> None:
    """Play each behaviour of the payload, or each sweep, with the reward; one line for each."""
    config = TrainConfig.model_validate(payload["config"])

    def say(message: dict[str, Any]) -> None:
        send(json.dumps(message).encode())
        # Where it falls silent, the line it is at is printed shortly before it is killed.
        faulthandler.dump_traceback_later(0.8 * payload["stall_seconds"], file=sys.stderr)

    if "sweeps" in payload or "asked" in payload:
        _play_scripts(payload, config, say)
    else:
        _run_behaviours(payload, config, say)


def _run_behaviours(
    payload: Mapping[str, Any], config: TrainConfig, say: Callable[[dict[str, Any]], None]
) -> None:
    """Run all behaviours as a batch, or one by one in an engine or after an error."""
    names = payload["behaviours"]
    acts = {
        name: Policy.load(Path(payload["policy"])) if name == "previous_best" else name
        for name in names
    }
    say({"type": "begun", "name": names[0]})
    if not is_engine(config.engine):
        rows = len(acts) * payload["episodes"]
        try:
            with closing(make_environment(config, rows, payload["code"])) as env:
                _pay(payload, config, env, acts, say)
        except RewardError:
            pass  # the next says under which behaviour
        else:
            return
    with closing(make_environment(config, payload["episodes"], payload["code"])) as env:
        for name, act in acts.items():
            say({"type": "begun", "name": name})
            try:
                _pay(payload, config, env, {name: act}, say)
            except RewardError as error:
                text = f"{error}\n{error.traceback}".strip()[:8000]
                say({"type": "failed", "name": name, "reason": text})
                return


def _pay(
    payload: Mapping[str, Any],
    config: TrainConfig,
    env: BatchedEnv,
    acts: Mapping[str, Policy | Behaviour],
    say: Callable[[dict[str, Any]], None],
) -> None:
    """Play so many episodes of each; one message for each, once all are played."""
    episodes, seed, code = payload["episodes"], payload["seed"], payload["code"]
    reward = make_reward(config, code, env, batched=False)
    act, seeds = side_by_side([*acts.values()], env, episodes, seed)
    returns, lengths, terms = play_paid(
        env,
        act,
        seed if len(acts) == 1 else seeds,
        reward,
        alive=lambda: say({"type": "alive", "reward_seconds": reward.seconds}),
    )
    for k, name in enumerate(acts):
        own = slice(k * episodes, (k + 1) * episodes)
        say(
            {
                "type": "paid",
                "name": name,
                "returns": returns[own].tolist(),
                "lengths": lengths[own].tolist(),
                "terms": {term: float(sums[own].mean()) for term, sums in terms.items()},
            }
        )


def _play_scripts(
    payload: Mapping[str, Any], config: TrainConfig, say: Callable[[dict[str, Any]], None]
) -> None:
    """Where the reward fails in a pose of a script, nothing is said of that sweep or batch."""
    if is_engine(config.engine):  # not put into poses, and its Python lacks what scripts import
        return
    from p2p.training.scripted import scripted_env

    source = parse_source(payload["code"], config.engine)
    env = scripted_env(config, source.strings.intersection(QUANTITIES if config.side_info else ()))
    if env is None:
        return
    if "asked" in payload:
        _compute_returns(env, payload, config, say)
        return
    for sweep in env.each_sweep():
        if sweep.name not in payload["sweeps"]:
            continue
        say({"type": "begun", "name": sweep.name})
        act = acting("zero", env, payload["seed"])
        try:
            reward = make_reward(config, payload["code"], env, batched=False)
            returns, _, _ = play_paid(env, act, payload["seed"], reward, alive=lambda: None)
        except RewardError:
            continue
        say({"type": "paid", "name": sweep.name, "returns": returns.tolist()})


def _compute_returns(
    env: ScriptedEnv,
    payload: Mapping[str, Any],
    config: TrainConfig,
    say: Callable[[dict[str, Any]], None],
) -> None:
    name, place = payload["asked"]
    motions = env.make_screened_motions((name, place))
    names = iter(motions)
    for count in env.each_batch([*motions.values()]):
        batch = [next(names) for _ in range(count)]
        say({"type": "begun", "name": batch[0]})
        try:
            reward = make_reward(config, payload["code"], env, batched=False)
            returns = _training_returns(env, reward, payload["seed"])
        except RewardError:
            continue
        for each, value in zip(batch, returns[:count].tolist(), strict=True):
            say({"type": "paid", "name": each, "returns": [value]})


def _training_returns(env: ScriptedEnv, reward: RewardRunner, seed: int) -> F64:
    """Return the returns of one episode a row, up to where training would end it."""
    act, obs = acting("zero", env, seed), env.reset_batch(seed)
    returns = np.zeros(env.num_envs)
    active = start = np.ones(env.num_envs, np.bool_)
    for _ in range(env.max_episode_steps):
        action = act(obs)
        batch = env.step_batch(action)
        transition = Transition(obs, action, batch.next_obs, batch.info, start)
        values, _ = reward(transition)
        returns += np.where(active, values, 0.0)
        start = batch.terminated | batch.truncated
        active = active & ~start
        if reward.ends_episodes:
            active = active & ~reward.failed(transition)
        obs = batch.obs
    return returns
