"""A reward's source as a thing to compare: when two are the same, and which terms one has."""

from __future__ import annotations

import ast
import hashlib
import re

SHORT_DIGEST = 12
"""So many characters tell the rewards of a session apart."""


def reward_digest(code: str) -> str:
    """SHA-256 of what the code does: layout, comments and docstrings do not count."""
    return hashlib.sha256(_normalised(code).encode("utf-8", "replace")).hexdigest()


def term_names(code: str) -> frozenset[str]:
    """Every name that may be one of a reward's terms, read off the source.

    Those are the text keys of its dicts, written as displays, calls of `dict` or item by item. Keys
    that are only read, such as those of `info`, are none. Code that cannot be parsed has none.
    """
    tree = _parsed(code)
    if tree is None:
        return frozenset()
    names: set[str | None] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            names |= {_text(key) for key in node.keys}
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            names.add(_text(node.slice))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names |= {word.arg for word in node.keywords} if node.func.id == "dict" else set()
    return frozenset(name for name in names if name is not None)


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _parsed(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _normalised(code: str) -> str:
    tree = _parsed(code)
    if tree is not None:
        try:
            # Not ast.dump, whose form differs between versions of Python.
            return ast.unparse(_WithoutRemarks().visit(tree))
        except RecursionError:
            pass
    return re.sub(r"\s+", " ", code).strip()


class _WithoutRemarks(ast.NodeTransformer):
    """Drops constants that stand alone: docstrings, and text used as a comment."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | None:
        return None if isinstance(node.value, ast.Constant) else node
