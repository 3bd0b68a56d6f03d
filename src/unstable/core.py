"""Records that the parts exchange, and base classes to extend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, TypeVar

UNKNOWN_VERSION = -1
"""The policy version of text that no checkpoint of ours wrote."""


@dataclass
class Trajectory:
    """One game from the seat of one player: entry `i` of every list is that player's turn `i`.

    Token ids, log-probabilities and versions are what the engine sampled; learning uses them and
    tokenises nothing again. They stay empty where a player has no engine.
    """

    pid: list[int] = field(default_factory=list)
    obs: list[str] = field(default_factory=list)
    """The whole prompt as the model got it, chat markup included."""
    actions: list[str] = field(default_factory=list)
    """What the model wrote."""
    extracted_actions: list[str] = field(default_factory=list)
    """What the game was given."""
    infos: list[dict[str, Any]] = field(default_factory=list)
    final_rewards: dict[int, float] = field(default_factory=dict)
    """The game's rewards, of every player."""
    num_turns: int = 0
    """Turns of the game, all players together."""
    format_feedbacks: list[dict[str, Any]] = field(default_factory=list)
    """Per turn `correct_answer_format` and `invalid_move`."""
    prompt_ids: list[list[int]] = field(default_factory=list)
    completion_ids: list[list[int]] = field(default_factory=list)
    """The sampled tokens, the one that stopped the answer included."""
    logprobs: list[list[float]] = field(default_factory=list)
    """Of each sampled token, under the policy that sampled it and at its temperature."""
    temperatures: list[float] = field(default_factory=list)
    """Per turn, what the model's logits were divided by."""
    versions: list[int] = field(default_factory=list)
    """The policy's version per turn: the learner's step its adapter came from."""
    opponent: str = ""
    """Against whom: `mirror`, or the kind of the opponent."""
    group: str = ""
    """Games that begin alike share a group; algorithms compare within it."""
    ended_by_invalid: int | None = None
    """Whose invalid move ended the game, if one did."""

    @property
    def left_by_invalid(self) -> bool:
        """Whether this player was out by an invalid move; with three or more, others play on."""
        return bool(self.format_feedbacks) and bool(self.format_feedbacks[-1].get("invalid_move"))


@dataclass(slots=True)
class Step:
    """One turn of one player, as the learner gets it."""

    pid: int
    obs: str
    act: str
    reward: float
    env_id: str
    step_info: dict[str, Any] = field(default_factory=dict)
    prompt_ids: Sequence[int] = ()
    completion_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    temperature: float = 1.0
    version: int = UNKNOWN_VERSION
    episode: int = -1
    """Steps of one trajectory share it, and no other has it."""
    turn: int = 0
    """Which of the player's own turns this was."""
    group: str = ""


@dataclass(frozen=True)
class Rating:
    mu: float
    sigma: float


@dataclass
class Opponent:
    """An opponent: a checkpoint of the learner or a fixed player."""

    uid: str
    kind: str
    """`checkpoint` or `fixed`."""
    path_or_name: str | None
    """A checkpoint's adapter (None: the base model), or a fixed player's name."""
    rating: Rating
    active: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    seat: int
    observation: str
    """What the player was shown, without chat markup."""
    answer: str
    """All that it wrote."""
    action: str
    """What the game was given."""
    legal: bool
    board: str
    """As the game draws it after the move; empty where it draws none."""
    opening: bool = False
    """A random move of the opening, which no player chose."""


@dataclass
class EpisodeResult:
    traj: Trajectory
    """From the learner's seat."""
    end_by_opponent_invalid: bool
    action_seq: list[str]
    """The moves of all players in order."""
    final_rewards: dict[int, float]
    others: list[Trajectory] = field(default_factory=list)
    """From further seats that the learner played, in mirror games."""
    num_turns: int = 0
    reason: str = ""
    """How the game ended, in its own words."""
    moves: list[Move] = field(default_factory=list)
    """Of all players in order, where the game was to be transcribed."""


@dataclass(frozen=True)
class AgentSpec:
    kind: str
    model: str | None = None
    prompt_template: str = "default"
    action_extraction_fn: str = "default"
    version: int = UNKNOWN_VERSION


@dataclass(frozen=True)
class PlaySpec:
    env_id: str
    num_players: int
    player_id: int
    """The learner's seat."""
    agent_specs: Sequence[AgentSpec]
    """By seat."""
    seed: int
    """Of the game: its dice and cards, and its opening."""
    group: str = ""
    sampling_seed: int | None = None
    """Of the players, where it is not the game's: games of a group begin alike, no more."""


@dataclass
class TaskMeta:
    type: str
    """`train` or `eval`."""
    env_id: str
    player_id: int
    seed: int
    ckpt_uid: str | None = None
    opponent_uid: str | None = None


class BaseAlgo(ABC):
    """A policy-gradient algorithm: makes a mini-batch of steps into gradients.

    `prepare_batch` and `update` are all that one of your own has to have; `update` is called with
    the steps, and calls `prepare_batch` itself.
    """

    needs_episodes = False
    """Batches have to consist of whole games: the buffer must keep them so."""
    needs_groups = False
    """And of whole groups of games that begin alike."""
    use_cache = False
    """Let forward passes keep keys and values."""

    def initialize(
        self,
        model: Any,
        tokenizer: Any,
        device: Any,
        max_generation_len: int,
        max_train_len: int | None = None,
    ) -> None:
        """Take the learner's model; called once, before the first batch."""
        self.model = model
        self.tokenizer = tokenizer
        self.device = device
        self.max_generation_len = max_generation_len
        self.max_train_len = max_train_len

    def prepare_steps(self, steps: Sequence[Step]) -> Sequence[Any]:
        """Prepare a whole batch before it is divided, for algorithms that compare its steps.

        Returns:
            What is divided and given to `update`; here the steps as they are.
        """
        return steps

    def split(
        self, items: Sequence[Any], mini_batch_size: int, pack_tokens: int | None
    ) -> list[list[Any]]:
        """Divide the result of `prepare_steps` into mini-batches; the last one may be smaller."""
        del pack_tokens
        starts = range(0, len(items), mini_batch_size)
        return [list(items[start : start + mini_batch_size]) for start in starts]

    @abstractmethod
    def prepare_batch(self, steps: Sequence[Step]) -> Any:
        """Turn steps into the tensors that `update` works on."""

    @abstractmethod
    def update(self, steps: Sequence[Any], scaling: float = 1.0) -> dict[str, float]:
        """Add the gradients of a mini-batch, its loss divided by `scaling`.

        The optimiser is the learner's.

        Returns:
            Numbers to be logged.
        """

    def modules(self) -> dict[str, Any]:
        """Return networks of its own by name; the learner trains and saves them."""
        return {}

    def learning_rate(self, name: str) -> float | None:
        del name
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return further state that a resumed run needs, as JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but was given some")


class BaseTracker:
    """The folders of a run.

    Args:
        run_name: the last part of the folder's name.
        output_dir: below it, a folder by date and time is made.
        run_dir: the run's folder itself, to continue in one that exists.
    """

    def __init__(
        self,
        run_name: str,
        output_dir: str | Path = "outputs",
        run_dir: str | Path | None = None,
    ) -> None:
        self.run_name = run_name
        # Absolute: the parts of a run are processes that need not share a working directory.
        self.run_dir = (
            new_run_dir(Path(output_dir).absolute(), run_name)
            if run_dir is None
            else Path(run_dir).absolute()
        )
        for folder in (
            self.get_train_dir(), self.get_eval_dir(), self.get_checkpoints_dir(),
            self.get_log_dir(),
        ):  # fmt: skip
            Path(folder).mkdir(parents=True, exist_ok=True)

    def get_run_dir(self) -> str:
        return str(self.run_dir)

    def get_train_dir(self) -> str:
        return str(self.run_dir / "training_data")

    def get_eval_dir(self) -> str:
        return str(self.run_dir / "eval_data")

    def get_checkpoints_dir(self) -> str:
        return str(self.run_dir / "checkpoints")

    def get_log_dir(self) -> str:
        return str(self.run_dir / "logs")

    def log_scalars(self, values: Mapping[str, float]) -> None:
        """Log numbers; here they are discarded."""

    def log_counts(self, values: Mapping[str, int]) -> None:
        """Log counts since the run began; here they are discarded."""


def new_run_dir(output_dir: Path, run_name: str) -> Path:
    """Make a folder that no other run has, also for runs of one name and second."""
    now = datetime.now().astimezone()
    name = run_name.replace("/", "-").lstrip(".") or "run"
    first = output_dir / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}" / name
    folder, number = first, 1
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            folder = first.with_name(f"{name}-{number}")
        else:
            return folder


class ExplorationTracker:
    """Measures the variety of play by n-grams of moves, over `window` games per environment."""

    def __init__(self, window: int = 512, ngrams: Iterable[int] = (1, 2, 3, 4)) -> None:
        self.window = window
        self.ngrams = tuple(ngrams)
        self._games: dict[str, deque[tuple[tuple[str, ...], list[tuple[str, ...]]]]] = {}
        self._counts: dict[str, Counter[tuple[str, ...]]] = {}

    def add_game(self, action_seq: Sequence[str], env_id: str) -> float:
        """Add a game's moves; the oldest game leaves when the window is full.

        Returns:
            The share of its n-grams that no game of the window had; 0 for a game without moves.
        """
        if env_id not in self._games:
            self._games[env_id] = deque()
            self._counts[env_id] = Counter()
        games, counts = self._games[env_id], self._counts[env_id]
        moves = tuple(action_seq)
        grams = self._grams(moves)
        known = sum(map(counts.__contains__, grams))
        games.append((moves, grams))
        counts.update(grams)
        if len(games) > self.window:
            for gram in games.popleft()[1]:
                left = counts[gram] - 1
                if left:
                    counts[gram] = left
                else:
                    del counts[gram]
        return 1.0 - known / len(grams) if grams else 0.0

    def pct_unique(self, env_id: str, n: int) -> float:
        """Return distinct n-grams as a share of all; 0 when there are none."""
        counts = [count for gram, count in self._counts.get(env_id, {}).items() if len(gram) == n]
        return len(counts) / sum(counts) if counts else 0.0

    def get_metrics(self) -> dict[str, dict[str, float]]:
        return {
            env_id: {
                f"Pct. Unique Action {n}-gram": self.pct_unique(env_id, n) for n in self.ngrams
            }
            for env_id in self._counts
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the games of the window; everything else follows from them."""
        return {
            env_id: [list(moves) for moves, _ in games] for env_id, games in self._games.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._games.clear()
        self._counts.clear()
        for env_id, games in state.items():
            for moves in games:
                self.add_game(moves, env_id)

    def _grams(self, moves: tuple[str, ...]) -> list[tuple[str, ...]]:
        return [
            gram for n in self.ngrams for gram in zip(*(moves[i:] for i in range(n)), strict=False)
        ]


FULL_REWARD = 1.0
"""What a game for one gives when it is solved."""


def outcome(rewards: Mapping[int, float], player_id: int) -> int:
    """Return 1, 0 or -1 for a win, draw or loss, by the rewards of all seats.

    Who has the highest reward has won, alone or with others, as in a team; the others have lost.
    Where all have the same it is a draw. Alone: solved, solved in part, or not at all.
    """
    mine, best = rewards[player_id], max(rewards.values())
    if len(rewards) == 1:
        return (mine >= FULL_REWARD) - (mine <= 0.0)
    if min(rewards.values()) == best:
        return 0
    return 1 if mine == best else -1


def derive_seed(*parts: int | str) -> int:
    """Return a seed of 31 bits that depends on every part and on nothing else."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=4).digest()) >> 1


class RewardTransform:
    """Base of reward transforms; without state unless a subclass adds some."""

    def state_dict(self) -> dict[str, Any]:
        """Return its state, as JSON can hold it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but was given some")


T = TypeVar("T", bound=RewardTransform)


class Stack(RewardTransform, Generic[T]):
    def __init__(self, transforms: Iterable[T] = ()) -> None:
        self.transforms = list(transforms)

    def register(self, transform: T) -> None:
        self.transforms.append(transform)

    def state_dict(self) -> dict[str, Any]:
        return {
            "transforms": [
                {"name": type(transform).__name__, "state": transform.state_dict()}
                for transform in self.transforms
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue; raises ValueError if these are not the transforms that were saved."""
        saved = state["transforms"]
        ours = [type(transform).__name__ for transform in self.transforms]
        theirs = [entry["name"] for entry in saved]
        if ours != theirs:
            raise ValueError(f"the state is of {theirs}, these are {ours}")
        for transform, entry in zip(self.transforms, saved, strict=True):
            transform.load_state_dict(entry["state"])
