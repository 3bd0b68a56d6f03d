"""What a reward function is, how it describes itself, and how it fails."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2p.contracts import RewardSpec

Rows = NDArray[np.bool_]


class RewardError(Exception):
    """A reward raised, or returned something that cannot be trained on.

    The message stands alone: it names the term, the step and the values that led to it.
    """

    def __init__(
        self,
        message: str,
        *,
        term: str | None = None,
        step: int | None = None,
        row: int | None = None,
        value: object = None,
        line: int | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.term = term
        self.step = step
        self.row = row
        self.value = value
        self.line = line
        self.traceback = traceback
        """The frames of the reward's own file, as Python would print them."""


class EnvironmentFailed(Exception):
    """The environment hangs or ends its process: no reward can be tried on it."""


class RewardRefused(Exception):
    """The reward cannot be trained on; the message names its file and line."""


class RewardLoadError(RewardError):
    """A reward file that cannot be loaded; says where and what to do about it."""

    def __init__(
        self, message: str, *, file: str = "", line: int | None = None, traceback: str = ""
    ) -> None:
        where = "" if not file else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(f"{where}{message}", line=line, traceback=traceback)
        self.file = file


class RewardFunction(ABC):
    """A reward: total and named terms of one transition, or of a batch of them.

    `obs`, `next_obs` and `action` are read-only arrays, one vector each, or (N, ...) for a batch of
    N environments; the values of `info` are numbers, or arrays of N. Code that takes components
    as `x[..., i]` and reduces over `axis=-1` runs on both, and is then called once per batch.
    `info["_episode_start"]` is true on the first transition of an episode.
    """

    @abstractmethod
    def compute(self, obs: Any, action: Any, next_obs: Any, info: Any) -> tuple[Any, Any]:
        """The total reward and its terms, `(total, {name: value})`, with the same names always."""

    @property
    @abstractmethod
    def latex(self) -> str:
        """The reward as a formula."""

    @property
    @abstractmethod
    def terms(self) -> Mapping[str, str]:
        """What each term means."""

    @property
    def description(self) -> str:
        """In words; the docstring of the class unless overridden."""
        return inspect.cleandoc(type(self).__doc__ or "")

    def failed(self, obs: Any, action: Any, next_obs: Any, info: Any) -> Any:  # noqa: ARG002
        """Return whether training ends the episode here: a boolean, or one for each row.

        The step is rewarded, and nothing after it is expected. Evaluation and judging go on.
        """
        return np.zeros(np.shape(action)[:-1], np.bool_)

    def reset(self, rows: Rows | None = None) -> None:  # noqa: B027 - stateless ones need none
        """Forget past transitions, before the first step of a new episode.

        A hook for rewards with state. `rows` marks the environments of the batch that begin an
        episode; None is the only one there is, or all of them.
        """

    def __call__(self, obs: Any, action: Any, next_obs: Any, info: Any) -> tuple[Any, Any]:
        return self.compute(obs, action, next_obs, info)


def spec_of(reward: RewardFunction) -> RewardSpec:
    """A reward described, for reward_spec.json; TypeError where it describes itself wrongly."""
    latex: object = reward.latex
    terms: object = reward.terms
    description: object = reward.description
    if not isinstance(latex, str):
        raise TypeError(f"latex must be a string, not {type(latex).__name__}")
    if not isinstance(terms, Mapping) or not all(
        isinstance(text, str) for pair in terms.items() for text in pair
    ):
        raise TypeError("terms must be a dict of term name to description, both strings")
    if not isinstance(description, str):
        raise TypeError(f"description must be a string, not {type(description).__name__}")
    return RewardSpec(latex=latex, terms=dict(terms), description=description)


_LATEX = re.compile(r"^\s*latex\s*:\s*(.*)$", re.IGNORECASE)
_TERMS = re.compile(r"^\s*terms\s*:\s*$", re.IGNORECASE)
_TERM = re.compile(r"^(\s*)(?:[-*]\s*)?[`\"']?([A-Za-z_]\w*)[`\"']?\s*:\s*(.*)$")


def parse_docstring(doc: str | None) -> RewardSpec:
    """Return the fields of a docstring; empty if it has none."""
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
