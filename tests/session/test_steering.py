"""Orders of several processes at once, and what they amount to."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import SteeringOrder, utc_now
from p2p.records.iteration_record import SessionRecord
from p2p.records.loop_files import SteeringTaken
from p2p.session.agents import SessionAgents
from p2p.session.context import SessionContext
from p2p.session.start import create_session
from p2p.session.steering import (
    NotPending,
    all_feedback,
    check_settings,
    find_pending,
    give_feedback,
    merge_feedback,
    pending_feedback,
    take_feedback,
    wants_pause,
    withdraw_feedback,
)

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
    taken = merge_feedback(SteeringTaken(), given)
    assert taken.orders == (1, 2, 3)
    assert (taken.remarks, taken.score) == (("slower", "lower"), 0.7)
    assert taken.hp_changes == {"gamma": 0.95, "ent_coef": 0.1}
    assert not wants_pause(given)
    assert wants_pause({2: given[2]})
    assert find_pending(tmp_path / "steering", [taken]) == {}
    give_feedback(tmp_path, order(pause=True))
    assert list(find_pending(tmp_path / "steering", [taken])) == [4]
    assert not taken.model_copy(update={"remarks": (), "hp_changes": {}}).wants_more
    assert taken.wants_more


def test_an_order_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    give_feedback(tmp_path, order(remark="a"))
    (tmp_path / "steering" / "0002.json").write_text("{")
    give_feedback(tmp_path, order(remark="b"))
    assert {n: o.remark for n, o in all_feedback(tmp_path / "steering").items()} == {1: "a", 3: "b"}


def a_session(folder: Path) -> SessionRecord:
    return create_session("run", LoopConfig(), session_id="session_a", runs_dir=folder)


def test_withdrawn_feedback_is_neither_pending_nor_taken_up(tmp_path: Path) -> None:
    session = a_session(tmp_path)
    with pytest.raises(NotPending, match="no feedback"):
        withdraw_feedback(session, 1)
    for remark in ("lower", "faster"):
        give_feedback(session.path, order(remark=remark))
    assert withdraw_feedback(session, 1).remark == "lower"
    assert list(pending_feedback(session)) == [2]
    with pytest.raises(NotPending, match="feedback 1 is applied or withdrawn already; pending: 2"):
        withdraw_feedback(session, 1)
    with pytest.raises(NotPending, match="feedback 9 was not given"):
        withdraw_feedback(session, 9)
    assert give_feedback(session.path, order(remark="later")).name == "0004.json"
    assert take_feedback(context(session), 0).remarks == ("faster", "later")
    with pytest.raises(NotPending):
        withdraw_feedback(session, 2)


def context(session: SessionRecord) -> SessionContext:
    config = session.config.read()
    assert config is not None
    return SessionContext(session, config, SessionAgents(session, config.loop))


def test_what_is_withdrawn_while_the_session_takes_it_up_is_one_or_the_other(
    tmp_path: Path,
) -> None:
    session = a_session(tmp_path)
    for number in range(24):
        give_feedback(session.path, order(remark=str(number + 1)))

    def withdraw(number: int) -> bool:
        try:
            return bool(withdraw_feedback(session, number))
        except NotPending:
            return False

    with ThreadPoolExecutor(2) as pool:
        answers = pool.map(withdraw, range(24, 0, -1))
        taken = take_feedback(context(session), 0)
        withdrawn = {number for number, said in zip(range(24, 0, -1), answers, strict=True) if said}
    assert withdrawn | set(taken.orders) == set(range(1, 25))
    assert not withdrawn & set(taken.orders)
    assert set(taken.remarks) == {str(number) for number in taken.orders}


def test_a_score_counts_only_for_the_iteration_that_was_seen() -> None:
    new = {1: order(score=0.2, scored_iteration=3)}
    assert merge_feedback(SteeringTaken(), new, 3).score == 0.2
    assert merge_feedback(SteeringTaken(), new, 4).score is None
    assert merge_feedback(SteeringTaken(), {1: order(score=0.2)}, 4).score == 0.2


def test_settings_that_no_training_could_have_are_refused_by_name() -> None:
    fine = {"learning_rate": 1e-4, "net_arch": [64], "num_minibatches": 3, "target_kl": 1}
    check_settings(fine, TrainConfig())
    for name, value in (("gamma", 7), ("learning_rate", "much"), ("net_arch", [0]), ("seed", 1)):
        with pytest.raises(ValueError, match=f"^{name}"):
            check_settings({name: value}, TrainConfig())
    sac = TrainConfig(algorithm="sac")
    check_settings({"updates_per_step": 0.5, "gamma": 0.98}, sac)
    with pytest.raises(ValueError, match=r"^clip_coef: only learning_rate, gamma"):
        check_settings({"clip_coef": 0.1}, sac)
