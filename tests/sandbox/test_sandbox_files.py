"""What the code inside is given: an environment, a folder, files to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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
    assert (sandbox.folder / "result").read_text() == "done"


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
