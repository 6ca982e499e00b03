"""The JSON text of what lies at pointers in events, for many events at once.

DuckDB finds what a JSON Pointer names just as we do, and spells what it found anew: strings and whole numbers stay what
they were, other numbers stay the same double. It needs a millisecond to begin; a few events are opened one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import duckdb
import msgspec
import numpy as np
import pyarrow as pa

from headrace.extract.scalars import may_be_rounded
from headrace.extract.texts import Column, Counts, Flags, Texts
from headrace.reduce import duck
from headrace.schema import pointer as pointers
from headrace.schema.lens.values import LensFailure, encoded, entries, found
from headrace.schema.pointer import Pointer

#: So few events are opened one by one.
FEW = 256


def at_pointers(payloads: Column, wanted: Collection[Pointer], odd: Flags, few: int = FEW) -> Mapping[Pointer, Column]:
    """What lies at pointers, by pointer; null where nothing is. Events that are null or unreadable are made odd."""
    places = sorted(set(wanted))
    if not places:
        return {}
    if len(payloads) > few:
        return _at_once(payloads, places, odd)
    rows = [None if payload is None else _opened(payload, places) for payload in payloads.to_pylist()]
    odd |= np.array([row is None for row in rows], np.bool_)
    return {place: pa.array([row and row[at] for row in rows], pa.string()) for at, place in enumerate(places)}


def elements(arrays: Column, few: int = FEW, *, exact: bool = False) -> tuple[Column, Counts]:
    """The elements of JSON arrays, end to end, and how many each array has; an element may be null.

    With ``exact`` numbers keep all their digits, and not only those of the nearest double.
    """
    if len(arrays) > few and not (exact and may_be_rounded(Texts(arrays)).any()):
        [lists] = _selected(arrays, "from_json(payload, '[\"JSON\"]')")
        return lists.flatten(), lists.value_lengths().to_numpy()
    opened = [entries(array.strip()[1:-1].encode()) for array in arrays.to_pylist()]
    texts = [bytes(encoded(value)).decode() for array in opened for value in array]
    return pa.array(texts, pa.string()), np.array([len(array) for array in opened], np.int32)


def each(function: Callable[[bytes], bytes | None], documents: Column) -> Column:
    """What a function makes of documents; null where it makes nothing or fails."""

    def attempt(document: str | None) -> str | None:
        try:
            made = None if document is None else function(document.encode())
            return None if made is None else made.decode()
        except (LensFailure, RecursionError):
            return None

    return pa.array([attempt(document) for document in documents.to_pylist()], pa.string())


def _at_once(payloads: Column, places: list[Pointer], odd: Flags) -> Mapping[Pointer, Column]:
    paths = ", ".join("'" + pointers.text(place).replace("'", "''") + "'" for place in places)
    columns = ["found IS NULL", *(f"found[{number}]" for number in range(1, 1 + len(places)))]
    try:
        unreadable, *texts = _selected(payloads, f"json_extract(payload, [{paths}])", columns)
    except duckdb.InvalidInputException:
        readable = f"CASE WHEN json_valid(payload) THEN json_extract(payload, [{paths}]) END"
        unreadable, *texts = _selected(payloads, readable, columns)
    odd |= unreadable.to_numpy(zero_copy_only=False)
    return dict(zip(places, texts, strict=True))


def _selected(payloads: Column, expression: str, columns: Sequence[str] = ("found",)) -> list[Column]:
    """Columns made of what an expression finds in events."""
    events = pa.table({"payload": payloads})
    named = ", ".join(f"{column} AS c{number}" for number, column in enumerate(columns))
    made = duck.query(f"SELECT {named} FROM (SELECT {expression} AS found FROM events)", {"events": events})
    return [column.combine_chunks() for column in made.columns]


def _opened(payload: str, places: list[Pointer]) -> list[str | None] | None:
    """What lies at places in one event, or None where it cannot be read: half a surrogate pair is no character."""
    try:
        holder = entries(payload.encode())
    except msgspec.DecodeError:
        return None
    slots = (found(holder, 0, place) for place in places)
    return [None if slot is None else bytes(encoded(slot[0][slot[1]])).decode() for slot in slots]
