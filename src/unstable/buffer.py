"""Steps on their way from finished games to the learner."""

from __future__ import annotations

import csv
import io
import json
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstable.core import UNKNOWN_VERSION, Step, Trajectory
from unstable.reward_transformations import (
    ComposeFinalRewardTransforms,
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
    FinalRewardTransform,
    SamplingRewardTransform,
    StepRewardTransform,
)
from unstable.stores import STORES, BufferStore
from unstable.utils.background import BackgroundWriter
from unstable.utils.files import write_whole
from unstable.utils.handles import ask, tell
from unstable.utils.locking import locked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CSV_COLUMNS = ("pid", "obs", "act", "reward", "env_id", "step_info")


class StepBuffer:
    """Keeps at most `max_buffer_size` steps and gives random batches of them away.

    Args:
        max_buffer_size: how many steps are kept; beyond, some chosen uniformly are dropped.
        tracker: says where batches are written to, and is told the buffer's size.
        final_reward_transformation: applied once to the rewards of a game.
        step_reward_transformation: applied to each step.
        sampling_reward_transformation: applied to each batch.
        buffer_strategy: one of STORES: `random` mixes steps, `episodes` keeps games whole, `groups`
            keeps games that begin alike together.
        group_size: games in a group.
        write_csv: write each batch to `train_data_step_<N>.csv`, from a thread.
        seed: of the choice of what is dropped and drawn.
        back_pressure: ask for a pause while the buffer is full.
    """

    def __init__(
        self,
        max_buffer_size: int,
        tracker: Any = None,
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
        if buffer_strategy not in STORES:
            known = ", ".join(sorted(STORES))
            raise ValueError(f"no buffer strategy {buffer_strategy!r}; there are {known}")
        if max_buffer_size < 1:
            raise ValueError(f"max_buffer_size is {max_buffer_size}")
        self.max_buffer_size = max_buffer_size
        self.buffer_strategy = buffer_strategy
        self.back_pressure = back_pressure
        self.collect = True
        self._stop_reason = ""
        self.final = _final_stack(final_reward_transformation)
        self.per_step = _step_stack(step_reward_transformation)
        self.sampling = _sampling_stack(sampling_reward_transformation)
        self._lock = threading.RLock()
        self._random = random.Random(seed)
        self._store: BufferStore = STORES[buffer_strategy](group_size)
        self._episodes = 0
        self._batches = 0
        self._evicted = 0
        self._tracker = tracker
        self._folder = None if tracker is None else Path(ask(tracker, "get_train_dir"))
        self._writer = BackgroundWriter("csv") if write_csv and self._folder else None

    def add_trajectory(self, trajectory: Trajectory, player_id: int, env_id: str) -> None:
        """Take the steps of one player's game."""
        self.add_game([trajectory], env_id, [player_id])

    @locked
    def add_game(
        self, trajectories: Sequence[Trajectory], env_id: str, player_ids: Sequence[int] = ()
    ) -> None:
        """Take a game that several seats of ours played; its rewards are transformed once.

        Given one by one, the game would count several times in every baseline.
        """
        if not trajectories:
            return
        first = trajectories[0]
        final = self.final(first.final_rewards, env_id, first.opponent)
        for index, trajectory in enumerate(trajectories):
            player_id = player_ids[index] if player_ids else trajectory.pid[0]
            self._store.add(self._steps(trajectory, player_id, env_id, final))
            self._episodes += 1
        excess = self._store.size - self.max_buffer_size
        if excess > 0:
            self._evicted += self._store.evict(excess, self._random)

    @locked
    def get_batch(self, batch_size: int) -> list[Step]:
        """Take steps out, chosen uniformly without replacement.

        Whole episodes or groups where those are kept: then the batch has them one after the other,
        each in order, and may be longer by what the last one has too much.

        Raises:
            ValueError: there are fewer.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}")
        if self._store.size < batch_size:
            raise ValueError(f"{batch_size} steps were asked for, {self._store.size} are here")
        batch = self.sampling(self._store.draw(batch_size, self._random))
        if self._writer is not None and self._folder is not None:
            path = self._folder / f"train_data_step_{self._batches}.csv"
            rows = [_row(step) for step in batch]  # now: the learner may change its steps
            self._writer.put(lambda: write_training_data_to_file(rows, path))
        self._batches += 1
        numbers = {"size": self._store.size, "evicted": self._evicted, "drawn": len(batch)}
        tell(self._tracker, "log_scalars", {f"buffer/{k}": float(v) for k, v in numbers.items()})
        return batch

    def get_episodes(self, batch_size: int) -> list[list[Step]]:
        """A batch as whole games, each in order; for the strategies that keep them whole."""
        if self.buffer_strategy == "random":
            raise ValueError("games are not kept whole: use buffer_strategy='episodes'")
        episodes: dict[int, list[Step]] = {}
        for step in self.get_batch(batch_size):
            episodes.setdefault(step.episode, []).append(step)
        return list(episodes.values())

    def size(self) -> int:
        """How many steps can be drawn."""
        return self._store.size

    def room(self) -> int:
        """How many steps fit before some are dropped."""
        return max(0, self.max_buffer_size - self._store.size)

    @locked
    def clear(self) -> None:
        """Drop all steps."""
        self._store.clear()

    def stop(self, reason: str = "") -> None:
        """End collection; what is here can still be drawn. The first reason is kept."""
        if self.collect:
            self._stop_reason = reason
        self.collect = False

    def stop_reason(self) -> str:
        """Why collection has ended."""
        return self._stop_reason

    def stopped(self) -> bool:
        """Whether collection has ended, rather than paused."""
        return not self.collect

    def continue_collection(self) -> bool:
        """Whether new games should be started: collection goes on, and there is room."""
        return self.collect and (not self.back_pressure or self.room() > 0)

    def stats(self) -> dict[str, int]:
        """Counts since the beginning, and the size."""
        return {
            "size": self._store.size,
            "trajectories": self._episodes,
            "batches": self._batches,
            "evicted": self._evicted,
            "csv_failures": self._writer.failures if self._writer else 0,
            "csv_skipped": self._writer.skipped if self._writer else 0,
        }

    def flush(self) -> None:
        """Return when every batch so far is on disk, or has failed to get there."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Finish writing."""
        if self._writer is not None:
            self._writer.close()

    @locked
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
            "evicted": self._evicted,
        }

    @locked
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; collection goes on, also if it had ended then."""
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
        self._evicted = state["evicted"]
        self.collect, self._stop_reason = True, ""

    def _steps(
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


def _row(step: Step) -> tuple[Any, ...]:
    return (step.pid, step.obs, step.act, step.reward, step.env_id, step.step_info)


FinalTransform = ComposeFinalRewardTransforms | FinalRewardTransform
StepTransform = ComposeStepRewardTransforms | StepRewardTransform
SamplingTransform = ComposeSamplingRewardTransforms | SamplingRewardTransform


def _final_stack(given: FinalTransform | None) -> ComposeFinalRewardTransforms:
    if isinstance(given, ComposeFinalRewardTransforms):
        return given
    return ComposeFinalRewardTransforms([given] if given else [])


def _step_stack(given: StepTransform | None) -> ComposeStepRewardTransforms:
    if isinstance(given, ComposeStepRewardTransforms):
        return given
    return ComposeStepRewardTransforms([given] if given else [])


def _sampling_stack(given: SamplingTransform | None) -> ComposeSamplingRewardTransforms:
    if isinstance(given, ComposeSamplingRewardTransforms):
        return given
    return ComposeSamplingRewardTransforms([given] if given else [])
