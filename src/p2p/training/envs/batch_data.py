"""MjData of many environments at once, as a batched reward reads it."""

from __future__ import annotations

from functools import partialmethod
from typing import TYPE_CHECKING, Any, Literal

import mujoco
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from p2p.training.envs.batched_env import Array

try:
    from mujoco.batch import DATA_FIELDS
except ImportError:  # an engine's MuJoCo is older
    _EMPTY = mujoco.MjData(mujoco.MjModel.from_xml_string("<mujoco/>"))
    DATA_FIELDS = frozenset(
        name
        for name in dir(_EMPTY)
        if not name.startswith("_") and isinstance(getattr(_EMPTY, name), np.ndarray)
    )

Kind = Literal["actuator", "body", "camera", "geom", "joint", "light", "sensor", "site", "tendon"]


class BatchData:
    """What a batched reward gets as ``mj_data``: MjData's fields, (N, ...) each and read-only.

    Named access works as on MjData: ``mj_data.body("torso").xpos`` is (N, 3) and
    ``mj_data.joint("rootx").qpos`` is (N, 1). Contacts differ in number from row to row and
    have no batched form: a reward that reads them runs per environment.
    """

    def __init__(self, model: mujoco.MjModel, field: Callable[[str], Array]) -> None:
        self._field = field
        self._template = mujoco.MjData(model)

    def __getattr__(self, name: str) -> Array:
        if name in DATA_FIELDS:
            return self._field(name)
        hint = ""
        if hasattr(mujoco.MjData, name):
            hint = ": its size may differ from row to row; rewards run per environment can read it"
        raise AttributeError(f"batched mj_data has no {name!r}{hint}")

    def _named(self, kind: Kind, key: str | int) -> NamedView:
        return NamedView(self, kind, key, self._template)

    actuator = partialmethod(_named, "actuator")
    body = partialmethod(_named, "body")
    camera = partialmethod(_named, "camera")
    geom = partialmethod(_named, "geom")
    joint = partialmethod(_named, "joint")
    sensor = partialmethod(_named, "sensor")
    site = partialmethod(_named, "site")
    tendon = partialmethod(_named, "tendon")


class NamedView:
    """One object's slice of the batched fields."""

    def __init__(
        self, data: BatchData, kind: Kind, key: str | int, template: mujoco.MjData
    ) -> None:
        self._data, self._kind, self._template = data, kind, template
        self._view = getattr(template, kind)(key)
        self.id: int = self._view.id
        self.name: str = self._view.name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        view = getattr(self._view, name)
        prefixes = {"tendon": "ten_"}
        for field in (name, f"{prefixes.get(self._kind, f'{self._kind}_')}{name}", f"sensor{name}"):
            whole = getattr(self._template, field, None) if field in DATA_FIELDS else None
            # MjData's own named view tells where in the field the object lies.
            if isinstance(whole, np.ndarray) and np.may_share_memory(whole, view):
                start = (_address(view) - _address(whole)) // whole.itemsize
                rows = getattr(self._data, field)
                part = rows.reshape(len(rows), -1)[:, start : start + view.size]
                return part.reshape(len(rows), *view.shape)
        raise AttributeError(f"batched mj_data.{self._kind}(...) has no {name!r}")


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
