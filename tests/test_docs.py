"""What the documents say is so: their code runs, their links, commands and files exist."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from p2p.agents.intent_elicitor import parse_criteria
from p2p.cli import app
from p2p.config import EnvOptions, LoopConfig, TrainConfig
from p2p.contracts import EvalResult
from p2p.executor.__main__ import parser
from p2p.inference.providers import PROVIDERS
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.statuses import EXIT_CODES
from p2p.training.env_spec import get_env_spec, gymnasium_env_ids
from p2p.training.reward_runner import decide_batched
from p2p.training.vec_env import is_fast, make_batched_env
from shared_folders import Shared

ROOT = Path(__file__).parents[1]
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md"))
}
SESSIONS = DOCUMENTS["docs/guide.md"]
TRAINING = DOCUMENTS["docs/training.md"]
ARCHITECTURE = DOCUMENTS["docs/architecture.md"]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Block:
    document: str
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def is_reward(self) -> bool:
        return "def reward_fn" in self.code[:80] or "(RewardFunction):" in self.code


def blocks() -> list[Block]:
    found = []
    for document, text in DOCUMENTS.items():
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(document, line, match[1], match[2]))
    return found


PYTHON = [block for block in blocks() if block.language == "python"]
REWARDS = [block for block in PYTHON if block.is_reward]
PROGRAMS = [block for block in PYTHON if not block.is_reward]


def section(text: str, heading: str) -> str:
    """A section, up to the next heading of the same level."""
    level = heading.split(maxsplit=1)[0]
    assert f"\n{heading}\n" in text, heading
    return re.split(rf"^{level} ", text.partition(f"\n{heading}\n")[2], flags=re.MULTILINE)[0]


def table(text: str) -> list[list[str]]:
    """The cells of every row of every table, without headings."""
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return [
        row
        for row, following in zip(rows, [*rows[1:], [""]], strict=True)
        if not row[0].startswith("---") and not following[0].startswith("---")
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, trained_run: IterationRecord) -> Path:
    """A folder with the run that the examples name: runs/session_x/iter_1."""
    folder = tmp_path_factory.mktemp("documents")
    shutil.copytree(trained_run.path, folder / "runs" / "session_x" / "iter_1")
    return folder


# --- code ---------------------------------------------------------------------------------


@pytest.mark.parametrize("block", REWARDS, ids=str)
def test_a_documented_reward_is_called_once_per_batch(block: Block) -> None:
    env = make_batched_env(EnvOptions("HalfCheetah-v5", max_episode_steps=20), 4)
    assert decide_batched(block.code, env) == (True, "")
    env.close()


RUN_EACH = """
import json, sys
for name, code in json.load(sys.stdin):
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
"""


@pytest.fixture(scope="module")
def programs(place: Path) -> subprocess.CompletedProcess[str]:
    """The documented programs, run one after the other in one process beside the run."""
    return subprocess.run(
        [sys.executable, "-c", RUN_EACH], input=json.dumps([(str(b), b.code) for b in PROGRAMS]),
        cwd=place, capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "MUJOCO_GL": "off"},
    )  # fmt: skip


def test_documented_programs_run(programs: subprocess.CompletedProcess[str]) -> None:
    assert programs.returncode == 0, programs.stderr


# --- commands -----------------------------------------------------------------------------


def command_lines() -> list[tuple[str, str]]:
    """(document, words after `p2p `), from code blocks and from text in backquotes."""
    found = []
    for document, text in DOCUMENTS.items():
        lines = re.findall(r"`([^`\n]+)`", text)
        for block in blocks():
            lines += block.code.splitlines() if block.document == document else []
        calls = (re.match(r"(?:\$ )?p2p (\w.*)", line) for line in lines)
        found += [(document, call[1]) for call in calls if call]
    return found


def test_commands_that_are_mentioned_exist_with_their_flags() -> None:
    for document, words in command_lines():
        name, *rest = words.partition(" -- ")[0].split()
        assert name in COMMANDS, f"{document}: p2p {name}"
        command = COMMANDS[name]
        if rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0)]
        options = command.get_params(typer.Context(command))
        known = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
        for flag in (word.split("=")[0] for word in rest if word.startswith("-")):
            assert flag in {*known, "--help"}, f"{document}: p2p {words}: {flag}"


def test_the_flags_of_the_executor_are_those_of_the_guide() -> None:
    flags = {flag for action in parser()._actions for flag in action.option_strings}
    text = section(TRAINING, "## The executor")
    assert set(re.findall(r"--[a-z][a-z-]+", text)) == flags - {"-h", "--help"}


def test_make_targets_that_are_mentioned_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document, text in DOCUMENTS.items():
        for target in re.findall(r"(?:^|`)make ([a-z0-9-]+)", text, re.MULTILINE):
            assert target in targets, f"{document}: make {target}"


# --- links and names ----------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def mentions(pattern: str) -> list[tuple[str, str]]:
    """(document, what the pattern's group found there), each once."""
    return sorted({(name, each) for name, text in DOCUMENTS.items()
                   for each in re.findall(pattern, text)})  # fmt: skip


def test_relative_links_lead_somewhere() -> None:
    for document, target in mentions(r"\]\(([^)]+)\)"):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / document).parent / path if path else ROOT / document
        assert file.exists(), f"{document}: {target}"
        if anchor:
            assert anchor in anchors(file.read_text()), f"{document}: {target}"


def test_modules_that_are_named_exist() -> None:
    for document, dotted in mentions(r"`((?:p2p|training)(?:\.\w+)+)"):
        name = dotted if dotted.startswith("p2p") else f"p2p.{dotted}"
        parts = name.split(".")
        module, end = parts[0], 1
        while end < len(parts) and importlib.util.find_spec(".".join(parts[: end + 1])):
            end += 1
            module = ".".join(parts[:end])
            if not hasattr(importlib.import_module(module), "__path__"):
                break
        found: Any = importlib.import_module(module)
        for attribute in parts[end:]:
            assert hasattr(found, attribute), f"{document}: {dotted}"
            found = getattr(found, attribute)


def test_the_seams_are_where_the_architecture_says() -> None:
    for _, _, place in table(section(ARCHITECTURE, "## Where to add things")):
        if match := re.match(r"`([A-Z]+)` in `(.+?)\.py`", place):
            dotted = match[2].replace("/", ".").removesuffix(".__init__")
            house = "" if dotted.startswith("unstable.") else "p2p."
            module = importlib.import_module(house + dotted)
            assert getattr(module, match[1])


def test_nothing_tells_of_a_machine() -> None:
    for document, text in DOCUMENTS.items():
        assert not re.search(r"/(?:tmp|home|root|work)/", text), document


# --- tables -------------------------------------------------------------------------------


def test_the_table_of_settings_is_that_of_the_code() -> None:
    documented = [(row[0].strip("`"), row[1].strip("`")) for row in
                  table(section(TRAINING, "## Configuration"))]  # fmt: skip
    defaults = json.loads(TrainConfig().to_json())
    assert documented == [(name, json.dumps(value)) for name, value in defaults.items()]


def test_the_table_of_environments_is_that_of_the_code() -> None:
    text = section(DOCUMENTS["docs/environments.md"], "## Those with the fast backend")
    documented = table(text)
    specs = [get_env_spec(env_id) for env_id in gymnasium_env_ids()]  # other tests add theirs
    assert documented == [
        [s.env_id, str(len(s.observation)), str(len(s.actions)), f"{s.dt:g} s",
         str(s.max_episode_steps)]
        for s in specs
    ]  # fmt: skip
    assert all(is_fast(spec.env_id) for spec in specs)


def test_the_metrics_of_a_run_are_those_of_the_guide(place: Path) -> None:
    training, _ = IterationRecord(place / "runs/session_x/iter_1").parse_scalars()
    written = {
        re.sub(r"^(reward_term_).*", r"\1<name>", name) for line in training for name in line
    }
    documented = {
        name
        for row in table(section(TRAINING, "## Metrics"))
        for name in re.findall(r"`([^`]+)`", row[0])
    }
    assert documented == (written | set(EvalResult.model_fields)) - {"type"}


# --- what a run leaves --------------------------------------------------------------------


def trees(text: str) -> list[tuple[str, ...]]:
    """The paths of the trees in a text."""
    found = []
    for tree in re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        parents: list[tuple[int, str]] = []
        for line in tree.splitlines():
            depth = len(line) - len(line.lstrip())
            name = line.split()[0].rstrip("/")
            parents = [parent for parent in parents if parent[0] < depth]
            parents.append((depth, name))
            found.append(tuple(part for _, part in parents))
    return found


@pytest.mark.usefixtures("programs")  # that of LocalTrainer makes the second layout
def test_a_run_has_the_files_that_are_documented(place: Path) -> None:
    layout = trees(DOCUMENTS["docs/run_files.md"])
    named = [parts for parts in layout if "videos" not in parts]  # not every machine draws
    assert len(named) > 15
    for parts in named:
        pattern = "/".join(re.sub(r"<[^>]+>", "*", part) for part in parts)
        pattern = pattern.replace("session_*_*_*", "session_*")  # those of the examples are short
        assert any(place.glob(pattern)), "/".join(parts)


def test_a_run_has_no_file_that_its_record_does_not_know(place: Path) -> None:
    assert IterationRecord(place / "runs" / "session_x" / "iter_1").validate() == []


# --- sessions -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session(shared: Shared) -> SessionRecord:
    """The session of examples/first_policy.py, with criteria of its own."""
    examples = ROOT / "examples"

    def run_example(folder: Path) -> None:
        done = subprocess.run(
            [sys.executable, examples / "first_policy.py", examples / "criteria" / "balance.toml"],
            cwd=folder, capture_output=True, text=True, timeout=600, check=False,
            env={
                **os.environ, "PYTHONPATH": str(ROOT / "src"), "MUJOCO_GL": "off",
                "RUNS_DIR": "runs",
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "\npolicy: runs/session_" in done.stdout

    (path,) = (shared.folder("first-policy", run_example) / "runs").iterdir()
    return SessionRecord(path)


@pytest.mark.process
def test_the_example_of_a_session_ends_with_a_judged_policy(session: SessionRecord) -> None:
    result, intent = session.result.read(), session.intent.read()
    assert result is not None
    assert result.status in {"passed", "max_iterations"}
    assert result.score is not None
    assert result.policy is not None
    assert (session.path / result.policy).is_file()
    text = (ROOT / "examples" / "criteria" / "balance.toml").read_text()
    assert intent is not None
    assert (intent.criteria, intent.author) == (parse_criteria(text), "user")
    assert session.validate() == []


@pytest.mark.process
def test_a_session_has_the_files_of_the_guide_and_no_others(session: SessionRecord) -> None:
    text = section(SESSIONS, "## Files of a session")
    named = [parts[1:] for parts in trees(text) if len(parts) > 1]
    assert len(named) > 15
    for parts in named:
        pattern = "/".join(re.sub(r"<[^>]+>", "*", part) for part in parts)
        assert any(session.path.glob(pattern)), "/".join(parts)
    others = text.rpartition("```")[2]
    names = {name for parts in named for name in parts} | set(re.findall(r"`([^`]+)`", others))
    iteration = session.iteration(1).path
    for path in (*session.path.iterdir(), *iteration.iterdir()):
        if path.suffix != ".lock" and "_seed_" not in path.name:
            assert re.sub(r"^iter_\d+$", "iter_<n>", path.name) in names, path


def test_the_table_of_statuses_is_that_of_the_code() -> None:
    rows = table(section(SESSIONS, "## Statuses and exit codes"))
    assert {row[0].strip("`"): int(row[1]) for row in rows} == EXIT_CODES


def test_the_table_of_providers_is_that_of_the_code() -> None:
    rows = table(section(SESSIONS, "## Models"))
    documented = [[cell.strip("`") for cell in row[:3]] for row in rows]
    assert documented == [
        [name, kind.key.upper(), kind.default_model] for name, kind in PROVIDERS.items()
    ]


def test_the_table_of_algorithms_is_that_of_the_code() -> None:
    from unstable import algorithms

    kinds = {name: getattr(algorithms, name) for name in algorithms.ALGORITHMS}
    of_code = {
        f"`{name}`": (
            "yes" if kind.modules is not algorithms.Reinforce.modules else "no",
            "`groups`" if kind.needs_groups else "`episodes`" if kind.needs_episodes else "any",
        )
        for name, kind in kinds.items()
    }
    rows = table(section((ROOT / "docs/selfplay.md").read_text(), "### Algorithms"))
    assert {row[0]: (row[3], row[4]) for row in rows} == of_code


def test_the_table_of_session_settings_is_that_of_the_code() -> None:
    rows = table(section(SESSIONS, "## Settings of a session"))
    documented = {row[0].strip("`"): row[1].strip("`") for row in rows}
    assert documented.pop("configs")
    defaults = json.loads(LoopConfig().model_dump_json(exclude={"train", "configs"}))
    assert documented == {name: json.dumps(value) for name, value in defaults.items()}


def test_the_speed_table_is_what_the_benchmark_wrote() -> None:
    script = ROOT / "benchmarks" / "speed_table.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in DOCUMENTS["docs/speed.md"]


def test_the_environments_page_lists_every_quantity() -> None:
    from p2p.training.specs.quantities import QUANTITIES

    page = (ROOT / "docs" / "environments.md").read_text()
    for name, quantity in QUANTITIES.items():
        assert re.search(rf"\| `{name}(\[[^`]*\])?` \| {quantity.unit or '-'} \| ", page), name
        assert quantity.meaning in page


def test_every_table_of_a_benchmark_is_linked_from_the_results() -> None:
    overview = DOCUMENTS["docs/results.md"]
    tables = sorted(path.name for path in (ROOT / "benchmarks" / "results").glob("*.md"))
    kept = [name for name in tables if not name.endswith("_quick.md")]
    assert [name for name in kept if f"](../benchmarks/results/{name})" not in overview] == []
