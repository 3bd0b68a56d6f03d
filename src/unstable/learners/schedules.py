"""How the learning rate goes over a run: its factor as a function of the learner's step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def rate_factor(
    name: str, step: int, total: int | None, warmup: int = 0, floor: float = 0.0
) -> float:
    """By what the learning rate is multiplied.

    Args:
        name: one of SCHEDULES.
        step: updates done so far.
        total: updates of the whole run; `constant` needs none.
        warmup: over so many updates the rate rises to its value first.
        floor: the factor at the end.
    """
    if name not in SCHEDULES:
        raise ValueError(f"no lr_schedule {name!r}; there are {', '.join(SCHEDULES)}")
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if name == "constant":
        return 1.0
    if total is None or total <= warmup:
        raise ValueError(f"lr_schedule {name!r} needs lr_total, beyond lr_warmup: it is {total}")
    done = min(1.0, (step - warmup) / (total - warmup))
    return floor + (1.0 - floor) * SCHEDULES[name](done)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    "linear": lambda done: 1.0 - done,
}
"""From the share of the run that is done to the share of the rate that is left."""
