"""`p2p serve`: the dashboard and the API, in one process."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2p.commands.arguments import RunsDirOption, runs_folder
from p2p.commands.console import UsageError, err, out

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn import Server

    from p2p.api.guard import Guard

GRACE_S = 3
"""How long requests under way may take once the server is told to end."""


def serve(
    port: Annotated[
        int,
        typer.Option("--port", "-p", min=0, max=65535, metavar="N", help="0: any free port."),
    ] = 8420,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    open_page: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Show recorded example sessions, none of yours.")
    ] = False,
    runs_dir: RunsDirOption = None,
) -> None:
    """Open the dashboard: start, watch, compare and steer sessions.

    Prints an address with a token that lets a browser in; it is new at every
    start, unless P2P_TOKEN sets one. Sessions continue when the server ends
    (Ctrl-C).

    [bold]Examples[/]

      p2p serve --open
      p2p serve --demo --open
      p2p serve --port 0 --runs-dir /data/runs
    """
    with ExitStack() as stack:
        if demo:
            from p2p.api.app import demo_folders

            if runs_dir is not None:
                raise UsageError("--demo, --runs-dir: give only one of them")
            folder, outputs = stack.enter_context(demo_folders())
        else:
            folder, outputs = runs_folder(runs_dir), Path("outputs")
            folder.mkdir(parents=True, exist_ok=True)
        listening = stack.enter_context(_listen(host, port))
        _serve(listening, host, folder, outputs, open_page=open_page)


def _serve(
    listening: socket.socket, host: str, folder: Path, outputs: Path, *, open_page: bool
) -> None:
    from p2p.api.app import create_app
    from p2p.api.guard import LOOPBACK, new_token

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

    ending = threading.Event()
    describing = threading.Thread(target=_describe_environments, args=(ending,))

    def announce() -> None:
        out.print(f"the dashboard of {folder} (Ctrl-C ends it):", soft_wrap=True)
        out.print(address, soft_wrap=True, markup=False)
        if open_page:
            import webbrowser

            webbrowser.open(address)
        describing.start()

    # By whatever name others call this machine: they need the token all the same.
    hosts = (*LOOPBACK, name) if local else ("*",)
    app = create_app(folder, outputs, token=token, hosts=hosts)
    try:
        _server(app, announce).run(sockets=[listening])
    except KeyboardInterrupt:  # how a server is ended, not how it fails
        err.print("ended; sessions continue", style="dim")
    finally:
        ending.set()
        if describing.is_alive():  # left alone in the simulator's code it would crash the process
            describing.join()


def _describe_environments(ending: threading.Event) -> None:
    """Ask the simulator about all of them, which takes seconds, before a page does."""
    from p2p.training.env_spec import UnsupportedEnvironmentError, get_env_spec, list_env_ids

    for env_id in list_env_ids():
        if ending.is_set():
            return
        with suppress(UnsupportedEnvironmentError):  # which the page is told
            get_env_spec(env_id)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except socket.gaierror as error:
        raise UsageError(f"--host: {host}: {error.strerror}") from error
    except OSError as error:
        hint = "; --port 0 takes any that is free"
        raise UsageError(f"--port: {host}:{port}: {error.strerror}{hint}") from error
    return listening


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

    server = Announcing(
        uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S
        )
    )
    # Answers that are cut by the end, such as a page's stream, are no news to who has ended it.
    logging.getLogger("uvicorn.error").addFilter(lambda _: not server.should_exit)
    return server
