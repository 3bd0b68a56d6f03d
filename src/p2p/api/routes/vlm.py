"""The model that looks at videos: whether there is one, and a question to it."""

from __future__ import annotations

import base64
import binascii
import socket
from datetime import datetime
from typing import Annotated, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter
from pydantic import Field

from p2p.api.house import TheHouse
from p2p.api.problems import BadRequest, NoAnswer, WrongState
from p2p.api.schemas import Budget
from p2p.contracts import Record, utc_now
from p2p.inference.ledger import allowance
from p2p.inference.llm_client import LLMClient
from p2p.inference.providers import BUILTIN, PROVIDERS, choose_model, split_model
from p2p.inference.question import InferenceError, Media, Question
from p2p.session.agents import check_models
from p2p.settings import get_settings

router = APIRouter(prefix="/api/vlm", tags=["vlm"])
FOLDER = ".vlm"
"""Below the runs: what was asked, and what it cost."""
REACH_S = 0.5
SIGNATURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png"}
INSTRUCTIONS = "You look at frames of a robot simulation and answer questions about them."


class VlmMessage(Record):
    """A turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(max_length=100_000)]
    images: tuple[str, ...] = ()
    """JPEG or PNG files in base64."""


class VlmChatRequest(Record):
    """A conversation whose next turn is wanted."""

    model: Annotated[str, Field(max_length=200)] | None = None
    """Else VLM_MODEL."""
    messages: Annotated[tuple[VlmMessage, ...], Field(min_length=1, max_length=100)]
    stream: Literal[False] = False
    budget_usd: Budget = 0.5
    """What it may cost, where the model's price is known."""


class VlmChatResponse(Record):
    """The next turn."""

    model: str
    created_at: datetime
    message: VlmMessage
    done: bool = True


class VlmTag(Record):
    """A model that can look."""

    name: str
    model: str


class VlmTags(Record):
    """A list of models, as Ollama gives it."""

    models: tuple[VlmTag, ...]


class VlmStatusResponse(Record):
    """Whether somebody looks at videos."""

    configured: bool
    model: str = ""
    provider: str = ""
    reachable: bool | None = None
    """Of a server on this machine or near; others are not tried."""
    message: str = ""


class _Reply(Record):
    """What the model answers."""

    text: str


@router.get("/status")
def vlm_status() -> VlmStatusResponse:
    """Who looks at the videos, and whether that can be asked; nothing is asked."""
    try:
        model = _model(None)
    except (WrongState, NoAnswer) as error:
        return VlmStatusResponse(
            configured=False, model=get_settings().vlm_model, message=str(error)
        )
    provider, _ = split_model(model)
    reachable = _reachable(provider) if PROVIDERS[provider].local else None
    message = "" if reachable is not False else f"no server answers for {provider}"
    return VlmStatusResponse(
        configured=True, model=model, provider=provider, reachable=reachable, message=message
    )


@router.get("/api/tags")
def vlm_tags() -> VlmTags:
    """The models that could look: VLM_MODEL, and the usual ones of providers that have a key."""
    settings = get_settings()
    usual = [
        f"{name}:{provider.default_model}"
        for name, provider in PROVIDERS.items()
        if provider.default_model and provider.key and getattr(settings, provider.key) is not None
    ]
    names = dict.fromkeys([*([settings.vlm_model] if settings.vlm_model else []), *usual])
    return VlmTags(models=tuple(VlmTag(name=name, model=name) for name in names))


@router.post("/api/chat")
def vlm_chat(house: TheHouse, wanted: VlmChatRequest) -> VlmChatResponse:
    """Ask the model that looks; it may cost something."""
    model = _model(wanted.model)
    said = [m.content for m in wanted.messages if m.role == "system"]
    parts: list[str | Media] = []
    for message in wanted.messages:
        if message.role != "system":
            parts += [f"{message.role}: {message.content}", *map(_picture, message.images)]
    folder = house.runs_dir / FOLDER
    try:
        client = LLMClient(
            model, folder=folder, budget_usd=allowance(folder, model, wanted.budget_usd)
        )
        answer = client.ask(
            Question(
                role="vlm_chat",
                instructions="\n\n".join(said) or INSTRUCTIONS,
                prompt=parts,
                output=_Reply,
            )
        )
    except InferenceError as error:
        raise NoAnswer(error) from error
    turn = VlmMessage(role="assistant", content=answer.value.text)
    return VlmChatResponse(model=answer.model, created_at=utc_now(), message=turn)


def _model(given: str | None) -> str:
    """Who is to look, by its full name."""
    name = given or get_settings().vlm_model
    if not name:
        raise WrongState("no model looks at videos: set VLM_MODEL, or name one")
    try:
        check_models(BUILTIN, name)
        return choose_model(name)
    except InferenceError as error:
        raise NoAnswer(error) from error


def _picture(text: str) -> Media:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest("messages.images: not base64") from error
    for start, kind in SIGNATURES.items():
        if data.startswith(start):
            return Media(data, kind)
    raise BadRequest("messages.images: neither a JPEG nor a PNG file")


def _reachable(provider: str) -> bool:
    settings = get_settings()
    address = (settings.vllm_host, settings.vllm_port)
    if provider == "ollama":
        url = urlsplit(settings.ollama_url)
        address = (url.hostname or "localhost", url.port or 11434)
    try:
        with socket.create_connection(address, timeout=REACH_S):
            return True
    except OSError:
        return False
