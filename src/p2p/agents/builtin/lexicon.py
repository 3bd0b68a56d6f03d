"""The words of the grammar: what each phrase says, and which other forms it has.

The tables are the TOML files of `words/`, read and checked once. What they mean to the grammar is
said beside each table.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from math import pi
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


Slot = Literal[
    "motion", "direction", "speed", "quality", "negation", "keep", "carry", "filler", "comparative"
]
Phrases = tuple[str, ...]
Table = dict[str, Phrases]
"""What phrases mean, and the phrases."""
Words = TypeVar("Words", bound=BaseModel)
UNMEASURED = "unmeasured"
"""The name in a table for what nothing measures; empty in code."""


class _Words(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class _Full(_Words):
    """Phrases that say a motion with its direction or speed."""

    motion: str
    direction: str = ""
    speed: str = ""
    phrases: Phrases


class _Motions(_Words):
    motions: Table
    full_motions: tuple[_Full, ...]
    similes: tuple[_Full, ...]
    manners: Table


class _Modifiers(_Words):
    sets: Table
    directions: Table
    speeds: Table
    styles: Table
    others: Table
    comparatives: Table


class _Limbs(_Words):
    subjects: frozenset[str]
    arm_words: frozenset[str]
    object_words: frozenset[str]
    target_words: frozenset[str]
    backs: frozenset[str]
    owners: frozenset[str]
    between: frozenset[str]
    degrees: frozenset[str]
    leaning: frozenset[str]
    sides: Table
    limbs: Table
    limb_postures: Table
    back_postures: Table


class _Fillers(_Words):
    verbs: frozenset[str]
    things: frozenset[str]
    phrases: Phrases
    words: Table


class Names(_Words):
    aliases: Table
    preferred: Table
    tags: Table


class _Forms(_Words):
    staying: frozenset[str]
    light_verbs: frozenset[str]
    following: frozenset[str]
    either_side: frozenset[str]
    counted: Phrases
    unit_words: Phrases
    opposites: tuple[tuple[str, str], ...]
    rephrased: tuple[tuple[str, str], ...]
    sequence: str
    misspelt: Table
    irregular: Table
    numbers: dict[str, float]
    times: dict[str, int]
    patterns: dict[str, str] = Field(default_factory=dict)


class _Clauses(_Words):
    subjects: frozenset[str]
    conjunctions: frozenset[str]
    reasons: frozenset[str]
    greetings: frozenset[str]
    purposes: frozenset[str]
    ends: frozenset[str]
    determiners: frozenset[str]
    beneficiaries: frozenset[str]
    demands: frozenset[str]
    plain_verbs: frozenset[str]


def load_words(kind: type[Words], name: str, folder: str = "words") -> Words:
    """A table of this folder; raises ValidationError for fields that its kind does not have."""
    text = (files("p2p.agents.builtin") / folder / f"{name}.toml").read_text("utf-8")
    return kind.model_validate(tomllib.loads(text))


_motions, _modifiers = load_words(_Motions, "motions"), load_words(_Modifiers, "modifiers")
_limbs, _fillers = load_words(_Limbs, "limbs"), load_words(_Fillers, "fillers")
_forms, CLAUSES = load_words(_Forms, "forms"), load_words(_Clauses, "clauses")


def _spell_out(pattern: str) -> Iterator[str]:
    if "{" not in pattern and "<" not in pattern:
        yield pattern
        return
    if nested := re.search(r"\{[^}]*<[^}]*\}", pattern):
        for choice in nested[0][1:-1].split("|"):
            yield from _spell_out(pattern.replace(nested[0], choice, 1))
        return
    pieces = re.split(r"(\{[^}]*\}|<[^>]*>)", pattern)
    choices: list[Iterable[str]] = []
    for piece in pieces:
        if piece.startswith("<"):
            choices.append([p for each in _modifiers.sets[piece[1:-1]] for p in _spell_out(each)])
        else:
            choices.append(piece[1:-1].split("|") if piece.startswith("{") else (piece,))
    for chosen in product(*choices):
        yield "".join(chosen)


def expand_pattern(pattern: str) -> Iterator[str]:
    """Return every phrase that a pattern such as `{a|b} <set>` stands for."""
    return (" ".join(phrase.split()) for phrase in _spell_out(pattern))


def index_phrases(table: Mapping[str, Phrases]) -> dict[str, str]:
    """Return a dictionary from each phrase of a table to its meaning."""
    return {
        phrase: "" if value == UNMEASURED else value
        for value, patterns in table.items()
        for pattern in patterns
        for phrase in expand_pattern(pattern)
    }


def motion_tables() -> Iterator[tuple[str, Phrases]]:
    """Return each motion with its phrase patterns, similes included."""
    yield from _motions.motions.items()
    for full in (*_motions.full_motions, *_motions.similes):
        yield full.motion, full.phrases


@dataclass(frozen=True, slots=True)
class Entry:
    """What a phrase says."""

    slot: Slot
    value: str
    direction: str = ""
    speed: str = ""


def _entries(slot: Slot, table: Mapping[str, Phrases]) -> dict[str, Entry]:
    return {phrase: Entry(slot, value) for phrase, value in index_phrases(table).items()}


# --- words that ask for nothing -------------------------------------------------------------------


def _verb_forms(verb: str) -> Iterator[str]:
    """A light verb in its forms; some that nobody writes do no harm."""
    stem = verb.removesuffix("e")
    yield from (verb, f"{verb}s", f"{verb}es", f"{stem}ing", f"{stem}ed", f"{verb}ting")
    yield f"{verb}ning"


STOP_WORDS = frozenset(
    [word for words in _fillers.words.values() for word in words]
    + [form for verb in _fillers.verbs for form in _verb_forms(verb)]
)
"""Single words that carry no motion of their own; the phrases of the lexicon come first."""
THINGS = _fillers.things

# --- single tables --------------------------------------------------------------------------------

SUBJECTS, ARM_WORDS = _limbs.subjects, _limbs.arm_words
OBJECT_WORDS, TARGET_WORDS = _limbs.object_words, _limbs.target_words
BACKS, OWNERS, BETWEEN = _limbs.backs, _limbs.owners, _limbs.between
DEGREES, LEANING = _limbs.degrees, _limbs.leaning
SIDES, LIMBS = index_phrases(_limbs.sides), index_phrases(_limbs.limbs)
LIMB_POSTURES, BACK_POSTURES = (
    index_phrases(_limbs.limb_postures),
    index_phrases(_limbs.back_postures),
)
STAYING, LIGHT_VERBS = _forms.staying, _forms.light_verbs
FOLLOWING, EITHER_SIDE, COUNTED = _forms.following, _forms.either_side, _forms.counted
NOUNS = frozenset({*COUNTED, *(f"{noun}s" for noun in COUNTED)})
OPPOSITE = {one: other for pair in _forms.opposites for one, other in (pair, (pair[1], pair[0]))}
MISSPELT, IRREGULAR = index_phrases(_forms.misspelt), index_phrases(_forms.irregular)
NUMBERS, TIMES, SEQUENCE = _forms.numbers, _forms.times, _forms.sequence


def _pattern(text: str) -> re.Pattern[str]:
    for name, pattern in _forms.patterns.items():
        text = text.replace(f"<{name}>", pattern)
    return re.compile(text)


REPHRASED = tuple((_pattern(text), phrase) for text, phrase in _forms.rephrased)
"""Turns of phrase, as regular expressions, and the phrase of the lexicon that says the same."""
SIMILES: dict[str, list[tuple[str, str, str]]] = {}
"""What doing it like one of these may say: the motion, and the direction or speed if none is said.
"""
for _full in _motions.similes:
    for _phrase in _full.phrases:
        SIMILES.setdefault(_phrase, []).append((_full.motion, _full.direction, _full.speed))

# --- phrases and their forms ----------------------------------------------------------------------

_PHRASES: Mapping[str, Entry] = {
    **_entries("motion", _motions.motions),
    **{
        phrase: Entry("motion", full.motion, full.direction, full.speed)
        for full in _motions.full_motions
        for pattern in full.phrases
        for phrase in expand_pattern(pattern)
    },
    **_entries("direction", _modifiers.directions),
    **_entries("speed", _modifiers.speeds),
    **_entries("quality", _modifiers.styles),
    **_entries("negation", {"not": _modifiers.others["negation"]}),
    **_entries("keep", {"keep": _modifiers.others["keep"]}),
    **_entries("carry", {"carry": _modifiers.others["carry"]}),
    **_entries("filler", {"": _fillers.phrases}),
}
_COMPARATIVES = _entries("comparative", _modifiers.comparatives)
_REMARK_PHRASES = {**_PHRASES, **_COMPARATIVES}
VOCABULARY = frozenset(" ".join((*_REMARK_PHRASES, *SIMILES)).split())
LONGEST_PHRASE = 1 + max(phrase.count(" ") for phrase in _REMARK_PHRASES)


def lemmas(word: str) -> Iterator[str]:
    """Yield what a word may be a form of: `hopping` of hop, `rises` of rise."""
    yield IRREGULAR.get(word, word)
    if word.endswith("ly") and len(word) > len("ly") + 3:
        yield word.removesuffix("ly")
        if word.endswith("ily"):
            yield word.removesuffix("ily") + "y"
    for ending in ("ing", "ed", "s", "es", "er"):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            stem = word.removesuffix(ending)
            yield stem
            yield stem + "e"
            if stem[-1] == stem[-2]:
                yield stem[:-1]
            if ending in ("es", "ed") and stem[-1] == "i":
                yield stem[:-1] + "y"


@cache
def find_canonical(word: str) -> str:
    """Return the vocabulary's base form of a word; else the word itself."""
    if word in _WHOLE:
        return word
    forms = (*(form for form in lemmas(word) if form != word), word)
    for known in (_PHRASES, VOCABULARY):  # hopping is to hop, though it stands in a longer phrase
        if lemma := next((form for form in forms if form in known), ""):
            return lemma
    return word


_WHOLE = STOP_WORDS | {*_REMARK_PHRASES, *LIMBS, *SIDES, *DEGREES, *OWNERS, *TIMES}


def _base_forms(phrases: Mapping[str, Entry]) -> dict[str, Entry]:
    return {
        " ".join(map(find_canonical, phrase.split())): entry for phrase, entry in phrases.items()
    }


def _words_of(*phrases: Iterable[str]) -> frozenset[str]:
    text = "\n".join("\n".join(each) for each in phrases)
    # What a regular expression goes on with other endings is no word.
    return frozenset(re.findall(r"[a-z]{2,}(?:-[a-z]+)*(?![a-z(?\[])", text))


WORDS = _words_of(
    _REMARK_PHRASES, SIMILES, STOP_WORDS, THINGS, LIMBS, SIDES, LIMB_POSTURES, BACK_POSTURES,
    OBJECT_WORDS, TARGET_WORDS, BACKS, OWNERS, BETWEEN, DEGREES, LEANING, COUNTED, NUMBERS, TIMES,
    IRREGULAR, _forms.unit_words, index_phrases(_motions.manners),
    (re.sub(r"\\[a-zA-Z]", " ", text) for pair in _forms.rephrased for text in pair),
    (re.sub(r"\\[a-zA-Z]", " ", text) for text in (SEQUENCE, *_forms.patterns.values())),
)  # fmt: skip
"""Every word that stands in a table; a word that does not may be a slip of one."""
_BASES = _base_forms(_PHRASES)
LEXICON: Mapping[str, Entry] = {**_BASES, **_PHRASES}
"""What each phrase says."""
REMARKS: Mapping[str, Entry] = {**_BASES, **_base_forms(_COMPARATIVES), **_REMARK_PHRASES}
"""With comparatives."""
MANNERS: Mapping[str, str] = index_phrases(_motions.manners)
"""What each of these phrases says beyond its motion; empty: what nothing measures."""


def entry_of(phrase: str, lexicon: Mapping[str, Entry] = LEXICON) -> Entry | None:
    """Return the entry of a phrase, in any inflection of its words."""
    return lexicon.get(phrase) or lexicon.get(" ".join(map(find_canonical, phrase.split())))


def manner_of(phrase: str) -> str | None:
    """Return a phrase's manner beyond its motion; None: no manner, empty: not measurable."""
    forms = (phrase, " ".join(map(find_canonical, phrase.split())))
    return next((MANNERS[form] for form in forms if form in MANNERS), None)


# --- a text as tokens -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Amount:
    """A stated number, in SI units."""

    value: float
    unit: str
    """m/s, rad/s, m, rad, s, times, times/s, radius (m), lengths, lengths/s or share."""
    bound: str = ""
    """`at_least` or `at_most`; empty: that number."""


_PER_SECOND = r"[\s-]*(?:/|per|a|each|every)[\s-]*(?:seconds?|secs?|s)\b"
_PER_HOUR = r"\s*(?:/|per|an)\s*(?:hours?|h)\b"
_PER_MINUTE = r"[\s-]*(?:/|per|a|each|every)[\s-]*(?:minutes?|mins?)\b"
_METRES = r"(?:meters?|metres?|m)[\s-]+"
_TURNS = "(?:turns?|revolutions?|rotations?)"
_UNITS: Mapping[str, tuple[str, float, str]] = {
    "m/s": (rf"(?:meters?|metres?|m){_PER_SECOND}|mps\b", 1.0, "m/s"),
    "cm/s": (rf"(?:centimeters?|centimetres?|cm){_PER_SECOND}", 0.01, "m/s"),
    "km/h": (rf"(?:kilomet(?:er|re)s?|km){_PER_HOUR}|kph\b|kmh\b", 1 / 3.6, "m/s"),
    "mph": (r"miles?\s*(?:per|an)\s*hours?\b|mph\b", 0.44704, "m/s"),
    "rad/s": (rf"(?:radians?|rad){_PER_SECOND}", 1.0, "rad/s"),
    "deg/s": (rf"(?:degrees?|deg|°){_PER_SECOND}", pi / 180, "rad/s"),
    "lengths/s": (rf"(?:body[\s-]*)?lengths?{_PER_SECOND}", 1.0, "lengths/s"),
    "ft/s": (rf"(?:feet|foot|ft){_PER_SECOND}|fps\b", 0.3048, "m/s"),
    "knots": (r"knots?\b", 0.5144, "m/s"),
    "yards/s": (rf"yards?{_PER_SECOND}", 0.9144, "m/s"),
    "m/min": (rf"(?:meters?|metres?|m){_PER_MINUTE}", 1 / 60, "m/s"),
    "times/s": (rf"(?:times?|x)?{_PER_SECOND}|hz\b|hertz\b", 1.0, "times/s"),
    "times/min": (rf"(?:times?|x)?{_PER_MINUTE}", 1 / 60, "times/s"),
    "turns/s": (rf"{_TURNS}{_PER_SECOND}", 2 * pi, "rad/s"),
    "rpm": (rf"{_TURNS}{_PER_MINUTE}|rpm\b", 2 * pi / 60, "rad/s"),
    "radius": (rf"{_METRES}(?:in\s+)?radius\b", 1.0, "radius"),
    "diameter": (rf"{_METRES}(?:in\s+)?(?:diameter|across|wide)\b", 0.5, "radius"),
    "lengths": (r"(?:body[\s-]*)lengths?\b", 1.0, "lengths"),
    "mm": (r"(?:millimeters?|millimetres?)\b", 0.001, "m"),
    "inches": (r"inch(?:es)?\b", 0.0254, "m"),
    "yards": (r"yards?\b", 0.9144, "m"),
    "min": (r"(?:minutes?|mins?)\b", 60.0, "s"),
    "percent": (r"(?:%|percent|per\s+cent)", 0.01, "share"),
    "cm": (r"(?:centimeters?|centimetres?)\b", 0.01, "m"),
    "m": (r"(?:meters?|metres?)\b", 1.0, "m"),
    "deg": (r"(?:degrees?|°)", pi / 180, "rad"),
    "rad": (r"(?:radians?)\b", 1.0, "rad"),
    "s": (r"(?:seconds?|secs?)\b", 1.0, "s"),
    "times": (r"(?:times?|x)\b(?!/)", 1.0, "times"),
}
"""In the order in which to look for them: how it is spelled out, and its value in SI units."""
_UNIT_NAME = "|".join(sorted(_UNITS, key=len, reverse=True))
_TOKEN = re.compile(
    rf"(?:at\s+(?P<bound>most|least)\s+)?(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>{_UNIT_NAME})(?![a-z/])"
    r"|(?P<word>[^\W\d_]+(?:[-'][^\W\d_]+)*)|(?P<other>\d+(?:\.\d+)?|[^\s\w])"
)
_NUMBER_WORD = "|".join(sorted(NUMBERS, key=len, reverse=True))
_UNIT_WORD = "|".join(f"(?:{spelled})" for spelled, _, _ in _UNITS.values())
_NUMBERED = re.compile(rf"\b(?P<number>{_NUMBER_WORD})\s+(?=(?:{_UNIT_WORD}))")
_COUNTED = re.compile(
    rf"\b(?P<number>\d+|{_NUMBER_WORD})\s+"
    r"(?P<noun>(?:(?:full|complete|whole|small|little|tiny|short|long|huge|giant|single|separate|big|high|quick|backwards?|forwards?|front|back|left|right)\s+)*"
    rf"(?:{'|'.join(COUNTED)})s?)\b(?!(?<=turn)\s*(?:/|per|a)\s)(?!(?<=s)(?<=turns)\s*(?:/|per|a)\s)(?!(?<=rotations)\s*(?:/|per|a)\s)"
)


_RATE = re.compile(
    rf"\b(?P<number>\d+|{_NUMBER_WORD})\s+(?=(?:a|per|each|every) (?:second|minute)\b)"
)


_PERIOD = re.compile(
    r"\b(?:once|one time|(?P<turn>(?:(?:a|one) )?(?:(?:full|complete|whole|entire) )?"
    r"(?:turns?|revolutions?|rotations?|spins?)))\s+(?:in )?(?:every|each|per)\s+"
    rf"(?P<number>\d+(?:\.\d+)?|{_NUMBER_WORD})\s+(?:seconds?|secs?|s)\b"
)


_ROUND = re.compile(r"\b(radius|diameter) (?:of )?(?:\w+ )?(\d+(?:\.\d+)?) m\b")


class Token(NamedTuple):
    """A word as written and in its base form, a stated number, or neither."""

    text: str
    word: str
    base: str
    amount: Amount | None


def tokens_of(text: str) -> list[Token]:
    tokens = []
    for match in _TOKEN.finditer(text):
        amount, word = None, match["word"] or ""
        if match["number"]:
            _, scale, unit = _UNITS[match["unit"]]
            bound = f"at_{match['bound']}" if match["bound"] else ""
            amount = Amount(float(match["number"]) * scale, unit, bound)
        tokens.append(Token(match[0], word, find_canonical(word) if word else "", amount))
    return tokens


_NOT = re.compile(
    r"\b(?:does|did|should|must|is|are|has|have|wo|need)n't\b|\b(?:should|must|may|will) not\b"
)
_SHORTENED = re.compile(r"\b(it|that|there|who|what|they|he|she)'(?:d|ll|ve|re)\b")


def plain(text: str) -> str:
    """Lower case, with one kind of apostrophe, of dash, and of forbidding."""
    text = text.lower().replace("’", "'").replace("_", " ")  # noqa: RUF001 - as people type it
    text = text.replace("‑", "-").replace("–", "-")  # noqa: RUF001
    return _SHORTENED.sub(r"\1", _NOT.sub("don't", text))


def normalise_text(text: str) -> str:
    """Write numbers in digits, units in short form and counts after their nouns."""
    for pattern, phrase in REPHRASED:
        text = pattern.sub(phrase, text)
    text = re.sub(r"[^\W\d_]+(?:-[^\W\d_]+)+", _split_compound, text)
    text = _PERIOD.sub(_per_minute, text)
    text = re.sub(rf"(?<!at )\b({'|'.join(TIMES)})\b(?! (?:there|done|it|you))",
                  lambda word: f"{TIMES[word[1]]} times", text)  # fmt: skip
    text = _RATE.sub(lambda rate: f"{_digits(rate['number'])} times ", text)
    text = _COUNTED.sub(lambda count: f"{count['noun']} {_digits(count['number'])} times", text)
    text = _NUMBERED.sub(lambda number: f"{_digits(number['number'])} ", text)
    for unit, (spelled, _, _) in _UNITS.items():
        text = re.sub(rf"(?<=\d)\s*(?:{spelled})(?!/)", f" {unit} ", text)
    return _ROUND.sub(r"\2 \1", text)


def _split_compound(word: re.Match[str]) -> str:
    """Split `slow-paced` into two words, unless the vocabulary has it as one."""
    return word[0] if word[0] in VOCABULARY or word[0] in MISSPELT else word[0].replace("-", " ")


def _per_minute(period: re.Match[str]) -> str:
    """`a full turn every six seconds` as a rate."""
    times = f"{60 / max(float(_digits(period['number'])), 1e-3):.4g} times per minute"
    return f"turn {times}" if period["turn"] else times


def _digits(number: str) -> str:
    return f"{NUMBERS[number]:g}" if number in NUMBERS else number


_SHORTEST = 5
"""Letters; in shorter words a slip makes too many others."""
_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@cache
def real_words() -> frozenset[str]:
    """Words that are one letter away from a known one, and are not meant to be it."""
    text = (files("p2p.agents.builtin") / "words" / "real_words.txt").read_text("utf-8")
    return frozenset(word for line in text.splitlines() if line[:1] != "#" for word in line.split())


def correct_spelling(text: str, names: Collection[str] = ()) -> tuple[str, tuple[str, ...]]:
    """Correct a text's misspellings, and return the corrections too."""
    corrections: list[str] = []

    def correct(match: re.Match[str]) -> str:
        word = match[0]
        meant = MISSPELT.get(word) or _correct_word(word, frozenset(names))
        if meant != word:
            corrections.append(f"“{word}” is read as “{meant}”")
        return meant

    return re.sub(r"[a-z]+(?:['-][a-z]+)*", correct, text), tuple(dict.fromkeys(corrections))


@cache
def _correct_word(word: str, names: frozenset[str]) -> str:
    """Return the one known word that this may be a misspelling of; else the word itself."""
    if len(word) < _SHORTEST or not word.isalpha() or _stem(word, WORDS | names | real_words()):
        return word
    for slips in (_list_slips(word), _swap_keys(word)):
        long = (each for each in slips if len(each) >= _SHORTEST)
        stems = {each: _stem(each, WORDS) for each in long if each in WORDS or each[-2:] != "er"}
        meant = sorted(
            (each for each, stem in stems.items() if stem), key=lambda each: (len(each), each)
        )
        if meant:
            return meant[0] if len({stems[each] for each in meant}) == 1 else word
    return word


def _stem(word: str, known: Collection[str]) -> str:
    return next((form for form in (word, *lemmas(word)) if form in known), "")


def _list_slips(word: str) -> Iterator[str]:
    """Yield the spellings one edit away from a word, which seldom change the first letter."""
    places = range(1, len(word))
    yield from (word[:i] + word[i + 1 :] for i in places)
    yield from (word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1))
    yield from (
        word[:i] + letter + word[i:] for i in range(1, len(word) + 1) for letter in _LETTERS
    )


def _swap_keys(word: str) -> Iterator[str]:
    """Yield the word with one letter replaced by a neighbour on the keyboard."""
    for i, letter in enumerate(word):
        for row in _KEYS if i else ():
            place = row.find(letter)
            near = row[max(0, place - 1) : place + 2].replace(letter, "") if place >= 0 else ""
            yield from (word[:i] + other + word[i + 1 :] for other in near)
