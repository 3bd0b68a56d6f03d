"""The wire formats of four model APIs: what a request holds, and how a reply is written down.

Anthropic Messages, OpenAI Responses, OpenAI Chat Completions (which vLLM, Ollama and others speak,
too) and Gemini generateContent. See `model_servers` for the server.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Protocol = Literal["anthropic", "responses", "chat", "google"]
Body = dict[str, Any]

OUTPUT_TOOL = "final_result"
"""How the client calls the tool that takes the typed answer."""
TOKENS_IN, TOKENS_OUT = 100, 50
"""What every reply says it has used."""


@dataclass(frozen=True)
class Received:
    """One request, as it came in."""

    protocol: Protocol
    path: str
    headers: dict[str, str]
    body: Body

    @property
    def user_texts(self) -> list[str]:
        """What the user's messages say, from the first to the last."""
        return list(_user_texts(self.protocol, self.body))

    @property
    def block(self) -> tuple[str, Body]:
        """Role and content of the last `<request role="...">` block of the conversation."""
        found = re.findall(r'<request role="(\w+)">\n(.*?)\n</request>', "\n".join(self.user_texts),
                           re.DOTALL)  # fmt: skip
        assert found, "no request block in the conversation"
        role, content = found[-1]
        return role, json.loads(content)

    @property
    def tools(self) -> list[str]:
        """Names of the tools that are offered, the one for the answer among them."""
        if self.protocol == "google":
            groups = self.body.get("tools") or []
            return [d["name"] for g in groups for d in g.get("functionDeclarations", [])]
        tools = self.body.get("tools") or []
        return [t["function"]["name"] if "function" in t else t["name"] for t in tools]

    @property
    def media(self) -> list[tuple[str, bytes]]:
        """Every picture and video in the request: media type and content."""
        return list(_media(self.body))

    @property
    def everything(self) -> str:
        """The whole body as text, to look for what must or must not be there."""
        return json.dumps(self.body)


# --- replies ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A call of a tool; several in one reply are possible."""

    tool: str
    arguments: Body | str = field(default_factory=dict)
    """Text goes out as it is, where the protocol writes arguments as text: OpenAI's do."""


@dataclass(frozen=True)
class Content:
    """A reply of the model: text, then calls, then why it ends."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    ends: Literal["done", "length", "refusal"] = "done"


def output(received: Received, value: Body) -> Content:
    """The typed answer, in the form that this request wants: a tool call or JSON."""
    if OUTPUT_TOOL in received.tools:
        return Content(calls=(Call(OUTPUT_TOOL, value),))
    return Content(text=json.dumps(value))


def write_reply(received: Received, content: Content, number: int) -> Body:
    """The reply's body in the protocol of the request."""
    return _WRITERS[received.protocol](received, content, number)


def write_error(protocol: Protocol, status: int, message: str) -> Body:
    """The body of an error."""
    if protocol == "anthropic":
        kind = {401: "authentication_error", 429: "rate_limit_error", 404: "not_found_error",
                400: "invalid_request_error"}.get(status, "api_error")  # fmt: skip
        return {"type": "error", "error": {"type": kind, "message": message}}
    if protocol == "google":
        state = {401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED", 404: "NOT_FOUND",
                 400: "INVALID_ARGUMENT"}.get(status, "INTERNAL")  # fmt: skip
        return {"error": {"code": status, "message": message, "status": state}}
    return {"error": {"message": message, "type": "error", "code": None, "param": None}}


def _anthropic(received: Received, content: Content, number: int) -> Body:
    parts: list[Body] = [{"type": "text", "text": content.text}] if content.text else []
    parts += [
        {"type": "tool_use", "id": f"toolu_{number}_{i}", "name": c.tool, "input": c.arguments}
        for i, c in enumerate(content.calls)
    ]
    ends = {"done": "tool_use" if content.calls else "end_turn", "length": "max_tokens",
            "refusal": "refusal"}[content.ends]  # fmt: skip
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": received.body["model"],
        "content": parts,
        "stop_reason": ends,
        "stop_sequence": None,
        "usage": {"input_tokens": TOKENS_IN, "output_tokens": TOKENS_OUT},
    }


def anthropic_events(message: Body) -> Iterator[Body]:
    """A reply as the events of a stream, as they are sent for long answers."""
    parts, usage = message["content"], message["usage"]
    yield {"type": "message_start",
           "message": {**message, "content": [], "stop_reason": None}}  # fmt: skip
    for i, part in enumerate(parts):
        if part["type"] == "text":
            empty, delta = {**part, "text": ""}, {"type": "text_delta", "text": part["text"]}
        else:
            empty = {**part, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(part["input"])}
        yield {"type": "content_block_start", "index": i, "content_block": empty}
        yield {"type": "content_block_delta", "index": i, "delta": delta}
        yield {"type": "content_block_stop", "index": i}
    ends = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ends, "usage": usage}
    yield {"type": "message_stop"}


def _responses(received: Received, content: Content, number: int) -> Body:
    items: list[Body] = []
    if content.text:
        kind = (
            {"type": "refusal", "refusal": content.text}
            if content.ends == "refusal"
            else {"type": "output_text", "text": content.text, "annotations": []}
        )
        items.append({"type": "message", "id": f"msg_{number}", "role": "assistant",
                      "status": "completed", "content": [kind]})  # fmt: skip
    items += [
        {"type": "function_call", "id": f"fc_{number}_{i}", "call_id": f"call_{number}_{i}",
         "name": c.tool, "arguments": _as_text(c), "status": "completed"}
        for i, c in enumerate(content.calls)
    ]  # fmt: skip
    cut = content.ends == "length"
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": received.body["model"],
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "output": items,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": TOKENS_IN,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": TOKENS_OUT,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": TOKENS_IN + TOKENS_OUT,
        },
    }


def _as_text(call: Call) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def _chat(received: Received, content: Content, number: int) -> Body:
    refused = content.ends == "refusal"
    message: Body = {
        "role": "assistant",
        "content": None if refused else content.text,
        "refusal": content.text if refused else None,
    }
    if content.calls:
        message["tool_calls"] = [
            {"id": f"call_{number}_{i}", "type": "function",
             "function": {"name": c.tool, "arguments": _as_text(c)}}
            for i, c in enumerate(content.calls)
        ]  # fmt: skip
    ends = "length" if content.ends == "length" else "tool_calls" if content.calls else "stop"
    # OpenRouter's own dialect names who has answered.
    more = {"provider": "OpenAI"} if received.path.startswith("/api/") else {}
    return {
        **more,
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": received.body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": ends}],
        "usage": {
            "prompt_tokens": TOKENS_IN,
            "completion_tokens": TOKENS_OUT,
            "total_tokens": TOKENS_IN + TOKENS_OUT,
        },
    }


def _google(received: Received, content: Content, number: int) -> Body:
    parts: list[Body] = [{"text": content.text}] if content.text else []
    parts += [{"functionCall": {"name": c.tool, "args": c.arguments}} for c in content.calls]
    if content.ends == "refusal":
        parts = []  # a filtered answer has none, only the reason
    ends = {"done": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY"}[content.ends]
    candidate: Body = {"finishReason": ends, "index": 0}
    if parts:
        candidate["content"] = {"role": "model", "parts": parts}
    return {
        "candidates": [candidate],
        "modelVersion": "gemini-on-loopback",
        "responseId": f"response-{number}",
        "usageMetadata": {
            "promptTokenCount": TOKENS_IN,
            "candidatesTokenCount": TOKENS_OUT,
            "totalTokenCount": TOKENS_IN + TOKENS_OUT,
        },
    }


_WRITERS: dict[Protocol, Callable[[Received, Content, int], Body]] = {
    "anthropic": _anthropic,
    "responses": _responses,
    "chat": _chat,
    "google": _google,
}


# --- reading requests -------------------------------------------------------------------------


def _user_texts(protocol: Protocol, body: Body) -> Iterator[str]:
    if protocol == "google":
        for message in body["contents"]:
            if message.get("role") == "user":
                yield from (part["text"] for part in message["parts"] if "text" in part)
        return
    messages = body["input"] if protocol == "responses" else body["messages"]
    for message in (
        [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    ):
        content = message.get("content") if message.get("role") == "user" else None
        if isinstance(content, str):
            yield content
        elif content:
            yield from (part["text"] for part in content if "text" in part)


def _media(value: Any) -> Iterator[tuple[str, bytes]]:
    if isinstance(value, str):
        if match := re.fullmatch(r"data:([\w/]+);base64,(.*)", value, re.DOTALL):
            yield match[1], base64.b64decode(match[2])
    elif isinstance(value, dict):
        kind = value.get("media_type") or value.get("mimeType") or value.get("mime_type")
        if kind and isinstance(value.get("data"), str):
            yield kind, base64.b64decode(value["data"].translate({45: 43, 95: 47}))
        else:
            for item in value.values():
                yield from _media(item)
    elif isinstance(value, list):
        for item in value:
            yield from _media(item)
