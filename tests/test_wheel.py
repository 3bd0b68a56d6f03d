"""The wheel works where nothing else of the project is: installed, outside of the checkout.

With P2P_DIST, a folder that `make dist` has filled, it is that folder's wheel with its dependencies
from the package index. Without, a wheel is built and borrows the dependencies of these tests.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
DIST = os.environ.get("P2P_DIST")
INSTALL_S, COMMAND_S = 1800, 600


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = (ROOT / DIST) if DIST else tmp_path_factory.mktemp("dist")
    if not DIST:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT]
        subprocess.run(pip, check=True, timeout=INSTALL_S)
    (built,) = folder.glob("*.whl")
    return built


@dataclass(frozen=True)
class Installed:
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "env" / "bin" / "python"

    def command(self, *words: str) -> list[str]:
        return [str(self.folder / "env" / "bin" / words[0]), *words[1:]]

    @property
    def environment(self) -> dict[str, str]:
        keys = ("PYTHONPATH", "P2P_RUNS_DIR", "RUNS_DIR", "VIRTUAL_ENV", "LLM_MODEL")
        kept = {key: value for key, value in os.environ.items() if key not in keys}
        return {**kept, "P2P_TOKEN": "the-token", "MUJOCO_GL": "off"}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), cwd=self.folder, env=self.environment, capture_output=True,
            text=True, check=False, timeout=COMMAND_S,
        )  # fmt: skip


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = Installed(tmp_path_factory.mktemp("installed"))
    venv.create(place.folder / "env", with_pip=True)
    pip = [place.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if DIST:
        torch = re.search(r"^TORCH := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert torch
        pip += ["-c", ROOT / "constraints.txt"]
        subprocess.run([*pip, torch[1]], check=True, timeout=INSTALL_S)
    else:
        pip += ["--no-deps"]
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = place.folder / "env" / "lib" / version / "site-packages"
        # A folder that a .pth names has its own .pth ignored: the editable install stays out.
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    subprocess.run([*pip, wheel], check=True, timeout=INSTALL_S)
    return place


def test_the_wheel_has_what_is_used_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    (licence,) = (name for name in names if name.endswith(".dist-info/licenses/LICENSE"))
    metadata = licence.removesuffix("licenses/LICENSE")
    source = ROOT / "src"
    ours = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if not name.startswith(metadata)} == ours
    assert ours >= {
        "p2p/py.typed", "unstable/py.typed", "p2p/api/static/index.html", "p2p/api/demo.tar.xz",
    }  # fmt: skip
    assert not [name for name in names if re.search(r"test_|node_modules|\.env", name)]


def test_it_is_the_wheel_that_is_imported(installed: Installed) -> None:
    where = installed.run("python", "-c", "import p2p, unstable; print(p2p.__file__)")
    assert Path(where.stdout.strip()).is_relative_to(installed.folder), where.stderr


def test_an_installed_p2p_goes_from_a_prompt_to_a_policy(installed: Installed) -> None:
    ended = installed.run(
        "p2p", "run", "balance the pole", "--env", "InvertedPendulum-v5", "--model", "builtin",
        "--iterations", "1", "--steps", "4096", "--set", "num_evals=1", "--judge-episodes", "2",
        "--no-wait", "--json",
    )  # fmt: skip
    assert ended.returncode in (0, 3), ended.stderr  # so short a training need not pass
    (policy,) = (installed.folder / "runs").glob("session_*/iter_1/*/checkpoints/*/policy.zip")
    assert policy.stat().st_size > 0
    (session,) = json.loads(installed.run("p2p", "sessions", "--json").stdout)
    assert session["prompt"] == "balance the pole"


@pytest.mark.parametrize("what", ["--runs-dir=empty", "--demo"])
def test_an_installed_p2p_serves_page_and_api(installed: Installed, what: str) -> None:
    server = subprocess.Popen(
        installed.command("p2p", "serve", "--port", "0", what),
        cwd=installed.folder, env=installed.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def get(path: str, token: str = "") -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()

    try:
        assert server.stdout is not None
        said = server.stdout.readline() + server.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
        assert address, said
        port = int(address[1])
        status, page = get("/")
        assert (status, b'<div id="root">' in page) == (200, True)
        assert get("/api/sessions")[0] == 401
        status, sessions = get("/api/sessions", "the-token")
        assert (status, bool(json.loads(sessions))) == (200, what == "--demo")
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0
    finally:
        server.kill()
        server.wait()
