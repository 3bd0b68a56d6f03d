"""Train language policies by self-play.

`unstable.Tracker`, `unstable.StepBuffer` and the other parts of a run are Ray actors, made from the
plain classes of their modules when they are first asked for; nothing heavy is loaded before.

    import ray, unstable
    ray.init(namespace="unstable")
    tracker = unstable.Tracker.options(name="Tracker").remote(run_name="demo")
"""

from __future__ import annotations

import os
import sys

_module = "".join(
    sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1] if "-m" in sys.orig_argv else ""
)
_program = _module.split(".")[0] or os.path.basename("".join(sys.argv[:1]))
if _program in ("unstable", "unstable-terminal"):
    # A folder that this program is called in may be anybody's: nothing is imported from it, here or
    # in what is started. Python puts it first for `-m`, and for an empty entry in PYTHONPATH.
    _here, _sources = os.getcwd(), os.path.dirname(os.path.dirname(__file__))
    sys.path[:] = [p for p in sys.path if p and (p != _here or p == _sources)]
    os.environ["PYTHONSAFEPATH"] = "1"

import importlib
from typing import Any

__version__ = "0.1.0"

ACTORS = {
    "Collector": "unstable.collector",
    "ModelPool": "unstable.model_pool",
    "StandardLearner": "unstable.learners.standard_learner",
    "StepBuffer": "unstable.buffer",
    "Tracker": "unstable.trackers",
    "VLLMActor": "unstable.actor",
}
"""Ray actors, and the modules that have their classes."""

PLAIN = {
    "AgentSpec": "unstable.core",
    "BaseAlgo": "unstable.core",
    "BaseTracker": "unstable.core",
    "EpisodeResult": "unstable.core",
    "ExplorationTracker": "unstable.core",
    "Opponent": "unstable.core",
    "PlaySpec": "unstable.core",
    "Step": "unstable.core",
    "TaskMeta": "unstable.core",
    "TerminalInterface": "unstable.terminal_interface",
    "Trajectory": "unstable.core",
}
"""Classes to be used as they are."""

MODULES = ("algorithms", "engines", "games", "learners", "reward_transformations", "utils")

__all__ = sorted((*ACTORS, *PLAIN, *MODULES, "__version__"))  # noqa: PLE0605 - made of the tables


def __getattr__(name: str) -> Any:
    if name in ACTORS:
        import ray

        plain = getattr(importlib.import_module(ACTORS[name]), name)
        options = getattr(plain, "RAY_OPTIONS", {})  # what an actor needs unless told otherwise
        value = ray.remote(**options)(plain) if options else ray.remote(plain)
        _carry(value, getattr(plain, "CARRIED", {}))
    elif name in PLAIN:
        value = getattr(importlib.import_module(PLAIN[name]), name)
    elif name in MODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _carry(actor_class: Any, attributes: dict[str, str]) -> None:
    """Give new actors what is set on the class here: their own process loads it anew."""
    if not attributes:
        return
    # What `remote` and `options(...).remote` have in common.
    start = actor_class._remote  # noqa: SLF001

    def start_with_attributes(
        args: Any = None, kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        carried = {argument: getattr(actor_class, name) for name, argument in attributes.items()}
        return start(args=args, kwargs=carried | (kwargs or {}), **options)

    actor_class._remote = start_with_attributes  # noqa: SLF001


def __dir__() -> list[str]:
    return [*__all__, *globals()]
