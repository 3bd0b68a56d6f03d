"""`p2p engines`: simulators that are installed beside this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from p2p.commands.console import (
    CommandError,
    CommandGroup,
    JsonFlag,
    UnsafeFlag,
    err,
    out,
    print_json,
    reject_argument,
)

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode="rich")

EngineName = Annotated[str, typer.Argument(metavar="NAME", help="Of `p2p engines list`.")]
FolderOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of engines.", show_default="P2P_ENGINES_DIR"),
]


@app.callback()
def engines() -> None:
    """Install and check GPU simulators.

    Each has a Python environment of its own.

    [bold]Examples[/]

      p2p engines install mjlab
      p2p envs --engine mjlab
    """


@app.command("list")
def list_engines(as_json: JsonFlag = False) -> None:
    """List the engines, and which of them are installed.

    [bold]Examples[/]

      p2p engines list
      p2p engines list --json
    """
    from p2p.training.engines.table import ENGINES, engine_folder, find_installed

    rows = []
    for name, engine in ENGINES.items():
        found = find_installed(name)
        rows.append({
            "engine": name,
            "version": engine.version,
            "installed": found is not None,
            "folder": str(engine_folder(name)),
            "python": list(engine.python),
            "disk_gb": engine.disk_gb,
            "minutes": engine.minutes,
            "title": engine.title,
        })  # fmt: skip
    if as_json:
        print_json(rows)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("engine", "version", "state", "what"):
        table.add_column(title, no_wrap=title != "what")
    for row in rows:
        state = "[green]installed[/]" if row["installed"] else "not installed"
        table.add_row(str(row["engine"]), str(row["version"]), state, escape(str(row["title"])))
    out.print(table)
    for row in rows:
        if not row["installed"]:
            out.print(
                f"p2p engines install {row['engine']}  (about {row['disk_gb']:g} GB and "
                f"{row['minutes']:g} minutes)"
            )


@app.command()
def install(
    name: EngineName,
    folder: FolderOption = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Python to build on; one that has the engine already is used as it is.",
            show_default="one on PATH that fits",
        ),
    ] = None,
    _unsafe_local: UnsafeFlag = 0,
    as_json: JsonFlag = False,
) -> None:
    """Install an engine, or finish an installation that was interrupted.

    A virtual environment with pinned packages, made by uv where it is there
    and by venv and pip otherwise. In the end its smallest environment is
    stepped in the sandbox, which compiles most kernels.

    [bold]Examples[/]

      p2p engines install mjlab
      p2p engines install mjlab --folder /data/engines --python python3.11
    """
    from p2p.training.engines import install as installing
    from p2p.training.engines.table import engine_folder, find_installed, get_engine

    with _failures():
        engine = get_engine(name)
        home = folder.absolute() / name if folder else engine_folder(name)
        notes = f"; {engine.notes}" if engine.notes else ""
        plan = f"about {engine.disk_gb:g} GB and {engine.minutes:g} minutes{notes}"
        if find_installed(name, home):
            plan = "it is there, and is only checked"
        err.print(f"{name} {engine.version} into {home}: {escape(plan)}", highlight=False)
        with _progress() as show:
            installed = installing.install(name, folder=home, python=python, on_progress=show)
    if as_json:
        print_json(installed.model_dump(mode="json"))
        return
    out.print(f"{name} {installed.version} is installed: p2p envs --engine {name}")
    if home != engine_folder(name):
        out.print(f"set P2P_ENGINES_DIR={home.parent} so that other commands find it")


@app.command()
def check(
    name: EngineName,
    folder: FolderOption = None,
    _unsafe_local: UnsafeFlag = 0,
    as_json: JsonFlag = False,
) -> None:
    """Step an engine's smallest environment in the sandbox, and print versions.

    [bold]Examples[/]

      p2p engines check mjlab
      p2p engines check mjlab --json
    """
    from p2p.training.engines import install as installing
    from p2p.training.engines.table import (
        engine_folder,
        find_installed,
        get_engine,
        require_installed,
    )

    with _failures():
        home = folder.absolute() / name if folder else engine_folder(name)
        found = find_installed(name, home) or require_installed(name)
        with _progress() as show:
            seen = installing.check(name, found=found, folder=home, on_progress=show)
        trial = get_engine(name).trial
    if as_json:
        print_json(seen)
        return
    versions = ", ".join(f"{package} {version}" for package, version in seen["versions"].items())
    out.print(
        f"[green]ok[/] {trial}: {seen['observations']} observations, {seen['actions']} actions, "
        f"{seen['steps_per_second']:,.0f} steps/s on {seen['device']}, "
        f"ready after {seen['seconds_to_start']:.0f} s",
        highlight=False,
    )
    out.print(escape(versions), highlight=False)
    if seen["gpu_problem"]:
        out.print(f"[yellow]no GPU[/]: {escape(seen['gpu_problem'])}", highlight=False)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    with err.status("starting") as status:
        yield lambda text: status.update(escape(text))


@contextmanager
def _failures() -> Iterator[None]:
    from p2p.config import ConfigurationError
    from p2p.sandbox import SandboxUnavailable
    from p2p.training.engines.facts import EngineFailed

    try:
        with reject_argument("", ConfigurationError, TimeoutError):
            yield
    except (EngineFailed, SandboxUnavailable) as error:
        raise CommandError(str(error), detail=getattr(error, "detail", "")) from error
