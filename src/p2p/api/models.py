"""Questions to models: criteria for a prompt, the analysis of a session, and the VLM."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import APIRouter
from sse_starlette import EventSourceResponse

from p2p.api.live import STREAMED, Message, stream
from p2p.api.problems import BadRequest, WrongState
from p2p.api.schemas import (
    AnalyzeRequest,
    ProposalRequest,
    VlmChatRequest,
    VlmChatResponse,
    VlmMessage,
    VlmStatusResponse,
    VlmTag,
    VlmTags,
)
from p2p.api.state import State
from p2p.config import LoopConfig
from p2p.contracts import Intent, Record, utc_now
from p2p.event_log import last_event, read_events
from p2p.inference.ledger import allowance
from p2p.inference.llm_client import LLMClient
from p2p.inference.providers import BUILTIN, PROVIDERS, choose_model, split_model
from p2p.inference.question import AskingCancelled, InferenceError, Media, Question
from p2p.records.iteration_record import SessionRecord
from p2p.session.agents import SessionAgents, analyze_session, check_models
from p2p.settings import get_settings, redact

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from p2p.contracts import Event, SessionAnalysis

router = APIRouter(prefix="/api")
PROPOSALS = ".proposals"
VLM_CHATS = ".vlm"
"""Folders below the runs: what was asked, and what it cost. No question is paid for twice."""
LOOK_S = 0.3
REACH_S = 0.5
SIGNATURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png"}
INSTRUCTIONS = "You look at frames of a robot simulation and answer questions about them."
EVENT_TEXTS = {
    "llm.call": "answered", "llm.wait": "asks to wait", "llm.replay": "answered before",
}  # fmt: skip
_analyses: dict[str, asyncio.Task[SessionAnalysis]] = {}
"""By the session's folder: an analysis goes on, and is kept, also when nobody listens any more."""


@router.post("/criteria", tags=["sessions"])
def propose_criteria(state: State, body: ProposalRequest) -> Intent:
    """The criteria for a prompt, before anything is started; asks the model, which may cost."""
    record = SessionRecord(state.runs_dir / PROPOSALS)
    record.path.mkdir(parents=True, exist_ok=True)
    model = body.model or ""
    budget = allowance(record.llm_dir, model, body.budget_usd)
    agents = SessionAgents(record, LoopConfig(model=model, budget_usd=budget))
    try:
        env_id = body.env_id
        if not env_id:
            choice = agents.choose_environment(body.prompt)
            if choice.env_id is None:
                raise BadRequest(choice.reason)
            env_id = choice.env_id
        return agents.elicit(body.prompt, env_id)
    except ValueError as error:
        raise BadRequest(str(error)) from error


@router.post(
    "/sessions/{session_id}/analyze",
    tags=["events"],
    response_class=EventSourceResponse,
    responses=STREAMED,
)
async def analyze(
    state: State, session_id: str, body: AnalyzeRequest | None = None
) -> EventSourceResponse:
    """Server-sent events: `status` while a model thinks, then `analysis` or `error`.

    Asks a model, which may cost something; an analysis that exists is sent as it is.
    """
    record, options = state.session(session_id), body or AnalyzeRequest()
    if record.config.read() is None:
        raise WrongState(f"{session_id} is a training run, not a session")
    check_models(options.model or "", "")
    key = str(record.path)
    if key in _analyses:
        raise WrongState(f"session {session_id} is being analysed")
    last = last_event(record.events_path)
    analysis = asyncio.to_thread(
        analyze_session,
        record,
        model=options.model or "",
        again=options.again,
        most_usd=options.budget_usd,
        cancelled=state.closing,
    )
    task = asyncio.create_task(analysis)
    _analyses[key] = task
    task.add_done_callback(lambda _: _analyses.pop(key))
    return stream(_report_progress(record, task, last.seq if last else 0))


async def _report_progress(
    record: SessionRecord, task: asyncio.Task[SessionAnalysis], seen: int
) -> AsyncIterator[Message]:
    yield _message("status", message="analysing the session")
    while not task.done():
        await asyncio.wait({task}, timeout=LOOK_S)
        for event in await asyncio.to_thread(read_events, record.events_path, after_seq=seen):
            seen = event.seq
            if event.event.startswith("llm."):
                yield _message("status", message=_describe_call(event))
    try:
        analysis = task.result()
    except (InferenceError, AskingCancelled, ValueError, OSError) as error:
        yield _message("error", error=redact(str(error)) or "the server has ended")
        return
    yield {"event": "analysis", "data": analysis.model_dump_json()}


def _describe_call(event: Event) -> str:
    return f"{event.data.get('model', 'the model')} {EVENT_TEXTS.get(event.event, 'failed')}"


def _message(kind: str, **data: str) -> Message:
    return {"event": kind, "data": json.dumps(data)}


class _Reply(Record):
    text: str


@router.get("/vlm/status", tags=["vlm"])
def vlm_status() -> VlmStatusResponse:
    """Which model judges from video, and whether its server can be reached; asks it nothing."""
    try:
        model = _choose_vlm(None)
    except (WrongState, InferenceError) as error:
        return VlmStatusResponse(
            configured=False, model=get_settings().vlm_model, message=str(error)
        )
    provider, _ = split_model(model)
    reachable = _is_reachable(provider) if PROVIDERS[provider].local else None
    message = "" if reachable is not False else f"no server answers for {provider}"
    return VlmStatusResponse(
        configured=True, model=model, provider=provider, reachable=reachable, message=message
    )


@router.get("/vlm/api/tags", tags=["vlm"])
def vlm_tags() -> VlmTags:
    """Models to choose from: VLM_MODEL, and the default ones of providers that have a key."""
    settings = get_settings()
    defaults = [
        f"{name}:{provider.default_model}"
        for name, provider in PROVIDERS.items()
        if provider.default_model and provider.key and getattr(settings, provider.key) is not None
    ]
    names = dict.fromkeys([*([settings.vlm_model] if settings.vlm_model else []), *defaults])
    return VlmTags(models=tuple(VlmTag(name=name, model=name) for name in names))


@router.post("/vlm/api/chat", tags=["vlm"])
def vlm_chat(state: State, body: VlmChatRequest) -> VlmChatResponse:
    """Ask the VLM; it may cost something."""
    model = _choose_vlm(body.model)
    system = [message.content for message in body.messages if message.role == "system"]
    parts: list[str | Media] = []
    for message in body.messages:
        if message.role != "system":
            parts += [f"{message.role}: {message.content}", *map(_read_image, message.images)]
    folder = state.runs_dir / VLM_CHATS
    budget = allowance(folder, model, body.budget_usd)
    question = Question(
        role="vlm_chat",
        instructions="\n\n".join(system) or INSTRUCTIONS,
        prompt=parts,
        output=_Reply,
    )
    answer = LLMClient(model, folder=folder, budget_usd=budget).ask(question)
    turn = VlmMessage(role="assistant", content=answer.value.text)
    return VlmChatResponse(model=answer.model, created_at=utc_now(), message=turn)


def _choose_vlm(name: str | None) -> str:
    """The full name of the model to ask; raises WrongState or an InferenceError."""
    name = name or get_settings().vlm_model
    if not name:
        raise WrongState("no VLM is configured: set VLM_MODEL, or name a model")
    check_models(BUILTIN, name)
    return choose_model(name)


def _read_image(text: str) -> Media:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest("messages.images: not base64") from error
    for start, kind in SIGNATURES.items():
        if data.startswith(start):
            return Media(data, kind)
    raise BadRequest("messages.images: neither a JPEG nor a PNG file")


def _is_reachable(provider: str) -> bool:
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
