"""How much more may be spent, for questions that no session's budget bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p2p.inference import prices
from p2p.inference.ledger import Ledger
from p2p.inference.providers import choose_model

if TYPE_CHECKING:
    from pathlib import Path


def allowance(folder: Path, model: str, more_usd: float) -> float | None:
    """The budget with which a client of this folder can spend so much more than it has.

    None where nobody knows what the model costs: no budget could be kept. Raises InferenceError.
    """
    if prices.estimate(choose_model(model), 1) is None:
        return None
    spent = Ledger(folder)
    return spent.cost_usd + spent.unanswered_usd + more_usd
