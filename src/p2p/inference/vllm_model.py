"""vLLM's dialect of Chat Completions: whole videos as content parts of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pydantic_ai.models.openai import OpenAIChatModel

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionContentPartParam
    from pydantic_ai import BinaryContent


class VLLMModel(OpenAIChatModel):
    """A model that vLLM serves. OpenAI's own protocol has no part for a video."""

    _unsupported_file_inputs = frozenset()

    async def _map_binary_content_item(self, item: BinaryContent) -> ChatCompletionContentPartParam:
        if not item.is_video:
            return await super()._map_binary_content_item(item)
        part = {"type": "video_url", "video_url": {"url": item.data_uri}}
        return cast("ChatCompletionContentPartParam", part)
