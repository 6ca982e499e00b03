"""What the columns of events must be, by the reference alone, and short ways to make events and definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.query.definition import Definition, decode_exact
from headrace.query.search import Kind
from headrace.query.values import lower, values, words
from headrace.reduce import parts
from headrace.schema import pointer
from headrace.schema.registry import Boundary, Registry

TYPES = {Kind.INTEGER: pa.int64(), Kind.FLOAT: pa.float64(), Kind.DATE: pa.int64(), Kind.BOOL: pa.bool_()}


def field(kind: str, place: Sequence[str], version: int = 1, **more: Any) -> dict[str, Any]:
    analyzer = {"analyzer": "unicode_word_v1"} if kind == "text" else {}
    return {
        "kind": kind,
        "bindings": [{"version": version, "jsonPointer": pointer.text(tuple(place))}],
        **analyzer,
        **more,
    }


def search(fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    clock = {"clock": field("date", ["clock"])}
    return {"primaryTimestampField": "clock", "fields": {**clock, **fields}, **more}


def definition(
    fields: dict[str, Any], lenses: Sequence[dict[str, Any] | None] = (), schema: Any = True, **more: Any
) -> Definition:
    """The definition of a stream with these lenses; None is a break."""
    versions = range(1, len(lenses) + 2)
    registry = Registry(
        schema="s",
        current_version=len(versions),
        search=search(fields, **more),
        boundaries=tuple(Boundary(version - 1, version) for version in versions),
        schemas=dict.fromkeys(versions, schema),
        lenses={version: lens for version, lens in enumerate(lenses, 1) if lens is not None},
        breaks=tuple(version for version, lens in enumerate(lenses, 1) if lens is None),
    )
    made = Definition.of(registry)
    assert made is not None
    return made


def events(payloads: Sequence[str | bytes], versions: Sequence[int] | int = 1) -> pa.Table:
    count = len(payloads)
    texts = [payload if isinstance(payload, str) else payload.decode() for payload in payloads]
    return pa.table(
        {
            "seq": pa.array(range(7, 7 + count), pa.int64()),
            "append_time": pa.array([0] * count, pa.timestamp("us", "UTC")),
            "key": pa.array([None if row % 3 else f"k{row}" for row in range(count)], pa.string()),
            "version": pa.array([versions] * count if isinstance(versions, int) else versions, pa.int32()),
            "first": pa.array([True] * count, pa.bool_()),
            "payload": pa.array(texts, pa.string()),
        }
    )


def columns(made: Definition, documents: Sequence[Any]) -> dict[str, list[list[Any]]]:
    """The values that each column must have in each row, by the promoted documents."""
    found: dict[str, list[list[Any]]] = {}
    for known in made.search.fields.values():
        given = [values(known, document) for document in documents]
        if known.kind is not Kind.TEXT:
            found[f"f.{known.name}"] = given
            continue
        found[f"w.{known.name}"] = [[_spaced(text) for text in texts] for texts in given]
        if known.contains:
            found[f"f.{known.name}"] = [[lower(text) for text in texts] for texts in given]
    return found


def assert_equal(table: pa.Table, made: Definition, documents: Sequence[Any]) -> None:
    """A table is exactly what its promoted documents say; what is beyond int64 is odd."""
    expected = columns(made, documents)
    strange = [row for row in range(len(documents)) if not all(_fits(given[row]) for given in expected.values())]
    assert table.column("odd").to_pylist() == [row in strange for row in range(len(documents))]
    summaries = [parts.column_values(made.search, document) for document in documents]
    assert table.column_names == ["seq", "odd", "key", *expected, *parts.columns(made.search)]
    for name, rows in expected.items():
        given = [[] if row in strange else values for row, values in enumerate(rows)]
        assert _cells(table, name, made) == [[*map(repr, values)] for values in given], name
        assert pa.types.is_list(table.column(name).type) == any(len(values) > 1 for values in given), name
    for name, kind in parts.columns(made.search).items():
        assert table.column(name).type == kind
        assert _plain(table.column(name)) == [
            None if row in strange else values[name] for row, values in enumerate(summaries)
        ]


def _cells(table: pa.Table, name: str, made: Definition) -> list[list[str]]:
    """The values of each row, spelled: 0.0 is not -0.0, and true is not 1."""
    column = table.column(name)
    kind = column.type.value_type if pa.types.is_list(column.type) else column.type
    assert kind == TYPES.get(made.search.fields[name[2:]].kind, pa.string())
    cells = [[] if cell is None else cell if isinstance(cell, list) else [cell] for cell in column.to_pylist()]
    assert all(cell or not given for cell, given in zip(cells, column.is_valid().to_pylist(), strict=True))
    return [[*map(repr, cell)] for cell in cells]


def _plain(column: Any) -> list[Any]:
    return [dict(cell) if isinstance(cell, list) else cell for cell in column.to_pylist()]


def _fits(given: list[Any]) -> bool:
    return all(not isinstance(value, int) or -(2**63) <= value < 2**63 for value in given)


def _spaced(text: str) -> str:
    return f" {' '.join(found)} " if (found := words(text)) else " "


def documents_of(payloads: Sequence[str | bytes]) -> list[Any]:
    return [decode_exact(payload if isinstance(payload, bytes) else payload.encode()) for payload in payloads]
