"""`p2p run` and `p2p resume` as a person uses them, and all that can be wrong with a call."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Cli, Outcome, start
from model_servers import CANARY, Failure, ModelServer
from played_by_builtin import played_by_builtin
from processes import descendants, is_there, wait_until

from p2p.contracts import Intent, SessionResult
from p2p.records.iteration_record import SessionRecord
from p2p.session.steering import all_feedback
from p2p.settings import Settings, get_settings
from session_folder import SessionFolder

POLE = ("--env", "InvertedPendulum-v5")
SMALL = (
    "--no-videos", "--set", "num_envs=4", "--set", "num_steps=32", "--set", "num_minibatches=4",
    "--set", "update_epochs=2", "--set", "max_episode_steps=50", "--set", "num_evals=2",
    "--set", "num_eval_rounds=1", "--set", "checkpoint_interval=256",
)  # fmt: skip
QUICK = (*SMALL, "--steps", "1024", "--threshold", "1")
"""Too short to pass."""
PLAYED = "balance the pole"


def variables() -> list[str]:
    """Every environment variable that the settings read."""
    names: list[str] = []
    for name, field in Settings.model_fields.items():
        alias = field.validation_alias
        names += getattr(alias, "choices", [alias if isinstance(alias, str) else name])
    return [name.upper() for name in names]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in variables():
        monkeypatch.delenv(name, raising=False)
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("P2P_CORE_LOCKS", str(runtime))  # cores of its own
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()


def last(folder: Path) -> SessionRecord:
    """The one session there."""
    (path,) = (path for path in folder.iterdir() if path.is_dir())
    return SessionRecord(path)


def result_of(record: SessionRecord) -> SessionResult:
    found = record.result.read()
    assert found is not None
    return found


def intent_of(record: SessionRecord) -> Intent:
    found = record.intent.read()
    assert found is not None
    return found


# --- what cannot be done is told in a line --------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ((), 2, "say what the agent should do"),
        (("  ", *POLE), 2, "the prompt is empty"),
        (("x" * 5000, *POLE), 2, "PROMPT: String should have at most 4000 characters"),
        (("balance", "--env", "InvertedPendulumm-v5"), 2, "did you mean InvertedPendulum-v5"),
        (("balance", *POLE, "--model", "nosuch:thing"), 2, "providers: anthropic, openai, google"),
        (("balance", *POLE, "--vlm", "nosuch:thing"), 2, "--vlm: unknown model 'nosuch:thing'"),
        (("balance", *POLE, "--vlm", "builtin"), 2, "has no vision"),
        (("balance", *POLE, "--model", "gpt-6.1-sol"), 6, "set OPENAI_API_KEY"),
        (("balance", *POLE, "--vlm", "google:gemini-3.8-flash"), 6, "set GEMINI_API_KEY"),
        (("balance", "--model", "claude-sonnet-5-5"), 6, "set ANTHROPIC_API_KEY"),
        (("balance", *POLE, "--seeds", "one"), 2, "--seeds: 'one': write a number"),
        (("balance", *POLE, "--seeds", "0"), 2, "0 is not 1 to 1000"),
        (("balance", *POLE, "--seeds", "1,2,1"), 2, "seeds: 1, 2, 1: each only once"),
        (("balance", *POLE, "--configs", "9"), 2, "--configs: 9 is not 1 to 5"),
        (("balance", *POLE, "--configs", "0"), 2, "--configs: 0 is not 1 to 5"),
        (("balance", *POLE, "--threshold", "7"), 2, "--threshold: Input should be less than"),
        (("balance", *POLE, "--threshold", "nan"), 2, "--threshold: Input should be a finite"),
        (("balance", *POLE, "--budget-usd", "-1"), 2, "--budget-usd: Input should be greater"),
        (("balance", *POLE, "--max-minutes", "0"), 2, "--max-minutes: Input should be greater"),
        (("balance", *POLE, "--max-minutes", "inf"), 2, "--max-minutes: Input should be a finite"),
        (("balance", *POLE, "--iterations", "0"), 2, "--iterations: Input should be greater"),
        (("balance", *POLE, "--timesteps", "-5"), 2, "--steps: Input should be greater"),
        (("balance", *POLE, "--set", "lerning_rate=1"), 2, "did you mean learning_rate"),
        (("balance", *POLE, "--set", "seed=3"), 2, "choose them with --seeds"),
        (("balance", *POLE, "--set", "env_id=Nothing-v1", "--set", "gamma=7"), 2, "gamma: Input"),
        (("balance", *POLE, "--set", "total_timesteps=-3"), 2, "--steps: Input should be"),
        (("balance", *POLE, "--set", "gamma"), 2, "write it as FIELD=VALUE"),
        (("balance", *POLE, "--set", "gamma=7"), 2, "gamma: Input should be less than"),
        (("balance", *POLE, "--criteria", "nowhere.toml"), 2, "nowhere.toml does not exist"),
        (("balance", *POLE, "--criteria", "bad.toml"), 2, "bad.toml: no criteria"),
        (("balance", *POLE, "--runs-dir", "bad.toml/runs"), 1, "cannot be written"),
        (("balance", *POLE, "--runs-dir", "/proc/runs"), 1, "/proc/runs cannot be written"),
        (("balance", "--threshold", "7"), 2, "--threshold: Input should be less than"),
    ],
)  # fmt: skip
def test_what_cannot_be_begun_is_told_in_a_line_and_leaves_nothing(
    p2p: Cli, tmp_path: Path, arguments: tuple[str, ...], status: int, told: str
) -> None:
    (tmp_path / "bad.toml").write_text("x = 1")
    outcome = p2p("run", *arguments, "--json")
    assert outcome.status == status, outcome.err
    assert told in outcome.error
    assert told in outcome.json["error"]
    assert not (tmp_path / "runs").exists()


def test_interactive_needs_someone_to_ask(
    p2p: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "no_terminal").open("w+") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        outcome = p2p("run", "balance", *POLE, "--interactive")
    assert outcome.status == 2
    assert "not a terminal; use --criteria FILE" in outcome.error


def test_a_prompt_from_standard_input_can_be_empty_too(
    p2p: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "prompt.txt").open("w+") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert "the prompt is empty" in p2p("run", "-", *POLE).error


def ended(outcome: Outcome, folder: Path, status: str, words: str) -> tuple[SessionRecord, str]:
    """A session that ended early with this status: its record, and the one line that says why."""
    assert "Traceback" not in outcome.err
    record = last(folder / "runs")
    written = record.read_status()
    assert written is not None
    assert written.status == status
    assert f"resume with: p2p resume {record.session_id}" in outcome.err
    (line,) = [line for line in outcome.out.splitlines() if line.startswith(words)]
    return record, line


def test_a_sentence_that_the_builtin_author_does_not_understand_names_the_providers(
    p2p: Cli, tmp_path: Path
) -> None:
    outcome = p2p("run", "frobnicate the quux", *POLE)
    assert outcome.status == 1
    assert "Traceback" not in outcome.err
    assert "frobnicate, quux" in outcome.error
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "Ollama", "vLLM"):
        assert name in outcome.error
    assert list((tmp_path / "runs").iterdir()) == []


def test_without_a_key_a_prompt_that_fits_no_environment_leaves_nothing(p2p: Cli) -> None:
    outcome = p2p("run", "frobnicate the quux")
    assert outcome.status == 1
    assert outcome.error.startswith("error: no environment fits: ")
    assert "ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY" in outcome.error
    assert "reads English only; with a model any language works" in outcome.error
    assert "for example: “run forward fast”" in outcome.error
    assert p2p("sessions", "--json").json == []


def test_where_a_model_finds_no_environment_the_session_can_be_looked_at(
    p2p: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelServer(played_by_builtin) as server:
        for name, value in server.environment("anthropic").items():
            monkeypatch.setenv(name, value)
        get_settings.cache_clear()
        outcome = p2p("run", "frobnicate the quux")
        assert outcome.status == 1
        assert "resume with" not in outcome.err  # it would be refused again
        record = last(tmp_path / "runs")
        (line,) = [line for line in outcome.out.splitlines() if line.startswith("error")]
        assert line.startswith("error no environment fits: ")
        (row,) = p2p("sessions", "--json").json
        assert (row["status"], row["env_id"]) == ("error", "")
        assert row["prompt"] == "frobnicate the quux"
        assert p2p("sessions").status == 0
        shown = p2p("show", "last").out
        assert shown.startswith(f"frobnicate the quux\n{line}\n")
        assert p2p("analyze", "last").status == 0
        again = p2p("resume", "last", "--json")
        assert again.status == 1
        assert again.json["message"] in line
    assert [path.name for path in record.llm_dir.glob("*environment*")] == [
        "0001_environment_chooser.json"
    ]


def test_a_key_that_is_refused_is_said_once_with_or_without_an_environment(
    p2p: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelServer(lambda _: Failure(401, f"invalid key {CANARY}")) as server:
        for name, value in server.environment("anthropic").items():
            monkeypatch.setenv(name, value)
        get_settings.cache_clear()
        before = p2p("run", "balance")
        assert before.status == 6
        _, line = ended(before, tmp_path, "auth_error", "key refused")
        assert line.endswith("the key is refused: invalid key [secret]")
        shutil.rmtree(tmp_path / "runs")
        outcome = p2p("run", "balance", *POLE, "--model", server.model("anthropic"))
        assert outcome.status == 6
        _, line = ended(outcome, tmp_path, "auth_error", "key refused")
        assert line == (
            f"key refused {server.model('anthropic')}: the key is refused: invalid key [secret]"
        )
        assert len(server.requests) == 2
        in_json = p2p("resume", "last", "--json")
        assert in_json.status == 6
        assert in_json.json["status"] == "auth_error"
        assert "the key is refused" in in_json.json["message"]
    assert CANARY not in before.err + outcome.out + outcome.err + in_json.out + in_json.err
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []


def test_a_budget_that_is_too_small_ends_before_it_is_overdrawn(
    p2p: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelServer(played_by_builtin) as server:
        for name, value in server.environment("anthropic").items():
            monkeypatch.setenv(name, value)
        # An answer costs 0.05 dollars, and may cost more than a dollar.
        dear = {server.model("anthropic"): {"input": 1.0, "output": 1000.0}}
        (tmp_path / "prices.json").write_text(json.dumps(dear))
        monkeypatch.setenv("P2P_PRICES", str(tmp_path / "prices.json"))
        get_settings.cache_clear()
        model = ("--model", server.model("anthropic"))
        outcome = p2p("run", "balance", *POLE, *QUICK, *model, "--budget-usd", "1.1")
        assert outcome.status == 8, outcome.err
        record, line = ended(outcome, tmp_path, "budget_exhausted", "out of budget")
        assert "of the budget of $1.1" in line
        paid = len(server.requests)
        assert 0 < result_of(record).cost_usd <= 1.1
        assert result_of(record).model_calls == paid
        again = p2p("resume", "last")
        assert again.status == 8  # nothing has changed: nothing is paid for
        assert len(server.requests) == paid
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name)
    get_settings.cache_clear()
    assert p2p("resume", "last", "--model", "nosuch:x").status == 2
    assert p2p("resume", "last", "--budget-usd", "-3").status == 2
    without_key = p2p("resume", "last", "--budget-usd", "9", "--model", server.model("anthropic"))
    assert without_key.status == 6
    assert result_of(record).cost_usd > 0


# --- a disk that is full, or cannot be written ----------------------------------------------------


def on_a_disk_of(size: str, folder: Path, *arguments: str) -> Outcome:
    """`p2p` where the runs folder is a disk of this size, in a mount namespace of its own."""
    runs = folder / "runs"
    runs.mkdir()
    mount = f'mount -t tmpfs -o size={size} tmpfs "$1" && shift && exec "$@"'
    probe = ["unshare", "-rm", "sh", "-c", mount, "sh", str(runs)]
    if subprocess.run([*probe, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    # What was written goes with the namespace, so the session's status is shown before it ends.
    show = 'code=$?; cat "$RUNS"/*/status.json >&2; exit $code'
    done = subprocess.run(
        [*probe, "sh", "-c", f'"$@"; {show}', "sh", sys.executable, "-m", "p2p.cli", *arguments],
        cwd=folder, env={**os.environ, "RUNS": str(runs)}, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("size", ["4k", "200k"])
def test_a_full_disk_is_told_in_a_line(tmp_path: Path, size: str) -> None:
    """At once, or in the middle of training."""
    outcome = on_a_disk_of(size, tmp_path, "run", "balance", *POLE, *QUICK)
    assert outcome.status == 1, outcome.err
    assert "Traceback" not in outcome.err + outcome.out
    lines = (outcome.err + outcome.out).splitlines()
    told = [line for line in lines if line.startswith("error") and "space" in line.lower()]
    told += [line for line in lines if line.startswith("error") and "disk is full" in line]
    assert len(told) == 1, outcome.err + outcome.out


IN_TURN = """
import contextlib, io, json, sys
from p2p.cli import main
from p2p.session.steering import all_feedback

found = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as end:
            status = end.code or 0
    found.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""
"""Calls `p2p` with each list of arguments, and prints what came of them."""


def test_a_folder_that_cannot_be_written_is_told_in_a_line_and_can_still_be_read(
    tmp_path: Path,
) -> None:
    SessionFolder.create(tmp_path / "runs").iterate(1, 0.4)
    mount = 'mount --bind runs runs && mount -o remount,bind,ro runs && exec "$@"'
    in_it = ["unshare", "-rm", "sh", "-c", mount, "sh"]
    if subprocess.run([*in_it, "true"], cwd=tmp_path, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    writing = (
        ["run", "balance", *POLE], ["run", "balance"], ["resume", "last"], ["stop", "last"],
        ["steer", "last", "--remark", "faster"], ["analyze", "last"],
        ["train", "invertedpendulum_balance"],
    )  # fmt: skip
    reading = (["sessions"], ["show", "last"])
    done = subprocess.run(
        [*in_it, sys.executable, "-c", IN_TURN, json.dumps([*writing, *reading])],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcomes = [Outcome(*found) for found in json.loads(done.stdout)]
    for arguments, outcome in zip(writing, outcomes, strict=False):
        assert outcome.status == 1, (arguments, outcome)
        assert str(tmp_path / "runs") in outcome.error, arguments
        assert "Read-only file system" in outcome.error, arguments
    for arguments, outcome in zip(reading, outcomes[len(writing) :], strict=True):
        assert (outcome.status, outcome.err) == (0, ""), arguments
        assert "run forward" in outcome.out, arguments


# --- from a sentence to a policy ------------------------------------------------------------------


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    """A session of one iteration, with the environment left to choose."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "runtime").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in variables():
            patch.delenv(name, raising=False)
        process = start(
            "run", PLAYED, *QUICK, "--iterations", "1", "--json", cwd=folder,
            P2P_CORE_LOCKS=str(folder / "runtime"),
        )  # fmt: skip
        out, err = process.communicate(timeout=240)
    return Outcome(process.returncode, out, err), folder


@pytest.fixture
def a_run(first_run: tuple[Outcome, Path], tmp_path: Path, p2p: Cli) -> SessionRecord:
    """A copy of it, to go on with, in the folder where `p2p` is called."""
    shutil.copytree(first_run[1] / "runs", tmp_path / "runs")
    return last(tmp_path / "runs")


@pytest.mark.process
def test_a_run_says_its_environment_and_prints_one_document(
    first_run: tuple[Outcome, Path],
) -> None:
    outcome, folder = first_run
    assert outcome.status == 3, outcome.err
    assert "environment: InvertedPendulum-v5 (" in outcome.err
    found = outcome.json
    assert found["status"] == "max_iterations"
    assert Path(found["session"]) == last(folder / "runs").path
    assert Path(found["policy"]).is_file()
    assert 0 < found["score"] < 1
    assert "Traceback" not in outcome.err


@pytest.mark.process
def test_a_session_is_shown_listed_and_looked_back_at(p2p: Cli, a_run: SessionRecord) -> None:
    shown = p2p("show", "last")
    assert shown.status == 0
    assert "not passed (no pass within 1 iteration)" in shown.out
    assert f"more    p2p resume {a_run.session_id} --iterations 2\n" in shown.out
    assert all(criterion.demand in shown.out for criterion in intent_of(a_run).criteria)
    assert "iteration 1: " in shown.out
    (row,) = p2p("sessions", "--json").json
    assert (row["session_id"], row["status"]) == (a_run.session_id, "max_iterations")
    assert row["prompt"] == PLAYED
    looked = p2p("analyze", "last")
    assert looked.status == 0, looked.err
    assert looked.out.strip()
    again = p2p("analyze", "last", "--json")
    assert again.json["summary"] in looked.out
    assert result_of(a_run).status == "max_iterations"


@pytest.mark.process
def test_a_word_to_a_session_is_taken_up_when_it_goes_on(p2p: Cli, a_run: SessionRecord) -> None:
    told = p2p("steer", "last", "--remark", "keep the cart in the middle", "--set", "gamma=0.97")
    assert told.status == 0, told.err
    assert f"p2p resume {a_run.session_id}" in told.out
    outcome = p2p("resume", "last", "--iterations", "2", "--json")
    assert outcome.status == 3, outcome.err
    assert outcome.json["iterations"] == 2
    assert len(all_feedback(a_run.steering_dir)) == 1
    revision = a_run.iteration(1).revision.read()
    assert revision is not None
    assert "middle" in revision.remarks_taken_up
    config = a_run.iteration(2).runs()[0].config.read()
    assert config is not None
    assert config.gamma == 0.97
    # Its end stands: to go on without anything left to do changes nothing.
    assert p2p("resume", "last").status == 3


@pytest.mark.process
def test_criteria_of_a_file_count_and_none_are_asked_for(
    p2p: Cli, a_run: SessionRecord, tmp_path: Path
) -> None:
    text = p2p("show", "last", "--criteria").out
    (tmp_path / "mine.toml").write_text(text.replace("threshold = 0.95", "threshold = 0.5"))
    shutil.rmtree(tmp_path / "runs")
    process = start("run", PLAYED, *POLE, *SMALL, "--criteria", "mine.toml", cwd=tmp_path)
    try:
        wait_until(lambda: list((tmp_path / "runs").glob("*/intent.json")) or process.poll())
        intent = intent_of(last(tmp_path / "runs"))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert intent.author == "user"
    assert 0.5 in [criterion.threshold for criterion in intent.criteria]
    assert not list((tmp_path / "runs").glob("*/llm/*intent_elicitor.json"))


# --- stopping -------------------------------------------------------------------------------------


@pytest.mark.process
def test_control_c_during_training_cancels_and_resume_finishes(tmp_path: Path) -> None:
    longer = ("--timesteps", "30000", "--iterations", "1")
    process = start("run", PLAYED, *POLE, *SMALL, *longer, cwd=tmp_path)
    scalars = "runs/*/iter_1/base_seed_1/metrics/scalars.jsonl"
    wait_until(lambda: list(tmp_path.glob(scalars)) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    family = descendants(process.pid)
    assert len(family) >= 2
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    wait_until(lambda: not any(map(is_there, family)), 10)
    record = last(tmp_path / "runs")
    assert f"resume with: p2p resume {record.session_id}" in err
    assert "\ncancelled by user" in f"\n{out}"
    assert result_of(record).status == "cancelled"
    done = start("resume", "last", "--json", cwd=tmp_path)
    out, err = done.communicate(timeout=240)
    assert done.returncode == 0, err
    found = json.loads(out)
    assert found["status"] == "passed"
    assert found["confirmed_score"] >= 0.8
    assert "revising" not in err
    assert p2p_again(tmp_path) == 0  # nothing is left to do


def p2p_again(folder: Path) -> int:
    process = start("resume", "last", cwd=folder)
    process.communicate(timeout=60)
    return process.returncode


class Terminal:
    """`p2p` with a pseudo-terminal as its controlling terminal, as in a window."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        launch = (
            "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            "os.execv(sys.executable, [sys.executable, '-m', 'p2p.cli', *sys.argv[1:]])"
        )
        self.screen, theirs = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", launch, *arguments],
            cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
        )  # fmt: skip
        os.close(theirs)
        self.text = ""

    def read(self) -> bool:
        """What came since; False when the other side is gone."""
        try:
            more = os.read(self.screen, 65536)
        except OSError:
            return False
        self.text += more.decode(errors="replace")
        return bool(more)

    def until(self, wanted: str) -> None:
        """Read on until this has come; what was before it is done with."""
        while wanted not in self.text:
            assert self.read(), f"{wanted!r} never came: {self.text}"
        self.text = self.text.partition(wanted)[2]

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def end(self) -> str:
        """Everything that came until it ended."""
        while self.read():
            pass
        self.process.wait(60)
        os.close(self.screen)
        return self.text


@pytest.mark.process
def test_criteria_are_looked_over_in_a_terminal_and_control_c_ends_it(tmp_path: Path) -> None:
    long = ("--timesteps", "50000000", "--interactive")
    terminal = Terminal(tmp_path, ["run", PLAYED, *POLE, *SMALL, *long])
    try:
        terminal.until("criteria: ")
        terminal.type("drop 99\n")
        terminal.until("99: there are 1 to")
        terminal.until("criteria: ")
        terminal.type("drop 3\n")
        terminal.until("criteria: ")
        terminal.type("threshold 2 0.625\n")
        terminal.until("0.625")
        terminal.until("criteria: ")
        record = last(tmp_path / "runs")
        assert record.intent.read() is None  # nothing counts before it is taken
        terminal.type("\n")
        terminal.until("training")
        scalars = record.path / "iter_1/base_seed_1/metrics/scalars.jsonl"
        wait_until(lambda: scalars.exists() or terminal.process.poll() is not None)
        family = descendants(terminal.process.pid)
        terminal.type("\x03")
        told = terminal.end()
    finally:
        if terminal.process.poll() is None:
            terminal.process.kill()
    assert terminal.process.returncode == 130, told
    assert "resume with: p2p resume" in told
    assert "Traceback" not in told
    wait_until(lambda: not any(map(is_there, family)), 10)
    criteria = intent_of(record).criteria
    proposed: dict[str, Any] = json.loads(
        next(record.llm_dir.glob("*_intent_elicitor.json")).read_text()
    )
    assert f'"{criteria[1].id}' in json.dumps(proposed)
    assert criteria[1].threshold == 0.625
    assert result_of(record).status == "cancelled"


@pytest.mark.process
def test_to_quit_while_looking_over_the_criteria_trains_nothing(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["run", PLAYED, *POLE, *SMALL, "--interactive"])
    terminal.until("criteria: ")
    terminal.type("quit\n")
    told = terminal.end()
    assert terminal.process.returncode == 130, told
    assert "Traceback" not in told
    record = last(tmp_path / "runs")
    assert record.intent.read() is None
    assert result_of(record).status == "cancelled"


@pytest.mark.slow
def test_words_that_nothing_measures_end_unverified(p2p: Cli, tmp_path: Path) -> None:
    ended = p2p("run", "balance the pole politely", *POLE, "--model", "builtin", "--no-videos")
    assert ended.status == 11, ended.err
    result = last(tmp_path / "runs").result.load()
    assert result is not None
    assert (result.status, result.unchecked_words) == ("unverified", ("politely",))
    assert "not checked: politely" in ended.out
    # The user watches it, and accepts it.
    assert p2p("steer", "last", "--score", "1").status == 0
    accepted = p2p("resume", "last")
    assert accepted.status == 0, accepted.err
    assert "passed with 1.00 by your score" in " ".join(accepted.out.split())
