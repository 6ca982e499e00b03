"""Values of features and keys as the types that their table declares: in Python, and as columns of Arrow.

A type is ``str``, ``i64``, ``f64``, ``bool``, ``bytes`` or ``datetime``, or ``list<…>``, ``map<…>`` (with texts as
keys) or ``struct<name: …, …>`` of types. A moment of Python or of a column has microseconds.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    import pyarrow

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_TYPED = frozenset({"datetime", "bytes"})


class DeclaredType(NamedTuple):
    """A type with the types of its parts, which have names in a struct."""

    name: str
    parts: tuple[tuple[str, DeclaredType], ...] = ()

    @property
    def is_typed(self) -> bool:
        """Whether a value is another one in Python than in JSON."""
        return self.name in _TYPED or any(part.is_typed for _, part in self.parts)


class TableTypes(msgspec.Struct, frozen=True):
    """The types of the key fields and of the features of a table, in order."""

    key: dict[str, str]
    features: dict[str, str]


@lru_cache(maxsize=1024)
def parse_type(text: str) -> DeclaredType:
    """The type that a text names."""
    name, bracket, rest = text.strip().partition("<")
    if not bracket:
        return DeclaredType(name)
    parts = []
    for part in _split(rest.removesuffix(">")):
        field, _, kind = part.partition(":") if name == "struct" else ("", "", part)
        parts.append((field.strip(), parse_type(kind)))
    return DeclaredType(name, tuple(parts))


def _split(text: str) -> list[str]:
    """The parts between commas that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "<") - (character == ">")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def type_values(row: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """A row whose values are of Python's types; a value that is not of its type stays as it is."""
    typed = dict(row)
    for name, value in row.items():
        if name in types and (kind := parse_type(types[name])).is_typed:
            typed[name] = type_value(kind, value)
    return typed


def type_value(kind: DeclaredType, value: Any) -> Any:
    """A value of JSON as Python's: ``datetime`` in UTC, ``bytes``."""
    try:
        match kind.name, value:
            case "datetime", str():
                return datetime.fromisoformat(value.upper()).astimezone(UTC)
            case "bytes", str():
                return b64decode(value, validate=True)
            case "list", list():
                return [type_value(kind.parts[0][1], part) for part in value]
            case "map", dict():
                return {name: type_value(kind.parts[0][1], part) for name, part in value.items()}
            case "struct", dict():
                return {**value, **{name: type_value(part, value.get(name)) for name, part in kind.parts}}
    except (ValueError, OverflowError):
        pass
    return value


def typed_table(rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> pyarrow.Table:
    """Rows of JSON values as a table with a column for each type; a row that lacks a column has a null there."""
    import pyarrow as pa

    columns = {}
    for name, text in types.items():
        kind = parse_type(text)
        try:
            values = [_arrow_value(kind, row.get(name)) for row in rows]
            columns[name] = pa.array(values, arrow_type(kind))
        except (ValueError, TypeError, AttributeError, OverflowError) as reason:
            raise HeadraceError(
                f"{name} is {text} by now, and has other values: the table changed while it was read; read it again"
            ) from reason
    return pa.table(columns)


def arrow_type(kind: DeclaredType) -> pyarrow.DataType:
    """The type of Arrow of a column."""
    import pyarrow as pa

    parts = [(name, arrow_type(part)) for name, part in kind.parts]
    match kind.name:
        case "i64":
            return pa.int64()
        case "f64":
            return pa.float64()
        case "bool":
            return pa.bool_()
        case "bytes":
            return pa.binary()
        case "datetime":
            return pa.timestamp("us", "UTC")
        case "list":
            return pa.list_(parts[0][1])
        case "map":
            return pa.map_(pa.string(), parts[0][1])
        case "struct":
            return pa.struct(parts)
    return pa.string()


def _arrow_value(kind: DeclaredType, value: Any) -> Any:
    """A value of JSON as Arrow takes it for a column of a type."""
    if value is None:
        return None
    match kind.name:
        case "f64":
            return float(value)
        case "i64":
            return int(value)
        case "bytes":
            return b64decode(value, validate=True)
        case "datetime":
            return parse_moment_us(value)
        case "list":
            return [_arrow_value(kind.parts[0][1], part) for part in value]
        case "map":
            return [(name, _arrow_value(kind.parts[0][1], part)) for name, part in value.items()]
        case "struct":
            return {name: _arrow_value(part, value.get(name)) for name, part in kind.parts}
    return value


def parse_moment_us(text: str) -> int:
    """The microseconds since 1970 of RFC 3339 text, or of Unix nanoseconds."""
    if text.lstrip("-").isdigit():
        return int(text) // 1000
    parsed = datetime.fromisoformat(text.upper())
    return (parsed.replace(tzinfo=None) - _EPOCH - (parsed.utcoffset() or timedelta())) // _MICROSECOND
