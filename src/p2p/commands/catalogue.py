"""`p2p envs`, `p2p rewards` and `p2p check`: what there is to train with."""

from __future__ import annotations

import textwrap
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from p2p.commands.arguments import (
    RunsDirOption,
    check_environment,
    means_session,
)
from p2p.commands.console import (
    JsonFlag,
    UnsafeFlag,
    UsageError,
    display_path,
    err,
    out,
    print_json,
    reject_argument,
)
from p2p.commands.runs import open_run
from p2p.commands.train import EnvOption, open_reward

if TYPE_CHECKING:
    from p2p.config import TrainConfig
    from p2p.rewards.source import RewardText
    from p2p.training.env_spec import EnvSpec
    from p2p.training.reward_check import CheckResult

EngineOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Simulator: mujoco, or of `p2p engines list`.", show_default="mujoco"
    ),
]
COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def envs(
    env_id: Annotated[str | None, typer.Argument(help="Show one environment in full.")] = None,
    engine: EngineOption = None,
    write: Annotated[
        bool,
        typer.Option("--write", help="Of a model file: write what was inferred as TOML beside it."),
    ] = False,
    _unsafe_local: UnsafeFlag = 0,
    as_json: JsonFlag = False,
) -> None:
    """List the environments, or describe one.

    Observations by index, actions, joints and bodies are read off the live
    environment. A model file (MJCF, URDF, .mjb, or a .zip of one) is tried:
    what was decided about it, what is doubtful, and a picture.

    [bold]Examples[/]

      p2p envs
      p2p envs Ant-v5
      p2p envs --engine mjlab
      p2p envs my_robot.xml --write
      p2p envs my_package.envs:MyRobot-v0 --json
    """
    from p2p.training.env_spec import get_env_spec, list_env_ids

    if env_id is not None:
        spec = _read_spec(env_id)
        if write:
            _write_toml(env_id, spec.env_id)
        elif as_json:
            print_json(spec.model_dump(mode="json"))
        else:
            _print_spec(spec)
            _print_kind(spec)
        return
    if write:
        raise UsageError("--write: name a model file, as in: p2p envs my_robot.xml --write")
    if engine is not None and engine != "mujoco":
        _list_engine(engine, as_json=as_json)
        return
    specs = [get_env_spec(known) for known in list_env_ids()]
    if as_json:
        print_json([spec.model_dump(mode="json") for spec in specs])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("environment", "observations", "actions", "time step", "horizon"):
        table.add_column(title, no_wrap=True, justify="left" if title == "environment" else "right")
    for spec in specs:
        table.add_row(
            spec.env_id,
            str(len(spec.observation)),
            str(len(spec.actions)),
            f"{spec.dt:g} s",
            str(spec.max_episode_steps or "none"),
        )
    out.print(table)
    out.print("p2p envs ID describes one; p2p rewards lists what they can be trained on")


def _read_spec(env_id: str) -> EnvSpec:
    from p2p.config import ConfigurationError
    from p2p.training.env_spec import (
        UnknownEnvironmentError,
        UnsupportedEnvironmentError,
        get_env_spec,
    )
    from p2p.training.model_files.adoption import adopt
    from p2p.training.model_files.store import is_model_file

    kinds = UnknownEnvironmentError, UnsupportedEnvironmentError, ConfigurationError, ImportError
    with reject_argument("", *kinds), err.status(f"reading {env_id}"):
        return get_env_spec(adopt(env_id) if is_model_file(env_id) else env_id)


def _write_toml(file: str, env_id: str) -> None:
    """Write what was inferred beside the model file; one that is there stays as it is."""
    from p2p import files
    from p2p.training.model_files.description import as_toml
    from p2p.training.model_files.facts import read_facts
    from p2p.training.model_files.store import is_model_file, read_record

    if not is_model_file(file) or file.endswith(".zip"):
        raise UsageError(f"--write: {file} is not a model file (.xml, .urdf or .mjb)")
    path = Path(file).with_suffix(".toml")
    if path.exists():
        raise UsageError(f"--write: {path} is there already: edit it, or move it away")
    with reject_argument("--write", OSError):
        files.write_text(path, as_toml(read_record(env_id), read_facts(env_id).spec))
    out.print(f"written: {escape(display_path(path))}")


def _print_model(env_id: str) -> None:
    """What was decided about a model file, what is doubtful, and where its picture is."""
    from p2p.training.model_files.description import describe_record, draw
    from p2p.training.model_files.facts import read_facts
    from p2p.training.model_files.store import read_record

    facts, record = read_facts(env_id), read_record(env_id)
    out.rule("[bold]inferred (a TOML beside the file overrides it)", align="left")
    for line in describe_record(record, facts.spec):
        out.print(f"- {escape(line)}")
    out.rule("[bold]doubtful", align="left")
    for line in facts.doubts or ("nothing",):
        out.print(f"- {escape(line)}")
    with err.status("drawing"):
        picture = draw(env_id)
    out.print(f"picture  {escape(display_path(picture))}" if isinstance(picture, Path) else picture)


def _list_engine(engine: str, *, as_json: bool) -> None:
    """The ids of an engine, without starting it."""
    from p2p.config import ConfigurationError
    from p2p.training.engines.table import engine_environments, find_installed

    with reject_argument("--engine", ConfigurationError):
        known = engine_environments(engine)
    if as_json:
        print_json([entry.model_dump(mode="json") for entry in known.values()])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("environment", "time step", "horizon", "needs"):
        table.add_column(title, no_wrap=title != "needs")
    for entry in known.values():
        horizon = str(entry.max_episode_steps)
        table.add_row(entry.env_id, f"{entry.dt:g} s", horizon, escape(entry.needs))
    out.print(table)
    if find_installed(engine) is None:
        out.print(f"not installed yet: p2p engines install {engine}")
    else:
        out.print("p2p envs ID describes one; the first time, the engine starts for it")


def _print_kind(spec: EnvSpec) -> None:
    """What goes for a model file, or how fast another environment is stepped."""
    from p2p.training.model_files.store import is_model
    from p2p.training.vec_env import why_slow

    if is_model(spec.env_id):
        _print_model(spec.env_id)
        return
    if spec.engine != "mujoco":
        return
    reason = why_slow(spec.env_id)
    how = f"in a Python loop, for {reason}" if reason else "in C++, many at a time"
    out.print(f"stepped {how}", markup=False)


def _print_spec(spec: EnvSpec) -> None:
    from p2p.training.specs import spec_text

    observation = Table("index", "name", "unit", "meaning", box=box.SIMPLE_HEAD, pad_edge=False)
    for entry in spec.observation:
        observation.add_row(
            str(entry.index), escape(entry.name), entry.unit, escape(entry.description)
        )
    actions = Table("index", "name", "range", "meaning", box=box.SIMPLE_HEAD, pad_edge=False)
    for action in spec.actions:
        bounds = "any" if action.low is None else f"{action.low:g} to {action.high:g}"
        actions.add_row(str(action.index), escape(action.name), bounds, escape(action.description))
    info = Table.grid(padding=(0, 2))
    for key, meaning in spec.info_keys.items():
        info.add_row(escape(key), escape(meaning))
    out.print(f"[bold]{spec.env_id}[/]  {escape(spec.description)}")
    for title, content in (
        ("observation: obs[..., index]", observation),
        ("action: action[..., index]", actions),
        ("info", info),
        ("quantities: info[name] in rewards", _wrap(spec_text.quantity_table(spec))),
        ("joints", _wrap(spec_text.joint_semantics(spec))),
        ("bodies", _wrap(spec_text.body_geometry(spec))),
        ("state", _wrap(spec_text.body_info(spec))),
        ("camera", _wrap(spec_text.camera_text(spec))),
    ):
        out.rule(f"[bold]{escape(title)}", align="left")
        out.print(content)


def _wrap(text: str) -> str:
    """The text for this console: what a line has no room for stands below its beginning."""
    return "\n".join(
        textwrap.fill(
            line,
            out.width,
            subsequent_indent=" " * (len(line) - len(line.lstrip(" -"))),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in escape(text).splitlines()
    )


def rewards(
    name: Annotated[str | None, typer.Argument(help="Print the source of one reward.")] = None,
    env: Annotated[
        str | None,
        typer.Option(
            "--env", "-e", metavar="ID", help="Only those of this environment.", show_default="all"
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the built-in rewards, or print the source of one.

    Each is a reward file as you would write one: a place to start from.

    [bold]Examples[/]

      p2p rewards --env Ant-v5
      p2p rewards ant_run_forward > my_reward.py
    """
    from p2p.rewards import UnknownRewardError, find_reward, list_rewards
    from p2p.training.envs.registry import UnknownEnvironmentError

    if name is not None:
        with reject_argument("", UnknownRewardError):
            reward = find_reward(name)
        if as_json:
            print_json({"name": name, "env_id": reward.env_id, "source": reward.read()})
        else:
            typer.echo(reward.read(), nl=False)
        return
    rewards_listed = list_rewards(env)
    if env is not None and not rewards_listed:
        near = UnknownEnvironmentError(env, {item.env_id for item in list_rewards()}).near
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UsageError(f"--env: no built-in reward for {env!r}{hint}")
    if as_json:
        print_json(
            [
                {"name": item.name, "env_id": item.env_id, "description": item.description}
                for item in rewards_listed
            ]
        )
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for env_id, group in groupby(rewards_listed, key=lambda item: item.env_id):
        table.add_row(f"[bold]{env_id}[/]")
        for item in group:
            table.add_row(f"  {item.name}", escape(item.description))
    out.print(table)
    out.print("\np2p rewards NAME prints one to start from; p2p train NAME trains on it")


def check(
    reward: Annotated[
        str,
        typer.Argument(
            metavar="REWARD|SESSION",
            help="A reward file, a name that `p2p rewards` lists, or a session: its best "
            "iteration's reward.",
        ),
    ],
    env: EnvOption = None,
    side_info: Annotated[
        bool | None,
        typer.Option(
            "--side-info/--no-side-info",
            help="Whether info has the environment's quantities and mj_data.",
            show_default="as the session; else on",
        ),
    ] = None,
    runs_dir: RunsDirOption = None,
    _unsafe_local: UnsafeFlag = 0,
    as_json: JsonFlag = False,
) -> None:
    """Run a reward on its real environment, and say what is wrong.

    Looks at syntax, signature, what it returns, whether values are finite and
    terms sum to the total, dead and constant terms, whether one call can serve
    a whole batch, and microseconds per step.
    Exit status 1 if it cannot be trained on.

    [bold]Examples[/]

      p2p check reward.py --env Hopper-v5
      p2p check ant_run_forward --json
      p2p check last
    """
    from p2p.config import TrainConfig
    from p2p.training.reward_check import check_reward

    file, config = reward_or_session(reward, runs_dir)
    env_id = env or file.env_id or TrainConfig().env_id
    env_id = check_environment(env_id)
    config = config.in_environment(env_id)
    if side_info is not None:
        config = config.with_updates(side_info=side_info)
    with err.status(f"checking on {env_id}"):
        report = check_reward(f"{file.code}\n", config, name=file.name)
    if as_json:
        print_json(report.model_dump(mode="json") | {"ok": report.ok})
    else:
        out.print(
            f"[bold]{escape(display_path(Path(file.name)))}[/] on {escape(env_id)}", soft_wrap=True
        )
        lines = Table.grid(padding=(0, 2))
        for finding in report.findings:
            colour = COLOURS[finding.level]
            lines.add_row(f"[{colour}]{finding.level}[/]", escape(finding.message))
        if report.findings:
            out.print(lines)
        if report.result is not None:
            _print_terms(report.result)
        out.print("[green]fit to train on[/]" if report.ok else "[red]not fit to train on[/]")
    if not report.ok:
        raise typer.Exit(1)


def reward_or_session(text: str, runs_dir: Path | None) -> tuple[RewardText, TrainConfig]:
    """The reward, and what it is trained with."""
    from p2p.config import TrainConfig
    from p2p.records.find import ANY_SESSION
    from p2p.rewards import list_rewards
    from p2p.rewards.source import RewardText

    if text.endswith(".py") or Path(text).is_file() or text in {r.name for r in list_rewards()}:
        return open_reward(text), TrainConfig()
    if not means_session(text, runs_dir):
        try:
            return open_reward(text), TrainConfig()
        except UsageError as error:
            raise UsageError(f"{error}; or give {ANY_SESSION}") from error
    record, config, _ = open_run(text, runs_dir)
    code = record.read_reward_source()
    if not code:
        raise UsageError(f"REWARD: {record.path} has no reward_fn.py")
    return RewardText(str(record.reward_fn_path), code, config.env_id), config


def _print_terms(result: CheckResult) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("per step", "minimum", "mean", "maximum"):
        table.add_column(title, justify="left" if title == "per step" else "right")
    for term in (*result.terms, result.total):
        name = "[bold]total[/]" if term is result.total else escape(term.name)
        table.add_row(name, *(f"{x:,.4g}" for x in (term.minimum, term.mean, term.maximum)))
    out.print(table)
    calls = "once for all environments" if result.batched else "for each environment"
    out.print(
        f"{result.steps} steps of {result.num_envs} environments, random and zero actions; called "
        f"{calls}, {result.us_per_step:.2f} µs per environment step"
    )
