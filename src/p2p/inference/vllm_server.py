"""vLLM: its dialect, and a server of our own, ended with everything it has started.

It does not outlive us: a small supervisor process ends it when we are gone, also after a kill -9.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from p2p.files import hold_lock, open_log
from p2p.inference.question import AskingCancelled, ProviderUnavailable
from p2p.settings import get_settings, redact
from p2p.utils.subprocess_utils import python_command, start_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from openai.types.chat import ChatCompletionContentPartParam
    from pydantic_ai import BinaryContent
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider

START_S = 600.0
"""Loading a model from a slow disk takes minutes."""
LOCK_S = 1.0
STOP_S = 30.0
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1", "0.0.0.0")  # noqa: S104 - how one is named
_POLL_S = 0.2
_TAIL = 2000


def make_vllm_model(name: str, connection: Provider[Any]) -> Model:
    """A model that vLLM serves. OpenAI's own protocol has no part for a video, vLLM's has one."""
    from pydantic_ai.models.openai import OpenAIChatModel

    class VLLMModel(OpenAIChatModel):
        _unsupported_file_inputs = frozenset()

        async def _map_binary_content_item(
            self, item: BinaryContent
        ) -> ChatCompletionContentPartParam:
            if not item.is_video:
                return await super()._map_binary_content_item(item)
            part = {"type": "video_url", "video_url": {"url": item.data_uri}}
            return cast("ChatCompletionContentPartParam", part)

    return VLLMModel(name, provider=connection)


@dataclass(frozen=True, slots=True)
class Starting:
    """How far a server is that is not ready yet."""

    seconds: float
    last_line: str
    """Of its log."""


def serve_if_absent(
    model: str, *, log: Path, on_start: Callable[[VLLMServer], None], cancelled: Callable[[], bool]
) -> VLLMServer | None:
    """A server of our own for the model, ready; None where one answers, or none is installed here.

    Processes that ask at the same time wait for the first one's. Raises ProviderUnavailable and
    AskingCancelled.
    """
    server = VLLMServer(model, log=log, cancelled=cancelled)
    if server.healthy() or server.host not in LOCAL_HOSTS or shutil.which("vllm") is None:
        return None
    lock = Path(tempfile.gettempdir()) / f"p2p-vllm-{os.getuid()}-{server.port}.lock"
    deadline = time.monotonic() + START_S
    while True:
        try:
            with hold_lock(lock, patience_s=LOCK_S):
                if server.healthy():
                    return None
                on_start(server)
                return server.__enter__()
        except TimeoutError as error:
            if cancelled():
                raise AskingCancelled("stopped while another process started vLLM") from error
            if time.monotonic() > deadline:
                raise ProviderUnavailable(f"another process is starting vLLM: {error}") from error


class VLLMServer:
    """`vllm serve MODEL` on a port; a context manager that is ready when entered."""

    def __init__(
        self,
        model: str,
        *,
        log: Path,
        host: str | None = None,
        port: int | None = None,
        arguments: Sequence[str] = (),
        executable: str = "vllm",
        start_s: float = START_S,
        stop_s: float = STOP_S,
        on_progress: Callable[[Starting], None] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.model = model
        self.log = log
        self.host = host or get_settings().vllm_host
        self.port = port or get_settings().vllm_port
        self._arguments = tuple(arguments)
        self._executable = executable
        self._start_s = start_s
        self._stop_s = stop_s
        self._on_progress = on_progress
        self._cancelled = cancelled
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self._supervisor is not None and self._supervisor.poll() is None

    def start(self) -> None:
        """Start it; raises ProviderUnavailable where there is no vLLM or the port is taken."""
        if self.running:
            return
        program = shutil.which(self._executable)
        if program is None:
            raise ProviderUnavailable(
                f"{self._executable} is not installed: `pip install vllm` on a machine with a GPU, "
                "or set VLLM_HOST and VLLM_PORT to a server that is running"
            )
        if self.healthy():
            raise ProviderUnavailable(f"something else answers at {self.url}: choose another port")
        # It starts in another folder than the one a model's path may be meant from.
        model = str(Path(self.model).absolute()) if Path(self.model).is_dir() else self.model
        command = [program, "serve", model, "--host", self.host, "--port", str(self.port)]
        supervisor = python_command("p2p.inference.vllm_server", str(self._stop_s))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open_log(self.log) as log:
            self._supervisor = start_program(
                [*supervisor, *command, *self._arguments],
                {**_environment(), "PYTHONSAFEPATH": "1"},
                log,
                stdin=subprocess.PIPE,
            )

    def wait_ready(self) -> None:
        """Wait until it answers; raises ProviderUnavailable with the end of its log."""
        started = time.monotonic()
        while not self.healthy():
            seconds = time.monotonic() - started
            if not self.running:
                raise ProviderUnavailable(f"vLLM ended while starting:\n{self._log_tail()}")
            if seconds > self._start_s:
                raise ProviderUnavailable(
                    f"vLLM was not ready after {self._start_s:g} s:\n{self._log_tail()}"
                )
            if self._cancelled():
                raise AskingCancelled("stopped while vLLM was starting")
            self._on_progress(Starting(seconds, self._log_tail().rpartition("\n")[2]))
            time.sleep(_POLL_S)

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2.0) as reply:  # noqa: S310
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> None:
        """End it and what it has started: asked first, killed if need be. May be called twice."""
        process, self._supervisor = self._supervisor, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # the supervisor's sign to end the server
        process.wait(self._stop_s + 10.0)

    def _log_tail(self) -> str:
        try:
            data = self.log.read_bytes()[-_TAIL:]
        except OSError:
            return ""
        return redact(data.decode("utf-8", errors="replace").strip())


def _environment() -> dict[str, str]:
    """Ours without the keys of providers; vLLM needs none of them, but its own."""
    secrets = set(get_settings().secrets())
    return {
        name: value
        for name, value in os.environ.items()
        if value not in secrets or name == "VLLM_API_KEY"
    }


# --- the supervisor's process -----------------------------------------------------------------


def supervise(stop_s: float, command: Sequence[str]) -> None:
    """Run the server until it ends or the owner is gone; never returns.

    Standard input is a pipe. When it closes, because the owner wants it or is gone, the whole
    process group is asked to end, and after `stop_s` killed.
    """
    # A handler, not SIG_IGN: the server must not inherit being deaf to it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    owner_gone = threading.Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        owner_gone.set()

    threading.Thread(target=watch, daemon=True).start()
    while server.poll() is None and not owner_gone.wait(0.05):
        pass
    if server.poll() is None:
        os.killpg(0, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(stop_s)
    sys.stdout.write(f"the server ended with {server.poll()}\n")
    sys.stdout.flush()
    os.killpg(0, signal.SIGKILL)  # what the server left behind, and this process


if __name__ == "__main__":
    supervise(float(sys.argv[1]), sys.argv[2:])
