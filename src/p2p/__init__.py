"""Train control policies from words."""

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

__version__ = "0.1.0"
