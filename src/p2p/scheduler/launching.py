"""Launches on the machine this runs on: start, report, cancel, read the log.

Every function may be called again after a crash, by another process, with the same effect. The
local backend calls them directly; those of other machines have somebody there who does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from p2p.scheduler import processes
from p2p.scheduler.attend import REFUSED_CODE, TIME_LIMIT_CODE
from p2p.scheduler.control import Control, Exit, LaunchFile
from p2p.scheduler.records import Launch, LaunchReport, RunSpec
from p2p.training.cpu_manager import PASSED_VARIABLES

GRACE_S = 30.0
"""A session that is told to stop gives its runs half of this."""
START_PATIENCE_S = 60.0
LASTING = frozenset({"claim", "exit.json"})
"""What stays of a launch that was released, so that nothing starts it again."""
REMEMBERED_S = 30 * 86_400.0
KILLED = "it was killed from outside, perhaps because its machine ran out of memory"
LAUNCH_VARIABLES = (
    *PASSED_VARIABLES,
    "USER", "LOGNAME", "SHELL", "TZ", "OMP_NUM_THREADS", "JAX_PLATFORMS",
    "HF_HOME", "HF_HUB_OFFLINE", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""What a program has of the environment it is launched from; keys and tokens are `secrets`."""


class LaunchError(Exception):
    """It could not be started, and may be tried again."""


def start(
    base: Path,
    launch: Launch,
    runs_dir: Path,
    secrets: Mapping[str, str],
    python: str,
    *,
    lease_s: float | None = None,
    grace_s: float = GRACE_S,
) -> None:
    """Start it, unless it was started or cancelled before. Then it is no longer `absent`.

    Args:
        base: where the control folders lie.
        launch: what to start.
        runs_dir: the runs folder on this machine.
        secrets: values of the variables in `launch.spec.secrets`; others are left out.
        python: the interpreter here.
        lease_s: end it when nobody has asked for a report for so long.
        grace_s: how long it may take to stop before it is killed.
    """
    control = prepare(base, launch, runs_dir, python, lease_s=lease_s, grace_s=grace_s)
    if control is None:
        return
    given = {name: secrets[name] for name in launch.spec.secrets if name in secrets}
    _start_attendant(control, python, {**launch_environment(), **given})


def prepare(
    base: Path,
    launch: Launch,
    runs_dir: Path,
    python: str,
    *,
    lease_s: float | None = None,
    grace_s: float = GRACE_S,
) -> Control | None:
    """Write down what an attendant is to start; None if it was started or cancelled before."""
    control = Control(base.absolute(), launch.launch_id)
    if control.read_claim() is not None:
        return None
    spec = launch.spec
    cwd = runs_dir.absolute() / spec.folder
    cwd.mkdir(parents=True, exist_ok=True)
    control.make()
    if lease_s is not None:
        control.lease.touch()
    control.write_launch(
        LaunchFile(
            command=filled_in(spec, runs_dir.absolute(), python),
            cwd=str(cwd),
            cores=spec.cores,
            gpus=spec.gpus,
            time_limit_s=spec.time_limit_s,
            lease_s=lease_s,
            grace_s=grace_s,
        )
    )
    return control


def filled_in(spec: RunSpec, runs_dir: Path, python: str) -> tuple[str, ...]:
    """The command as it is on this machine."""
    values = {
        "{python}": python, "{runs_dir}": str(runs_dir), "{folder}": str(runs_dir / spec.folder)
    }  # fmt: skip
    words = []
    for word in spec.command:
        for name, value in values.items():
            word = word.replace(name, value)  # noqa: PLW2901
        words.append(word)
    return tuple(words)


def launch_environment() -> dict[str, str]:
    """What a program is given of this process's environment, secrets aside."""
    given = {name: os.environ[name] for name in LAUNCH_VARIABLES if name in os.environ}
    for name in given.keys() & {"PYTHONPATH", "P2P_ENV_PATH"}:  # it starts in another folder
        folders = filter(None, given[name].split(os.pathsep))
        given[name] = os.pathsep.join(str(Path(folder).absolute()) for folder in folders)
    return {**given, "PYTHONUNBUFFERED": "1"}  # so that its log can be followed


def _start_attendant(control: Control, python: str, environment: Mapping[str, str]) -> None:
    command = [
        python, "-m", "p2p.scheduler.attend", str(control.base), control.launch_id, "--detach"
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command,
            cwd=control.path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=START_PATIENCE_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{control.launch_id} cannot be started with {python}: {error}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip() or _complaint(control)
        raise LaunchError(f"{control.launch_id} could not be started: {said[-2000:]}")


def report(base: Path, launch_id: str) -> LaunchReport:
    """How it stands; renews its lease. Kills what one that died without a word has left behind."""
    control = Control(base.absolute(), launch_id)
    if control.read_claim() is None:
        return LaunchReport(state="absent")
    # In this order: an attendant that is gone wrote down the end before.
    alive = control.claim_is_held()
    if (ended := known_end(control)) is not None:
        return ended
    if alive:
        if control.lease.exists():
            control.lease.touch()
        return _how_it_goes(control)
    return _after_a_death(control)


def known_end(control: Control) -> LaunchReport | None:
    """How it ended, as its folder says; None if nobody has written that down."""
    claim = control.read_claim()
    if claim is not None and claim.get("cancelled"):
        return LaunchReport(state="cancelled", message="cancelled before it was started")
    ended = control.read_exit()
    return None if ended is None else as_report(ended)


def _how_it_goes(control: Control) -> LaunchReport:
    process = control.read_process()
    if process is None:
        return LaunchReport(state="waiting", message="waits for free cores")
    cores = ", ".join(str(core) for core in process["cores"])
    return LaunchReport(state="running", message=f"process {process['pid']} on core {cores}")


def _after_a_death(control: Control) -> LaunchReport:
    left = processes.kill_all(partial(processes.marked, control.marks))
    if left:
        return LaunchReport(
            state="running", message=f"its attendant died; processes {left} cannot be killed"
        )
    asked = control.cancel_asked()
    message = "" if asked else f"its attendant died without a word {_complaint(control)}".strip()
    when = datetime.now(UTC).isoformat()
    ended = Exit("cancelled" if asked else "lost", None, when, message)
    control.write_exit(ended)
    return as_report(ended)


def _complaint(control: Control) -> str:
    try:
        return (control.path / "attendant.log").read_text(errors="replace")[-1000:]
    except FileNotFoundError:
        return ""


def as_report(ended: Exit) -> LaunchReport:
    """An end as the scheduler is told."""
    match ended.how:
        case "exited":
            code = ended.code or 0
            if code == -signal.SIGKILL:
                # Nobody who may end it kills a program that is not to end: the machine did.
                return LaunchReport(state="lost", message=KILLED)
            message = f"ended by signal {-code}" if code < 0 else ""
            return LaunchReport(state="exited", exit_code=code, message=message)
        case "time_limit":
            return LaunchReport(state="exited", exit_code=TIME_LIMIT_CODE, message=ended.message)
        case "refused":
            return LaunchReport(state="exited", exit_code=REFUSED_CODE, message=ended.message)
        case "cancelled":
            return LaunchReport(state="cancelled", exit_code=ended.code, message=ended.message)
        case _:
            return LaunchReport(state="lost", message=ended.message)


def cancel(base: Path, launch_id: str) -> None:
    """End it with all its processes, soon; one that was never started never will be."""
    control = Control(base.absolute(), launch_id)
    control.ask_to_cancel()
    tombstone = control.take_claim(cancelled=True)
    if tombstone is not None:
        os.close(tombstone)


def release(base: Path, launch_id: str) -> None:
    """Remove what a launch that has ended left here, except the word that it was and how it ended.

    Raises LaunchError if it has not ended.
    """
    control = Control(base.absolute(), launch_id)
    if control.read_claim() is None:
        return
    if known_end(control) is None or control.claim_is_held():
        raise LaunchError(f"{launch_id} has not ended: nothing of it is removed")
    for path in control.path.iterdir():
        if path.name in LASTING:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def forget_released(base: Path, older_than_s: float = REMEMBERED_S) -> None:
    """Forget launches that were released long ago; nothing asks after them any more."""
    now = time.time()
    for folder in (base / "launches").glob("*"):
        with suppress(FileNotFoundError):  # somebody else does the same
            names = {path.name for path in folder.iterdir()}
            if names and names <= LASTING and now - folder.stat().st_mtime > older_than_s:
                shutil.rmtree(folder)


def read_log(base: Path, launch_id: str, offset: int = 0, limit: int = -1) -> bytes:
    """What it wrote, from this byte on, `limit` bytes at most; nothing if there is none yet."""
    try:
        with Control(base.absolute(), launch_id).log.open("rb") as stream:
            stream.seek(max(0, offset))
            return stream.read(limit)
    except FileNotFoundError:
        return b""
