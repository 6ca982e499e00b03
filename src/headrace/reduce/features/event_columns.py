"""The stored events of a source as columns, decoded once for all its tables.

Events are decoded into structs of the fields that are needed, in their types. A slice of events with a number that is
spelled as one of another type, or with anything else that a struct does not take, is decoded value by value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace import decoding
from headrace.reduce.features.bound_events import (
    CHECKED_TEXTS,
    DECODED_TYPES,
    REASON,
    BoundShapes,
    FieldsDecoder,
    ahead_reason,
)
from headrace.reduce.features.column_expressions import to_column
from headrace.reduce.features.event_time import UNFIT_MS, EventTime
from headrace.reduce.features.events import EventShapes
from headrace.reduce.states.definition import EventRun
from headrace.schema.date_time import PATTERN as DATE_TIME
from headrace.schema.descriptor.nodes import BASE64, UNFIT, Event, Type, coerce_value

#: The columns of sequence numbers and of the times in ms by which rows are folded (`event_time.LATE_MS` for late ones);
#: no field can have these names.
SEQ, AT_MS = "$seq", "$at_ms"

_FEW_TEXTS = 500


class SourceColumns:
    """Gathers the fields of events, slice by slice."""

    def __init__(self, shapes: EventShapes, event: Event, fields: Sequence[str]) -> None:
        self._shapes = shapes
        self._kept = list(fields)
        if event.timestamp_field is not None and event.timestamp_field not in fields:
            fields = [*fields, event.timestamp_field]
        self._types = {name: event.schema[name].type for name in fields}
        names = [f"f{number}" for number in range(len(fields))]
        typed = [
            (name, DECODED_TYPES[event.schema[field].type], event.schema[field].default)
            for name, field in zip(names, fields, strict=True)
        ]
        struct = msgspec.defstruct("Fields", typed, rename=dict(zip(names, fields, strict=True)), gc=False)
        self._decode = decoding.make_decoder(list[struct]).decode  # type: ignore[valid-type]
        self._values = [attrgetter(name) for name in names]
        self._slices: list[pa.Table] = []
        self.count = 0

    def add(self, run: EventRun) -> None:
        """Take the next events."""
        rows, is_fit = _with_times(self._columns(run), run, self._shapes.event_time, self._kept)
        self._slices.append(rows if is_fit is None else rows.filter(pa.array(is_fit)))
        self.count += len(run.times_us)

    def table(self) -> pa.Table:
        """All of them."""
        return number_texts(pa.concat_tables(self._slices)) if self._slices else pa.table({})

    def _columns(self, run: EventRun) -> dict[str, pa.Array]:
        try:
            rows = self._decode(b"[" + self._shapes.newest_body(run.body, run.version) + b"]")
            values = [list(map(of, rows)) for of in self._values]
        except msgspec.ValidationError:
            return columns_of(self._types, self._shapes.events(run.body, run.version))
        return {name: to_column(held, kind) for (name, kind), held in zip(self._types.items(), values, strict=True)}


class BoundColumns:
    """Gathers the fields of events of a stream that a source is bound to, and apart from them why others do not fit."""

    def __init__(self, shapes: BoundShapes, fields: Sequence[str]) -> None:
        self._shapes, self._fields = shapes, fields
        self._slices: list[pa.Table] = []
        self._unfit: list[tuple[int, int, str]] = []
        self.count = 0

    def add(self, run: EventRun) -> None:
        """Take the next events."""
        decoder, event_time = self._shapes.fields(run.version), self._shapes.event_time
        body = self._shapes.newest_body(run.body, run.version)
        extracted = decoder.decode(body)
        types = {name: field.type for name, field in decoder.schema.items()}
        try:
            columns = {name: to_column(extracted.values[name], kind) for name, kind in types.items()}
        except (OverflowError, pa.ArrowInvalid):  # an integer has more than 64 bits
            extracted = decoder.extract_each(body)
            columns = {name: to_column(extracted.values[name], kind) for name, kind in types.items()}
        rows, is_fit = _with_times(columns, run, event_time, self._fields)
        # Most texts come more than once.
        encoded = {name: columns[name].dictionary_encode() for name, kind in types.items() if kind in CHECKED_TEXTS}
        for name in encoded.keys() & self._fields:
            rows = rows.set_column(rows.column_names.index(name), name, encoded[name])
        unfit = dict(extracted.unfit)
        for name in decoder.present if extracted.is_unchecked else ():
            for at in _find_unfit(decoder, name, encoded.get(name, columns[name])):
                unfit.setdefault(at, decoder.reason(name, extracted.values[name][at]))
        if event_time is not None and is_fit is not None:
            for at in np.flatnonzero(~is_fit).tolist():
                unfit.setdefault(at, ahead_reason(event_time))
        if unfit:
            mask = np.ones(len(run.times_us), np.bool_)
            mask[list(unfit)] = False
            rows = rows.filter(pa.array(mask))
            self._unfit += [(run.first_seq + at, run.times_us[at] // 1000, unfit[at]) for at in sorted(unfit)]
        self._slices.append(rows)
        self.count += len(run.times_us)

    def table(self) -> pa.Table:
        """All that fit."""
        return number_texts(pa.concat_tables(self._slices)) if self._slices else pa.table({})

    def unfit(self) -> pa.Table:
        """Why the others do not."""
        seqs, times, reasons = zip(*self._unfit, strict=True) if self._unfit else ((), (), ())
        rows = pa.table({REASON: pa.array(reasons, pa.string()), SEQ: pa.array(seqs, pa.int64())})
        return number_texts(rows.append_column(AT_MS, pa.array(times, pa.int64())))


def gather_columns(
    shapes: EventShapes | BoundShapes, event: Event, fields: Sequence[str]
) -> SourceColumns | BoundColumns:
    """What gathers these fields of the events of a source."""
    return BoundColumns(shapes, fields) if isinstance(shapes, BoundShapes) else SourceColumns(shapes, event, fields)


def _find_unfit(decoder: FieldsDecoder, name: str, column: pa.Array) -> list[int]:
    """The places of values that are none of a field, given its column; that of texts that are checked is encoded."""
    field = decoder.schema[name]
    doubtful = [column.is_null()] if field.required and column.null_count else []
    if field.type in CHECKED_TEXTS:
        matches = _match(column.dictionary, field.type)
        if not pc.all(matches).as_py():
            doubtful.append(pc.fill_null(pc.invert(matches.take(column.indices)), False))
    return sorted({at for mask in doubtful for at in pc.indices_nonzero(mask).to_pylist()})


def _match(texts: pa.Array, kind: Type) -> pa.Array:
    """Which texts are of a type; Arrow prepares a pattern for every call, which takes as long as some hundred texts."""
    if len(texts) < _FEW_TEXTS:
        return pa.array([coerce_value(text, kind) is not UNFIT for text in texts.to_pylist()], pa.bool_())
    return pc.match_substring_regex(texts, DATE_TIME if kind == "datetime" else BASE64)


def _with_times(
    columns: dict[str, pa.Array], run: EventRun, event_time: EventTime | None, kept: Sequence[str]
) -> tuple[pa.Table, NDArray[np.bool_] | None]:
    """The kept columns with the numbers and times of events, and which events have a time; None where all have."""
    count = len(run.times_us)
    columns[SEQ] = pa.array(range(run.first_seq, run.first_seq + count), pa.int64())
    if event_time is None:
        columns[AT_MS] = pa.array([at_us // 1000 for at_us in run.times_us], pa.int64())
        return pa.table(columns).select([*kept, SEQ, AT_MS]), None
    times = event_time.folded_ms_of_column(columns[event_time.field], run.times_us)
    columns[AT_MS] = pa.array(times)
    is_fit = times != UNFIT_MS
    return pa.table(columns).select([*kept, SEQ, AT_MS]), None if is_fit.all() else is_fit


def columns_of(types: Mapping[str, Type], events: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
    """The columns of events that are given as dicts."""
    return {name: to_column([event.get(name) for event in events], kind) for name, kind in types.items()}


def number_texts(events: pa.Table) -> pa.Table:
    """The same columns, the texts in them dictionary-encoded: most come more than once."""
    columns = {name: events.column(name).combine_chunks() for name in events.column_names}
    is_text = pa.types.is_string
    return pa.table(
        {name: column.dictionary_encode() if is_text(column.type) else column for name, column in columns.items()}
    )
