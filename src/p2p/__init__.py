"""Train control policies from words.

    import p2p

    session = p2p.run("hop forward", env="Hopper-v5")
    session.passed, session.score, session.criteria, session.video
    session.policy.act(obs)
    run = p2p.train("walk.py", env="HalfCheetah-v5", steps=300_000)

Importing this loads no library: what is in `p2p.interface` is loaded when it is first used.
"""

import os
import sys

_module = "".join(
    sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1] if "-m" in sys.orig_argv else ""
)
_program = _module.split(".")[0] or os.path.basename("".join(sys.argv[:1]))
if _program == "p2p":
    # A folder that this program is called in may be anybody's: nothing is imported from it, here or
    # in what is started. Python puts it first for `-m`, and for an empty entry in PYTHONPATH.
    _here, _sources = os.getcwd(), os.path.dirname(os.path.dirname(__file__))
    sys.path[:] = [p for p in sys.path if p and (p != _here or p == _sources)]
    os.environ["PYTHONSAFEPATH"] = "1"

from importlib import import_module
from typing import TYPE_CHECKING

from p2p.version import __version__

if TYPE_CHECKING:
    from p2p.interface import Run, Session, check, envs, load, run, sessions, train
    from p2p.session.request import PromptRefused
    from p2p.training.reward_function import RewardRefused

__all__ = [
    "PromptRefused", "RewardRefused", "Run", "Session", "__version__", "check", "envs", "load",
    "run", "sessions", "train",
]  # fmt: skip
_PLACES = {
    "PromptRefused": "p2p.session.request",
    "RewardRefused": "p2p.training.reward_function",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'p2p' has no attribute {name!r}")
    return getattr(import_module(_PLACES.get(name, "p2p.interface")), name)


def __dir__() -> list[str]:
    return __all__
