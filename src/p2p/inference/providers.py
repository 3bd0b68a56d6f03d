"""Who can be asked: names like `anthropic:claude-...` and how each becomes a model.

A new provider is an entry of `PROVIDERS`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from p2p.inference.question import AuthenticationFailed, RequestRejected
from p2p.settings import Settings, get_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider as Connection

BUILTIN = "builtin"


@dataclass(frozen=True, slots=True)
class Provider:
    """A kind of provider."""

    key: str = ""
    """The setting that holds the key it cannot do without."""
    default_model: str = ""
    guess: str = ""
    """A pattern for names of models that are this provider's unless said otherwise."""
    price_list: str = ""
    """Its name in genai-prices; a provider without one has prices only from the override file."""
    local: bool = False
    """Costs nothing, is not told how long an answer may be, and answers in JSON, not by a tool."""
    video_frames: int = 0
    """The most frames of a video that its models look at; 0: they take no videos."""
    optional_key: str = ""
    """The setting of a key that it may ask for."""
    address: str = ""
    """Made of settings, as a format string; the library knows it where one of them is not set."""
    sees: bool = False
    """Whether its models take pictures, as far as one can tell by their provider."""
    prefix: str = ""
    """Another way to name it: `vllm-Qwen/Qwen3-VL-8B` is `vllm:Qwen/Qwen3-VL-8B`."""


PROVIDERS: dict[str, Provider] = {
    "anthropic": Provider(
        "anthropic_api_key", "claude-sonnet-5-5", r"claude", "anthropic", sees=True,
        address="{anthropic_base_url}",
    ),
    "openai": Provider(
        "openai_api_key", "gpt-6.1-sol", r"gpt-(?!oss)|o[134]\b", "openai", sees=True,
        address="{openai_base_url}",
    ),
    "google": Provider(
        "gemini_api_key", "gemini-3.8-flash", r"gemini", "google", video_frames=200, sees=True,
        address="{google_gemini_base_url}",
    ),
    "openrouter": Provider(
        "openrouter_api_key", price_list="openrouter",
        address="{openrouter_base_url}",
    ),
    "openai-compatible": Provider(optional_key="openai_api_key", address="{openai_base_url}"),
    "ollama": Provider(optional_key="ollama_api_key", local=True, address="{ollama_url}/v1"),
    "vllm": Provider(
        optional_key="vllm_api_key", local=True, prefix="vllm-", video_frames=32,
        address="http://{vllm_host}:{vllm_port}/v1",
    ),
    BUILTIN: Provider(guess=r"builtin$", local=True),
}  # fmt: skip
"""By the names of pydantic-ai, which knows how to talk to each of them."""

DEFAULT_ORDER = ("anthropic", "openai", "google")


def choose_model(name: str = "") -> str:
    """`provider:model` for what a person said; for nothing, what the settings give.

    That is LLM_MODEL, else the default model of the first provider with a key, else `builtin`.
    Raises RequestRejected for a provider nobody knows, AuthenticationFailed without its key.
    """
    settings = get_settings()
    name = name.strip() or settings.llm_model.strip()
    if not name:
        with_key = (p for p in DEFAULT_ORDER if _read_key(settings, PROVIDERS[p].key))
        first = next(with_key, None)
        return f"{first}:{PROVIDERS[first].default_model}" if first else BUILTIN
    provider, model = split_model(name)
    kind = PROVIDERS[provider]
    if kind.key and not _read_key(settings, kind.key):
        raise AuthenticationFailed(
            f"no key for {provider}: set {kind.key.upper()} in the environment or in .env, or "
            f"choose another model ({_list_providers()})"
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
        if kind.prefix and len(name) > len(kind.prefix) and name.startswith(kind.prefix):
            return guessed, name.removeprefix(kind.prefix)
        if kind.guess and re.match(kind.guess, name):
            return guessed, name
    raise RequestRejected(f"unknown model {name!r}: write PROVIDER:MODEL ({_list_providers()})")


def address_of(kind: Provider) -> str | None:
    """The base URL of a provider; None for that of its library."""
    values = {field: getattr(get_settings(), field) for field in _address_fields(kind)}
    if not values or any(value in (None, "") for value in values.values()):
        return None
    return kind.address.format(**{name: str(v).rstrip("/") for name, v in values.items()})


def environment_variables(provider: str) -> tuple[str, ...]:
    """Names of the environment variables that a process needs to ask the provider's models."""
    kind = PROVIDERS[provider]
    fields = (kind.key or kind.optional_key, *_address_fields(kind))
    return tuple(field.upper() for field in fields if field)


def on_this_machine(name: str) -> bool:
    """Whether the model is a server of one's own at a loopback address, which may be slow."""
    kind = PROVIDERS[split_model(name)[0]]
    address = None if kind.key else address_of(kind)
    host = (urlsplit(address).hostname or "") if address else ""
    return host in ("localhost", "::1") or host.startswith("127.")


def http_client() -> httpx2.AsyncClient:
    """An HTTP client with pydantic-ai's limits, and one on the length of a reply."""
    from pydantic_ai.models import create_async_httpx2_client

    from unstable.utils.replies import limit_reply

    client = create_async_httpx2_client()
    client.event_hooks = {**client.event_hooks, "response": [limit_reply]}
    return client


def make_model(name: str, client: httpx2.AsyncClient) -> Model:
    """A model to ask over this client; the name as `choose_model` gives it."""
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    provider, model = split_model(choose_model(name))
    connection = _connection(provider, model, client)
    if provider == "vllm":
        from p2p.inference.vllm_server import make_vllm_model

        return make_vllm_model(model, connection)
    spoken = "openai-chat" if provider == "openai-compatible" else provider
    try:
        return infer_model(f"{spoken}:{model}", lambda _: connection)
    except UserError as error:
        raise RequestRejected(f"{name}: {error}") from error


def _connection(provider: str, model: str, client: httpx2.AsyncClient) -> Connection[Any]:
    from pydantic_ai.providers import infer_provider_class
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
    from pydantic_ai.providers.openrouter import OpenRouterProvider

    settings, kind = get_settings(), PROVIDERS[provider]
    key = _read_key(settings, kind.key or kind.optional_key) or None
    address = address_of(kind)
    if provider == "openai-compatible":
        if not address:
            raise RequestRejected(
                f"openai-compatible:{model} has no address: set OPENAI_BASE_URL, for example to "
                "http://localhost:8000/v1"
            )
        return OpenAICompatibleProvider(provider, base_url=address, api_key=key, http_client=client)
    if provider == "openrouter":
        openrouter = OpenRouterProvider(api_key=key, http_client=client)
        if address:
            openrouter.client.base_url = address
        return openrouter
    make: Callable[..., Connection[Any]] = infer_provider_class(provider)
    return make(api_key=key, base_url=address, http_client=client)


def _address_fields(kind: Provider) -> list[str]:
    return [field for _, field, _, _ in Formatter().parse(kind.address) if field]


def _read_key(settings: Settings, field: str) -> str:
    key = getattr(settings, field)
    return "" if key is None else str(key.get_secret_value()).strip()


def _list_providers() -> str:
    return f"providers: {', '.join(PROVIDERS)}"
