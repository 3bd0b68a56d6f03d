"""Records read back as they were written, and refuse what they do not know."""

from __future__ import annotations

import inspect
import json
import math
from datetime import UTC, datetime
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from p2p import contracts
from p2p.contracts import WORKER_MESSAGE, Event, JudgmentResult, Record, StatusData, TrainScalars

RECORDS = sorted(
    (
        c
        for _, c in inspect.getmembers(contracts, inspect.isclass)
        if issubclass(c, Record) and c is not Record
    ),
    key=lambda c: c.__name__,
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


_SCORE = st.none() | st.floats(0, 1)
_SPECIAL = {
    **dict.fromkeys(
        ("intent_score", "score", "agreement", "confidence", "confirmed_score"), _SCORE
    ),
    "id": st.from_regex(r"[a-z][a-z0-9_]{0,39}", fullmatch=True),
    "title": st.text(min_size=1, max_size=5),
    "measure": st.text(min_size=1, max_size=5),
    "threshold": st.floats(allow_nan=False, allow_infinity=False),
    "weight": st.floats(0, 1, exclude_min=True),
    "config_id": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True),
    "file": st.from_regex(r"state_[0-9]{1,12}\.safetensors", fullmatch=True),
    "values": st.dictionaries(st.sampled_from(["entropy", "sps"]), st.floats()),
}
_SPECIAL_OF = {
    "Lesson": {"text": st.text(min_size=1, max_size=5)},
    "ModelCall": {"file": st.text(max_size=5)},
    "Intent": {"criteria": st.deferred(lambda: _task().map(lambda one: (one,)))},
}
_PLAIN = {
    str: st.text(max_size=5),
    int: st.integers(-(2**53), 2**53),
    float: st.floats(),
    bool: st.booleans(),
    type(None): st.none(),
    datetime: st.datetimes(timezones=st.just(UTC)),
    Any: _JSON,
}


def _values(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if inspect.isclass(annotation) and issubclass(annotation, Record):
        return _record(annotation)
    kinds = get_args(annotation)
    origin = get_origin(annotation)
    if origin is Literal:
        return st.sampled_from(kinds)
    if origin is tuple:
        return st.lists(_values(kinds[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(_values(kinds[0]), _values(kinds[1]), max_size=2)
    return st.one_of(*map(_values, kinds))


def _record(record: type[Record]) -> st.SearchStrategy[Record]:
    special = _SPECIAL | _SPECIAL_OF.get(record.__name__, {})
    fields = {
        name: special[name] if name in special else _values(field.annotation)
        for name, field in record.model_fields.items()
    }
    return st.fixed_dictionaries(fields).map(record.model_validate)


def _task() -> st.SearchStrategy[Record]:
    return _record(contracts.Criterion).map(lambda c: c.model_copy(update={"category": "task"}))


def _same(a: object, b: object) -> bool:
    """Equal, where NaN equals NaN."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


@pytest.mark.parametrize("record", RECORDS, ids=lambda c: c.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_record_survives_json(record, data):
    made = data.draw(_record(record))
    text = made.model_dump_json()
    json.loads(text, parse_constant=pytest.fail)  # plain JSON, without NaN
    again = record.model_validate_json(text)
    assert _same(again.model_dump(), made.model_dump())


@pytest.mark.parametrize("record", RECORDS, ids=lambda c: c.__name__)
def test_unknown_keys_are_errors_and_records_do_not_change(record):
    with pytest.raises(ValidationError, match="Extra inputs"):
        record.model_validate({"no_such_field": 1})
    assert record.model_config["frozen"]


def test_a_time_keeps_its_zone():
    data = StatusData(status="running", updated_at=contracts.utc_now())
    again = StatusData.model_validate_json(data.model_dump_json())
    assert again.updated_at == data.updated_at
    assert again.updated_at.utcoffset() is not None


def test_an_unknown_status_is_an_error():
    with pytest.raises(ValidationError):
        StatusData(status="dancing", updated_at=contracts.utc_now())
    for name in ("paused", "budget_exhausted", "time_exhausted", "stale", "gate_failed"):
        assert name in contracts.STATUSES


@pytest.mark.parametrize("score", [-0.1, 1.1, math.nan, math.inf])
def test_a_score_lies_between_zero_and_one(score):
    with pytest.raises(ValidationError):
        JudgmentResult(intent_score=score)


def test_not_judged_is_not_zero():
    assert JudgmentResult(intent_score=None).intent_score is None


def test_a_metric_cannot_pass_for_the_step():
    for name in ("type", "global_step", "iteration"):
        with pytest.raises(ValidationError, match="not metrics"):
            TrainScalars(global_step=1, iteration=1, values={name: 0.0})
    line = TrainScalars(global_step=5, iteration=2, values={"entropy": -1.0}).line()
    assert line == {"type": "train", "global_step": 5, "iteration": 2, "entropy": -1.0}


def test_worker_messages_are_told_apart_by_their_type():
    message = WORKER_MESSAGE.validate_json('{"type": "alive", "phase": "eval", "global_step": 3}')
    assert isinstance(message, contracts.Alive)
    for bad in (
        '{"type": "shell"}',
        "{}",
        '{"type": "alive", "phase": "eval", "global_step": "x"}',
    ):
        with pytest.raises(ValidationError):
            WORKER_MESSAGE.validate_json(bad)


def test_an_event_needs_no_more_than_its_place_and_name():
    event = Event(seq=1, timestamp=contracts.utc_now(), event="a")
    assert (event.data, event.iteration, event.duration_ms) == ({}, None, None)
