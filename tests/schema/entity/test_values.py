"""Values of the six types, and their converters."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.entity.nodes import Converter, Field
from headrace.schema.entity.values import FUNCTIONS, UNFIT, VALIDATORS, convert_value, fits, type_of

GOOD: dict[str, list[Any]] = {
    "email": ["a@b.co", "first.last+tag@mail.example.org", "ü@example.org"],
    "url": ["https://example.org", "http://localhost:8080/x?y=1#z", "ftp://user@host.net/f", "https://[::1]:443/"],
    "iso_date": ["2026-01-31", "2024-02-29"],
    "iso_datetime": ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.5+02:00"],
    "phone": ["+49 (30) 1234-567", "5551234", "+15551234567"],
    "currency": ["EUR"],
    "country": ["DE"],
    "slug": ["a", "a-b-2"],
    "uuid": ["6fa459ea-ee8a-3ca4-894e-db77e160355e"],
    "non_empty": ["x", [0], {"a": 1}],
    "integer": [1, 2.0, -3, 10**30],
    "positive": [1, 0.1],
    "non_negative": [0, 2],
}
BAD: dict[str, list[Any]] = {
    "email": ["a", "a@", "@b.co", "a@b", "a b@c.de", "a@b..de", "a..b@c.de", ".a@c.de", "a@-b.de", "x" * 65 + "@b.co"],
    "url": ["example.org", "https://", "https:// x", "//x", "http://-a.b"],
    "iso_date": ["2026-02-30", "2026-W01-1", "2026-1-1", "2026-01-31T00:00:00Z", "20260131"],
    "iso_datetime": ["2026-01-31", "2026-01-31T12:00:00", "2026-02-30T12:00:00Z"],
    "phone": ["123", "abc", "+" + "1" * 16, "555-"],
    "currency": ["eur", "EURO"],
    "country": ["de", "DEU"],
    "slug": ["A", "-a", "a--b", ""],
    "uuid": ["6fa459ea", "6fa459eaee8a3ca4894edb77e160355e"],
    "non_empty": ["", "  ", [], {}],
    "integer": [1.5],
    "positive": [0, -1],
    "non_negative": [-0.5],
}


@pytest.mark.parametrize("name", VALIDATORS)
def test_a_validator_accepts_what_it_says_and_nothing_else(name: str) -> None:
    accepts = VALIDATORS[name].accepts
    assert [value for value in GOOD[name] if not accepts(value)] == []
    assert [value for value in BAD[name] if accepts(value)] == []


@pytest.mark.parametrize(
    ("function", "given", "made"),
    [
        ("timestamp_nanos_to_iso", 1_700_000_000_123_999_999, "2023-11-14T22:13:20.123Z"),
        ("timestamp_nanos_to_iso", 1_699_999_999_999_999_999, "2023-11-14T22:13:19.999Z"),
        ("timestamp_nanos_to_iso", 0, "1970-01-01T00:00:00.000Z"),
        ("timestamp_nanos_to_iso", 1.7e18, "2023-11-14T22:13:20.000Z"),
        ("timestamp_nanos_to_iso", 4_102_444_800_000_000_000, "2100-01-01T00:00:00.000Z"),
        ("timestamp_nanos_to_iso", 4_102_444_800_001_000_000, None),
        ("timestamp_nanos_to_iso", 1.5, None),
        ("timestamp_nanos_to_iso", -1, None),
        ("timestamp_ms_to_iso", 1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        ("timestamp_ms_to_iso", 4_102_444_800_001, None),
        ("timestamp_s_to_iso", 1_700_000_000, "2023-11-14T22:13:20.000Z"),
        ("timestamp_s_to_iso", 1_700_000_000.123, "2023-11-14T22:13:20.123Z"),
        ("timestamp_s_to_iso", 4_102_444_801, None),
        ("timestamp_s_to_iso", 1e300, None),
        ("number_to_string", 9_007_199_254_740_993, "9007199254740993"),
        ("number_to_string", 12.0, "12"),
        ("number_to_string", 1.5, "1.5"),
        ("number_to_string", 1e-7, "0.0000001"),
        ("number_to_string", 1e21, "1000000000000000000000"),
        ("number_to_string", -0.0, "0"),
        ("string_to_number", "12", 12),
        ("string_to_number", " -3.50 ", -3.5),
        ("string_to_number", "9007199254740993", 9_007_199_254_740_993),
        ("string_to_number", "9007199254740993.0", 9_007_199_254_740_993),
        ("string_to_number", "1e-400", None),
        ("string_to_number", "0e-400", 0.0),
        ("string_to_number", "1e3", 1000.0),
        ("string_to_number", "12abc", None),
        ("string_to_number", "1e999", None),
        ("string_to_number", "1_000", None),
        ("string_to_number", "٣", None),
        ("string_to_number", "0x10", None),
        ("string_to_number", "NaN", None),
        ("string_to_number", "", None),
        ("string_to_number", "9" * 5000, None),
        ("boolean_to_string", True, "true"),
        ("boolean_to_string", False, "false"),
        *(("string_to_boolean", text, True) for text in ("true", " TRUE ", "1", "Yes")),
        *(("string_to_boolean", text, False) for text in ("false", "0", "NO")),
        ("string_to_boolean", "on", None),
    ],
)
def test_a_converter_gives_exactly_this(function: str, given: Any, made: Any) -> None:
    found = FUNCTIONS[function].convert(given)
    assert found == made
    assert type(found) is type(made)


def test_there_are_the_seven_of_the_reference() -> None:
    assert len(FUNCTIONS) == 7
    assert all(function.from_type != function.to_type for function in FUNCTIONS.values())


def field(to: Any, *functions: str) -> Field:
    return Field(
        to, converters=tuple(Converter(FUNCTIONS[name].from_type, FUNCTIONS[name].to_type, name) for name in functions)
    )


def test_the_first_converter_that_can_wins() -> None:
    by_size = field("date", "timestamp_s_to_iso", "timestamp_ms_to_iso", "timestamp_nanos_to_iso")
    assert convert_value(by_size, 1_700_000_000) == "2023-11-14T22:13:20.000Z"
    assert convert_value(by_size, 1_700_000_000_000) == "2023-11-14T22:13:20.000Z"
    assert convert_value(by_size, 1_700_000_000_000_000_000) == "2023-11-14T22:13:20.000Z"
    other = field("date", "timestamp_nanos_to_iso", "timestamp_s_to_iso")
    assert convert_value(other, 1_700_000_000) == "1970-01-01T00:00:01.700Z"


def test_a_value_of_the_type_is_left_alone_and_one_of_no_use_is_unfit() -> None:
    numeric = field("number", "string_to_number")
    assert convert_value(numeric, 5) == 5
    assert convert_value(numeric, True) is UNFIT
    assert convert_value(numeric, ["5"]) is UNFIT
    assert convert_value(field("string"), 5) is UNFIT


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        ("2026-02-28", True),
        ("2026-02-29", False),
        ("2024-02-29T23:59:59.123456789Z", True),
        ("2026-01-01T10:00", True),
        ("2026-01-01 10:00:00+02:00", True),
        ("2026-01-01T24:00:00Z", False),
        ("tomorrow", False),
        ("20260101", False),
        (20260101, False),
    ],
)
def test_a_date_is_a_day_of_the_calendar(given: Any, accepted: bool) -> None:
    assert fits(given, "date") is accepted


def test_each_value_is_of_one_kind_and_null_of_none() -> None:
    values = ["x", 1, 1.5, True, [], {}, None]
    assert [type_of(value) for value in values] == ["string", "number", "number", "boolean", "array", "object", None]
    for value in values:
        assert [name for name in ("string", "number", "boolean", "array", "object") if fits(value, name)] == [
            *filter(None, [type_of(value)])
        ]
