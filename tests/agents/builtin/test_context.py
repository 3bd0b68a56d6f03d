import pytest

from p2p.agents.builtin.context import leave_out_context


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ("we're filming a demo, walk forward", "we're filming a demo"),
        ("walk forward, my boss is watching", "my boss is watching"),
        ("hey robot, walk forward", "hey robot"),
        ("walk forward so that everyone can see it", "so that everyone can see it"),
        ("walk forward to impress the judges", "to impress the judges"),
        ("for the camera, walk forward", "for the camera"),
    ],
)
def test_clause_that_asks_for_nothing_is_left_out_and_named(text: str, left_out: str) -> None:
    kept, notes = leave_out_context(text)
    assert kept.strip(" ,") == "walk forward"
    assert notes == (f"“{left_out}” asks for no motion",)


@pytest.mark.parametrize(
    ("text", "limbs"),
    [
        ("for two seconds stand", ()),  # a number
        ("this should be slow, walk forward", ()),  # a demand of the manner
        ("there's a wall ahead so turn left", ()),  # a direction
        ("walk forward so that the left foot is seen", ()),  # a limb
        ("walk forward, this flipper raised", ("flipper",)),  # a limb of this model alone
        ("we're filming a demo", ()),  # nothing else is left
    ],
)
def test_clause_that_may_ask_for_something_stays(text: str, limbs: tuple[str, ...]) -> None:
    assert leave_out_context(text, limbs) == (text, ())
