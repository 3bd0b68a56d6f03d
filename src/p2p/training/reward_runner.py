"""A reward called on the transitions of N environments, once for all of them or once for each.

Whatever a reward does wrong becomes a RewardError. Building a runner executes its source: inside
the sandbox only.
"""

from __future__ import annotations

import math
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2p.training.envs.batched_env import trial_range
from p2p.training.reward_function import RewardError, RewardFunction, Rows, spec_of
from p2p.training.reward_loader import (
    DEFAULT_NAME,
    EPISODE_START,
    FunctionReward,
    last_line,
    own_frames,
    parse_source,
    reset_hook,
)
from p2p.training.specs.quantities import join_infos

if TYPE_CHECKING:
    from p2p.training.envs.batched_env import BatchedEnv, StepBatch


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
        """Return where training ends the episode: (N,) for a batch, () for one transition."""
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
    lines = [f"  {name} = {_shorten(value)}" for name, value in shown.items()]
    pairs = [f"{key}: {_shorten(value)}" for key, value in list(info.items())[:_SHOWN]]
    return "\n".join([*lines, f"  info = {{{', '.join(pairs)}}}"])


def _shorten(value: Any) -> str:
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
        raise _make_names_error(terms, names) from None
    if len(terms) != len(names):
        raise _make_names_error(terms, names)
    if not np.isfinite(values).all():
        bad = np.argwhere(~np.isfinite(values))
        line, row = bad[-1]  # a term rather than the total that it spoilt
        raise _make_nonfinite_error(
            names[line - 1] if line else TOTAL, float(values[line, row]), int(row)
        )
    return values


def gather_single(total: Any, terms: Mapping[str, Any], names: tuple[str, ...]) -> list[float]:
    """Total and terms of one transition, as floats; all finite."""
    if len(terms) != len(names):
        raise _make_names_error(terms, names)
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
        raise _make_names_error(terms, names) from None
    if not all(map(math.isfinite, values)):
        line = max(i for i, number in enumerate(values) if not math.isfinite(number))
        raise _make_nonfinite_error(names[line - 1] if line else TOTAL, values[line], None)
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
    """Return what `failed` returned, as truth values of this shape."""
    array = np.asarray(answer)
    if array.dtype != np.bool_ or array.shape not in (shape, ()):
        wanted = f"an array of bool with shape {shape}" if shape else "True or False"
        raise BadReturn(f"failed returned {_kind(answer)}, not {wanted}", term="failed")
    return np.broadcast_to(array, shape)


def _make_nonfinite_error(term: str, value: float, row: int | None) -> BadReturn:
    return BadReturn(f"{_label(term)} is {value}", term=term, value=value, row=row)


def _make_names_error(terms: Mapping[str, Any], names: tuple[str, ...]) -> BadReturn:
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


COMPARED_ROWS = 16
"""Of a large batch only so many environments are rewarded singly for comparison."""
FLOAT32_ORDER = 1e-6
"""Actions are float32: sums over them may differ by this much of a value's largest."""
ROWS_AT_ONCE = 512
"""Rows of a call: enough that its cost no longer counts; few enough to stay in the cache."""
RESTART_EVERY = 11
ZERO_ACTIONS = (8, 16)
"""Of every `ZERO_ACTIONS[1]` trial steps the last `ZERO_ACTIONS[0]` are made with zero actions."""

Turn = Literal["environment", "reward"]

Rewards = tuple[Floats, dict[str, Floats]]
"""Totals and terms by name: (N,) each, or (K, N) for K steps."""


class RewardRunner:
    """Turns transitions of N environments into rewards and terms, all checked.

    `batched`: one reward object sees (N, ...) arrays, in one call. Otherwise every environment has
    a reward object of its own, which sees single transitions. `decide_batched` tells whether the
    first is safe. `stateful` is read off the source and may err on the side of True.

    Right after the physics numpy's calls cost twice as much as in a row, and a batched reward that
    keeps no state cannot tell whether its rows are of one step or of many. So `block` rewards
    `block_steps` of them in one call. The first block is rewarded both ways, with a second reward
    object; if that makes a difference (state that the source does not show), it stays with single
    steps. So it does for a reward that looks at the simulator's own state, where it is there to be
    looked at (`side_info`).
    """

    def __init__(
        self,
        code: str,
        num_envs: int,
        *,
        batched: bool,
        engine: str = "mujoco",
        name: str = DEFAULT_NAME,
        side_info: BatchedEnv | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.batched = batched
        self._source = parse_source(code, engine, name=name)
        self._side_info = side_info if self._source.reads_simulator else None
        self._calls: list[CheckedReward] = []
        self.restart()
        self.spec = spec_of(self._calls[0].reward)
        self.stateful = self._source.stateful or self._calls[0].has_reset
        single = not batched or self.stateful or self._side_info is not None
        self.block_steps = 1 if single else max(1, ROWS_AT_ONCE // num_envs)
        """How many steps to gather for a call of `block`."""
        self._block_call: CheckedReward | None = None
        self._compared = False
        self.failures = 0
        """How often `failed` was true, in all calls."""
        self.seconds = 0.0
        """What the reward's calls have taken."""

    @property
    def term_names(self) -> tuple[str, ...]:
        """The terms, in the order the reward returns them; empty before the first call."""
        return self._calls[0].names or ()

    @property
    def ends_episodes(self) -> bool:
        """Whether the reward says where training ends an episode early."""
        return self._calls[0].has_failed

    @property
    def has_reset(self) -> bool:
        """Whether the reward is told of new episodes, apart from `_episode_start`."""
        return self._calls[0].has_reset

    def restart(self) -> None:
        """Make fresh reward objects, by executing the source again."""
        rows: Sequence[int | None] = [None] if self.batched else range(self.num_envs)
        self._calls = [self._build(row) for row in rows]

    def _build(self, row: int | None) -> CheckedReward:
        return CheckedReward(
            self._source.build(),
            row=row,
            file=self._source.name,
            before_traceback=self._source.remember_lines,
        )

    def __call__(self, transition: Transition) -> Rewards:
        """Rewards (N,) and terms {name: (N,)}; raises RewardError."""
        began = time.perf_counter()
        if self.batched:
            values = self._calls[0].batch(self._add_side_info(transition))
        else:
            values = self._call_rows(transition)
        self.seconds += time.perf_counter() - began
        return values[0], dict(zip(self.term_names, values[1:], strict=True))

    def failed(self, transition: Transition) -> Rows:
        """Return where the reward ends the episode, (N,); call it after the step's reward."""
        if self.batched:
            failed = self._calls[0].failed(*self._add_side_info(transition))
        else:
            rows = zip(self._calls, self._rows(transition), strict=True)
            failed = np.array([call.failed(*row) for call, row in rows])
        self.failures += int(np.count_nonzero(failed))
        return failed

    def _add_side_info(self, transition: Transition) -> Transition:
        if self._side_info is None:
            return transition
        return transition._replace(info={**transition.info, **self._side_info.side_info()})

    def _rows(self, transition: Transition) -> Iterator[tuple[Any, Any, Any, dict[str, Any], bool]]:
        """The arguments of each environment's own reward."""
        obs, action, next_obs, info, episode_start = transition
        for i, start in enumerate(episode_start.tolist()):
            row_info = {key: value[i] for key, value in info.items()}
            if self._side_info is not None:
                row_info.update(self._side_info.row_side_info(i))
            yield obs[i], action[i], next_obs[i], row_info, start

    def _call_rows(self, transition: Transition) -> Floats:
        rows = []
        for call, row in zip(self._calls, self._rows(transition), strict=True):
            if call.names is None:
                call.names = self._calls[0].names
            rows.append(call.single(*row))
        return np.array(rows).T.copy()

    def block(self, steps: Sequence[Transition]) -> Rewards:
        """Rewards (K, N) and terms {name: (K, N)}; raises RewardError, at the step to blame."""
        if self.block_steps == 1 or len(steps) == 1:
            return self._run_steps(steps)
        began = time.perf_counter()
        try:
            block = self._run_stacked(steps)
        except RewardError:
            block = None
        self.seconds += time.perf_counter() - began
        if block is not None and self._compared:
            self._calls[0].step += len(steps)
            return block
        # The first block; or one that failed, whose steps now show which of them is to blame.
        single = self._run_steps(steps)
        if block is not None and not _difference(_flatten(single), _flatten(block), {}, 0):
            self._compared = True
            return block
        self.block_steps = 1
        return single

    def _run_steps(self, steps: Sequence[Transition]) -> Rewards:
        rewards = [self(step) for step in steps]
        if len(rewards) == 1:
            total, terms = rewards[0]
            return total[None], {name: values[None] for name, values in terms.items()}
        return (
            np.stack([total for total, _ in rewards]),
            {name: np.stack([terms[name] for _, terms in rewards]) for name in self.term_names},
        )

    def _run_stacked(self, steps: Sequence[Transition]) -> Rewards | None:
        """Run the steps as one batch, or return None if the keys of their info differ."""
        info = join_infos([step.info for step in steps])
        if info is None:
            return None
        if self._block_call is None:
            self._block_call = self._build(None)
        values = self._block_call.batch(
            Transition(
                np.concatenate([step.obs for step in steps]),
                np.concatenate([step.action for step in steps]),
                np.concatenate([step.next_obs for step in steps]),
                info,
                np.concatenate([step.episode_start for step in steps]),
            )
        ).reshape(-1, len(steps), self.num_envs)
        return values[0], dict(zip(self._block_call.names or (), values[1:], strict=True))


def _flatten(rewards: Rewards) -> Rewards:
    total, terms = rewards
    return total.ravel(), {name: values.ravel() for name, values in terms.items()}


class EnvClock:
    """Measures the time that an environment takes, which is not the reward's.

    Args:
        limit_s: a trial ends early once the environment has taken so long.
        tell: told `environment` before it computes, and `reward` after.
    """

    def __init__(
        self, limit_s: float = math.inf, tell: Callable[[Turn], None] = lambda _: None
    ) -> None:
        self.seconds = 0.0
        self.limit_s = limit_s
        self._tell = tell

    @property
    def is_over(self) -> bool:
        return self.seconds >= self.limit_s

    @contextmanager
    def measure(self) -> Iterator[None]:
        self._tell("environment")
        began = time.monotonic()
        yield
        self.seconds += time.monotonic() - began
        self._tell("reward")


def trial_transitions(
    env: BatchedEnv, steps: int, seed: int = 0, clock: EnvClock | None = None
) -> Iterator[Transition]:
    """Real transitions to try a reward on: random and zero actions, with episodes that begin anew.

    `env` is reset first, and some of its rows now and then. While a transition is looked at, the
    environment's side information is that of it. They are fewer where the clock's limit is reached.
    """
    clock = clock or EnvClock()
    rng = np.random.default_rng(seed)
    space = env.single_action_space
    low, high = trial_range(space)
    shape = (env.num_envs, *(space.shape or ()))
    with clock.measure():
        obs = env.reset_batch(seed)
    start = np.ones(env.num_envs, np.bool_)
    for step in range(steps):
        zero = step % ZERO_ACTIONS[1] >= ZERO_ACTIONS[1] - ZERO_ACTIONS[0]
        action = (np.zeros(shape) if zero else rng.uniform(low, high, shape)).astype(np.float32)
        with clock.measure():
            batch = env.step_batch(action)
        yield Transition(obs, action, batch.next_obs, batch.info, start)
        if clock.is_over:
            return
        obs, start = batch.obs, batch.terminated | batch.truncated
        if step % RESTART_EVERY == RESTART_EVERY - 1:
            rows = rng.random(env.num_envs) < 0.5
            with clock.measure():
                obs = env.restart(rows)
            start = start | rows


def decide_batched(
    code: str,
    env: BatchedEnv,
    *,
    steps: int = 64,
    seed: int = 0,
    side_info: bool = False,
    engine: str = "mujoco",
    name: str = DEFAULT_NAME,
    clock: EnvClock | None = None,
) -> tuple[bool, str]:
    """Decide whether the reward may be called with batches, and if not, why.

    Real transitions through several episodes are rewarded both ways, each with objects of its own,
    and compared. `env` is reset and stepped for it. Raises RewardError for a reward that fails on
    single transitions, since then it works nowhere but here.
    """
    rows = min(env.num_envs, COMPARED_ROWS)
    source = env if side_info else None
    single = RewardRunner(code, rows, batched=False, engine=engine, name=name, side_info=source)
    batch = RewardRunner(
        code, env.num_envs, batched=True, engine=engine, name=name, side_info=source
    )
    reason = "" if env.num_envs > 1 else "with one environment there is nothing to batch"
    scale: dict[str, float] = {}
    first_steps = _FirstSteps()
    for step, transition in enumerate(trial_transitions(env, steps, seed, clock)):
        obs, action, next_obs, info, start = transition
        first_info = {key: value[:rows] for key, value in info.items()}
        first = Transition(obs[:rows], action[:rows], next_obs[:rows], first_info, start[:rows])
        expected = single(first)
        if not reason:
            try:
                together = batch(transition)
            except RewardError as error:
                reason = f"on a batch: {str(error).splitlines()[0]}"
            else:
                reason = _difference(expected, together, scale, step)
        if single.ends_episodes:
            ended = first_steps.ask_twice(single, first)
            if not reason and not np.array_equal(ended, batch.failed(transition)[:rows]):
                reason = f"failed at step {step} differs between a batch and single environments"
    first_steps.check_any_last()
    return not reason, reason


class _FirstSteps:
    """Tries `failed`, and sees to it that it leaves something to learn from."""

    def __init__(self) -> None:
        self._began = self._ended = 0

    def ask_twice(self, runner: RewardRunner, transition: Transition) -> Rows:
        """Return what `failed` says, asked twice; raises RewardError."""
        failed, again = runner.failed(transition), runner.failed(transition)
        if not np.array_equal(failed, again):
            raise RewardError("failed gives two answers for the same step: it must only look at "
                              "its arguments", term="failed")  # fmt: skip
        self._began += int(np.count_nonzero(transition.episode_start))
        self._ended += int(np.count_nonzero(failed & transition.episode_start))
        return failed

    def check_any_last(self) -> None:
        if self._began and self._ended == self._began:
            raise RewardError(
                f"failed is true on the first step of all {self._began} episodes that were tried: "
                "no training episode would last. Let it be true only where the robot can no "
                "longer do what is asked",
                term="failed",
            )  # fmt: skip


def end_failures(
    env: BatchedEnv, reward: RewardRunner, transition: Transition, step: StepBatch
) -> StepBatch:
    """A rewarded step, in which the rows that the reward calls failed have terminated."""
    failed = reward.failed(transition)
    if not failed.any():
        return step
    going_on = failed & ~(step.terminated | step.truncated)
    obs = env.restart(going_on) if going_on.any() else step.obs
    return replace(step, obs=obs, terminated=step.terminated | failed)


def _difference(single: Rewards, batch: Rewards, scale: dict[str, float], step: int) -> str:
    """Return where batch and single differ by more than the order of float32 sums can explain."""
    expected, together = ({**terms, "": total} for total, terms in (single, batch))
    if expected.keys() != together.keys():
        return f"the terms are {', '.join(together)} on a batch, {', '.join(expected)} on one"
    for name, alone in expected.items():
        values = together[name][: len(alone)]
        scale[name] = max(scale.get(name, 0.0), float(np.abs(alone).max()))
        wrong = np.abs(alone - values) > FLOAT32_ORDER * scale[name] + 1e-9
        if wrong.any():
            row = int(wrong.argmax())
            return (
                f"{name or 'the total'} at step {step} in environment {row} is {alone[row]:.6g} "
                f"alone but {values[row]:.6g} in a batch"
            )
    return ""
