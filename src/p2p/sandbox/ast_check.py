"""A first look at generated code, for good messages. The wall is the sandbox, never this.

Code that passes may still be refused by the kernel, and code that fails here could not have done
harm: what is found is only said earlier, with a line number, and in words that help to fix it.
"""

from __future__ import annotations

import ast

from p2p.utils.utils import parse_python

_USEFUL = frozenset(
    {"numpy", "math", "mujoco", "p2p", "__future__", "abc", "bisect", "collections", "copy",
     "dataclasses", "enum", "fractions", "functools", "heapq", "itertools", "numbers", "operator",
     "random", "re", "statistics", "string", "types", "typing", "warnings"}
)  # fmt: skip

_WHY_NOT = {
    "os": "files and processes of the machine are out of reach",
    "sys": "the interpreter belongs to the trainer",
    "pathlib": "files are out of reach",
    "shutil": "files are out of reach",
    "io": "files are out of reach",
    "tempfile": "files are out of reach",
    "subprocess": "no process can be started",
    "multiprocessing": "no process can be started",
    "concurrent": "the trainer decides on threads and processes",
    "threading": "the trainer decides on threads",
    "asyncio": "there is no network and nothing to wait for",
    "socket": "there is no network",
    "ssl": "there is no network",
    "urllib": "there is no network",
    "http": "there is no network",
    "requests": "there is no network",
    "ctypes": "system calls are refused",
    "signal": "no other process can be signalled",
    "pickle": "nothing is unpickled; keep state in attributes",
    "importlib": "import what you need by name",
    "time": "a reward that depends on the clock cannot be repeated; count steps instead",
    "datetime": "a reward that depends on the clock cannot be repeated; count steps instead",
}
_CALLS = {
    "open": "files are out of reach",
    "exec": "write the code itself",
    "eval": "write the expression itself",
    "compile": "write the code itself",
    "__import__": "use an import statement",
    "input": "there is no standard input",
    "breakpoint": "there is no standard input",
    "exit": "raise an exception to say what is wrong",
    "quit": "raise an exception to say what is wrong",
}


def _import_problem(statement: str, module: str) -> str | None:
    top = module.split(".", maxsplit=1)[0]
    if top in _USEFUL:
        return None
    why = _WHY_NOT.get(top, "use numpy, math, mujoco and simple standard modules")
    return f"`{statement}` will not work in the sandbox: {why}"


def _problems_of(node: ast.AST) -> list[str | None]:
    if isinstance(node, ast.Import):
        return [_import_problem(f"import {a.name}", a.name) for a in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.level:
            return ["relative imports do not work in a single file"]
        module = node.module or ""
        names = ", ".join(alias.name for alias in node.names)
        return [_import_problem(f"from {module} import {names}", module)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        name = node.func.id
        return [f"`{name}(...)` will not work in the sandbox: {_CALLS[name]}"]
    return []


def find_problems(tree: ast.Module) -> list[tuple[int, str]]:
    """What in the code will not work in the sandbox: line and sentence, in order of lines."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr)]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    return [(node.lineno, text) for node in nodes for text in _problems_of(node) if text]


def explain_problems(code: str) -> list[str]:
    """Return the problems of `find_problems` and syntax errors as sentences with lines."""
    try:
        tree = parse_python(code)
    except SyntaxError as error:
        where = f"line {error.lineno}" if error.lineno else "the code"
        shown = f": `{error.text.strip()}`" if error.text and error.text.strip() else ""
        return [f"{where}: syntax error, {error.msg}{shown}"]
    except (ValueError, RecursionError, MemoryError) as error:
        return [f"the code cannot be parsed: {error}"]
    return [f"line {line}: {text}" for line, text in find_problems(tree)]
