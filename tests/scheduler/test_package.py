"""The package as it is sent to other machines."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import p2p
from p2p.scheduler.node import describe_machine
from p2p.scheduler.package import build_package, unpack


def test_package_has_all_files_and_same_bytes() -> None:
    first = build_package()
    build_package.cache_clear()
    assert build_package() == first
    with zipfile.ZipFile(io.BytesIO(first.data)) as archive:
        names = set(archive.namelist())
    source = Path(p2p.__file__).parent
    files = (path for path in source.rglob("*") if path.is_file())
    ours = {f"p2p/{p.relative_to(source)}" for p in files if "__pycache__" not in p.parts}
    assert ours == {name for name in names if name.startswith("p2p/")}
    assert {name.split("/")[0] for name in names} == {"p2p", "unstable"}


def test_unpacked_package_runs_and_is_reused(tmp_path: Path) -> None:
    package = build_package()
    folder = unpack(tmp_path, *package)
    assert unpack(tmp_path, *package) == folder
    assert list((tmp_path / "packages").iterdir()) == [folder]
    output = subprocess.check_output(
        [sys.executable, "-c", "import p2p.scheduler.supervisor as a; print(a.__file__)"],
        env={"PYTHONPATH": str(folder)},
        text=True,
    )
    assert output.strip() == str(folder / "p2p" / "scheduler" / "supervisor.py")


def test_describe_machine_names_missing_packages() -> None:
    needs = ["numpy>=1", "no-such-thing>=2,<3; python_version > '3'", "absent; extra == 'more'"]
    assert describe_machine(needs)["missing"] == ["no-such-thing"]
