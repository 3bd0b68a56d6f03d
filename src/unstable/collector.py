"""Plays the games of a run: training games for the buffer, evaluation games for the tracker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from unstable.actor import ActorPool, Timeouts, VLLMActor, start_actors
from unstable.buffer import StepBuffer
from unstable.core import EpisodeResult, PlaySpec, Trajectory
from unstable.engines import EngineError, Sampling
from unstable.episodes import (
    PlayerFactory,
    compute_exploitability,
    find_learner_seats,
    find_tokenizer,
    play_episode,
)
from unstable.evaluation import Evaluation
from unstable.games import GameError
from unstable.games.players import FIRST_CHECKPOINT, RANDOM_LEGAL, RandomLegal
from unstable.games.rules import compact_view
from unstable.matchmaking import Env, Episode, GamesInFlight, Job, Matchmaker
from unstable.model_pool import ModelPool
from unstable.trackers import Tracker
from unstable.utils.handles import call_within, inside_ray_actor, send
from unstable.utils.interrupts import check_interrupt
from unstable.utils.logging import is_power_of_ten, setup_logger, summarize_error
from unstable.utils.plugins import load_plugins
from unstable.utils.templates import add_templates
from unstable.writers import make_transcript

_LOG = logging.getLogger(__name__)
POLL = 0.2
"""Seconds between polls of the buffer, when nothing else happens."""
REPORT_SECONDS = 10.0
PART_TIMEOUT = 120.0
"""Seconds for the buffer to answer."""
SETTLE_EVERY = 128
"""Games after which to wait for the tracker, so that calls cannot pile up."""
TRANSCRIBED = 32
"""Training games of each checkpoint that are transcribed, the first ones."""
TRAINING_COUNTS = ("games", "failed", "filtered", "turns", "invalid")
LOSSES = ("lost_failed", "lost_filtered", "lost_unfinished")
"""Why steps do not reach the buffer: their game failed, was filtered, or was dropped."""
COUNTS = (*TRAINING_COUNTS, "eval_games", "eval_failed", "dropped", "steps", *LOSSES)
FAILURES = (GameError, EngineError)
"""Errors of a game that do not end the run."""


class CollectionError(RuntimeError):
    """Too many games failed in a row; the message has the last reason."""


class Collector:
    """Plays many games at once, as coroutines of one process.

    `play` and `evaluate` play a given number of games, and what comes of them depends on the seed
    and not on timing. `collect` plays until the buffer is stopped, or after `finish` until the last
    checkpoint is evaluated. They are coroutines; of the Ray actor they are called like any method.

    Args:
        num_actors: how many VLLMActors are started, where Ray runs; else there is one, here.
        step_buffer: gets the training games.
        model_pool: has the checkpoints, chooses opponents and gets outcomes.
        tracker: gets the games' numbers.
        vllm_config: for the actors: `model_name`, `max_tokens`, `lora_config`...
        training_envs: (environment, number of players, prompt template) of training games.
        evaluation_envs: the same, of evaluation games.
        evaluation_opponent: a name in games.players.PLAYERS, a folder with a model or adapter,
            a model's name at an OpenAI-compatible endpoint, or `first-checkpoint`; or several.
        max_eval_games_per_ckpt: evaluation games per checkpoint and environment.
        filter_opponent_invalid: a seat learns nothing from games that another's invalid move ended.
        action_extraction: key of how the move is found in what a model writes.
        actors: VLLMActor objects or handles, instead of starting some.
        tokenizer: of the model; loaded by `model_name` where it is not given.
        seed: of environments, seats, games and samples.
        compact_views: models run here see short boards instead of TextArena's text.
        error_allowance: how many invalid moves in a row a player may take back.
        group_size: training games that begin alike.
        random_opening_moves: up to so many first moves of a training game are random legal ones.
        failures_in_a_row: that many failed training games end collection.
        request_timeout: seconds a model may take to answer.
        start_timeout: seconds an actor may take to start.
        templates: prompt templates of your own, by name: the fields of `utils.templates.Template`.
        plugins: modules to import first, for the games that they register.
    """

    def __init__(
        self,
        num_actors: int,
        step_buffer: StepBuffer,
        model_pool: ModelPool,
        tracker: Tracker | None,
        vllm_config: Mapping[str, Any],
        training_envs: Sequence[Sequence[Any]],
        evaluation_envs: Sequence[Sequence[Any]] = (),
        evaluation_opponent: str | Sequence[str] = "random-legal",
        max_eval_games_per_ckpt: int = 32,
        filter_opponent_invalid: bool = False,
        action_extraction: str = "default",
        *,
        actors: Sequence[VLLMActor] | None = None,
        tokenizer: Any = None,
        seed: int = 0,
        compact_views: bool = False,
        error_allowance: int = 0,
        group_size: int = 1,
        random_opening_moves: int = 0,
        failures_in_a_row: int = 20,
        request_timeout: float = 600.0,
        start_timeout: float = 600.0,
        templates: Mapping[str, Mapping[str, Any]] | None = None,
        plugins: Sequence[str] = (),
    ) -> None:
        load_plugins(plugins)
        add_templates(templates or {})
        self.matches = Matchmaker(
            model_pool, training_envs, evaluation_envs, evaluation_opponent, action_extraction,
            seed, group_size,
        )  # fmt: skip
        _check_games(self.matches, compact_views, random_opening_moves)
        if training_envs:
            # Handles of Ray actors do not say theirs.
            own = [getattr(actor, "sampling_params", None) for actor in actors or ()]
            _check_sampling([Sampling.of(vllm_config), *filter(None, own)])
        self.num_actors, self.vllm_config = num_actors, dict(vllm_config)
        self.max_eval_games_per_ckpt = max_eval_games_per_ckpt
        self.filter_opponent_invalid = filter_opponent_invalid
        self.compact_views, self.error_allowance = compact_views, error_allowance
        self.random_opening_moves = random_opening_moves
        self.failures_in_a_row = failures_in_a_row
        self.timeouts = Timeouts(request_timeout, start_timeout)
        self.flight = GamesInFlight()
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self._buffer, self._pool, self._tracker = step_buffer, model_pool, tracker
        self._actors, self._tokenizer = actors, tokenizer
        self._factory: PlayerFactory | None = None
        self._eval_started: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._streak, self._allowed_streak, self._workers = 0, failures_in_a_row, 0
        self._finishing = False
        self._last_failure = ""
        self._transcribed: tuple[str | None, int] = (None, 0)
        self._reported: Counter[str] = Counter()
        self._reported_at = time.monotonic()
        self._solving: dict[asyncio.Task[float | None], str] = {}
        """Whose exploitability is being computed."""

    # --- a given number of games --------------------------------------------------------------

    async def play(self, games: int, num_workers: int = 256) -> dict[str, int]:
        """Play training games, and another one for each that fails.

        Results go to buffer, pool and tracker in the order of the games.

        Returns:
            What was counted in this call: `games`, `failed`, `filtered`, `turns`, `invalid`.

        Raises:
            CollectionError: too many failed in a row.
        """
        if games % self.matches.group_size:
            raise ValueError(f"{games} games are not a multiple of {self.matches.group_size}")
        before = self.counts.copy()
        await self._ready(num_workers)
        send(self._buffer.complete_groups)  # nothing is in flight
        while (missing := games - (self.counts["games"] - before["games"])) > 0:
            uid = await self.matches.current()
            jobs: list[Job] = []
            while len(jobs) < missing:
                jobs += await self.matches.training_group(uid)
            try:
                async for episode in self.flight.play_in_order(jobs, self._play, num_workers):
                    self._handle_finished(episode)
            finally:
                await self._drop()
        return {name: self.counts[name] - before[name] for name in TRAINING_COUNTS}

    async def evaluate(
        self,
        games_per_env: int,
        num_workers: int = 256,
        ckpt_uid: str | None = None,
    ) -> list[dict[str, Any]]:
        """Play a checkpoint against the evaluation opponents, in turn from each seat.

        Game by game all checkpoints get the same seeds and seats.

        Returns:
            Per environment and opponent the shares with intervals, `games`, `failed`, the last
            `error`, and the policy's `exploitability` where it can be computed. An environment
            where game after game fails is given up; it then has fewer games.
        """
        uid = ckpt_uid or await self.matches.current()
        await self._ready(num_workers)
        rows = []
        solved: dict[str, float | None] = {}
        for env, opponent in await self.matches.evaluations(uid):
            jobs = [
                await self.matches.evaluation(uid, env, opponent, number)
                for number in range(games_per_env)
            ]
            evaluation = Evaluation(uid, env[0], opponent)
            failed = await self._evaluate(jobs, num_workers, evaluation)
            if env[0] not in solved:
                solved[env[0]] = await self._exploitability(uid, env)
            evaluation.exploitability = solved[env[0]]
            rows.append({**evaluation.summary(), **failed})
        return rows

    async def _exploitability(self, uid: str, env: Env) -> float | None:
        """Compute the exploitability of a checkpoint; None: it cannot be computed."""
        env_id, _, template = env
        if not self.compact_views or self.error_allowance:
            return None
        assert self._factory is not None
        agent = await self.matches.agent(uid, template)
        try:
            gained = await compute_exploitability(env_id, agent, self._factory)
        except EngineError as error:
            _LOG.warning("no exploitability of %s in %s: %s", uid, env_id, error)
            return None
        if gained is not None and self._tracker is not None:
            send(self._tracker.log_exploitability, uid, env_id, gained)
        return gained

    async def _evaluate(
        self, jobs: Sequence[Job], num_workers: int, evaluation: Evaluation
    ) -> dict[str, Any]:
        failed, streak, error = 0, 0, ""
        try:
            async for episode in self.flight.play_in_order(jobs, self._play, num_workers):
                job, failure = self._handle_finished(episode)
                if failure is None:
                    result, seat = episode.result(), job.spec.player_id
                    invalid = result.traj.left_by_invalid
                    evaluation.add(result.final_rewards, seat, invalid=invalid)
                    streak = 0
                else:
                    failed, streak, error = failed + 1, streak + 1, str(failure)
                if streak >= self.failures_in_a_row:
                    break
        finally:
            await self._drop()
        return {"failed": failed, "error": error}

    # --- without end --------------------------------------------------------------------------

    async def collect(self, num_workers: int, num_eval_workers: int = 0) -> dict[str, int]:
        """Keep training and evaluation games in flight until the buffer is stopped.

        While the buffer is full no training game is started. Games that are in flight at the end
        are dropped. After `finish` it also ends by itself.

        Returns:
            What was counted since the collector began.

        Raises:
            CollectionError: too many training games failed in a row.
            NoActorLeftError: every actor has died.
        """
        handled, self._finishing = 0, False
        try:
            await self._ready(num_workers)
            send(self._buffer.complete_groups)  # nothing is in flight
            while not await call_within(PART_TIMEOUT, self._buffer.stopped):
                await self._top_up(num_workers, num_eval_workers)
                if self._finishing and not len(self.flight) and not self._solving:
                    await self._settle()
                    break
                await self.flight.wait(POLL)
                for episode in self.flight.pop_finished():
                    self._handle_finished(episode)
                    handled += 1
                if handled >= SETTLE_EVERY:
                    await self._settle()
                    handled = 0
                if time.monotonic() - self._reported_at > REPORT_SECONDS:
                    self._report()
        except Exception as error:
            _LOG.exception("collection ended")
            # Who waits for data has to learn that none will come.
            send(self._buffer.stop, summarize_error(error))
            raise
        finally:
            await self._drop()
        return dict(self.counts)

    def finish(self) -> None:
        """Make `collect` stop training games, complete the newest evaluation, and end."""
        self._finishing = True

    async def _top_up(self, num_workers: int, num_eval_workers: int) -> None:
        """Start games in the places that are free now.

        Not those that become free meanwhile: where games end as fast as opponents are drawn, it
        would never handle the games that have ended.
        """
        uid = await self.matches.current()
        if self._finishing:
            self._count_dropped(await self.flight.drop("train"))
            # All places are free for evaluation, if any is wanted.
            num_eval_workers = max(num_workers, num_eval_workers) if num_eval_workers else 0
            num_workers = 0
        under_way, size = self.flight.count_running("train"), self.matches.group_size
        groups = (num_workers - under_way) // size
        if not under_way and num_workers:  # a group may be larger than what there is room for
            groups = max(1, groups)
        if groups > 0 and await call_within(PART_TIMEOUT, self._buffer.continue_collection):
            for _ in range(groups):
                await self._submit_train()
        for _ in range(num_eval_workers - self.flight.count_running("eval")):
            if not await self._submit_eval(uid):
                break

    async def _submit_train(self) -> None:
        for job in await self.matches.training_group(await self.matches.current()):
            self.flight.start(job, self._play(job))

    async def _submit_eval(self, ckpt_uid: str) -> bool:
        started = self._eval_started[ckpt_uid]
        chosen = await self.matches.evaluations(ckpt_uid)
        pairs = {f"{env[0]} {who}": (env, who) for env, who in chosen}
        key = min(pairs, key=lambda key: started[key], default=None)
        if key is None or started[key] >= self.max_eval_games_per_ckpt:
            return False
        env, opponent = pairs[key]
        if not started.keys() & {name for name, (one, _) in pairs.items() if one == env}:
            solving = asyncio.create_task(self._exploitability(ckpt_uid, env))
            self._solving[solving] = ckpt_uid
            solving.add_done_callback(self._solving.pop)
        job = await self.matches.evaluation(ckpt_uid, env, opponent, started[key])
        started[key] += 1
        self.flight.start(job, self._play(job))
        return True

    # --- one game -----------------------------------------------------------------------------

    async def _play(self, job: Job) -> EpisodeResult:
        assert self._factory is not None
        spec, factory = job.spec, self._factory
        return await play_episode(
            spec,
            factory.players(spec),
            view=factory.view(spec) if self.compact_views else None,
            error_allowance=self.error_allowance,
            random_opening_moves=self.random_opening_moves if job.meta.type == "train" else 0,
            transcribe=self._is_transcribed(job),
            recorded=job.recorded,
        )

    def _is_transcribed(self, job: Job) -> bool:
        """Return whether people can look at this game later: evaluation, and some of training.

        Which ones is decided at the start of games, so that short ones are not preferred.
        """
        if job.meta.type == "eval":
            return True
        uid, games = self._transcribed
        if uid != job.meta.ckpt_uid:
            games = 0
        self._transcribed = (job.meta.ckpt_uid, games + 1)
        return games < TRANSCRIBED

    def _handle_finished(self, ref: Episode) -> tuple[Job, BaseException | None]:
        """Remove a finished game from flight, and pass on its result or failure."""
        job, failure = self.flight.take(ref), ref.exception()
        if failure is not None and not isinstance(failure, FAILURES):
            raise failure
        if failure is not None:
            self._post_failure(job, failure)
        elif job.meta.type == "train":
            self._post_train(job, ref.result())
        else:
            self._post_eval(job, ref.result())
        return job, failure

    def _post_train(self, job: Job, result: EpisodeResult) -> None:
        self._streak, self._allowed_streak = 0, self.failures_in_a_row + 2 * self._workers
        self.counts["games"] += 1
        self.counts["turns"] += result.num_turns
        self.counts["invalid"] += result.traj.ended_by_invalid is not None
        self._push_transcript(job, result, self.counts["games"])
        seats = _find_played_seats(job.spec, result)
        learning = self._learning_seats(seats)
        env_id, group = job.spec.env_id, job.spec.group
        taught = sum(len(trajectory.actions) for trajectory in learning.values())
        self.counts["steps"] += job.steps
        self.counts["lost_filtered"] += job.steps - taught
        if taught or group:
            send(self._buffer.add_game, list(learning.values()), env_id, list(learning), group)
        if not learning:
            self.counts["filtered"] += 1
            return
        # Every seat of ours, whether it moved or not: half of a zero-sum game would say that a
        # policy wins or loses against itself.
        for number, (seat, trajectory) in enumerate(seats.items()):
            if self._tracker is not None:
                send(self._tracker.add_trajectory, trajectory, seat, env_id, new_game=number == 0)
        self._push_outcome(job, result)

    def _learning_seats(self, seats: Mapping[int, Trajectory]) -> dict[int, Trajectory]:
        """Return the seats to learn from.

        With the filter, a seat whose game another's invalid move ended has nothing to learn from
        it; of a mirror game, the seat that made the move does.
        """
        filtering = self.filter_opponent_invalid
        return {
            seat: t
            for seat, t in seats.items()
            if not filtering or t.ended_by_invalid in (None, seat)
        }

    def _push_outcome(self, job: Job, result: EpisodeResult) -> None:
        spec, me = job.spec, job.meta.ckpt_uid or ""
        others = [seat for seat in range(spec.num_players) if seat != spec.player_id]
        uids = [me, *[job.meta.opponent_uid or ""] * len(others)]
        rewards = [result.final_rewards[seat] for seat in (spec.player_id, *others)]
        send(self._pool.push_outcome, uids, rewards, result.action_seq, spec.env_id)

    def _push_transcript(self, job: Job, result: EpisodeResult, number: int) -> None:
        if result.moves and self._tracker is not None:
            record = make_transcript(job.spec, job.meta, result, number)
            send(self._tracker.add_transcript, record)

    def _post_eval(self, job: Job, result: EpisodeResult) -> None:
        self.counts["eval_games"] += 1
        if self._tracker is not None:
            spec, meta = job.spec, job.meta
            send(
                self._tracker.add_eval_episode, result.final_rewards, spec.player_id, spec.env_id,
                meta.ckpt_uid or "", meta.opponent_uid or "", seed=spec.seed,
                num_turns=result.num_turns, reason=result.reason,
                invalid=result.traj.left_by_invalid,
                apart=meta.opponent_uid in self.matches.evaluation_opponents[1:],
            )  # fmt: skip
        self._push_transcript(job, result, self.counts["eval_games"])

    def _post_failure(self, job: Job, failure: BaseException) -> None:
        check_interrupt()  # which may be why it failed
        kind = "failed" if job.meta.type == "train" else "eval_failed"
        self.counts[kind] += 1
        if job.meta.type == "train":
            self.counts["steps"] += job.steps
            self.counts["lost_failed"] += job.steps
            if job.spec.group:  # it has to do with the others
                send(self._buffer.add_game, [], job.spec.env_id, (), job.spec.group)
        self._last_failure = f"{job.spec.env_id}, seed {job.spec.seed}: {failure}"
        loud = is_power_of_ten(self.counts[kind])
        _LOG.log(
            logging.WARNING if loud else logging.DEBUG,
            "%s game %d: %s", kind, self.counts[kind], self._last_failure,
        )  # fmt: skip
        if job.meta.type == "train":
            self._streak += 1
            if self._streak >= self._allowed_streak:
                raise CollectionError(
                    f"{self._streak} games in a row failed, the last one: {self._last_failure}"
                ) from failure

    def _count_dropped(self, jobs: Sequence[Job]) -> None:
        steps = sum(job.steps for job in jobs if job.meta.type == "train")
        self.counts.update({"dropped": len(jobs), "steps": steps, "lost_unfinished": steps})

    async def _drop(self) -> None:
        self._count_dropped(await self.flight.drop())
        for task in self._solving:
            task.cancel()
        self._report()

    async def _settle(self) -> None:
        """Wait until the tracker has handled all calls so far."""
        if self._tracker is not None:
            await call_within(PART_TIMEOUT, self._tracker.log_scalars, {})

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        new, self._reported = self.counts - self._reported, self.counts.copy()
        for name, done, failed in (
            ("Failure Rate", new["games"], new["failed"]),
            ("Evaluation Failure Rate", new["eval_games"], new["eval_failed"]),
        ):
            if self._tracker is not None and done + failed:
                send(self._tracker.log_scalars, {f"collector/{name}": failed / (done + failed)})
        if self._tracker is not None:
            lost = {f"collector/{name}": self.counts[name] for name in LOSSES}
            send(self._tracker.log_counts, lost)

    # --- the whole ----------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        factory = self._factory
        return {
            **self.counts,
            "under_way": {kind: self.flight.count_running(kind) for kind in ("train", "eval")},
            "actors": factory.actors.alive if factory else 0,
            "actor_deaths": factory.actors.deaths if factory else 0,
            "cost_usd": factory.costs() if factory else {},
            "last_failure": self._last_failure,
        }

    def checkpoints_in_use(self) -> list[str]:
        """Return the checkpoints that games in flight are played with."""
        return sorted({*self.flight.models(), *self._solving.values()})

    def state_dict(self) -> dict[str, Any]:
        return {
            "groups": self.matches.groups,
            "counts": dict(self.counts),
            "eval_started": {uid: dict(games) for uid, games in self._eval_started.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.matches.groups = state["groups"]
        self.counts = Counter({**dict.fromkeys(COUNTS, 0), **state["counts"]})
        self._reported = self.counts.copy()
        self._eval_started.clear()
        for uid, games in state["eval_started"].items():
            self._eval_started[uid] = Counter(games)

    async def close(self) -> None:
        await self._drop()
        if self._factory is not None:
            await self._factory.close()
            if self._actors is None:
                await self._factory.actors.close()
            self._factory = None

    async def _ready(self, num_workers: int) -> None:
        if num_workers < 1:
            raise ValueError(f"num_workers is {num_workers}: at least 1")
        self._workers = num_workers
        if self._factory is not None:
            return
        log_dir = None
        if self._tracker is not None and inside_ray_actor():
            log_dir = await call_within(PART_TIMEOUT, self._tracker.get_log_dir)
            setup_logger("collector", log_dir)
        if self._actors is None:
            config = {**self.vllm_config, "log_dir": log_dir}
            actors = start_actors(self.num_actors, config, self._tracker, self._pool, self.timeouts)
        else:
            actors = ActorPool(self._actors, timeouts=self.timeouts)
        await actors.ready()
        tokenizer = self._tokenizer
        if tokenizer is None:
            tokenizer = find_tokenizer(actors, self.vllm_config.get("model_name"))
        factory = PlayerFactory(actors, tokenizer, self.vllm_config)
        if any(num_players > 1 for _, num_players, _ in self.matches.evaluation_envs):
            for name in self.matches.evaluation_opponents:
                factory.prepare(name)
        self._factory = factory
        _LOG.info("%d engines play, %d games at once", actors.alive, num_workers)


def _find_played_seats(spec: PlaySpec, result: EpisodeResult) -> dict[int, Trajectory]:
    """Return the seats that the learner's policy had, the learner's own first."""
    others = [seat for seat in find_learner_seats(spec) if seat != spec.player_id]
    return {spec.player_id: result.traj} | dict(zip(others, result.others, strict=True))


def _check_sampling(samplings: Sequence[Sampling]) -> None:
    """Refuse to train on answers whose log-probabilities the learner cannot compute."""
    for sampling in samplings:
        if sampling.top_p < 1.0:
            raise ValueError(
                f"top_p is {sampling.top_p:g}: it leaves out tokens that the learner counts, and"
                " gradients would be biased; set it to 1 for training"
            )
        if sampling.temperature <= 0.0:
            raise ValueError(
                "temperature is 0: the likeliest answer alone has nothing to be compared with, so"
                " there is nothing to learn; set it above 0 for training"
            )


def _check_games(matches: Matchmaker, compact_views: bool, random_opening_moves: int) -> None:
    """Refuse games that lack what the configuration needs of them."""
    for env_id, *_ in (*matches.training_envs, *matches.evaluation_envs):
        if compact_views:
            compact_view(env_id)
    for env_id, *_ in matches.training_envs if random_opening_moves else ():
        if not RandomLegal.plays(env_id):
            raise ValueError(f"random_opening_moves: the legal moves of {env_id} are not known")
    if RANDOM_LEGAL in matches.evaluation_opponents:
        for env_id, num_players, _ in matches.evaluation_envs:
            if num_players > 1 and not RandomLegal.plays(env_id):
                raise ValueError(
                    f"evaluation_opponent {RANDOM_LEGAL!r} does not know {env_id}; name another,"
                    f" such as {FIRST_CHECKPOINT} (--opponent)"
                )
