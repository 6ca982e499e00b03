"""The nodes of a feature pipeline as frozen values, in one form: durations in milliseconds, defaults filled in.

The values of their fields are strict JSON values: nothing is parsed from text but durations.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal, TypeAlias

import msgspec

from headrace.schema.date_time import is_date_time
from headrace.schema.expression import tree
from headrace.types import format_duration

Type: TypeAlias = tree.Type


#: The units of Unix times.
TimestampUnit: TypeAlias = Literal["s", "ms", "us", "ns"]


class EventField(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field of an event; a required one may have a default, which is used where it is left out."""

    type: Type
    required: bool = True
    default: Any = None
    #: Where the field is in the events of the stream that is the source, as a JSON Pointer.
    pointer: str | None = None


class Event(msgspec.Struct, frozen=True, tag="event", tag_field="kind", omit_defaults=True):
    """An event source; its events are stored in the stream ``events/<name>``, unless it is bound to another."""

    name: str
    schema: dict[str, EventField]
    #: How long events are kept; None is for ever.
    keep_events_for_ms: int | None = None
    #: How long an entity may be idle before it starts afresh.
    cold_after_ms: int | None = None
    dedupe_key: str | None = None
    dedupe_window_ms: int | None = None
    #: The field that has the event time, which is a Unix time in this unit where it is an ``i64``.
    timestamp_field: str | None = None
    timestamp_unit: TimestampUnit | None = None
    #: By how much an event may be appended after its event time and still count; None is any.
    late_after_ms: int | None = None
    #: The stream whose events are the events of this source; None is its own, ``events/<name>``.
    stream: str | None = None


class RowOp(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step on rows; ``op`` determines which members it has."""

    op: Literal["filter", "select", "drop", "rename", "with_columns", "cast", "fillna"]
    expr: str | None = None
    fields: tuple[str, ...] = ()
    mapping: dict[str, str] = {}
    exprs: dict[str, str] = {}
    type_map: dict[str, str] = {}
    defaults: dict[str, Any] = {}


class Derivation(msgspec.Struct, frozen=True, tag="derivation", tag_field="kind", omit_defaults=True):
    """A view of one upstream node: its rows, filtered and mapped."""

    name: str
    upstream: str
    ops: tuple[RowOp, ...] = ()


class Feature(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator and its parameters; windows and half-life periods in ms, ``where`` as canonical text."""

    op: str
    params: dict[str, Any] = {}


class Table(msgspec.Struct, frozen=True, tag="table", tag_field="kind", omit_defaults=True):
    """Features by key, computed from the rows of one upstream node after the table's own steps."""

    name: str
    upstream: str
    key: tuple[str, ...]
    features: dict[str, Feature]
    ops: tuple[RowOp, ...] = ()


Node: TypeAlias = Event | Derivation | Table


class ReplacedVersion(msgspec.Struct, frozen=True):
    """The version of a feature that answers until the one that replaces it is complete, and where it ends."""

    id: str
    end: int


class FeatureVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A version of a feature: its id, and the sequence number of the first event that its state includes."""

    id: str
    birth: int
    #: The event before which it ends; None where it goes on.
    end: int | None = None
    replaces: ReplacedVersion | None = None


FOREVER = "forever"


def format_duration_ms(duration_ms: int | None) -> str:
    """A duration in its largest unit without a fraction; None is formatted as ``forever``."""
    return FOREVER if duration_ms is None else format_duration(duration_ms * 1000)


UNFIT: Any = object()

LEAST, GREATEST = -(2**63), 2**63 - 1

#: Base64 with padding, one spelling for all bytes: bits that do not count are zero.
BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"
_BASE64 = re.compile(BASE64)


def coerce_value(value: Any, kind: Type) -> Any:
    """The value as rows hold it: int for i64, float for f64, otherwise as it is; UNFIT where it is not of the type."""
    if isinstance(value, bool) or kind == "bool":
        return value if isinstance(value, bool) and kind == "bool" else UNFIT
    if kind in ("i64", "f64"):
        return _coerce_number(value, kind)
    if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" for character in value):
        return UNFIT
    if kind == "bytes":
        return value if _BASE64.fullmatch(value) else UNFIT
    return value if kind == "str" or is_date_time(value) else UNFIT


def _coerce_number(value: Any, kind: Type) -> Any:
    if not isinstance(value, int | float):
        return UNFIT
    if kind == "f64":
        try:
            number = float(value)
        except OverflowError:
            return UNFIT
        return number if math.isfinite(number) else UNFIT
    if isinstance(value, float) and not value.is_integer():
        return UNFIT
    return int(value) if LEAST <= value <= GREATEST else UNFIT
