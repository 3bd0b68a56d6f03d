"""What a sandbox costs at start: a sandboxed no-op against a bare interpreter, interleaved.

python benchmarks/sandbox_startup.py [--starts 40] [--write]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from p2p.sandbox import Sandbox, layers, set_unsafe_local, start
from p2p.training.envs.registry import TRIALS

RESULTS = Path(__file__).parent / "results" / "sandbox_startup.md"
GOAL_MS = 150.0


def bare_seconds() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - begin


def sandboxed_seconds(
    folder: Path, *, unsafe_local: bool = False, module: str = "noop", warm: tuple[str, ...] = ()
) -> float:
    begin = time.perf_counter()
    sandbox = Sandbox(folder=folder, import_paths=(folder,), warm=warm)
    set_unsafe_local(unsafe_local)
    with start(module, {}, sandbox) as process:
        ended = process.wait()
    assert ended.ok, ended
    return time.perf_counter() - begin


def measure(starts: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {
        "bare": [], "sandboxed": [], "unsafe": [], "trial": [], "forked": []
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "noop.py").write_text("def main(payload, send):\n    pass\n")
        imports = "".join(f"import {module}\n" for module in TRIALS)
        (folder / "trial.py").write_text(f"{imports}def main(payload, send):\n    pass\n")
        for warm in ((), TRIALS):
            sandboxed_seconds(folder, module="trial", warm=warm)  # writes caches, starts the server
        for _ in range(starts):
            found["bare"].append(bare_seconds())
            found["sandboxed"].append(sandboxed_seconds(folder))
            found["unsafe"].append(sandboxed_seconds(folder, unsafe_local=True))
            found["trial"].append(sandboxed_seconds(folder, module="trial"))
            found["forked"].append(sandboxed_seconds(folder, module="trial", warm=TRIALS))
    return found


def report(found: dict[str, list[float]], starts: int) -> str:
    def row(title: str, key: str) -> str:
        times = sorted(1e3 * value for value in found[key])
        p90 = times[int(0.9 * (len(times) - 1))]
        return f"| {title} | {statistics.median(times):.1f} | {times[0]:.1f} | {p90:.1f} |"

    over = 1e3 * (statistics.median(found["sandboxed"]) - statistics.median(found["bare"]))
    here = f"{platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}"
    rows = [
        "# Start-up of the sandbox",
        "",
        f"Whole process, milliseconds, {starts} starts each, interleaved. {here}.",
        "",
        *(f"- {line}" for line in layers().describe()),
        "",
        "| | median | least | p90 |",
        "|---|---|---|---|",
        row("bare `python -c pass`", "bare"),
        row("sandboxed no-op", "sandboxed"),
        row("the same with `unsafe_local`", "unsafe"),
        row("sandboxed, with what trials of rewards and judges import", "trial"),
        row("the same forked, as trials are", "forked"),
        "",
        f"The sandbox costs {over:.1f} ms over a bare interpreter (goal: under {GOAL_MS:g} ms).",
    ]
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=40)
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    arguments = parser.parse_args()
    text = report(measure(arguments.starts), arguments.starts)
    print(text)
    if arguments.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
