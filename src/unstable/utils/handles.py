"""Calling a part of the run, whether it is an object here or a Ray actor elsewhere."""

from __future__ import annotations

from typing import Any


def tell(target: Any, method: str, *args: Any, **kwargs: Any) -> None:
    """Call a method and do not wait for it; without a target nothing happens."""
    if target is None:
        return
    bound = getattr(target, method)
    getattr(bound, "remote", bound)(*args, **kwargs)


def ask(target: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method and return what it returns."""
    bound = getattr(target, method)
    if not hasattr(bound, "remote"):
        return bound(*args, **kwargs)
    import ray

    return ray.get(bound.remote(*args, **kwargs))
