"""The nodes of a feature pipeline as frozen values, normalised: durations in milliseconds, defaults filled in."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from headrace.types import FieldType

Type: TypeAlias = FieldType


class EventField(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field of an event; a required one may have a default, which is used where it is left out."""

    type: Type
    required: bool = True
    default: Any = None


class Event(msgspec.Struct, frozen=True, tag="event", tag_field="kind", omit_defaults=True):
    """A source: its events are those of the stream ``events/<name>``."""

    name: str
    schema: dict[str, EventField]
    #: How long events are kept; None is for ever.
    keep_events_for_ms: int | None = None
    #: How long an entity may be idle before it starts afresh.
    cold_after_ms: int | None = None
    dedupe_key: str | None = None
    dedupe_window_ms: int | None = None


class RowOp(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step on rows; which members it has depends on ``op``."""

    op: Literal["filter", "select", "drop", "rename", "with_columns", "cast", "fillna"]
    expr: str | None = None
    fields: tuple[str, ...] = ()
    mapping: dict[str, str] = {}
    exprs: dict[str, str] = {}
    type_map: dict[str, str] = {}
    defaults: dict[str, Any] = {}


class Derivation(msgspec.Struct, frozen=True, tag="derivation", tag_field="kind", omit_defaults=True):
    """A view of one upstream: rows of it, filtered and mapped."""

    name: str
    upstream: str
    ops: tuple[RowOp, ...] = ()


class Feature(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator and its parameters; windows and half-lives in ms, ``where`` as canonical text."""

    op: str
    params: dict[str, Any] = {}


class Table(msgspec.Struct, frozen=True, tag="table", tag_field="kind", omit_defaults=True):
    """Features per key, over the rows of one upstream that its own steps leave."""

    name: str
    upstream: str
    key: tuple[str, ...]
    features: dict[str, Feature]
    ops: tuple[RowOp, ...] = ()


Node: TypeAlias = Event | Derivation | Table


class Life(msgspec.Struct, frozen=True):
    """One life of a feature: a name that no other life of it has, and the sequence number its state is folded from."""

    id: str
    birth: int
