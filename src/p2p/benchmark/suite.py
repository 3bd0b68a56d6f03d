"""Suites: prompts with their environments, as CSV.

    env_id,instruction,category,difficulty,truth,threshold
    Hopper-v5,hop forward,locomotion,easy,forward_speed,0.5

The last two columns may be left out, or empty. In a file, env_id may be the path of a model file,
from the file's own folder. Every row is checked before anything starts, and everything that is
wrong is said at once.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Collection, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationError

from p2p.benchmark.truth import TRUTHS
from p2p.benchmark.truth.legged import LEGGED
from p2p.config import ConfigurationError, engine_of
from p2p.contracts import Record, describe_errors, field_error
from p2p.training.engines.table import engine_environments, is_engine
from p2p.training.model_files.adoption import adopt
from p2p.training.model_files.store import is_model_file

Difficulty = Literal["easy", "medium", "hard"]
DIFFICULTIES: tuple[Difficulty, ...] = get_args(Difficulty)
REQUIRED = ("env_id", "instruction", "category", "difficulty")
OPTIONAL = ("truth", "threshold")
SHIPPED = "mujoco_prompts"
COLUMNS = {name: f"column {name}" for name in (*REQUIRED, *OPTIONAL)}
MAX_BYTES = 10_000_000


class Case(Record):
    """One prompt of a suite."""

    number: Annotated[int, Field(ge=0)]
    """Its place in the suite, from 0; the same whatever is filtered out."""
    env_id: str
    instruction: Annotated[str, Field(min_length=1, max_length=4000)]
    category: Annotated[str, Field(min_length=1, max_length=40)]
    difficulty: Difficulty
    truth: str | None = None
    """The name of a ground truth in `p2p.benchmark.truth`. Agents are not shown it."""
    threshold: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class SuiteError(ValueError):
    """A suite that cannot be used; the message names every bad row, column and value."""


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
    return parse_suite(text, path.name, path.absolute().parent)


def parse_suite(text: str, name: str, folder: Path | None = None) -> tuple[Case, ...]:
    """The prompts in a CSV text; `name` stands in the messages. Raises SuiteError.

    Paths of model files are from `folder`; without it there may be none.
    """
    rows, problems = _read_rows(text, name)
    first: dict[tuple[str, str], int] = {}
    cases: list[Case] = []
    for line, cells in rows:
        mistakes = _read_model(cells, folder) or _find_mistakes(cells)
        prompt = (cells["env_id"], " ".join(cells["instruction"].split()))
        if first.setdefault(prompt, line) != line:
            mistakes.append(f"column instruction: the same prompt as in line {first[prompt]}")
        values = {column: cell for column, cell in cells.items() if cell or column in REQUIRED}
        try:
            cases.append(Case.model_validate({"number": len(cases), **values}))
        except ValidationError as error:
            mistakes.append(describe_errors(error, COLUMNS))
        problems += [f"{name}, line {line}, {mistake}" for mistake in mistakes]
    if problems:
        raise SuiteError("\n".join(problems))
    if not cases:
        raise SuiteError(f"{name} has no prompt: add a row below {','.join(REQUIRED)}")
    return tuple(cases)


def _read_rows(text: str, name: str) -> tuple[list[tuple[int, dict[str, str]]], list[str]]:
    """Read the rows with a cell for each column, and the problems of the others."""
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
            rows.append((reader.line_num, {**dict.fromkeys(OPTIONAL, ""), **values}))
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
        *(f"there is no column {column!r}{_suggest(column, allowed)}" for column in unknown),
        *(f"the column {column} is there twice" for column in twice),
    ]
    if wrong:
        raise SuiteError(f"{name}, line 1: {'; '.join(wrong)}. Columns: {','.join(allowed)}")


def _read_model(cells: dict[str, str], folder: Path | None) -> list[str]:
    """Put the id of a model file in the place of its path; returns why that cannot be done."""
    if not is_model_file(path := cells["env_id"]):
        return []
    if folder is None:
        return [f"column env_id: {path} is a path: name a model by its id, robots/NAME-DIGEST"]
    try:
        cells["env_id"] = adopt(folder / Path(path).expanduser())
    except ConfigurationError as error:
        return [f"column env_id: {error}"]
    return []


def _find_mistakes(cells: dict[str, str]) -> list[str]:
    """The mistakes of a row beside those that Case finds."""
    env_id, name = cells["env_id"], cells["truth"]
    bodies, truth, mistakes = _read_bodies(env_id), TRUTHS.get(name), []
    if isinstance(bodies, str):
        mistakes.append(f"column env_id: {bodies}")
    elif truth is not None and (missing := [body for body in truth.needs if body not in bodies]):
        needed = f"{name} needs the body {missing[0]}, which {env_id} has not"
        mistakes.append(f"column truth: {needed}")
    if name in LEGGED and not is_engine(engine_of(env_id)):
        mistakes.append(f"column truth: {name} is for robots of an engine, such as mjlab's")
    if name and truth is None:
        mistakes.append(f"column truth: there is no {name!r}{_suggest(name, TRUTHS)}")
    if bool(name) != bool(cells["threshold"]):
        mistakes.append("column threshold: it goes with a truth, and a truth with it")
    return mistakes


@lru_cache(maxsize=64)
def _read_bodies(env_id: str) -> tuple[str, ...] | str:
    """The bodies of an environment, or why there are none."""
    from p2p.training.env_spec import (
        UnknownEnvironmentError,
        UnsupportedEnvironmentError,
        get_env_spec,
    )

    if not env_id:
        return "it is empty: name an environment, such as Hopper-v5"
    if is_engine(engine := engine_of(env_id)) and env_id in engine_environments(engine):
        return ()  # the engine, which may not be installed, is not started for a list
    try:
        return tuple(body.name for body in get_env_spec(env_id).bodies)
    except (UnknownEnvironmentError, UnsupportedEnvironmentError, ValueError) as error:
        return " ".join(str(error).split())


def _suggest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


def filter_cases(
    cases: Sequence[Case],
    *,
    envs: Sequence[str] = (),
    categories: Sequence[str] = (),
    difficulties: Sequence[str] = (),
) -> tuple[Case, ...]:
    """The cases that pass the filters; raises ValueError for one that matches none."""
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
                hint = _suggest(value, values)
                raise field_error(option, f"no prompt has the {column} {value!r}{hint}")
        if wanted:
            kept = [case for case in kept if getattr(case, column) in wanted]
    if not kept:
        raise ValueError("the filters together leave no prompt: remove one of them")
    return tuple(kept)
