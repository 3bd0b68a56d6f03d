"""Requests and answers in plain JSON: as they are kept in files, and as one is known again."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters

_CHANGES_EVERY_TIME = frozenset({
    "timestamp", "run_id", "conversation_id", "metadata", "usage", "model_name", "model_id", "id",
    "provider_name", "provider_url", "provider_details", "provider_response_id", "finish_reason",
    "canonical_system", "workspace_ref", "history_digest", "failed_attempts", "state", "signature",
})  # fmt: skip
"""What stands in messages without being part of what was said."""

_BYTES_PER_TOKEN = 3  # few, so that an estimate is rather too high, in any script
_TOKENS_PER_PICTURE = 1_600
_TOKENS_PER_VIDEO = 60_000  # vlm.MOST_VIDEO_FRAMES frames, 258 each, and some more
_WRITING_THE_CACHE = 1.25  # dearer than reading uncached


def plain_messages(messages: list[ModelMessage]) -> list[Any]:
    """The messages as JSON holds them; of pictures and videos their digest and size."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    plain = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    found: list[Any] = _without_media(plain)
    return found


def plain_response(response: ModelResponse) -> Any:
    """An answer as JSON holds it."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]


def read_response(plain: Any) -> ModelResponse:
    """The answer back from JSON; raises pydantic's ValidationError."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    [message] = ModelMessagesTypeAdapter.validate_python([plain])
    assert isinstance(message, ModelResponse)
    return message


def plain_parameters(parameters: ModelRequestParameters) -> dict[str, Any]:
    """What the model is offered: its tools and the form of its answer."""
    wanted = parameters.output_object
    return {
        "tools": [_tool(tool) for tool in parameters.function_tools],
        "output_tools": [_tool(tool) for tool in parameters.output_tools],
        "output_object": None if wanted is None else wanted.json_schema,
        "output_mode": parameters.output_mode,
    }


def request_key(model: str, messages: list[Any], parameters: dict[str, Any], effort: str) -> str:
    """The same for requests that say the same, whenever and by whichever process they are made."""
    said = _what_was_said(messages, {})
    text = json.dumps([model, said, parameters, effort], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def tokens_in(messages: list[Any], offer: dict[str, Any]) -> int:
    """About how many tokens a request has; rather too many than too few."""
    size, media = _measure(messages)
    text = (size + _measure(offer)[0]) / _BYTES_PER_TOKEN
    return int(_WRITING_THE_CACHE * (text + media))


def _tool(tool: Any) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters_json_schema,
    }


def _without_media(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_media(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("kind") == "binary" and isinstance(value.get("data"), str):
        data = base64.urlsafe_b64decode(value["data"])
        digest = hashlib.sha256(data).hexdigest()
        return {
            "kind": "binary",
            "media_type": value.get("media_type"),
            "vendor_metadata": value.get("vendor_metadata"),
            "sha256": digest,
            "bytes": len(data),
        }
    return {key: _without_media(item) for key, item in value.items()}


def _what_was_said(value: Any, names: dict[str, str]) -> Any:
    """Without what changes every time; tool calls are named by their order."""
    if isinstance(value, list):
        return [_what_was_said(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: names.setdefault(item, f"call {len(names)}")
        if key == "tool_call_id" and isinstance(item, str)
        else _what_was_said(item, names)
        for key, item in value.items()
        if key not in _CHANGES_EVERY_TIME
    }


def _measure(value: Any) -> tuple[int, int]:
    """Bytes of text, and tokens of pictures and videos."""
    if isinstance(value, str):
        return len(value.encode(errors="replace")), 0
    if isinstance(value, dict) and value.get("kind") == "binary":
        video = str(value.get("media_type")).startswith("video/")
        return 0, _TOKENS_PER_VIDEO if video else _TOKENS_PER_PICTURE
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        parts = [_measure(item) for item in value]
        return sum(part[0] for part in parts), sum(part[1] for part in parts)
    return 8, 0
