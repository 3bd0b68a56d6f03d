"""In the engine's own Python: step an environment without a reward, and write down what it is.

Runs in the sandbox, as training does. Nothing that a model wrote is in it, so the kernels that it
compiles may be kept for later processes.
"""

from __future__ import annotations

import json
import platform
import threading
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = ("mjlab", "isaaclab", "mujoco", "mujoco-warp", "newton", "warp-lang", "torch",
            "rsl-rl-lib", "numpy")  # fmt: skip


def main(payload: dict[str, Any], send: Callable[[bytes], None]) -> None:
    """Make `env_id`, step it, and answer with a `done`; with `facts`, leave them in the folder."""

    def tell(**message: Any) -> None:
        send(json.dumps(message).encode())

    began = time.monotonic()
    doing = "importing the engine"
    over = threading.Event()

    def report() -> None:  # importing and compiling take minutes, and say nothing
        while not over.wait(1.0):
            tell(progress=doing, seconds=time.monotonic() - began)

    threading.Thread(target=report, daemon=True).start()
    from p2p.config import EnvOptions
    from p2p.training.engines.engine_env import choose_device, get_adapter

    if "play" in payload:
        _play(Path(payload["folder"]), **payload["play"])
        over.set()
        tell(done={})
        return
    adapter = get_adapter(payload["engine"])
    if payload.get("registry"):
        tell(done={"environments": adapter.environments()})
        return
    doing = "building the environment; kernels are compiled the first time, which takes minutes"
    options = EnvOptions(payload["env_id"], device=choose_device(payload["device"]))
    env = adapter.make(options, payload["num_envs"])
    env.reset_batch(0)
    import numpy as np

    rng = np.random.default_rng(0)
    width = env.single_action_space.shape[0]
    env.step_batch(rng.uniform(-1, 1, (env.num_envs, width)))
    env.restart(np.ones(env.num_envs, np.bool_))
    doing = "stepping"
    ready = time.monotonic()
    for _ in range(payload["steps"]):
        step = env.step_batch(rng.uniform(-1, 1, (env.num_envs, width)))
    rate = env.num_envs * payload["steps"] / max(time.monotonic() - ready, 1e-9)
    if payload.get("facts"):
        doing = "reading the environment's facts"
        from p2p.training.engines.live_spec import read_live_spec, read_policy_metadata

        folder = Path(payload["folder"]) / "facts"
        env.write_model(folder / "model")
        metadata = read_policy_metadata(payload["engine"], version(payload["engine"]), env)
        (folder / "policy_metadata.json").write_text(metadata.model_dump_json())
        (folder / "spec.json").write_text(read_live_spec(payload["engine"], env).model_dump_json())
        (folder / "preset.json").write_text(json.dumps(adapter.preset(payload["env_id"])))
    over.set()
    tell(
        done={
            "versions": {"python": platform.python_version(), **_versions()},
            "device": options.device,
            "observations": int(step.obs.shape[1]),
            "actions": width,
            "finite": bool(np.isfinite(step.obs).all()),
            "steps_per_second": rate,
            "seconds_to_start": ready - began,
        }
    )


def _play(
    folder: Path, config: dict[str, Any], act: str | None, rows: int, episodes: int, seed: int
) -> None:
    """Leave recorded episodes of the folder's policy, or of a behaviour, in the folder."""
    from p2p.config import TrainConfig
    from p2p.training.engines.engine_env import make_engine_env
    from p2p.training.evaluation import play_rounds
    from p2p.training.policies.policy import Policy
    from p2p.training.specs.quantities import QUANTITIES

    chosen: Any = act or Policy.load(folder / "policy.safetensors")
    options = TrainConfig.model_validate(config).env_options()
    env = make_engine_env(replace(options, quantities=frozenset(QUANTITIES)), rows)
    for i, episode in enumerate(play_rounds(env, chosen, episodes=episodes, seed=seed)):
        episode.save(folder / f"episode_{i}.npz")


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
