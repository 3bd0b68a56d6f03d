"""What a reward returned, checked and gathered into float64 arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping

Floats = NDArray[np.float64]
_NUMERIC = "fiub"
_FLOAT64, _FLOAT32 = np.dtype(np.float64), np.dtype(np.float32)  # one object each
TOTAL = "total"


class BadReturn(Exception):
    """A return value that cannot be used, and the part of it that is to blame."""

    def __init__(
        self,
        problem: str,
        *,
        term: str | None = None,
        value: object = None,
        row: int | None = None,
    ) -> None:
        super().__init__(problem)
        self.term = term
        self.value = value
        self.row = row


def unpack(result: object) -> tuple[Any, Mapping[str, Any]]:
    """Total and terms."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        shown = f"{len(result)} values" if isinstance(result, tuple | list) else _kind(result)
        raise BadReturn(f"returned {shown}; it must return (total, {{term: value}})", value=result)
    total, terms = result
    if not isinstance(terms, dict):
        raise BadReturn(
            f"returned {_kind(terms)} as its terms; it must return (total, {{term: value}})",
            value=terms,
        )
    return total, terms


def names_of(terms: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the first terms a reward returned; all later ones must be the same."""
    keys: list[object] = list(terms)
    for name in keys:
        if not isinstance(name, str) or not name:
            raise BadReturn(f"term names must be non-empty strings, not {name!r}", value=name)
    return tuple(terms)


def gather_batch(total: Any, terms: Mapping[str, Any], names: tuple[str, ...], n: int) -> Floats:
    """Total and terms of a batch, one per line of a fresh (1 + terms, N) array; all finite."""
    values = np.empty((1 + len(names), n))
    shape = (n,)
    try:
        for i, value in enumerate((total, *[terms[name] for name in names])):
            kind = value.dtype if value.__class__ is np.ndarray else None
            if (
                (kind is _FLOAT64 or kind is _FLOAT32) and value.shape == shape
            ) or value.__class__ is float:
                values[i] = value
            else:
                values[i] = _as_numbers(value, names[i - 1] if i else TOTAL, n)
    except KeyError:
        raise _other_names(terms, names) from None
    if len(terms) != len(names):
        raise _other_names(terms, names)
    if not np.isfinite(values).all():
        bad = np.argwhere(~np.isfinite(values))
        line, row = bad[-1]  # a term rather than the total that it spoilt
        raise _not_finite(names[line - 1] if line else TOTAL, float(values[line, row]), int(row))
    return values


def gather_single(total: Any, terms: Mapping[str, Any], names: tuple[str, ...]) -> list[float]:
    """Total and terms of one transition, as floats; all finite."""
    if len(terms) != len(names):
        raise _other_names(terms, names)
    values = []
    try:
        for i, value in enumerate((total, *[terms[name] for name in names])):
            kind = value.__class__
            number = (
                float(value)
                if kind is float or kind is np.float64 or kind is np.float32 or kind is int
                else float(_as_numbers(value, names[i - 1] if i else TOTAL, None))
            )
            values.append(number)
    except KeyError:
        raise _other_names(terms, names) from None
    if not all(map(math.isfinite, values)):
        line = max(i for i, number in enumerate(values) if not math.isfinite(number))
        raise _not_finite(names[line - 1] if line else TOTAL, values[line], None)
    return values


def _as_numbers(value: Any, term: str, n: int | None) -> NDArray[Any]:
    wanted = "a number" if n is None else f"an array of shape ({n},) or a number"
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        raise BadReturn(
            f"{_label(term)} is {_kind(value)}, not {wanted}", term=term, value=value
        ) from None
    if array.dtype.kind not in _NUMERIC:
        raise BadReturn(f"{_label(term)} is {_kind(value)}, not {wanted}", term=term, value=value)
    if array.shape != () and (n is None or array.shape != (n,)):
        hint = "reduce it, for instance with np.sum(..., axis=-1)"
        raise BadReturn(
            f"{_label(term)} has shape {array.shape}, not {wanted}; {hint}", term=term, value=value
        )
    return array


def _not_finite(term: str, value: float, row: int | None) -> BadReturn:
    return BadReturn(f"{_label(term)} is {value}", term=term, value=value, row=row)


def _other_names(terms: Mapping[str, Any], names: tuple[str, ...]) -> BadReturn:
    gone = [name for name in names if name not in terms]
    new = [name for name in terms if name not in names]
    said = [f"{', '.join(gone)} missing"] if gone else []
    said += [f"{', '.join(map(str, new))} new"] if new else []
    return BadReturn(
        f"its terms changed ({'; '.join(said)}). Return the same terms at every step, with 0.0 "
        "where one does not apply",
        term=str((gone + new)[0]),
        value=tuple(terms),
    )


def _label(term: str) -> str:
    return "the total" if term == TOTAL else f"term {term!r}"


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return "None" if value is None else f"a {type(value).__name__}"
