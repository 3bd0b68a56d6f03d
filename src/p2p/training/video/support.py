"""Whether this machine can draw, and with which OpenGL. Asked in a process of its own.

A broken driver may crash or hang instead of raising, so nothing here touches OpenGL itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from p2p.utils.subprocess_utils import NEUTRAL, from_anywhere

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        """One sentence for people."""
        if self.ok:
            return f"rendering with {self.backend}"
        advice = f"; try: apt-get install {' '.join(self.missing)}" if self.missing else ""
        return f"videos are off: no OpenGL backend works here ({self.reason}){advice}"


@cache
def rendering_available() -> RenderSupport:
    """Try the backends, each in a child process; asked once per process."""
    return probe_backends(os.environ)


def probe_backends(environ: Mapping[str, str]) -> RenderSupport:
    """As `rendering_available`, for these environment variables and without remembering."""
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
    """None if the backend drew a picture, otherwise what went wrong."""
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-c", PROBE],
            env=from_anywhere(drawing_environment(backend, environ)),
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
        absent = tuple(name for name in packages if not _installed(name))
        if absent:
            return absent
    return ()


def _installed(package: str) -> bool:
    info = Path("/var/lib/dpkg/info")
    return (info / f"{package}.list").exists() or any(info.glob(f"{package}:*.list"))
