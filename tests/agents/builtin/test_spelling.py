import pytest

from p2p.agents.builtin.lexicon import correct_spelling


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("walk foward", "walk forward"),  # a letter too few
        ("ballance the pole", "balance the pole"),  # one too many
        ("wlak straigth", "walk straight"),  # two swapped
        ("walk forwsrd", "walk forward"),  # the key beside
    ],
)
def test_slip_is_corrected_and_named(text: str, meant: str) -> None:
    corrected, notes = correct_spelling(text)
    assert corrected == meant
    wrong = [word for word in text.split() if word not in meant.split()]
    assert [note.split("”")[0].removeprefix("“") for note in notes] == wrong


@pytest.mark.parametrize(
    "text",
    [
        "the cat sat",  # three letters are a slip of too many words
        "hope for a moment",  # a real word one letter away from a motion
        "xylophone quietly",  # unknown, near to nothing
        "balance 12 poles",
    ],
)
def test_real_and_unknown_words_stay(text: str) -> None:
    assert correct_spelling(text) == (text, ())


def test_name_of_a_part_is_no_slip() -> None:
    assert correct_spelling("raise the sprnit")[0] != "raise the sprnit"
    assert correct_spelling("raise the sprnit", {"sprnit"}) == ("raise the sprnit", ())
