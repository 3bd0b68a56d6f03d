from __future__ import annotations

import pytest

from p2p.sandbox import explain_problems

GOOD = """
from __future__ import annotations
import math
import numpy as np
from p2p.training.reward_function import RewardFunction

class Reward(RewardFunction):
    def compute(self, obs, action, next_obs, info):
        v = np.asarray(info["x_velocity"])
        return v, {"speed": v}
"""


def test_an_honest_reward_has_no_problems() -> None:
    assert explain_problems(GOOD) == []


@pytest.mark.parametrize(
    ("code", "starts", "contains"),
    [
        ("import math\n\nimport os", "line 3: `import os`", "will not work in the sandbox"),
        ("from socket import socket, AF_INET", "line 1: `from socket import", "no network"),
        ("import numpy, subprocess as s", "line 1: `import subprocess`", "no process"),
        ("def f():\n    return open('x')", "line 2: `open(...)`", "files"),
        ("x = eval('1')", "line 1: `eval(...)`", "expression"),
        ("import pandas", "line 1: `import pandas`", "numpy"),
        ("from . import x", "line 1: relative imports", ""),
        ("x = (1", "line 1: syntax error", "never closed"),
        ("x = 1\n  y = 2", "line 2: syntax error", "indent"),
        ("x = '\0'", "", "null"),
    ],
)
def test_what_will_not_work_is_named_with_its_line(code: str, starts: str, contains: str) -> None:
    (problem,) = explain_problems(code)
    assert problem.startswith(starts)
    assert contains in problem


def test_problems_come_in_the_order_of_lines() -> None:
    code = "import os\ndef f():\n    open('x')\nimport socket\n"
    assert [p.split(":")[0] for p in explain_problems(code)] == ["line 1", "line 3", "line 4"]
