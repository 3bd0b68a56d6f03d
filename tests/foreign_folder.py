"""A folder as somebody who means harm would hand it on: it may be read, and nothing in it runs."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

SECRET = "a-secret-of-the-user-5f0c"
ESCAPE = "\x1b]0;taken over\x07"
MARKUP = "<script>x()</script> ![p](http://there.invalid/p.png) [l](javascript:x())"
MODULES = (
    "json", "zipfile", "sitecustomize", "usercustomize", "typing", "typer", "rich", "numpy",
    "pydantic", "gymnasium", "mujoco", "unstable", "wandb", "own_part", "av", "tarfile",
)  # fmt: skip


@dataclass(frozen=True)
class ForeignFolder:
    """Hostile, below `path`; `outside` is the user's own."""

    path: Path
    outside: Path

    @property
    def session(self) -> Path:
        return self.path / "session_shared"

    @property
    def run(self) -> Path:
        return self.session / "iter_1"

    @property
    def selfplay(self) -> Path:
        return self.path / "selfplay"

    @property
    def canary(self) -> Path:
        return self.outside / "canary"

    @property
    def secret(self) -> Path:
        return self.outside / "secret"

    def add_modules(self, folder: Path) -> None:
        """What Python would import if it looked here, and variables that tell it to."""
        for name in MODULES:
            (folder / f"{name}.py").write_text(f"open({str(self.canary)!r}, 'a').write(__name__)\n")
        (folder / ".env").write_text(
            f"OPENAI_BASE_URL=http://there.invalid\nP2P_ENV_PATH={folder}\nPYTHONPATH={folder}\n"
            f"P2P_CACHE_DIR={folder}\nP2P_ENGINES_DIR={folder}\nVLLM_HOST=there.invalid\n"
            f"P2P_PRICES={self.secret}\n"
        )

    def add_links(self) -> None:
        """Links to what is the user's, endless files and pipes, under the names that are read."""
        for folder in (self.session, self.run):
            replace_by_pipe(folder / "status.json")
            replace_by_link(folder / "result.json", Path("/dev/zero"))
            replace_by_link(folder / "events.jsonl", self.secret)
            replace_by_link(folder / "analysis.json", self.secret)
        replace_by_link(self.run / "reward_fn.py", self.secret)
        replace_by_link(self.run / "summary.json", Path("/dev/zero"))
        for video in (self.run / "videos").glob("*.mp4"):
            replace_by_link(video, self.secret)
        replace_by_link(self.session / "llm", self.outside)
        replace_by_link(self.session / "iter_2", self.outside)
        replace_by_link(self.selfplay / "status.json", Path("/dev/zero"))
        replace_by_pipe(self.selfplay / "interface.json")
        replace_by_link(self.selfplay / "games", self.outside)
        replace_by_link(self.selfplay / "metrics.jsonl", self.secret)

    def is_harmless(self) -> bool:
        """Whether nothing of it ran, and nothing of the user's was touched."""
        assert not self.canary.exists(), self.canary.read_text()
        assert self.secret.read_text() == SECRET
        assert sorted(p.name for p in self.outside.iterdir()) == ["0001_secret.json", "secret"]
        return True


def replace_by_link(path: Path, target: Path) -> None:
    remove(path)
    path.symlink_to(target)


def replace_by_pipe(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def make_foreign_folder(trained: Path, place: Path) -> ForeignFolder:
    """The folder of a trained run, made hostile without any link: all of it can be opened."""
    folder = ForeignFolder(place / "shared", place / "outside")
    folder.outside.mkdir()
    folder.secret.write_text(SECRET)
    (folder.outside / "0001_secret.json").write_text(json.dumps({"call": SECRET}))
    shutil.copytree(trained, folder.run)
    spec = json.loads((folder.run / "reward_spec.json").read_text())
    spec |= {"description": ESCAPE + MARKUP, "latex": r"\href{javascript:x()}{x} <script>"}
    (folder.run / "reward_spec.json").write_text(json.dumps(spec))
    (folder.session / "metadata.json").write_text(json.dumps({"name": ESCAPE}))
    folder.selfplay.mkdir()
    (folder.selfplay / "config.json").write_text(
        json.dumps(
            {
                "name": ESCAPE,
                "import_path": [str(folder.selfplay)],
                "buffer": {
                    "final": [{"type": "subprocess:Popen", "args": ["touch", str(folder.canary)]}]
                },
                "plugins": ["own_part"],
            }
        )
    )
    (folder.selfplay / "metrics.jsonl").write_text('{"step": 1, "learner/loss": 1.0}\n')
    (folder.selfplay / "checkpoints" / "iteration-1").mkdir(parents=True)
    (folder.selfplay / "checkpoints" / "iteration-1" / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": str(folder.selfplay)})
    )
    (folder.path / "suite.csv").write_text(
        f"env_id,instruction\nHopper-v5,hop {ESCAPE}\nHopper-v5,{MARKUP}\nthere:Evil-v0,hop\n"
    )
    for each in (folder.path, folder.session, folder.run, folder.selfplay):
        folder.add_modules(each)
    return folder
