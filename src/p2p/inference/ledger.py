"""The folder of a session's exchanges with models: what was asked, answered and spent.

One file per request, `NNNN_role.json`, there before it is sent. An answer that an earlier process
has paid for is found here again, and the budget is kept over all processes of a session.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import defaultdict, deque
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from p2p.contracts import ModelCall
from p2p.files import free_number, read_bytes, write_text
from p2p.inference import prices
from p2p.inference.providers import BUILTIN, choose_model
from p2p.inference.question import BudgetExhausted, InferenceError
from p2p.settings import redact
from unstable.foreign_text import whole_characters

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters

MAX_EXCHANGE_BYTES = 256 << 20
"""Videos and frames are in it."""
_NAME = re.compile(r"(\d{4,})_\w+\.json")
_COUNTS = ("part_kind", "content", "tool_name", "args", "tool_call_id", "outcome")
"""What of a part of a message says something: the rest changes from one process to the next."""

_BYTES_PER_TOKEN = 3  # few, so that an estimate is rather too high, in any script
_TOKENS_PER_PICTURE = 1_600
_TOKENS_PER_VIDEO = 60_000  # 200 frames of 258 each for Gemini, and some more
_WRITING_THE_CACHE = 1.25  # dearer than reading uncached


@dataclass(frozen=True, slots=True)
class Exchange:
    """A file of the folder."""

    path: Path
    call: ModelCall
    key: str
    replay: bool
    """Whether its answer serves whoever asks the same again."""
    response: Any
    """As `read_response` takes it."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The highest cost of a request in flight."""

    max_tokens: int
    dollars: float | None
    """None: nobody knows."""


class Ledger:
    """A session's exchanges and its budget, for any number of clients and threads."""

    def __init__(self, folder: Path, budget_usd: float | None = None) -> None:
        self.folder = folder
        self.budget_usd = budget_usd
        self.calls = 0
        self.tokens = 0
        self.cost_usd = 0.0
        self.unanswered = 0
        self.unanswered_usd = 0.0
        """The most that requests without an answer can have cost; the budget counts it as spent."""
        self._held = 0.0
        self._holders = 0
        self._lock = Lock()
        self._answers: dict[str, deque[Path]] = defaultdict(deque)
        for path in _exchange_files(folder):
            exchange = _read(path)
            self._count(exchange.call)
            if exchange.replay:
                self._answers[exchange.key].append(path)

    def find_recorded(self, key: str) -> Exchange | None:
        """Return the next answer of an earlier process to this request, each of them once."""
        with self._lock:
            paths = self._answers.get(key)
            if not paths:
                return None
            path = paths.popleft()
        return _read(path)

    def restore_answers(self, used: list[tuple[str, Path]]) -> None:
        """Restore a failed question's answers for the next try."""
        with self._lock:
            for key, path in reversed(used):
                self._answers[key].appendleft(path)

    def announce(self, key: str, call: ModelCall, exchange: dict[str, Any]) -> ModelCall:
        """Record a request before it is sent; return the call with its number and file name.

        If this process ends before `record` or `withdraw`, later ones count the trace.
        """
        return self._save(key, call, exchange)[0]

    def withdraw(self, call: ModelCall) -> None:
        """Remove an announced request that was not charged."""
        (self.folder / call.file).unlink(missing_ok=True)

    def record(self, key: str, call: ModelCall, exchange: dict[str, Any]) -> tuple[ModelCall, Path]:
        """Keep an exchange, in the file of its trace or a new one, and count it."""
        call, path = self._save(key, call, exchange)
        with self._lock:
            self._count(call)
        return call, path

    def _save(self, key: str, call: ModelCall, exchange: dict[str, Any]) -> tuple[ModelCall, Path]:
        """Write an exchange, secrets taken out."""
        if not call.file:
            with free_number(self.folder, self._numbers) as number:
                role = re.sub(r"\W+", "_", call.role) or "unnamed"
                file = f"{number:04d}_{role}.json"
                call = call.model_copy(update={"number": number, "file": file})
                return self._save(key, call, exchange)
        about = {"call": call.model_dump(mode="json"), "key": key, "replay": not call.no_answer}
        _write(self.folder / call.file, {**about, **exchange})
        return call, self.folder / call.file

    def _numbers(self) -> set[int]:
        return set(map(_number, _exchange_files(self.folder)))

    def forget(self, roles: frozenset[str]) -> None:
        """Stop replaying the answers to these roles."""
        with self._lock:
            for key, paths in self._answers.items():
                gone = [path for path in paths if _read(path).call.role in roles]
                self.discard_answers(gone)
                self._answers[key] = deque(path for path in paths if path not in gone)

    def discard_answers(self, paths: list[Path]) -> None:
        """Mark answers as not to be replayed, so that a later process asks the model again."""
        for path in paths:
            _write(path, {**json.loads(read_bytes(path, MAX_EXCHANGE_BYTES)), "replay": False})

    def reserve(self, estimate: prices.Estimate, most: int, least: int) -> Reservation | None:
        """Hold what a request can cost while it is under way; to be given back with `release`.

        The answer may be `most` tokens long, or fewer if the budget has no more left. None: there
        will perhaps be enough once other requests have given back what they hold. Raises
        BudgetExhausted when not even `least` tokens can be paid.
        """
        if self.budget_usd is None:
            return Reservation(most, estimate.total(most))
        with self._lock:
            left = self.budget_usd - self.cost_usd - self.unanswered_usd - self._held
            tokens = min(most, estimate.tokens_for(left))
            if tokens >= min(least, most):
                reservation = Reservation(tokens, estimate.total(tokens))
                self._held += reservation.dollars or 0.0
                self._holders += 1
                return reservation
            if self._holders:
                return None
            lost = f" (up to ${self.unanswered_usd:.4f} went to requests without an answer)"
            raise BudgetExhausted(
                f"the next call can cost ${estimate.total(least):.4f}, and of the budget of "
                f"${self.budget_usd:g} ${max(left, 0.0):.4f} is left"
                f"{lost if self.unanswered_usd else ''}: resume with a higher one"
            )

    def release(self, reservation: Reservation) -> None:
        """Release the reservation of a finished request whose cost is recorded."""
        if self.budget_usd is None:
            return
        with self._lock:
            self._holders -= 1
            # Sums of floats do not come back to zero by themselves.
            dollars = reservation.dollars or 0.0
            self._held = self._held - dollars if self._holders else 0.0

    def _count(self, call: ModelCall) -> None:
        if call.model == BUILTIN:
            return  # no model was asked
        if call.no_answer:
            self.unanswered += 1
            self.unanswered_usd += call.cost_usd or 0.0
            return
        self.calls += 1
        self.tokens += call.input_tokens + call.output_tokens
        self.cost_usd += call.cost_usd or 0.0


def allowance(folder: Path, model: str, more_usd: float) -> float | None:
    """The budget with which a client of this folder can spend so much more than it has.

    None where nobody knows what the model costs: no budget could be kept. Raises InferenceError.
    """
    if prices.estimate(choose_model(model), 1) is None:
        return None
    spent = Ledger(folder)
    return spent.cost_usd + spent.unanswered_usd + more_usd


def dump_messages(messages: list[ModelMessage]) -> list[Any]:
    """The messages as JSON holds them; of pictures and videos their digest and size."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    plain: list[Any] = _drop_media(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))
    return plain


def dump_response(response: ModelResponse) -> Any:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]


def read_response(plain: Any) -> ModelResponse:
    """The answer back from JSON; raises pydantic's ValidationError."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    [message] = ModelMessagesTypeAdapter.validate_python([clean_value(plain)])
    assert isinstance(message, ModelResponse)
    return message


def clean_response(response: ModelResponse) -> ModelResponse:
    """The answer with `clean_value` texts."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    [plain] = ModelMessagesTypeAdapter.dump_python([response])
    return response if clean_value(plain) == plain else read_response(plain)


def clean_value(value: Any) -> Any:
    """The value without secrets, and without halves of characters, which no file can hold."""
    if isinstance(value, dict):
        return {clean_value(key): clean_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_value(item) for item in value]
    return redact(whole_characters(value)) if isinstance(value, str) else value


def dump_parameters(parameters: ModelRequestParameters) -> dict[str, Any]:
    """The tools and the answer's schema that the model is offered, as JSON."""
    output = parameters.output_object
    return {
        "tools": [_tool(tool) for tool in parameters.function_tools],
        "output_tools": [_tool(tool) for tool in parameters.output_tools],
        "output_object": None if output is None else output.json_schema,
        "output_mode": parameters.output_mode,
    }


def request_key(model: str, messages: list[Any], parameters: dict[str, Any], effort: str) -> str:
    """The same for requests that say the same, whenever and by whichever process they are made."""
    text = json.dumps([model, _strip_volatile_fields(messages), parameters, effort], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def tokens_in(messages: list[Any], offer: dict[str, Any]) -> int:
    """About how many tokens a request has; rather too many than too few."""
    size, media = _size_of(messages)
    text = (size + _size_of(offer)[0]) / _BYTES_PER_TOKEN
    return int(_WRITING_THE_CACHE * (text + media))


def _tool(tool: Any) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters_json_schema,
    }


def _drop_media(value: Any) -> Any:
    if isinstance(value, list):
        return [_drop_media(item) for item in value]
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
    return {key: _drop_media(item) for key, item in value.items()}


def _strip_volatile_fields(messages: list[Any]) -> list[Any]:
    """Kinds, instructions and parts; tool calls are named by their order."""
    names: dict[str, str] = {}

    def part(plain: dict[str, Any]) -> dict[str, Any]:
        kept = {key: plain[key] for key in _COUNTS if key in plain}
        if call := kept.get("tool_call_id"):
            kept["tool_call_id"] = names.setdefault(call, f"call {len(names)}")
        return kept

    return [
        {
            **{key: message[key] for key in ("kind", "instructions") if key in message},
            "parts": [part(plain) for plain in message["parts"]],
        }
        for message in messages
    ]


def _size_of(value: Any) -> tuple[int, int]:
    """Bytes of text, and tokens of pictures and videos."""
    if isinstance(value, str):
        return len(value.encode(errors="replace")), 0
    if isinstance(value, dict) and value.get("kind") == "binary":
        video = str(value.get("media_type")).startswith("video/")
        return 0, _TOKENS_PER_VIDEO if video else _TOKENS_PER_PICTURE
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        parts = [_size_of(item) for item in value]
        return sum(part[0] for part in parts), sum(part[1] for part in parts)
    return 8, 0


def _exchange_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), key=_number)


def _number(path: Path) -> int:
    return int(path.name.partition("_")[0])


def _read(path: Path) -> Exchange:
    try:
        content = json.loads(read_bytes(path, MAX_EXCHANGE_BYTES))
        call = ModelCall.model_validate(content["call"])
        key, replay = str(content["key"]), bool(content["replay"])
        return Exchange(path, call, key, replay, content["response"])
    except (OSError, RecursionError, ValueError, KeyError, TypeError) as error:
        # Left out, it would be paid for a second time and missing from what was spent.
        raise InferenceError(f"{path} is damaged: repair it or move it away ({error})") from error


def _write(path: Path, content: dict[str, Any]) -> None:
    write_text(path, redact(json.dumps(content, indent=1)) + "\n")
