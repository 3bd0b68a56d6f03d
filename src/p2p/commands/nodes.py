"""`p2p nodes`: the machines that runs can use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from p2p.commands.arguments import RequestFlags, RunsDirOption, options_of, to_paste
from p2p.commands.console import (
    CommandError,
    CommandGroup,
    JsonFlag,
    UsageError,
    answer,
    err,
    flag_names,
    out,
    print_json,
    usage_errors,
)
from p2p.commands.live import plain_table
from p2p.commands.scheduler import FORMATS, open_store

if TYPE_CHECKING:
    from p2p.scheduler.records import NodeConfig
    from p2p.scheduler.store import Store

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode="rich")

CHECK_TIMEOUT_S = 60.0

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Its name.")]


class AddCommand(RequestFlags, TyperCommand):
    """A command with the fields of a node."""

    def request(self) -> type[NodeConfig]:
        """See RequestFlags."""
        from p2p.scheduler.records import NodeConfig

        return NodeConfig


@app.callback()
def nodes() -> None:
    """Manage the machines that runs can use.

    This machine is the node `local` from the start.

    [bold]Examples[/]

      p2p nodes list
      p2p nodes add gpu1 --backend ssh --host gpu1 --cores 32 --base-dir /srv/p2p
    """


@app.command(cls=AddCommand)
def add(
    context: typer.Context,
    node: NodeArgument,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the node of that name.")
    ] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Add a node, or change one with --replace.

    [bold]Examples[/]

      p2p nodes add local --cores 4 --replace
      p2p nodes add gpu1 --backend ssh --host gpu1 --cores 32 --base-dir /srv/p2p
      p2p nodes add cluster --backend ray --address 10.0.0.1:6379 --cores 256
      p2p nodes add hpc --backend slurm --base-dir /shared/p2p --cores 512
    """
    from p2p.scheduler.records import NodeConfig

    options = options_of(context)
    if "cores" not in options:
        if options.get("backend", "local") != "local":
            raise UsageError(f"--cores: say how many cores of {node[:100]} runs may use")
        from p2p.training.cpu_manager import default_pool

        options["cores"] = len(default_pool())
    with usage_errors(flag_names(context) | {"node_id": "NODE"}, formats=FORMATS):
        config = NodeConfig.model_validate({"node_id": node, **options})
    with open_store(runs_dir) as store:
        if not replace and store.node(node) is not None:
            raise UsageError(f"NODE: {node} exists: choose another name, or --replace")
        store.add_node(config, replace=replace)
    check = to_paste(f"p2p nodes check {node}", runs_dir)
    answer(config.model_dump(mode="json"), f"added {node}; test it with: {check}", as_json=as_json)


@app.command("list")
def list_nodes(runs_dir: RunsDirOption = None, as_json: JsonFlag = False) -> None:
    """List the nodes, and how much of them is in use.

    [bold]Examples[/]

      p2p nodes list
      p2p nodes list --json
    """
    with open_store(runs_dir, make=False) as store:
        rows = [_row(node, store.count_in_use()) for node in store.nodes()]
    if as_json:
        print_json(rows)
        return
    if not rows:
        hint = to_paste("p2p nodes add local", runs_dir)
        out.print(f"no nodes: add this machine with: {escape(hint)}", soft_wrap=True)
        return
    table = plain_table("node", "kind", "runs", "cores", "GPUs", "where")
    for row in rows:
        table.add_row(
            row["node_id"] + ("" if row["enabled"] else " [dim](off)[/]"),
            row["backend"],
            str(row["runs"]),
            f"{row['cores_in_use']}/{row['cores']}",
            f"{row['gpus_in_use']}/{row['gpus']}",
            escape(row["where"]),
        )
    out.print(table)


def _row(node: NodeConfig, in_use: dict[str, tuple[int, int, int]]) -> dict[str, Any]:
    runs, cores, gpus = in_use.get(node.node_id, (0, 0, 0))
    user = f"{node.user}@" if node.user else ""
    where = f"{user}{node.host}:{node.port}" if node.host else node.address or node.base_dir or ""
    return {
        **node.model_dump(mode="json"),
        "runs": runs,
        "cores_in_use": cores,
        "gpus_in_use": gpus,
        "where": where or "this machine",
    }


@app.command()
def check(
    nodes: Annotated[
        list[str] | None, typer.Argument(metavar="[NODE]...", help="Which (default: all).")
    ] = None,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Test nodes, and show what they offer. Exit status 1 if one cannot be used.

    [bold]Examples[/]

      p2p nodes check
      p2p nodes check gpu1 --json
    """
    with open_store(runs_dir) as store:
        chosen = [_find(store, name) for name in nodes] if nodes else store.nodes()
        with err.status("asking the nodes"):
            answers = [_ask(node, store) for node in chosen]
    if as_json:
        print_json(answers)
    else:
        for row in answers:
            mark = "[green]✓[/]" if row["ok"] else "[red]✗[/]"
            out.print(f"{mark} {row['node_id']}: {escape(row['message'])}", soft_wrap=True)
    if not all(row["ok"] for row in answers):
        raise typer.Exit(1)


def _find(store: Store, name: str) -> NodeConfig:
    from p2p.contracts import did_you_mean

    node = store.node(name)
    if node is None:
        hint = did_you_mean(name[:100], [known.node_id for known in store.nodes()])
        raise UsageError(f"NODE: there is no node {name[:100]}{hint or '; see p2p nodes list'}")
    return node


def _ask(node: NodeConfig, store: Store) -> dict[str, Any]:
    import asyncio

    from p2p.scheduler.backends import BackendError, make_backend

    async def ask() -> str:
        backend = make_backend(node, store.folder)
        try:
            return await asyncio.wait_for(backend.check(), CHECK_TIMEOUT_S)
        finally:
            await backend.close()

    try:
        message, ok = asyncio.run(ask()), True
    except TimeoutError:
        message, ok = f"no answer within {CHECK_TIMEOUT_S:.0f} s", False
    except BackendError as error:
        message, ok = str(error), False
    return {"node_id": node.node_id, "backend": node.backend, "ok": ok, "message": message}


@app.command()
def remove(
    node: NodeArgument,
    give_up: Annotated[
        bool,
        typer.Option("--give-up", help="Count its runs as failed, and remove it."),
    ] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Remove a node. One with runs on it stays, unless they are given up.

    [bold]Examples[/]

      p2p nodes remove gpu1
      p2p nodes remove gpu1 --give-up
    """
    from p2p.scheduler.store import StoreError

    with open_store(runs_dir) as store:
        _find(store, node)
        try:
            given_up = store.remove_node(node, give_up=give_up)
        except StoreError as error:
            raise CommandError(f"{error}: wait for them, cancel them, or add --give-up") from error
    runs = f"; given up: {', '.join(given_up)}" if given_up else ""
    answer({"node_id": node, "given_up": given_up}, f"removed {node}{runs}", as_json=as_json)
