"""What a call costs: the public price list, and a file of one's own that counts more.

The file, named by P2P_PRICES, is JSON: model to dollars per million tokens.

    {"claude-sonnet-5-5": {"input": 2, "output": 10}, "vllm:mine": {"input": 0, "output": 0}}
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, TypeAdapter, ValidationError

from p2p.contracts import Record, describe_errors
from p2p.inference.providers import PROVIDERS, split_model
from p2p.inference.question import InferenceError, RequestRejected
from p2p.settings import get_settings

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_ai.usage import RequestUsage

MILLION = 1_000_000


class Price(Record):
    """Dollars per million tokens."""

    input: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    output: Annotated[float, Field(ge=0, allow_inf_nan=False)]


_FILE = TypeAdapter(dict[str, Price])


@dataclass(frozen=True, slots=True)
class Estimate:
    """The most that a request can cost, in dollars."""

    input: float
    per_output_token: float

    def total(self, output_tokens: int) -> float:
        """Return the cost with an answer of so many tokens."""
        return self.input + output_tokens * self.per_output_token

    def tokens_for(self, dollars: float) -> int:
        """How long an answer may be for so much money; negative if the question is too dear."""
        if dollars < self.input:
            return -1
        if self.per_output_token == 0:
            return sys.maxsize
        return int((dollars - self.input) / self.per_output_token)


def read_prices(path: Path) -> dict[str, Price]:
    """The prices in a file; raises InferenceError, saying what is wrong with it."""
    try:
        return _FILE.validate_json(path.read_bytes())
    except OSError as error:
        raise InferenceError(f"cannot read the prices in {path}: {error.strerror}") from error
    except ValidationError as error:
        raise InferenceError(
            f"the prices in {path} are not usable: {describe_errors(error)} "
            '(expected {"MODEL": {"input": DOLLARS, "output": DOLLARS}} per million tokens)'
        ) from error


def cost(model: str, usage: RequestUsage) -> float | None:
    """The cost in dollars; None where the model's price is unknown."""
    provider, name = split_model(model)
    kind = PROVIDERS[provider]
    path = get_settings().prices
    own = read_prices(path) if path is not None else {}
    price = own.get(model) or own.get(name)
    if price is not None:
        dollars = usage.input_tokens * price.input + usage.output_tokens * price.output
        return dollars / MILLION
    if kind.local:
        return 0.0
    if not kind.price_list:
        return None
    from genai_prices import calc_price

    try:
        return float(calc_price(usage, name, provider_id=kind.price_list).total_price)
    except LookupError:
        return None


def estimate(model: str, input_tokens: int) -> Estimate | None:
    """The highest cost of a request with so much input; None where the price is unknown."""
    from pydantic_ai.usage import RequestUsage

    spent = cost(model, RequestUsage(input_tokens=input_tokens))
    longer = cost(model, RequestUsage(input_tokens=input_tokens, output_tokens=MILLION))
    if spent is None or longer is None:
        return None
    return Estimate(spent, (longer - spent) / MILLION)


def unknown_price(model: str) -> RequestRejected:
    """Why a model without a price cannot be asked within a budget, and what to do about it."""
    path = get_settings().prices
    fix = (
        f"add {model!r} to {path}"
        if path is not None
        else (
            f'write {{"{model}": {{"input": DOLLARS, "output": DOLLARS}}}} (per million tokens) to '
            "a file and name the file in P2P_PRICES"
        )
    )
    return RequestRejected(f"the price of {model} is unknown, so no budget can be kept: {fix}")
