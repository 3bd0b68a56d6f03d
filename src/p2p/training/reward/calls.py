"""One reward object, called so that whatever it does wrong becomes a RewardError."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2p.training.reward_function import RewardError, RewardFunction, Rows
from p2p.training.reward_loader import (
    EPISODE_START,
    FunctionReward,
    last_line,
    own_frames,
    reset_hook,
)

Floats = NDArray[np.float64]
_NUMERIC = "fiub"
_FLOAT64, _FLOAT32 = np.dtype(np.float64), np.dtype(np.float32)  # one object each
TOTAL = "total"
_SHOWN = 20


class Transition(NamedTuple):
    """One step of N environments, as a reward sees it; the arrays must stay as they are."""

    obs: Floats
    action: NDArray[np.float32]
    next_obs: Floats
    info: Mapping[str, Any]
    episode_start: Rows
    """The rows whose transition is the first of its episode."""


class CheckedReward:
    """Calls a reward on one transition or on a batch; checks all it returns.

    Inputs are handed over read-only, so a reward cannot change what the policy learns from.
    """

    def __init__(
        self,
        reward: RewardFunction,
        *,
        row: int | None = None,
        file: str | None = None,
        before_traceback: Callable[[], None] = lambda: None,
    ) -> None:
        self.reward = reward
        self.row = row
        self.names: tuple[str, ...] | None = None
        self.step = 0
        self._file = file or _file_of(reward)
        self._before_traceback = before_traceback
        self._reset = _hook_of(reward)

    @property
    def has_reset(self) -> bool:
        return self._reset is not None

    @property
    def has_failed(self) -> bool:
        """Whether it says where training ends an episode."""
        if isinstance(self.reward, FunctionReward):
            return self.reward.has_failed
        return type(self.reward).failed is not RewardFunction.failed

    def single(
        self, obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any], start: bool
    ) -> list[float]:
        """Total and terms of one transition; `info` is the reward's to keep."""
        try:
            if start and self._reset is not None:
                self._reset(None)
            values = gather_single(*self._compute(obs, action, next_obs, info, start))
        except (Exception, SystemExit) as error:
            raise self._error(error, obs, action, next_obs, info) from error
        self.step += 1
        return values

    def batch(self, transition: Transition) -> Floats:
        """Total and terms of N transitions, (1 + terms, N)."""
        start = transition.episode_start
        try:
            if self._reset is not None and start.any():
                self._reset(start)
            values = gather_batch(*self._compute(*transition), len(start))
        except (Exception, SystemExit) as error:
            raise self._error(error, *transition[:4]) from error
        self.step += 1
        return values

    def failed(
        self,
        obs: Any,
        action: Any,
        next_obs: Any,
        info: Mapping[str, Any],
        start: bool | Rows,
    ) -> Rows:
        """Where training ends the episode: (N,) for a batch, () for one transition."""
        shape = np.shape(action)[:-1]
        try:
            answer = self.reward.failed(
                read_only(obs),
                read_only(action),
                read_only(next_obs),
                ChainMap({EPISODE_START: start}, info),  # type: ignore[arg-type]
            )
            return as_rows(answer, shape)
        except (Exception, SystemExit) as error:
            raise self._error(error, obs, action, next_obs, info) from error

    def _compute(
        self, obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any], start: bool | Rows
    ) -> tuple[Any, Mapping[str, Any], tuple[str, ...]]:
        """Total, terms, and the names that the terms must have."""
        total, terms = unpack(
            self.reward.compute(
                read_only(obs),
                read_only(action),
                read_only(next_obs),
                {**info, EPISODE_START: start},
            )
        )
        if self.names is None:
            self.names = names_of(terms)
        return total, terms, self.names

    def _error(
        self, error: BaseException, obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]
    ) -> RewardError:
        row, term, value, line, text = self.row, None, None, None, ""
        if isinstance(error, BadReturn):
            term, value = error.term, error.value
            problem = f"{error}" if error.term else f"the reward {error}"
            row = error.row if error.row is not None else row
        else:
            self._before_traceback()
            text, line = own_frames(error, self._file)
            problem = f"{last_line(error)}{_hint(error, info)}"
        where = self._file if line is None else f"{self._file}:{line}"
        place = f"step {self.step}" + ("" if row is None else f", environment {row}")
        if self.row is None and row is not None:  # a row of the batch is to blame: show that row
            obs, action, next_obs = obs[row], action[row], next_obs[row]
            info = {k: v[row] if isinstance(v, np.ndarray) else v for k, v in info.items()}
        return RewardError(
            f"{where}: {problem} ({place})\n{summarise(obs, action, next_obs, info)}",
            term=term, step=self.step, row=row, value=value, line=line, traceback=text,
        )  # fmt: skip


def read_only(array: Any) -> Any:
    """A view that cannot be written through."""
    if isinstance(array, np.ndarray):
        array = array.view()
        array.setflags(write=False)
    return array


def summarise(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> str:
    """The inputs of a call, shortened, one per line."""
    shown = {"obs": obs, "action": action, "next_obs": next_obs}
    lines = [f"  {name} = {_short(value)}" for name, value in shown.items()]
    pairs = [f"{key}: {_short(value)}" for key, value in list(info.items())[:_SHOWN]]
    return "\n".join([*lines, f"  info = {{{', '.join(pairs)}}}"])


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        flat: NDArray[Any] = value if value.ndim == 1 else value[0]
        text = np.array2string(
            flat.ravel()[:_SHOWN], precision=4, separator=", ", max_line_width=10_000
        )
        more = f" ... ({value.size} values)" if flat.size > _SHOWN else ""
        return f"{text}{more}" if value.ndim == 1 else f"shape {value.shape}, first {text}{more}"
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _hint(error: BaseException, info: Mapping[str, Any]) -> str:
    if isinstance(error, KeyError) and error.args and error.args[0] not in info:
        return f"; info has {', '.join(sorted(map(str, info)))}"
    if isinstance(error, ValueError) and "read-only" in str(error):
        return "; a reward must not change its arguments in place: work on a copy"
    if isinstance(error, IndexError) and "too many indices" in str(error):
        return "; a reward is also given single vectors: write x[..., i], not x[:, i]"
    if isinstance(error, SystemExit):
        return "; a reward must not exit"
    return ""


def _hook_of(reward: RewardFunction) -> Callable[[Rows | None], object] | None:
    if isinstance(reward, FunctionReward):
        return reward.reset if reward.has_state else None
    return None if type(reward).reset is RewardFunction.reset else reset_hook(reward.reset)


def _file_of(reward: RewardFunction) -> str:
    function = reward.function if isinstance(reward, FunctionReward) else type(reward).compute
    code = getattr(function, "__code__", None)
    return str(getattr(code, "co_filename", type(reward).__name__))


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


def as_rows(answer: object, shape: tuple[int, ...]) -> Rows:
    """What `failed` returned, as truth values of this shape."""
    array = np.asarray(answer)
    if array.dtype != np.bool_ or array.shape not in (shape, ()):
        wanted = f"an array of bool with shape {shape}" if shape else "True or False"
        raise BadReturn(f"failed returned {_kind(answer)}, not {wanted}", term="failed")
    return np.broadcast_to(array, shape)


def _not_finite(term: str, value: float, row: int | None) -> BadReturn:
    return BadReturn(f"{_label(term)} is {value}", term=term, value=value, row=row)


def _other_names(terms: Mapping[str, Any], names: tuple[str, ...]) -> BadReturn:
    gone = [name for name in names if name not in terms]
    new = [name for name in terms if name not in names]
    changes = [f"{', '.join(gone)} missing"] if gone else []
    changes += [f"{', '.join(map(str, new))} new"] if new else []
    return BadReturn(
        f"its terms changed ({'; '.join(changes)}). Return the same terms at every step, with 0.0 "
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
