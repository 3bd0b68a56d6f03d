"""Videos of recorded episodes, made when they are wanted, by a process of their own.

The parent hands over jobs (environment, trajectory file, output) and continues; `python -m
p2p.training.video.rendering` draws the recorded states. No reward code is loaded anywhere here. A
broken driver may crash or hang instead of raising, so whether this machine can draw, and with which
OpenGL, is asked in a process of its own, too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field, TypeAdapter

from p2p import files
from p2p.contracts import Record
from p2p.records.folder import EVALUATION_VIDEO
from p2p.records.iteration_record import IterationRecord
from p2p.settings import get_settings
from p2p.training.envs.registry import own_folders
from p2p.training.video.playback import partial_path
from p2p.utils.subprocess_utils import NEUTRAL, absolute_environment, python_command, start_program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from p2p.training.trajectory import RecordedEpisode


BACKENDS = ("egl", "osmesa", "glfw")
"""In the order they are tried. glfw needs a display."""
SWITCHED_OFF = ("disable", "disabled", "off", "false", "0")
"""MuJoCo's own words for no OpenGL at all. Empty is not one of them: it means nothing."""
PACKAGES: dict[str, tuple[str, ...]] = {
    "egl": ("libegl1", "libegl-mesa0", "libgl1-mesa-dri"),
    "osmesa": ("libosmesa6",),
}
"""Debian and Ubuntu packages that make a backend work without a display."""

PROBE_SECONDS = 30.0
PROBE = """
import mujoco, numpy
model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><light pos='0 0 3'/><geom size='1' rgba='1 0 0 1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 32, 32) as renderer:
    renderer.update_scene(data)
    assert renderer.render().any(), "the picture is black"
print("drawn")
"""

# What a process that draws may know of our environment: no keys, no tokens.
_KEPT = frozenset({
    "PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "DISPLAY",
    "XAUTHORITY", "XDG_RUNTIME_DIR", "WAYLAND_DISPLAY", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
})  # fmt: skip
_KEPT_PREFIXES = ("LC_", "PYTHON", "MUJOCO_", "MESA_", "LIBGL_", "EGL_", "__EGL_", "__GLX_", "LP_",
                  "GALLIUM_", "NVIDIA_")  # fmt: skip


@dataclass(frozen=True, slots=True)
class RenderSupport:
    """What was found. Without rendering a run trains on, and has no videos."""

    backend: str | None = None
    """The one that works; None: none does."""
    missing: tuple[str, ...] = ()
    """Debian packages to install, when that would help."""
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.backend is not None

    def message(self) -> str:
        """Return one sentence for people."""
        if self.ok:
            return f"rendering with {self.backend}"
        advice = f"; try: apt-get install {' '.join(self.missing)}" if self.missing else ""
        return f"videos are off: no OpenGL backend works here ({self.reason}){advice}"


@cache
def rendering_available() -> RenderSupport:
    """Try the backends, each in a child process; asked once per process."""
    return probe_backends(os.environ)


def probe_backends(environ: Mapping[str, str]) -> RenderSupport:
    """Probe the backends as `rendering_available`, for these variables and without a cache."""
    reasons: list[str] = []
    wished = environ.get("MUJOCO_GL", "").strip().lower()
    if wished in SWITCHED_OFF:
        return RenderSupport(reason=f"MUJOCO_GL={environ['MUJOCO_GL']} switches it off")
    usable = [name for name in BACKENDS if name != "glfw" or environ.get("DISPLAY")]
    if wished in BACKENDS:
        usable = [wished, *(name for name in usable if name != wished)]
    for backend in usable:
        problem = _probe(backend, environ)
        if problem is None:
            return RenderSupport(backend)
        reasons.append(f"{backend}: {problem}")
    return RenderSupport(missing=_missing_packages(), reason="; ".join(reasons))


def drawing_environment(backend: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that draws: what it needs, and the backend."""
    variables = {
        name: value
        for name, value in environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }
    # Software rendering would start a thread per core and take them from training.
    return {"LP_NUM_THREADS": "1", **variables, "MUJOCO_GL": backend}


def _probe(backend: str, environ: Mapping[str, str]) -> str | None:
    """Return None if the backend drew a picture, otherwise what went wrong."""
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-c", PROBE],
            env=absolute_environment(drawing_environment(backend, environ)),
            cwd=NEUTRAL,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no picture within {PROBE_SECONDS:.0f} s"
    if child.returncode == 0 and "drawn" in child.stdout:
        return None
    if child.returncode < 0:
        return f"the process died of signal {-child.returncode}"
    lines = [line for line in child.stderr.splitlines() if line and not line.startswith(" ")]
    return next((line for line in lines if "Error" in line), lines[-1] if lines else "no output")


def _missing_packages() -> tuple[str, ...]:
    """EGL's packages that are not installed; if all are, what the next backend wants."""
    for packages in PACKAGES.values():
        absent = tuple(name for name in packages if not _is_installed(name))
        if absent:
            return absent
    return ()


def _is_installed(package: str) -> bool:
    info = Path("/var/lib/dpkg/info")
    return (info / f"{package}.list").exists() or any(info.glob(f"{package}:*.list"))


NICENESS, LOWEST = 5, 19
"""Of what draws: where somebody waits for it, and where nobody does."""
SECONDS_PER_JOB = 300.0
"""Default limit. An episode of 50 s takes about 40 s on one busy core."""


class RenderJob(Record):
    """One video, or picture, to make."""

    env_id: str
    trajectory: Path
    output: Path
    view: Literal["video", "initial_frame", "motion_trail"] = "video"
    """The others are single pictures, in the format that the output's name ends with."""
    rows: tuple[int, ...] | None = None
    """Show these recorded rows, one a second, instead of the episode as it went."""
    max_frames: Annotated[int, Field(ge=1)] | None = None
    """A longer episode is shown whole, at fewer frames per second."""
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    """Of a longer episode the beginning and the end are shown, in real time."""
    width: Annotated[int, Field(ge=64, le=4096, multiple_of=2)] = 640
    height: Annotated[int, Field(ge=64, le=4096, multiple_of=2)] = 480


class RenderOutcome(Record):
    """What became of a job. `ok` means that the video is at its place, whole."""

    output: Path
    ok: bool
    frames: int = 0
    seconds: float = 0.0
    """CPU time."""
    error: str = ""


_JOBS: TypeAdapter[tuple[RenderJob, ...]] = TypeAdapter(tuple[RenderJob, ...])


class RenderProcess:
    """Jobs being rendered. Ask for outcomes at any time; in the end there is one per job."""

    def __init__(
        self, jobs: Sequence[RenderJob], time_limit: float, niceness: int = NICENESS
    ) -> None:
        self.jobs = tuple(
            job.model_copy(
                update={"trajectory": job.trajectory.absolute(), "output": job.output.absolute()}
            )
            for job in jobs
        )
        self._deadline = time.monotonic() + time_limit
        self._limit, self._niceness = time_limit, niceness
        self._ended = ""  # why it ended, when it was not on its own
        self._process: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        support = rendering_available()
        if support.backend is None:
            self._ended = support.message()
        elif self.jobs:
            self._process = self._start(support.backend)

    def _start(self, backend: str) -> subprocess.Popen[bytes]:
        process = start_program(
            python_command("p2p.training.video.rendering", str(self._limit), str(self._niceness)),
            {
                **drawing_environment(backend, os.environ),
                "PYTHONPATH": _import_path(),
                # Where models of engines and of files lie.
                "P2P_ENGINES_DIR": str(get_settings().engines_dir),
                "P2P_MODELS_DIR": str(get_settings().models_dir),
            },
            self._output,
            errors=self._errors,
            stdin=subprocess.PIPE,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it died at once; wait() says of what
            process.stdin.write(_JOBS.dump_json(self.jobs))
            process.stdin.close()
        return process

    def running(self) -> bool:
        """Return whether the process still runs; stop it past its time limit."""
        if time.monotonic() > self._deadline:
            self._end(f"not done within {self._limit:.0f} s")
        return self._process is not None and self._process.poll() is None

    def wait(self) -> tuple[RenderOutcome, ...]:
        """Wait for the end, at most until the time limit; returns all outcomes, in job order."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, self._deadline - time.monotonic()))
            self._end(f"not done within {self._limit:.0f} s")
        return self.outcomes()

    def cancel(self) -> tuple[RenderOutcome, ...]:
        """End it now. Videos already made stay; no half of one is left."""
        self._end("cancelled")
        return self.outcomes()

    def outcomes(self) -> tuple[RenderOutcome, ...]:
        """Return the outcomes of the jobs done so far; once it has ended, of all jobs."""
        ended = not self.running()
        self._output.seek(0)
        lines = self._output.read().splitlines(keepends=True)
        done = [RenderOutcome.model_validate_json(line) for line in lines if line.endswith(b"\n")]
        if ended and len(done) < len(self.jobs):
            why = self._ended or self._describe_end()
            for job in self.jobs[len(done) :]:
                partial_path(job.output).unlink(missing_ok=True)
                done.append(RenderOutcome(output=job.output, ok=False, error=why))
        return tuple(done)

    def _end(self, why: str) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            self._ended = why

    def _describe_end(self) -> str:
        code = self._process.returncode if self._process is not None else 0
        self._errors.seek(0)
        tail = self._errors.read()[-500:].decode(errors="replace").strip()
        return f"the render process ended with {code}: {tail}"


def render_async(jobs: Sequence[RenderJob], time_limit: float | None = None) -> RenderProcess:
    """Start rendering these jobs, one after the other, in one process.

    Without rendering on this machine nothing is started, and each outcome says why.
    """
    limit = SECONDS_PER_JOB * max(1, len(jobs)) if time_limit is None else time_limit
    return RenderProcess(jobs, limit)


def render(job: RenderJob, niceness: int = NICENESS) -> RenderOutcome:
    """Make one video and wait for it; an interrupt ends its process, too."""
    process = RenderProcess([job], SECONDS_PER_JOB, niceness)
    try:
        return process.wait()[0]
    except BaseException:
        process.cancel()
        raise


# --- inside the render process --------------------------------------------------------------------


def render_here(job: RenderJob) -> int:
    """Make the video in this process; returns its number of frames."""
    from p2p.training.trajectory import RecordedEpisode
    from p2p.training.video.playback import FPS, frame_rows, write_video
    from p2p.training.video.scene import pictures

    trajectory = RecordedEpisode.load(job.trajectory)
    if job.view != "video":
        return _still(job, trajectory)
    times = trajectory["timestamp"].astype(np.float64)
    dt = float(times[1] - times[0]) if trajectory.length > 1 else 1 / FPS
    rows, fps = frame_rows(trajectory.length, dt, job.max_frames, job.max_seconds)
    if job.rows is not None:
        rows, fps = [float(row) for row in job.rows], Fraction(1)
    job.output.parent.mkdir(parents=True, exist_ok=True)
    frames = pictures(job.env_id, trajectory, rows, job.width, job.height)
    return write_video(job.output, frames, fps)


def _still(job: RenderJob, trajectory: RecordedEpisode) -> int:
    from PIL import Image

    from p2p.training.video import stills

    draw = {"initial_frame": stills.initial_frame, "motion_trail": stills.motion_trail}[job.view]
    picture = Image.fromarray(draw(job.env_id, trajectory, job.width, job.height))
    job.output.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(job.output).with_suffix(job.output.suffix)
    picture.save(partial)
    partial.replace(job.output)
    return 1


def _import_path() -> str:
    """So that the child finds this package as the parent did, installed or not."""
    source = str(Path(__file__).parents[3])
    folders = (source, *map(str, own_folders()), os.environ.get("PYTHONPATH", ""))
    return os.pathsep.join(filter(None, folders))


def main() -> None:
    """Read jobs from stdin, write one outcome per line to stdout."""
    if len(sys.argv) > 1:
        # Ends this process even in a hung driver and with the parent gone.
        signal.alarm(int(float(sys.argv[1])) + 5)
    os.nice(int(sys.argv[2]) if len(sys.argv) > 2 else NICENESS)  # training goes first
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # drivers print where they like; stdout carries outcomes only
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # MuJoCo leaves a log where it runs
        for job in _JOBS.validate_python(json.load(sys.stdin)):
            out.write(_attempt(job).model_dump_json() + "\n")
            out.flush()


def _attempt(job: RenderJob) -> RenderOutcome:
    began = time.process_time()
    try:
        frames, error = render_here(job), ""
    # One video that cannot be made must not cost the others; the outcome carries the error.
    except Exception as failure:  # noqa: BLE001
        frames, error = 0, f"{type(failure).__name__}: {failure}"
    return RenderOutcome(
        output=job.output,
        ok=not error,
        frames=frames,
        seconds=time.process_time() - began,
        error=error,
    )


SHOWN_SECONDS = 20.0
"""Of an episode, in the videos of a run: drawing in software costs more than playing it.
A sequence that was asked for begins in the first ten seconds and ends in the last ten."""


class VideoError(Exception):
    """A video cannot be drawn; the message says why."""


def draw_video(path: Path, niceness: int = NICENESS) -> Path:
    """Draw a run's `videos/eval_<step>_<label>.mp4` from its recorded states, unless it is there.

    Raises VideoError where that episode is not recorded or cannot be drawn. Several callers may ask
    for the same video: one draws it, and the others wait.
    """
    if path.is_file():
        return path
    run, name = IterationRecord(path.parent.parent), EVALUATION_VIDEO.fullmatch(path.name)
    config = run.config.read()
    trajectory = run.trajectory_file(int(name[1]), name[2]) if name else None
    if config is None or trajectory is None or not files.is_data(trajectory):
        raise VideoError(f"{path.name}: no such episode is recorded")
    job = RenderJob(
        env_id=config.env_id, trajectory=trajectory, output=path, max_seconds=SHOWN_SECONDS
    )
    try:
        files.refuse_links(run.path)
        with files.hold_lock(run.videos_dir / ".drawing.lock", patience_s=SECONDS_PER_JOB):
            outcome = None if path.is_file() else render(job, niceness=niceness)
    except (OSError, TimeoutError) as error:
        raise VideoError(f"{path.name}: {error}") from error
    if outcome is not None and not outcome.ok:
        raise VideoError(f"{path.name}: {outcome.error}")
    return path


if __name__ == "__main__":
    main()
