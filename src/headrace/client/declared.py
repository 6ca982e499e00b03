"""Declarations in Python: event sources, rows derived from them, and tables of features."""

from __future__ import annotations

import base64
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, TypedDict, Union, Unpack, get_args, get_origin, overload

from headrace.client.expressions import Expression, cast_target, text
from headrace.client.json_values import moment
from headrace.client.operators import Feature
from headrace.client.requests import Span, check_options, duration

Step = Mapping[str, Any]


class Rows:
    """The rows of an event source after some steps; each method returns new rows."""

    # Events have fields, which a type checker sees beside these: other public names would be theirs no more.

    def __init__(self, upstream: EventSource, steps: tuple[Step, ...] = ()) -> None:
        self._upstream = upstream
        self._steps = steps

    def filter(self, condition: Expression | str) -> Rows:
        """Only rows for which the condition is true."""
        return self._then("filter", expr=text(condition))

    def select(self, *fields: str) -> Rows:
        """Only these fields."""
        return self._then("select", fields=list(fields))

    def drop(self, *fields: str) -> Rows:
        """All fields but these."""
        return self._then("drop", fields=list(fields))

    def rename(self, /, **names: str) -> Rows:
        """Fields under other names: ``rename(old="new")``."""
        return self._then("rename", mapping=names)

    def with_columns(self, /, **columns: Expression | str) -> Rows:
        """New fields, or other values of fields that are there."""
        return self._then("with_columns", exprs={name: text(value) for name, value in columns.items()})

    def map(self, /, **columns: Expression | str) -> Rows:
        """Another name of ``with_columns``."""
        return self.with_columns(**columns)

    def cast(self, /, **types: type | str) -> Rows:
        """Fields as another type; null where they cannot be."""
        return self._then("cast", type_map={name: cast_target(to) for name, to in types.items()})

    def fillna(self, /, **values: str | float | bool) -> Rows:
        """Values in place of null."""
        if absent := [name for name, value in values.items() if value is None]:
            raise ValueError(f"null cannot stand in place of null: {', '.join(absent)}")
        return self._then("fillna", defaults=values)

    def group_by(self, *fields: str) -> Grouped:
        """The same rows by key."""
        return Grouped(self, fields)

    def agg(self, /, **features: Feature) -> Aggregated:
        """Features of these rows, by the key of the table."""
        return Aggregated(self, None, features)

    def _then(self, op: str, **members: Any) -> Rows:
        return Rows(self._upstream, (*self._steps, {"op": op, **members}))


class Grouped:
    """Rows by key."""

    def __init__(self, rows: Rows, key: tuple[str, ...]) -> None:
        self._rows = rows
        self._key = key

    def agg(self, /, **features: Feature) -> Aggregated:
        """Features of the rows of each key."""
        return Aggregated(self._rows, self._key, features)


class Aggregated:
    """Features of rows; the end of a chain."""

    def __init__(self, rows: Rows, key: tuple[str, ...] | None, features: Mapping[str, Feature]) -> None:
        if not features:
            raise TypeError("agg() needs features, such as agg(n=hr.count())")
        for name, feature in features.items():
            if not isinstance(feature, Feature):
                raise TypeError(f"{name} is {feature!r}, not a feature such as hr.count()")
        self.rows = rows
        self.key = key
        self.features = dict(features)


_TYPES = {str: "str", int: "i64", float: "f64", bool: "bool", bytes: "bytes", datetime: "datetime"}
_MISSING = object()


def fields(declared: type, names: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of a class, its bases included, as a registration writes it; ``names`` are those around the class."""
    try:
        hints = typing.get_type_hints(declared, localns=dict(names))
    except NameError as reason:
        raise TypeError(f"{declared.__name__}: {reason}") from reason
    _check_rest(declared, hints)
    return {
        name: _field(f"{declared.__name__}.{name}", hint, _default(declared, name))
        for name, hint in hints.items()
        if hint is not ClassVar and get_origin(hint) is not ClassVar
    }


def _default(declared: type, name: str) -> Any:
    """The value that a class or one of its bases gives to a field; a method of rows of the same name is none."""
    for base in declared.__mro__:
        if name in vars(base) and base not in Event.__mro__:
            return vars(base)[name]
    return _MISSING


def _check_rest(declared: type, hints: Mapping[str, Any]) -> None:
    """Refuse attributes that look like fields without a type."""
    for name, value in vars(declared).items():
        special = name.startswith("__") or callable(value) or isinstance(value, property | classmethod | staticmethod)
        if name not in hints and not special:
            raise TypeError(f"{declared.__name__}.{name} has no type; write {name}: {type(value).__name__} = {value!r}")


class FieldOptions:
    """Where a field is in the events of a stream, and its default."""

    def __init__(self, pointer: str, default: Any) -> None:
        self.pointer, self.default = pointer, default


def field(*, pointer: str, default: Any = _MISSING) -> Any:
    """Options of a field of a source with ``stream``: ``user: str = hr.field(pointer="/user/id")``."""
    return FieldOptions(pointer, default)


def _field(path: str, hint: Any, default: Any) -> Any:
    if isinstance(default, FieldOptions):
        written = _field(path, hint, default.default)
        return {**(written if isinstance(written, dict) else {"type": written}), "pointer": default.pointer}
    inner, required = _unwrap_optional(hint)
    kind = _TYPES.get(inner) if isinstance(inner, type) else None
    if kind is None:
        type_names = ", ".join(kind.__name__ for kind in _TYPES)
        raise TypeError(
            f"{path}: {_type_name(hint)} is not a type of fields; these are: {type_names}, each also with None"
        )
    if default is _MISSING or (default is None and not required):
        return kind if required else {"type": kind, "required": False}
    return {"type": kind, "required": required, "default": _encode_default(path, inner, default)}


def _unwrap_optional(hint: Any) -> tuple[Any, bool]:
    """The type of a field, and whether it must be there."""
    if get_origin(hint) in (Union, types.UnionType):
        rest = [part for part in get_args(hint) if part is not types.NoneType]
        if len(rest) == 1:
            return rest[0], False
    return hint, True


def _encode_default(path: str, kind: type, value: Any) -> Any:
    """A default as JSON has it."""
    fits = (
        type(value) is kind or (kind is float and type(value) is int) or (isinstance(value, kind) and kind is not int)
    )
    if not fits:
        raise TypeError(f"{path}: the default {value!r} is not of type {kind.__name__}")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return moment(value) if isinstance(value, datetime) else value


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


class EventSource(Rows):
    """Events by their name: rows that chains begin with."""

    def __init__(self, name: str) -> None:
        super().__init__(self)
        self._name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    def _sources(self) -> tuple[EventSource, ...]:
        """The sources of its rows."""
        return ()

    def descriptor(self) -> dict[str, Any] | None:
        """Its descriptor in a registration; None where another app registers it."""
        return None


def upstream(name: str) -> EventSource:
    """Events that another app registers."""
    return EventSource(name)


class EventSettings(TypedDict, total=False):
    """Settings of events, in ``@hr.event(…)`` or in ``class Txn(hr.Event, …)``."""

    #: For how long events can be read.
    keep_events_for: Span | None
    #: After how long without events a key is unseen again.
    cold_after: Span | None
    #: The field whose value makes an event the same as an earlier one.
    dedupe_key: str | None
    #: For how long that is remembered.
    dedupe_window: Span | None
    #: The field that has the time at which an event happened, by which features count it.
    timestamp_field: str | None
    #: What such a field counts since 1970 if it is an int.
    timestamp_unit: Literal["s", "ms", "us", "ns"] | None
    #: By how much later than that an event may be pushed and still count.
    late_after: Span | None
    #: The stream whose events these are; without it they are pushed, and have a stream of their own.
    stream: str | None


class Event(EventSource):
    """Events that are pushed, and stored in the stream ``events/<name>``, or those of a stream that is there already.

    A class that derives from it declares events: its annotations are the fields, its keywords the settings::

        class Txn(hr.Event, dedupe_key="id"):
            id: str
            amount: float
    """

    #: The events that a class declares.
    _declared: ClassVar[Event]

    def __init__(self, name: str, schema: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        super().__init__(name)
        self._schema = schema
        self._settings = settings

    def __init_subclass__(cls, **settings: Unpack[EventSettings]) -> None:
        super().__init_subclass__()
        cls._declared = Event(cls.__name__, fields(cls, _caller_names()), _write_settings(settings))

    def descriptor(self) -> dict[str, Any]:
        """Its descriptor in a registration."""
        return {"kind": "event", "name": self._name, "schema": dict(self._schema), **self._settings}


def _write_settings(settings: EventSettings) -> dict[str, Any]:
    """The settings of events as a registration has them."""
    check_options(EventSettings, settings)
    written = {
        "keep_events_for": duration(settings.get("keep_events_for")),
        "cold_after": duration(settings.get("cold_after")),
        "dedupe_key": settings.get("dedupe_key"),
        "dedupe_window": duration(settings.get("dedupe_window")),
        "timestamp_field": settings.get("timestamp_field"),
        "timestamp_unit": settings.get("timestamp_unit"),
        "late_after": duration(settings.get("late_after")),
        "stream": settings.get("stream"),
    }
    return {name: value for name, value in written.items() if value}


class DerivedEvent(EventSource):
    """A view of other events, which is never stored."""

    def __init__(self, name: str, rows: Rows) -> None:
        super().__init__(name)
        self._rows = rows

    def _sources(self) -> tuple[EventSource, ...]:
        """The sources of its rows."""
        return (self._rows._upstream,)

    def descriptor(self) -> dict[str, Any]:
        """Its descriptor in a registration."""
        steps = [dict(step) for step in self._rows._steps]
        upstreams = [self._rows._upstream._name]
        return {"kind": "derivation", "name": self._name, "upstreams": upstreams, "output_kind": "event", "ops": steps}


class Table:
    """Features by key, or of all rows where there is no key."""

    def __init__(self, name: str, key: Sequence[str], aggregated: Aggregated) -> None:
        self.name = name
        self.key = tuple(key)
        self._aggregated = aggregated

    def __repr__(self) -> str:
        return f"Table({self.name!r})"

    def _sources(self) -> tuple[EventSource, ...]:
        """The sources of its rows."""
        return (self._aggregated.rows._upstream,)

    def descriptor(self) -> dict[str, Any]:
        """Its descriptor in a registration."""
        rows = self._aggregated.rows
        written = {
            "kind": "table",
            "name": self.name,
            "key": list(self.key),
            "upstreams": [rows._upstream._name],
            "agg": {name: feature.descriptor() for name, feature in self._aggregated.features.items()},
        }
        return {**written, "ops": [dict(step) for step in rows._steps]} if rows._steps else written


Descriptor = EventSource | Table


@overload
def event(declared: type, /) -> Event: ...
@overload
def event(declared: Callable[..., Rows], /) -> DerivedEvent: ...
@overload
def event(**settings: Unpack[EventSettings]) -> Callable[[type], Event]: ...
def event(declared: Any = None, /, **settings: Unpack[EventSettings]) -> Any:
    """Declare events: a class says which fields they have, a function how they are made of others.

    A type checker knows the methods of rows only where the class derives from ``hr.Event``, which needs no decorator.
    """
    written = _write_settings(settings)

    def decorate(declared: Any) -> Event | DerivedEvent:
        names = _caller_names()
        if isinstance(declared, type):
            if issubclass(declared, Event):
                raise TypeError(f"{declared.__name__} derives from hr.Event: leave out @hr.event")
            return Event(declared.__name__, fields(declared, names), written)
        if written:
            raise TypeError(f"{declared.__name__} is derived: {', '.join(written)} belong to the event it is made of")
        return DerivedEvent(declared.__name__, _rows(declared, names))

    return decorate if declared is None else decorate(declared)


@overload
def table(declared: Callable[..., Aggregated], /) -> Table: ...
@overload
def table(*, key: str | Sequence[str] | None = None) -> Callable[[Callable[..., Aggregated]], Table]: ...
def table(declared: Any = None, /, *, key: str | Sequence[str] | None = None) -> Any:
    """Declare a table by a function that ends in ``agg``; without a key all rows make one."""
    wanted = None if key is None else (key,) if isinstance(key, str) else tuple(key)

    def decorate(declared: Callable[..., Aggregated]) -> Table:
        if isinstance(declared, type):
            raise TypeError(f"{declared.__name__} is a class: a table is a function that ends in .agg(...)")
        made = _call_with_sources(declared, _caller_names())
        name = declared.__name__
        if not isinstance(made, Aggregated):
            raise TypeError(f"{name} must end in .agg(...), and returns {made!r}")
        if wanted is not None and made.key is not None and wanted != made.key:
            raise TypeError(f"{name} has the key {wanted}, and groups by {made.key}")
        return Table(name, (wanted if made.key is None else made.key) or (), made)

    return decorate if declared is None else decorate(declared)


def declared_name(of: Any) -> str:
    """The name of an event or a table; a name stands for itself."""
    if isinstance(of, str):
        return of
    declaration = find_declaration(of)
    if declaration is None:
        raise TypeError(
            f"{of!r} is no event and no table: give a name, a class that derives from hr.Event, or what @hr.table made"
        )
    return declaration.name if isinstance(declaration, Table) else declaration._name


def find_declaration(of: Any) -> Descriptor | None:
    """The declaration that an object is, or that a class makes; None if it declares nothing."""
    if isinstance(of, type):
        return of._declared if issubclass(of, Event) and of is not Event else None
    return of if isinstance(of, EventSource | Table) else None


def collect_descriptors(declared: Iterable[Any]) -> list[dict[str, Any]]:
    """Descriptors with all their sources, each once; documents are passed through."""
    written: list[dict[str, Any]] = []
    for declaration in declared:
        descriptors = (
            [dict(declaration)]
            if isinstance(declaration, Mapping)
            else [made.descriptor() for made in _with_sources(declaration)]
        )
        written += [descriptor for descriptor in descriptors if descriptor is not None and descriptor not in written]
    return written


def _with_sources(declared: Any) -> Iterator[Descriptor]:
    declaration = find_declaration(declared)
    if declaration is None:
        raise TypeError(f"{declared!r} cannot be registered: declare it with @hr.event or @hr.table")
    for source in declaration._sources():
        yield from _with_sources(source)
    yield declaration


def _rows(function: Callable[..., Any], names: Mapping[str, Any]) -> Rows:
    made = _call_with_sources(function, names)
    if not isinstance(made, Rows):
        raise TypeError(f"{function.__name__} must return rows, such as txn.filter(...), and returns {made!r}")
    return made


def _call_with_sources(function: Callable[..., Any], names: Mapping[str, Any]) -> Any:
    """The result of a function that is called with the event of its annotation."""
    name = function.__name__
    try:
        signature = inspect.signature(function, locals=names, eval_str=True)
    except NameError as reason:
        raise TypeError(f"{name}: {reason}") from reason
    if len(signature.parameters) > 1:
        raise TypeError(
            f"{name} has {len(signature.parameters)} parameters: rows come from one event, joins do not exist"
        )
    return function(*(_source(name, parameter) for parameter in signature.parameters.values()))


def _source(name: str, parameter: inspect.Parameter) -> EventSource:
    annotation = parameter.annotation
    candidates = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    sources = [source for source in map(find_declaration, candidates) if isinstance(source, EventSource)]
    if not sources:
        raise TypeError(
            f"{name}: annotate {parameter.name} with the event it stands for, such as {parameter.name}: Txn"
        )
    return sources[0]


def _caller_names() -> Mapping[str, Any]:
    """The local names around a decorator, which annotations may use."""
    here = frame = sys._getframe(1)
    while frame.f_globals.get("__name__") == here.f_globals["__name__"] and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_locals
