"""Which game is played next: environment, seat, opponent and seed."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from unstable.collection.in_flight import Job
from unstable.core import UNKNOWN_VERSION, AgentSpec, PlaySpec, TaskMeta, derived_seed
from unstable.model_pool import ModelPool
from unstable.utils.handles import call_within
from unstable.utils.templates import ACTION_EXTRACTION, get_template

Env = tuple[str, int, str]

POOL_TIMEOUT = 120.0


class Matchmaker:
    """Draws games. Each depends on its number, on the seed, and on whom the pool chooses.

    Args:
        pool: says which checkpoint is current and chooses opponents.
        training_envs: environment, number of players, prompt template.
        evaluation_envs: the same, for evaluation.
        evaluation_opponent: a fixed player's name.
        action_extraction: how the move is found in what a model writes.
        seed: of everything that is drawn here.
        group_size: training games that share environment, seed, seat and opponent.
    """

    def __init__(
        self,
        pool: ModelPool,
        training_envs: Sequence[Sequence[Any]],
        evaluation_envs: Sequence[Sequence[Any]],
        evaluation_opponent: str,
        action_extraction: str,
        seed: int,
        group_size: int,
    ) -> None:
        if action_extraction not in ACTION_EXTRACTION:
            known = ", ".join(sorted(ACTION_EXTRACTION))
            raise ValueError(f"action_extraction is {action_extraction!r}; there are {known}")
        if group_size < 1:
            raise ValueError(f"group_size is {group_size}: 1 is a game by itself")
        self.training_envs = _checked(training_envs, "training_envs")
        self.evaluation_envs = _checked(evaluation_envs, "evaluation_envs")
        self.evaluation_opponent = evaluation_opponent
        self.group_size = group_size
        self.groups = 0
        """Groups drawn so far."""
        self._pool, self._extraction, self._seed = pool, action_extraction, seed
        self._models: dict[str, tuple[str | None, str]] = {}

    async def current(self) -> str:
        """The newest checkpoint.

        Raises:
            LookupError: there is none.
        """
        uid = await call_within(POOL_TIMEOUT, self._pool.current_uid)
        if uid is None:
            raise LookupError("the pool has no checkpoint: call add_checkpoint first")
        return uid

    async def training_group(self, me: str) -> list[Job]:
        """The next training games: of checkpoint `me` against whom the pool chooses."""
        if not self.training_envs:
            raise ValueError("training_envs is empty: there is no game to learn from")
        number, self.groups = self.groups, self.groups + 1
        rng = random.Random(derived_seed(self._seed, "train", number))
        env_id, num_players, template = rng.choice(self.training_envs)
        seat, seed = rng.randrange(num_players), rng.getrandbits(31)
        other = None
        if num_players > 1:
            other = await call_within(POOL_TIMEOUT, self._pool.sample, me)
        mine = await self._agent(me, template)
        opponent = mine if other in (None, me) else await self._agent(other, template)
        agents = tuple(mine if i == seat else opponent for i in range(num_players))
        jobs = []
        for member in range(self.group_size):
            spec = PlaySpec(env_id, num_players, seat, agents, seed)
            if self.group_size > 1:
                draws = derived_seed(seed, "member", member)
                spec = PlaySpec(
                    env_id, num_players, seat, agents, seed, f"group-{number}", draws
                )  # fmt: skip
            jobs.append(Job(spec, TaskMeta("train", env_id, seat, seed, me, other)))
        return jobs

    async def evaluation(
        self, ckpt_uid: str, env: Env, number: int, *, both_seats: bool = True
    ) -> Job:
        """Evaluation game `number` of an environment: the same for every checkpoint but for it."""
        env_id, num_players, template = env
        seat = number % num_players if both_seats else 0
        seed = derived_seed(self._seed, "eval", env_id, number)
        mine = await self._agent(ckpt_uid, template)
        opponent = AgentSpec("fixed", self.evaluation_opponent, template, self._extraction)
        agents = tuple(mine if i == seat else opponent for i in range(num_players))
        against = self.evaluation_opponent if num_players > 1 else None
        meta = TaskMeta("eval", env_id, seat, seed, ckpt_uid, against)
        return Job(PlaySpec(env_id, num_players, seat, agents, seed), meta)

    async def _agent(self, uid: str, template: str) -> AgentSpec:
        if uid not in self._models:
            model = await call_within(POOL_TIMEOUT, self._pool.ckpt_path, uid)
            if model is None:
                raise LookupError(f"the pool does not know {uid!r}")
            self._models[uid] = model
        path_or_name, kind = self._models[uid]
        return AgentSpec(kind, path_or_name, template, self._extraction, version_of(uid))


def version_of(uid: str) -> int:
    """The learner's step that a checkpoint came from."""
    match = re.fullmatch(r"ckpt-(-?\d+)", uid)
    return int(match[1]) if match else UNKNOWN_VERSION


def _checked(envs: Sequence[Sequence[Any]], name: str) -> tuple[Env, ...]:
    """The environments as triples; raises ValueError where one is not."""
    checked: list[Env] = []
    for env in envs:
        if isinstance(env, str) or len(env) != 3:
            raise ValueError(f"{name} has {env!r}: it should be (env id, players, template)")
        env_id, num_players, template = env
        if not isinstance(num_players, int) or num_players < 1:
            raise ValueError(f"{name}: {env_id} cannot have {num_players!r} players")
        if template != "raw":
            get_template(template)
        checked.append((str(env_id), num_players, str(template)))
    return tuple(checked)
