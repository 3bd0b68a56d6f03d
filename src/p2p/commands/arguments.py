"""Arguments that commands share: which session, where it is, and the options of a new one."""

from __future__ import annotations

import json
import sys
from functools import cached_property
from inspect import Parameter, Signature
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

import typer
from rich.markup import escape

from p2p.commands.console import UsageError, err, flag_names, reject_argument, usage_errors
from unstable.commands import shorten_help

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pydantic import BaseModel

    from p2p.records.iteration_record import SessionRecord
    from p2p.session.request import SessionOptions, SessionRequest
    from p2p.validation import Flag


SessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="SESSION", help="Its name, the start of it, `last`, `best`, or its folder."
    ),
]
RunsDirOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Folder of the sessions.", show_default="P2P_RUNS_DIR, else runs"
    ),
]


def runs_folder(runs_dir: Path | None) -> Path:
    from p2p.settings import get_settings

    return runs_dir.expanduser().absolute() if runs_dir else get_settings().runs_dir


def to_paste(command: str, runs_dir: Path | None) -> str:
    """A command as a hint shows it: it finds the same runs."""
    from p2p.settings import command_in

    return command_in(runs_folder(runs_dir), command)


def means_session(text: str, runs_dir: Path | None) -> bool:
    """Return whether this can be nothing but a session, or several, by name or as a folder."""
    from p2p.records.find import session_names, starting_with

    names = session_names(runs_folder(runs_dir))
    return text in ("last", "best") or Path(text).is_dir() or bool(starting_with(text, names))


def open_session(text: str, runs_dir: Path | None = None) -> SessionRecord:
    """The session meant; UsageError if there is none, or more than one."""
    from p2p.records.find import NotFound, find_session
    from p2p.records.formatting import format_score
    from p2p.records.session_view import SessionView

    folder = runs_folder(runs_dir)
    with reject_argument("SESSION", NotFound):
        record = find_session(text, folder)
    if text == "best":
        view = SessionView(record)
        outcome = f"{view.outcome} with {format_score(view.best_score)}"
        line = f"best: {record.session_id}, {outcome}: {view.prompt}".replace("_passed", " passed")
        err.print(escape(line), style="dim", soft_wrap=True)
    return record


OPTIONS = "p2p.options"


class RequestFlags:
    """Beside a class of commands: gives its command the flags of a record.

    They are made when the command is called or its help is shown, so that the list of commands
    needs no library. `options_of` then has what was typed.
    """

    default = ""
    """What help shows as the default of every flag; empty: that of its field."""

    def request(self) -> type[BaseModel]:
        """The record whose fields have a `Flag`."""
        raise NotImplementedError

    @cached_property
    def flag_options(self) -> list[Any]:
        """The flags, and hidden ones of their older names."""
        from p2p.validation import flags_of

        parameters = [
            parameter
            for field, flag in flags_of(self.request()).items()
            for parameter in self._parameters(field, flag)
        ]

        def command(**_: Any) -> None: ...

        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        app = typer.Typer(add_completion=False)
        app.command()(command)
        return typer.main.get_command(app).params

    def _parameters(self, field: str, flag: Flag) -> list[Parameter]:
        kind = _kind_of(self.request().model_fields[field].annotation, flag)
        default = self.default or flag.default or default_text(self.request(), field)

        def parameter(name: str, *flags: str, hidden: bool = False) -> Parameter:
            info = typer.Option(
                *flags,
                metavar=flag.metavar or None,
                help=flag.help,
                hidden=hidden,
                show_default=default,
                rich_help_panel=flag.panel,
            )
            annotation = Annotated[kind | None, info]  # type: ignore[valid-type]
            return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

        names = (flag.name, flag.short) if flag.short else (flag.name,)
        older = [
            parameter(f"{field}__{number}", name, hidden=True)
            for number, name in enumerate(flag.older)
        ]
        return [parameter(field, *names), *older]

    def get_params(self, ctx: Any) -> list[Any]:
        """See click's Command."""
        own: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        parameters = [*self.flag_options, *own] if ctx.command is self else own
        shorten_help(parameters)
        return parameters

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click's Command."""
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        names = [option.name for option in self.flag_options]
        typed = {name: ctx.params.pop(name, None) for name in names}
        ctx.meta[OPTIONS] = {
            name.partition("__")[0]: value
            for name, value in typed.items()
            if value not in (None, [], ())
        }
        return rest


def _kind_of(annotation: Any, flag: Flag) -> Any:
    """Return what click reads a flag's values as."""
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    if flag.one_text:
        return str
    if get_origin(annotation) in (tuple, dict) or get_origin(kinds[0]) in (tuple, dict):
        return list[str]
    return kinds[0] if kinds[0] in (bool, int, float) else str


def default_text(request: type[BaseModel], field: str) -> str:
    """The default of a field as help shows it; where it has none, that of a session."""
    from p2p.config import LoopConfig

    value = request.model_fields[field].default
    if value is None:
        value = LoopConfig.model_fields[field].default
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return str(len(value) if isinstance(value, tuple) else value)


def options_of(context: typer.Context) -> dict[str, Any]:
    """Return the flags given on the command line, by field of a record."""
    typed: dict[str, Any] = context.meta.get(OPTIONS, {})
    return dict(typed)


Request = TypeVar("Request", bound="SessionOptions")


def make_request(
    model: type[Request],
    context: typer.Context,
    settings: Mapping[str, Any] = MappingProxyType({}),
    **fields: Any,
) -> Request:
    """Return what the flags ask for, over these settings and fields; raises UsageError."""
    from p2p.config import LoopConfig, TrainConfig

    options = options_of(context)
    known = {*TrainConfig.model_fields, *LoopConfig.model_fields} - {"fixed"}
    of_set = parse_settings(options.pop("settings", []), known)
    if "seed" in of_set:
        raise UsageError("--set seed: every run has its own; choose them with --seeds")
    if "iteration_id" in of_set:
        raise UsageError("--set iteration_id: runs are named by what they train")
    if "visual_criteria" in options:
        options["visual_criteria"] = _read_lines("--visual-criteria", options["visual_criteria"])
    given = options if options.get("env_id") else of_set  # --env counts, where both are given
    if given.get("env_id"):
        given["env_id"] = check_environment(str(given["env_id"]))
    with usage_errors(flag_names(context)):
        return model.model_validate({**fields, **options, "settings": {**settings, **of_set}})


def check_request(context: typer.Context, request: SessionRequest) -> None:
    """Raise UsageError, or an InferenceError, for what no session can be started with."""
    from p2p.session.request import loop_config

    with usage_errors(flag_names(context)):
        request.check_models()
        if request.environment is not None:
            check_environment(request.environment)
        loop_config(request.environment, **request.options())


def _read_lines(flag: str, texts: Iterable[str]) -> list[str]:
    """The texts, with the lines of the file in place of each `@FILE`."""
    lines: list[str] = []
    for text in texts:
        if not text.startswith("@"):
            lines.append(text)
            continue
        with reject_argument(flag, OSError, UnicodeDecodeError):
            content = Path(text[1:]).expanduser().read_text("utf-8")
        lines += [line.strip() for line in content.splitlines() if line.strip()]
    return lines


def check_environment(env_id: str) -> str:
    """The environment's id, also of a model file, which is read for it.

    Raises UsageError, with near matches or what is missing, for what is of no use here.
    """
    from p2p.config import ConfigurationError, engine_of
    from p2p.training.engines.table import (
        check_supported,
        engine_environments,
        is_engine,
        require_installed,
    )
    from p2p.training.env_spec import UnknownEnvironmentError, list_env_ids
    from p2p.training.envs.registry import find_spec
    from p2p.training.model_files.adoption import adopt
    from p2p.training.model_files.facts import read_facts
    from p2p.training.model_files.store import is_model_file

    with reject_argument("--env", UnknownEnvironmentError, ConfigurationError):
        if is_model_file(env_id):
            adopted = adopt(env_id)
            for doubt in read_facts(adopted).doubts:
                err.print(f"doubtful: {doubt}", markup=False)
            return adopted
        if not is_engine(engine := engine_of(env_id)):
            find_spec(env_id, list_env_ids())
        elif env_id not in engine_environments(engine):
            raise UnknownEnvironmentError(env_id, engine_environments(engine))
        else:
            check_supported(engine, env_id)
            require_installed(engine)
    return env_id


def read_prompt(prompt: str | None) -> str:
    """The prompt on one line; `-` reads it from standard input."""
    if prompt is None:
        raise UsageError('say what the agent should do, as in: p2p run "run forward fast"')
    text = " ".join((sys.stdin.read() if prompt == "-" else prompt).split())
    if not text:
        raise UsageError("the prompt is empty: say what the agent should do")
    return text


def parse_settings(items: Iterable[str], fields: Collection[str]) -> dict[str, Any]:
    """`FIELD=VALUE` of --set, each the name of one of these fields and its value in JSON."""
    from p2p.contracts import did_you_mean

    settings: dict[str, Any] = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign or not name:
            raise UsageError(f"--set {item}: write it as FIELD=VALUE, such as learning_rate=1e-4")
        if name not in fields:
            hint = did_you_mean(name, fields)
            raise UsageError(f"--set {item}: there is no field {name!r}{hint}")
        try:
            settings[name] = json.loads(value)
        except json.JSONDecodeError:
            settings[name] = value
    return settings
