"""What a move costs beside generation: our collector, and a process per game as it is usual.

The engine answers at once, so everything that is left is ours: games, prompts, actions, requests,
trajectories, buffer, pool and tracker. "As usual" is the way of the published `unstable-rl` 0.1,
written anew: every game is a Ray task, hence a process, and asks a Ray actor for each move; its
trajectories go nowhere. Counted is the CPU time of games, engine and driver.

python benchmarks/selfplay_collector.py [--ray] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import described, machine, peak_rss_mb, table, write

from unstable.buffer import StepBuffer
from unstable.collector import Collector
from unstable.engines import Completion
from unstable.games import GameRunner
from unstable.games.rules import legal_moves
from unstable.model_pool import ModelPool
from unstable.trackers import Tracker
from unstable.utils.templates import extract_action, format_prompt

GOAL_MS = 1.0
GAMES, AT_ONCE, RAY_GAMES = 1000, 256, 16
ENVS = ("TicTacToe-v0-train", "SimpleTak-v0-train", "KuhnPoker-v0-train", "ConnectFour-v0-train")
MOVES = {
    "TicTacToe-v0-train": [f"[{cell}]" for cell in range(9)],
    "SimpleTak-v0-train": [f"[{cell}]" for cell in range(16)],
    "KuhnPoker-v0-train": ["[check]", "[bet]", "[call]", "[fold]"],
    "ConnectFour-v0-train": [f"[col {column}]" for column in range(7)],
}


class InstantActor:
    """Answers at once, with a move that may be wrong; invalid moves are taken back."""

    def __init__(self, env_id: str) -> None:
        self.moves = MOVES[env_id]

    async def generate(
        self, prompt: str, lora_path: str | None = None, *, seed: int | None = None
    ) -> Completion:
        del lora_path
        await asyncio.sleep(0)
        text = f"Let me see. \\boxed{{{random.Random(seed).choice(self.moves)}}}"
        tokens = tuple(range(16))
        return Completion(tokens, (-1.0,) * 16, "stop", text, prompt_ids=tuple(prompt.encode()))

    async def ping(self) -> str:
        return "pong"

    async def close(self) -> None:
        pass


def ours(env_id: str, folder: Path) -> dict[str, float]:
    tracker = Tracker("bench", run_dir=folder / env_id)
    pool = ModelPool("mirror", 4, tracker)
    pool.add_checkpoint(None, 0)
    buffer = StepBuffer(65_536, tracker, write_csv=False)
    collector = Collector(
        1, buffer, pool, tracker, {}, [(env_id, 2, "qwen3-zs")], actors=[InstantActor(env_id)],
        error_allowance=200,
    )  # fmt: skip

    async def both() -> tuple[int, float]:
        await collector.play(AT_ONCE, AT_ONCE)
        cpu = time.process_time()
        counts = await collector.play(GAMES, AT_ONCE)
        return counts["turns"], time.process_time() - cpu

    turns, cpu = asyncio.run(both())
    return {"moves": turns, "ms": 1e3 * cpu / turns}


def game_alone(env_id: str) -> float:
    """What TextArena itself takes for a move, as it is asked by us, in ms."""
    rng, turns, cpu = random.Random(0), 0, time.process_time()
    while time.process_time() - cpu < 1.0:
        game = GameRunner(env_id, 2, seed=rng.getrandbits(31))
        while not game.done:
            game.observe()
            game.step(rng.choice(legal_moves(env_id, game.env, rng)))
        turns += game.turns
    return 1e3 * (time.process_time() - cpu) / turns


# --- as usual -----------------------------------------------------------------------------


def usual(env_id: str) -> dict[str, float]:
    """A process per game, RAY_GAMES at once."""
    import ray

    @ray.remote
    class Engine:
        def __init__(self) -> None:
            self.random = random.Random(0)

        async def submit_prompt(self, prompt: str) -> str:
            del prompt
            return f"Let me see. \\boxed{{{self.random.choice(MOVES[env_id])}}}"

        async def cpu(self) -> float:
            return time.process_time()

    @ray.remote(num_cpus=0)
    def play_episode(engine: Any, seed: int) -> tuple[int, float]:
        import textarena  # noqa: F401 - once per process, and not counted

        begin = time.process_time()
        game = GameRunner(env_id, 2, seed, error_allowance=200)
        while not game.done:
            prompt = format_prompt("qwen3-zs", game.observe().observation)
            text = ray.get(engine.submit_prompt.remote(prompt))
            game.step(extract_action(text)[0])
        return game.turns, time.process_time() - begin

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False,
             object_store_memory=100 * 1024 * 1024)  # fmt: skip
    try:
        engine = Engine.remote()
        ray.get([play_episode.remote(engine, seed) for seed in range(RAY_GAMES)])
        turns = 0
        cpu = -time.process_time() - ray.get(engine.cpu.remote())
        for number in range(1, 5):
            seeds = range(100 * number, 100 * number + RAY_GAMES)
            for moves, seconds in ray.get([play_episode.remote(engine, seed) for seed in seeds]):
                turns, cpu = turns + moves, cpu + seconds
        cpu += time.process_time() + ray.get(engine.cpu.remote())
    finally:
        ray.shutdown()
    return {"moves": turns, "ms": 1e3 * cpu / turns}


def report(found: dict[str, Any], start: dict[str, Any], end: dict[str, Any]) -> str:
    rows = [
        [env_id, f"{row['ours']['moves']:,}", f"{row['ours']['ms']:.2f} ms",
         f"{row['game']:.2f} ms", f"< {GOAL_MS:g} ms"]
        for env_id, row in found["games"].items()
    ]  # fmt: skip
    lines = [
        "# What a move costs beside generation",
        "",
        f"{AT_ONCE} games at once in one process, {GAMES:,} mirror games each, an engine that",
        "answers at once, TextArena's full observations. CPU time of everything but the engine's",
        "tokens: game, prompt, action, request, both seats' trajectories, buffer, pool, tracker.",
        "",
        *described(start, end),
        f"- memory of the one process at most: {found['rss_mb']:,.0f} MB",
        "",
        table(["game", "moves", "CPU a move", "the game alone", "goal"], rows),
        "",
    ]
    if "usual" in found:
        usual_ms, env_id = found["usual"]["ms"], ENVS[0]
        ours_ms = found["games"][env_id]["ours"]["ms"]
        lines += [
            f"A process per game (a Ray task, asking a Ray actor for each move), {RAY_GAMES} games",
            f"at once, {env_id}, {found['usual']['moves']} moves: {usual_ms:.1f} ms of CPU a move,",
            f"{usual_ms / ours_ms:.0f} times ours, though nothing is recorded, and neither Ray's",
            "own processes nor the start of a process per game (imports: seconds) are counted.",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ray", action="store_true", help="also a process per game")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    arguments = parser.parse_args()
    start = machine() | {"versions": {name: version(name) for name in ("textarena", "ray")}}
    found: dict[str, Any] = {"games": {}}
    with tempfile.TemporaryDirectory() as folder:
        for env_id in ENVS:
            mine = ours(env_id, Path(folder))
            found["games"][env_id] = {"ours": mine, "game": game_alone(env_id)}
    found["rss_mb"] = peak_rss_mb()
    if arguments.ray:
        found["usual"] = usual(ENVS[0])
    text = report(found, start, machine())
    print(text)
    if arguments.write:
        write("selfplay_collector", text)


if __name__ == "__main__":
    main()
