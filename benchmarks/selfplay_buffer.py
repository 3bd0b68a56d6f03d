"""Buffer and pool of self-play beside the usual way of doing it, both as plain classes.

"As usual" is written here after the published `unstable-rl` 0.1: a list that is searched with
dataclass equality for every step that leaves it, and a pool that rates with the `trueskill`
package, counts n-grams for both players and gathers a snapshot after every game. Neither side
writes files. Times are CPU times: they do not depend on what else the machine does.

python benchmarks/selfplay_buffer.py [--write]
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import trueskill
from common import described, machine, table, write

from unstable.buffer import StepBuffer
from unstable.core import Trajectory
from unstable.model_pool import ModelPool

TURNS, BATCH = 7, 384
CAPACITIES = (768, 65_536)
CHECKPOINTS, ACTIONS = 200, 14
GOALS = {"add": 20_000.0, "push": 10_000.0, "batch_ms": 5.0}
RULES = "You are playing a game. " * 50  # prompts of one game share their beginning


# --- as usual -----------------------------------------------------------------------------


@dataclass
class UsualStep:
    pid: int
    obs: str
    act: str
    reward: float
    env_id: str
    step_info: dict[str, Any] = field(default_factory=dict)


class UsualBuffer:
    """Keeps a list; what leaves it is looked for by comparing."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.steps = capacity, list[UsualStep]()

    def add_trajectory(self, game: Trajectory, player_id: int, env_id: str) -> None:
        del player_id
        for i in range(len(game.obs)):
            reward = game.final_rewards[game.pid[i]]
            info = {"raw_reward": reward, "transformed": reward, "step_reward": reward}
            step = UsualStep(game.pid[i], game.obs[i], game.actions[i], reward, env_id, info)
            self.steps.append(step)
        for step in random.sample(self.steps, max(0, len(self.steps) - self.capacity)):
            self.steps.remove(step)

    def get_batch(self, size: int) -> list[UsualStep]:
        batch = random.sample(self.steps, size)
        for step in batch:
            self.steps.remove(step)
        return batch

    def size(self) -> int:
        return len(self.steps)


class UsualPool:
    """Rates with the package, counts n-grams per player, looks at everybody after every game."""

    def __init__(self, checkpoints: int) -> None:
        self.system = trueskill.TrueSkill(beta=4.0)
        names = [f"ckpt-{i}" for i in range(checkpoints)] + ["fixed-x"]
        self.ratings = {name: self.system.create_rating() for name in names}
        self.matches: Counter[tuple[str, ...]] = Counter()
        self.games: dict[str, deque[list[Any]]] = {name: deque() for name in names}
        self.counts: dict[str, dict[int, Counter[int]]] = {
            name: {n: Counter() for n in range(1, 5)} for name in names
        }

    def push_game_outcome(
        self, me: str, opponent: str, reward: float, moves: list[str], env_id: str
    ) -> None:
        del env_id
        a, b = self.ratings[me], self.ratings[opponent]
        if reward == 1:
            a, b = self.system.rate_1vs1(a, b)
        elif reward == -1:
            b, a = self.system.rate_1vs1(b, a)
        else:
            a, b = self.system.rate_1vs1(a, b, drawn=True)
        self.ratings[me], self.ratings[opponent] = a, b
        self.matches[tuple(sorted((me, opponent)))] += 1
        for name in (me, opponent):
            self.count(name, moves)
        self.snapshot(me)

    def count(self, name: str, moves: list[str]) -> None:
        found = []
        for n, counter in self.counts[name].items():
            for i in range(len(moves) - n + 1):
                gram = hash(tuple(moves[i : i + n]))
                counter[gram] += 1
                found.append((n, gram))
        self.games[name].append(found)
        if len(self.games[name]) > 512:
            for n, gram in self.games[name].popleft():
                self.counts[name][n][gram] -= 1
                if not self.counts[name][n][gram]:
                    del self.counts[name][n][gram]

    def draw_snapshot(self, me: str) -> dict[str, Any]:
        return {
            "matches": dict(self.matches),
            "ratings": {name: (r.mu, r.sigma) for name, r in self.ratings.items()},
            "unique": {n: len(c) / max(1, sum(c.values())) for n, c in self.counts[me].items()},
        }


# --- measuring ----------------------------------------------------------------------------


def trajectory(number: int) -> Trajectory:
    return Trajectory(
        pid=[0] * TURNS,
        obs=[f"{RULES} game {number} turn {turn}" for turn in range(TURNS)],
        actions=[f"I think about game {number}: \\boxed{{{turn}}}" for turn in range(TURNS)],
        final_rewards={0: 1.0, 1: -1.0},
        format_feedbacks=[{"correct_answer_format": True, "invalid_move": False}] * TURNS,
    )


def seconds_each(call: Callable[[int], Any], times: int, rounds: int = 3) -> float:
    """CPU seconds of one call: the best of some rounds."""
    best = float("inf")
    for index in range(rounds):
        begin = time.process_time()
        for i in range(times):
            call(index * times + i)
        best = min(best, (time.process_time() - begin) / times)
    return best


def measure_buffer(make: Callable[[int], Any], capacity: int, adds: int) -> dict[str, float]:
    games = [trajectory(i) for i in range(capacity // TURNS + 1)]
    buffer = make(capacity)
    for game in games:
        buffer.add_trajectory(game, 0, "A")
    more = [trajectory(10**6 + i) for i in range(adds * 3)]
    each = seconds_each(lambda i: buffer.add_trajectory(more[i], 0, "A"), adds)
    assert buffer.size() == capacity
    batch = seconds_each(lambda _: buffer.get_batch(BATCH), 1, rounds=1 if adds < 100 else 2)
    return {"adds_per_s": 1.0 / each, "batch_ms": 1e3 * batch}


def measure_pool(pool: Any, games: int) -> float:
    rng = random.Random(0)
    moves = [[f"[{rng.randrange(16)}]" for _ in range(ACTIONS)] for _ in range(1000)]
    me = f"ckpt-{CHECKPOINTS - 1}"

    def push(i: int) -> None:
        pool.push_game_outcome(me, "fixed-x", float(i % 3 - 1), moves[i % 1000], "A")

    for i in range(600):  # the window of games is full from here on
        push(i)
    return 1.0 / seconds_each(push, games)


def our_pool() -> ModelPool:
    pool = ModelPool("match-quality", 8)
    for i in range(CHECKPOINTS):
        pool.add_checkpoint(None, i)
    pool.add_fixed("x")
    return pool


def measure() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for capacity in CAPACITIES:
        few = 60 if capacity < 10_000 else 2
        found[str(capacity)] = {
            "ours": measure_buffer(StepBuffer, capacity, 5000),
            "usual": measure_buffer(UsualBuffer, capacity, few),
        }
    found["push"] = {
        "ours": measure_pool(our_pool(), 5000),
        "usual": measure_pool(UsualPool(CHECKPOINTS), 1000),
    }
    return found


def report(found: dict[str, Any], start: dict[str, Any], end: dict[str, Any]) -> str:
    rows = []
    for capacity in CAPACITIES:
        ours, usual = found[str(capacity)]["ours"], found[str(capacity)]["usual"]
        add, other = ours["adds_per_s"], usual["adds_per_s"]
        rows.append(
            [
                f"add of {TURNS} steps at capacity {capacity:,}",
                f"{add:,.0f}/s",
                f"{other:,.0f}/s",
                f"{add / other:,.0f} x",
                f"≥ {GOALS['add']:,.0f}/s",
            ]
        )
        batch, other = ours["batch_ms"], usual["batch_ms"]
        rows.append([f"get_batch({BATCH}) at capacity {capacity:,}", f"{batch:.2f} ms",
                     f"{other:,.0f} ms", f"{other / batch:,.0f} x",
                     f"< {GOALS['batch_ms']:g} ms"])  # fmt: skip
    push, other = found["push"]["ours"], found["push"]["usual"]
    rows.append([f"push_game_outcome, {ACTIONS} moves, {CHECKPOINTS} checkpoints",
                 f"{push:,.0f}/s", f"{other:,.0f}/s", f"{push / other:,.0f} x",
                 f"≥ {GOALS['push']:,.0f}/s"])  # fmt: skip
    return "\n".join([
        "# Buffer and pool of self-play",
        "",
        "Plain classes, no files, per CPU second. *As usual* is the algorithm of the published",
        "`unstable-rl` 0.1, written anew in the script: see there.",
        "",
        *described(start, end),
        "",
        table(["", "ours", "as usual", "ratio", "goal"], rows),
        "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    arguments = parser.parse_args()
    start = machine() | {"versions": {"trueskill": version("trueskill")}}
    found = measure()
    end = machine()
    text = report(found, start, end)
    print(text)
    if arguments.write:
        write("selfplay_buffer", text)


if __name__ == "__main__":
    main()
