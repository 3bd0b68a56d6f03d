"""Judge code in the real sandbox: what it says is taken, what it does to harm is a reason."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from recorded_hopper import Recorded
from scripted_client import criterion

from p2p.agents.judge_code import run_check, run_judge
from p2p.contracts import JudgeOpinion

CRITERIA = (criterion("fast", weight=0.75), criterion("calm", "efficiency", weight=0.25))

GOOD = """
def judge_fn(trajectory, summary):
    speed = trajectory["x_velocity"].mean()
    effort = np.square(trajectory["action"]).sum(axis=-1).mean()
    return {
        "criteria": {
            "fast": {"score": np.clip(speed, 0, 1), "value": speed, "evidence": f"{speed:.1f} m/s"},
            "calm": np.float32(0.5),
        },
        "diagnosis": f"{summary['length']} steps of {len(trajectory)}",
        "failure_tags": ["too slow", "looks sad"],
    }
"""


def judge(recorded: Recorded, body: str, **options: Any) -> list[JudgeOpinion]:
    code = body if "def judge_fn" in body else f"def judge_fn(trajectory, summary):\n    {body}\n"
    return run_judge(code, recorded.files, recorded.summaries, CRITERIA, **options)


def test_scores_values_and_tags_arrive(recorded: Recorded) -> None:
    opinions = judge(recorded, GOOD)
    assert [opinion.available for opinion in opinions] == [True] * 3
    first, summary = opinions[0], recorded.summaries[0]
    fast, calm = first.criteria
    assert (fast.id, calm.id, calm.score, calm.value) == ("fast", "calm", 0.5, None)
    assert fast.value is not None
    assert fast.score == pytest.approx(min(1.0, max(0.0, fast.value)), abs=1e-6)
    assert first.score == pytest.approx(0.75 * (fast.score or 0) + 0.25 * 0.5)
    assert first.failure_tags == ("too_slow",)
    assert first.diagnosis.endswith("Also: looks_sad.")
    assert first.diagnosis.startswith(f"{summary['length']} steps of {summary['length']}")


def test_the_summary_is_filled(recorded: Recorded) -> None:
    body = (
        "import json\n    ok = summary['dt'] == 0.008 and summary['terminated'] is True "
        "and summary['env_id'] == 'Hopper-v5' and summary['max_episode_steps'] == 1000 "
        "and abs(summary['seconds'] - summary['length'] * 0.008) < 1e-9 "
        "and abs(summary['final']['x_velocity'] - trajectory[-1]['x_velocity']) < 1e-6\n"
        "    return {'criteria': {'fast': ok, 'calm': summary['seed'] >= 5}}"
    )
    assert [opinion.score for opinion in judge(recorded, body)] == [1.0, 1.0, 1.0]


def test_a_criterion_that_cannot_be_told_is_left_out_of_the_score(recorded: Recorded) -> None:
    opinion = judge(recorded, "return {'criteria': {'fast': None, 'calm': 0.25}}")[0]
    assert opinion.available
    assert opinion.score == 0.25


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return None", "must return a dict"),
        ("return {'intent_score': 1.0}", "no key 'criteria'"),
        ("return {'criteria': [1, 1]}", "must be a dict by criterion id"),
        ("return {'criteria': {'fast': 1}}", "lacks calm"),
        ("return {'criteria': {'fast': float('nan'), 'calm': 1}}", "not a finite number"),
        ("return {'criteria': {'fast': float('inf'), 'calm': 1}}", "not a finite number"),
        ("return {'criteria': {'fast': 10 ** 400, 'calm': 1}}", "not a number"),
        ("return {'criteria': {'fast': 7, 'calm': 1}}", "not within 0 and 1"),
        ("return {'criteria': {'fast': 'high', 'calm': 1}}", "a value of type str, not a number"),
        ("return {'criteria': {'fast': 1j, 'calm': 1}}", "not a number"),
        ("return {'criteria': {'fast': {'value': 1}, 'calm': 1}}", "has no 'score'"),
        ("return {'criteria': {'fast': None, 'calm': None}}", "nothing was judged"),
        ("return {'criteria': {'fast': 1, 'calm': 1}, 'failure_tags': 'fell'}", "list of strings"),
        ("return {'criteria': {'fast': 1, 'calm': 1}, 'diagnosis': 3}", "not a string"),
        ("return {'criteria': {i: 0 for i in range(10 ** 5)}}", "lacks fast, calm"),
        ("return {}['speed']", "line 2, `return {}['speed']`: KeyError: 'speed'"),
        ("return trajectory['speed']", "no column 'speed'; there are"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import os; os._exit(0)", "exited before its end"),
        ("trajectory['qpos'][:] = 0", "read-only"),
        ("return (", "line 2: SyntaxError"),
    ],
)
def test_a_reply_that_cannot_be_used_is_a_reason_not_a_zero(
    recorded: Recorded, body: str, reason: str
) -> None:
    for opinion in judge(recorded, body):
        assert not opinion.available
        assert opinion.score is None
        assert reason in opinion.reason


def test_without_the_function_it_says_so(recorded: Recorded) -> None:
    opinions = run_judge("x = 1\n", recorded.files, recorded.summaries, CRITERIA)
    assert "no function judge_fn" in opinions[0].reason


def test_a_judge_that_hangs_is_stopped(recorded: Recorded) -> None:
    opinions = judge(recorded, "while True: pass", seconds=1.0)
    assert {opinion.reason for opinion in opinions} == {
        "judge_fn hangs: it did not finish an episode within 1 s"
    }


def test_a_judge_that_takes_all_memory_is_stopped(recorded: Recorded) -> None:
    body = "x = []\n    while True: x.append(np.ones(1 << 27))"
    assert all("emory" in opinion.reason for opinion in judge(recorded, body))


def test_one_bad_episode_does_not_cost_the_others(recorded: Recorded) -> None:
    crash = "import os\n    if summary['seed'] == 6: os._exit(1)\n"
    body = crash + "    return {'criteria': {'fast': 1, 'calm': 1}}"
    assert [o.available for o in judge(recorded, body)] == [True, False, True]


def test_nothing_is_kept_from_one_episode_to_the_next(recorded: Recorded) -> None:
    code = (
        "seen = []\ndef judge_fn(trajectory, summary):\n    seen.append(1)\n"
        "    return {'criteria': {'fast': len(seen) == 1, 'calm': 1}}\n"
    )
    assert [opinion.score for opinion in judge(recorded, code)] == [1.0, 1.0, 1.0]


def test_megabytes_of_output_are_dropped(recorded: Recorded) -> None:
    body = (
        "print('x' * (1 << 24)); import sys; sys.stderr.write('y' * (1 << 24))\n"
        "    return {'criteria': {'fast': 1, 'calm': 1}}"
    )
    assert [opinion.score for opinion in judge(recorded, body)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "attempt",
    [
        "open('/etc/passwd').read()",
        "open('{secret}').read()",
        "open('{target}', 'w').write('x')",
        "os.fork()",
        "os.system('touch {target}')",
        "__import__('socket').socket()",
        "os.kill(os.getppid(), 9)",
        "os.remove('{episode}')",
    ],
)
def test_what_leads_out_of_the_sandbox_is_refused(
    recorded: Recorded, tmp_path: Path, attempt: str
) -> None:
    secret, target = tmp_path / "secret", tmp_path / "written"
    secret.write_text("canary")
    attempt = attempt.format(secret=secret, target=target, episode=recorded.files[0])
    body = (
        "import os\n    try:\n"
        f"        found = {attempt}\n"
        "    except OSError as error:\n        found = error\n"
        "    return {'criteria': {'fast': isinstance(found, OSError) or found == -1 "
        "or (isinstance(found, int) and found != 0), 'calm': 1}, 'diagnosis': repr(found)}"
    )
    for opinion in judge(recorded, body):
        assert opinion.score == 1.0, opinion.diagnosis
        assert "canary" not in opinion.diagnosis
    assert not target.exists()
    assert recorded.files[0].exists()


def test_forged_lines_are_no_answers(recorded: Recorded) -> None:
    body = (
        "import os\n    for fd in range(3, 64):\n        try: os.write(fd, b'[1, 2]\\n')\n"
        "        except OSError: pass\n    return {'criteria': {'fast': 1, 'calm': 1}}"
    )
    assert all("protocol" in opinion.reason for opinion in judge(recorded, body))


def test_a_judge_cannot_wind_its_clock_up(recorded: Recorded) -> None:
    line = '{"type": "begun", "index": 0}'
    body = (
        "import os, sys, time\n    while True:\n"
        f"        os.write(int(sys.argv[1]), b'{line}\\n'); time.sleep(0.05)"
    )
    assert all("no answer" in opinion.reason for opinion in judge(recorded, body, seconds=1.0))


def test_a_forged_score_is_still_checked(recorded: Recorded) -> None:
    line = '{"type": "judged", "index": 0, "reply": {"criteria": {"fast": 1e9, "calm": NaN}}}'
    body = (
        f"import os\n    for fd in range(3, 64):\n        try: os.write(fd, b'''{line}\\n''')\n"
        "        except OSError: pass\n    os._exit(0)"
    )
    assert all(opinion.score is None for opinion in judge(recorded, body))


def test_a_check_returns_what_it_finds(recorded: Recorded) -> None:
    code = "def check_fn(trajectory, summary):\n    return {'n': len(trajectory)}\n"
    text = run_check(code, recorded.files[0], recorded.summaries[0])
    assert text == f"{{'n': {recorded.summaries[0]['length']}}}"
    assert "ZeroDivisionError" in run_check(
        "def check_fn(t, s):\n    return 1 / 0\n", recorded.files[0], recorded.summaries[0]
    )
    assert "no function check_fn" in run_check("", recorded.files[0], recorded.summaries[0])


def test_scores_just_beyond_the_ends_are_rounding(recorded: Recorded) -> None:
    opinion = judge(recorded, "return {'criteria': {'fast': 1 + 1e-9, 'calm': -1e-9}}")[0]
    assert [each.score for each in opinion.criteria] == [1.0, 0.0]
    assert math.isclose(opinion.score or 0, 0.75)


def test_a_judge_finds_no_reward(recorded: Recorded) -> None:
    body = (
        "paid = [name for name in trajectory[0] if 'reward' in name and trajectory[0][name] != {}]"
        "\n    paid += [name for name in [*summary, *summary['final']] if 'reward' in name]"
        "\n    there = 'cumulative_reward' in trajectory or 'env_return' in summary or bool(paid)"
        "\n    return {'criteria': {'fast': not there, 'calm': 'x_velocity' in trajectory}}"
    )
    assert [opinion.score for opinion in judge(recorded, body)] == [1.0, 1.0, 1.0]
