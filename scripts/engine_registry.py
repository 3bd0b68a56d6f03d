"""Write the list of an installed engine's environments, which `p2p envs --engine NAME` shows.

python scripts/engine_registry.py mjlab
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import p2p.training.engines
from p2p.training.engines.facts import run_child


def main() -> None:
    """Ask the engine's own registry, and write it beside the adapter."""
    for name in sys.argv[1:]:
        entries = run_child(name, registry=True)["environments"]
        path = Path(p2p.training.engines.__path__[0]) / f"{name}.json"
        path.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
        print(f"{len(entries)} environments in {path}")


if __name__ == "__main__":
    main()
