"""What the golden companion of format version 1 holds, all of it spelled out.

Its files beside this module were written once, and are never written again: every later Headrace must read them. Run as
a program, this writes them only if they are missing.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.format.companion.layout import CompanionInfo, FieldShape, Limits
from headrace.format.companion.postings import SCHEMA
from headrace.format.companion.writer import write

HERE = Path(__file__).parent
NAME = "0000000000004000-10-golden"

INFO = CompanionInfo(
    stream="orders/größe",
    incarnation="0000000007",
    first_seq=4000,
    count=10,
    level=2,
    segments=3,
    through_version=5,
    fields={
        "time": FieldShape("date", many=False, indexed=False, hash="00112233445566aa"),
        "tags": FieldShape("keyword", many=True, indexed=True, hash="00112233445566bb"),
        "status": FieldShape("integer", many=False, indexed=True, hash="00112233445566cc"),
        "took": FieldShape("float", many=False, indexed=True, hash="00112233445566dd"),
        "error": FieldShape("bool", many=False, indexed=True, hash="00112233445566ee"),
        "message": FieldShape("text", many=True, indexed=True, hash="00112233445566ff"),
    },
    rollups={"requests": "ffeeddccbbaa9988"},
    keys=True,
    times=(-5, 1_763_200_000_000),
    words={"message": (5, 12)},
    odd=1,
)

#: Stored columns; the last row but one is odd.
COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    "seq": (pa.int64(), [*range(4000, 4010)]),
    "odd": (pa.bool_(), [False] * 8 + [True, False]),
    "f.time": (pa.int64(), [-5, 0, 1, 1_763_200_000_000, None, 2, 2, 2, None, 3]),
    "f.tags": (
        pa.list_(pa.string()),
        [["a", "b"], ["ab"], None, ["\0"], ["a", "a"], ["Größe"], ["\U0001f600", '"'], None, None, [""]],
    ),
    "f.status": (pa.int64(), [200, 404, 200, 2**63 - 1, -(2**63), 200, None, 200, None, 200]),
    "f.took": (pa.float64(), [0.1, 1.0, 1e20, None, -2.5, 5e-324, 0.0, 0.1, None, 0.1]),
    "f.error": (pa.bool_(), [True, False, None, False, True, None, False, False, None, False]),
    "n.message": (pa.int32(), [3, None, 0, 5, None, 1, None, None, None, 3]),
    "f.message": (
        pa.list_(pa.string()),
        [
            ["one two", "one"],
            None,
            ["-"],
            ["größe 10 größe", "two, one"],
            None,
            ["onetwo"],
            None,
            None,
            None,
            ["one one one"],
        ],
    ),
}

#: Field → term → rows, and positions for a text field.
POSTINGS: dict[str, dict[str, tuple[list[int], list[int] | None]]] = {
    "": {"": ([1], None), "key": ([0, 2, 3, 8], None), "größe": ([9], None)},
    "error": {"false": ([1, 3, 6, 7, 9], None), "true": ([0, 4], None)},
    "message": {
        "10": ([3], [1]),
        "größe": ([3, 3], [0, 2]),
        "one": ([0, 0, 3, 9, 9, 9], [0, 1 << 20, 1 << 20 | 1, 0, 1, 2]),
        "onetwo": ([5], [0]),
        "two": ([0, 3], [1, 1 << 20]),
    },
    "status": {
        "-9223372036854775808": ([4], None),
        "200": ([0, 2, 5, 7, 9], None),
        "404": ([1], None),
        "9223372036854775807": ([3], None),
    },
    "tags": {
        "": ([9], None),
        "\0": ([3], None),
        '"': ([6], None),
        "Größe": ([5], None),
        "a": ([0, 4], None),
        "ab": ([1], None),
        "b": ([0], None),
        "\U0001f600": ([6], None),
    },
    "took": {
        "-2.5": ([4], None),
        "0.0": ([6], None),
        "0.1": ([0, 7, 9], None),
        "1.0": ([1], None),
        "1e+20": ([2], None),
        "5e-324": ([5], None),
    },
}

PANES_SCHEMA = pa.schema(
    [
        ("rollup", pa.string()),
        ("interval", pa.int64()),
        ("pane", pa.int64()),
        ("key", pa.string()),
        ("measure", pa.string()),
        ("count", pa.int64()),
        ("sum", pa.float64()),
        ("sum_int", pa.decimal128(38, 0)),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("min_int", pa.int64()),
        ("max_int", pa.int64()),
        ("histogram", pa.map_(pa.int32(), pa.int64())),
        ("sketch", pa.binary()),
    ]
)
PANES: list[dict[str, Any]] = [
    {name: row.get(name) for name in PANES_SCHEMA.names}
    for row in (
        {"rollup": "requests", "interval": 1000, "pane": -1000, "key": "[null]", "measure": "all", "count": 1},
        {
            "rollup": "requests",
            "interval": 1000,
            "pane": 0,
            "key": '["Größe"]',
            "measure": "took",
            "count": 2,
            "sum": 1.5,
            "sum_int": Decimal(10**37),
            "min": -0.5,
            "max": 2.0,
            "min_int": -(2**63),
            "max_int": 2**63 - 1,
            "histogram": [(-3, 1), (10, 2**40)],
            "sketch": bytes(range(256)),
        },
        {"rollup": "requests", "interval": 60_000, "pane": -60_000, "key": "[null]", "measure": "all", "count": 3},
    )
]


def columns() -> pa.Table:
    """The stored columns."""
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in COLUMNS.items()})


def postings() -> pa.Table:
    """The postings, sorted."""
    rows = [
        {"field": field, "term": term, "rows": found, "positions": positions}
        for field, terms in sorted(POSTINGS.items())
        for term, (found, positions) in sorted(terms.items())
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def main() -> None:
    """Write the files if they are missing."""
    if not any(HERE.glob(f"{NAME}.*.parquet")):
        panes = pa.Table.from_pylist(PANES, schema=PANES_SCHEMA)
        tables = {"columns": columns(), "postings": postings(), "panes": panes}
        print(write(HERE, INFO, unique="golden", limits=Limits(rows=4, postings=4, terms=3), **tables))


if __name__ == "__main__":
    main()
