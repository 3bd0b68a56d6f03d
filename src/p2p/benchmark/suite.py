"""Suites: prompts with their environments, as CSV.

    env_id,instruction,category,difficulty,truth,threshold
    Hopper-v5,hop forward,locomotion,easy,forward_speed,0.5

The last two columns may be left out, or empty. Every row is checked before anything starts, and
everything that is wrong is said at once.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from p2p.benchmark.truth import TRUTHS
from p2p.contracts import Record, field_error

Difficulty = Literal["easy", "medium", "hard"]
DIFFICULTIES: tuple[Difficulty, ...] = get_args(Difficulty)
REQUIRED = ("env_id", "instruction", "category", "difficulty")
OPTIONAL = ("truth", "threshold")
SHIPPED = "mujoco_prompts"
LONGEST_PROMPT, LONGEST_CATEGORY = 4000, 40
MAX_BYTES = 10_000_000


class Case(Record):
    """One prompt of a suite."""

    number: Annotated[int, Field(ge=0)]
    """Its place in the suite, from 0; the same whatever is filtered out."""
    env_id: str
    instruction: str
    category: str
    difficulty: Difficulty
    truth: str | None = None
    """The name of a ground truth in `p2p.benchmark.truth`. Agents are not shown it."""
    threshold: float | None = None


class SuiteError(ValueError):
    """A suite that cannot be used; the message names every bad row, column and value."""


@dataclass(frozen=True)
class _Row:
    line: int
    cells: dict[str, str]


def shipped_suites() -> dict[str, str]:
    """The suites that come with the package, by name: their text."""
    folder = resources.files("p2p.benchmark") / "suites"
    return {
        file.name.removesuffix(".csv"): file.read_text(encoding="utf-8")
        for file in folder.iterdir()
        if file.name.endswith(".csv")
    }


def load_suite(name_or_file: str) -> tuple[Case, ...]:
    """The prompts of a shipped suite or of a CSV file; raises SuiteError."""
    shipped = shipped_suites()
    if name_or_file in shipped:
        return parse_suite(shipped[name_or_file], f"{name_or_file}.csv")
    path = Path(name_or_file).expanduser()
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SuiteError(f"{path}: larger than {MAX_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        known = ", ".join(sorted(shipped))
        raise SuiteError(f"{path} is neither a file nor a suite of ours ({known})") from error
    except UnicodeDecodeError as error:
        raise SuiteError(f"{path} is not a text file in UTF-8") from error
    except OSError as error:
        raise SuiteError(f"{path} cannot be read: {error.strerror}") from error
    return parse_suite(text, path.name)


def parse_suite(text: str, name: str) -> tuple[Case, ...]:
    """The prompts in a CSV text; `name` stands in the messages. Raises SuiteError."""
    rows, problems = _rows(text, name)
    bodies: dict[str, tuple[str, ...] | str] = {}
    first: dict[tuple[str, str], int] = {}
    cases: list[Case] = []
    for row in rows:
        wrong = _wrong(row, bodies)
        asked = (row.cells["env_id"], " ".join(row.cells["instruction"].split()))
        if asked in first:
            wrong.append(f"column instruction: the same prompt as in line {first[asked]}")
        first.setdefault(asked, row.line)
        problems += [f"{name}, line {row.line}, {text}" for text in wrong]
        if not problems:
            cases.append(_case(len(cases), row))
    if problems:
        raise SuiteError("\n".join(problems))
    if not cases:
        raise SuiteError(f"{name} has no prompt: add a row below {','.join(REQUIRED)}")
    return tuple(cases)


def _rows(text: str, name: str) -> tuple[list[_Row], list[str]]:
    """The rows that have a cell for each column, and what is wrong with the others."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows, problems = [], []
    try:
        header = [cell.strip() for cell in next(reader, [])]
        _check_header(header, name)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                problems.append(
                    f"{name}, line {reader.line_num}: {len(cells)} cells for {len(header)} columns "
                    "(a text with a comma stands in double quotes)"
                )
                continue
            values = dict(zip(header, (cell.strip() for cell in cells), strict=True))
            rows.append(_Row(reader.line_num, {**dict.fromkeys(OPTIONAL, ""), **values}))
    except csv.Error as error:
        problems.append(f"{name}, line {reader.line_num}: {error}")
    return rows, problems


def _check_header(header: Sequence[str], name: str) -> None:
    allowed = (*REQUIRED, *OPTIONAL)
    missing = [column for column in REQUIRED if column not in header]
    unknown = [column for column in header if column not in allowed]
    twice = sorted({column for column in header if header.count(column) > 1})
    wrong = [
        *(f"the column {column} is missing" for column in missing),
        *(f"there is no column {column!r}{_hint(column, allowed)}" for column in unknown),
        *(f"the column {column} is there twice" for column in twice),
    ]
    if wrong:
        raise SuiteError(f"{name}, line 1: {'; '.join(wrong)}. Columns: {','.join(allowed)}")


def _wrong(row: _Row, bodies: dict[str, tuple[str, ...] | str]) -> list[str]:
    cells, problems = row.cells, []
    env_id = cells["env_id"]
    if env_id not in bodies:
        bodies[env_id] = _bodies(env_id)
    if isinstance(bodies[env_id], str):
        problems.append(f"column env_id: {bodies[env_id]}")
    if not 0 < len(cells["instruction"]) <= LONGEST_PROMPT:
        problems.append(f"column instruction: 1 to {LONGEST_PROMPT} characters are allowed")
    if not 0 < len(cells["category"]) <= LONGEST_CATEGORY:
        problems.append(f"column category: 1 to {LONGEST_CATEGORY} characters are allowed")
    if cells["difficulty"] not in DIFFICULTIES:
        allowed = ", ".join(DIFFICULTIES)
        problems.append(f"column difficulty: {cells['difficulty']!r}; allowed are {allowed}")
    return problems + _wrong_truth(cells, bodies[env_id])


def _wrong_truth(cells: dict[str, str], bodies: tuple[str, ...] | str) -> list[str]:
    name, threshold, problems = cells["truth"], cells["threshold"], []
    truth = TRUTHS.get(name)
    if name and truth is None:
        problems.append(f"column truth: there is no {name!r}{_hint(name, TRUTHS)}")
    if truth is not None and not isinstance(bodies, str):
        missing = [body for body in truth.needs if body not in bodies]
        if missing:
            problems.append(
                f"column truth: {name} needs the body {missing[0]}, which {cells['env_id']} has not"
            )
    if bool(name) != bool(threshold):
        problems.append("column threshold: it goes with a truth, and a truth with it")
    elif threshold and not _is_threshold(threshold):
        problems.append(f"column threshold: {threshold!r} is not a number above 0")
    return problems


def _is_threshold(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def _bodies(env_id: str) -> tuple[str, ...] | str:
    """The bodies of an environment, or why there are none."""
    from p2p.training.env_spec import (
        UnknownEnvironmentError,
        UnsupportedEnvironmentError,
        get_env_spec,
    )

    if not env_id:
        return "it is empty: name an environment, such as Hopper-v5"
    try:
        return tuple(body.name for body in get_env_spec(env_id).bodies)
    except (UnknownEnvironmentError, UnsupportedEnvironmentError, ValueError) as error:
        return " ".join(str(error).split())


def _case(number: int, row: _Row) -> Case:
    cells = row.cells
    return Case.model_validate(
        {
            "number": number,
            **{column: cells[column] for column in REQUIRED},
            "truth": cells["truth"] or None,
            "threshold": float(cells["threshold"]) if cells["threshold"] else None,
        }
    )


def _hint(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


def chosen(
    cases: Sequence[Case],
    *,
    envs: Sequence[str] = (),
    categories: Sequence[str] = (),
    difficulties: Sequence[str] = (),
) -> tuple[Case, ...]:
    """Those that a filter lets through; raises ValueError for a filter that none can match."""
    filters = (
        ("filter_envs", "env_id", envs),
        ("filter_categories", "category", categories),
        ("filter_difficulties", "difficulty", difficulties),
    )
    kept = list(cases)
    for option, column, wanted in filters:
        values = list(dict.fromkeys(str(getattr(case, column)) for case in cases))
        for value in wanted:
            if value not in values:
                hint = _hint(value, values)
                raise field_error(option, f"no prompt has the {column} {value!r}{hint}")
        if wanted:
            kept = [case for case in kept if getattr(case, column) in wanted]
    if not kept:
        raise ValueError("the filters together leave no prompt: remove one of them")
    return tuple(kept)
