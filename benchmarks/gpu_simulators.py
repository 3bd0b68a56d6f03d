"""Steps per second of mjlab's Unitree G1 on one GPU: our loop beside mjlab's own training.

Each number of environments has processes of its own: mjlab's `train` path as it is, with its own
rewards, and our trainer with a user's reward of six terms (rewards/g1_walk.py), both with rsl_rl's
PPO and mjlab's settings for the task. "Simulated" are random actions, for ours with the reward;
"trained" is the median of whole iterations, collecting and learning. "Physics" are the same physics
steps and nothing else. Memory is what the GPU says is taken while it trains.

Run it with the engine's own Python: it imports mjlab. Without a GPU it runs on the CPU, with as few
environments as --envs says, which only tries the script.

python benchmarks/gpu_simulators.py [--write] [--envs N ...] [--parts] [--out FILE | --from FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import RunFailed, described, in_process, machine, table, write

ENV_ID = "Mjlab-Velocity-Flat-Unitree-G1"
REWARD = Path(__file__).parent / "rewards" / "g1_walk.py"
WARM_UP = 3
"""Iterations that are not counted."""
KINDS = ("stock", "ours")


def one(kind: str, env_id: str, num_envs: int, iterations: int, seconds: float) -> dict[str, Any]:
    """Measure one contender; prints go to standard error, so that the last line is the result."""
    import sys

    with redirect_stdout(sys.stderr):
        found = {"stock": stock, "ours": ours, "parts": parts}[kind](
            env_id, num_envs, iterations, seconds
        )
    return {"kind": kind, "num_envs": num_envs, **found}


def device() -> str:
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def memory_gib() -> float:
    import torch

    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


def rate(step: Callable[[], object], num_envs: int, seconds: float) -> float:
    """Environment steps per second of a repeated call."""
    for _ in range(5):
        step()
    synchronize()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(4):
            step()
        count += 4
        synchronize()
    return num_envs * count / (time.perf_counter() - began)


def stock(env_id: str, num_envs: int, iterations: int, seconds: float) -> dict[str, Any]:
    """The environment, rewards and runner of mjlab itself, as its `train` makes them."""
    import torch
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.rl import MjlabOnPolicyRunner, RslRlVecEnvWrapper
    from mjlab.tasks.registry import load_env_cfg, load_rl_cfg, load_runner_cls
    from mjlab.utils.torch import configure_torch_backends

    configure_torch_backends()
    where = device()
    cfg, agent = load_env_cfg(env_id), load_rl_cfg(env_id)
    cfg.scene.num_envs, cfg.seed = num_envs, 1
    agent.logger, agent.upload_model = "tensorboard", False
    began = time.perf_counter()
    env = ManagerBasedRlEnv(cfg=cfg, device=where)
    env.reset()
    width = env.action_manager.total_action_dim

    def step() -> None:
        env.step(2 * torch.rand((num_envs, width), device=where) - 1)

    step()
    synchronize()
    start = time.perf_counter() - began
    simulated = rate(step, num_envs, seconds)

    def physics() -> None:
        for _ in range(cfg.decimation):
            env.sim.step()

    alone = rate(physics, num_envs, seconds)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        wrapped = RslRlVecEnvWrapper(env, clip_actions=agent.clip_actions)
        runner_class = load_runner_cls(env_id) or MjlabOnPolicyRunner
        runner = runner_class(wrapped, asdict(agent), folder, where)
        times: list[tuple[float, float]] = []
        log = runner.logger.log

        def timed(*args: Any, **kwargs: Any) -> Any:
            times.append((kwargs["collect_time"], kwargs["learn_time"]))
            return log(*args, **kwargs)

        runner.logger.log = timed
        runner.save = lambda *_, **__: None
        runner.learn(num_learning_iterations=iterations + WARM_UP, init_at_random_ep_len=True)
    return {
        "start_s": start,
        "simulated": simulated,
        "physics": alone,
        **trained(times, num_envs * agent.num_steps_per_env),
    }


def trained(times: list[tuple[float, float]], batch: int) -> dict[str, Any]:
    counted = times[WARM_UP:]
    collect, learn = (statistics.median(column) for column in zip(*counted, strict=True))
    return {
        "trained": batch / statistics.median(map(sum, counted)),
        "collect_s": collect,
        "learn_s": learn,
        "memory_gib": memory_gib(),
        "iterations": len(counted),
    }


def make_loop(env_id: str, num_envs: int, iterations: int, folder: str, send: Any) -> Any:
    from p2p.config import TrainConfig
    from p2p.training.engines.engine_env import get_adapter
    from p2p.training.rsl_rl_trainer import RslRlLearner
    from p2p.training.training_loop import TrainContext, TrainingLoop

    preset = get_adapter("mjlab").preset(env_id)
    batch = num_envs * preset["num_steps"]
    config = TrainConfig(
        env_id=env_id,
        **{
            **preset,
            "num_envs": num_envs,
            "total_timesteps": 1000 * batch * iterations,  # so that no evaluation is due
            "checkpoint_interval": 1000 * batch * iterations,
            "num_evals": 1,
        },
    )
    until = (iterations + WARM_UP) * batch
    return TrainingLoop(
        TrainContext(config, REWARD.read_text(), Path(folder), send, until), RslRlLearner
    )


def ours(env_id: str, num_envs: int, iterations: int, seconds: float) -> dict[str, Any]:
    """Our trainer as the sandboxed worker runs it, with the user's reward on tensors."""
    import torch

    from p2p.contracts import ScalarsReady
    from p2p.training.reward_tensors import TensorTransition

    times: list[tuple[float, float]] = []

    def send(message: Any) -> None:
        if isinstance(message, ScalarsReady):
            values = message.scalars.values
            times.append((values["rollout_time"], values["train_time"]))

    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        began = time.perf_counter()
        loop = make_loop(env_id, num_envs, iterations, folder, send)
        synchronize()
        start = time.perf_counter() - began
        learner: Any = loop.learner
        env, reward = learner.env, learner.on_tensors
        assert reward is not None, loop.note
        width = env.single_action_space.shape[0]

        @torch.no_grad()
        def step() -> None:
            action = 2 * torch.rand((num_envs, width), device=env.device) - 1
            reached, info, groups = env.step_and_restart(action)
            before, after = learner.groups["actor"], reached.groups["actor"]
            reward(TensorTransition(before, action, after, info, learner.start))
            learner.groups = groups
            learner.start = reached.terminated | reached.truncated

        simulated = rate(step, num_envs, seconds)
        loop.run()
        note = loop.note
    return {
        "start_s": start,
        "simulated": simulated,
        "note": note,
        **trained(times, num_envs * loop.config.num_steps),
    }


def parts(env_id: str, num_envs: int, iterations: int, _: float) -> dict[str, Any]:
    """Where the time of our iteration goes, each part waited for, which makes the whole slower."""
    import torch

    spent: dict[str, list[float]] = {}

    def timed(owner: Any, name: str, label: str) -> None:
        call = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            synchronize()
            began = time.perf_counter()
            result = call(*args, **kwargs)
            synchronize()
            spent.setdefault(label, []).append(time.perf_counter() - began)
            return result

        setattr(owner, name, wrapped)

    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        loop = make_loop(env_id, num_envs, iterations, folder, lambda _: None)
        learner: Any = loop.learner
        engine, env = learner.env, learner.env.env
        for owner, name, label in [
            (env.sim, "step", "physics step"),
            (env.sim, "forward", "forward kinematics"),
            (env.sim, "sense", "sensing"),
            (env.scene, "update", "sensors' update"),
            (env.scene, "write_data_to_sim", "actuators"),
            (env.action_manager, "apply_action", "actions"),
            (env.termination_manager, "compute", "terminations"),
            (env.event_manager, "apply", "events"),
            (env, "_reset_idx", "new episodes"),
            (env.command_manager, "compute", "commands"),
            (env.observation_manager, "compute", "observations, all groups"),
            (env.observation_manager, "compute_group", "observations, per group"),
            (engine, "tensor_info", "info"),
            (engine, "step_and_restart", "whole step"),
            (learner, "on_tensors", "reward"),
            (learner.algorithm, "act", "policy"),
            (learner.algorithm, "process_env_step", "storage"),
            (learner.algorithm, "compute_returns", "returns"),
            (learner.algorithm, "update", "update"),
            (learner, "act", "whole rollout"),
            (learner, "update", "whole update"),
        ]:
            timed(owner, name, label)
        loop.run()
    done = iterations + WARM_UP
    return {
        "ms": {
            label: [
                round(1000 * statistics.median(times), 3), round(len(times) / done, 2)
            ]
            for label, times in spent.items()
        }
    }  # fmt: skip


def report(runs: list[dict[str, Any]], where: list[str], env_id: str) -> str:
    by = {(run["kind"], run["num_envs"]): run for run in runs}
    counts = sorted({n for _, n in by})
    rows = []
    for n in counts:
        for kind in KINDS:
            run = by.get((kind, n))
            if run is None:
                continue
            other = by.get(("stock", n))
            ratio = f"{run['trained'] / other['trained']:.2f}" if other else ""
            physics = f"{run['physics']:,.0f}" if "physics" in run else ""
            rows.append([
                f"{n:,} {kind}", f"{run['simulated']:,.0f}", f"{run['trained']:,.0f}", ratio,
                f"{run['collect_s']:.2f} / {run['learn_s']:.2f}", f"{run['memory_gib']:.1f}",
                f"{run['start_s']:.0f}", physics,
            ])  # fmt: skip
    header = [
        "environments", "simulated /s", "trained /s", "of stock", "collect / learn, s", "GPU GiB",
        "start, s", "physics alone /s",
    ]  # fmt: skip
    how = (
        f"`{env_id}` on mjlab, environment steps per second. *stock*: mjlab's own training, with "
        "its own rewards; *ours*: our trainer with a reward file of six terms "
        "([g1_walk.py](../rewards/g1_walk.py)), both with rsl_rl's PPO and the same settings. "
        "*Simulated* is with random actions, *physics alone* without observations and rewards. A "
        "start builds the environments; the first one also compiles the kernels. Goals: ours at "
        "least 0.95 of stock, and 350,000 at the best number of environments."
    )
    text = ["# GPU simulators", "", how, "", *where, "", table(header, rows), ""]
    for run in runs:
        if run["kind"] == "parts":
            text += [
                f"Parts of our iteration at {run['num_envs']:,} environments, each waited for:",
                "",
                table(
                    ["part", "ms, median", "calls per iteration"],
                    [[label, f"{ms:g}", f"{n:g}"] for label, (ms, n) in run["ms"].items()],
                ),
                "",
            ]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    parser.add_argument("--envs", type=int, nargs="+", default=[4096, 8192, 16384])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each simulated rate")
    parser.add_argument("--env", default=ENV_ID)
    parser.add_argument("--parts", action="store_true", help="also say where the time goes")
    parser.add_argument("--out", type=Path, help="also append each run to this file, as it ends")
    parser.add_argument("--from", dest="sources", type=Path, nargs="+", help="print those files")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*json.loads(options.one))))
        return
    if options.sources:
        lines = [json.loads(x) for file in options.sources for x in file.read_text().splitlines()]
        runs = [line for line in lines if "machine" not in line]
        finish(options, runs, several(lines))
        return
    start = machine()
    names = ("mjlab", "mujoco-warp", "warp-lang", "rsl-rl-lib", "torch")
    start["versions"] = {name: version(name) for name in names}
    if device() != "cpu":
        import torch

        start["cpu"] = f"{torch.cuda.get_device_name()}; {start['cpu']}"
    keep(options.out, {"machine": start})
    runs: list[dict[str, Any]] = []
    wanted = [(kind, n) for n in options.envs for kind in options.kinds]
    if options.parts:
        wanted.append(("parts", options.envs[0]))
    for kind, n in wanted:
        job = [kind, options.env, n, options.iterations, options.seconds]
        try:
            runs.append(in_process(__file__, job, {}))
        except RunFailed as error:
            print(error, flush=True)
            continue
        print(json.dumps(runs[-1]), flush=True)
        keep(options.out, runs[-1])
    finish(options, runs, described(start, machine()))


def several(lines: list[dict[str, Any]]) -> list[str]:
    """Which runs were measured when and with how many cores, and with what; those follow these."""
    about: list[str] = []
    for line in lines:
        if "machine" in line:
            start = line["machine"]
            libraries = ", ".join(f"{name} {number}" for name, number in start["versions"].items())
            about.append(f"- {start['cpu']}, {start['cores']} cores, {start['date']}, {libraries}:")
        else:
            about[-1] += f" {line['num_envs']:,} {line['kind']};"
    return [each.rstrip(";") for each in about]


def keep(file: Path | None, line: dict[str, Any]) -> None:
    if file is not None:
        with file.open("a") as out:
            out.write(json.dumps(line) + "\n")


def finish(
    options: argparse.Namespace,
    runs: list[dict[str, Any]],
    where: list[str],
) -> None:
    text = report(runs, where, options.env)
    print(text)
    if options.write:
        write("gpu_simulators", text)


if __name__ == "__main__":
    main()
