"""The metrics of a run: collected, averaged and written."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from unstable.core import BaseTracker, Trajectory, outcome
from unstable.evaluation import Evaluation, parse_iteration, wilson
from unstable.utils.files import to_json, write_whole
from unstable.utils.handles import call, inside_ray_actor, lock_method
from unstable.utils.logging import is_power_of_ten, setup_logger, summarize_error
from unstable.writers import WRITERS, MetricsWriter, Transcripts, format_transcript, truncate_lines

_LOG = logging.getLogger(__name__)
WINDOW = 512
MAX_TEXT = 20_000
"""Characters of a game's transcript that the dashboard is given."""


class Tracker(BaseTracker):
    """Collects the metrics of every part of a run.

    Means over the last 512 values are written every FLUSH_EVERY seconds, and what the learner says
    at each of its steps, to `metrics.jsonl`, TensorBoard, and where it is asked for to W&B or
    trackio. What the dashboard shows is also in `interface.json`, so that it can be seen later.

    Args:
        run_name: the run's name, as dashboards show it.
        wandb_project: metrics go to W&B too, to this project.
        trackio_project: metrics go to trackio too.
        output_dir: below it, a folder for the run is made.
        run_dir: the run's folder itself, to continue in one that exists.
        writers: which of WRITERS are always written.
        resume_step: the learner's step that the run continues from; what was written beyond it
            is dropped, but only when something new is written or the state has been loaded.
        flush_every: seconds between writes; else FLUSH_EVERY, as it is set where the actor is made.
    """

    FLUSH_EVERY = 64.0
    CARRIED: ClassVar[dict[str, str]] = {"FLUSH_EVERY": "flush_every"}
    """Attributes that whoever makes an actor of this class may set, and the arguments for them."""

    def __init__(
        self,
        run_name: str,
        wandb_project: str | None = None,
        *,
        trackio_project: str | None = None,
        output_dir: str | Path = "outputs",
        run_dir: str | Path | None = None,
        writers: Sequence[str] = ("jsonl", "tensorboard"),
        resume_step: int | None = None,
        flush_every: float | None = None,
    ) -> None:
        super().__init__(run_name, output_dir, run_dir)
        if flush_every is not None:
            self.FLUSH_EVERY = flush_every
        if inside_ray_actor():
            setup_logger("tracker", self.get_log_dir())
        self._lock = threading.RLock()
        self.use_wandb = wandb_project is not None
        self._m: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._buffer: dict[str, float] = {}
        self._n: defaultdict[str, int] = defaultdict(int)
        self._interface_stats: dict[str, Any] = {
            "gpu_tok_s": {}, "TS": {}, "exploration": {}, "match_counts": {}, "inference": {},
        }  # fmt: skip
        self._evaluations: dict[tuple[str, str, str], Evaluation] = {}
        self._changed: set[str] = set()
        self._exploitability: dict[tuple[str, str], float] = {}
        self._shown: dict[str, tuple[str, str]] = {}
        """Opponent and newest checkpoint by the prefix of their means."""
        self._step = max(0, resume_step or 0)
        self._last_flush = time.monotonic()
        self.write_failures = 0
        """Writes that did not reach a file or a server."""
        self._projects = dict.fromkeys(writers, run_name)
        self._projects |= {"wandb": wandb_project} if wandb_project is not None else {}
        self._projects |= {"trackio": trackio_project} if trackio_project is not None else {}
        self._writers: list[MetricsWriter] = []
        self._games_path = Path(self.get_eval_dir()) / "games.jsonl"
        self._exploitability_path = Path(self.get_eval_dir()) / "exploitability.jsonl"
        self._transcripts: Transcripts | None = None
        self._resume_step = resume_step
        if resume_step is None or resume_step < 0:
            self._open()
        self._latest_transcript: Mapping[str, Any] | None = None

    # --- what parts of the run say ------------------------------------------------------------

    @lock_method
    def add_trajectory(
        self, traj: Trajectory, player_id: int, env_id: str, *, new_game: bool = True
    ) -> None:
        """Record a training game from one seat; `new_game`: no other seat of it came before."""
        prefix = f"collection-{env_id}"
        self._put_outcome(prefix, traj.final_rewards, player_id)
        self._put(f"{prefix}/Reward (pid={player_id})", traj.final_rewards[player_id])
        self._put(f"{prefix}/Game Length", traj.num_turns)
        for obs, action in zip(traj.obs, traj.actions, strict=True):
            self._put(f"{prefix}/Observation Length (char)", len(obs))
            self._put(f"{prefix}/Response Length (char)", len(action))
        for tokens in traj.completion_ids:
            self._put(f"{prefix}/Response Length (tokens)", len(tokens))
        for feedback in traj.format_feedbacks:
            good = bool(feedback.get("correct_answer_format"))
            self._put(f"{prefix}/Format Success Rate", good)
            self._put(f"{prefix}/Invalid Move Rate", bool(feedback.get("invalid_move")))
        self._count(prefix, int(new_game))

    @lock_method
    def add_eval_episode(
        self,
        rewards: Mapping[int, float],
        player_id: int,
        env_id: str,
        ckpt_uid: str = "",
        opponent: str = "",
        *,
        seed: int | None = None,
        num_turns: int | None = None,
        reason: str = "",
        invalid: bool = False,
        apart: bool = False,
    ) -> None:
        """Record an evaluation game.

        Args:
            rewards: by seat.
            player_id: the learner's seat.
            env_id: which game.
            ckpt_uid: who played it.
            opponent: against whom.
            seed: of the game.
            num_turns: of all players.
            reason: why it ended.
            invalid: the learner was out by an invalid move.
            apart: the means of this opponent go by a name of their own, since another one has
                `evaluation-<env_id>`.
        """
        key = (ckpt_uid, env_id, opponent)
        if key not in self._evaluations:
            self._evaluations[key] = Evaluation(*key)
            self._evaluations[key].exploitability = self._exploitability.get((ckpt_uid, env_id))
        self._evaluations[key].add(rewards, player_id, invalid=invalid)
        prefix = f"evaluation-{env_id} against {opponent}" if apart else f"evaluation-{env_id}"
        _, shown = self._shown.setdefault(prefix, (opponent, ckpt_uid))
        if parse_iteration(ckpt_uid) > parse_iteration(shown):
            self._forget(f"{prefix}/")
            self._shown[prefix] = (opponent, shown := ckpt_uid)
        if ckpt_uid == shown:  # games of older ones are still in flight: they count for those
            self._put_outcome(prefix, rewards, player_id)
        self._append(
            self._games_path,
            {
                "time": round(time.time(), 3), "step": self._step, "ckpt_uid": ckpt_uid,
                "env_id": env_id, "opponent": opponent, "player_id": player_id, "seed": seed,
                "rewards": {str(seat): reward for seat, reward in rewards.items()},
                "num_turns": num_turns, "reason": reason, "invalid": invalid,
            },
        )  # fmt: skip
        self._count(f"evaluation-{env_id}")

    @lock_method
    def log_exploitability(self, ckpt_uid: str, env_id: str, value: float) -> None:
        """Record what a best response gains against a checkpoint."""
        self._exploitability[ckpt_uid, env_id] = value
        for (uid, env, _), evaluation in self._evaluations.items():
            if (uid, env) == (ckpt_uid, env_id):
                evaluation.exploitability = value
        self._append(
            self._exploitability_path,
            {
                "time": round(time.time(), 3), "step": self._step, "ckpt_uid": ckpt_uid,
                "env_id": env_id, "exploitability": value,
            },
        )  # fmt: skip
        self._buffer[f"evaluation-{env_id}/Exploitability"] = value
        self._flush_if_due()

    @lock_method
    def add_transcript(self, record: Mapping[str, Any]) -> None:
        """Record a game of `writers.make_transcript`, for people to look at."""
        transcript = {"time": round(time.time(), 3), "step": self._step, **record}
        self._latest_transcript = transcript
        self._tolerate(self._open().add, transcript)

    @lock_method
    def log_inference(
        self, actor: str, gpu_ids: Sequence[int | str], stats: Mapping[str, float]
    ) -> None:
        for name, value in stats.items():
            self._put(f"inference/{actor}/{name}", value)
        self._interface_stats["inference"][actor] = dict(stats)
        for gpu in gpu_ids:
            self._interface_stats["gpu_tok_s"][gpu] = stats.get("tok_s", 0.0)
        self._count("inference")

    @lock_method
    def log_learner(self, info: Mapping[str, float]) -> None:
        """Record a learner's step; it is written at once.

        Where it says no `reward`, the mean of the latest training games goes with it.
        """
        values = {f"learner/{name}": float(value) for name, value in info.items()}
        reward = self._mean_over_envs("Reward")
        if reward is not None:
            values.setdefault("learner/reward", reward)
        for name, value in values.items():
            self._m[name].append(value)
        self._step = int(info.get("step", self._step))
        self._write(values)
        self._count("learner")

    @lock_method
    def log_model_pool(
        self,
        match_counts: Mapping[tuple[str, str], int],
        ts_dict: Mapping[str, Mapping[str, float]],
        exploration: Mapping[str, Mapping[str, float]],
    ) -> None:
        self._interface_stats["match_counts"] = dict(match_counts)
        self._interface_stats["TS"] = {uid: dict(rating) for uid, rating in ts_dict.items()}
        self._interface_stats["exploration"] = {env: dict(v) for env, v in exploration.items()}
        for env_id, values in exploration.items():
            for name, value in values.items():
                self._buffer[f"exploration/{env_id}/{name}"] = value
        self._flush_if_due()

    @lock_method
    def log_scalars(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._put(name, value)
        self._flush_if_due()

    @lock_method
    def log_counts(self, values: Mapping[str, int]) -> None:
        for name, count in values.items():
            self._m[name].clear()  # the newest says it all
            self._put(name, count)
        self._flush_if_due()

    # --- what others ask ----------------------------------------------------------------------

    @lock_method
    def get_interface_info(self) -> dict[str, Any]:
        collected = {
            name: self._mean_over_envs(name)
            for name in ("Game Length", "Format Success Rate", "Invalid Move Rate", "Win Rate",
                         "Reward", "Response Length (char)")
        }  # fmt: skip
        learner = {
            name.removeprefix("learner/"): list(values)
            for name, values in self._m.items()
            if name.startswith("learner/") and values
        }
        latest = self._latest_transcript
        apart = ("learner/", "inference/", "collection-", "evaluation-")
        scalars = {
            name: values[-1]
            for name, values in self._m.items()
            if values and not name.startswith(apart)
        }
        return {
            **self._interface_stats,
            "latest_game": "" if latest is None else format_transcript(latest)[-MAX_TEXT:],
            **{name: value for name, value in collected.items() if value is not None},
            "run_name": self.run_name,
            "step": self._step,
            "learner": learner,
            "scalars": scalars,
            "evaluation": self.get_evaluations(),
            "counts": dict(self._n),
            "write_failures": self.write_failures,
        }

    @lock_method
    def get_evaluations(self) -> list[dict[str, Any]]:
        """Return evaluations with their intervals, in the order of the first games."""
        return [evaluation.summary() for evaluation in self._evaluations.values()]

    @lock_method
    def get_metrics(self) -> dict[str, float]:
        return {**self._buffer, **self._agg("")}

    # --- writing ------------------------------------------------------------------------------

    def _open(self) -> Transcripts:
        """Open the files, at the step that the run continues from."""
        if self._transcripts is None:
            self._writers += [
                WRITERS[name](self.run_dir, project, self.run_name, self._resume_step)
                for name, project in self._projects.items()
            ]
            for path in (self._games_path, self._exploitability_path):
                truncate_lines(path, self._resume_step)
            self._transcripts = Transcripts(self.run_dir, self._resume_step)
        return self._transcripts

    @lock_method
    def flush(self) -> None:
        self._last_flush = time.monotonic()
        for prefix in sorted(self._changed):
            self._buffer.update(self._agg(f"{prefix}/"))
        self._changed.clear()
        self._buffer.update(self._evaluation_metrics())
        if self._buffer:
            self._write(self._buffer)
        self._buffer = {}
        self._tolerate(self._write_interface)

    @lock_method
    def close(self) -> None:
        if self._transcripts is None:  # the run could not be continued: it stays as it was
            return
        self.flush()
        for writer in self._writers:
            self._tolerate(writer.close)
        self._writers = []

    @lock_method
    def state_dict(self) -> dict[str, Any]:
        return {
            "windows": {name: list(values) for name, values in self._m.items()},
            "counts": dict(self._n),
            "step": self._step,
            "evaluations": [asdict(e) for e in self._evaluations.values()],
            "shown": {prefix: list(pair) for prefix, pair in self._shown.items()},
        }

    @lock_method
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._m.clear()
        for name, values in state["windows"].items():
            self._m[name].extend(values)
        self._n.clear()
        self._n.update(state["counts"])
        self._step = state["step"]
        self._evaluations = {
            (e["ckpt_uid"], e["env_id"], e["opponent"]): Evaluation(**e)
            for e in state["evaluations"]
        }
        self._shown = {prefix: (pair[0], pair[1]) for prefix, pair in state["shown"].items()}
        if not self._shown:  # of whom means are, older versions did not say
            self._forget("evaluation-")
        self._open()

    def _put(self, key: str, value: float) -> None:
        self._m[key].append(float(value))
        self._changed.add(key.split("/", 1)[0])

    def _agg(self, prefix: str) -> dict[str, float]:
        return {
            name: fmean(values)
            for name, values in self._m.items()
            if values and name.startswith(prefix)
        }

    def _put_outcome(self, prefix: str, rewards: Mapping[int, float], player_id: int) -> None:
        self._put(f"{prefix}/Reward", rewards[player_id])
        if len(rewards) == 1:  # a single-player game reports the reward alone
            return
        result = outcome(rewards, player_id)
        self._put(f"{prefix}/Win Rate", result > 0)
        self._put(f"{prefix}/Loss Rate", result < 0)
        self._put(f"{prefix}/Draw Rate", result == 0)

    def _count(self, prefix: str, more: int = 1) -> None:
        self._n[prefix] += more
        self._flush_if_due()

    def _flush_if_due(self) -> None:
        if time.monotonic() - self._last_flush >= self.FLUSH_EVERY:
            self.flush()

    def _evaluation_metrics(self) -> dict[str, float]:
        """Return the interval of the win rate of the newest checkpoint in each environment."""
        metrics: dict[str, float] = {}
        for prefix, (opponent, uid) in self._shown.items():
            env_id = prefix.removeprefix("evaluation-").removesuffix(f" against {opponent}")
            evaluation = self._evaluations[uid, env_id, opponent]
            metrics[f"{prefix}/Games"] = float(evaluation.games)
            if evaluation.players > 1:
                low, high = wilson(evaluation.wins, evaluation.games)
                metrics[f"{prefix}/Win Rate (low)"] = low
                metrics[f"{prefix}/Win Rate (high)"] = high
        return metrics

    def _mean_over_envs(self, name: str) -> float | None:
        values = [
            value
            for key, window in self._m.items()
            if key.startswith("collection-") and key.endswith(f"/{name}")
            for value in window
        ]
        return fmean(values) if values else None

    def _forget(self, prefix: str) -> None:
        for name in [name for name in self._m if name.startswith(prefix)]:
            del self._m[name]

    def _write(self, values: Mapping[str, float]) -> None:
        self._open()
        for writer in self._writers:
            self._tolerate(writer.write, values, self._step)

    def _append(self, path: Path, record: Mapping[str, Any]) -> None:
        def append() -> None:
            self._open()
            with path.open("a", encoding="utf-8") as stream:
                stream.write(to_json(record) + "\n")

        self._tolerate(append)

    def _write_interface(self) -> None:
        info = self.get_interface_info()
        info["match_counts"] = [[*pair, n] for pair, n in info["match_counts"].items()]
        write_whole(self.run_dir / "interface.json", to_json(info) + "\n")

    def _tolerate(self, function: Any, *args: Any) -> None:
        """Call a function whose failure costs metrics, never the run; failures are counted."""
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001
            self.write_failures += 1
            if is_power_of_ten(self.write_failures):
                words = summarize_error(error)
                _LOG.warning("metrics not written, %d times so far: %s", self.write_failures, words)


def log_to_run(name: str, tracker: Tracker | None) -> None:
    """Log to the run's folder, within a Ray actor."""
    if tracker is not None and inside_ray_actor():
        setup_logger(name, call(tracker.get_log_dir))
