"""The step buffer, from finished games to training batches."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from unstable.core import UNKNOWN_VERSION, Stack, Step, Trajectory
from unstable.reward_transformations import (
    ComposeFinalRewardTransforms,
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
    FinalRewardTransform,
    SamplingRewardTransform,
    StepRewardTransform,
)
from unstable.trackers import Tracker, log_to_run
from unstable.utils.files import BackgroundWriter, write_whole
from unstable.utils.handles import call, lock_method, send

_FIELDS = tuple(field.name for field in fields(Step))
MAX_WAITING = 4096
"""Groups that may wait for games; beyond, the oldest makes do with those that it has."""
LOSSES = ("evicted", "cleared", "transformed")
"""Why steps do not leave by a batch: no room, `clear`, a transform of the batch left them out."""


def pop_random(items: list[Any], rng: random.Random) -> Any:
    """Remove a random item; the last one takes its place, so nothing is shifted.

    The order in the list has no meaning for what is drawn from it.
    """
    index = int(rng.random() * len(items))
    last = items.pop()
    if index == len(items):
        return last
    chosen, items[index] = items[index], last
    return chosen


STRATEGIES = ("random", "episodes", "groups")


class Units:
    """Steps by the unit they are drawn in: steps, games, or `group_size` games of a `Step.group`.

    A group can be drawn when its last game is over, whether that brought steps or not, each seat's
    steps by themselves. Of groups that wait for games none is evicted.
    """

    def __init__(self, strategy: str, group_size: int) -> None:
        self.single = strategy == "random"
        self.group_size = group_size if strategy == "groups" else 1
        self.size = 0
        """Steps that can be drawn."""
        self.units: list[Any] = []
        """Single steps by themselves: a list around each would cost a third of the speed."""
        self._waiting: dict[str, list[list[Step]]] = {}
        """By group, what its games have brought so far."""
        self._games: Counter[str] = Counter()
        """By group, how many of its games are over."""

    def add(self, trajectories: Sequence[list[Step]], group: str) -> None:
        """Add the learner's steps of a game of a group; empty where it never moved."""
        if self.group_size == 1:
            for trajectory in trajectories:
                self._append(trajectory)
            return
        self._waiting.setdefault(group, []).extend(trajectories)
        self._games[group] += 1
        if self._games[group] == self.group_size:
            self._complete(group)
        elif len(self._waiting) > MAX_WAITING:
            self._complete(next(iter(self._waiting)))

    def complete_all(self) -> None:
        for group in list(self._waiting):
            self._complete(group)

    @property
    def waiting(self) -> int:
        """Steps of groups that wait for games."""
        return sum(len(game) for group in self._waiting.values() for game in group)

    def _complete(self, group: str) -> None:
        del self._games[group]
        by_seat: dict[str, list[Step]] = {}
        for trajectory in self._waiting.pop(group):
            by_seat.setdefault(trajectory[0].group, []).extend(trajectory)
        for steps in by_seat.values():
            self._append(steps)

    def _append(self, trajectory: list[Step]) -> None:
        if self.single:
            self.units += trajectory
        elif trajectory:
            self.units.append(trajectory)
        self.size += len(trajectory)

    def draw(self, steps: int, rng: random.Random) -> list[Step]:
        """Remove at least so many steps, uniformly, without replacement."""
        drawn: list[Step] = []
        if self.single:
            drawn = [pop_random(self.units, rng) for _ in range(min(steps, self.size))]
        while len(drawn) < steps and self.units:
            drawn += pop_random(self.units, rng)
        self.size -= len(drawn)
        return drawn

    def clear(self) -> None:
        self.units.clear()
        self._waiting.clear()
        self._games.clear()
        self.size = 0

    def state_dict(self) -> dict[str, Any]:
        if self.single:
            return {"steps": _to_dicts(self.units)}
        return {
            "whole": [_to_dicts(unit) for unit in self.units],
            "waiting": {
                name: [_to_dicts(game) for game in group] for name, group in self._waiting.items()
            },
            "games": dict(self._games),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.single:
            self.units = _to_steps(state["steps"])
            self.size = len(self.units)
            return
        self.units = [_to_steps(unit) for unit in state["whole"]]
        self._waiting = {
            name: [_to_steps(game) for game in group] for name, group in state["waiting"].items()
        }
        # Without the games: of a version that counted trajectories.
        games = state.get("games") or {name: len(group) for name, group in self._waiting.items()}
        self._games = Counter(games)
        self.size = sum(map(len, self.units))


def _to_dicts(steps: Iterable[Step]) -> list[dict[str, Any]]:
    # Not `asdict`: it would copy every token id by itself.
    return [{name: getattr(step, name) for name in _FIELDS} for step in steps]


def _to_steps(plain: Iterable[Mapping[str, Any]]) -> list[Step]:
    steps = [Step(**step) for step in plain]
    for step in steps:  # JSON has no tuples: what was empty is again as it was
        step.prompt_ids = step.prompt_ids or ()
        step.completion_ids = step.completion_ids or ()
        step.logprobs = step.logprobs or ()
    return steps


CSV_COLUMNS = ("pid", "obs", "act", "reward", "env_id", "step_info")


class StepBuffer:
    """Keeps at most `max_buffer_size` steps, and gives random batches of them to the learner.

    Args:
        max_buffer_size: how many steps are kept; beyond, some chosen uniformly are dropped.
        tracker: says where batches are written to, and gets the buffer's size.
        final_reward_transformation: applied once to the rewards of a game.
        step_reward_transformation: applied to each step.
        sampling_reward_transformation: applied to each batch.
        buffer_strategy: one of STRATEGIES: `random` mixes steps, `episodes` keeps games whole,
            `groups` keeps games that begin alike together.
        group_size: games in a group.
        write_csv: write each batch to `train_data_step_<N>.csv`, from a thread.
        seed: of the choice of what is dropped and drawn.
        back_pressure: ask for a pause while the buffer is full.
    """

    def __init__(
        self,
        max_buffer_size: int,
        tracker: Tracker | None = None,
        final_reward_transformation: FinalTransform | None = None,
        step_reward_transformation: StepTransform | None = None,
        sampling_reward_transformation: SamplingTransform | None = None,
        buffer_strategy: str = "random",
        *,
        group_size: int = 1,
        write_csv: bool = True,
        seed: int = 0,
        back_pressure: bool = True,
    ) -> None:
        if buffer_strategy not in STRATEGIES:
            known = ", ".join(sorted(STRATEGIES))
            raise ValueError(f"no buffer strategy {buffer_strategy!r}; there are {known}")
        if group_size < 1:
            raise ValueError(f"group_size is {group_size}: at least 1")
        if max_buffer_size < 1:
            raise ValueError(f"max_buffer_size is {max_buffer_size}: at least 1")
        self.max_buffer_size = max_buffer_size
        self.buffer_strategy = buffer_strategy
        self.back_pressure = back_pressure
        self.collect = True
        self._stop_reason = ""
        self.final = _as_stack(ComposeFinalRewardTransforms, final_reward_transformation)
        self.per_step = _as_stack(ComposeStepRewardTransforms, step_reward_transformation)
        self.sampling = _as_stack(ComposeSamplingRewardTransforms, sampling_reward_transformation)
        self._lock = threading.RLock()
        self._random = random.Random(seed)
        self._store = Units(buffer_strategy, group_size)
        self._episodes = 0
        self._batches = 0
        self._received = 0
        self._lost = Counter(dict.fromkeys(LOSSES, 0))
        self._tracker = tracker
        log_to_run("buffer", tracker)
        self._folder = None if tracker is None else Path(call(tracker.get_train_dir))
        self._writer = BackgroundWriter("csv") if write_csv and self._folder else None

    def add_trajectory(self, trajectory: Trajectory, player_id: int, env_id: str) -> None:
        self.add_game([trajectory], env_id, [player_id])

    @lock_method
    def add_game(
        self,
        trajectories: Sequence[Trajectory],
        env_id: str,
        player_ids: Sequence[int] = (),
        group: str = "",
    ) -> None:
        """Add a game in which the learner had several seats; its rewards are transformed once.

        Given one by one, the game would count several times in every baseline. A game of a `group`
        (else that of its first trajectory) that brought nothing has no trajectories: the group
        does not wait for it.
        """
        steps = []
        if any(trajectory.actions for trajectory in trajectories):
            first = trajectories[0]
            final = self.final(first.final_rewards, env_id, first.opponent)
            for index, trajectory in enumerate(trajectories):
                if trajectory.actions:
                    player_id = player_ids[index] if player_ids else trajectory.pid[0]
                    steps.append(self._make_steps(trajectory, player_id, env_id, final))
                    self._episodes += 1
        self._received += sum(map(len, steps))
        if trajectories or group:
            self._store.add(steps, group or trajectories[0].group)
        self._evict()

    @lock_method
    def complete_groups(self) -> None:
        """Complete groups with the games they have: the missing ones will not come."""
        self._store.complete_all()
        self._evict()

    def _evict(self) -> None:
        excess = self._store.size - self.max_buffer_size
        if excess > 0:
            self._lost["evicted"] += len(self._store.draw(excess, self._random))

    @lock_method
    def get_batch(
        self, batch_size: int, *, whole_games: bool = False, whole_groups: bool = False
    ) -> list[Step]:
        """Remove and return steps, chosen uniformly without replacement.

        Whole episodes or groups where those are kept: then the batch has them one after the other,
        each in order, and may be longer by what the last one has too much.

        Raises:
            ValueError: there are fewer, or games or groups are asked for that are not kept whole.
        """
        if whole_groups and self.buffer_strategy != "groups":
            raise ValueError(
                "groups of games are not kept together: let the collector play games in groups"
                " (group_size) and use buffer_strategy='groups'"
            )
        if whole_games and self.buffer_strategy == "random":
            raise ValueError("games are not kept whole: use buffer_strategy='episodes'")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: at least 1")
        if self._store.size < batch_size:
            raise ValueError(f"{batch_size} steps were asked for, {self._store.size} are here")
        drawn = self._store.draw(batch_size, self._random)
        count = len(drawn)
        batch = self.sampling(drawn)
        self._lost["transformed"] += max(0, count - len(batch))
        if self._writer is not None and self._folder is not None:
            path = self._folder / f"train_data_step_{self._batches}.csv"
            rows = [_make_row(step) for step in batch]  # now: the learner may change its steps
            self._writer.put(lambda: write_training_data_to_file(rows, path))
        self._batches += 1
        if self._tracker is not None:
            numbers = {"size": self._store.size, "drawn": len(batch)}
            send(self._tracker.log_scalars, {f"buffer/{k}": float(v) for k, v in numbers.items()})
            lost = {f"buffer/lost_{name}": count for name, count in self._lost.items()}
            send(self._tracker.log_counts, {"buffer/waiting": self._store.waiting, **lost})
        return batch

    def size(self) -> int:
        return self._store.size

    def room(self) -> int:
        return max(0, self.max_buffer_size - self._store.size)

    @lock_method
    def clear(self) -> None:
        self._lost["cleared"] += self._store.size + self._store.waiting
        self._store.clear()

    def stop(self, reason: str = "") -> None:
        """End collection; steps can still be drawn. The first reason is kept."""
        if self.collect:
            self._stop_reason = reason
        self.collect = False

    def stop_reason(self) -> str:
        return self._stop_reason

    def stopped(self) -> bool:
        """Return whether collection has ended, rather than paused."""
        return not self.collect

    def continue_collection(self) -> bool:
        """Return whether to start new games: collection has not ended, and there is room."""
        return self.collect and (not self.back_pressure or self.room() > 0)

    def stats(self) -> dict[str, int]:
        return {
            "size": self._store.size,
            "trajectories": self._episodes,
            "batches": self._batches,
            "steps": self._received,
            "waiting": self._store.waiting,
            **self._lost,
            "csv_failures": self._writer.failures if self._writer else 0,
            "csv_skipped": self._writer.skipped if self._writer else 0,
        }

    def flush(self) -> None:
        """Wait until every batch so far is on disk, or has failed to be written."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    @lock_method
    def state_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it: steps, transforms, counters and random state."""
        version, internal, gauss = self._random.getstate()
        return {
            "strategy": self.buffer_strategy,
            "store": self._store.state_dict(),
            "final": self.final.state_dict(),
            "step": self.per_step.state_dict(),
            "sampling": self.sampling.state_dict(),
            "random": [version, list(internal), gauss],
            "episodes": self._episodes,
            "batches": self._batches,
            "received": self._received,
            **self._lost,
        }

    @lock_method
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; collection goes on, even if it had ended."""
        if state["strategy"] != self.buffer_strategy:
            raise ValueError(f"the state is of a buffer of {state['strategy']!r}")
        self._store.load_state_dict(state["store"])
        self.final.load_state_dict(state["final"])
        self.per_step.load_state_dict(state["step"])
        self.sampling.load_state_dict(state["sampling"])
        version, internal, gauss = state["random"]
        self._random.setstate((version, tuple(internal), gauss))
        self._episodes = state["episodes"]
        self._batches = state["batches"]
        self._received = state.get("received", 0)
        self._lost = Counter({name: state.get(name, 0) for name in LOSSES})
        self.collect, self._stop_reason = True, ""

    def _make_steps(
        self, trajectory: Trajectory, player_id: int, env_id: str, final: dict[int, float]
    ) -> list[Step]:
        steps = []
        for i, (obs, action) in enumerate(zip(trajectory.obs, trajectory.actions, strict=True)):
            pid = trajectory.pid[i] if trajectory.pid else player_id
            base = final[pid]
            reward = self.per_step(trajectory, i, base)
            info = {
                "raw_reward": trajectory.final_rewards[pid],
                "transformed_end_of_game_reward": base,
                "step_reward": reward,
            }
            step = Step(pid, obs, action, reward, env_id, info)
            step.episode, step.turn, step.group = self._episodes, i, trajectory.group
            if trajectory.completion_ids:
                step.prompt_ids = trajectory.prompt_ids[i]
                step.completion_ids = trajectory.completion_ids[i]
                step.logprobs = trajectory.logprobs[i]
            if trajectory.temperatures:
                step.temperature = trajectory.temperatures[i]
            step.version = trajectory.versions[i] if trajectory.versions else UNKNOWN_VERSION
            steps.append(step)
        return steps


def write_training_data_to_file(rows: Sequence[Sequence[Any]], path: Path) -> None:
    """Write a batch's CSV snapshot; replace this function to write something else, or nothing."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    writer.writerows((*row[:-1], json.dumps(row[-1])) for row in rows)
    write_whole(path, text.getvalue())


def _make_row(step: Step) -> tuple[Any, ...]:
    return (step.pid, step.obs, step.act, step.reward, step.env_id, step.step_info)


FinalTransform = ComposeFinalRewardTransforms | FinalRewardTransform
StepTransform = ComposeStepRewardTransforms | StepRewardTransform
SamplingTransform = ComposeSamplingRewardTransforms | SamplingRewardTransform
C = TypeVar("C", bound=Stack[Any])


def _as_stack(kind: type[C], transform: Any) -> C:
    if isinstance(transform, kind):
        return transform
    return kind([] if transform is None else [transform])


LONGEST_WAIT = 0.2
"""Most seconds between polls of a buffer that has too little."""


@dataclass
class BatchSource:
    buffer: StepBuffer
    delay: float
    """It waits until there are so many batches."""
    num_learners: int
    max_staleness: int | None
    """Updates since a step was sampled, at most."""
    whole_games: bool
    whole_groups: bool
    stale: int = 0
    """Steps left out so far."""

    def check_capacity(self, batch_size: int) -> None:
        """Raise ValueError if the buffer can never hold as much as is waited for."""
        capacity = call(self.buffer.room) + call(self.buffer.size)
        if (needed := self._steps_needed(batch_size)) > capacity:
            raise ValueError(
                f"the learner waits for {needed} steps (batch_size {batch_size} x"
                f" batch_delay_buffer {self.delay} x num_learners {self.num_learners}), but the"
                f" buffer holds {capacity}: raise max_buffer_size or lower one of them"
            )

    def wait(self, batch_size: int, step: int) -> None:
        """Wait for enough data; of a stopped buffer, one batch is enough.

        Raises:
            RuntimeError: the buffer was stopped and has less.
        """
        pause = 0.01
        while (size := call(self.buffer.size)) < self._steps_needed(batch_size):
            if call(self.buffer.stopped):
                if size >= batch_size:
                    return
                raise RuntimeError(
                    f"collection was stopped after {step} updates{self._explain_stop()}: the buffer"
                    f" has {size} of the {batch_size} steps that the next one needs"
                )
            time.sleep(pause)
            pause = min(LONGEST_WAIT, 2.0 * pause)

    def take(self, batch_size: int, step: int) -> list[Step]:
        steps = call(
            self.buffer.get_batch, batch_size,
            whole_games=self.whole_games, whole_groups=self.whole_groups,
        )  # fmt: skip
        fresh = [one for one in steps if not self._is_stale(one, step)]
        self.stale += len(steps) - len(fresh)
        return fresh

    def _explain_stop(self) -> str:
        reason = call(self.buffer.stop_reason)
        return f" ({reason})" if reason else ""

    def _steps_needed(self, batch_size: int) -> int:
        return math.ceil(batch_size * self.delay * self.num_learners)

    def _is_stale(self, one: Step, step: int) -> bool:
        """Return whether a step's policy is too old; the base model is as old as the run."""
        if self.max_staleness is None or not getattr(one, "completion_ids", ()):
            return False
        return step - max(one.version, 0) > self.max_staleness
