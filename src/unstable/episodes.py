"""Episodes: players by seat, the loop of a game, and the trajectories for learning."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from unstable.actor import ActorClient, ActorPool, VLLMActor
from unstable.core import AgentSpec, EpisodeResult, Move, PlaySpec, Trajectory, derive_seed
from unstable.engines import Completion, EngineError, Sampling
from unstable.engines.remote import RemoteModel
from unstable.games import GameError, GameRunner, Turn
from unstable.games.players import FIRST_CHECKPOINT, Player, RandomLegal, find_player
from unstable.games.rules import compact_view
from unstable.games.solve import exploitability, is_solvable, list_positions, make_game_tree
from unstable.utils.handles import run_in_thread
from unstable.utils.templates import (
    continue_prompt_ids,
    extract_action,
    format_prompt,
    get_template,
)

View = Callable[[Any, int, str], str]


@dataclass(frozen=True)
class Reply:
    text: str
    """All that it wrote."""
    action: str
    """What the game gets."""
    feedback: dict[str, bool] = field(default_factory=dict)
    """`correct_answer_format`."""
    completion: Completion | None = None
    """The tokens, where an engine of ours sampled them."""
    prompt: str = ""
    """What it was asked, chat markup included."""


class SeatPlayer(Protocol):
    async def act(self, game: GameRunner, turn: Turn) -> Reply:
        """Return the answer of the player whose turn it is.

        Raises:
            EngineError: whoever was asked cannot answer.
            GameError: this player cannot play this game.
        """
        ...


async def play_episode(
    spec: PlaySpec,
    players: Sequence[SeatPlayer],
    *,
    view: View | None = None,
    error_allowance: int = 0,
    random_opening_moves: int = 0,
    transcribe: bool = False,
    recorded: dict[int, Trajectory] | None = None,
) -> EpisodeResult:
    """Play a game; record the learner's seats turn by turn.

    Args:
        spec: which game.
        players: by seat.
        view: makes what players see of a game, as for GameRunner.
        error_allowance: how many invalid moves in a row a player may take back.
        random_opening_moves: up to so many first moves are random legal ones, chosen by no player
            and not recorded.
        transcribe: keep every move, for people to look at.
        recorded: gets those seats' turns while the game is played, also if it fails.

    Raises:
        GameError: the game cannot be played, or raised.
        EngineError: a player could not answer.
    """
    moves: list[Move] | None = [] if transcribe else None
    # Games are foreign code, and may take their time: others are played meanwhile.
    game = await run_in_thread(_open_game, spec, view, error_allowance, random_opening_moves, moves)
    recorded = {} if recorded is None else recorded
    recorded |= {seat: _new_trajectory(spec, seat) for seat in find_learner_seats(spec)}
    while not game.done:
        turn = game.observe()
        reply = await players[turn.seat].act(game, turn)
        await run_in_thread(game.step, reply.action)
        if moves is not None:
            moves.append(_make_move(game, turn, reply))
        if turn.seat in recorded:
            version = spec.agent_specs[turn.seat].version
            _record_turn(recorded[turn.seat], game, turn, reply, version)
    return _make_result(spec, game, recorded, moves or [])


def find_learner_seats(spec: PlaySpec) -> list[int]:
    """Return the learner's seat, and the others of the very same policy."""
    learner = spec.agent_specs[spec.player_id]
    return [
        seat
        for seat, agent in enumerate(spec.agent_specs)
        if seat == spec.player_id
        or (learner.kind == "checkpoint" and _is_same_policy(agent, learner))
    ]


def derive_sampling_seed(spec: PlaySpec, *parts: int) -> int:
    """Return a seed for a player's draws: by seat and turn, whatever other games do."""
    seed = spec.seed if spec.sampling_seed is None else spec.sampling_seed
    return derive_seed(seed, *parts)


def _is_same_policy(one: AgentSpec, other: AgentSpec) -> bool:
    return (one.kind, one.model, one.version) == (other.kind, other.model, other.version)


def _open_game(
    spec: PlaySpec,
    view: View | None,
    error_allowance: int,
    opening_moves: int,
    transcript: list[Move] | None,
) -> GameRunner:
    """Return the game after its random opening, which is cut if it would end the game."""
    rng = random.Random(derive_seed(spec.seed, "opening"))
    moves = rng.randint(0, opening_moves) if opening_moves else 0
    while True:
        game = GameRunner(
            spec.env_id, spec.num_players, spec.seed, error_allowance=error_allowance, view=view
        )
        player = RandomLegal(derive_seed(spec.seed, "opening moves"))
        for _ in range(moves):
            if not game.done:
                turn, action = game.observe(), _choose_opening_move(player, game)
                game.step(action)
                if transcript is not None:
                    transcript.append(_make_move(game, turn, Reply(action, action), opening=True))
        if not game.done:
            return game
        moves -= 1
        if transcript is not None:
            transcript.clear()


def _choose_opening_move(player: RandomLegal, game: GameRunner) -> str:
    try:
        return player.act(game)
    except LookupError as error:
        raise GameError(f"no random opening: {error}") from error


def _make_move(game: GameRunner, turn: Turn, reply: Reply, *, opening: bool = False) -> Move:
    return Move(
        turn.seat, turn.observation, reply.text, reply.action, not game.last_move_invalid,
        game.board(), opening,
    )  # fmt: skip


def _new_trajectory(spec: PlaySpec, seat: int) -> Trajectory:
    learner = spec.agent_specs[spec.player_id]
    others = [agent for other, agent in enumerate(spec.agent_specs) if other != spec.player_id]
    opponent = ""
    if others:
        opponent = "mirror" if _is_same_policy(others[0], learner) else others[0].kind
    # Seats are told apart: what a game is worth from one says little about another.
    return Trajectory(opponent=opponent, group=f"{spec.group}/{seat}" if spec.group else "")


def _record_turn(
    seen: Trajectory, game: GameRunner, turn: Turn, reply: Reply, version: int
) -> None:
    seen.pid.append(turn.seat)
    seen.obs.append(reply.prompt)
    seen.actions.append(reply.text)
    seen.extracted_actions.append(reply.action)
    seen.format_feedbacks.append({**reply.feedback, "invalid_move": game.last_move_invalid})
    seen.versions.append(version)
    info: dict[str, Any] = {"turn": game.turns - 1}
    if reply.completion is not None:
        info["finish_reason"] = reply.completion.finish_reason
        seen.prompt_ids.append(list(reply.completion.prompt_ids))
        seen.completion_ids.append(list(reply.completion.token_ids))
        seen.logprobs.append(list(reply.completion.logprobs))
        seen.temperatures.append(reply.completion.sampling.temperature)
    seen.infos.append(info)


def _make_result(
    spec: PlaySpec, game: GameRunner, recorded: dict[int, Trajectory], moves: list[Move]
) -> EpisodeResult:
    last_seat = game.actions[-1][0]
    ended_by = last_seat if game.last_move_invalid else None
    for seen in recorded.values():
        seen.final_rewards = dict(game.rewards)
        seen.num_turns = game.turns
        seen.ended_by_invalid = ended_by
    return EpisodeResult(
        traj=recorded[spec.player_id],
        end_by_opponent_invalid=ended_by not in (None, spec.player_id),
        action_seq=game.action_seq(),
        final_rewards=dict(game.rewards),
        others=[seen for seat, seen in recorded.items() if seat != spec.player_id],
        num_turns=game.turns,
        reason=str(game.infos.get(spec.player_id, {}).get("reason", "")),
        moves=moves,
    )


ADAPTER_FILE = "adapter_config.json"


class EnginePlayer:
    """Plays with an engine: prompts the model and extracts the move from its answer."""

    def __init__(
        self, spec: PlaySpec, seat: int, client: ActorClient, adapter: str | None, tokenizer: Any
    ) -> None:
        self._spec, self._seat, self._agent = spec, seat, spec.agent_specs[seat]
        self._client, self._adapter, self._tokenizer = client, adapter, tokenizer
        self._last: Completion | None = None
        """The turn before, where prompts go on from it."""

    async def act(self, game: GameRunner, turn: Turn) -> Reply:
        key, tokenizer = self._agent.prompt_template, self._tokenizer
        seed = derive_sampling_seed(self._spec, self._seat, game.turns)
        asked: str | list[int]
        if self._last is None:
            asked = prompt = format_prompt(key, turn.observation, tokenizer, self._spec.num_players)
        else:
            before, stopped = self._last, self._last.finish_reason == "stop"
            tokens = (*before.prompt_ids, *before.token_ids)
            asked = continue_prompt_ids(key, turn.observation, tokenizer, tokens, stopped=stopped)
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
        messages = _make_messages(self._agent, turn.observation, self._spec.num_players)
        seed = derive_sampling_seed(self._spec, self._seat, game.turns)
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
    """Makes the players of a game; models and clients are made once.

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
        """Return the players by seat; models of ours in one game share an actor."""
        client = self.actors.client()
        return [self._player(spec, seat, client) for seat in range(spec.num_players)]

    def prepare(self, name: str) -> None:
        """Check that a remote fixed player has an address and a key.

        Raises:
            EngineError: there is no address or key for it.
        """
        if name != FIRST_CHECKPOINT and find_player(name) is None and not _is_local(name):
            self._remote_model(name)

    def prompt(self, template: str, observation: str) -> str:
        """Return the prompt of a model of ours."""
        return format_prompt(template, observation, self._tokenizer)

    @staticmethod
    def view(spec: PlaySpec) -> View:
        """Return short boards for models that run here, and the rules for remote ones."""
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
        scripted = find_player(agent.model)
        if scripted is not None:
            return ScriptedPlayer(scripted(derive_sampling_seed(spec, seat)))
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
        return EnginePlayer(spec, seat, actors.client(), None, find_tokenizer(actors, folder))

    def _remote_model(self, name: str) -> RemoteModel:
        if name not in self._remote:
            self._remote[name] = RemoteModel(name)
        return self._remote[name]


def find_tokenizer(actors: ActorPool, model: str | None) -> Any:
    """Return the tokenizer for prompts: an actor's own, or the model's; None without either."""
    own = getattr(actors.first, "tokenizer", None)
    if own is not None or not model:
        return own
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def _is_local(model: str | None) -> bool:
    return model is not None and Path(model).is_dir()


def _make_messages(agent: AgentSpec, observation: str, num_players: int) -> list[dict[str, str]]:
    if agent.prompt_template == "raw":
        return [{"role": "user", "content": observation}]
    return get_template(agent.prompt_template).messages(observation, num_players)


async def compute_exploitability(
    env_id: str, agent: AgentSpec, factory: PlayerFactory
) -> float | None:
    """Compute the exact exploitability from the engine's probability of each move.

    None where the game is too large, or where answers hold more than a move.

    Raises:
        EngineError: the engine cannot say how likely an answer is.
    """
    if agent.action_extraction_fn != "bare" or not is_solvable(env_id):
        return None
    root = make_game_tree(env_id)
    legal, client = list_positions(root), factory.actors.client()

    async def chances(position: str, moves: tuple[str, ...]) -> dict[str, float]:
        answers = [move.strip("[]") for move in moves]
        prompt = factory.prompt(agent.prompt_template, position)
        scores = await client.score(prompt, answers, agent.model)
        return dict(zip(moves, scores, strict=True))

    asked = await asyncio.gather(*(chances(*position) for position in legal.items()))
    return exploitability(root, dict(zip(legal, asked, strict=True)))
