from __future__ import annotations

import pytest

from headrace.schema.descriptor.nodes import Type
from headrace.schema.expression import ExpressionError, check, faults, parse

TYPES: dict[str, Type] = {
    "i": "i64",
    "f": "f64",
    "s": "str",
    "b": "bool",
    "y": "bytes",
    "t": "datetime",
}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("i + 1", "i64"),
        ("i - i", "i64"),
        ("i * 2.0", "f64"),
        ("i % 3", "i64"),
        ("i / 2", "f64"),
        ("-i", "i64"),
        ("-f", "f64"),
        ("f + null", "f64"),
        ("null + 1", "i64"),
        ("null / null", "f64"),
        ("null + null", None),
        ("null", None),
        ("-null", None),
        ("not null", "bool"),
        ("null and b", "bool"),
        ("i > f", "bool"),
        ("s < 'x'", "bool"),
        ("t >= t", "bool"),
        ("b == true", "bool"),
        ("y != y", "bool"),
        ("i == null", "bool"),
        ("i < null", "bool"),
        ("isnull(y)", "bool"),
        ("cast(s, int)", "i64"),
        ("cast(b, float)", "f64"),
        ("cast(null, str)", "str"),
        ("cast(t, str)", "str"),
        ("quadkey(f, i, 5)", "str"),
        ("t", "datetime"),
        ("y", "bytes"),
    ],
)
def test_an_expression_has_a_type(text: str, kind: Type | None) -> None:
    assert check(parse(text), TYPES) == kind


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x", "unknown_field_reference"),
        ("i + x", "unknown_field_reference"),
        ("Other.i", "unknown_field_reference"),
        ("s + 1", "schema_mismatch"),
        ("s + 's'", "schema_mismatch"),
        ("b + 1", "schema_mismatch"),
        ("t - t", "schema_mismatch"),
        ("-s", "schema_mismatch"),
        ("not i", "schema_mismatch"),
        ("i and b", "schema_mismatch"),
        ("b or s", "schema_mismatch"),
        ("i == s", "schema_mismatch"),
        ("i == b", "schema_mismatch"),
        ("t == s", "schema_mismatch"),
        ("b < b", "schema_mismatch"),
        ("y >= y", "schema_mismatch"),
        ("b < null", "schema_mismatch"),
        ("quadkey(s, i, 5)", "schema_mismatch"),
        ("quadkey(i, i, f)", "schema_mismatch"),
        ("quadkey(i, i, 0)", "invalid_expression"),
        ("quadkey(i, i, 24)", "invalid_expression"),
        ("cast(y, str)", "invalid_cast_target"),
        ("cast(t, int)", "invalid_cast_target"),
        ("cast(i, bytes)", "invalid_cast_target"),
        ("cast(i, money)", "invalid_cast_target"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_code(text: str, code: str) -> None:
    assert [fault.code for fault in faults(parse(text), TYPES)] == [code]
    with pytest.raises(ExpressionError) as refusal:
        check(parse(text), TYPES)
    assert refusal.value.code == code


def test_all_faults_are_found_at_once_and_none_twice() -> None:
    found = faults(parse("(x + 1 > s + 2) and (x < 3) and not i and cast(y, int) == 1"), TYPES)
    assert [fault.code for fault in found] == [
        "unknown_field_reference",
        "schema_mismatch",
        "schema_mismatch",
        "invalid_cast_target",
    ]


def test_a_fault_says_what_there_is() -> None:
    assert faults(parse("amuont > 1"), {"amount": "f64", "user": "str"})[0].message == (
        "there is no field 'amuont' here; there are: amount, user"
    )
    assert faults(parse("user + 1"), {"user": "str"})[0].message == "(user + 1): takes i64 or f64, not str"
