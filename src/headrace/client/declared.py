"""Declarations in Python: event sources, rows derived from them, and tables of features."""

from __future__ import annotations

import base64
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, Union, get_args, get_origin, overload

from headrace.client.expressions import Expression, cast_target, text
from headrace.client.json_values import moment
from headrace.client.operators import Feature
from headrace.client.requests import Span, duration

Step = Mapping[str, Any]


class Rows:
    """The rows of an event source after some steps; each method returns new rows."""

    def __init__(self, upstream: EventSource, steps: tuple[Step, ...] = ()) -> None:
        self.upstream = upstream
        self.steps = steps

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
        return Rows(self.upstream, (*self.steps, {"op": op, **members}))


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
        name: _field(f"{declared.__name__}.{name}", hint, getattr(declared, name, _MISSING))
        for name, hint in hints.items()
        if hint is not ClassVar and get_origin(hint) is not ClassVar
    }


def _check_rest(declared: type, hints: Mapping[str, Any]) -> None:
    """Refuse attributes that look like fields without a type."""
    for name, value in vars(declared).items():
        special = name.startswith("__") or callable(value) or isinstance(value, property | classmethod | staticmethod)
        if name not in hints and not special:
            raise TypeError(f"{declared.__name__}.{name} has no type; write {name}: {type(value).__name__} = {value!r}")


def _field(path: str, hint: Any, default: Any) -> Any:
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


Declared_co = TypeVar("Declared_co", covariant=True)


class EventSource(Rows):
    """Events by their name: rows that chains begin with."""

    def __init__(self, name: str) -> None:
        super().__init__(self)
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def sources(self) -> tuple[EventSource, ...]:
        """The sources of its rows."""
        return ()

    def descriptor(self) -> dict[str, Any] | None:
        """Its descriptor in a registration; None where another app registers it."""
        return None


def upstream(name: str) -> EventSource:
    """Events that another app registers."""
    return EventSource(name)


class Event(EventSource):
    """Events that are pushed, and stored in the stream ``events/<name>``."""

    def __init__(self, name: str, schema: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        super().__init__(name)
        self._schema = schema
        self._settings = settings

    def descriptor(self) -> dict[str, Any]:
        """Its descriptor in a registration."""
        return {"kind": "event", "name": self.name, "schema": dict(self._schema), **self._settings}


class DerivedEvent(EventSource):
    """A view of other events, which is never stored."""

    def __init__(self, name: str, rows: Rows) -> None:
        super().__init__(name)
        self._rows = rows

    @property
    def sources(self) -> tuple[EventSource, ...]:
        """The sources of its rows."""
        return (self._rows.upstream,)

    def descriptor(self) -> dict[str, Any]:
        """Its descriptor in a registration."""
        steps = [dict(step) for step in self._rows.steps]
        upstreams = [self._rows.upstream.name]
        return {"kind": "derivation", "name": self.name, "upstreams": upstreams, "output_kind": "event", "ops": steps}


class Table:
    """Features by key, or of all rows where there is no key."""

    def __init__(self, name: str, key: Sequence[str], aggregated: Aggregated) -> None:
        self.name = name
        self.key = tuple(key)
        self._aggregated = aggregated

    def __repr__(self) -> str:
        return f"Table({self.name!r})"

    @property
    def sources(self) -> tuple[EventSource, ...]:
        """The sources of its rows."""
        return (self._aggregated.rows.upstream,)

    def descriptor(self) -> dict[str, Any]:
        """Its descriptor in a registration."""
        rows = self._aggregated.rows
        written = {
            "kind": "table",
            "name": self.name,
            "key": list(self.key),
            "upstreams": [rows.upstream.name],
            "agg": {name: feature.descriptor() for name, feature in self._aggregated.features.items()},
        }
        return {**written, "ops": [dict(step) for step in rows.steps]} if rows.steps else written


Descriptor = EventSource | Table


class _Decorator(Protocol[Declared_co]):
    def __call__(self, declared: Any, /) -> Declared_co: ...


@overload
def event(declared: type, /) -> Event: ...
@overload
def event(declared: Callable[..., Rows], /) -> DerivedEvent: ...
@overload
def event(
    *,
    keep_events_for: Span | None = None,
    cold_after: Span | None = None,
    dedupe_key: str | None = None,
    dedupe_window: Span | None = None,
) -> _Decorator[Event]: ...
def event(
    declared: Any = None,
    /,
    *,
    keep_events_for: Span | None = None,
    cold_after: Span | None = None,
    dedupe_key: str | None = None,
    dedupe_window: Span | None = None,
) -> Any:
    """Declare events: a class says which fields they have, a function how they are made of others."""
    settings = {
        "keep_events_for": duration(keep_events_for),
        "cold_after": duration(cold_after),
        "dedupe_key": dedupe_key,
        "dedupe_window": duration(dedupe_window),
    }
    options = {name: value for name, value in settings.items() if value}

    def decorate(declared: Any) -> Event | DerivedEvent:
        names = _caller_names()
        if isinstance(declared, type):
            return Event(declared.__name__, fields(declared, names), options)
        if options:
            raise TypeError(f"{declared.__name__} is derived: {', '.join(options)} belong to the event it is made of")
        return DerivedEvent(declared.__name__, _rows(declared, names))

    return decorate if declared is None else decorate(declared)


@overload
def table(declared: Callable[..., Aggregated], /) -> Table: ...
@overload
def table(*, key: str | Sequence[str] | None = None) -> _Decorator[Table]: ...
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
    if isinstance(of, EventSource | Table):
        return of.name
    raise TypeError(f"{of!r} has no name: give a name, or what @hr.event or @hr.table made")


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
    if not isinstance(declared, EventSource | Table):
        raise TypeError(f"{declared!r} cannot be registered: declare it with @hr.event or @hr.table")
    for source in declared.sources:
        yield from _with_sources(source)
    yield declared


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
    sources = [candidate for candidate in candidates if isinstance(candidate, EventSource)]
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
