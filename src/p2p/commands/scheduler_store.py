"""What the commands about jobs and nodes share: the store, and errors in the words of its user."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from p2p.commands.console import CommandError, UsageError, did_you_mean
from p2p.commands.session_argument import runs_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pydantic import ValidationError

    from p2p.scheduler.records import JobRow
    from p2p.scheduler.store import Store

PLAIN_NAME = "letters, digits, `_`, `-` and single dots inside, at most 128 of them"
ALLOWED: Mapping[str, str] = {
    "node_id": PLAIN_NAME,
    "job_id": PLAIN_NAME,
    "run_id": PLAIN_NAME,
    "nodes": PLAIN_NAME,
    "partition": PLAIN_NAME,
    "folder": PLAIN_NAME,
    "host": "a host's name or address: letters, digits, `.`, `:` and `-`",
    "user": "small letters, digits, `_` and `-`, at most 32 of them",
    "base_dir": "an absolute path of letters, digits and `._-/`, without `..`",
    "python": "an absolute path of letters, digits and `._-/`, without `..`",
    "key_file": "an absolute path of letters, digits and `._-/`, without `..`",
    "known_hosts": "an absolute path of letters, digits and `._-/`, without `..`",
    "address": "such as ray-head:6379 or auto",
}
"""What may stand in a field that reaches another machine."""


@contextmanager
def open_store(runs_dir: Path | None) -> Iterator[Store]:
    """The store of a runs folder; what it refuses is one line."""
    from p2p.scheduler.store import Store, StoreError

    try:
        store = Store(runs_folder(runs_dir))
        try:
            yield store
        finally:
            store.close()
    except StoreError as error:
        raise CommandError(error) from error


def wrong_fields(error: ValidationError, flags: Mapping[str, str]) -> UsageError:
    """What is wrong with a record, by flag; the value is not repeated, it may be anything."""
    told = []
    for item in error.errors():
        name = str(item["loc"][0]) if item["loc"] else ""
        text = item["msg"].removeprefix("Value error, ")
        if item["type"].startswith("string_") and name in ALLOWED:
            text = f"allowed are {ALLOWED[name]}"
        for field, flag in flags.items():
            text = text.replace(f"{field} is needed", f"{flag} is needed")
        where = flags.get(name, name)
        told.append(f"{where}: {text}" if where else text)
    return UsageError("; ".join(dict.fromkeys(told)))


def find_job(store: Store, text: str) -> JobRow:
    """The job meant: by its name, the start of it, or `last`."""
    if text == "last":
        newest = store.jobs(1)
        if newest:
            return newest[0]
        raise UsageError(f"JOB: there are no jobs in {store.runs_dir} yet")
    exact = store.job(text)
    if exact is not None:
        return exact
    found = store.jobs(6, prefix=text) if text else []
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(job.job_id for job in found[:5])
        raise UsageError(f"JOB: {text} may be {names}: type more of the name")
    hint = did_you_mean(text[:100], [job.job_id for job in store.jobs(200)])
    raise UsageError(f"JOB: there is no job {text[:100]} in {store.runs_dir}{hint}")
