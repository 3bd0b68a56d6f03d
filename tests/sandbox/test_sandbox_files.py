"""What the code inside is given: an environment, a folder, files to read."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from p2p.sandbox import layers, read_result

if TYPE_CHECKING:
    from sandbox_runner import Runner


def test_only_the_given_environment_is_inside(sandbox: Runner) -> None:
    ended = sandbox(
        "import os, json; send(json.dumps([os.environ.get('GIVEN'), os.environ['HOME']]).encode())",
        env={"GIVEN": "yes"},
    )
    assert ended.lines == [f'["yes", "{sandbox.folder}"]'.encode()]


def test_the_folder_can_be_used_as_usual(sandbox: Runner) -> None:
    ended = sandbox(
        """
        import os, tempfile
        open("a", "w").write("1"); os.replace("a", "b"); os.mkdir("d"); open("d/c", "w").write("1")
        with tempfile.NamedTemporaryFile() as file: file.write(b"x")
        open("b", "r+").truncate(0); os.rename("d/c", "d/e")
        os.unlink("b"); os.unlink("d/e"); open("result", "w").write("done")
        """
    )
    assert ended.exit.ok, ended.exit
    assert (ended.folder / "result").read_text() == "done"


def test_a_readable_path_can_be_read_and_not_written(sandbox: Runner, tmp_path: Path) -> None:
    given = tmp_path / "given.txt"
    given.write_text("for you")
    ended = sandbox(
        "attempts(read=lambda: open(given).read(), write=lambda: open(given, 'a'))",
        {"given": str(given)},
        readable=(given,),
    )
    assert ended.outcome["read"] == "GOT THROUGH: 'for you'"
    assert not ended.outcome["write"].startswith("GOT")


def test_what_lies_in_the_folder_can_be_read_there(sandbox: Runner) -> None:
    (sandbox.folder / "sub").mkdir()
    (sandbox.folder / "sub" / "given").write_text("for you")
    (sandbox.folder / "sub" / "link").symlink_to("given")
    ended = sandbox(
        """
        import os
        assert os.listdir(".") == ["sub"] and os.readlink("sub/link") == "given"
        assert open("sub/link").read() == "for you"
        open("sub/made", "w").write("mine")
        """
    )
    assert ended.exit.ok, ended.exit
    assert (ended.folder / "sub" / "made").read_text() == "mine"


def test_given_files_stay_as_they_are(sandbox: Runner) -> None:
    if "tmpfs" not in layers().namespaces:
        pytest.skip("the folder itself is written to here")
    (sandbox.folder / "given").write_text("for you")
    sandbox.refused(
        """
        import os
        attempts(write=lambda: open("given", "a"), remove=lambda: os.unlink("given"),
                 truncate=lambda: os.truncate("given", 0), move=lambda: os.rename("given", "x"))
        open("large", "wb").write(bytes(1 << 20))
        """
    )
    assert [path.name for path in sandbox.folder.iterdir()] == ["given"]
    assert (sandbox.folder / "given").read_text() == "for you"


def test_results_can_be_read_as_long_as_the_process_is_kept(sandbox: Runner) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    ended = sandbox("open('result', 'w').write('done')")
    gc.collect()
    assert read_result(ended.folder, "result", 10) == b"done"
    del ended
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.usefixtures("without_namespaces")
def test_folders_that_cannot_be_removed_the_usual_way_are_gone_afterwards(sandbox: Runner) -> None:
    ended = sandbox(
        """
        import os
        open("kept", "w").close()
        os.mkdir("closed"); os.mkdir("closed/a", 0)
        for i in range(100): os.mkdir("d"); os.chdir("d")
        """
    )
    assert ended.exit.reason == "disk"
    assert [path.name for path in sandbox.folder.iterdir()] == ["kept"]
