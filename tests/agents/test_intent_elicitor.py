"""From a sentence to criteria: what will not do is asked for again, with the reason."""

from __future__ import annotations

import pytest
from scripted_client import ScriptedClient, blocks, criterion, in_turn, prompt_text

from p2p.agents.intent_elicitor import choose_environment, elicit
from p2p.agents.requests import (
    EnvironmentChoice,
    IntentProposal,
    IntentRequest,
    RejectedCriteria,
)
from p2p.inference.question import BadReply, NotUnderstood

FIVE = (criterion("a"), *(criterion(name, "gait") for name in "bcde"))


def elicitor(*proposals: IntentProposal) -> ScriptedClient:
    return ScriptedClient({"intent_elicitor": in_turn(*proposals)})


def test_a_good_proposal_becomes_the_intent() -> None:
    assumed = ("Forward is +x.",)
    proposal = IntentProposal(
        criteria=FIVE, unused_words=("please",), assumptions=assumed, idle="it is to stay"
    )
    client = elicitor(proposal)
    intent = elicit(client, "run, please", "Hopper-v5")
    assert intent.criteria == FIVE
    assert (intent.prompt, intent.env_id) == ("run, please", "Hopper-v5")
    assert (intent.author, intent.unused_words) == ("test:scripted", ("please",))
    assert (intent.assumptions, intent.idle) == (assumed, "it is to stay")
    asked = client.asked[0].instructions
    assert "thigh_joint" in asked
    assert "torque up to 200 N m" in asked
    # Thresholds that zero and random actions must miss can be chosen by what these give.
    assert "quantity | zero actions | random actions | end of zero actions" in asked
    assert "steps of 300 until the end | " in asked


def test_criteria_may_be_rejected_once_unless_doing_nothing_is_the_wish() -> None:
    idle = IntentProposal(criteria=FIVE, idle="it is to stay")
    client = elicitor(idle, IntentProposal(criteria=FIVE))
    assert elicit(client, "stay", "Hopper-v5").final
    assert not elicit(client, "run", "Hopper-v5").final
    rejected = RejectedCriteria(
        met_by="zero actions", criteria=FIVE[:1], measured=("zero actions: a 1.00",)
    )
    assert elicit(client, "run", "Hopper-v5", rejected=rejected).final
    requests = [blocks(prompt_text(question))[0][1] for question in client.asked]
    assert isinstance(requests[2], IntentRequest)
    assert requests[2].rejected == rejected
    # What differs comes last: all before it is read from the provider's cache.
    assert len({question.instructions for question in client.asked}) == 1
    assert "rejected" not in prompt_text(client.asked[1])


def test_what_goes_without_saying_is_added_by_itself() -> None:
    upright = criterion("upright", "posture", event="fell", comparison="at_most", threshold=0)
    again = upright.model_copy(update={"description": "in other words"})
    client = elicitor(IntentProposal(criteria=FIVE), IntentProposal(criteria=(*FIVE, again)))
    for _ in range(2):  # who repeats it has it once
        assert elicit(client, "run", "Hopper-v5", usual=(upright,)).criteria == (*FIVE, upright)
    request = blocks(prompt_text(client.asked[0]))[0][1]
    assert isinstance(request, IntentRequest)
    assert request.usual == {"upright": "about upright: mean of upright, at most 0"}


def test_what_the_wish_contradicts_is_left_out_with_a_reason() -> None:
    upright = criterion("upright", "posture", event="fell", comparison="at_most", threshold=0)
    weaker = upright.model_copy(update={"soft_reason": "it may fall"})
    client = elicitor(
        IntentProposal(criteria=(*FIVE, weaker)),
        IntentProposal(criteria=FIVE, left_out={"upright": " ", "down": "lie"}),
        IntentProposal(criteria=FIVE, left_out={"upright": "“lie” is not upright"}),
    )
    intent = elicit(client, "lie", "Hopper-v5", usual=(upright,))
    assert intent.criteria == FIVE
    assert intent.assumptions == ("Not asked of it: “about upright”: “lie” is not upright",)
    assert "several criteria have the same id: upright" in client.refusals[0]
    assert "left_out: say what in the wish contradicts upright" in client.refusals[1]
    assert "down of `left_out` is no id of `usual`, which has upright" in client.refusals[1]


def test_a_criterion_is_left_to_the_eye_only_where_somebody_looks() -> None:
    seen = IntentProposal(criteria=(*FIVE, criterion("tall", visual=True)))
    client = elicitor(seen, IntentProposal(criteria=FIVE))
    assert elicit(client, "stand tall", "Hopper-v5").criteria == FIVE
    assert "nobody looks at pictures" in client.refusals[0]
    assert elicit(elicitor(seen), "stand tall", "Hopper-v5", pictures=True).criteria[-1].visual


@pytest.mark.parametrize(
    ("criteria", "reason"),
    [
        (FIVE[:4], "there are 4 criteria; give 5 to 30"),
        ((*FIVE, *(criterion(f"x{i}", "gait") for i in range(26))), "there are 31 criteria"),
        ((*FIVE, FIVE[1]), "the same id: b"),
        ((*FIVE, criterion("f", "gait", measure="Mean of B ")), "the same measure: mean of b"),
        (tuple(criterion(name, "gait") for name in "abcde"), "no hard criterion has the category"),
    ],
)
def test_what_will_not_do_is_asked_for_again(criteria: tuple[object, ...], reason: str) -> None:
    bad = IntentProposal(criteria=criteria)  # type: ignore[arg-type]
    client = elicitor(bad, IntentProposal(criteria=FIVE))
    assert elicit(client, "run", "Hopper-v5").criteria == FIVE
    assert len(client.refusals) == 1
    assert reason in client.refusals[0]
    with pytest.raises(BadReply):
        elicit(elicitor(bad), "run", "Hopper-v5")


def test_settings_that_the_task_needs_stay_within_bounds() -> None:
    right = {"observe_time": True, "training_horizon": 150}
    bad = IntentProposal(criteria=FIVE, training={"training_horizon": 1, "seed": 3})
    client = elicitor(bad, IntentProposal(criteria=FIVE, training=right))
    assert elicit(client, "run, then stop", "Hopper-v5").training == right
    assert "training_horizon=1 is out of range" in client.refusals[0]
    assert "seed cannot be tuned" in client.refusals[0]


def test_a_refusal_is_not_understood() -> None:
    client = elicitor(IntentProposal(criteria=(), refusal="a hopper cannot cook"))
    with pytest.raises(NotUnderstood, match="a hopper cannot cook"):
        elicit(client, "cook soup", "Hopper-v5")


def test_nothing_is_asked_for_an_empty_sentence() -> None:
    client = elicitor()
    for ask in (lambda: elicit(client, " \n", "Hopper-v5"), lambda: choose_environment(client, "")):
        with pytest.raises(NotUnderstood, match="empty"):
            ask()
    assert not client.asked


def test_the_environment_is_one_that_exists() -> None:
    client = ScriptedClient(
        {
            "environment_chooser": in_turn(
                EnvironmentChoice(env_id="Dog-v1", reason="a dog"),
                EnvironmentChoice(env_id="Ant-v5", reason="four legs"),
            )
        }
    )
    assert choose_environment(client, "walk on four legs").env_id == "Ant-v5"
    assert "'Dog-v1' is not one of" in client.refusals[0]
    assert "front_left_leg" in prompt_text(client.asked[0])


def test_no_environment_may_fit() -> None:
    none = EnvironmentChoice(env_id=None, reason="nothing here can fly")
    client = ScriptedClient({"environment_chooser": in_turn(none)})
    assert choose_environment(client, "fly") == none
