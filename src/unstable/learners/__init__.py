"""Who trains, loaded when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unstable.learners.standard_learner import StandardLearner

__all__ = ["StandardLearner"]


def __getattr__(name: str) -> Any:
    """Load the learner when it is first used: it needs torch."""
    if name != "StandardLearner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from unstable.learners.standard_learner import StandardLearner

    return StandardLearner
