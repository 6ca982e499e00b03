from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from headrace.query.search import Binding, Field, Kind
from headrace.query.values import canonical, raw_values, values


def field(kind: str, place: tuple[str, ...] = ("f",), **more: Any) -> Field:
    return Field(name="f", kind=Kind(kind), bindings=(Binding(1, place),), **more)


BIG = 2**63 + 1


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("keyword", "Ab c ", "Ab c "),
        ("keyword", "", ""),
        ("keyword", 5, None),
        ("keyword", True, None),
        ("keyword", None, None),
        ("keyword", {"a": 1}, None),
        ("text", "Ab c", "Ab c"),
        ("text", 5, None),
        ("integer", 5, 5),
        ("integer", -0.0, 0),
        ("integer", 5.0, 5),
        ("integer", 1e22, 10**22),
        ("integer", 1e23, 10**23),
        ("integer", Decimal("9007199254740993.0"), 2**53 + 1),
        ("integer", Decimal("9007199254740992.5"), None),
        ("integer", Decimal("1e-400"), None),
        ("integer", Decimal("1e400"), 10**400),
        ("integer", Decimal("1e99999999"), None),
        ("integer", 5.5, None),
        ("integer", BIG, BIG),
        ("integer", str(BIG), BIG),
        ("integer", f" {-BIG}\n", -BIG),
        ("integer", "9" * 4_300, 10**4_300 - 1),
        ("integer", "9" * 4_301, None),
        ("integer", "-" + "9" * 4_300, 1 - 10**4_300),
        ("integer", "-0", 0),
        ("integer", "007", None),
        ("integer", "+5", None),
        ("integer", "5.0", None),
        ("integer", "1e3", None),
        ("integer", "٣", None),
        ("integer", "", None),
        ("integer", True, None),
        ("integer", None, None),
        ("float", 5, 5.0),
        ("float", 1.5, 1.5),
        ("float", " -1.5e3 ", -1500.0),
        ("float", ".5", 0.5),
        ("float", "5.", 5.0),
        ("float", "+5", 5.0),
        ("float", 10**400, None),
        ("float", Decimal("0.1234567890123456789"), 0.12345678901234568),
        ("float", Decimal("1e-400"), 0.0),
        ("float", Decimal("1e400"), None),
        ("float", "1e999", None),
        ("float", "inf", None),
        ("float", "nan", None),
        ("float", "0x10", None),
        ("float", "1_0", None),
        ("float", "", None),
        ("float", False, None),
        ("date", 1_774_432_800_000, 1_774_432_800_000),
        ("date", 1.9, 1),
        ("date", Decimal("9007199254740993.9"), 2**53 + 1),
        ("date", Decimal("1e99999999"), None),
        ("date", "20240501", 1_714_521_600_000),
        ("date", " 00010101 ", -62_135_596_800_000),
        ("date", "20240230", None),
        ("date", "20240501123000", 1_714_566_600_000),
        ("date", "20240501126000", None),
        ("date", "99999999999999", None),
        ("date", "2024122", 1_714_521_600_000),
        ("date", "2024366", 1_735_603_200_000),
        ("date", "2023366", None),
        ("date", "2024000", None),
        ("date", "0001001", -62_135_596_800_000),
        ("date", "99999999", None),
        ("date", "-20240501", -20_240_501),
        ("date", "-123", -123),
        ("date", "-1234567", -1_234_567),
        ("date", "202405011", 202_405_011),
        ("date", "20240501T100000Z", None),
        ("date", "202405", None),
        ("date", "2024050110", None),
        ("date", " 1714521600", None),
        ("date", "-202405", -202_405),
        ("date", 1_714_521_600, 1_714_521_600),
        ("date", "202405011230", 202_405_011_230),
        ("date", -1.9, -1),
        ("date", float("inf"), None),
        ("date", "1774432800000", 1_774_432_800_000),
        ("date", "-5", -5),
        ("date", "2026-03-25T10:00:00Z", 1_774_432_800_000),
        ("date", "2026-03-25t12:00:00.000+02:00", 1_774_432_800_000),
        ("date", "2026-03-25 10:00", 1_774_432_800_000),
        ("date", "2026-03-25T04:30:00-05:30", 1_774_432_800_000),
        ("date", "2026-03-25T10:00:00.1239999Z", 1_774_432_800_123),
        ("date", "2026-03-25T10:00:00.1", 1_774_432_800_100),
        ("date", "1969-12-31T23:59:59.9999Z", -1),
        ("date", "2026-03-25", 1_774_396_800_000),
        ("date", " 2026-03-25\n", 1_774_396_800_000),
        ("date", "2026-03", 1_772_323_200_000),
        ("date", "2026", 1_767_225_600_000),
        ("date", "0001-01-01T00:00:00+23:59", -62_135_683_140_000),
        ("date", "2026-02-30", None),
        ("date", "2026-03-25T24:00:00Z", None),
        ("date", "2026-03-25T10:00:00+24:00", None),
        ("date", "2026-03-25T10:00:00+0200", None),
        ("date", "2026-03-25T10", None),
        ("date", "yesterday", None),
        ("date", "", None),
        ("date", True, None),
        ("bool", True, True),
        ("bool", " False ", False),
        ("bool", "TRUE", True),
        ("bool", "yes", None),
        ("bool", 1, None),
        ("bool", None, None),
    ],
)
def test_a_value_has_one_canonical_form_or_none(kind: str, value: Any, expected: Any) -> None:
    found = canonical(field(kind), value)
    assert found == expected
    assert type(found) is type(expected)


def test_a_negative_zero_is_zero() -> None:
    assert str(canonical(field("float"), -0.0)) == str(canonical(field("float"), "-0")) == "0.0"


def test_a_keyword_is_in_lower_case_only_if_so_declared() -> None:
    assert canonical(field("keyword", lowercase=True), "ÄΣİς") == "äσiσ"
    assert canonical(field("keyword"), "ÄΣİς") == "ÄΣİς"
    assert canonical(field("text", lowercase=True), "Ä") == "Ä"


def test_arrays_are_flattened_in_order_however_deep() -> None:
    deep: Any = 9
    for _ in range(5_000):
        deep = [deep]
    document = {"f": [1, [2, [], [3, None]], {"a": 4}, deep]}
    assert list(raw_values(field("integer"), document)) == [1, 2, 3, None, {"a": 4}, 9]
    assert values(field("integer"), document) == [1, 2, 3, 9]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (("a", "b"), ["x"]),
        (("list", "1", "b"), ["y"]),
        (("list", "2"), []),
        (("list", "01"), []),
        (("list", "-"), []),
        (("a", "b", "c"), []),
        (("none",), []),
        (("none", "x"), []),
        (("a",), []),
        ((), []),
        (("",), ["empty"]),
        (("1",), ["one"]),
    ],
)
def test_a_field_lies_where_its_pointer_says(place: tuple[str, ...], expected: list[str]) -> None:
    document = {"a": {"b": "x"}, "list": [{"b": "x"}, {"b": "y"}], "none": None, "": "empty", "1": "one"}
    assert values(field("keyword", place), document) == expected


@pytest.mark.parametrize("document", [None, 5, "text", [], ["f"], True])
def test_a_document_that_is_no_object_has_no_fields(document: Any) -> None:
    assert values(field("keyword"), document) == []


def test_the_whole_document_can_be_a_value() -> None:
    assert values(field("integer", ()), [3, "4", None]) == [3, 4]
