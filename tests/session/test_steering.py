"""Orders of several processes at once, and what they amount to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from p2p.contracts import SteeringOrder, utc_now
from p2p.records.loop_files import SteeringTaken
from p2p.session.steering import all_feedback, asks_to_pause, give_feedback, merge, not_taken

GIVE = """
import sys
from pathlib import Path
from p2p.contracts import SteeringOrder, utc_now
from p2p.session.steering import give_feedback
for n in range(20):
    give_feedback(Path(sys.argv[1]), SteeringOrder(remark=f"{sys.argv[2]} {n}", given_at=utc_now()))
"""


def order(**parts: object) -> SteeringOrder:
    return SteeringOrder.model_validate({"given_at": utc_now(), **parts})


def test_no_order_is_lost_when_many_give_them_at_once(tmp_path: Path) -> None:
    givers = [subprocess.Popen([sys.executable, "-c", GIVE, str(tmp_path), name]) for name in "abc"]
    assert [giver.wait(60) for giver in givers] == [0, 0, 0]
    found = all_feedback(tmp_path / "steering")
    assert list(found) == list(range(1, 61))
    remarks = [one.remark for one in found.values()]
    assert sorted(remarks) == sorted(f"{name} {n}" for name in "abc" for n in range(20))


def test_later_words_count_and_all_remarks_are_kept(tmp_path: Path) -> None:
    for parts in (
        {"remark": "slower", "score": 0.1, "hp_changes": {"gamma": 0.9, "ent_coef": 0.1}},
        {"remark": " ", "score": 0.7, "pause": True},
        {"remark": "lower", "hp_changes": {"gamma": 0.95}, "pause": False},
    ):
        give_feedback(tmp_path, order(**parts))
    given = all_feedback(tmp_path / "steering")
    taken = merge(SteeringTaken(), given)
    assert taken.orders == (1, 2, 3)
    assert (taken.remarks, taken.score) == (("slower", "lower"), 0.7)
    assert taken.hp_changes == {"gamma": 0.95, "ent_coef": 0.1}
    assert not asks_to_pause(given)
    assert asks_to_pause({2: given[2]})
    assert not_taken(tmp_path / "steering", [taken]) == {}
    give_feedback(tmp_path, order(pause=True))
    assert list(not_taken(tmp_path / "steering", [taken])) == [4]
    assert not taken.model_copy(update={"remarks": (), "hp_changes": {}}).wants_more
    assert taken.wants_more


def test_an_order_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    give_feedback(tmp_path, order(remark="a"))
    (tmp_path / "steering" / "0002.json").write_text("{")
    give_feedback(tmp_path, order(remark="b"))
    assert {n: o.remark for n, o in all_feedback(tmp_path / "steering").items()} == {1: "a", 3: "b"}
