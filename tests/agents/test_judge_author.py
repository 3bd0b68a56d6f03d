"""Judges: drafted, tried on real episodes in the sandbox, attacked, repaired."""

from __future__ import annotations

from scripted_client import (
    ScriptedClient,
    blocks,
    criterion,
    fixes,
    hopper_intent,
    in_turn,
    prompt_text,
)

from p2p.agents.judge_author import write_judge
from p2p.agents.requests import CodeDraft, CodeReview, JudgeRequest, ReviewRequest
from p2p.config import TrainConfig

CONFIG = TrainConfig(env_id="Hopper-v5")
INTENT = hopper_intent()

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
    assert check.text.count(": score") == 5
    assert "criterion stays: zero actions score 1.00" in check.text
    assert "whole task" in check.text
    assert "an episode of one step: score" in check.text
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
    assert "zero actions, episode 1: score" in request.measured
    assert "stays" in request.measured
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


def test_random_actions_may_meet_what_only_limits() -> None:
    limit = criterion("stays", comparison="at_most")
    anything = GOOD.replace("min(1.0, length / 100)", "1.0")
    client = ScriptedClient({"judge_author": in_turn(draft(anything))})
    intent = hopper_intent(limit, criterion("calm"))
    assert write_judge(client, intent, CONFIG, review=False).valid
