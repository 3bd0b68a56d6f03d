r"""LaTeX and terms out of a reward function's docstring.

LaTeX: r = v_x - 0.1 \|a\|^2
Terms:
    speed: forward velocity
    ctrl: control penalty
        r_ctrl = -0.1 \|a\|^2
Any other text is the description. A line below a term that is indented further belongs to it.
"""

from __future__ import annotations

import inspect
import re

from p2p.contracts import RewardSpec

_LATEX = re.compile(r"^\s*latex\s*:\s*(.*)$", re.IGNORECASE)
_TERMS = re.compile(r"^\s*terms\s*:\s*$", re.IGNORECASE)
_TERM = re.compile(r"^(\s*)(?:[-*]\s*)?[`\"']?([A-Za-z_]\w*)[`\"']?\s*:\s*(.*)$")


def parse_docstring(doc: str | None) -> RewardSpec:
    """What the docstring says; empty where it says nothing."""
    latex: list[str] = []
    terms: dict[str, str] = {}
    prose: list[str] = []
    section, term_indent, current = "", 0, ""
    for line in inspect.cleandoc(doc or "").splitlines():
        indent = len(line) - len(line.lstrip())
        if match := _LATEX.match(line):
            section, latex = "latex", [match[1].strip()]
        elif _TERMS.match(line):
            section, current = "terms", ""
        elif not line.strip():
            section = "terms" if section == "terms" else ""
            prose.append("")
        elif section == "latex" and indent > 0:
            latex.append(line.strip())
        elif section == "terms" and indent > 0:
            match = _TERM.match(line)
            if match and (not current or len(match[1]) <= term_indent):
                term_indent, current = len(match[1]), match[2]
                terms[current] = match[3].strip()
            elif current:
                terms[current] = f"{terms[current]}\n{line.strip()}".strip()
        else:
            section = ""
            prose.append(line)
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(prose)).strip()
    return RewardSpec(latex=" ".join(filter(None, latex)), terms=terms, description=description)


def best_docstring(*docs: str | None) -> str | None:
    """The first that has a formula, or else the first that has anything."""
    written = [doc for doc in docs if doc and doc.strip()]
    with_latex = [doc for doc in written if any(map(_LATEX.match, doc.splitlines()))]
    return next(iter([*with_latex, *written]), None)
