"""Who can be asked: names like `anthropic:claude-...` and how each becomes a model.

A new kind of provider is a small function and a line in `PROVIDERS`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2p.inference.question import AuthenticationFailed, RequestRejected
from p2p.settings import Settings, get_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic_ai.models import Model
    from pydantic_ai.models.function import FunctionDef

BUILTIN = "builtin"


@dataclass(frozen=True, slots=True)
class Provider:
    """A kind of provider."""

    make: Callable[[str, Settings], Model]
    key: str = ""
    """The setting that holds the key it cannot do without."""
    default_model: str = ""
    guess: str = ""
    """A pattern for names of models that are this provider's unless said otherwise."""
    price_list: str = ""
    """Its name in genai-prices; a provider without one has prices only from the override file."""
    local: bool = False
    """Costs nothing, is not told how long an answer may be, and answers in JSON, not by a tool."""
    sees_video: bool = False


def _anthropic(name: str, settings: Settings) -> Model:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(
        api_key=_secret(settings, "anthropic_api_key"), base_url=settings.anthropic_base_url
    )
    return AnthropicModel(name, provider=provider)


def _openai(name: str, settings: Settings) -> Model:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(
        api_key=_secret(settings, "openai_api_key"), base_url=settings.openai_base_url
    )
    return OpenAIResponsesModel(name, provider=provider)


def _google(name: str, settings: Settings) -> Model:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(
        api_key=_secret(settings, "gemini_api_key"), base_url=settings.google_gemini_base_url
    )
    return GoogleModel(name, provider=provider)


def _openrouter(name: str, settings: Settings) -> Model:
    from pydantic_ai.models.openrouter import OpenRouterModel
    from pydantic_ai.providers.openrouter import OpenRouterProvider

    provider = OpenRouterProvider(api_key=_secret(settings, "openrouter_api_key"))
    if settings.openrouter_base_url:
        provider.client.base_url = settings.openrouter_base_url
    return OpenRouterModel(name, provider=provider)


def _ollama(name: str, settings: Settings) -> Model:
    from pydantic_ai.models.ollama import OllamaModel
    from pydantic_ai.providers.ollama import OllamaProvider

    url = f"{settings.ollama_url.rstrip('/')}/v1"
    key = _secret(settings, "ollama_api_key") or None
    return OllamaModel(name, provider=OllamaProvider(base_url=url, api_key=key))


def _vllm(name: str, settings: Settings) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.vllm import VLLMProvider

    url = f"http://{settings.vllm_host}:{settings.vllm_port}/v1"
    key = _secret(settings, "vllm_api_key") or None
    return OpenAIChatModel(name, provider=VLLMProvider(base_url=url, api_key=key))


def _openai_compatible(name: str, settings: Settings) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    if not settings.openai_base_url:
        raise RequestRejected(
            f"openai-compatible:{name} has no address: set OPENAI_BASE_URL, for example to "
            "http://localhost:8000/v1"
        )
    provider = OpenAICompatibleProvider(
        "openai-compatible",
        base_url=settings.openai_base_url,
        api_key=_secret(settings, "openai_api_key") or None,
    )
    return OpenAIChatModel(name, provider=provider)


def _no_builtin(_name: str, _settings: Settings) -> Model:
    raise RequestRejected("the built-in author is not at hand here")


PROVIDERS: dict[str, Provider] = {
    "anthropic": Provider(
        _anthropic, "anthropic_api_key", "claude-sonnet-5-5", r"claude", "anthropic"
    ),
    "openai": Provider(_openai, "openai_api_key", "gpt-6.1-sol", r"gpt-(?!oss)|o[134]\b", "openai"),
    "google": Provider(
        _google, "gemini_api_key", "gemini-3.8-flash", r"gemini", "google", sees_video=True
    ),
    "openrouter": Provider(_openrouter, "openrouter_api_key", price_list="openrouter"),
    "openai-compatible": Provider(_openai_compatible),
    "ollama": Provider(_ollama, local=True),
    "vllm": Provider(_vllm, local=True),
    BUILTIN: Provider(_no_builtin, guess=r"builtin$", local=True),
}  # fmt: skip

DEFAULT_ORDER = ("anthropic", "openai", "google")


def choose_model(name: str = "") -> str:
    """`provider:model` for what a person said; for nothing, what the settings give.

    That is LLM_MODEL, else the default model of the first provider with a key, else `builtin`.
    Raises RequestRejected for a provider nobody knows, AuthenticationFailed without its key.
    """
    settings = get_settings()
    name = name.strip() or settings.llm_model.strip()
    if not name:
        with_key = (p for p in DEFAULT_ORDER if _secret(settings, PROVIDERS[p].key))
        first = next(with_key, None)
        return f"{first}:{PROVIDERS[first].default_model}" if first else BUILTIN
    provider, model = split_model(name)
    kind = PROVIDERS[provider]
    if kind.key and not _secret(settings, kind.key):
        raise AuthenticationFailed(
            f"no key for {provider}: set {kind.key.upper()} in the environment or in .env, or "
            f"choose another model ({_choices()})"
        )
    return f"{provider}:{model}" if model else provider


def split_model(name: str) -> tuple[str, str]:
    """The provider's name and the model's (empty for `builtin`), guessed where it must be."""
    provider, colon, model = name.partition(":")
    if provider == BUILTIN:
        return BUILTIN, ""
    if colon and provider in PROVIDERS:
        model = model.strip() or PROVIDERS[provider].default_model
        if model:
            return provider, model
        raise RequestRejected(f"{name} names no model: write {provider}:MODEL")
    if not colon and name in PROVIDERS and PROVIDERS[name].default_model:
        return name, PROVIDERS[name].default_model
    for guessed, kind in PROVIDERS.items():
        if kind.guess and re.match(kind.guess, name):
            return guessed, name
    raise RequestRejected(f"nobody knows the model {name!r}: write PROVIDER:MODEL ({_choices()})")


def make_model(name: str, builtin: FunctionDef | None = None) -> Model:
    """A model to ask, with a connection of its own; the name as `choose_model` gives it."""
    from pydantic_ai.exceptions import UserError

    provider, model = split_model(choose_model(name))
    if provider == BUILTIN and builtin is not None:
        from pydantic_ai.models.function import FunctionModel

        return FunctionModel(builtin, model_name=BUILTIN)
    try:
        return PROVIDERS[provider].make(model, get_settings())
    except UserError as error:
        raise RequestRejected(f"{name}: {error}") from error


def _secret(settings: Settings, field: str) -> str:
    key = getattr(settings, field)
    return "" if key is None else str(key.get_secret_value()).strip()


def _choices() -> str:
    return f"providers: {', '.join(PROVIDERS)}"
