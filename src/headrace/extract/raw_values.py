"""The JSON text of what lies at pointers in events, for many events at once.

DuckDB finds what a JSON Pointer names just as we do, and spells what it found anew: strings and whole numbers stay what
they were, other numbers stay the same double. It needs a millisecond to begin; a few events are opened one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extract.scalars import is_spelled_alike, may_be_rounded
from headrace.extract.texts import Column, Counts, Flags, Texts, valid
from headrace.reduce import duck
from headrace.schema import pointer as pointers
from headrace.schema.entries import entries_of
from headrace.schema.lens.ops import Wrap
from headrace.schema.lens.pullback import ConstantSource, Either, Rebuild, Stored, ValueSource
from headrace.schema.lens.values import LensFailure, encode_value, find_value_slot
from headrace.schema.pointer import Pointer

#: So few events are opened one by one.
FEW = 256


def read_pointers(
    payloads: Column, wanted: Collection[Pointer], irregular_rows: Flags, few: int = FEW
) -> Mapping[Pointer, Column]:
    """What lies at pointers, by pointer; null where nothing is. Events that are null or unreadable are made odd."""
    places = sorted(set(wanted))
    if not places:
        return {}
    if len(payloads) > few:
        return _read_all(payloads, places, irregular_rows)
    rows = [None if payload is None else _read_one(payload, places) for payload in payloads.to_pylist()]
    irregular_rows |= np.array([row is None for row in rows], np.bool_)
    return {pointer: pa.array([row and row[at] for row in rows], pa.string()) for at, pointer in enumerate(places)}


def elements(arrays: Column, few: int = FEW, *, exact: bool = False) -> tuple[Column, Counts]:
    """The elements of JSON arrays, end to end, and how many each array has; an element may be null.

    With ``exact`` numbers keep all their digits, and not only those of the nearest double.
    """
    if len(arrays) > few and not (exact and may_be_rounded(Texts(arrays)).any()):
        [lists] = _select(arrays, "from_json(payload, '[\"JSON\"]')")
        return lists.flatten(), lists.value_lengths().to_numpy()
    opened = [entries_of(array.strip()[1:-1].encode()) for array in arrays.to_pylist()]
    texts = [bytes(encode_value(value)).decode() for array in opened for value in array]
    return pa.array(texts, pa.string()), np.array([len(array) for array in opened], np.int32)


def each(function: Callable[[bytes], bytes | None], documents: Column) -> Column:
    """The results of a function for documents; null where it returns None or fails."""

    def attempt(document: str | None) -> str | None:
        try:
            made = None if document is None else function(document.encode())
            return None if made is None else made.decode()
        except (LensFailure, RecursionError):
            return None

    return pa.array([attempt(document) for document in documents.to_pylist()], pa.string())


def _read_all(payloads: Column, places: list[Pointer], irregular_rows: Flags) -> Mapping[Pointer, Column]:
    paths = ", ".join("'" + pointers.text(pointer).replace("'", "''") + "'" for pointer in places)
    columns = ["found IS NULL", *(f"found[{number}]" for number in range(1, 1 + len(places)))]
    try:
        unreadable, *texts = _select(payloads, f"json_extract(payload, [{paths}])", columns)
    except duckdb.InvalidInputException:
        readable = f"CASE WHEN json_valid(payload) THEN json_extract(payload, [{paths}]) END"
        unreadable, *texts = _select(payloads, readable, columns)
    irregular_rows |= unreadable.to_numpy(zero_copy_only=False)
    return dict(zip(places, texts, strict=True))


def _select(payloads: Column, expression: str, columns: Sequence[str] = ("found",)) -> list[Column]:
    """Columns made of what an expression finds in events."""
    events = pa.table({"payload": payloads})
    named = ", ".join(f"{column} AS c{number}" for number, column in enumerate(columns))
    made = duck.query(f"SELECT {named} FROM (SELECT {expression} AS found FROM events)", {"events": events})
    return [column.combine_chunks() for column in made.columns]


def _read_one(payload: str, places: list[Pointer]) -> list[str | None] | None:
    """What lies at places in one event, or None where it cannot be read: half a surrogate pair is no character."""
    try:
        holder = entries_of(payload.encode())
    except msgspec.DecodeError:
        return None
    slots = (find_value_slot(holder, 0, pointer) for pointer in places)
    return [None if slot is None else bytes(encode_value(slot[0][slot[1]])).decode() for slot in slots]


class SourceTexts(NamedTuple):
    """The JSON texts at each source, and the events that cannot be read."""

    texts: list[Column]
    irregular_rows: Flags


def read_sources(
    payloads: Column, sources: Sequence[ValueSource], promote: Callable[[bytes], bytes], few: int, exact: Sequence[bool]
) -> SourceTexts:
    """What lies at the sources in events of one version; ``promote`` brings an event to the newest.

    ``exact`` says of which sources all digits of a number are wanted, and not only those of the nearest double.
    """
    irregular_rows = np.zeros(len(payloads), np.bool_)
    stored = read_pointers(
        payloads, [pointer for source in sources for pointer in _pointers(source)], irregular_rows, few
    )
    rebuilt = [source.pointer for source in sources if isinstance(source, Rebuild)]
    newest = read_pointers(each(promote, payloads), rebuilt, irregular_rows, few) if rebuilt else {}
    events = _Events(payloads, stored, newest, irregular_rows)
    texts = [events.text(source, np.ones(len(payloads), np.bool_)) for source in sources]
    for number, (source, is_exact) in enumerate(zip(sources, exact, strict=True)):
        if is_exact:
            texts[number] = events.with_all_digits(source, texts[number])
    return SourceTexts(texts, irregular_rows)


def unwrap(source: ValueSource) -> ValueSource:
    """A source of the same values, where arrays are looked into anyway: one that is put around a value is left out."""
    match source:
        case Stored(pointer, conversions) if all(isinstance(op, Wrap) for op in conversions):
            return Stored(pointer)
        case Either(test, present, absent):
            return Either(test, unwrap(present), unwrap(absent))
    return source


def _pointers(source: ValueSource) -> Iterator[Pointer]:
    match source:
        case Stored(pointer):
            yield pointer
        case Either(test, present, absent):
            yield test
            yield from _pointers(present)
            yield from _pointers(absent)


class _Events(NamedTuple):
    """Events, with what lies in them as they are stored and as they are now."""

    payloads: Column
    stored: Mapping[Pointer, Column]
    newest: Mapping[Pointer, Column]
    irregular_rows: Flags

    def text(self, source: ValueSource, rows: Flags) -> Column:
        """What lies at a source; only some rows matter."""
        match source:
            case Stored(pointer, conversions):
                return self._convert(source, rows) if conversions else self.stored[pointer]
            case Rebuild(pointer=pointer):
                return self.newest[pointer]
            case ConstantSource():
                return pa.repeat((source.evaluate(b"") or b"").decode(), len(self.payloads))
            case Either(test, present, absent):
                there = valid(self.stored[test])
                made = self.text(present, rows & there), self.text(absent, rows & ~there)
                return pc.if_else(pa.array(there), *made)
        return pa.nulls(len(self.payloads), pa.string())

    def with_all_digits(self, source: ValueSource, texts: Column) -> Column:
        """The texts at a source; those that hold a number which DuckDB may have rounded come from the event itself."""
        here = valid(texts)
        may_differ = here.copy()
        may_differ[here] = may_be_rounded(Texts(texts.drop_null()))
        if not may_differ.any():
            return texts
        exact = each(source.evaluate, self.payloads.filter(pa.array(may_differ)))
        self.irregular_rows[np.flatnonzero(may_differ)[~valid(exact)]] = True
        return pc.replace_with_mask(texts, pa.array(may_differ), exact)

    def _convert(self, source: Stored, rows: Flags) -> Column:
        stored = self.stored[source.pointer]
        here = rows & valid(stored)
        by_value, by_event = here.copy(), here.copy()
        by_value[here] = is_spelled_alike(Texts(stored.filter(pa.array(here))))
        by_event &= ~by_value
        distinct = stored.filter(pa.array(by_value)).dictionary_encode()
        values = each(Stored((), source.conversions).evaluate, distinct.dictionary).take(distinct.indices)
        made = pc.replace_with_mask(pa.nulls(len(stored), pa.string()), pa.array(by_value), values)
        events = each(source.evaluate, self.payloads.filter(pa.array(by_event)))
        made = pc.replace_with_mask(made, pa.array(by_event), events)
        self.irregular_rows[here & ~valid(made)] = True
        return made
