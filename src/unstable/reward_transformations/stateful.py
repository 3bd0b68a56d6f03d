"""What all transforms share: state that is saved, and being stacked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar


class RewardTransform:
    """Keeps no state unless it says so."""

    def state_dict(self) -> dict[str, Any]:
        """What has to be saved, as JSON can hold it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but was given some")


T = TypeVar("T", bound=RewardTransform)


class Stack(RewardTransform, Generic[T]):
    def __init__(self, transforms: Iterable[T] = ()) -> None:
        self.transforms = list(transforms)

    def register(self, transform: T) -> None:
        self.transforms.append(transform)

    def state_dict(self) -> dict[str, Any]:
        return {
            "transforms": [
                {"name": type(transform).__name__, "state": transform.state_dict()}
                for transform in self.transforms
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue; raises ValueError if these are not the transforms that were saved."""
        saved = state["transforms"]
        ours = [type(transform).__name__ for transform in self.transforms]
        theirs = [entry["name"] for entry in saved]
        if ours != theirs:
            raise ValueError(f"the state is of {theirs}, these are {ours}")
        for transform, entry in zip(self.transforms, saved, strict=True):
            transform.load_state_dict(entry["state"])
