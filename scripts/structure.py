"""Measure the source tree: lines, modules, import cycles, long files, class names used twice.

    python scripts/structure.py           the table of the tree as it is
    python scripts/structure.py --json    the same for programs

`tests/test_architecture.py` holds the layers and the absence of cycles with what is here.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
PACKAGES = ("p2p", "unstable")


def module_name(path: Path) -> str:
    """The dotted name of a file below src/."""
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(SRC.rglob("*.py"))}


def imported(path: Path) -> set[str]:
    """The modules a file imports, inside functions and for types too.

    `from package import module` counts as the module. What stands under `if __name__ ==
    "__main__":` does not count: a program's entry may put parts from above together.
    """
    modules: set[str] = set()
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not _is_entry(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{path}: line {node.lineno} is a relative import")
            base = node.module or ""
            names = {f"{base}.{alias.name}" for alias in node.names}
            modules |= {name if name in MODULES else base for name in names}
    return modules


def _is_entry(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def ours(names: set[str]) -> set[str]:
    """Those of the project's own packages."""
    return {name for name in names if name.split(".")[0] in PACKAGES}


def import_graph() -> dict[str, set[str]]:
    """Every module and what it imports of ours, type-only and lazy imports included."""
    return {name: ours(imported(path)) - {name} for name, path in MODULES.items()}


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """A list of import cycles; after each, its edges are left out and the search goes on."""
    remaining = {name: set(targets) for name, targets in graph.items()}
    found = []
    while True:
        try:
            TopologicalSorter(remaining).prepare()
        except CycleError as error:
            cycle = list(reversed(error.args[1]))
            found.append(cycle)
            for importer, target in pairwise(cycle):
                remaining[importer].discard(target)
        else:
            return found


def class_names_used_twice() -> dict[str, list[str]]:
    """Class names that several modules define, private ones left out."""
    places: dict[str, list[str]] = defaultdict(list)
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    return {name: where for name, where in places.items() if len(where) > 1}


def imported_once(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that exactly one other module imports."""
    importers = Counter(target for targets in graph.values() for target in targets)
    return [name for name in graph if importers[name] == 1]


def line_count(folder: Path) -> int:
    """Lines of all Python files below a folder."""
    return sum(len(path.read_bytes().splitlines()) for path in folder.rglob("*.py"))


def measure() -> dict[str, int | str]:
    """The figures of the tree, by what they say."""
    graph = import_graph()
    longest = max(MODULES.values(), key=lambda path: len(path.read_bytes().splitlines()))
    return {
        "lines of Python in src/p2p": line_count(SRC / "p2p"),
        "lines of Python in src/unstable": line_count(SRC / "unstable"),
        "modules in src": len(MODULES),
        "modules that one other imports": len(imported_once(graph)),
        "import cycles, type-only imports included": len(cycles(graph)),
        "class names used twice": len(class_names_used_twice()),
        "longest file": f"{longest.relative_to(ROOT)} ({len(longest.read_bytes().splitlines())})",
        "lines of tests": line_count(ROOT / "tests"),
    }


def main() -> None:
    """Print the table, the cycles and the names used twice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    arguments = parser.parse_args()
    figures = measure()
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    width = max(map(len, figures))
    for label, value in figures.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        print(f"{label:<{width}}  {shown:>10}")
    for package in PACKAGES:
        print(f"\nsrc/{package}")
        for entry in sorted((SRC / package).iterdir()):
            if entry.is_dir() and (lines := line_count(entry)):
                print(
                    f"  {entry.name + '/':<24}{lines:>8,}  {len(list(entry.rglob('*.py')))} modules"
                )
            elif entry.suffix == ".py":
                print(f"  {entry.name:<24}{len(entry.read_bytes().splitlines()):>8,}")
    for cycle in cycles(import_graph()):
        print("\ncycle: " + " -> ".join(cycle))
    for name, where in sorted(class_names_used_twice().items()):
        print(f"{name}: {', '.join(where)}")


if __name__ == "__main__":
    main()
