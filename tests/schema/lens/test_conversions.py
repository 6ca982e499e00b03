"""What convert does to one value and to a shape: types, tables, and the functions known by name."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schema.document import Validator
from headrace.schema.lens.conversions import (
    BUILTINS,
    FIRST_MILLIS,
    LAST_MILLIS,
    LOWERCASE_GROWTH,
    TYPES,
    UPPERCASE_GROWTH,
    convert_shape,
    is_type,
    make_conversion,
    text_of,
)
from headrace.schema.lens.ops import Convert, Transform
from headrace.schema.lens.values import LensFailure, Raw
from headrace.schema.shape.model import Shape
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root
from schema.membership import admits

scalars = st.none() | st.booleans() | st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


def converted(value: str, from_type: str, to_type: str, **transform: Any) -> str:
    return bytes(make_conversion(from_type, to_type, Transform(**transform))(Raw(value.encode()))).decode()


def by_name(name: str, value: str) -> str:
    types = {"i": "integer", "u": "integer"}
    to_type = "integer" if name.endswith(("_int", "_millis")) else "string"
    return converted(value, types.get(name[0], "string") if "_to_" in name else "string", to_type, builtin=name)


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("lowercase", '"ÄBC x"', '"äbc x"'),
        ("uppercase", r'"\u00e4\u0062"', '"ÄB"'),
        ("string_to_int", '"42"', "42"),
        ("string_to_int", '"-007"', "-7"),
        ("string_to_int", '"+5"', "5"),
        ("string_to_int", '"-0"', "0"),
        ("string_to_int", '"  12 apples"', "12"),
        ("string_to_int", '"3.9"', "3"),
        ("string_to_int", '"12345678901234567890123"', "12345678901234567890123"),
        ("int_to_string", "42", '"42"'),
        ("int_to_string", "-0", '"0"'),
        ("int_to_string", "1.0", '"1"'),
        ("int_to_string", "1e5", '"100000"'),
        ("int_to_string", "9007199254740993", '"9007199254740993"'),
        ("int_to_string", "1e23", '"100000000000000000000000"'),
        ("int_to_string", "-1.5e400", f'"-15{"0" * 399}"'),
        ("int_to_string", "1e4299", f'"1{"0" * 4299}"'),
        ("int_to_string", "1e4300", '"1e+4300"'),
        ("int_to_string", "2e999999999", '"2e+999999999"'),
        ("rfc3339_to_unix_millis", '"1970-01-01T00:00:00Z"', "0"),
        ("rfc3339_to_unix_millis", '"2024-02-29T12:30:45.123456789+02:00"', "1709202645123"),
        ("rfc3339_to_unix_millis", '"1969-12-31T23:59:59.9999Z"', "-1"),
        ("rfc3339_to_unix_millis", '"2016-12-31T23:59:60Z"', "1483228800000"),
        ("rfc3339_to_unix_millis", '"0000-01-01T00:00:00Z"', str(FIRST_MILLIS)),
        ("rfc3339_to_unix_millis", '"9999-12-31t23:59:59.999z"', str(LAST_MILLIS)),
        ("unix_millis_to_rfc3339", "0", '"1970-01-01T00:00:00.000Z"'),
        ("unix_millis_to_rfc3339", "1709202645123", '"2024-02-29T10:30:45.123Z"'),
        ("unix_millis_to_rfc3339", "-1", '"1969-12-31T23:59:59.999Z"'),
        ("unix_millis_to_rfc3339", "1e3", '"1970-01-01T00:00:01.000Z"'),
        ("unix_millis_to_rfc3339", str(FIRST_MILLIS), '"0000-01-01T00:00:00.000Z"'),
        ("unix_millis_to_rfc3339", str(LAST_MILLIS), '"9999-12-31T23:59:59.999Z"'),
    ],
)
def test_a_builtin_converts(name: str, value: str, result: str) -> None:
    assert by_name(name, value) == result


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lowercase", "1"),
        ("uppercase", "null"),
        ("string_to_int", '"apples"'),
        ("string_to_int", '""'),
        ("string_to_int", '"٣"'),
        ("string_to_int", "7"),
        ("int_to_string", "1.5"),
        ("int_to_string", "true"),
        ("int_to_string", '"1"'),
        ("int_to_string", "1.00000000000000000000000001"),
        ("int_to_string", "1." + "0" * 1_000),
        ("int_to_string", "1e-400"),
        ("string_to_int", f'"{"9" * 4_301}"'),
        ("int_to_string", "{}"),
        ("rfc3339_to_unix_millis", '"2024-02-30T00:00:00Z"'),
        ("rfc3339_to_unix_millis", '"2024-01-01"'),
        ("rfc3339_to_unix_millis", '"1700000000000"'),
        ("rfc3339_to_unix_millis", '""'),
        ("unix_millis_to_rfc3339", str(FIRST_MILLIS - 1)),
        ("unix_millis_to_rfc3339", str(LAST_MILLIS + 1)),
    ],
)
def test_a_builtin_refuses_what_it_cannot_convert(name: str, value: str) -> None:
    with pytest.raises(LensFailure):
        by_name(name, value)


@given(st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31)))
def test_times_agree_with_the_calendar_both_ways(moment: datetime) -> None:
    millis = (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    text = json.dumps(moment.isoformat(timespec="milliseconds") + "Z")
    assert by_name("rfc3339_to_unix_millis", text) == str(millis)
    assert by_name("unix_millis_to_rfc3339", str(millis)) == text


@given(st.integers())
def test_integers_survive_the_way_to_text_and_back(number: int) -> None:
    assert by_name("string_to_int", by_name("int_to_string", str(number))) == str(number)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        ("", ""),
        (True, "true"),
        (False, "false"),
        (None, "null"),
        (1, "1"),
        (1.0, "1"),
        (-0.0, "0"),
        (100000.0, "100000"),
        (0.5, "0.5"),
        (-1.25, "-1.25"),
        (123456.789, "123456.789"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.5e-10, "1.5e-10"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (10**21, "1e+21"),
        (1.25e300, "1.25e+300"),
        (10**21 + 1, "1.000000000000000000001e+21"),
        (9007199254740993, "9007199254740993"),
        (-(10**400), "-1e+400"),
        (0, "0"),
        (0.0, "0"),
        (Decimal("1.50"), "1.5"),
        (Decimal("1E+2"), "100"),
        (Decimal("1e400"), "1e+400"),
        (Decimal("-0.00"), "0"),
        (Decimal("0.1000000000000000055511151231257827"), "0.1000000000000000055511151231257827"),
    ],
)
def test_a_table_knows_a_value_by_its_canonical_text(value: Any, text: str) -> None:
    assert text_of(value) == text


@given(scalars.filter(lambda value: isinstance(value, int | float) and not isinstance(value, bool)))
def test_equal_numbers_have_equal_texts(number: float) -> None:
    assert float(text_of(number)) == float(number)
    assert text_of(number) == text_of(json.loads(text_of(number), parse_float=Decimal))


@given(scalars | st.just({}) | st.just([]), st.sampled_from(TYPES))
def test_types_are_those_of_json_schema(value: Any, name: str) -> None:
    assert is_type(value, name) == jsonschema_rs.is_valid({"type": name}, value)


@pytest.mark.parametrize(
    ("value", "from_type", "key"),
    [
        ('"a"', "string", "a"),
        (r'"\u0061"', "string", "a"),
        ("true", "boolean", "true"),
        ("null", "null", "null"),
        ("1", "integer", "1"),
        ("1.0", "integer", "1"),
        ("1e0", "number", "1"),
        ("2.50", "number", "2.5"),
        ("-0.0", "number", "0"),
        ("1e400", "number", "1e+400"),
        ("1.00000000000000000000000001", "number", "1.00000000000000000000000001"),
    ],
)
def test_a_table_is_asked_for_the_text_of_the_value(value: str, from_type: str, key: str) -> None:
    assert converted(value, from_type, "string", table={key: "found"}) == '"found"'


@pytest.mark.parametrize("default", [0, "", False, None, 1.5])
def test_a_missing_entry_takes_any_default_that_is_given(default: Any) -> None:
    to_type = next(name for name in ("integer", "number", "string", "boolean", "null") if is_type(default, name))
    assert json.loads(converted('"x"', "string", to_type, table={}, default=default)) == default


def test_a_missing_entry_without_default_fails() -> None:
    with pytest.raises(LensFailure, match="no entry for 'x'"):
        converted('"x"', "string", "string", table={"y": "z"})


@pytest.mark.parametrize("value", ['{"a":1}', '{"a":1e400}', '{"a":' * 5_000 + "1" + "}" * 5_000])
def test_a_container_has_no_text_and_takes_the_default(value: str) -> None:
    assert converted(value, "object", "null", table={"object": 1}, default=None) == "null"
    with pytest.raises(LensFailure, match="no entry for object"):
        converted(value, "object", "null", table={})
    with pytest.raises(LensFailure, match="not of type array"):
        converted(value, "array", "null", table={}, default=None)


@pytest.mark.parametrize(("from_type", "to_type"), [("integer", "string"), ("string", "boolean")])
def test_types_are_checked_on_both_sides(from_type: str, to_type: str) -> None:
    with pytest.raises(LensFailure, match="not of type"):
        converted('"a"', from_type, to_type, table={"a": "b"}, default="c")
    with pytest.raises(LensFailure, match="not of type"):
        converted('"other"', from_type, to_type, table={"a": "b"}, default="c")


def test_an_entry_of_the_wrong_type_does_not_give_way_to_the_default() -> None:
    with pytest.raises(LensFailure, match="the result is not of type string"):
        converted('"a"', "string", "string", table={"a": 1}, default="c")


def test_a_result_is_not_made_anew_for_each_event() -> None:
    convert = make_conversion("string", "string", Transform(table={"a": "b"}))
    assert convert(Raw(b'"a"')) is convert(Raw(b'"a"'))
    assert msgspec.json.encode({"x": convert(Raw(b'"a"'))}) == b'{"x":"b"}'


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
