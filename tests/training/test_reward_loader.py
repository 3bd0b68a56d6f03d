import warnings
from pathlib import Path

import numpy as np
import pytest

from p2p.training.reward_function import RewardFunction, RewardLoadError, spec_of
from p2p.training.reward_loader import load_from_code, load_from_file, parse_source

EXAMPLES = Path(__file__).parents[2] / "examples" / "rewards"

CLASS = """
from p2p.training.reward_function import RewardFunction

class SpeedReward(RewardFunction):
    def compute(self, obs, action, next_obs, info):
        v = float(info.get("x_velocity", 0.0))
        ctrl = -0.1 * float(sum(a**2 for a in action))
        return v + ctrl, {"speed": v, "ctrl": ctrl}

    @property
    def latex(self):
        return r"r = v_x - 0.1 \\|a\\|^2"

    @property
    def terms(self):
        return {"speed": "forward velocity", "ctrl": "control penalty"}
"""

FUNCTION = '''
def reward_fn(obs, action, next_obs, info):
    """
    LaTeX: r = v_x
    Terms:
        speed: forward velocity
    """
    v = float(info.get("x_velocity", 0.0))
    return v, {"speed": v}
'''

MAKER = '''
def _make_reward():
    """Counts.

    LaTeX: r = n
    Terms:
        count: steps so far
    """
    n = 0
    def reward_fn(obs, action, next_obs, info):
        nonlocal n
        n += 1
        return n, {"count": n}
    return reward_fn
'''


def call(reward, velocity=2.0):
    return reward(np.zeros(17), np.ones(6, np.float32), np.zeros(17), {"x_velocity": velocity})


def error_of(code):
    with pytest.raises(RewardLoadError) as caught:
        load_from_code(code)
    return caught.value


def test_class_file_loads_with_its_description():
    for reward in (load_from_code(CLASS), load_from_file(EXAMPLES / "speed_class.py")):
        assert call(reward) == (pytest.approx(1.4), {"speed": 2.0, "ctrl": pytest.approx(-0.6)})
        assert spec_of(reward).model_dump() == {
            "latex": r"r = v_x - 0.1 \|a\|^2",
            "terms": {"speed": "forward velocity", "ctrl": "control penalty"},
            "description": "",
        }


def test_function_file_loads_with_latex_and_terms_of_its_docstring():
    for reward in (load_from_code(FUNCTION), load_from_file(EXAMPLES / "speed_function.py")):
        assert isinstance(reward, RewardFunction)
        assert call(reward) == (2.0, {"speed": 2.0})
        assert reward.latex == "r = v_x"
        assert reward.terms == {"speed": "forward velocity"}


def test_examples_say_what_the_tests_use():
    for name, code in (("speed_class.py", CLASS), ("speed_function.py", FUNCTION)):
        kept = [line for line in code.splitlines() if line.strip()]
        text = (EXAMPLES / name).read_text()
        assert [line for line in text.splitlines() if line.strip()] == kept


@pytest.mark.parametrize("ending", ["", "reward_fn = _make_reward()\n"])
def test_closure_counts_and_begins_anew_after_reset(ending):
    reward = load_from_code(MAKER + ending)
    assert [call(reward)[0] for _ in range(3)] == [1, 2, 3]
    reward.reset()
    assert call(reward)[0] == 1
    assert (reward.latex, dict(reward.terms)) == ("r = n", {"count": "steps so far"})
    assert reward.description == "Counts."


def test_numpy_and_mujoco_are_there_without_import():
    code = "def reward_fn(obs, action, next_obs, info):\n"
    code += "    mujoco.MjModel, numpy.sum\n    return np.sum(action), {}"
    assert call(load_from_code(code))[0] == 6.0


def test_invalid_escapes_in_strings_do_not_break_loading():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reward = load_from_code(FUNCTION.replace("r = v_x", r"r = -\|a\|^2"))
    assert reward.latex == r"r = -\|a\|^2"


def test_future_annotations_and_dataclasses_work():
    code = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    code += "@dataclass\nclass W:\n    speed: float = 2.0\nw = W()\n"
    code += "def reward_fn(obs, action, next_obs, info):\n    return w.speed, {}"
    assert call(load_from_code(code)) == (2.0, {})


def test_docstring_terms_keep_their_equations_and_prose_is_the_description():
    doc = '''
def reward_fn(obs, action, next_obs, info):
    """Run, but gently.

    LaTeX: r = v_x
        - 0.1 a^2
    Terms:
        speed: forward velocity
            r_speed = v_x
        `ctrl`: control penalty (small)

    Written for HalfCheetah.
    """
    return 0.0, {}
'''
    spec = spec_of(load_from_code(doc))
    assert spec.latex == "r = v_x - 0.1 a^2"
    assert spec.terms == {
        "speed": "forward velocity\nr_speed = v_x",
        "ctrl": "control penalty (small)",
    }
    assert spec.description == "Run, but gently.\n\nWritten for HalfCheetah."


def test_syntax_error_names_line_and_text():
    error = error_of("x = 1\ndef reward_fn(obs:\n    pass")
    assert error.line == 2
    assert error.file == "reward_fn.py"
    assert str(error).startswith("reward_fn.py:2: syntax error:")
    assert "def reward_fn(obs:" in str(error)


def test_import_time_exception_shows_the_line_of_the_file():
    error = error_of("import math\n\ny = math.sqrt(-1)\n")
    assert error.line == 3
    assert "ValueError" in str(error)
    assert "y = math.sqrt(-1)" in error.traceback


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 1", "there is no reward in this file"),
        ("x = 1\0", "null bytes"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("reward_fn = 3", "`reward_fn` is a int"),
        (CLASS + FUNCTION, "several rewards in one file (class SpeedReward, function reward_fn)"),
        (CLASS + CLASS.replace("SpeedReward", "Other"), "class SpeedReward, class Other"),
        ("class R(RewardFunction):\n    def compute(self, a): ...", "class R lacks latex, terms"),
        ("def _make_reward():\n    return 3", "must return a function, but returned int"),
        ("def _make_reward():\n    raise OSError('no')", "_make_reward() fails: OSError: no"),
        (CLASS.replace("(RewardFunction):", "(RewardFunction):\n    def __init__(self, k): ..."),
         "SpeedReward() fails: TypeError"),
        (CLASS.replace('{"speed": "forward velocity", "ctrl": "control penalty"}', "['speed']"),
         "terms must be a dict"),
        (CLASS.replace("return r", "return 1/0 or r"), "ZeroDivisionError"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(code, expected):
    assert expected in str(error_of(code))


@pytest.mark.parametrize(
    "parameters", ["obs, action, info", "obs, action, next_obs, info, extra", ""]
)
def test_wrong_number_of_parameters_names_both_signatures(parameters):
    error = error_of(f"\ndef reward_fn({parameters}):\n    return 0.0, {{}}")
    assert error.line == 2
    assert str(error) == (
        f"reward_fn.py:2: wrong parameters: reward_fn({parameters}) is called with four positional "
        "arguments and must be reward_fn(obs, action, next_obs, info)"
    )


def test_swapped_parameters_are_refused_and_extra_defaults_accepted():
    body = "    return 0.0, {}"
    error = error_of("def reward_fn(obs, next_obs, action, info):\n" + body)
    assert "wrong order" in str(error)
    assert call(load_from_code("def reward_fn(s, a, s2, i, scale=1.0):\n" + body)) == (0.0, {})


def test_a_named_instance_decides_between_classes():
    code = CLASS + CLASS.replace("SpeedReward", "Other") + "\nreward_fn = SpeedReward()\n"
    assert type(load_from_code(code)).__name__ == "SpeedReward"


def test_a_base_class_in_the_file_is_no_candidate():
    code = CLASS + "\nclass Faster(SpeedReward):\n    scale = 2.0\n"
    assert type(load_from_code(code)).__name__ == "Faster"


def test_missing_and_binary_files_are_load_errors(tmp_path):
    with pytest.raises(RewardLoadError, match="no such file"):
        load_from_file(tmp_path / "none.py")
    (tmp_path / "bin.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RewardLoadError, match="not a UTF-8"):
        load_from_file(tmp_path / "bin.py")


@pytest.mark.parametrize(
    ("code", "stateful"),
    [
        (CLASS, False),
        (FUNCTION, False),
        (MAKER, True),
        (CLASS.replace("v =", "self.last = v ="), True),
        (CLASS.replace("v =", "self.seen.append(1); v ="), True),
        (CLASS.replace("v =", "out = {}; out['a'] = v ="), False),
        ("seen = []\n" + FUNCTION.replace("v =", "seen.append(1); v ="), True),
        (FUNCTION.replace("v =", "reward_fn.last = v ="), True),
        (FUNCTION.replace("v =", "start = info['_episode_start']; v ="), True),
        (CLASS + "    def reset(self):\n        pass\n", True),
        (CLASS.replace("(RewardFunction):", "(RewardFunction):\n    def __init__(self):\n"
                       "        self.k = 1"), False),
    ],
)  # fmt: skip
def test_state_is_read_off_the_source(code, stateful):
    assert parse_source(code).stateful is stateful


def test_the_formula_of_a_docstring_that_is_not_raw_is_kept():
    code = (
        "def reward_fn(obs, action, next_obs, info):\n"
        '    """Run.\\n\n'
        r"    LaTeX: r = \frac{v}{\rho} - \alpha \theta^2 + \beta\nu - \vec{a} \tau \\nabla \|a\|"
        '\n\n    Terms:\n        speed: how fast\n    """\n'
        '    return 0.0, {"speed": 0.0}\n'
    )
    spec = spec_of(load_from_code(code))
    assert spec.latex == (
        r"r = \frac{v}{\rho} - \alpha \theta^2 + \beta\nu - \vec{a} \tau \nabla \|a\|"
    )
    assert spec.description == "Run."
