"""Files and secrets outside of the sandbox's folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import p2p
from p2p.sandbox import layers

if TYPE_CHECKING:
    from sandbox_runner import Runner

REPOSITORY = Path(p2p.__file__).parents[2]


def test_files_outside_cannot_be_read(sandbox: Runner, tmp_path: Path) -> None:
    secret = tmp_path / "home" / ".ssh" / "id_ed25519"
    secret.parent.mkdir(parents=True)
    secret.write_text("secret")
    sandbox.refused(
        """
        import ctypes, os, mmap
        libc = ctypes.CDLL(None, use_errno=True)
        def through(*steps):
            for step in steps: step()
            return open("id_ed25519").read()
        def c_open():
            fd = libc.open(secret.encode(), 0)
            if fd < 0: raise OSError(ctypes.get_errno())
            return os.read(fd, 10)
        def by_path_descriptor():
            fd = os.open(secret, os.O_PATH)
            return open(f"/proc/self/fd/{fd}").read()
        attempts(
            plain=lambda: open(secret).read(),
            c=c_open,
            relative=lambda: open("../home/.ssh/id_ed25519").read(),
            chdir=lambda: through(lambda: os.chdir(os.path.dirname(secret))),
            proc_root=lambda: open("/proc/self/root" + secret).read(),
            o_path=by_path_descriptor,
            symlink=lambda: (os.symlink(secret, folder + "/link"), open(folder + "/link").read()),
            hard_link=lambda: (os.link(secret, folder + "/hard"), open(folder + "/hard").read()),
            rename=lambda: os.rename(secret, folder + "/moved"),
            listing=lambda: os.listdir(os.path.dirname(secret)),
            users=lambda: open("/etc/passwd").read(),
            shadow=lambda: open("/etc/shadow").read(),
            hosts=lambda: open("/etc/hosts").read(),
            root_listing=lambda: os.listdir("/"),
            memory=lambda: open("/dev/mem", "rb").read(1),
            kernel_log=lambda: open("/dev/kmsg", "rb").read(1),
            zero=lambda: mmap.mmap(os.open("/dev/zero", os.O_RDWR), 4096),
        )
        """,
        {"secret": str(secret), "folder": str(sandbox.folder)},
    )


def test_the_repository_beside_the_package_cannot_be_read(sandbox: Runner) -> None:
    beside = [
        str(REPOSITORY / name) for name in ("pyproject.toml", ".gitignore", "LICENSE", ".env")
    ]
    sandbox.refused(
        "import os\n"
        "attempts(listing=lambda: os.listdir(root),"
        " **{path: (lambda path=path: open(path).read()) for path in beside})",
        {"root": str(REPOSITORY), "beside": beside},
    )


def test_the_environment_of_the_parent_is_out_of_reach(
    sandbox: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2-in-the-parent")
    ended = sandbox(
        """
        import ctypes, json, os
        def own():
            if "hunter2" in json.dumps(dict(os.environ)): return "python"
            if b"hunter2" in open("/proc/self/environ", "rb").read(): return "proc"
            if ctypes.CDLL(None).getenv(b"SOME_API_KEY"): return "libc"
            raise LookupError
        attempts(
            own=own,
            parent=lambda: open(f"/proc/{os.getppid()}/environ", "rb").read(),
            parent_by_number=lambda: open(f"/proc/{parent}/environ", "rb").read(),
            parent_memory=lambda: open(f"/proc/{parent}/mem", "rb").read(1),
            parent_command=lambda: open(f"/proc/{parent}/cmdline", "rb").read(),
            parent_files=lambda: os.listdir(f"/proc/{parent}/fd"),
            parent_folder=lambda: os.readlink(f"/proc/{parent}/cwd"),
            parent_program=lambda: os.readlink(f"/proc/{parent}/exe"),
            parent_root=lambda: os.listdir(f"/proc/{parent}/root"),
            first=lambda: open("/proc/1/environ", "rb").read(),
            processes=lambda: os.listdir("/proc"),
        )
        """,
        {"parent": os.getpid()},
    )
    assert all(not v.startswith("GOT") for v in ended.outcome.values()), ended.outcome
    assert ended.outcome["own"] == "LookupError"


def test_only_the_given_environment_is_inside(sandbox: Runner) -> None:
    ended = sandbox(
        "import os, json; send(json.dumps([os.environ.get('GIVEN'), os.environ['HOME']]).encode())",
        env={"GIVEN": "yes"},
    )
    assert ended.lines == [f'["yes", "{sandbox.folder}"]'.encode()]


def test_no_descriptor_of_the_parent_is_inherited(sandbox: Runner, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        ended = sandbox("import os; send(' '.join(os.listdir('/proc/self/fd')).encode())")
    # Three standard streams, the pipe, and the listing itself.
    assert len(ended.lines[0].split()) == 5


def test_files_outside_cannot_be_changed(sandbox: Runner, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    before = victim.stat()
    library = tmp_path / "library.py"
    library.write_text("as it was")
    sandbox.refused(
        """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        def c(name, *args):
            if getattr(libc, name)(*args) < 0: raise OSError(ctypes.get_errno())
        def on_descriptor(change):
            fd = os.open(library, os.O_RDONLY)
            return change(fd)
        attempts(
            write=lambda: open(victim, "w"),
            append=lambda: open(victim, "a"),
            create=lambda: open(os.path.dirname(victim) + "/new", "w"),
            mkdir=lambda: os.mkdir(os.path.dirname(victim) + "/newdir"),
            unlink=lambda: os.unlink(victim),
            rename_out=lambda: (open(folder + "/x", "w").close(), os.rename(folder + "/x", victim)),
            truncate=lambda: os.truncate(victim, 0),
            empty_library=lambda: os.open(library, os.O_RDONLY | os.O_TRUNC),
            write_library=lambda: open(library, "a"),
            chmod=lambda: os.chmod(victim, 0),
            chmod_library=lambda: on_descriptor(lambda fd: os.fchmod(fd, 0)),
            chown=lambda: os.chown(victim, 1, 1),
            utime=lambda: os.utime(victim, (0, 0)),
            xattr=lambda: os.setxattr(victim, "user.x", b"1"),
            tmp=lambda: open("/tmp/p2p-sandbox-escape", "w"),
            shm=lambda: open("/dev/shm/p2p-sandbox-escape", "w"),
            oom=lambda: open("/proc/self/oom_score_adj", "w").write("0"),
            mknod=lambda: os.mknod(folder + "/node", 0o20600, os.makedev(1, 3)),
            fifo=lambda: os.mkfifo(folder + "/fifo"),
            chroot=lambda: os.chroot(folder),
            mount=lambda: c("mount", b"none", folder.encode(), b"tmpfs", 0, None),
        )
        """,
        {"victim": str(victim), "folder": str(sandbox.folder), "library": str(library)},
        readable=(library,),
    )
    after = victim.stat()
    assert victim.read_text() == library.read_text() == "as it was"
    assert (after.st_mode, after.st_mtime_ns, after.st_uid) == (
        before.st_mode,
        before.st_mtime_ns,
        before.st_uid,
    )


def test_the_folder_can_be_used_as_usual(sandbox: Runner) -> None:
    ended = sandbox(
        """
        import os, tempfile
        open("a", "w").write("1"); os.replace("a", "b"); os.mkdir("d"); os.rename("b", "d/c")
        with tempfile.NamedTemporaryFile() as file: file.write(b"x")
        os.truncate if False else open("d/c", "r+").truncate(0)
        os.unlink("d/c"); os.rmdir("d"); open("result", "w").write("done")
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


@pytest.mark.skipif("mount" not in layers().namespaces, reason="needs mount namespaces")
def test_a_library_in_the_folder_cannot_be_loaded(sandbox: Runner, tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    built = sandbox.folder / "evil.so"
    if compiler:
        source = tmp_path / "evil.c"
        source.write_text("int answer(void) { return 42; }")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", built, source], check=True)
    else:
        import _ctypes

        shutil.copy(_ctypes.__file__, built)
    sandbox.refused(
        """
        import ctypes, mmap, os
        def preload():
            data = open("evil.so", "rb").read()
            open("copy.so", "wb").write(data)
            return ctypes.CDLL(os.path.abspath("copy.so"))
        def mapped():
            fd = os.open("evil.so", os.O_RDONLY)
            return mmap.mmap(fd, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
        attempts(load=lambda: ctypes.CDLL(os.path.abspath("evil.so")), copy=preload, map=mapped)
        """
    )
