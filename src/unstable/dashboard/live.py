"""The view of a run from its parts: objects of this process, or Ray actors."""

from __future__ import annotations

from typing import Any

from unstable.dashboard.gpus import local_gpus
from unstable.dashboard.source import SourceError
from unstable.dashboard.view import View, make_view

SECONDS = 10.0
"""For an actor to answer; one that is busy for longer is asked again later."""


class LiveParts:
    """A source of views.

    Args:
        tracker: a Tracker, or the handle of one.
        step_buffer: a StepBuffer, or the handle of one; without it the buffer's size is the one
            that the tracker was last told.
    """

    def __init__(self, tracker: Any, step_buffer: Any = None) -> None:
        self._tracker, self._step_buffer = tracker, step_buffer

    def fetch(self) -> View:
        """The view now."""
        info, buffer = self.ask()
        return make_view(info, buffer=buffer, gpus=local_gpus())

    def ask(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """What the tracker says, and what the buffer does, if there is one."""
        info = _ask(self._tracker, "tracker", "get_interface_info")
        if self._step_buffer is None:
            return info, None
        try:
            return info, _ask(self._step_buffer, "step buffer", "stats")
        except SourceError:  # without it the tracker still has nearly everything
            return info, None

    def close(self) -> None:
        """The parts are not ours."""


def _ask(target: Any, name: str, method: str) -> dict[str, Any]:
    bound = getattr(target, method)
    if not hasattr(bound, "remote"):
        return dict(bound())
    import ray

    try:
        return dict(ray.get(bound.remote(), timeout=SECONDS))
    except ray.exceptions.GetTimeoutError:
        raise SourceError(f"the {name} has not answered for {SECONDS:g} s") from None
    except ray.exceptions.RayActorError:
        raise SourceError(f"the {name} is gone") from None
    except ray.exceptions.RayError as error:
        raise SourceError(f"the {name} cannot be asked: {type(error).__name__}") from None
