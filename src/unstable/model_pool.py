"""The model pool: checkpoints and fixed players, their ratings, and opponent sampling."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from unstable.core import ExplorationTracker, Opponent, Rating
from unstable.samplers import RATING_SYSTEMS, RatingSystem, Sampler, make_sampler
from unstable.trackers import Tracker, log_to_run
from unstable.utils.files import write_folder
from unstable.utils.handles import lock_method, send

_LOG = logging.getLogger(__name__)
NOVELTY_DECAY = 0.9
MAINTAIN_EVERY = 256
"""Games after which the active ones are chosen anew: ratings move between checkpoints too."""


class ModelPool:
    """Registers opponents, rates them and draws them.

    Args:
        sample_mode: one of the SAMPLERS, several of them with their shares, or a sampler.
        max_active_lora: how many checkpoints are active at most, the current one included.
        tracker: gets a snapshot after games, at most one every `snapshot_seconds`.
        lag_range: for `lagged`: how many checkpoints old an opponent is, at least and at most.
        ratings: one of RATING_SYSTEMS, or a rating system.
        seed: of the choice of opponents.
        checkpoints: a folder on this machine; adapters that a learner on another one saved below
            the same path are written here too, so that they are there when a run is continued.
    """

    def __init__(
        self,
        sample_mode: str | Mapping[str, float] | Sampler,
        max_active_lora: int,
        tracker: Tracker | None = None,
        lag_range: tuple[int, int] = (1, 7),
        *,
        ratings: str | RatingSystem = "trueskill",
        seed: int = 0,
        snapshot_seconds: float = 1.0,
        checkpoints: str | Path | None = None,
    ) -> None:
        if max_active_lora < 1:
            raise ValueError(f"max_active_lora is {max_active_lora}: the current one is active")
        if not 0 <= lag_range[0] <= lag_range[1]:
            raise ValueError(f"lag_range is {lag_range}: it must be (least, most)")
        self.sample_mode = sample_mode
        self.max_active_lora = max_active_lora
        self.tracker = tracker
        log_to_run("model_pool", tracker)
        self.lag_range = (lag_range[0], lag_range[1])
        self.snapshot_seconds = snapshot_seconds
        self._folder = None if checkpoints is None else Path(checkpoints)
        self._sampler: Sampler = make_sampler(sample_mode)
        self._system: RatingSystem = _rating_system(ratings)
        self._lock = threading.RLock()
        self._random = random.Random(seed)
        self._models: dict[str, Opponent] = {}
        self._files: dict[str, dict[str, bytes]] = {}
        self._checkpoints: dict[str, int] = {}
        self._retired: set[str] = set()
        self._match_counts: Counter[tuple[str, str]] = Counter()
        self._play = ExplorationTracker()
        self._novelty: dict[str, float] = {}
        self._games = 0
        self._unrated = 0
        self._iteration = -1
        self._last_snapshot = -math.inf

    # --- who is there -------------------------------------------------------------------------

    @lock_method
    def add_checkpoint(
        self, path: str | None, iteration: int, files: Mapping[str, bytes] | None = None
    ) -> str:
        """Register a checkpoint as the current one; without a path, the base model.

        It inherits the rating of the one before, half as sure, but never less sure than a newcomer.

        Args:
            path: its folder, on the learner's machine.
            iteration: the learner's step.
            files: what is in the folder, for engines on other machines; kept while it is active.

        Raises:
            OSError: they cannot be written here.
        """
        uid = f"ckpt-{iteration}"
        current = self.current_uid()
        rating = self._system.prior
        if current is not None:
            last = self._models[current].rating
            rating = Rating(last.mu, min(2.0 * last.sigma, rating.sigma))
        if uid in self._models:  # written again after a resume: it keeps its rating
            rating = self._models.pop(uid).rating
            del self._checkpoints[uid]
            self._retired.discard(uid)
        self._models[uid] = Opponent(uid, "checkpoint", path, rating)
        self._number_checkpoints()
        self._iteration = iteration
        _LOG.info("%s is the current checkpoint: %s", uid, path or "the base model")
        if path is not None and files is not None:
            self._files[path] = dict(files)
            if self._folder is not None and Path(path).is_relative_to(self._folder):
                write_folder(path, files)
        self._maintain_active_pool()
        self.snapshot(iteration)
        return uid

    @lock_method
    def add_fixed(self, name: str, prior_mu: float | None = None) -> str:
        """Register a fixed player; a known one keeps its rating."""
        uid = f"fixed-{name}"
        if uid not in self._models:
            prior = self._system.prior
            mu = prior.mu if prior_mu is None else prior_mu
            self._models[uid] = Opponent(uid, "fixed", name, Rating(mu, prior.sigma))
        return uid

    def current_uid(self) -> str | None:
        return next(reversed(self._checkpoints), None)

    def first_uid(self) -> str | None:
        return next(iter(self._checkpoints), None)

    def latest_ckpt(self) -> str | None:
        return self.current_uid()

    def ckpt_path(self, uid: str) -> tuple[str | None, str] | None:
        """Return a model's path or name, and its kind; None if it is not known."""
        model = self._models.get(uid)
        return None if model is None else (model.path_or_name, model.kind)

    @lock_method
    def adapter_files(self, path: str) -> dict[str, bytes] | None:
        """Return the files of a checkpoint by name, from memory or from this machine's disk.

        None if they are in neither, or if no checkpoint has this path.
        """
        if path in self._files:
            return self._files[path]
        if path not in {m.path_or_name for m in self._models.values() if m.kind == "checkpoint"}:
            return None
        try:
            return {file.name: file.read_bytes() for file in Path(path).iterdir() if file.is_file()}
        except OSError:
            return None

    @lock_method
    def retire(self, newest: int, wanted: Collection[str] = ()) -> list[str]:
        """Retire checkpoints that are not worth their disk space: they are never chosen again.

        Of all, the newest, as many again spread evenly over the run, the active and the wanted
        ones stay.

        Args:
            newest: how many of the newest stay.
            wanted: uids of further ones that stay.

        Returns:
            The folders of all that were ever retired.
        """
        learned = [uid for uid in self._checkpoints if self._models[uid].path_or_name is not None]
        spread = 1
        while len(learned) > spread * newest:
            spread *= 2
        kept = {*learned[-newest:], *learned[spread - 1 :: spread], *wanted}
        self._retired |= {
            uid for uid in learned if uid not in kept and not self._models[uid].active
        }
        return [str(self._models[uid].path_or_name) for uid in learned if uid in self._retired]

    # --- what samplers ask --------------------------------------------------------------------

    @property
    def models(self) -> Mapping[str, Opponent]:
        return self._models

    @property
    def rating_scale(self) -> float:
        return self._system.beta

    def lag(self, uid: str) -> int:
        return len(self._checkpoints) - 1 - self._checkpoints[uid]

    def quality(self, uid: str, other: str) -> float:
        return self._system.quality(self._models[uid].rating, self._models[other].rating)

    def novelty(self, uid: str) -> float:
        """Return the share of new play in games against it: 0 to 1; 1 before the first game."""
        return self._novelty.get(uid, 1.0)

    # --- playing ------------------------------------------------------------------------------

    @lock_method
    def sample(self, uid_me: str | None = None) -> str:
        """Choose an opponent; the current checkpoint itself if there is no other.

        Raises:
            LookupError: only fixed players were wanted and there is none, or the pool is empty.
        """
        me = uid_me or self.current_uid()
        if me is None:
            raise LookupError("the pool has no checkpoint: call add_checkpoint first")
        weights = self._sampler.weights(self, me)
        if not weights:
            if self.sample_mode == "fixed":
                raise LookupError("sample_mode 'fixed' needs opponents: call add_fixed")
            return me
        (chosen,) = self._random.choices(list(weights), list(weights.values()))
        return chosen

    def push_game_outcome(
        self,
        uid_me: str,
        uid_opp: str,
        final_reward: float,
        action_seq: Sequence[str],
        env_id: str,
    ) -> None:
        """Record the outcome of a two-player game: the sign of `final_reward`."""
        self.push_outcome((uid_me, uid_opp), (final_reward, 0.0), action_seq, env_id)

    @lock_method
    def push_outcome(
        self,
        uids: Sequence[str],
        rewards: Sequence[float],
        action_seq: Sequence[str],
        env_id: str,
    ) -> None:
        """Record the outcome of a game for any number of players, the learner's first.

        Rewards are of any scale. Games with an unknown model are not rated.
        """
        self._update_ratings(uids, rewards)
        self._register_game(uids, action_seq, env_id)
        self._games += 1
        if self._games % MAINTAIN_EVERY == 0:
            self._maintain_active_pool()
        if time.monotonic() - self._last_snapshot >= self.snapshot_seconds:
            self.snapshot(self._iteration)

    @lock_method
    def snapshot(self, iteration: int | None = None) -> dict[str, Any]:
        self._last_snapshot = time.monotonic()
        ratings = {
            uid: {"mu": model.rating.mu, "sigma": model.rating.sigma, "active": model.active}
            for uid, model in self._models.items()
        }
        exploration = self._play.get_metrics()
        if self.tracker is not None:
            match_counts = dict(self._match_counts)
            send(self.tracker.log_model_pool, match_counts, ratings, exploration)
        return {
            "iteration": self._iteration if iteration is None else iteration,
            "match_counts": [[*pair, count] for pair, count in self._match_counts.items()],
            "ratings": ratings,
            "exploration": exploration,
            "novelty": dict(self._novelty),
            "unrated": self._unrated,
        }

    # --- keeping ------------------------------------------------------------------------------

    @lock_method
    def state_dict(self) -> dict[str, Any]:
        version, internal, gauss = self._random.getstate()
        return {
            "models": [
                [m.uid, m.kind, m.path_or_name, m.rating.mu, m.rating.sigma, m.active]
                for m in self._models.values()
            ],
            "match_counts": [[*pair, count] for pair, count in self._match_counts.items()],
            "play": self._play.state_dict(),
            "novelty": dict(self._novelty),
            "games": self._games,
            "unrated": self._unrated,
            "iteration": self._iteration,
            "retired": [uid for uid in self._checkpoints if uid in self._retired],
            "random": [version, list(internal), gauss],
        }

    @lock_method
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._models = {
            uid: Opponent(uid, kind, path, Rating(mu, sigma), active)
            for uid, kind, path, mu, sigma, active in state["models"]
        }
        self._number_checkpoints()
        self._match_counts = Counter({(a, b): count for a, b, count in state["match_counts"]})
        self._play.load_state_dict(state["play"])
        self._novelty = dict(state["novelty"])
        self._games, self._unrated = state["games"], state["unrated"]
        self._iteration = state["iteration"]
        self._retired = set(state.get("retired", ()))
        version, internal, gauss = state["random"]
        self._random.setstate((version, tuple(internal), gauss))

    def _number_checkpoints(self) -> None:
        kinds = (uid for uid, model in self._models.items() if model.kind == "checkpoint")
        self._checkpoints = {uid: number for number, uid in enumerate(kinds)}

    def _update_ratings(self, uids: Sequence[str], rewards: Sequence[float]) -> None:
        """Rate a game of all seats; a model with several seats gets the mean of their ratings.

        Its mean reward would not do: of three who are equally strong, each wins one game of three,
        and the two seats together would seem the stronger. A game of a model against itself says
        nothing about how strong it is.
        """
        if not all(uid in self._models for uid in uids) or not all(map(math.isfinite, rewards)):
            self._unrated += 1
            return
        seats: dict[str, list[Rating]] = {uid: [] for uid in uids}
        if len(seats) < 2:
            return
        rated = self._system.rate([self._models[uid].rating for uid in uids], rewards)
        for uid, rating in zip(uids, rated, strict=True):
            seats[uid].append(rating)
        for uid, ratings in seats.items():
            mu, sigma = (fmean(getattr(r, name) for r in ratings) for name in ("mu", "sigma"))
            self._models[uid].rating = Rating(mu, sigma)

    def _register_game(self, uids: Sequence[str], action_seq: Sequence[str], env_id: str) -> None:
        me, *others = uids
        new = self._play.add_game(action_seq, env_id)
        for uid in set(others):
            self._match_counts[(me, uid) if me <= uid else (uid, me)] += 1
            before = self._novelty.get(uid, new)
            self._novelty[uid] = NOVELTY_DECAY * before + (1.0 - NOVELTY_DECAY) * new

    def _maintain_active_pool(self) -> None:
        current = self.current_uid()
        others = [uid for uid in self._checkpoints if uid not in (current, *self._retired)]
        others.sort(key=lambda uid: self._sampler.keep(self, uid), reverse=True)
        active = {current, *others[: self.max_active_lora - 1]}
        for uid in self._checkpoints:
            self._models[uid].active = uid in active
        needed = {self._models[uid].path_or_name for uid in active if uid is not None}
        self._files = {path: files for path, files in self._files.items() if path in needed}


def _rating_system(choice: str | RatingSystem) -> RatingSystem:
    if not isinstance(choice, str):
        return choice
    if choice not in RATING_SYSTEMS:
        raise ValueError(f"no rating system {choice!r}; there are {', '.join(RATING_SYSTEMS)}")
    return RATING_SYSTEMS[choice]()
