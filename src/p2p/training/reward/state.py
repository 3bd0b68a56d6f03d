"""Does a reward keep state between calls? Read off its source, never by running it.

A guess in the safe direction: what is missed here is still found by comparing batched with
single calls on real transitions, because those run through episode ends.
"""

from __future__ import annotations

import ast

_MUTATORS = {
    *("append", "appendleft", "extend", "insert", "add", "update", "setdefault"),
    *("pop", "popleft", "remove", "clear"),
}


def keeps_state(tree: ast.Module) -> bool:
    """A `reset` or `_make_reward`, `_episode_start`, global or nonlocal names, or writes that last.

    Writes that last are those to `self` outside `__init__`, and to module-level names from within
    a function.
    """
    return _marked(tree) or any(
        _writes_outside(function, _module_names(tree))
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name != "__init__"
    )


def reads_episode_start(tree: ast.Module) -> bool:
    """Whether the source looks at `info["_episode_start"]`."""
    return any(isinstance(n, ast.Constant) and n.value == "_episode_start" for n in ast.walk(tree))


def _marked(tree: ast.Module) -> bool:
    return reads_episode_start(tree) or any(
        isinstance(node, ast.Global | ast.Nonlocal)
        or (isinstance(node, ast.FunctionDef) and node.name in {"reset", "_make_reward"})
        for node in ast.walk(tree)
    )


def _module_names(tree: ast.Module) -> frozenset[str]:
    names = {"self"}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {t.id for t in targets if isinstance(t, ast.Name)}
    return frozenset(names)


def _writes_outside(function: ast.FunctionDef, names: frozenset[str]) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            written: ast.expr = node
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _MUTATORS
        ):
            written = node.func.value
        else:
            continue
        while isinstance(written, ast.Attribute | ast.Subscript):
            written = written.value
        if isinstance(written, ast.Name) and written.id in names:
            return True
    return False
