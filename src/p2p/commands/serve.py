"""`p2p serve`: the dashboard and the API, in one process."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from p2p.commands.console import UsageError, err, out
from p2p.commands.session_argument import RunsDirOption, runs_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn import Server

    from p2p.api.guard import Guard

GRACE_S = 3
"""How long requests under way may take once the server is told to end."""


def serve(
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="0: any that is free.")
    ] = 8420,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Other machines may come in by this address.")
    ] = "127.0.0.1",
    open_page: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    runs_dir: RunsDirOption = None,
) -> None:
    """Open the dashboard: start sessions, watch them learn, compare, steer.

    Prints an address with a token that lets a browser in; it is new at every start, unless
    P2P_TOKEN says one. Sessions go on when the server ends (Ctrl-C).

    [bold]Examples[/]

      p2p serve --open
      p2p serve --port 0 --runs-dir /data/runs
    """
    from p2p.api.app import create_app
    from p2p.api.guard import LOOPBACK, new_token

    folder = runs_folder(runs_dir)
    folder.mkdir(parents=True, exist_ok=True)
    listening = _listen(host, port)
    token = os.environ.get("P2P_TOKEN") or new_token()
    local = _is_loopback(host)
    if not local:
        err.print(
            f"[yellow]warning:[/] others can reach {host}, and the token travels unencrypted: "
            "only in a network you trust",
            soft_wrap=True,
        )
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listening.getsockname()[1]}/?token={token}"

    def announce() -> None:
        out.print(f"the dashboard of {folder} (Ctrl-C ends it):", soft_wrap=True)
        out.print(address, soft_wrap=True, markup=False)
        if open_page:
            import webbrowser

            webbrowser.open(address)

    # By whatever name others call this machine: they need the token all the same.
    app = create_app(folder, token=token, hosts=(*LOOPBACK, name) if local else ("*",))
    with listening:
        try:
            _server(app, announce).run(sockets=[listening])
        except KeyboardInterrupt:  # how a server is ended, not how it fails
            err.print("ended; sessions go on", style="dim")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except socket.gaierror as error:
        raise UsageError(f"--host: {host}: {error.strerror}") from error
    except OSError as error:
        hint = "; --port 0 takes any that is free"
        raise UsageError(f"--port: {host}:{port}: {error.strerror}{hint}") from error
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _server(app: Guard, announce: Callable[[], None]) -> Server:
    import uvicorn

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce()

    return Announcing(
        uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S
        )
    )
