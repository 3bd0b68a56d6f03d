"""One reward object, called so that whatever it does wrong becomes a RewardError."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from p2p.training.reward.values import (
    BadReturn,
    Floats,
    gather_batch,
    gather_single,
    names_of,
    unpack,
)
from p2p.training.reward_function import RewardError, RewardFunction, Rows
from p2p.training.reward_loader import FunctionReward, own_frames, reset_hook, say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

EPISODE_START = "_episode_start"
_SHOWN = 20


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
        self._compute = reward.compute
        self._reset = _hook_of(reward)

    @property
    def has_reset(self) -> bool:
        """Whether the reward wants to be told of new episodes."""
        return self._reset is not None

    def single(
        self, obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any], start: bool
    ) -> list[float]:
        """Total and terms of one transition; `info` is the reward's to keep."""
        given = (read_only(obs), read_only(action), read_only(next_obs))
        try:
            if start and self._reset is not None:
                self._reset(None)
            total, terms = unpack(self._compute(*given, {**info, EPISODE_START: start}))
            names = self.names = self.names if self.names is not None else names_of(terms)
            values = gather_single(total, terms, names)
        except (Exception, SystemExit) as error:
            raise self._error(error, (obs, action, next_obs, info)) from error
        self.step += 1
        return values

    def batch(
        self, obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any], start: Rows
    ) -> Floats:
        """Total and terms of N transitions, (1 + terms, N)."""
        given = (read_only(obs), read_only(action), read_only(next_obs))
        try:
            if self._reset is not None and start.any():
                self._reset(start)
            total, terms = unpack(self._compute(*given, {**info, EPISODE_START: start}))
            names = self.names = self.names if self.names is not None else names_of(terms)
            values = gather_batch(total, terms, names, len(start))
        except (Exception, SystemExit) as error:
            raise self._error(error, (obs, action, next_obs, info)) from error
        self.step += 1
        return values

    def _error(self, error: BaseException, given: tuple[Any, ...]) -> RewardError:
        obs, action, next_obs, info = given
        row, term, value, line, text = self.row, None, None, None, ""
        if isinstance(error, BadReturn):
            term, value, problem = error.term, error.value, f"the reward {error}"
            problem = f"{error}" if error.term else problem
            row = error.row if error.row is not None else row
        else:
            self._before_traceback()
            text, line = own_frames(error, self._file)
            problem = f"{say(error)}{_hint(error, info)}"
        where = self._file if line is None else f"{self._file}:{line}"
        place = f"step {self.step}" + ("" if row is None else f", environment {row}")
        if self.row is None and row is not None:  # a row of the batch is to blame: show that row
            obs, action, next_obs = obs[row], action[row], next_obs[row]
            info = {k: v[row] if isinstance(v, np.ndarray) else v for k, v in info.items()}
        values = summarise(obs, action, next_obs, info)
        return RewardError(
            f"{where}: {problem} ({place})\n{values}",
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
