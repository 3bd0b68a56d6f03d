"""A prompt's text as tokens: words, and numbers with their units."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import pi
from typing import NamedTuple

from p2p.agents.builtin.lexicon import (
    COUNTED,
    MISSPELT,
    NUMBERS,
    REPHRASED,
    TIMES,
    VOCABULARY,
    canonical,
)


@dataclass(frozen=True, slots=True)
class Amount:
    """A stated number, in SI units."""

    value: float
    unit: str
    """m/s, rad/s, m, rad, s or times."""
    bound: str = ""
    """`at_least` or `at_most`; empty: that number."""


_PER_SECOND = r"[\s-]*(?:/|per|a|each|every)[\s-]*(?:seconds?|secs?|s)\b"
_PER_HOUR = r"\s*(?:/|per|an)\s*(?:hours?|h)\b"
_TURNS = "(?:turns?|revolutions?|rotations?)"
_UNITS: Mapping[str, tuple[str, float, str]] = {
    "m/s": (rf"(?:meters?|metres?|m){_PER_SECOND}|mps\b", 1.0, "m/s"),
    "cm/s": (rf"(?:centimeters?|centimetres?|cm){_PER_SECOND}", 0.01, "m/s"),
    "km/h": (rf"(?:kilomet(?:er|re)s?|km){_PER_HOUR}|kph\b|kmh\b", 1 / 3.6, "m/s"),
    "mph": (r"miles?\s*(?:per|an)\s*hours?\b|mph\b", 0.44704, "m/s"),
    "rad/s": (rf"(?:radians?|rad){_PER_SECOND}", 1.0, "rad/s"),
    "deg/s": (rf"(?:degrees?|deg|°){_PER_SECOND}", pi / 180, "rad/s"),
    "turns/s": (rf"{_TURNS}{_PER_SECOND}", 2 * pi, "rad/s"),
    "rpm": (rf"{_TURNS}\s*(?:/|per|a)\s*minutes?\b", 2 * pi / 60, "rad/s"),
    "cm": (r"(?:centimeters?|centimetres?)\b", 0.01, "m"),
    "m": (r"(?:meters?|metres?)\b", 1.0, "m"),
    "deg": (r"(?:degrees?|°)", pi / 180, "rad"),
    "rad": (r"(?:radians?)\b", 1.0, "rad"),
    "s": (r"(?:seconds?|secs?)\b", 1.0, "s"),
    "times": (r"(?:times?|x)\b", 1.0, "times"),
}
"""In the order in which to look for them: how it is spelled out, and its value in SI units."""
_TOKEN = re.compile(
    rf"(?:at\s+(?P<bound>most|least)\s+)?(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>{'|'.join(_UNITS)})(?![a-z/])"
    r"|(?P<word>[^\W\d_]+(?:[-'][^\W\d_]+)*)|(?P<other>\d+(?:\.\d+)?|[^\s\w])"
)
_NUMBER_WORD = "|".join(sorted(NUMBERS, key=len, reverse=True))
_UNIT_WORD = "|".join(f"(?:{spelled})" for spelled, _, _ in _UNITS.values())
_NUMBERED = re.compile(rf"\b(?P<number>{_NUMBER_WORD})\s+(?=(?:{_UNIT_WORD}))")
_COUNTED = re.compile(
    rf"\b(?P<number>\d+|{_NUMBER_WORD})\s+"
    r"(?P<noun>(?:(?:full|complete|whole|big|high|quick|backwards?|forwards?|front|back|left|right)\s+)*"
    rf"(?:{'|'.join(COUNTED)})s?)\b(?!\s*(?:/|per|a)\s)"
)


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
        tokens.append(Token(match[0], word, canonical(word) if word else "", amount))
    return tokens


def normalised(text: str) -> str:
    """Lower case, numbers in digits, units in their short form, counts after what they count."""
    text = text.lower().replace("’", "'").replace("_", " ")  # noqa: RUF001 - as people type it
    for pattern, phrase in REPHRASED:
        text = pattern.sub(phrase, text)
    text = re.sub(r"[^\W\d_]+(?:-[^\W\d_]+)+", _split_compound, text)
    text = re.sub(rf"(?<!at )\b({'|'.join(TIMES)})\b(?! (?:there|done|it|you))",
                  lambda word: f"{TIMES[word[1]]} times", text)  # fmt: skip
    text = _COUNTED.sub(lambda count: f"{count['noun']} {_digits(count['number'])} times", text)
    text = _NUMBERED.sub(lambda number: f"{_digits(number['number'])} ", text)
    for unit, (spelled, _, _) in _UNITS.items():
        text = re.sub(rf"(?<=\d)\s*(?:{spelled})", f" {unit} ", text)
    return text


def _split_compound(word: re.Match[str]) -> str:
    """`slow-paced` as two words, unless the vocabulary has it as one."""
    return word[0] if word[0] in VOCABULARY or word[0] in MISSPELT else word[0].replace("-", " ")


def _digits(number: str) -> str:
    return f"{NUMBERS[number]:g}" if number in NUMBERS else number
