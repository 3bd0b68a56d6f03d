"""Judges: drafted, tried on real episodes in the sandbox, attacked, repaired."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_client import (
    ScriptedClient,
    blocks,
    criterion,
    fixes,
    hopper_intent,
    in_turn,
    prompt_text,
)

from p2p.agents.builtin.implied import implied_criteria
from p2p.agents.builtin.judge import write_judge as write_by_rule
from p2p.agents.judge_author import write_judge
from p2p.agents.judge_code import episode_summary, run_judge
from p2p.agents.requests import (
    CodeDraft,
    CodeReview,
    CriteriaTooEasy,
    JudgeRequest,
    ReviewRequest,
)
from p2p.config import TrainConfig
from p2p.contracts import Intent
from p2p.training.evaluation import record_episodes

CONFIG = TrainConfig(env_id="Hopper-v5")
INTENT = hopper_intent().model_copy(update={"idle": "to stay is to do nothing"})

GOOD = """
def judge_fn(trajectory, summary):
    length = summary["length"]
    effort = float(np.abs(trajectory["action"]).mean())
    return {
        "criteria": {
            "stays": {"score": min(1.0, length / 100), "value": length, "evidence": "steps"},
            "calm": {"score": max(0.0, 1.0 - effort), "value": effort},
        },
        "diagnosis": f"{length} steps",
        "failure_tags": ["early_end"] if summary["terminated"] else [],
    }
""".lstrip()
NEEDS_TWO_STEPS = GOOD.replace("length / 100", "length / (len(trajectory) - 1)")
AMENDED = GOOD.replace('"calm":', '"stays_upright": {"score": 0.5}, "calm":')
FORGETS = GOOD.replace('"calm":', '"quiet":')


def draft(code: str) -> CodeDraft:
    return CodeDraft(code=code)


def test_a_good_judge_is_tried_and_kept() -> None:
    client = ScriptedClient({"judge_author": in_turn(draft(GOOD))})
    authored = write_judge(client, INTENT, CONFIG, review=False)
    assert authored.valid
    assert authored.code == GOOD
    check = authored.steps[1]
    assert (check.kind, check.ok) == ("check", True)
    assert check.text.count(": stays ") == 5
    assert "zero actions score 1.00 on stays (≥ 100 steps)" in check.text
    assert "right only where the task is to keep still" in check.text
    assert "an episode of one step: stays" in check.text
    request = blocks(prompt_text(client.asked[0]))[0][1]
    assert isinstance(request, JudgeRequest)
    assert "x_velocity" in request.columns
    assert "max_episode_steps" in prompt_text(client.asked[0])


def test_what_the_dry_run_finds_goes_back() -> None:
    client = ScriptedClient(
        {
            "judge_author": in_turn(draft(FORGETS)),
            "fix": in_turn(draft(NEEDS_TWO_STEPS), draft(GOOD)),
        }
    )
    authored = write_judge(client, INTENT, CONFIG, review=False)
    assert authored.valid
    assert authored.code == GOOD
    first, second = fixes(client)
    assert first.problems == ("zero actions, episode 1: 'criteria' lacks calm",)
    assert len(second.problems) == 1
    assert "an episode of one step" in second.problems[0]
    assert "ZeroDivisionError" in second.problems[0]


def test_a_judge_that_reads_files_is_told_why_it_cannot() -> None:
    hostile = GOOD.replace("    length =", "    open('/etc/passwd').read()\n    length =", 1)
    script = {"judge_author": in_turn(draft(hostile)), "fix": in_turn(draft(GOOD))}
    client = ScriptedClient(script)
    authored = write_judge(client, INTENT, CONFIG, review=False)
    assert authored.code == GOOD
    assert "PermissionError" in fixes(client)[0].problems[0]
    assert "files are out of reach" in fixes(client)[0].problems[-1]


def test_the_reviewer_sees_what_known_episodes_get() -> None:
    harder = GOOD.replace("length / 100", "length / 1000")
    review = CodeReview(approved=False, findings=("standing for a tenth is enough",), code=harder)
    client = ScriptedClient(
        {"judge_author": in_turn(draft(GOOD)), "judge_reviewer": in_turn(review)}
    )
    authored = write_judge(client, INTENT, CONFIG, review=True)
    assert (authored.code, authored.valid) == (harder, True)
    request = blocks(prompt_text(client.asked[1]))[0][1]
    assert isinstance(request, ReviewRequest)
    assert "zero actions, episode 1: stays" in request.measured
    assert [step.kind for step in authored.steps] == ["draft", "check", "review", "check"]


def test_a_judge_that_cannot_be_repaired_is_not_valid() -> None:
    client = ScriptedClient(
        {"judge_author": in_turn(draft(FORGETS)), "fix": in_turn(draft(FORGETS))}
    )
    authored = write_judge(client, INTENT, CONFIG, review=True)
    assert not authored.valid
    assert len(authored.steps) == 12
    assert len(client.asked) == 6


def test_an_event_must_be_counted_and_not_averaged() -> None:
    never = criterion("calm", comparison="at_most", threshold=0.0, event="fell")
    counting = GOOD.replace('"value": effort', '"value": int(summary["terminated"])')
    script = {"judge_author": in_turn(draft(GOOD)), "fix": in_turn(draft(counting))}
    client = ScriptedClient(script)
    intent = hopper_intent(criterion("stays"), never)
    authored = write_judge(client, intent, CONFIG, review=False)
    assert (authored.code, authored.valid) == (counting, True)
    assert "whole number of times that it fell" in fixes(client)[0].problems[0]
    assert '"event":"fell"' in prompt_text(client.asked[0])


def test_a_task_that_random_actions_meet_is_sent_back() -> None:
    anything = GOOD.replace("min(1.0, length / 100)", "1.0")
    script = {"judge_author": in_turn(draft(anything)), "fix": in_turn(draft(GOOD))}
    client = ScriptedClient(script)
    authored = write_judge(client, INTENT, CONFIG, review=False)
    assert (authored.code, authored.valid) == (GOOD, True)
    [problem] = fixes(client)[0].problems
    assert "random actions meet every hard task criterion (stays)" in problem


def test_a_task_that_zero_actions_meet_is_sent_back_unless_it_is_to_do_nothing() -> None:
    active = INTENT.model_copy(update={"idle": ""})
    harder = GOOD.replace("length / 100", "length / 1000")
    script = {"judge_author": in_turn(draft(GOOD)), "fix": in_turn(draft(harder))}
    client = ScriptedClient(script)
    authored = write_judge(client, active, CONFIG, review=False)
    assert (authored.code, authored.valid) == (harder, True)
    [problem] = fixes(client)[0].problems
    assert "zero actions meet every hard task criterion (stays)" in problem
    by_hand = active.model_copy(update={"author": "user"})
    client = ScriptedClient({"judge_author": in_turn(draft(GOOD))})
    assert write_judge(client, by_hand, CONFIG, review=False).code == GOOD


def test_who_stands_by_the_measure_sends_the_criteria_back() -> None:
    active = INTENT.model_copy(update={"idle": "", "final": False})
    reworded = f"# as asked\n{GOOD}"
    harder = GOOD.replace("length / 100", "length / 1000")
    client = ScriptedClient(
        {"judge_author": in_turn(draft(GOOD)), "fix": in_turn(draft(harder), draft(GOOD))}
    )
    assert write_judge(client, active, CONFIG, review=False).code == harder
    assert "give it unchanged" in fixes(client)[0].problems[-1]

    client = ScriptedClient({"judge_author": in_turn(draft(GOOD)), "fix": in_turn(draft(reworded))})
    with pytest.raises(CriteriaTooEasy, match=r"^zero actions meet every hard task") as sent:
        write_judge(client, active, CONFIG, review=True)
    assert client.roles() == ["judge_author", "fix"]
    rejected = sent.value.rejected
    assert rejected.criteria == INTENT.criteria[:1]
    assert len(rejected.measured) == 5
    assert rejected.measured[0].startswith("zero actions, episode 1: stays 1.00 (value ")


def test_easy_criteria_that_a_rule_measures_go_back_without_a_question() -> None:
    upright = next(c for c in implied_criteria("Hopper-v5", "hop") if c.id == "stays_upright")
    easy = upright.model_copy(update={"category": "task", "threshold": 0.001})
    client = ScriptedClient({})
    for final in (True, False):
        intent = hopper_intent(easy).model_copy(update={"final": final})
        if final:
            assert write_judge(client, intent, CONFIG, review=True).valid
            continue
        with pytest.raises(CriteriaTooEasy, match="random actions meet every"):
            write_judge(client, intent, CONFIG, review=True)


def test_random_actions_may_meet_what_only_limits() -> None:
    limit = criterion("stays", comparison="at_most")
    anything = GOOD.replace("min(1.0, length / 100)", "1.0")
    client = ScriptedClient({"judge_author": in_turn(draft(anything))})
    intent = hopper_intent(limit, criterion("calm", "gait"))
    assert write_judge(client, intent, CONFIG, review=False).valid
    # "Backwards" asks for something, though its speed is bounded from above.
    backwards = criterion("stays", comparison="at_most", threshold=-0.3)
    client = ScriptedClient({"judge_author": in_turn(draft(anything)), "fix": in_turn(draft(GOOD))})
    intent = hopper_intent(backwards, criterion("calm", "gait"))
    assert write_judge(client, intent, CONFIG, review=False).code == GOOD


def test_models_judge_only_what_no_rule_measures(tmp_path: Path) -> None:
    usual = implied_criteria("Hopper-v5", "stay calm")
    intent = INTENT.model_copy(update={"criteria": (*INTENT.criteria, *usual)})
    client = ScriptedClient({"judge_author": in_turn(draft(GOOD), draft(AMENDED))})
    authored = write_judge(client, intent, CONFIG, review=False)
    request = blocks(prompt_text(client.asked[0]))[0][1]
    assert isinstance(request, JudgeRequest)
    assert [each.id for each in request.criteria] == ["stays", "calm"]
    assert usual[0].id not in authored.steps[1].text

    [episode] = record_episodes(CONFIG, "zero", episodes=1, seed=5)
    episode.save(tmp_path / "episode.npz")
    summary = episode_summary(CONFIG, episode, seed=5)
    files = [tmp_path / "episode.npz"]
    [judged] = run_judge(authored.code, files, [summary], intent.criteria)
    [by_rule] = run_judge(write_judge_by_rule(intent), files, [summary], usual)
    scores = {each.id: each for each in judged.criteria}
    assert [scores[each.id] for each in by_rule.criteria] == list(by_rule.criteria)
    assert scores["stays"].value == episode.length
    assert "fell" in judged.failure_tags

    # What an amendment names is handed over to the author, who sees its own part alone.
    amendments = ("stays_upright: a Hopper that leans is not upright",)
    write_judge(client, intent, CONFIG, review=False, code=authored.code, amendments=amendments)
    amended = blocks(prompt_text(client.asked[1]))[0][1]
    assert isinstance(amended, JudgeRequest)
    assert [each.id for each in amended.criteria] == ["stays", "calm", "stays_upright"]
    assert amended.code == GOOD


def test_an_easy_part_of_a_task_is_no_easy_task() -> None:
    anything = GOOD.replace("min(1.0, length / 100)", "1.0")
    upright = next(c for c in implied_criteria("Hopper-v5", "hop") if c.id == "stays_upright")
    hard = upright.model_copy(update={"category": "task"})
    intent = INTENT.model_copy(update={"criteria": (*INTENT.criteria, hard)})
    client = ScriptedClient({"judge_author": in_turn(draft(anything))})
    authored = write_judge(client, intent, CONFIG, review=False)
    request = blocks(prompt_text(client.asked[0]))[0][1]
    assert isinstance(request, JudgeRequest)
    assert [each.id for each in request.criteria] == ["stays", "calm"]
    assert authored.valid


def write_judge_by_rule(intent: Intent) -> str:
    return write_by_rule(
        JudgeRequest(prompt="", env_id="Hopper-v5", criteria=intent.criteria, columns={})
    ).code
