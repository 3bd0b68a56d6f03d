"""Every kind of hostile code, run for real, also with fewer rights than the tests have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import hostile_code
import pytest
from hostile_code import BATCHED, KINDS, MODES, NEEDS_MOUNT_NAMESPACE, NOBODY

from p2p.sandbox import layers

ALONE = [kind for kind in KINDS if kind not in BATCHED]
SOME = [
    *BATCHED, "memory that grows slowly", "a thread bomb", "folders closed to the parent",
    "deleted files that stay open", "deleted files that stay mapped", "a process that stops itself",
    "a pickle among arrays", "lines nested without end", "stacks split by moving their pages",
    "stacks split by giving up pages between", "memory made read-only once it is full",
    "deleted mapped files by the thousand", "more mappings than can be counted",
    "mappings that change while they are counted",
]  # fmt: skip
"""What takes a second in all, and whatever rights or namespaces could make a difference to."""

OPEN_WITH_A_GPU = {
    "limits of its own", "memory shared beyond the process", "locked and huge pages",
    "programs in memory", "names of sockets",
}  # fmt: skip
"""Addresses are not bounded there, memory that a device reaches is shared and locked, files in
memory can be made, and a socket can wait for what cannot come; to run a program is refused as
ever."""


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return hostile_code.refused_problems(tmp_path_factory.mktemp("hostile"), [*BATCHED])


@pytest.mark.parametrize("kind", BATCHED)
def test_hostile_code_is_refused(problems: dict[str, str], kind: str) -> None:
    if kind in NEEDS_MOUNT_NAMESPACE and "mount" not in layers().namespaces:
        pytest.skip("this kernel gives out no mount namespaces")
    assert problems[kind] == ""


def test_hostile_code_is_refused_with_a_gpu_as_well(tmp_path: Path) -> None:
    left = NEEDS_MOUNT_NAMESPACE if "mount" not in layers().namespaces else ()
    kinds = [kind for kind in BATCHED if kind not in (*OPEN_WITH_A_GPU, *left)]
    problems = hostile_code.refused_problems(tmp_path, kinds, gpu=True)
    assert len(problems) > 50
    assert {kind: text for kind, text in problems.items() if text} == {}


@pytest.mark.parametrize("kind", ALONE)
def test_hostile_code_ends_or_is_not_believed(tmp_path: Path, kind: str) -> None:
    assert hostile_code.problem_of(tmp_path, kind) == ""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "kinds", [pytest.param(SOME, id="some"), pytest.param((), id="all", marks=pytest.mark.slow)]
)
def test_hostile_code_fares_no_better(mode: str, kinds: Sequence[str]) -> None:
    if mode == "without root" and os.getuid() != 0:
        pytest.skip("the other tests run without root already")
    # Not in pytest's folder, which is closed to others.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        command = [sys.executable, hostile_code.__file__, mode, folder, *kinds]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=240, check=True)
    report = json.loads(done.stdout)
    if mode == "without root":
        assert report["uid"] == NOBODY
    assert bool(report["namespaces"]) == (
        layers().namespaces != () and mode != "without namespaces"
    )
    assert len(report["problems"]) >= len(kinds or KINDS) - len(NEEDS_MOUNT_NAMESPACE)
    assert {kind: text for kind, text in report["problems"].items() if text} == {}


def test_the_documentation_counts_the_kinds() -> None:
    for document in ("README.md", "docs/safety.md"):
        text = (hostile_code.REPOSITORY / document).read_text()
        assert f"{len(KINDS)} kinds of hostile code" in text, document
