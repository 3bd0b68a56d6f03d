"""Train language policies by self-play.

    import unstable
    run = unstable.train(game="Nim-v0-train", updates=30)
    run.evaluate()

`unstable.Tracker`, `unstable.StepBuffer` and the other parts of a run are Ray actors, made from the
plain classes of their modules when they are first used. Importing this package loads nothing heavy.
"""

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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unstable.interface import Run as Run
    from unstable.interface import load as load
    from unstable.interface import train as train

__version__ = "0.1.0"

ACTORS = {
    "Collector": "unstable.collector",
    "ModelPool": "unstable.model_pool",
    "StandardLearner": "unstable.learners.standard_learner",
    "StepBuffer": "unstable.buffer",
    "Tracker": "unstable.trackers",
    "VLLMActor": "unstable.actor",
}
"""Ray actors, and the modules of their plain classes."""

PLAIN = {
    "AgentSpec": "unstable.core",
    "BaseAlgo": "unstable.core",
    "BaseTracker": "unstable.core",
    "EpisodeResult": "unstable.core",
    "ExplorationTracker": "unstable.core",
    "Opponent": "unstable.core",
    "PlaySpec": "unstable.core",
    "Run": "unstable.interface",
    "Step": "unstable.core",
    "TaskMeta": "unstable.core",
    "TerminalInterface": "unstable.terminal_interface",
    "Trajectory": "unstable.core",
    "load": "unstable.interface",
    "train": "unstable.interface",
}
"""Classes and functions, and their modules."""

MODULES = ("algorithms", "engines", "games", "learners", "reward_transformations", "utils")

__all__ = sorted((*ACTORS, *PLAIN, *MODULES, "__version__"))  # noqa: PLE0605 - made of the tables


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in MODULES:
        value: Any = importlib.import_module(f"{__name__}.{name}")
    elif name in ACTORS or name in PLAIN:
        value = getattr(importlib.import_module({**ACTORS, **PLAIN}[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ACTORS:
        from unstable.utils.handles import make_actor_class

        value = make_actor_class(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *globals()]
