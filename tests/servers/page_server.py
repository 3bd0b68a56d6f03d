"""`p2p serve` as a process: ended and started again at the same address."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from processes import wait_until

P2P = (sys.executable, "-m", "p2p.cli")
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/\?token=")


@dataclass
class PageServer:
    """A server over `folder`/runs and `folder`/outputs, with cores and a scheduler of its own."""

    folder: Path
    token: str = "the-token-of-this-server"
    port: int = 0
    _process: subprocess.Popen[str] | None = field(default=None, repr=False)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def entrance(self) -> str:
        """What lets a browser in."""
        return f"{self.address}/?token={self.token}"

    def start(self) -> None:
        """At any port the first time, and at that one ever after."""
        self._process = subprocess.Popen(
            [*P2P, "serve", "--port", str(self.port), "--runs-dir", "runs"],
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline() + self._process.stdout.readline()
        found = _ADDRESS.search(said)
        assert found, f"the server said: {said!r}"
        self.port = int(found[1])

    def command(self, *words: str) -> str:
        """What `p2p` says to these words, beside the server."""
        done = subprocess.run(
            [*P2P, *words],
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout

    def _environment(self) -> dict[str, str]:
        runtime = self.folder / "runtime"
        runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        return {**os.environ, "P2P_TOKEN": self.token, "P2P_CORE_LOCKS": str(runtime)}

    def stop(self) -> None:
        """As Ctrl-C does; sessions go on."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.communicate(timeout=30)
        finally:
            self._process.kill()
            self._process = None

    def end_jobs(self) -> None:
        """Cancel what still runs, and wait until it is gone."""
        for job in self._open_jobs():
            self.call("POST", f"/api/scheduler/jobs/{job['job_id']}/cancel")
        wait_until(lambda: not self._open_jobs(), 120)

    def _open_jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", "/api/scheduler/jobs?unended=true")
        return found

    def call(self, method: str, path: str, body: object = None) -> Any:
        """What the API answers to a script."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.address + path, data, headers, method=method)  # noqa: S310
        with urlopen(request, timeout=60) as answer:  # noqa: S310
            return json.load(answer)
