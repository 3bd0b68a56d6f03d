"""What the flags of `p2p benchmark` mean: checked, with errors that name them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p.commands.console import UsageError, did_you_mean, field_errors, no_answer

if TYPE_CHECKING:
    from p2p.benchmark.records import Benchmark
    from p2p.benchmark.suite import Case

FLAGS = {"configs": "num_configs"}
"""Options whose flag has another name."""
FILTERS = {
    "environment": "--filter-envs",
    "category": "--filter-categories",
    "difficulty": "--filter-difficulties",
}


def open_benchmark(text: str, folder: Path, given_as: str = "BENCHMARK") -> Benchmark:
    """The benchmark meant; UsageError if there is none, or more than one."""
    from p2p.benchmark.records import FILE, read_benchmark

    names = sorted(path.parent.name for path in folder.glob(f"bm_*/{FILE}"))
    if text == "last" and names:
        text = names[-1]
    found = [name for name in names if name == text] or [n for n in names if n.startswith(text)]
    if len(found) != 1:
        where = f"there is no benchmark {text} in {folder}{did_you_mean(text, names)}"
        several = f"{text} may be {', '.join(found[-5:])}: type more of the name"
        raise UsageError(f"{given_as}: {several if found else where}")
    made = read_benchmark(folder / found[0])
    if made is None:
        raise UsageError(f"{given_as}: {folder / found[0] / FILE} cannot be read")
    return made


def numbers(text: str | None) -> list[int] | None:
    """The numbers of --seeds."""
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--seeds {text}: write a list such as 1,5,7") from error


def listed(text: str | None) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def models(model: str | None, vlm: str | None) -> dict[str, str]:
    """Both by their full names: a node must not choose others than this machine would."""
    from p2p.inference.providers import choose_model
    from p2p.inference.question import InferenceError, RequestRejected
    from p2p.session.agents import check_models
    from p2p.settings import get_settings

    looks = get_settings().vlm_model if vlm is None else vlm
    try:
        check_models(model or "", looks)
        return {"model": choose_model(model or ""), "vlm_model": looks}
    except RequestRejected as error:
        raise UsageError(f"--model, --vlm-model: {error}") from error
    except InferenceError as error:
        raise no_answer(error) from error


def suite_cases(
    csv: str, envs: str | None, categories: str | None, difficulties: str | None
) -> tuple[Case, ...]:
    """The prompts of --csv that the filters let through."""
    from p2p.benchmark.suite import SuiteError, chosen, load_suite

    try:
        cases = load_suite(csv)
    except SuiteError as error:
        lines = str(error).splitlines()
        if len(lines) == 1:
            raise UsageError(f"--csv: {error}") from error
        raise UsageError(
            f"--csv: {len(lines)} mistakes; nothing was started", str(error)
        ) from error
    try:
        return chosen(
            cases,
            envs=listed(envs),
            categories=listed(categories),
            difficulties=listed(difficulties),
        )
    except ValueError as error:
        flag = next((flag for what, flag in FILTERS.items() if f"the {what} " in str(error)), "")
        raise UsageError(f"{flag or 'the --filter flags'}: {error}") from error


def node_names(folder: Path, names: str | None, backend: str | None, cores: int) -> tuple[str, ...]:
    """The nodes of --nodes and --backend; empty: all."""
    from p2p.benchmark.running import fitting_nodes
    from p2p.scheduler.store import StoreError

    try:
        return fitting_nodes(folder, listed(names), backend, cores)
    except (ValueError, StoreError) as error:
        raise UsageError(error) from error


def planned(cases: tuple[Case, ...], suite: str, options: dict[str, Any], **how: Any) -> Benchmark:
    """A new benchmark; nothing is written yet."""
    from pydantic import ValidationError

    from p2p.benchmark.planning import plan

    try:
        return plan(cases, suite, options, **how)
    except ValidationError as error:
        text = field_errors(error, "options")
    except ValueError as error:
        text = str(error)
    for name in (*options, *how):
        flag = f"--{FLAGS.get(name, name).replace('_', '-')}"
        text = text.replace(f" {name}:", f" {flag}:").replace(f"{name}=", f"{flag} ")
    raise UsageError(text)
