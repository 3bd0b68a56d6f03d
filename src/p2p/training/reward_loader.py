"""Reward files into RewardFunction objects.

Loading executes the file. Do it inside the sandbox only (p2p.sandbox): nothing here holds hostile
code back.

A file holds one of
- a class derived from RewardFunction, that is constructed without arguments;
- a function `reward_fn(obs, action, next_obs, info)`, described by its docstring;
- a function `_make_reward()` that returns such a function with state of its own.
A file with several classes says which one counts with `reward_fn = TheClass()`.
Beside a function, `failed(obs, action, next_obs, info)` says where training ends an episode early;
a class has it as a method.
`np`, `numpy`, `mujoco` and `RewardFunction` are there without an import.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from p2p.training.reward_function import (
    RewardFunction,
    RewardLoadError,
    Rows,
    best_docstring,
    parse_docstring,
    spec_of,
)
from p2p.training.simulator import get_simulator
from p2p.utils.utils import parse_python

if TYPE_CHECKING:
    from p2p.contracts import RewardSpec

PARAMETERS = ("obs", "action", "next_obs", "info")
DEFAULT_NAME = "reward_fn.py"
EPISODE_START = "_episode_start"
SIMULATOR_KEYS = ("mj_data", "mj_model")

Compute = Callable[[Any, Any, Any, Any], tuple[Any, Any]]
Failed = Callable[[Any, Any, Any, Any], Any]


def load_from_file(path: str | Path, engine: str = "mujoco") -> RewardFunction:
    """The reward of a file. Executes it: inside the sandbox only. Raises RewardLoadError."""
    return read_source(path, engine).build()


def load_from_code(
    code: str, engine: str = "mujoco", *, name: str = DEFAULT_NAME
) -> RewardFunction:
    """The reward of a source text. Executes it: inside the sandbox only. Raises RewardLoadError."""
    return parse_source(code, engine, name=name).build()


def read_source(path: str | Path, engine: str = "mujoco") -> RewardSource:
    """Read and compile a file, without executing it."""
    try:
        code = Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise RewardLoadError("no such file", file=str(path)) from None
    except UnicodeDecodeError as error:
        raise RewardLoadError(f"not a UTF-8 text file ({error})", file=str(path)) from None
    return parse_source(code, engine, name=str(path))


@lru_cache(maxsize=8)
def parse_source(code: str, engine: str = "mujoco", *, name: str = DEFAULT_NAME) -> RewardSource:
    """Compile a source text, without executing it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # "\|" in a LaTeX string is common, harmless
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            tree = parse_python(code, name)
            restore_formulas(tree, code)
            compiled = compile(tree, name, "exec", dont_inherit=True)
        except SyntaxError as error:
            text = f"\n    {error.text.strip()}" if error.text else ""
            problem = f"syntax error: {error.msg}{text}"
            raise RewardLoadError(problem, file=name, line=error.lineno) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise RewardLoadError(f"cannot be compiled: {error}", file=name) from None
    return RewardSource(
        code=code,
        name=name,
        engine=engine,
        compiled=compiled,
        stateful=keeps_state(tree),
        strings=strings_of(tree),
    )


def line_in_stack(output: str, name: str) -> int | None:
    """The first line that printed stacks name in the reward's file: the innermost one."""
    match = re.search(rf'File "{re.escape(name)}", line (\d+)', output)
    return int(match[1]) if match else None


def find_hanging_code(output: str) -> tuple[Literal["reward", "environment"], str]:
    """Return what a trainer that fell silent was at, by the stacks that it printed shortly before.

    Where there are none, in a library that keeps all signals and output away, it is the reward.
    """
    stacks = output.rpartition("Timeout (")[2]
    if line := line_in_stack(stacks, DEFAULT_NAME):
        return "reward", f"the reward, in line {line},"
    main = re.search(r'File "([^"]+)", line (\d+) in (\S+)', stacks.rpartition("Thread 0x")[2])
    if main is None:
        return "reward", "the reward"
    return "environment", f"the environment, in {main[3]} ({Path(main[1]).name}:{main[2]}),"


_LITERAL = re.compile(r"""([a-z]*)(\"{3}|'{3}|"|')(.*)\2""", re.IGNORECASE | re.DOTALL)
_LATEX_COMMAND = re.compile(r"(?<!\\)((?:\\\\)*)\\(?=[abfnrtv][a-z])")


def restore_formulas(tree: ast.Module, code: str) -> None:
    r"""Give docstrings their LaTeX commands back where Python read an escape.

    In a docstring that is not raw, `\frac` begins with a form feed and `\theta` with a tab. A
    backslash before two lower-case letters is taken as the beginning of a command.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        match node.body:
            case [ast.Expr(value=ast.Constant(value=str()) as text), *_]:
                literal = _LITERAL.fullmatch(ast.get_source_segment(code, text) or "")
                if literal and "r" not in literal[1].lower() and "latex:" in literal[3].lower():
                    source = _LATEX_COMMAND.sub(r"\1\\\\", literal[3])
                    text.value = ast.literal_eval(f"{literal[2]}{source}{literal[2]}")


@dataclass(frozen=True, slots=True)
class RewardSource:
    """A compiled reward file; `build` makes as many independent rewards of it as are needed."""

    code: str
    name: str
    engine: str
    compiled: CodeType
    stateful: bool
    strings: frozenset[str]
    """Every string that stands in it. What is asked of `info` is among them, unless a key is put
    together when it runs."""

    @property
    def reads_episode_start(self) -> bool:
        return EPISODE_START in self.strings

    @property
    def reads_simulator(self) -> bool:
        """Whether it looks at the simulator's own state."""
        return not self.strings.isdisjoint(SIMULATOR_KEYS)

    def build(self) -> RewardFunction:
        """Execute the file afresh, so that not even its module's variables are shared."""
        module = self._execute()
        chosen = self._choose(module)
        reward = self._to_reward(chosen, module)
        try:
            spec_of(reward)
        except Exception as error:
            raise self.error(
                f"the reward's description fails: {last_line(error)}", error
            ) from error
        return reward

    def remember_lines(self) -> None:
        """Let tracebacks show this source, also where no such file lies on disk."""
        lines = self.code.splitlines(keepends=True)
        linecache.cache[self.name] = (len(self.code), None, lines, self.name)

    def error(
        self, problem: str, cause: BaseException | None = None, line: int | None = None
    ) -> RewardLoadError:
        """A load error that points into this file."""
        text = ""
        if cause is not None:
            self.remember_lines()
            text, error_line = own_frames(cause, self.name)
            line = line if error_line is None else error_line
        return RewardLoadError(problem, file=self.name, line=line, traceback=text)

    def _execute(self) -> ModuleType:
        self.remember_lines()
        digest = hashlib.sha256(self.code.encode("utf-8", "replace")).hexdigest()[:12]
        module = ModuleType(f"p2p_reward_{digest}")
        module.__dict__.update({"__file__": self.name, **_namespace(self.engine)})
        sys.modules[module.__name__] = module  # dataclasses and type hints look themselves up there
        try:
            exec(self.compiled, module.__dict__)  # noqa: S102 - what a loader is for; sandboxed
        except (Exception, SystemExit) as error:
            del sys.modules[module.__name__]
            raise self.error(f"fails while it is loaded: {last_line(error)}", error) from error
        return module

    def _choose(self, module: ModuleType) -> object:
        classes = _leaf_classes(module)
        named = module.__dict__.get("reward_fn")
        maker = module.__dict__.get("_make_reward")
        if isinstance(named, RewardFunction) or (isinstance(named, type) and named in classes):
            return named
        candidates = [f"class {c.__name__}" for c in classes]
        candidates += ["function reward_fn"] if callable(named) else []
        candidates += ["function _make_reward"] if callable(maker) and not callable(named) else []
        if not candidates:
            raise self.error(
                "there is no reward in this file. Define a class derived from RewardFunction, or "
                "`def reward_fn(obs, action, next_obs, info)`"
                + (f"; `reward_fn` is a {type(named).__name__}" if named is not None else "")
            )
        if len(candidates) > 1:
            raise self.error(
                f"several rewards in one file ({', '.join(candidates)}). Keep one, or name the one "
                "that counts at the end of the file: `reward_fn = TheClass()`"
            )
        if classes:
            return classes[0]
        return self._call(maker, "_make_reward()") if named is None and maker else named

    def _to_reward(self, chosen: object, module: ModuleType) -> RewardFunction:
        if isinstance(chosen, type):
            missing = sorted(getattr(chosen, "__abstractmethods__", ()))
            if missing:
                raise self.error(
                    f"class {chosen.__name__} lacks {', '.join(missing)}. A reward class defines "
                    "compute(self, obs, action, next_obs, info) and the properties latex and terms",
                    line=_line(chosen),
                )
            chosen = self._call(chosen, f"{chosen.__name__}()")
        if isinstance(chosen, RewardFunction):
            name = type(chosen).__name__
            self._check_signature(chosen.compute, f"{name}.compute", "self, ")
            self._check_signature(chosen.failed, f"{name}.failed", "self, ")
            if "failed" in module.__dict__:
                raise self.error(
                    f"failed is defined beside class {name}: make it a method of the class, "
                    f"failed(self, {', '.join(PARAMETERS)})",
                    line=_line(module.__dict__["failed"]),
                )
            return chosen
        if not callable(chosen):
            raise self.error(
                f"_make_reward() must return a function, but returned {type(chosen).__name__}"
            )
        self._check_signature(chosen, getattr(chosen, "__name__", "reward_fn"), "")
        docs = (chosen, module.__dict__.get("_make_reward"), module)
        doc = best_docstring(*(getattr(thing, "__doc__", None) for thing in docs))
        failed = module.__dict__.get("failed")
        if failed is not None and not callable(failed):
            raise self.error(f"failed must be a function, not a {type(failed).__name__}")
        if failed is not None:
            self._check_signature(failed, "failed", "")
        source = self if self.stateful else None
        return FunctionReward(chosen, parse_docstring(doc), source, failed)

    def _call(self, maker: Callable[[], object], what: str) -> object:
        try:
            return maker()
        except (Exception, SystemExit) as error:
            raise self.error(f"{what} fails: {last_line(error)}", error) from error

    def _check_signature(self, function: Callable[..., Any], name: str, first: str) -> None:
        wanted = f"{name}({first}{', '.join(PARAMETERS)})"
        signature = inspect.signature(function)
        names = [p.name for p in signature.parameters.values()]
        actual = f"{name}({first}{', '.join(names)})"
        try:
            signature.bind(*PARAMETERS)
        except TypeError:
            raise self.error(
                f"wrong parameters: {actual} is called with four positional arguments and must be "
                f"{wanted}",
                line=_line(function),
            ) from None
        if names[:4] != list(PARAMETERS) and set(names[:4]) == set(PARAMETERS):
            raise self.error(
                f"parameters in the wrong order: {actual} must be {wanted}", line=_line(function)
            )


class FunctionReward(RewardFunction):
    """A plain `reward_fn`, described by its docstring.

    One with state begins every episode anew: its file is executed again, unless the function
    has a `reset` of its own.
    """

    def __init__(
        self,
        function: Compute,
        spec: RewardSpec,
        source: RewardSource | None = None,
        failed: Failed | None = None,
    ) -> None:
        self._function = function
        self._failed = failed
        self._spec = spec
        self._source = source
        self._used = False

    @property
    def latex(self) -> str:
        return self._spec.latex

    @property
    def terms(self) -> Mapping[str, str]:
        return self._spec.terms

    @property
    def description(self) -> str:
        return self._spec.description

    @property
    def function(self) -> Compute:
        return self._function

    @property
    def has_state(self) -> bool:
        """Whether `reset` does anything."""
        return self._source is not None or callable(getattr(self._function, "reset", None))

    def compute(self, obs: Any, action: Any, next_obs: Any, info: Any) -> tuple[Any, Any]:
        self._used = True
        return self._function(obs, action, next_obs, info)

    @property
    def has_failed(self) -> bool:
        """Whether it says where training ends an episode."""
        return self._failed is not None

    def failed(self, obs: Any, action: Any, next_obs: Any, info: Any) -> Any:
        own = super().failed if self._failed is None else self._failed
        return own(obs, action, next_obs, info)

    def reset(self, rows: Rows | None = None) -> None:
        """Start anew; in a batch only when all rows do, the rest is up to `_episode_start`."""
        own = getattr(self._function, "reset", None)
        if callable(own):
            reset_hook(own)(rows)
        elif self._source is not None and self._used and (rows is None or bool(rows.all())):
            fresh = self._source.build()
            self._function = fresh.function if isinstance(fresh, FunctionReward) else fresh
            if self._failed is not None:
                self._failed = fresh.failed
            self._used = False


def reset_hook(reset: Callable[..., object]) -> Callable[[Rows | None], object]:
    """`reset(rows)` and `reset()` alike, called with rows."""
    try:
        inspect.signature(reset).bind(None)
    except TypeError:
        return lambda _rows: reset()
    return reset


def own_frames(error: BaseException, file: str) -> tuple[str, int | None]:
    """The part of a traceback from the reward's file on, and the last line of that file in it."""
    stack = traceback.extract_tb(error.__traceback__)
    mine = [i for i, frame in enumerate(stack) if frame.filename == file]
    shown = stack[mine[0] :] if mine else stack[len(stack) :]
    text = "".join([*traceback.format_list(shown), *traceback.format_exception_only(error)])
    return text, stack[mine[-1]].lineno if mine else None


def _namespace(engine: str) -> dict[str, Any]:
    modules = get_simulator(engine).reward_namespace()
    return {"np": np, "numpy": np, "RewardFunction": RewardFunction, **modules}


def _leaf_classes(module: ModuleType) -> list[type[RewardFunction]]:
    """Reward classes defined in the file that no other one there derives from."""
    classes = [
        value
        for value in dict.fromkeys(v for v in module.__dict__.values() if isinstance(v, type))
        if issubclass(value, RewardFunction) and value.__module__ == module.__name__
    ]
    return [c for c in classes if not any(issubclass(d, c) for d in classes if d is not c)]


def _line(thing: object) -> int | None:
    if isinstance(thing, type):
        functions = [f for f in vars(thing).values() if inspect.isfunction(f)]
        return min((f.__code__.co_firstlineno for f in functions), default=None)
    code = getattr(getattr(thing, "__func__", thing), "__code__", None)
    return getattr(code, "co_firstlineno", None)


def last_line(error: BaseException) -> str:
    """The last line of a traceback."""
    return "".join(traceback.format_exception_only(error)).strip()


# --- does a reward keep state between calls? ----------------------------------------------------
#
# Read off its source, never by running it. A guess in the safe direction: what is missed here is
# still found by comparing batched with single calls on real transitions, which run through episode
# ends.

_MUTATORS = {
    *("append", "appendleft", "extend", "insert", "add", "update", "setdefault"),
    *("pop", "popleft", "remove", "clear"),
}


def keeps_state(tree: ast.Module) -> bool:
    """A `reset` or `_make_reward`, `_episode_start`, global or nonlocal names, or writes that last.

    Writes that last are those to `self` outside `__init__`, and to module-level names from within
    a function.
    """
    return _is_marked(tree) or any(
        _writes_outside(function, _module_names(tree))
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name != "__init__"
    )


def strings_of(tree: ast.Module) -> frozenset[str]:
    return frozenset(
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_marked(tree: ast.Module) -> bool:
    return EPISODE_START in strings_of(tree) or any(
        isinstance(node, ast.Global | ast.Nonlocal)
        or (isinstance(node, ast.FunctionDef) and node.name in {"reset", "_make_reward"})
        for node in ast.walk(tree)
    )


def _module_names(tree: ast.Module) -> frozenset[str]:
    names = {"self"}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {t.id for t in targets if isinstance(t, ast.Name)}
    return frozenset(names)


def _writes_outside(function: ast.FunctionDef, names: frozenset[str]) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            written: ast.expr = node
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _MUTATORS
        ):
            written = node.func.value
        else:
            continue
        while isinstance(written, ast.Attribute | ast.Subscript):
            written = written.value
        if isinstance(written, ast.Name) and written.id in names:
            return True
    return False
