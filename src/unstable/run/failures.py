"""What went wrong in a run on Ray, in one line."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from unstable.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unstable.run.parts import Parts

MISTAKES = ("KeyError", "LookupError", "ValueError")
"""What parts raise when they are made is a mistake in the configuration, if it is one of these."""


@contextmanager
def named_failures(parts: Parts | None = None) -> Iterator[None]:
    """Turn Ray's errors into ones that say which part it was, and why.

    Raises:
        ConfigError: a part refused its arguments.
        RuntimeError: a part has died, failed, or does not answer.
    """
    import ray.exceptions

    try:
        yield
    except ray.exceptions.RayActorError as error:
        # Also a living part's failure, when it called one that is dead.
        raise _death(parts, error) from error
    except ray.exceptions.RayTaskError as error:
        raise RuntimeError(str(error.cause)) from error
    except ray.exceptions.GetTimeoutError as error:
        raise RuntimeError(f"a part of the run does not answer: {error}") from error


def _death(parts: Parts | None, error: Any) -> Exception:
    last = str(error).strip().splitlines()[-1]
    if error.actor_init_failed:
        kind, _, words = last.partition(": ")
        return ConfigError(words) if kind in MISTAKES else RuntimeError(last)
    return RuntimeError(f"the {_name(parts, error.actor_id)} has died: {last.split('. ')[0]}")


def _name(parts: Parts | None, actor_id: str) -> str:
    for field in fields(parts) if parts is not None else ():
        if getattr(parts, field.name)._actor_id.hex() == actor_id:  # noqa: SLF001
            return field.name
    return f"actor {actor_id}"
