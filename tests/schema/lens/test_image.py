from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from headrace.schema.document import Validator
from headrace.schema.lens.builtins import BUILTINS, FIRST_MILLIS, LAST_MILLIS, make_conversion
from headrace.schema.lens.image import LOWERCASE_GROWTH, UPPERCASE_GROWTH, convert_shape
from headrace.schema.lens.ops import Convert, Transform
from headrace.schema.lens.values import Raw
from headrace.schema.shape.model import Shape
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root
from schema.membership import admits

BACK = Transform(table={})
TIME = {"type": "string", "format": "date-time"}


def image(schema: Any, types: str, transform: Transform) -> tuple[Shape, list[str]]:
    from_type, to_type = types.split(">")
    op = Convert(path=(), from_type=from_type, to_type=to_type, forward=transform, backward=BACK)
    found = convert_shape(op, shape_of(Root(schema).source))
    return found.shape, [complaint.rule for complaint in found.complaints]


def test_no_letter_grows_more_than_is_taken_for_granted_and_none_vanishes() -> None:
    letters = [chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]
    assert {len(letter.lower()) for letter in letters} == set(range(1, LOWERCASE_GROWTH + 1))
    assert {len(letter.upper()) for letter in letters} == set(range(1, UPPERCASE_GROWTH + 1))
    assert len("ΑΣ".lower()) == 2  # The one letter that looks at its neighbours stays one letter.


@pytest.mark.parametrize(
    "text",
    [
        "0001-01-01T00:00:00+23:59",
        "0001-01-01T00:00:00.000000001Z",
        "9999-12-31T23:59:59.999999999-23:59",
        "2024-02-29T23:59:59.5-00:00",
        "1969-12-31T23:59:59.9999Z",
    ],
)
def test_every_time_the_format_admits_becomes_milliseconds_of_the_shape(text: str) -> None:
    assert Validator(TIME).accepts(text)
    shape, rules = image(TIME, "string>integer", Transform(builtin="rfc3339_to_unix_millis"))
    assert rules == [] and admits(shape, BUILTINS["rfc3339_to_unix_millis"].function(text))


@pytest.mark.parametrize(
    ("low", "high", "time"),
    [(0, 10**12, True), (FIRST_MILLIS, 0, False), (-62_135_596_800_000, LAST_MILLIS, True)],
)
def test_milliseconds_become_times_where_the_calendar_of_the_format_reaches(low: int, high: int, time: bool) -> None:
    millis = {"type": "integer", "minimum": low, "maximum": high}
    shape, rules = image(millis, "integer>string", Transform(builtin="unix_millis_to_rfc3339"))
    assert rules == []
    for end in (low, high):
        text = BUILTINS["unix_millis_to_rfc3339"].function(end)
        assert admits(shape, text) and Validator(TIME).accepts(text) >= time
    assert any("date-time" in one.formats for one in shape.alternatives) == time  # type: ignore[attr-defined]


@pytest.mark.parametrize(("low", "high"), [(FIRST_MILLIS - 1, 0), (0, LAST_MILLIS + 1), (None, 0), (0, None)])
def test_milliseconds_beyond_the_calendar_are_refused(low: int | None, high: int | None) -> None:
    ends = {"minimum": low, "maximum": high}
    millis = {"type": "integer", **{name: end for name, end in ends.items() if end is not None}}
    assert image(millis, "integer>string", Transform(builtin="unix_millis_to_rfc3339"))[1] == ["not_total"]


def test_a_table_with_a_default_takes_containers_and_only_the_default_comes_out() -> None:
    transform = Transform(table={"x": "y"}, default="other")
    shape, rules = image({"type": "object"}, "object>string", transform)
    assert rules == [] and admits(shape, "other") and not admits(shape, "y")


@pytest.mark.parametrize(
    ("number", "text"),
    [(1.0, "1"), (2**60, "1152921504606846976"), (2.0**60, "1152921504606847000"), (1e22, "1e+22"), (0.5, "0.5")],
)
def test_numbers_are_looked_up_by_their_one_text(number: float, text: str) -> None:
    transform = Transform(table={text: "found"})
    assert image({"const": number}, "number>string", transform)[1] == []
    assert make_conversion("number", "string", transform)(Raw(msgspec.json.encode(number))) == Raw(b'"found"')


def test_what_a_failing_table_still_gives_is_known() -> None:
    shape, rules = image({"enum": ["a", "b"]}, "string>integer", Transform(table={"a": 1}))
    assert rules == ["not_total"] and admits(shape, 1) and not admits(shape, 2)
