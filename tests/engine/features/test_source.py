from __future__ import annotations

import msgspec
import pytest

from headrace.engine.features.source import EventSource, SourceRules
from headrace.schema.descriptor.nodes import Event, EventField


def source(*, dedupe_key: str | None = None, **fields: EventField) -> EventSource:
    return EventSource(SourceRules(Event("Txn", fields, dedupe_key=dedupe_key)), 100)


DEFAULTS = source(
    a=EventField("str"), b=EventField("i64", default=7), c=EventField("str", required=False, default='x"}')
)


@pytest.mark.parametrize(
    ("given", "filled"),
    [
        ([{"a": "1", "b": 1, "c": "y"}], None),
        ([{"a": "1"}], [{"a": "1", "b": 7, "c": 'x"}'}]),
        ([{}], [{"b": 7, "c": 'x"}'}]),
        ([{"a": "1", "b": 0, "c": None}], None),
        ([{"b": 1, "c": "y"}, {"b": 2}, {"c": "z"}], [{"b": 1, "c": "y"}, {"b": 2, "c": 'x"}'}, {"b": 7, "c": "z"}]),
    ],
)
def test_defaults_stand_where_fields_are_left_out(given: list[object], filled: list[object] | None) -> None:
    joined = msgspec.json.encode(given)[1:-1]
    found = DEFAULTS.normalise(joined)
    assert found == joined if filled is None else msgspec.json.decode(b"[" + found + b"]") == filled


@pytest.mark.parametrize("body", [b' { } , {"a" : "1" } ', b'\n{\n"a":"1"}'])
def test_blanks_do_not_matter(body: bytes) -> None:
    assert all("b" in one for one in msgspec.json.decode(b"[" + DEFAULTS.normalise(body) + b"]"))


@pytest.mark.parametrize("body", [b"1", b"[]", b'{"a":', b'"x"'])
def test_what_is_no_event_is_left_to_who_judges(body: bytes) -> None:
    assert DEFAULTS.normalise(body) == body


def test_equal_keys_have_equal_texts() -> None:
    keyed = source(dedupe_key="k", k=EventField("f64", required=False))
    body = b'{"k":1},{"k":1.0},{"k":1e0},{"k":"1"},{"k":true},{"k":null},{},{"k":1.5},{"k":9007199254740993}'
    assert keyed.deduplicates
    assert keyed.dedupe_keys(body) == ["1", "1", "1", '"1"', "true", None, None, "1.5", "9007199254740993"]
    assert not DEFAULTS.deduplicates


def test_keys_of_integers_have_all_their_digits() -> None:
    keyed = source(dedupe_key="k", k=EventField("i64"))
    body = b'{"k":9007199254740993.0},{"k":9007199254740993},{"k":9007199254740992},{"k":5.0},{"k":5}'
    assert keyed.dedupe_keys(body) == ["9007199254740993", "9007199254740993", "9007199254740992", "5", "5"]


def test_rules_are_read_back_as_they_were() -> None:
    rules = SourceRules(
        Event("Txn", {"a": EventField("i64", default=0)}, dedupe_key="a"), kept=((0, 5), (10, None)), dedupe_since=3
    )
    assert SourceRules.load(rules.dump()) == rules
