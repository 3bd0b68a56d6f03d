"""A script that supervises a server: `vllm_supervisor.py STOP_S COMMAND...`, its stdin a pipe.

When the pipe closes, because the owner wants it or is gone, the whole process group is asked to end
and after STOP_S killed. Runs on the standard library alone, in a session of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    """Run the server until it ends or the owner is gone; never returns."""
    stop_s, command = float(sys.argv[1]), sys.argv[2:]
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
    main()
