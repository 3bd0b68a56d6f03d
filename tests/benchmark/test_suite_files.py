"""Suites: what may stand in one, and that every mistake is named."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from p2p.benchmark.suite import (
    SHIPPED,
    Case,
    SuiteError,
    filter_cases,
    load_suite,
    parse_suite,
    shipped_suites,
)
from p2p.benchmark.truth import TRUTHS
from p2p.settings import get_settings
from p2p.training.env_spec import gymnasium_env_ids

ROVER = Path(__file__).parents[2] / "examples" / "robots" / "rover.xml"
HEAD = "env_id,instruction,category,difficulty,truth,threshold"


@pytest.fixture(scope="module")
def suite() -> tuple[Case, ...]:
    return load_suite(SHIPPED)


def test_shipped_suite_covers_all_environments(
    suite: tuple[Case, ...],
) -> None:
    assert SHIPPED in shipped_suites()
    assert len(suite) >= 40
    assert {case.env_id for case in suite} == set(gymnasium_env_ids())
    assert min(Counter(case.difficulty for case in suite).values()) >= 10
    assert len({case.difficulty for case in suite}) == 3
    assert all(case.truth in TRUTHS and case.threshold for case in suite)
    assert [case.number for case in suite] == list(range(len(suite)))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("Hoper-v5,hop,x,easy,,", "column env_id: .*Hopper-v5"),
        (",hop,x,easy,,", "column env_id: it is empty"),
        ("Hopper-v5,,x,easy,,", "column instruction: String should have at least 1"),
        ("Hopper-v5,hop,,easy,,", "column category: String should have at least 1"),
        (
            "Hopper-v5,hop,x,tricky,,",
            "column difficulty: Input should be 'easy', 'medium' or 'hard'",
        ),
        ("Hopper-v5,hop,x,,,", "column difficulty: Input should be"),
        ("Hopper-v5,hop,x,easy,foward_speed,1", "column truth: .*did you mean forward_speed"),
        ("Hopper-v5,hop,x,easy,reach_gap,1", "column truth: reach_gap needs the body fingertip"),
        ("Hopper-v5,hop,x,easy,forward_speed,", "column threshold: it goes with a truth"),
        ("Hopper-v5,hop,x,easy,,1", "column threshold: it goes with a truth"),
        (
            "Hopper-v5,hop,x,easy,forward_speed,fast",
            "column threshold: Input should be a valid number",
        ),
        ("Hopper-v5,hop,x,easy,forward_speed,nan", "column threshold: Input should be a finite"),
        (
            "Hopper-v5,hop,x,easy,forward_speed,-1",
            "column threshold: Input should be greater than 0",
        ),
        ("Hopper-v5,hop, and stop,x,easy,,", "7 cells for 6 columns"),
        ("Hopper-v5,stand,x,hard,,", "column instruction: the same prompt as in line 2"),
    ],
)
def test_bad_row_is_named_with_line_and_column(row: str, says: str) -> None:
    text = f"{HEAD}\nHopper-v5,stand,posture,easy,,\n{row}\n"
    with pytest.raises(SuiteError, match=rf"^my\.csv, line 3[,:] {says}"):
        parse_suite(text, "my.csv")


def test_all_mistakes_are_said_at_once() -> None:
    text = f"{HEAD}\nHopper-v5,,x,tricky,,\nNope-v1,hop,x,easy,,\n"
    with pytest.raises(SuiteError) as caught:
        parse_suite(text, "my.csv")
    lines = str(caught.value).splitlines()
    assert "instruction: " in lines[0]
    assert "difficulty: " in lines[0]
    assert [line.split(",")[1] for line in lines] == [" line 2", " line 3"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: the column env_id is missing"),
        ("env_id,instruction,category\n", "the column difficulty is missing"),
        (f"{HEAD},trut\n", "there is no column 'trut'; did you mean truth"),
        (f"{HEAD},truth\n", "the column truth is there twice"),
        (f"{HEAD}\n\n", "has no prompt"),
        (f'{HEAD}\nHopper-v5,"hop', "line 2"),
    ],
)
def test_a_file_that_is_no_suite_says_what_is_missing(text: str, says: str) -> None:
    with pytest.raises(SuiteError, match=says):
        parse_suite(text, "my.csv")


def test_suite_may_omit_columns_and_quote_commas(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(
        "\ufeffdifficulty,env_id,category,instruction\r\n"
        'hard,Hopper-v5,sequence,"hop, then stop"\r\n\r\n'.encode()
    )
    (case,) = load_suite(str(path))
    assert (case.instruction, case.truth, case.difficulty) == ("hop, then stop", None, "hard")


def test_suite_names_model_files_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P2P_MODELS_DIR", str(tmp_path / "models"))
    get_settings.cache_clear()
    (tmp_path / "rover.xml").write_bytes(ROVER.read_bytes())
    text = f"{HEAD}\nrover.xml,drive forward,locomotion,easy,,\n"
    (tmp_path / "mine.csv").write_text(text)
    (case,) = load_suite(str(tmp_path / "mine.csv"))
    assert case.env_id.startswith("robots/rover-")
    with pytest.raises(SuiteError, match=r"line 2, column env_id: rover\.xml is a path"):
        parse_suite(text, "sent.csv")
    (tmp_path / "mine.csv").write_text(text.replace("rover.xml", "none.xml"))
    with pytest.raises(SuiteError, match=r"line 2, column env_id: .*there is no such file"):
        load_suite(str(tmp_path / "mine.csv"))


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"nowhere\.csv is neither a file nor .*mujoco_prompts"):
        load_suite(str(tmp_path / "nowhere.csv"))
    (tmp_path / "picture.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SuiteError, match="UTF-8"):
        load_suite(str(tmp_path / "picture.csv"))


def test_filter_cases_keeps_numbers_and_names_unknown(suite: tuple[Case, ...]) -> None:
    kept = filter_cases(suite, envs=["Ant-v5"], difficulties=["hard", "easy"])
    assert kept == tuple(c for c in suite if c.env_id == "Ant-v5" and c.difficulty != "medium")
    with pytest.raises(ValueError, match=r"env_id 'Ant-v4'; did you mean Ant-v5"):
        filter_cases(suite, envs=["Ant-v4"])
    with pytest.raises(ValueError, match="together leave no prompt"):
        filter_cases(suite, envs=["Ant-v5"], categories=["balance"])


def test_the_documented_truths_are_those_of_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()
    rows = re.findall(r"^\| (`.*`) \| ([≥≤] .*) \| (.*) \|$", text, re.MULTILINE)
    documented = {name: rest for names, *rest in rows for name in re.findall(r"`([^`]+)`", names)}
    assert documented == {
        name: [f"{'≥' if truth.better == 'at_least' else '≤'} {truth.unit}", truth.says]
        for name, truth in TRUTHS.items()
    }
