"""Model files that are broken or meant to harm: each gets an error that says what to change."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from p2p.config import ConfigurationError
from p2p.settings import get_settings
from p2p.training.model_files.adoption import adopt

BODY = (
    '<worldbody><body><joint name="j" type="hinge"/><geom size="0.1"/></body></worldbody>'
    '<actuator><motor joint="j"/></actuator>'
)


def model(text: str = BODY, before: str = "") -> str:
    return f"<mujoco>{before}{text}</mujoco>"


def write(name: str, text: str | bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return make


def deep(folder: Path) -> Path:
    for i in range(12):
        (folder / f"{i}.xml").write_text(f'<mujoco><include file="{i + 1}.xml"/></mujoco>')
    (folder / "12.xml").write_text(model())
    return folder / "0.xml"


def link_out(folder: Path) -> Path:
    secret = folder.parent / "secret.xml"
    secret.write_text(model())
    (folder / "robot.xml").symlink_to(secret)
    (folder / "main.xml").write_text('<mujoco><include file="robot.xml"/></mujoco>')
    return folder / "main.xml"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "robot.xml")
    return folder / "robot.xml"


def archive(*members: tuple[str, str]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "robot.zip", "w", zipfile.ZIP_DEFLATED) as opened:
            for name, text in members:
                opened.writestr(name, text)
        return folder / "robot.zip"

    return make


def bomb(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "robot.zip", "w", zipfile.ZIP_DEFLATED) as opened:
        for i in range(5):
            opened.writestr(f"{i}.stl", bytes(64 << 20))
        opened.writestr("robot.xml", model())
    return folder / "robot.zip"


def with_toml(text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "robot.toml").write_text(text)
        return write("robot.xml", model())(folder)

    return make


def links(count: int, inertia: str = "0.01") -> str:
    """A URDF of a chain of links that are fixed to each other."""
    values = " ".join(f'i{axes}="0"' for axes in ("xy", "xz", "yz"))
    values += f' ixx="{inertia}" iyy="0.01" izz="0.01"'
    inertial = f'<inertial><mass value="1"/><inertia {values}/></inertial>'
    chain = "".join(f'<link name="l{i}">{inertial}</link>' for i in range(count))
    for i in range(count - 1):
        ends = f'<parent link="l{i}"/><child link="l{i + 1}"/>'
        chain += f'<joint name="j{i}" type="fixed">{ends}</joint>'
    return f'<robot name="chain">{chain}</robot>'


MESH = '<asset><mesh name="m" file="{}"/></asset>'
ENTITIES = '<!DOCTYPE m [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><mujoco>&b;</mujoco>'
CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "not there": (lambda folder: folder / "none.xml", "there is no such file"),
    "empty": (write("robot.xml", ""), "is not XML"),
    "not XML": (write("robot.xml", "hello"), "is not XML"),
    "binary under .xml": (write("robot.xml", bytes(range(256))), "is not UTF-8"),
    "latin-1": (write("robot.xml", model().encode() + b"<!-- \xe9 -->"), "is not UTF-8"),
    "XML under .mjb": (write("robot.mjb", model()), "is not a compiled model"),
    "XML under .zip": (write("robot.zip", model()), "cannot be unpacked"),
    "another program's XML": (write("robot.xml", "<svg/>"), "robot.xml: .*(svg|mujoco)"),
    "entity bomb": (write("robot.xml", ENTITIES), "entities are not read"),
    "deep includes": (deep, "includes go deeper than"),
    "includes itself": (
        write("robot.xml", '<mujoco><include file="robot.xml"/></mujoco>'),
        "includes go deeper|include",
    ),
    "include above": (
        write("robot.xml", '<mujoco><include file="../robot.xml"/></mujoco>'),
        "outside of the model's folder",
    ),
    "absolute mesh": (
        write("robot.xml", model(before=MESH.format("/etc/passwd"))),
        "absolute path",
    ),
    "missing mesh": (write("robot.xml", model(before=MESH.format("m.stl"))), "m.stl"),
    "link out": (link_out, "link out of the model's folder|cannot be read"),
    "pipe": (pipe, "there is no such file"),
    "plugin": (
        write("robot.xml", model(before='<extension><plugin plugin="mujoco.pid"/></extension>')),
        "plugins are not loaded",
    ),
    "huge memory": (
        write("robot.xml", model(before='<size memory="64G"/>')),
        "<size memory>|memory",
    ),
    "too many elements": (
        write("robot.xml", model("<worldbody>" + "<geom/>" * 200_001 + "</worldbody>")),
        "elements",
    ),
    "no joints": (
        write("robot.xml", model('<worldbody><body><geom size="1"/></body></worldbody>')),
        "nothing to move",
    ),
    "not a number": (
        write("robot.xml", model(BODY.replace('size="0.1"', 'size="0.1" pos="nan 0 0"'))),
        "robot.xml: ",
    ),
    "no time": (write("robot.xml", model(before='<option timestep="0"/>')), "time ?step"),
    "day long steps": (write("robot.xml", model(before='<option timestep="1e5"/>')), "time ?step"),
    "archive without a model": (archive(("a.stl", "x")), "there is no .xml"),
    "archive with two models": (archive(("a.xml", model()), ("b.xml", model())), "which of them"),
    "archive that leads out": (archive(("../../evil.xml", model())), "leads out of it"),
    "archive bomb": (bomb, "MiB unpacked"),
    "endless inertia": (write("robot.urdf", links(2, inertia="inf")), "link l0 is not finite"),
    "deep chain of fixed links": (write("robot.urdf", links(1500)), "robot.urdf: "),
    "TOML that is none": (with_toml("trunk = "), "is not TOML"),
    "TOML with an unknown field": (with_toml("trnk = 'a'"), "did you mean trunk"),
    "TOML with an unknown joint": (with_toml("fixed = ['k']"), "no 'k'"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_model_file_says_what_to_change(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P2P_MODELS_DIR", str(tmp_path / "models"))
    get_settings.cache_clear()
    (tmp_path / "mine").mkdir()
    make, message = CASES[case]
    with pytest.raises(ConfigurationError, match=message):
        adopt(make(tmp_path / "mine"))
    assert not list((tmp_path / "models").glob("*"))
