"""A recorded episode: one array per quantity, one row per kept step, in a plain .npz file.

Row i is a transition. `obs` and `action` belong to its beginning; `next_obs`, `timestamp` and the
engine's fields (qpos, qvel, ...) to the state it reached, before any reset. Numbers are float32,
qpos and qvel too: at 100 m from the origin that is still 8 micrometres, far below what a picture or
a judge can tell, and it halves the file. Physics is never continued from a trajectory.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from p2p.files import open_data

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

Column = NDArray[Any]

TERM_PREFIX = "reward_term_"
NAMES_KEY = "_reward_term_names"  # the underscore keeps it apart from a term called "names"
SCALAR_COLUMNS = (
    "step",
    "timestamp",
    "reward",
    "cumulative_reward",
    "terminated",
    "truncated",
)
VECTOR_COLUMNS = ("obs", "action", "next_obs")
ENGINE_COLUMNS = ("qpos", "qvel", "ctrl", "xpos", "xquat", "cvel", "cfrc_ext")
"""There when the simulator gives them."""
ENV_REWARD = "env_reward"
"""The environment's own reward, beside the one that was trained on."""
MAX_BYTES = 1 << 30
"""Uncompressed size beyond which a file is refused unread."""

_UNREADABLE = (OSError, ValueError, EOFError, KeyError, RuntimeError, MemoryError, TypeError,
               OverflowError, SyntaxError, zipfile.BadZipFile, zlib.error, TokenError)  # fmt: skip
"""What numpy and zipfile raise for damaged files: found by damaging thousands of them."""


class TrajectoryFileError(ValueError):
    """The file is not a trajectory; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """The kept steps of one episode. Arrays are read-only; build one with `from_arrays`."""

    columns: Mapping[str, Column]
    """Everything but the reward terms, by name. `step` counts from 0; `timestamp` is the seconds
    since the episode began; `cumulative_reward` includes steps that the stride left out."""
    reward_terms: Mapping[str, Column]

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Column]) -> Self:
        """Check and take the arrays of a file or a recorder.

        Raises:
            TrajectoryFileError: a column is missing, has another length or an odd type.
        """
        names = _term_names(arrays)
        length = _check_columns(arrays)
        ready: dict[str, Column] = {}
        for key, array in arrays.items():
            if key == NAMES_KEY:
                continue
            if array.ndim == 0 or len(array) != length:
                rows = "no rows" if array.ndim == 0 else f"{len(array)} rows"
                raise TrajectoryFileError(f"column {key!r} has {rows}, but 'step' has {length}")
            ready[key] = _compact(key, array)
        terms = {name: ready.pop(TERM_PREFIX + name) for name in names}
        return cls(columns=ready, reward_terms=terms)

    @property
    def length(self) -> int:
        return len(self.columns["step"])

    @property
    def total_reward(self) -> float:
        """The episode's return, over all its steps."""
        return float(self.columns["cumulative_reward"][-1])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def arrays(self) -> dict[str, Column]:
        """Return the arrays as the file holds them."""
        terms = {TERM_PREFIX + name: column for name, column in self.reward_terms.items()}
        return {
            **self.columns,
            **terms,
            NAMES_KEY: np.array(list(self.reward_terms), dtype=np.str_),
        }

    def part(self, rows: Column | slice) -> Self:
        """Return the episode with only these of the kept steps."""
        arrays = self.arrays()
        cut = {name: a if name == NAMES_KEY else a[rows].copy() for name, a in arrays.items()}
        return type(self).from_arrays(cut)

    @classmethod
    def join(cls, episodes: Sequence[Self]) -> Self | None:
        """The steps of all, one episode after the other; None where their columns differ."""
        arrays = [episode.arrays() for episode in episodes]
        kinds = [{n: (a.dtype, a.shape[1:]) for n, a in each.items()} for each in arrays]
        if any(kind != kinds[0] for kind in kinds):
            return None
        joined = {n: np.concatenate([each[n] for each in arrays]) for n in arrays[0]}
        return cls.from_arrays({**joined, NAMES_KEY: arrays[0][NAMES_KEY]})

    def drop_rewards(self) -> Self:
        """Return the episode without its rewards, as judges read it."""
        columns = {name: c for name, c in self.columns.items() if not is_reward(name)}
        return type(self)(columns=columns, reward_terms={})

    def rows(self) -> Rows:
        """The steps as judge functions read them: a sequence of dicts, each made when asked for."""
        return Rows(self)

    def save(self, path: Path, *, lasting: bool = True) -> None:
        """Write a compressed .npz, atomically. `numpy.load` reads it without pickle.

        With `lasting` off, for a file that is soon removed, it is neither compressed nor forced to
        disk.
        """
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        # numpy's own writer compresses at level 6: four times the time for 3 % less.
        with (
            partial.open("wb") as file,
            zipfile.ZipFile(
                file, "w", zipfile.ZIP_DEFLATED if lasting else zipfile.ZIP_STORED, compresslevel=1
            ) as archive,
        ):
            for name, array in self.arrays().items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(
                        member, np.ascontiguousarray(array), allow_pickle=False
                    )
        if lasting:
            with partial.open("rb") as written:
                os.fsync(written.fileno())
        partial.replace(path)

    @classmethod
    def load(cls, path: Path, max_bytes: int = MAX_BYTES) -> Self:
        """Read a file that `save` wrote.

        Raises:
            TrajectoryFileError: it cannot be read, is too large, or is not a trajectory.
        """
        try:
            with open_data(path) as stream:
                with zipfile.ZipFile(stream) as archive:
                    size = sum(member.file_size for member in archive.infolist())
                stream.seek(0)
                arrays = _read(stream) if size <= max_bytes else None
        except _UNREADABLE as error:
            raise TrajectoryFileError(f"{path}: not a readable .npz of arrays ({error})") from error
        if arrays is None:
            raise TrajectoryFileError(f"{path}: {size} bytes unpacked, {max_bytes} allowed")
        try:
            return cls.from_arrays(arrays)
        except TrajectoryFileError as error:
            raise TrajectoryFileError(f"{path}: {error}") from None


class Rows(Sequence[dict[str, Any]]):
    """Steps as dicts: numbers as Python numbers, vectors as (read-only) arrays, terms as a dict.

    Asked for a name instead of a number, it gives that column of all steps: `rows["qpos"][:, 0]`.
    """

    def __init__(self, trajectory: RecordedEpisode) -> None:
        self._trajectory = trajectory

    def __len__(self) -> int:
        return self._trajectory.length

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    @overload
    def __getitem__(self, index: str) -> Any: ...
    def __getitem__(self, index: int | slice | str) -> Any:
        if isinstance(index, str):
            return self._column(index)
        if isinstance(index, slice):
            return [self._row(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._row(index)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self._row(i) for i in range(len(self)))

    def __contains__(self, value: object) -> bool:
        return value in self.names if isinstance(value, str) else super().__contains__(value)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self._trajectory.columns, "reward_terms")

    def _column(self, name: str) -> Column | dict[str, Column]:
        if name == "reward_terms":
            return dict(self._trajectory.reward_terms)
        if name not in self._trajectory.columns:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.names)}")
        return self._trajectory.columns[name]

    def _row(self, i: int) -> dict[str, Any]:
        row: dict[str, Any] = {
            name: column[i].item() if column.ndim == 1 else column[i]
            for name, column in self._trajectory.columns.items()
        }
        row["reward_terms"] = {
            name: float(column[i]) for name, column in self._trajectory.reward_terms.items()
        }
        return row


def is_reward(column: str) -> bool:
    """Return whether a column holds rewards: the environment's, its terms, or ours."""
    return column in ("reward", "cumulative_reward", ENV_REWARD) or column.startswith("reward_")


def info_columns(info: Mapping[str, Column]) -> dict[str, Column]:
    """What of an environment's info a trajectory holds: numbers, under names not reserved."""
    reserved = {*SCALAR_COLUMNS, *VECTOR_COLUMNS, *ENGINE_COLUMNS, ENV_REWARD, NAMES_KEY}
    return {
        name: values
        for name, values in info.items()
        if name not in reserved
        and not name.startswith("reward_term")
        and values.dtype.kind in "fiub"
    }


def _read(stream: BinaryIO) -> dict[str, Column]:
    with np.load(stream, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy gives the bytes of any other file
            raise TypeError(f"{name} is not an array")
    return arrays


def _compact(name: str, array: Column) -> Column:
    if array.dtype.kind not in "fiub":
        raise TrajectoryFileError(f"column {name!r} holds {array.dtype}, not numbers")
    if array.dtype.kind == "f":
        array = array.astype(np.float32)
    elif array.flags.writeable:
        array = array.copy()
    array.flags.writeable = False
    return array


def _term_names(arrays: Mapping[str, Column]) -> tuple[str, ...]:
    listed = arrays.get(NAMES_KEY)
    if listed is None:
        raise TrajectoryFileError(f"no {NAMES_KEY!r}")
    # An empty list of names has no characters to give it a type.
    if listed.ndim != 1 or (listed.dtype.kind != "U" and listed.size):
        raise TrajectoryFileError(f"{NAMES_KEY!r} is not a list of names")
    names = tuple(str(name) for name in listed)
    there = {key.removeprefix(TERM_PREFIX) for key in arrays if key.startswith(TERM_PREFIX)}
    if set(names) != there or len(there) != len(names):
        raise TrajectoryFileError(f"reward terms listed {sorted(names)}, columns {sorted(there)}")
    for name in names:
        if arrays[TERM_PREFIX + name].ndim != 1:
            raise TrajectoryFileError(f"reward term {name!r} is not one number per step")
    return names


def _check_columns(arrays: Mapping[str, Column]) -> int:
    missing = [key for key in (*SCALAR_COLUMNS, *VECTOR_COLUMNS) if key not in arrays]
    if missing:
        raise TrajectoryFileError(f"missing columns: {', '.join(missing)}")
    for key in SCALAR_COLUMNS:
        if arrays[key].ndim != 1:
            raise TrajectoryFileError(f"column {key!r} is not one number per step")
    for key in VECTOR_COLUMNS:
        if arrays[key].ndim < 2:
            raise TrajectoryFileError(f"column {key!r} is not one vector per step")
    for key, kind in (("step", "iu"), ("terminated", "b"), ("truncated", "b")):
        if arrays[key].dtype.kind not in kind:
            raise TrajectoryFileError(f"column {key!r} holds {arrays[key].dtype}")
    if not len(arrays["step"]):
        raise TrajectoryFileError("no steps")
    return len(arrays["step"])
