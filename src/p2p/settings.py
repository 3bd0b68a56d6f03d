"""What the environment and `.env` files say, typed and read once.

The current folder may be somebody else's. Its `.env` gives keys and names of models only, and
nothing where it is, or lies in, the folder of a session or a run. What says where code, prices and
endpoints are comes from the environment, the file that P2P_ENV_FILE names, or the user's own
`~/.config/prompt2policy/.env`.

Ask `get_settings()` where a value is used; a copy made at import would outlive a change.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shlex
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
)

from p2p.files import holds_data, open_data

_BENCHMARK_CASE = re.compile(r"(bm_(?:\d{8}_\d{6}_)?[0-9a-f]+)_(case\d+)")
_logger = logging.getLogger(__name__)

AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


class Settings(BaseModel):
    """Settings of this process, by the names of their variables."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    runs_dir: AbsolutePath = Field(
        default=Path("runs"),
        validate_default=True,
        validation_alias=AliasChoices("P2P_RUNS_DIR", "RUNS_DIR"),
    )
    """Where sessions lie: absolute, so that a later change of folder does not move it."""

    cache_dir: AbsolutePath | None = Field(
        default_factory=lambda: (
            Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "prompt2policy"
        ),
        validate_default=True,
        validation_alias="P2P_CACHE_DIR",
    )
    """Where compiled updates are kept for later runs; empty: nowhere."""

    engines_dir: AbsolutePath = Field(
        default_factory=lambda: (
            Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "prompt2policy" / "engines"
        ),
        validate_default=True,
        validation_alias="P2P_ENGINES_DIR",
    )
    """Where simulators with environments of their own are installed."""

    models_dir: AbsolutePath = Field(
        default_factory=lambda: (
            Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "prompt2policy" / "models"
        ),
        validate_default=True,
        validation_alias="P2P_MODELS_DIR",
    )
    """Where model files given as environments are kept, by what is in them."""

    env_path: str = Field(default="", validation_alias="P2P_ENV_PATH")
    """Folders with modules of the user's own environments, separated by colons."""

    anthropic_api_key: SecretStr | None = None
    openai_api_key: SecretStr | None = None
    gemini_api_key: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("GEMINI_API_KEY", "GOOGLE_API_KEY")
    )

    openrouter_api_key: SecretStr | None = None
    vllm_api_key: SecretStr | None = None
    ollama_api_key: SecretStr | None = None

    llm_model: str = ""
    """`provider:model` for every agent, unless a session says otherwise."""
    vlm_model: str = ""
    """`provider:model` that looks at frames, unless a session says otherwise."""
    anthropic_base_url: str | None = None
    openai_base_url: str | None = None
    """Also where `openai-compatible` models are found."""
    google_gemini_base_url: str | None = None
    openrouter_base_url: str | None = None
    ollama_url: str = "http://localhost:11434"
    vllm_host: str = "127.0.0.1"
    vllm_port: Annotated[int, Field(ge=1, le=65535)] = 8000
    prices: AbsolutePath | None = Field(default=None, validation_alias="P2P_PRICES")
    """A JSON file with prices that count more than the known ones."""

    @field_validator(
        "anthropic_api_key", "openai_api_key", "gemini_api_key", "openrouter_api_key",
        "vllm_api_key", "ollama_api_key", "anthropic_base_url", "openai_base_url",
        "google_gemini_base_url", "openrouter_base_url", "prices", "cache_dir",
        mode="before",
    )  # fmt: skip
    @classmethod
    def _read_blank_as_unset(cls, value: object) -> object:
        return None if isinstance(value, str) and not value.strip() else value

    def env_folders(self) -> tuple[Path, ...]:
        names = filter(None, self.env_path.split(os.pathsep))
        return tuple(Path(name).expanduser().absolute() for name in names)

    def secrets(self) -> tuple[str, ...]:
        """The values that must never reach a file, a log, a command line or a job."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return tuple(value.get_secret_value() for value in values if isinstance(value, SecretStr))


FROM_ANY_FOLDER = frozenset(
    {"LLM_MODEL", "VLM_MODEL", "GOOGLE_API_KEY"}
    | {name.upper() for name in Settings.model_fields if name.endswith("_api_key")}
)
"""What the `.env` of the current folder may say."""
_VARIABLES = {
    alias.upper(): alias
    for name, field in Settings.model_fields.items()
    for alias in (
        [str(each) for each in field.validation_alias.choices]
        if isinstance(field.validation_alias, AliasChoices)
        else [str(field.validation_alias or name)]
    )
}
"""Every variable, with the name by which its setting takes it."""
MAX_ENV_BYTES = 1 << 16


def home_env_file() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "prompt2policy" / ".env"


def file_variables() -> dict[str, str]:
    """The variables of the `.env` files; the user's own override the current folder's."""
    named = os.environ.get("P2P_ENV_FILE")
    here = Path.cwd() / ".env"
    variables: dict[str, str] = {}
    if not any(holds_data(folder) for folder in (here.parent, *here.parent.parents)):
        variables = _read_env_file(here)
    kept = {name: value for name, value in variables.items() if name in FROM_ANY_FOLDER}
    own: dict[str, str] = {}
    for file in (home_env_file(), *([Path(named).expanduser()] if named else [])):
        own |= _read_env_file(file.resolve())
    if named and not Path(named).expanduser().is_file():
        _logger.warning("P2P_ENV_FILE: there is no file %r", named)
    if ignored := sorted(
        (variables.keys() - kept.keys()) & _VARIABLES.keys() - own.keys() - os.environ.keys()
    ):
        _logger.warning(
            "%r: %s ignored: the file of a folder gives keys and models only; move it to %s, or "
            "name the file in P2P_ENV_FILE",
            str(here), ", ".join(ignored), home_env_file(),
        )  # fmt: skip
    return kept | own


def _read_env_file(path: Path) -> dict[str, str]:
    """Values as they stand there; none of a file that is not this user's."""
    from dotenv import dotenv_values

    try:
        with open_data(path, MAX_ENV_BYTES) as stream:
            if os.fstat(stream.fileno()).st_uid not in {os.getuid(), 0}:
                return {}
            text = stream.read().decode()
    except (OSError, UnicodeDecodeError):
        return {}
    # Not interpolated: a key must not end up in the name of a folder or a model.
    values = dotenv_values(stream=io.StringIO(text), interpolate=False)
    return {name.upper(): value for name, value in values.items() if value is not None}


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process; `get_settings.cache_clear()` reads them anew.

    An environment variable counts more than a file; upper and lower case are the same.
    """
    variables = {name.upper(): value for name, value in os.environ.items()}
    values = {**file_variables(), **variables}
    return Settings.model_validate(
        {alias: values[name] for name, alias in _VARIABLES.items() if name in values}
    )


def redact(text: str) -> str:
    """The text without this process's secrets, in whichever of the usual ways they are written."""
    secrets = get_settings().secrets()
    if not secrets:
        return text
    from unstable.foreign_text import without_secrets  # not there in sandboxes, nor are secrets

    return without_secrets(text, secrets)


def command_in(runs_dir: Path, command: str) -> str:
    """A command to paste: with `--runs-dir` where these runs are not in the usual place."""
    if runs_dir.absolute() == get_settings().runs_dir.absolute():
        return command
    return f"{command} --runs-dir {shlex.quote(str(runs_dir))}"


def check_name(name: str) -> str:
    """The name, if it can stand as one folder name below ours; raises ValueError otherwise."""
    if not name or name.startswith(".") or any(c in name for c in "/\\\0") or ".." in name:
        raise ValueError(f"not a valid name: {name!r}")
    return name


def session_path(session_id: str) -> Path:
    """The path of a session below a runs folder; raises ValueError for an id that leaves it.

    A case of a benchmark, `bm_..._case7`, lies inside the benchmark: `bm_.../case7`.
    """
    check_name(session_id)
    case = _BENCHMARK_CASE.fullmatch(session_id)
    return Path(*(case.groups() if case else (session_id,)))


def resolve_session_dir(session_id: str, runs_dir: Path | None = None) -> Path:
    """The folder of a session; raises ValueError for an id that would lead out of the folder."""
    return (runs_dir or get_settings().runs_dir) / session_path(session_id)


def is_benchmark_case(session_id: str) -> bool:
    return _BENCHMARK_CASE.fullmatch(session_id) is not None
