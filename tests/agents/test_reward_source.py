"""When two rewards are the same, and which terms one has."""

from __future__ import annotations

from p2p.agents.reward_source import reward_digest, term_names

CODE = 'def reward_fn(obs, action, next_obs, info):\n    return 1.0, {"alive": 1.0}\n'
SAME = """# a remark
def reward_fn(obs,action,next_obs,info):
  '''Doc.'''
  return (1.0, {'alive': 1.0})
"""


def test_a_reward_is_known_by_what_it_does():
    assert reward_digest(SAME) == reward_digest(CODE)
    assert reward_digest(SAME.replace("1.0", "2.0")) != reward_digest(CODE)


def test_code_that_cannot_be_parsed_has_a_digest_too():
    assert reward_digest("def f(:\n  1") == reward_digest("def f(: 1 ")
    assert reward_digest("def f(:") != reward_digest("def g(:")
    assert reward_digest("(" * 5000) != reward_digest(")")


def test_terms_are_what_is_written_into_dicts_and_not_what_is_read():
    code = 't = {"a": 1}\nt["b"] = info["c"]\nd = dict(e=2)\nreturn_ = {**t}\n'
    assert term_names(code) == {"a", "b", "e"}
    assert term_names("def f(:") == frozenset()
