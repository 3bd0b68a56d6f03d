import json
import re
from pathlib import Path

import pytest
from test_reward_loader import CLASS, FUNCTION, MAKER

from p2p.config import TrainConfig
from p2p.rewards import find_reward
from p2p.training import reward_check
from p2p.training.reward_check import check_reward

ENV = "InvertedPendulum-v5"
EXAMPLES = Path(__file__).parents[2] / "examples" / "rewards"


def function(*lines, doc="LaTeX: r\n    Terms:\n        a: something"):
    body = "\n".join(f"    {line}" for line in lines)
    return f'def reward_fn(obs, action, next_obs, info):\n    """{doc}"""\n{body}\n'


def check(code, env_id=ENV, **options):
    settings = {k: options.pop(k) for k in ("side_info", "observe_time") if k in options}
    config = TrainConfig(env_id=env_id, **settings)
    return check_reward(code, config, num_envs=4, steps=40, **options)


def codes(report):
    return {f.code for f in report.findings}


def only_error(report):
    assert not report.ok
    (error,) = [f for f in report.findings if f.level == "error"]
    return error


def test_a_good_reward_passes_without_a_word():
    reward = find_reward("halfcheetah_run_forward")
    report = check_reward(reward.read(), reward.env_id)
    assert report.ok
    assert report.findings == ()
    result = report.result
    assert result.batched
    assert not result.stateful
    assert [term.name for term in result.terms] == ["speed", "ctrl", "level"]
    assert result.terms[1].maximum == 0.0 > result.terms[1].minimum
    assert 0 < result.us_per_step == result.us_batched
    assert result.us_single > 0
    assert result.spec.terms["level"] == "cost of pitching the torso"


@pytest.mark.parametrize("name", ["speed_class.py", "speed_function.py"])
def test_the_documented_examples_pass_and_are_called_per_environment(name):
    report = check_reward(EXAMPLES / name, "HalfCheetah-v5", steps=40)
    assert report.ok
    assert not report.result.batched
    assert codes(report) == {"per_environment"}
    assert "TypeError" in report.result.batch_reason


def found(code):
    """What the sandboxed side sends, asked in this process: findings, and whether it ran."""
    sent = []
    config = TrainConfig(env_id=ENV, side_info=False).model_dump(mode="json")
    payload = {"code": code, "name": "reward_fn.py", "config": config, "seed": 0, "num_envs": 4,
               "steps": 40, "limits": {"reward": 60.0, "environment": 60.0}}  # fmt: skip
    reward_check.main(payload, lambda line: sent.append(json.loads(line)))
    findings = [message["body"] for message in sent if message["type"] == "finding"]
    return findings, any(message["type"] == "result" for message in sent)


@pytest.mark.parametrize(
    ("code", "kind", "line", "said"),
    [
        ("def reward_fn(obs\n    pass\n", "load", 1, "syntax error"),
        ("import math\nmath.sqrt(-1)\n", "load", 2, "ValueError"),
        (function("return info['speed'], {}"), "raises", 5, "info has reward_survive"),
        (function("a = np.log(-1.0) + 0 * obs[0]", "return a, {'a': a}"), "not_finite", None,
         "term 'a' is nan"),
        (function("return next_obs, {}"), "returns", None, "the total has shape (4,)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(code, kind, line, said):
    findings, ran = found(code)
    (error,) = [f for f in findings if f["level"] == "error"]
    assert (error["code"], error["line"], ran) == (kind, line, False)
    assert said in error["message"]


GROWS = "kept = []\n" + function("kept.append(np.ones(2**24))", "return 0.0, {}")


@pytest.mark.parametrize(
    ("code", "kinds", "lines", "said", "options"),
    [
        (function("while True:", "    pass"), {"hangs"}, {5, 6}, "within 2 s", {"seconds": 2.0}),
        ("import time\ntime.sleep(1000)\n" + FUNCTION, {"hangs"}, {2}, "", {"seconds": 2.0}),
        (function("x = np.ones(50 * 2**27)", "return x[0], {}"), {"raises", "memory"}, None,
         "memory", {}),
        (GROWS, {"raises", "memory"}, None, "memory", {"memory_bytes": 1 << 30}),
        (function("import os", "os._exit(0)"), {"exits"}, None, "must return its values", {}),
        (function("import ctypes", "ctypes.string_at(0)"), {"exits"}, {6}, "", {}),
    ],
    ids=["hangs", "hangs_in_c", "50_gb", "grows", "leaves", "crashes"],
)  # fmt: skip
def test_whatever_it_does_the_check_ends_and_says_where(code, kinds, lines, said, options):
    error = only_error(check(code, **options))
    assert error.code in kinds
    assert lines is None or error.line in lines
    assert said in error.message.lower() or said in error.message


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("time.sleep(0.08)", "slow_environment", r"slow: .* tried on \d+ steps only"),
        ("time.sleep(99)", "environment", r"environment, in step .*within 6 s"),
        ("os._exit(1)", "environment", "environment ended the process"),
    ],
)
def test_slow_environment_is_not_blamed_on_reward(
    faulty_environment, monkeypatch, fault, code, message
):
    monkeypatch.setattr(reward_check, "ENVIRONMENT_SECONDS", 6.0)
    text = function("a = obs[..., 0]", "return a, {'a': a}")
    report = check(text, faulty_environment(fault, 9), seconds=2.0)
    (finding,) = [f for f in report.findings if f.level != "info"]
    assert (finding.code, report.ok) == (code, code == "slow_environment")
    assert re.search(message, finding.message)


def test_printing_is_told_and_a_flood_ends():
    code = function("print('hello')", "a = next_obs[..., 1]", "return a, {'a': a}")
    report = check(code)
    assert report.ok
    assert codes(report) == {"prints"}
    flood = function("import os", "while True: os.write(1, b'x' * 65536)")
    assert only_error(check(flood, seconds=2.0)).code == "hangs"


SENDS = ["import os, sys, time", "pipe = int(sys.argv[1])"]
TURN = b'{"type": "turn", "body": "reward"}\n'


def test_lines_without_end_do_not_stretch_the_check():
    turns = function(*SENDS, f"while True: os.write(pipe, {TURN}); time.sleep(0.05)")
    assert only_error(check(turns, seconds=1.0)).code == "hangs"
    flood = function(*SENDS, f"while True: os.write(pipe, {TURN * 1000})")
    assert "lines" in only_error(check(flood)).message


def test_false_messages_on_the_pipe_end_the_check():
    lines = ["import os", "for fd in range(3, 200):", "    try: os.write(fd, b'{}\\n')"]
    error = only_error(check(function(*lines, "    except OSError: pass", "return 0.0, {}")))
    assert "not a message" in error.message


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (function("a = next_obs[..., 1]", "return 2 * a, {'a': a}"), "terms_do_not_sum"),
        (function("a = next_obs[..., 1]", "return a, {'a': a, 'b': 0.0}"), "dead_term"),
        (function("a = next_obs[..., 1]", "return a + 1, {'a': a, 'b': 1.0}"), "constant_term"),
        (function("return 1.0, {'a': 1.0}"), "constant_reward"),
        (function("return next_obs[..., 1], {}"), "no_terms"),
        (function("b = next_obs[..., 1]", "return b, {'b': b}"), "undescribed_terms"),
        (function("b = next_obs[..., 1]", "return b, {'b': b}"), "unknown_terms"),
        (function("a = next_obs[..., 1]", "return a, {'a': a}", doc=""), "no_latex"),
        (function("a = abs(next_obs[1])", "return a, {'a': a}"), "per_environment"),
        (function("a = next_obs[..., 1] / 0.0 * 0", "return 0.0 * action[..., 0], {'a': 0.0}"),
         "runtime_warning"),
        (CLASS.replace("v = ", "self.last = v = "), "state_not_reset"),
        (function("for _ in range(400000): pass", "return next_obs[1], {}"), "slow"),
    ],
)  # fmt: skip
def test_doubtful_things_are_told_and_let_pass(code, expected):
    findings, ran = found(code)
    assert ran, findings
    assert expected in {f["code"] for f in findings}
    assert "error" not in {f["level"] for f in findings}


def test_what_the_sandbox_refuses_is_told_with_its_line():
    report = check(function("import json", "a = next_obs[..., 1]", "return a, {'a': a}"))
    assert report.ok
    assert [(f.code, f.line) for f in report.findings] == [("sandbox", 5)]
    assert report.findings[0].message.startswith("line 5: `import json` will not work")


def test_a_closure_is_stateful_and_begins_anew():
    report = check(MAKER)
    assert report.ok
    assert report.result.stateful
    assert report.result.terms[0].maximum < 40
    assert "state_not_reset" not in codes(report)


def test_a_reward_is_tried_in_the_environment_that_it_is_trained_in():
    code = function("return 1.0, {'a': 1.0 * info['_episode_start']}")
    config = TrainConfig(env_id="HalfCheetah-v5", max_episode_steps=10)
    report = check_reward(code, config, num_envs=2, steps=21)
    assert report.result.terms[0].mean > 0.1


def test_side_information_is_there_unless_refused():
    code = function("a = info['mj_data'].qpos[..., 1]", "return a, {'a': a}")
    assert check(code).ok
    assert only_error(check(code, side_info=False)).code == "raises"


def test_unknown_environments_and_files_are_errors():
    assert only_error(check(FUNCTION, "Nothing-v5")).code == "environment"
    assert "no such file" in only_error(check("none.py")).message


def test_without_a_sandbox_it_runs_when_told_so(unsafe_local):
    assert check(FUNCTION).result is not None


def test_a_reward_that_goes_by_the_time_is_tried_over_a_whole_episode():
    code = (
        "def reward_fn(obs, action, next_obs, info):\n"
        "    late = np.where(next_obs[..., -1] > 0.5, next_obs[..., 3], 0.0)\n"
        "    early = np.where(next_obs[..., -1] <= 0.5, next_obs[..., 3], 0.0)\n"
        "    return late + early, {'late': late, 'early': early}\n"
    )
    report = check(code, "Swimmer-v5", observe_time=True)
    assert report.ok
    assert not [finding for finding in report.findings if finding.term]
