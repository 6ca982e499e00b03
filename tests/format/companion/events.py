"""Columns tables made of plain values, and a plain-Python oracle for everything that companions answer about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.extract.postings import VALUE_BITS, is_indexed, term
from headrace.query.definition import Definition
from headrace.query.search import Field, Kind
from headrace.query.values import Canonical, lower, words
from headrace.schema.registry import Registry

FIRST_SEQ = 1_000

TYPES = {
    Kind.KEYWORD: pa.string(),
    Kind.TEXT: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.DATE: pa.int64(),
    Kind.BOOL: pa.bool_(),
}


def _field(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": "/x"}], **more}


DOCUMENT: dict[str, Any] = {
    "primaryTimestampField": "time",
    "defaultFields": [{"field": "message"}, {"field": "request"}],
    "fields": {
        "time": _field("date", column=True),
        "service": _field("keyword", exact=True, prefix=True),
        "service.name": _field("keyword", exact=True, contains=True),
        "request": _field("keyword", column=True),
        "mute": _field("keyword", column=True),
        "status": _field("integer", exact=True, column=True),
        "duration": _field("float", exact=True, column=True),
        "error": _field("bool", exact=True),
        "message": _field("text", analyzer="unicode_word_v1", positions=True, contains=True),
        "why": _field("text", analyzer="unicode_word_v1"),
    },
    "rollups": {"requests": {"intervals": ["1m"], "measures": {"all": {"kind": "count"}}}},
}


def _definition() -> Definition:
    found = Definition.of(Registry(schema="events", current_version=1, schemas={1: True}, search=DOCUMENT))
    assert found is not None
    return found


DEFINITION = _definition()
FIELDS = DEFINITION.search.fields


class Event(NamedTuple):
    """The canonical values of every field, a routing key, and whether the columns cannot describe it."""

    values: Mapping[str, list[Canonical]]
    key: str | None = None
    is_odd: bool = False


def columns_of(events: list[Event], first_seq: int = FIRST_SEQ) -> pa.Table:
    """The columns table that extraction makes of such events."""
    made: dict[str, Any] = {
        "seq": pa.array(range(first_seq, first_seq + len(events)), pa.int64()),
        "odd": pa.array([event.is_odd for event in events], pa.bool_()),
        "key": pa.array([event.key for event in events], pa.string()),
    }
    for name, field in FIELDS.items():
        found = [[] if event.is_odd else event.values.get(name, []) for event in events]
        if field.kind is Kind.TEXT:
            made[f"w.{name}"] = _column([[_spaced(str(text)) for text in texts] for texts in found], pa.string())
            if field.contains:
                made[f"f.{name}"] = _column([[lower(str(text)) for text in texts] for texts in found], pa.string())
        else:
            made[f"f.{name}"] = _column(found, TYPES[field.kind])
    return pa.table(made)


class Oracle:
    """Answers by looking at every event, one by one."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events

    def terms(self, name: str) -> set[str]:
        """Every term of a field."""
        return {found for row in range(len(self.events)) for found, _ in self._terms(row, name)}

    def rows(self, name: str, wanted: str) -> list[int]:
        return [row for row in self._rows() if any(found == wanted for found, _ in self._terms(row, name))]

    def rows_with_prefix(self, name: str, prefix: str) -> list[int]:
        return [row for row in self._rows() if any(found.startswith(prefix) for found, _ in self._terms(row, name))]

    def rows_containing(self, name: str, part: str) -> list[int]:
        is_text = FIELDS[name].kind is Kind.TEXT
        return [
            row
            for row in self._rows()
            if any(part in (lower(str(value)) if is_text else term(value)) for value in self._values(row, name))
        ]

    def occurrences(self, name: str, word: str, *, prefix: bool) -> list[tuple[int, int]]:
        return [
            (row, position)
            for row in self._rows()
            for found, position in self._terms(row, name)
            if (found.startswith(word) if prefix else found == word)
        ]

    def present(self, name: str) -> list[bool]:
        return [bool(self._values(row, name)) for row in self._rows()]

    def column(self, name: str) -> list[Any]:
        """A stored column, every value in a list."""
        prefix, field = name.split(".", 1)
        found = [self._values(row, field) for row in self._rows()]
        if prefix == "n":
            return [[sum(len(words(str(text))) for text in texts)] if texts else None for texts in found]
        if FIELDS[field].kind is Kind.TEXT:
            return [[lower(str(text)) for text in texts] or None for texts in found]
        return [values or None for values in found]

    def irregular_rows(self) -> list[int]:
        return [row for row, event in enumerate(self.events) if event.is_odd]

    def words(self, name: str) -> tuple[int, int]:
        found = [values for row in self._rows() if (values := self._values(row, name))]
        return len(found), sum(len(words(str(text))) for texts in found for text in texts)

    def keys(self, after: str | None, limit: int) -> list[str]:
        known = {event.key for event in self.events if event.key is not None}
        return sorted(key for key in known if after is None or key > after)[:limit]

    def _rows(self) -> range:
        return range(len(self.events))

    def _values(self, row: int, name: str) -> list[Canonical]:
        return [] if self.events[row].is_odd else self.events[row].values.get(name, [])

    def _terms(self, row: int, name: str) -> Iterator[tuple[str, int]]:
        """The terms of an event with their positions, 0 where they have none."""
        if name == "":
            yield from [] if (key := self.events[row].key) is None else [(key, 0)]
            return
        for ordinal, value in enumerate(self._values(row, name)):
            if FIELDS[name].kind is not Kind.TEXT:
                yield term(value), 0
                continue
            for index, word in enumerate(words(str(value))):
                yield word, ordinal << VALUE_BITS | index


def indexed_fields() -> list[Field]:
    """The fields that have postings."""
    return [field for name, field in FIELDS.items() if is_indexed(DEFINITION, name)]


def _spaced(text: str) -> str:
    return f" {' '.join(found)} " if (found := words(text)) else " "


def _column(found: list[list[Any]], kind: Any) -> Any:
    if any(len(given) > 1 for given in found):
        return pa.array([given or None for given in found], pa.list_(kind))
    return pa.array([given[0] if given else None for given in found], kind)
