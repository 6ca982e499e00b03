"""Events that are decoded into columns are those that are decoded one by one."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.reduce.features.event_columns import AT_MS, SEQ, SourceColumns, columns_of
from headrace.reduce.features.events import EventShapes
from headrace.reduce.states.definition import EventRun
from headrace.schema.descriptor.nodes import Event, EventField
from headrace.schema.registry import Registry

EVENT = Event(
    "E",
    {
        "i": EventField("i64", required=False),
        "f": EventField("f64", required=False, default=7),
        "s": EventField("str", required=False, default="none"),
        "b": EventField("bool", required=False),
        "t": EventField("datetime", required=False),
        "unread": EventField("str", required=False),
    },
)
FIELDS = ["b", "f", "i", "s", "t"]
TYPES = {name: EVENT.schema[name].type for name in FIELDS}
#: As they are spelled; integers with a fraction or an exponent, doubles without.
SPELLED: dict[str, list[str]] = {
    "i": ["null", "3", "-4", "3.0", "1e3", "9007199254740993", "9007199254740993.0", "-9223372036854775808"],
    "f": ["null", "1.5", "3", "-0", "-0.0", "1e300", "9007199254740993", "123456789012345678901234567890"],
    "s": ["null", '""', '"a"', '"\\u00e9\\ud83d\\ude00"', '"line\\nbreak"'],
    "b": ["null", "true", "false"],
    "t": ['"2024-01-01T00:00:00Z"', "null"],
    "unread": ['"x"', "null"],
    "other": ['{"i": [1, {"f": "y"}]}'],
}
events = st.fixed_dictionaries({}, optional={name: st.sampled_from(texts) for name, texts in SPELLED.items()})


def body_of(made: list[dict[str, str]]) -> bytes:
    return ",".join("{" + ",".join(f'"{name}":{text}' for name, text in event.items()) + "}" for event in made).encode()


@given(st.lists(st.lists(events, min_size=1, max_size=4), min_size=1, max_size=3), st.sampled_from([0, 1]))
def test_columns_are_those_of_events_decoded_one_by_one(slices: list[list[dict[str, str]]], version: int) -> None:
    registry = Registry.empty("events/E").advanced({}, None, 0) if version else Registry.empty("events/E")
    shapes = EventShapes(registry, EVENT)
    columns, wanted, seq = SourceColumns(shapes, EVENT, FIELDS), list[dict[str, Any]](), 10
    for made in slices:
        body = body_of(made)
        columns.add(EventRun(seq, version, [seq * 1_000_500 + number for number in range(len(made))], body))
        wanted += shapes.events(body, version)
        seq += len(made)
    table = columns.table()
    assert columns.count == len(table) == seq - 10
    assert table[SEQ].to_pylist() == list(range(10, seq))
    assert table[AT_MS].to_pylist()[0] == 10 * 1_000_500 // 1000
    for name, column in columns_of(TYPES, wanted).items():
        assert list(map(repr, table[name].to_pylist())) == list(map(repr, column.to_pylist()))
    for event, value in zip(wanted, table["i"].to_pylist(), strict=True):
        assert event["i"] == value


def test_events_of_an_earlier_version_are_brought_to_the_newest() -> None:
    lens = {"apiVersion": "durable.lens/v1", "schema": "events/E", "from": 1, "to": 2, "ops": []}
    lens["ops"] = [{"op": "rename", "from": "/old", "to": "/s"}]
    registry = Registry.empty("events/E").advanced({}, None, 0).advanced({}, lens, 2)
    columns = SourceColumns(EventShapes(registry, EVENT), EVENT, ["s"])
    columns.add(EventRun(0, 1, [0, 0], json.dumps({"old": "a"}).encode() + b',{"old":"b"}'))
    columns.add(EventRun(2, 2, [0], b'{"s":"c"}'))
    assert columns.table()["s"].to_pylist() == ["a", "b", "c"]
