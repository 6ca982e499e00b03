"""What expressions mean, by example: each is asked of the Python function and of DuckDB."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headrace.schema.descriptor.nodes import Type
from headrace.schema.expression import compiled, parse, sql
from schema.expression.ducks import answers

TYPES: dict[str, Type] = {
    "i": "i64",
    "j": "i64",
    "f": "f64",
    "g": "f64",
    "s": "str",
    "b": "bool",
    "c": "bool",
    "y": "bytes",
    "t": "datetime",
    "u": "datetime",
}
GREATEST, LEAST = 2**63 - 1, -(2**63)
MOST = 1.7976931348623157e308

CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("i + 1", {"i": 2}, 3),
    ("i + 1", {"i": None}, None),
    ("i + 1", {}, None),
    ("i + 1", {"i": GREATEST}, GREATEST),
    ("i - 1", {"i": LEAST}, LEAST),
    ("i * i", {"i": LEAST}, GREATEST),
    ("i * -1", {"i": LEAST}, GREATEST),
    ("-i", {"i": LEAST}, GREATEST),
    ("i / 2", {"i": 3}, 1.5),
    ("i / j", {"i": 6, "j": 3}, 2.0),
    ("i / 0", {"i": 3}, None),
    ("f / 0.0", {"f": 3.0}, None),
    ("f / g", {"f": 3.0, "g": -0.0}, None),
    ("i % 3", {"i": -7}, -1),
    ("i % -3", {"i": 7}, 1),
    ("i % 0", {"i": 7}, None),
    ("i % -1", {"i": LEAST}, 0),
    ("f % 2", {"f": -5.5}, -1.5),
    ("f % 0", {"f": 1.0}, None),
    ("f * 10", {"f": MOST}, None),
    ("f + f", {"f": MOST}, None),
    ("f - g", {"f": -MOST, "g": MOST}, None),
    ("f * 10 > 0 or true", {"f": MOST}, True),
    ("i + f", {"i": 1, "f": 0.5}, 1.5),
    ("i == f", {"i": 2**53 + 1, "f": float(2**53)}, True),
    ("i < 2.5", {"i": 2}, True),
    ("s < 'b'", {"s": "a"}, True),
    ("s == 'it\\'s'", {"s": "it's"}, True),
    ("s < '\U0001f389'", {"s": "\uffee"}, True),
    ("s == 'x'", {"s": None}, None),
    ("s != 'x'", {"s": None}, None),
    ("b and c", {"b": False, "c": None}, False),
    ("b and c", {"b": None, "c": False}, False),
    ("b and c", {"b": True, "c": None}, None),
    ("b or c", {"b": True, "c": None}, True),
    ("b or c", {"b": None, "c": True}, True),
    ("b or c", {"b": False, "c": None}, None),
    ("not b", {"b": None}, None),
    ("not b", {"b": False}, True),
    ("i == null", {"i": None}, True),
    ("i != null", {"i": None}, False),
    ("i < null", {"i": 1}, None),
    ("null", {}, None),
    ("null and false", {}, False),
    ("isnull(i / j)", {"i": 1, "j": 0}, True),
    ("y == y", {"y": "AA=="}, True),
    ("t == u", {"t": "2026-01-01T00:00:00Z", "u": "2026-01-01T02:00:00+02:00"}, True),
    ("t < u", {"t": "2026-01-01T00:00:00.9Z", "u": "2026-01-01T00:00:00.90001Z"}, True),
    ("t == u", {"t": "2026-01-01T00:00:00.1234567Z", "u": "2026-01-01T00:00:00.123456Z"}, True),
    ("t < u", {"t": "0001-01-01T00:00:00+23:59", "u": "9999-12-31T23:59:59.999999-23:59"}, True),
    ("cast(s, int)", {"s": "-42"}, -42),
    ("cast(s, int)", {"s": "0042"}, 42),
    ("cast(s, int)", {"s": "+42"}, None),
    ("cast(s, int)", {"s": " 42"}, None),
    ("cast(s, int)", {"s": "42\n"}, None),
    ("cast(s, int)", {"s": "4.2"}, None),
    ("cast(s, int)", {"s": ""}, None),
    ("cast(s, int)", {"s": "٣"}, None),
    ("cast(s, int)", {"s": "9223372036854775808"}, None),
    ("cast(s, int)", {"s": "-9223372036854775808"}, LEAST),
    ("cast(s, int)", {"s": "9" * 5000}, None),
    ("cast(s, int)", {"s": "0" * 5000 + "7"}, 7),
    ("cast(s, float)", {"s": "1e3"}, 1000.0),
    ("cast(s, float)", {"s": ".5"}, 0.5),
    ("cast(s, float)", {"s": "5."}, 5.0),
    ("cast(s, float)", {"s": "1e999"}, None),
    ("cast(s, float)", {"s": "inf"}, None),
    ("cast(s, float)", {"s": "nan"}, None),
    ("cast(s, float)", {"s": "1_000"}, None),
    ("cast(s, bool)", {"s": "true"}, True),
    ("cast(s, bool)", {"s": "false"}, False),
    ("cast(s, bool)", {"s": "True"}, None),
    ("cast(f, int)", {"f": 2.9}, 2),
    ("cast(f, int)", {"f": -2.9}, -2),
    ("cast(f, int)", {"f": 9.3e18}, None),
    ("cast(f, int)", {"f": float(2**63)}, None),
    ("cast(f, int)", {"f": -float(2**63)}, LEAST),
    ("cast(f, str)", {"f": 1.0}, "1.0"),
    ("cast(f, str)", {"f": 1e16}, "1e+16"),
    ("cast(f, str)", {"f": 0.00001}, "1e-05"),
    ("cast(f, str)", {"f": -0.0}, "-0.0"),
    ("cast(f, bool)", {"f": 0.5}, True),
    ("cast(f, bool)", {"f": -0.0}, False),
    ("cast(i, str)", {"i": -5}, "-5"),
    ("cast(i, bool)", {"i": 0}, False),
    ("cast(i, float)", {"i": 2**53 + 1}, float(2**53)),
    ("cast(b, int)", {"b": True}, 1),
    ("cast(b, float)", {"b": False}, 0.0),
    ("cast(b, str)", {"b": True}, "true"),
    ("cast(t, str)", {"t": "2026-01-01T00:00:00.100Z"}, "2026-01-01T00:00:00.100Z"),
    ("cast(null, int) + 1", {}, None),
    ("quadkey(f, g, 3)", {"f": 47.61, "g": -122.33}, "021"),
    ("quadkey(f, g, 9)", {"f": 0.0, "g": 0.0}, "300000000"),
    ("quadkey(f, g, 4)", {"f": 90.0, "g": 180.0}, "1111"),
    ("quadkey(f, g, 4)", {"f": -90.0, "g": -500.0}, "2222"),
    ("quadkey(f, g, i)", {"f": 1.0, "g": 1.0, "i": 0}, None),
    ("quadkey(f, g, i)", {"f": 1.0, "g": 1.0, "i": 24}, None),
    ("quadkey(f, g, 5)", {"f": None, "g": 1.0}, None),
]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize(("text", "row", "value"), CASES)
def test_python_gives(text: str, row: dict[str, Any], value: Any) -> None:
    found = compiled(parse(text), TYPES)(row)
    assert same(found, value), (text, row, found)


def test_duckdb_gives_the_same() -> None:
    found = answers([(parse(text), row) for text, row, _ in CASES], TYPES)
    wrong = [(case, answer) for case, answer in zip(CASES, found, strict=True) if not same(answer, case[2])]
    assert wrong == []


def test_deep_expressions_are_answered_by_python_and_up_to_64_by_duckdb() -> None:
    def nested(levels: int) -> list[str]:
        inner = ("i + 1)", "i)", "b)")
        return [
            f"{'(' * levels}{inner[0]}{' + 1)' * (levels - 1)}",
            f"{'(1 / ' * levels}{inner[1]}{')' * (levels - 1)}",
            f"{'(not ' * levels}{inner[2]}{')' * (levels - 1)}",
        ]

    row = {"i": 1, "b": True}
    for levels, sums in ((63, [64, 1.0, False]), (511, [512, 1.0, False])):
        asked = [parse(text) for text in nested(levels)]
        assert [compiled(expr, TYPES)(row) for expr in asked] == sums
        assert [sql(expr, TYPES) is None for expr in asked] == [levels > 64] * 3
        if levels < 64:
            assert answers([(expr, row) for expr in asked], TYPES) == sums
