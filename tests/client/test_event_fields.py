"""Fields of entities in events: by name and by pointer, with all digits, and the reasons against the others."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.event_fields import EventMapping, TimeUnit
from headrace.errors import BadRequest

NAMES = st.sampled_from(["a", "b", "0", "1", "a/b", "m~n", "", "é"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
PATHS = st.lists(NAMES, min_size=1, max_size=4)


def resolve(document: Any, path: list[str]) -> tuple[bool, Any]:
    """The value at a path, as RFC 6901 says."""
    for name in path:
        if isinstance(document, list) and name in {str(index) for index in range(len(document))}:
            document = document[int(name)]
        elif isinstance(document, dict) and name in document:
            document = document[name]
        else:
            return False, None
    return True, document


def spell(path: list[str]) -> str:
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path)


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.lists(PATHS, min_size=1, max_size=3))
def test_fields_are_what_their_pointers_lead_to(event: dict[str, Any], paths: list[list[str]]) -> None:
    mapping = EventMapping({f"field{number}": spell(path) for number, path in enumerate(paths)})
    expected = {}
    for number, path in enumerate(paths):
        is_there, value = resolve(event, path)
        if is_there:
            expected[f"field{number}"] = value
    encoded = json.dumps(event).encode()
    if not expected:
        with pytest.raises(ValueError, match="none of the mapped fields"):
            mapping.map(encoded)
        return
    fields = mapping.map(encoded).fields
    assert {name: json.loads(bytes(value)) for name, value in fields.items()} == expected


def test_a_name_without_a_slash_is_that_of_a_member() -> None:
    mapping = EventMapping({"name": "customer.name", "id": "~1"})
    fields = mapping.map(b'{"customer.name": "Ada", "~1": 12345678901234567890.12345678901234567890}').fields
    assert bytes(fields["name"]) == b'"Ada"' and bytes(fields["id"]) == b"12345678901234567890.12345678901234567890"


def test_without_a_mapping_every_member_is_a_field() -> None:
    assert set(EventMapping().map(b'{"name": "Ada", "age": null}').fields) == {"name", "age"}
    for event, reason in ((b"{}", "no members"), (b'{"_meta": {}}', "_meta"), (b"[1]", "object"), (b'"x"', "object")):
        with pytest.raises(ValueError, match=reason):
            EventMapping().map(event)


@given(
    st.sampled_from([("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)]),
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
    st.integers(0, 999),
)
def test_numbers_are_unix_time_in_their_unit(unit: tuple[TimeUnit, int], moment: datetime, nanoseconds: int) -> None:
    name, size_ns = unit
    micros = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    number = (micros * 1000 + nanoseconds) // size_ns
    mapping = EventMapping({"a": "a"}, observed_at_field="/at", observed_at_unit=name)
    observed_at = mapping.map(json.dumps({"a": 1, "at": number}).encode()).observed_at
    assert observed_at is not None
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=number * size_ns // 1000)
    assert datetime.fromisoformat(observed_at) == expected
    assert mapping.map(json.dumps({"a": 1, "at": str(number)}).encode()).observed_at == observed_at


@pytest.mark.parametrize(
    ("event", "observed_at"),
    [
        ({"at": "2026-01-02T03:04:05.5+01:00"}, "2026-01-02T03:04:05.5+01:00"),
        ({"at": "2026-01-02"}, "2026-01-02T00:00:00Z"),
        ({"at": 1.5}, "1970-01-01T00:00:01.500000Z"),
        ({"at": -1.0000005}, "1969-12-31T23:59:58.999999Z"),
    ],
)
def test_times_are_text_or_numbers(event: dict[str, Any], observed_at: str) -> None:
    mapping = EventMapping({"a": "at"}, observed_at_field="at", observed_at_unit="s")
    assert mapping.map(json.dumps(event).encode()).observed_at == observed_at


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        ("{}", "no value in at"),
        ('{"at": null}', "no value in at"),
        ('{"at": ""}', "no value in at"),
        ('{"at": "soon"}', "soon"),
        ('{"at": true}', "true is no time"),
        ('{"at": [1]}', "is no time"),
        ('{"at": 1763596800}', "say its unit"),
        ('{"at": "20260102"}', "say its unit"),
        ('{"at": 1e999999999}', "say its unit"),
    ],
)
def test_an_event_without_a_time_says_why(at: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("[", r"\[")):
        EventMapping(observed_at_field="at").map(at.encode())


@pytest.mark.parametrize("number", ["1e999999999", "253402300800", "-62135596801"])
def test_a_number_outside_the_calendar_is_no_time(number: str) -> None:
    with pytest.raises(ValueError, match="unit right"):
        EventMapping(observed_at_field="at", observed_at_unit="s").map(f'{{"at": {number}}}'.encode())


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"": "a"}, {}),
        ({"_meta": "a"}, {}),
        ({"entity_type": "a"}, {}),
        ({"a": ""}, {}),
        ({"a": "/x~2"}, {}),
        ({"a": "a"}, {"observed_at_unit": "s"}),
        ({"a": "a"}, {"observed_at_field": "at", "observed_at_unit": "h"}),
    ],
)
def test_a_mapping_that_is_none_is_refused(fields: dict[str, str], options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        EventMapping(fields, **options)


def test_the_digest_is_that_of_everything_that_shapes_an_observation() -> None:
    digests = [
        EventMapping({"a": "x"}).digest(),
        EventMapping({"a": "/x"}).digest(),
        EventMapping({"a": "y"}).digest(),
        EventMapping().digest(),
        EventMapping({"a": "x"}, observed_at_field="at").digest(),
        EventMapping({"a": "x"}, observed_at_field="at", observed_at_unit="s").digest(),
        EventMapping({"a": "x"}).digest(1),
    ]
    assert digests[0] == digests[1] and len(set(digests)) == len(digests) - 1
    assert EventMapping({"a": "x", "b": "y"}).digest() == EventMapping({"b": "y", "a": "x"}).digest()
