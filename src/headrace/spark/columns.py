"""Columns of a DataFrame from stored events: those of the envelope, and those that the JSON Schema describes.

Values become columns natively, all rows at once. Only values that are spelled unusually are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.errors import BadRequest
from headrace.extract import scalars
from headrace.extract.raw_values import read_pointers
from headrace.extract.texts import Column, Flags, valid
from headrace.operators.operator import finite
from headrace.schema.entries import decode_exact, entries_of
from headrace.schema.lens.values import encode_value, find_value_slot
from headrace.schema.registry import Registry
from headrace.types import parse_timestamp_us

CORRUPT = "_corrupt"
#: The columns of the envelope, and the columns of a segment that they are made of.
ENVELOPE = {
    "offset": "seq", "append_time": "append_time", "key": "key", "version": "version", "payload": "payload",
}  # fmt: skip
_ALPHABET = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)
_CHARACTERS = 26
_TIMES = pa.timestamp("us", "UTC")
#: Texts in which a number may have more digits than DuckDB keeps.
_MANY_DIGITS, _FRACTION = "[0-9]{16,}|[0-9][eE]", r"[0-9]\.[0-9]"


def envelope_schema(*, is_json: bool) -> StructType:
    """The columns of the envelope of a stream."""
    payload = StringType() if is_json else BinaryType()
    kinds: list[DataType] = [StringType(), TimestampType(), StringType(), IntegerType(), payload]
    return StructType([StructField(name, kind) for name, kind in zip(ENVELOPE, kinds, strict=True)])


def typed_schema(registry: Registry, version: int) -> StructType:
    """The columns of the properties of a schema version, and one for events of which a value fits no column."""
    properties = _properties(registry, version)
    if CORRUPT in properties:
        raise BadRequest(
            f"mode: version {version} has a property {CORRUPT}, which is the name of a column here; "
            "read the stream with mode=envelope",
            field="mode",
        )
    fields = [StructField(name, _spark_type(schema)) for name, schema in properties.items()]
    return StructType([*fields, StructField(CORRUPT, StringType())])


def check_schema(wanted: StructType, offered: StructType, *, typed: bool) -> None:
    """Refuse columns that a read cannot give, and types that they cannot have."""
    types = {field.name: field.dataType for field in offered.fields}
    for field in wanted.fields:
        if field.name not in types:
            raise BadRequest(
                f"schema: there is no column {field.name!r}; there are {', '.join(types)}", field=field.name
            )
        if field.dataType == types[field.name]:
            continue
        allowed = [types[field.name].simpleString()]
        if typed and field.name != CORRUPT:
            allowed = [kind().simpleString() for kind in _READABLE]
        if field.dataType.simpleString() not in allowed:
            raise BadRequest(
                f"schema: the column {field.name!r} is {' or '.join(allowed)}, not {field.dataType.simpleString()}",
                field=field.name,
            )


_READABLE = (StringType, LongType, IntegerType, DoubleType, BooleanType, TimestampType)


def _properties(registry: Registry, version: int) -> dict[str, Any]:
    schema = registry.schemas[version]
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not properties:
        raise BadRequest(
            f"mode: the schema of version {version} names no properties; read the stream with mode=envelope",
            field="mode",
        )
    return properties


def _spark_type(schema: Any) -> DataType:
    """The type of a property; what has no single type is JSON text."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = [each for each in kind if each != "null"] if isinstance(kind, list) else [kind]
    match kinds:
        case ["integer"]:
            return LongType()
        case ["number"]:
            return DoubleType()
        case ["boolean"]:
            return BooleanType()
        case ["string"] if schema.get("format") == "date-time":
            return TimestampType()
    return StringType()


def _is_text(schema: Any) -> bool:
    """Whether every value of a property is a string, so that its column has them without quotes."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = [each for each in kind if each != "null"] if isinstance(kind, list) else [kind]
    return kinds == ["string"]


def offset_texts(seqs: Any, epochs: Sequence[tuple[int, int]]) -> Column:
    """The offsets of events by their sequence numbers."""
    rows = seqs.to_numpy()
    firsts = np.array([first for _, first in epochs], np.int64)
    epoch = np.array([number for number, _ in epochs], np.uint64)[np.searchsorted(firsts, rows, side="right") - 1]
    position = rows.astype(np.uint64) + np.uint64(1)
    characters = np.zeros((len(rows), _CHARACTERS), np.uint8)
    for number in range(_CHARACTERS):
        shift = 125 - 5 * number
        if shift >= 96:
            digits = epoch >> np.uint64(shift - 96)
        elif shift == 95:
            digits = epoch << np.uint64(1) | position >> np.uint64(63)
        elif shift >= 32:
            digits = position >> np.uint64(shift - 32)
        else:
            digits = position << np.uint64(32 - shift) if shift > 25 else np.zeros(1, np.uint64)
        characters[:, number] = _ALPHABET[(digits & np.uint64(31)).astype(np.intp)]
    bounds = pa.py_buffer(np.arange(0, len(rows) * _CHARACTERS + 1, _CHARACTERS, dtype=np.int32))
    return pa.StringArray.from_buffers(len(rows), bounds, pa.py_buffer(characters))


Convert = Callable[[Any], Any]


class _Kind(NamedTuple):
    """How values of one column are read: natively where they are spelled as most are, else one by one."""

    type: Any
    read: Callable[[scalars.Pieces], scalars.ReadValues]
    #: The value of the column for any other value of an event; None where it does not fit.
    convert: Convert


def _integer(bits: int) -> Convert:
    def convert(value: Any) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or value != value // 1:
            return None
        return int(value) if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None

    return convert


def _double(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    return finite(float(value) if isinstance(value, Decimal) else value)


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _moment(value: Any) -> int | None:
    if not isinstance(value, str) or value.isdigit():
        return None
    try:
        return parse_timestamp_us(value, "")
    except BadRequest:
        return None


def _read_ints(pieces: scalars.Pieces) -> scalars.ReadValues:
    """Integers of 32 bits; in doubt about longer ones."""
    has_value, values, doubtful = scalars.integers(pieces)
    numbers = values.to_numpy()
    fits = (numbers >= -(2**31)) & (numbers < 2**31)
    places = np.flatnonzero(has_value)
    has_value = has_value.copy()
    has_value[places[~fits]] = False
    return scalars.ReadValues(has_value, pa.array(numbers[fits].astype(np.int32)), doubtful)


def _read_moments(pieces: scalars.Pieces) -> scalars.ReadValues:
    """Moments of RFC 3339 with microseconds at most; in doubt about all where any is spelled otherwise."""
    is_string = pieces.first == ord('"')
    strings = scalars.unquote_texts(pieces.resolved.chosen(is_string))
    try:
        return scalars.ReadValues(is_string, strings.cast(_TIMES), np.zeros(len(is_string), np.bool_))
    except pa.ArrowInvalid:
        return scalars.ReadValues(np.zeros(len(is_string), np.bool_), pa.array([], _TIMES), is_string)


_KINDS: dict[type[DataType], _Kind] = {
    LongType: _Kind(pa.int64(), scalars.integers, _integer(64)),
    IntegerType: _Kind(pa.int32(), _read_ints, _integer(32)),
    DoubleType: _Kind(pa.float64(), scalars.floats, _double),
    BooleanType: _Kind(pa.bool_(), scalars.bools, _boolean),
    StringType: _Kind(pa.string(), scalars.strings, _text),
    TimestampType: _Kind(_TIMES, _read_moments, _moment),
}


def _read_json(pieces: scalars.Pieces) -> scalars.ReadValues:
    """Every value but null as its JSON text."""
    is_value: Flags = pieces.first != ord("n")
    return scalars.ReadValues(is_value, pieces.texts.chosen(is_value).column, np.zeros(len(is_value), np.bool_))


_JSON = _Kind(pa.string(), _read_json, _text)


class TypedColumns:
    """Columns of events of one schema version."""

    def __init__(self, registry: Registry, version: int, wanted: StructType) -> None:
        properties = _properties(registry, version)
        self._fields = [field for field in wanted.fields if field.name != CORRUPT]
        self._as_json = {
            field.name
            for field in self._fields
            if isinstance(field.dataType, StringType) and not _is_text(properties[field.name])
        }
        self._names = wanted.fieldNames()

    def read(self, payloads: Column) -> list[Column]:
        """The columns of events, given their JSON texts."""
        unreadable: Flags = np.zeros(len(payloads), np.bool_)
        pointers = [(field.name,) for field in self._fields]
        texts = read_pointers(payloads, pointers, unreadable) if pointers else {}
        corrupt: Flags = np.zeros(len(payloads), np.bool_)
        columns: dict[str, Column] = {}
        for field in self._fields:
            kind = _JSON if field.name in self._as_json else _KINDS[type(field.dataType)]
            column = _Property(payloads, field.name, texts[(field.name,)], kind)
            columns[field.name] = column.read(unreadable)
            corrupt |= column.unfit
        columns[CORRUPT] = pc.if_else(pa.array(corrupt), payloads, pa.scalar(None, pa.string()))
        return [columns[name] for name in self._names]


class _Property:
    """One property of many events; ``unfit`` says in which of them its value does not fit the column."""

    def __init__(self, payloads: Column, name: str, texts: Column, kind: _Kind) -> None:
        self._payloads, self._name, self._texts, self._kind = payloads, name, texts, kind
        self.unfit: Flags = np.zeros(len(payloads), np.bool_)

    def read(self, unreadable: Flags) -> Column:
        """The values of the column; events that DuckDB cannot read are opened one by one."""
        present = np.flatnonzero(valid(self._texts))
        pieces = scalars.pieces(self._texts.drop_null())
        has_value, values, doubtful = self._kind.read(pieces)
        column = _replaced(pa.nulls(len(self._payloads), self._kind.type), present[has_value], values)
        self.unfit[present[~has_value & ~doubtful & (pieces.first != ord("n"))]] = True
        reopened = np.union1d(present[doubtful], np.flatnonzero(unreadable))
        if self._kind is _JSON:
            reopened = np.union1d(reopened, self._inexact_rows())
        exact = [self._reopen(int(row)) for row in reopened]
        return _replaced(column, reopened, pa.array(exact, self._kind.type)) if exact else column

    def _inexact_rows(self) -> Any:
        """The rows in which numbers may have more digits than DuckDB has kept."""
        has_many = pc.match_substring_regex(self._texts, _MANY_DIGITS)
        has_fraction = pc.match_substring_regex(self._texts, _FRACTION)
        may_differ = pc.and_(has_fraction, pc.match_substring_regex(self._payloads, _MANY_DIGITS))
        return np.flatnonzero(pc.or_(has_many, may_differ).fill_null(False).to_numpy(zero_copy_only=False))

    def _reopen(self, row: int) -> Any:
        """The value of one event, with all digits of its numbers; None where there is none, or none that fits."""
        try:
            slot = find_value_slot(entries_of(self._payloads[row].as_py().encode()), 0, (self._name,))
            raw = b"null" if slot is None else bytes(encode_value(slot[0][slot[1]]))
            if raw == b"null":
                return None
            value = raw.decode() if self._kind is _JSON else self._kind.convert(decode_exact(raw))
        except (msgspec.DecodeError, RecursionError):
            value = None
        self.unfit[row] |= value is None
        return value


def _replaced(column: Column, rows: Any, values: Column) -> Column:
    """A column with other values in some rows, which are ascending."""
    flags: Flags = np.zeros(len(column), np.bool_)
    flags[rows] = True
    return pc.replace_with_mask(column, pa.array(flags), values)
