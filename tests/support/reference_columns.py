"""The columns of events, made by the reference: what extraction has to make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.query.search import Field, Kind, Search
from headrace.query.values import lower, values, words
from headrace.reduce import parts

TYPES = {
    Kind.KEYWORD: pa.string(),
    Kind.TEXT: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.DATE: pa.int64(),
    Kind.BOOL: pa.bool_(),
}


def table(
    search: Search, documents: Sequence[Any], *, first_seq: int = 0, keys: Sequence[str | None] | None = None
) -> pa.Table:
    """The columns table of events of the newest shape."""
    odd = [is_odd(search, document) for document in documents]
    seqs = range(first_seq, first_seq + len(documents))
    found: dict[str, Any] = {
        "seq": pa.array(seqs, pa.int64()),
        "odd": pa.array(odd, pa.bool_()),
        "key": pa.array(keys or [None] * len(documents), pa.string()),
    }
    plain = [None if left_out else document for left_out, document in zip(odd, documents, strict=True)]
    for field in search.fields.values():
        given = [values(field, document) for document in plain]
        if field.kind is Kind.TEXT:
            found[f"w.{field.name}"] = column([[spaced(text) for text in texts] for texts in given], pa.string())
            if field.contains or field.name in search.contains_default_fields:
                found[f"f.{field.name}"] = column([[lower(text) for text in texts] for texts in given], pa.string())
        else:
            found[f"f.{field.name}"] = column(given, TYPES[field.kind])
    summaries = [parts.column_values(search, document) for document in plain]
    for name, kind in parts.columns(search).items():
        found[name] = pa.array([summary[name] for summary in summaries], kind)
    return pa.table(found)


def is_odd(search: Search, document: Any) -> bool:
    """Whether columns cannot hold an event."""
    return any(not fits(field, document) for field in search.fields.values())


def fits(field: Field, document: Any) -> bool:
    """Whether a column can hold the values of an event."""
    given = values(field, document)
    if field.kind in {Kind.INTEGER, Kind.DATE}:
        return all(-(2**63) <= value < 2**63 for value in given)
    return not any("\ud800" <= character <= "\udfff" for text in given if isinstance(text, str) for character in text)


def spaced(text: str) -> str:
    """The words of a text with a blank before, between and after."""
    return f" {' '.join(found)} " if (found := words(text)) else " "


def column(given: Sequence[Sequence[Any]], kind: pa.DataType) -> pa.Array:
    """Scalars, or lists where any event has several values; null where it has none."""
    if any(len(values) > 1 for values in given):
        return pa.array([values or None for values in given], pa.list_(kind))
    return pa.array([values[0] if values else None for values in given], kind)
