"""Who sits at a game: our policy, a scripted player, another local model, or a remote one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unstable.actor import VLLMActor
from unstable.collection.actors import ActorClient, ActorPool
from unstable.collection.episodes import Reply, SeatPlayer, View, sampling_seed
from unstable.core import AgentSpec, PlaySpec
from unstable.engines.protocol import Completion, EngineError, Sampling
from unstable.engines.remote import RemoteModel
from unstable.games.players import FIRST_CHECKPOINT, Player, player_named
from unstable.games.rules import compact_view
from unstable.games.runner import GameError, GameRunner, Turn
from unstable.utils.templates import (
    extract_action,
    following_ids,
    format_prompt,
    get_template,
)

ADAPTER_FILE = "adapter_config.json"


class EnginePlayer:
    """A model of ours: prompts it, and finds the move in what it writes."""

    def __init__(
        self, spec: PlaySpec, seat: int, client: ActorClient, adapter: str | None, tokenizer: Any
    ) -> None:
        self._spec, self._seat, self._agent = spec, seat, spec.agent_specs[seat]
        self._client, self._adapter, self._tokenizer = client, adapter, tokenizer
        self._last: Completion | None = None
        """The turn before, where prompts go on from it."""

    async def act(self, game: GameRunner, turn: Turn) -> Reply:
        key, tokenizer = self._agent.prompt_template, self._tokenizer
        seed = sampling_seed(self._spec, self._seat, game.turns)
        asked: str | list[int]
        if self._last is None:
            asked = prompt = format_prompt(key, turn.observation, tokenizer, self._spec.num_players)
        else:
            before, stopped = self._last, self._last.finish_reason == "stop"
            tokens = (*before.prompt_ids, *before.token_ids)
            asked = following_ids(key, turn.observation, tokenizer, tokens, stopped=stopped)
            prompt = str(tokenizer.decode(asked, skip_special_tokens=False))
        completion = await self._client.generate(asked, self._adapter, seed)
        if tokenizer is not None and key != "raw" and get_template(key).history:
            self._last = completion
        action, feedback = extract_action(completion.text, self._agent.action_extraction_fn)
        return Reply(completion.text, action, feedback, completion, prompt)


class ScriptedPlayer:
    def __init__(self, player: Player) -> None:
        self._player = player

    async def act(self, game: GameRunner, turn: Turn) -> Reply:
        try:
            move = self._player.act(game)
        except LookupError as error:
            raise GameError(f"{game.env_id}, seed {game.seed}: {error}") from error
        return Reply(move, move, {"correct_answer_format": True}, prompt=turn.observation)


class RemotePlayer:
    def __init__(
        self, spec: PlaySpec, seat: int, model: RemoteModel, sampling: Sampling, timeout: float
    ) -> None:
        self._spec, self._seat, self._agent = spec, seat, spec.agent_specs[seat]
        self._model, self._sampling, self._timeout = model, sampling, timeout

    async def act(self, game: GameRunner, turn: Turn) -> Reply:
        messages = _messages(self._agent, turn.observation, self._spec.num_players)
        seed = sampling_seed(self._spec, self._seat, game.turns)
        sampling = Sampling(
            self._sampling.temperature, self._sampling.top_p, self._sampling.max_tokens, seed
        )
        try:
            async with asyncio.timeout(self._timeout):
                text = await self._model.ask(messages, sampling)
        except TimeoutError as error:
            raise EngineError(f"{self._agent.model}: no answer in {self._timeout:g} s") from error
        action, feedback = extract_action(text, self._agent.action_extraction_fn)
        return Reply(text, action, feedback, prompt=messages[-1]["content"])


class PlayerFactory:
    """Makes the players of a game; what costs much to make is made once.

    Other local models are run with the settings of ours, `config`.
    """

    def __init__(
        self,
        actors: ActorPool,
        tokenizer: Any = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.actors, self._tokenizer = actors, tokenizer
        self._config = dict(config or {})
        self._local: dict[str, ActorPool] = {}
        self._remote: dict[str, RemoteModel] = {}

    def players(self, spec: PlaySpec) -> list[SeatPlayer]:
        """By seat. All of one game that are ours talk to the same actor."""
        client = self.actors.client()
        return [self._player(spec, seat, client) for seat in range(spec.num_players)]

    def prepare(self, name: str) -> None:
        """Find out whether a remote fixed player can be asked at all.

        Raises:
            EngineError: there is no address or key for it.
        """
        if name != FIRST_CHECKPOINT and player_named(name) is None and not _is_local(name):
            self._remote_model(name)

    def prompt(self, template: str, observation: str) -> str:
        """What a model of ours is asked."""
        return format_prompt(template, observation, self._tokenizer)

    @staticmethod
    def view(spec: PlaySpec) -> View:
        """Short boards for the models that run here; remote ones need the rules."""
        board = compact_view(spec.env_id)
        short = [agent.kind == "checkpoint" or _is_local(agent.model) for agent in spec.agent_specs]
        return lambda env, seat, text: board(env, seat, text) if short[seat] else text

    def costs(self) -> dict[str, float]:
        return {name: model.cost_usd for name, model in self._remote.items()}

    async def close(self) -> None:
        for actors in self._local.values():
            await actors.close()
        for model in self._remote.values():
            await model.close()
        self._local.clear()
        self._remote.clear()

    def _player(self, spec: PlaySpec, seat: int, client: ActorClient) -> SeatPlayer:
        agent = spec.agent_specs[seat]
        if agent.kind == "checkpoint":
            return EnginePlayer(spec, seat, client, agent.model, self._tokenizer)
        if agent.kind != "fixed" or not agent.model:
            raise ValueError(f"no player of kind {agent.kind!r} with model {agent.model!r}")
        scripted = player_named(agent.model)
        if scripted is not None:
            return ScriptedPlayer(scripted(sampling_seed(spec, seat)))
        if _is_local(agent.model):
            return self._local_player(spec, seat, agent.model, client)
        model = self._remote_model(agent.model)
        sampling = Sampling.of(self._config)
        return RemotePlayer(spec, seat, model, sampling, self.actors.timeouts.request)

    def _local_player(
        self, spec: PlaySpec, seat: int, folder: str, client: ActorClient
    ) -> SeatPlayer:
        if (Path(folder) / ADAPTER_FILE).is_file():  # of our own model
            return EnginePlayer(spec, seat, client, folder, self._tokenizer)
        if folder not in self._local:
            actor = VLLMActor({**self._config, "model_name": folder}, name=Path(folder).name)
            self._local[folder] = ActorPool([actor], timeouts=self.actors.timeouts)
        actors = self._local[folder]
        return EnginePlayer(spec, seat, actors.client(), None, tokenizer_of(actors, folder))

    def _remote_model(self, name: str) -> RemoteModel:
        if name not in self._remote:
            self._remote[name] = RemoteModel(name)
        return self._remote[name]


def tokenizer_of(actors: ActorPool, model: str | None) -> Any:
    """The tokenizer that prompts are made with: an actor's own, if it is here; None if unnamed."""
    own = getattr(actors.first, "tokenizer", None)
    if own is not None or not model:
        return own
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def _is_local(model: str | None) -> bool:
    return model is not None and Path(model).is_dir()


def _messages(agent: AgentSpec, observation: str, num_players: int) -> list[dict[str, str]]:
    if agent.prompt_template == "raw":
        return [{"role": "user", "content": observation}]
    return get_template(agent.prompt_template).messages(observation, num_players)
