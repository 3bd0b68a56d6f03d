"""`p2p doctor`: what this machine offers, and what is missing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from p2p.commands.console import JsonFlag, err, out, print_json

PACKAGES = ("mujoco", "gymnasium", "jax", "torch", "stable-baselines3", "av")


@dataclass(frozen=True)
class Finding:
    name: str
    ok: bool
    details: tuple[str, ...]
    needed: bool = True
    """Whether there is no training without it."""


def doctor(as_json: JsonFlag = False) -> None:
    """Check what works on this machine, and say how to fix the rest.

    Exit status 1 if something that training needs is missing.

    [bold]Examples[/]

      p2p doctor
      p2p doctor --json
    """
    with err.status("checking"):
        findings = [check() for check in CHECKS]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        table = Table.grid(padding=(0, 2))
        for finding in findings:
            missing = "[red]missing[/]" if finding.needed else "[yellow]off[/]"
            for number, detail in enumerate(finding.details):
                first = ("[green]ok[/]" if finding.ok else missing, finding.name)
                table.add_row(*(("", "") if number else first), escape(detail))
        out.print(table)
        if all(finding.ok for finding in findings):
            out.print('ready: p2p run "run forward fast"')
    if not all(finding.ok for finding in findings if finding.needed):
        raise typer.Exit(1)


def _packages() -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    versions: list[str] = [f"python {platform.python_version()}"]
    missing: list[str] = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    details = [", ".join(versions)]
    if missing:
        details.append(f"pip install {' '.join(missing)}")
    return Finding("packages", not missing, tuple(details))


CONTAINER_FILES = (Path("/.dockerenv"), Path("/run/.containerenv"))
WITHOUT_SANDBOX = (
    "without it p2p show, sessions, serve and export work; what runs generated code is refused",
    "safest way left: --unsafe-local in a throwaway container or VM without keys and network",
)


def _sandbox() -> Finding:
    if sys.platform != "linux":
        problem = f"{platform.system()} has none: use a Linux virtual machine or container"
        return Finding("sandbox", False, (problem, *WITHOUT_SANDBOX))
    from p2p.sandbox import layers

    sandbox = layers()
    details = sandbox.describe()
    if not sandbox.available:
        where = "it needs Linux 5.13 or newer with Landlock"
        if any(path.exists() for path in CONTAINER_FILES):
            where += ", and a container whose seccomp profile allows landlock_* and seccomp"
        details += [where, *WITHOUT_SANDBOX]
    return Finding("sandbox", sandbox.available, tuple(details))


def _rendering() -> Finding:
    from p2p.training.video.rendering import rendering_available

    support = rendering_available()
    detail = f"MUJOCO_GL={support.backend}" if support.ok else support.message()
    return Finding("rendering", support.ok, (detail,), needed=False)


def _machine() -> Finding:
    from p2p.resource_auto import detect_machine
    from p2p.training.cpu_manager import CPUManager

    machine = detect_machine()
    free = len(CPUManager().free_cores())
    memory = machine.memory_bytes / 1e9
    return Finding("machine", True, (f"{machine.cores} cores ({free} free), {memory:.1f} GB free",))


def _model() -> Finding:
    from p2p.inference.providers import BUILTIN, choose_model
    from p2p.inference.question import InferenceError

    try:
        model = choose_model()
    except InferenceError as error:
        return Finding("model", False, (f"LLM_MODEL: {error}",), needed=False)
    if model == BUILTIN:
        return Finding("model", True, ("builtin, which needs no key; or set ANTHROPIC_API_KEY",))
    return Finding("model", True, (model,))


def _folder() -> Finding:
    from p2p.settings import get_settings

    folder = get_settings().runs_dir
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    ok = existing.is_dir() and os.access(existing, os.W_OK)
    advice = "" if ok else " cannot be written; set P2P_RUNS_DIR, or give --runs-dir"
    return Finding("runs", ok, (f"{folder}{advice}",))


def _gpu() -> Finding:
    from p2p.sandbox import gpu, start_gpu

    if not gpu.present():
        return Finding("gpu", True, ("none; only GPU simulators use one",))
    names, problem = start_gpu()
    advice = "`--set device=cpu` trains on the CPU, `--unsafe-local` without the sandbox"
    details = (problem, advice) if problem else (f"{', '.join(names)}, in the sandbox",)
    return Finding("gpu", not problem, details, needed=False)


CHECKS: tuple[Callable[[], Finding], ...] = (
    _packages,
    _machine,
    _sandbox,
    _gpu,
    _rendering,
    _model,
    _folder,
)
