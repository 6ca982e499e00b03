"""The events of a stream as events of a source that is bound to it: fields are taken by JSON Pointer.

Bodies are decoded into structs of the fields that the source has, in their types, and nothing else of them is decoded.
A body with an event that does not fit such a struct is decoded value by value, which says what is wrong with it.
An event that does not fit is None where events are listed, and left out where they are columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from headrace import decoding
from headrace.reduce.features.event_time import UNFIT_MS, EventTime, event_time_of
from headrace.reduce.features.events import Promotion, time_events
from headrace.reduce.states.definition import EventRun, Folded
from headrace.schema import pointer as pointers
from headrace.schema.descriptor.bound_fields import StreamBinding, follow_fields
from headrace.schema.descriptor.nodes import UNFIT, Event, EventField, Type, coerce_value
from headrace.schema.entries import entries_of, integer_or_double
from headrace.schema.pointer import Pointer
from headrace.schema.registry import Registry

#: What values of each type are decoded as.
DECODED_TYPES: dict[Type, Any] = {
    "i64": int | None,
    "f64": float | None,
    "bool": bool | None,
    "str": str | None,
    "bytes": str | None,
    "datetime": str | None,
}
_ANY = msgspec.json.Decoder(list[Any], float_hook=integer_or_double)
_MISSING: Any = object()
#: Types whose texts are checked after they are decoded.
CHECKED_TEXTS = ("bytes", "datetime")


class Extracted(NamedTuple):
    """The values of every field, event by event, and why events do not fit, by their place."""

    values: dict[str, list[Any]]
    unfit: dict[int, str]
    #: Whether texts and required fields are still to be checked.
    is_unchecked: bool = False


class FieldsDecoder:
    """Takes the fields of a source out of events of one schema version."""

    def __init__(self, schema: Mapping[str, EventField], paths: Mapping[str, Pointer | None]) -> None:
        """``paths`` say where each field is; None for one that no event has any more."""
        self.schema, self._paths = schema, paths
        # In an order that does not depend on who has loaded the source: the first problem is told.
        self.present = {name: path for name in sorted(paths) if (path := paths[name]) is not None}
        self._native = _make_native(schema, self.present)

    def extract(self, joined: bytes) -> Extracted:
        """The fields of events that are joined by commas, checked."""
        extracted = self.decode(joined)
        return self._checked(extracted.values) if extracted.is_unchecked else extracted

    def decode(self, joined: bytes) -> Extracted:
        """The same, where it is known how; the rest is left to the caller."""
        if self._native is not None:
            try:
                values = self._native(b"[" + joined + b"]")
            except (msgspec.DecodeError, RecursionError):
                return self.extract_each(joined)
            for name in self._paths.keys() - values.keys():
                values[name] = [None] * len(next(iter(values.values())))
            return Extracted(values, {}, True)
        return self.extract_each(joined)

    def is_fit(self, name: str, value: Any) -> bool:
        """Whether a value that was decoded in the type of its field is one of the field."""
        field = self.schema[name]
        if value is None:
            return not field.required
        return coerce_value(value, field.type) is not UNFIT

    def reason(self, name: str, value: Any) -> str:
        """Why a value is none of a field."""
        path = pointers.text(self.present[name])
        if value is _MISSING:
            return f"{path} is missing"
        return f"{path} is missing or null" if value is None else f"{path} is no {self.schema[name].type}"

    def _checked(self, values: dict[str, list[Any]]) -> Extracted:
        unfit: dict[int, str] = {}
        for name in self.present:
            field, held = self.schema[name], values[name]
            is_doubtful = field.type in CHECKED_TEXTS or (field.type == "i64" and _overflows(held))
            if is_doubtful or (field.required and None in held):
                for at, value in enumerate(held):
                    if not self.is_fit(name, value):
                        unfit.setdefault(at, self.reason(name, value))
        return Extracted(values, unfit)

    def extract_each(self, joined: bytes) -> Extracted:
        """The same, value by value."""
        events = _decode_any(joined)
        values: dict[str, list[Any]] = {name: [None] * len(events) for name in self._paths}
        unfit: dict[int, str] = {}
        for name, path in self.present.items():
            field, held = self.schema[name], values[name]
            for at, event in enumerate(events):
                value = _resolve(event, path)
                if value is _MISSING and (field.default is not None or not field.required):
                    held[at] = field.default
                elif value is _MISSING or (value is None and field.required):
                    unfit.setdefault(at, self.reason(name, value))
                elif value is not None:
                    coerced = coerce_value(value, field.type)
                    if coerced is UNFIT:
                        unfit.setdefault(at, self.reason(name, value))
                    else:
                        held[at] = coerced
        return Extracted(values, unfit)


def _overflows(held: list[Any]) -> bool:
    """Whether some integer has more than 64 bits."""
    try:
        array("q", [value for value in held if value is not None])
    except OverflowError:
        return True
    return False


def _decode_any(joined: bytes) -> list[Any]:
    """Events as they are, with every digit of their integers; one that cannot be decoded is None."""
    try:
        return _ANY.decode(b"[" + joined + b"]")
    except (msgspec.DecodeError, RecursionError):
        return [_decode_one(bytes(entry)) for entry in entries_of(joined)]


def _decode_one(entry: bytes) -> Any:
    try:
        return _ANY.decode(b"[" + entry + b"]")[0]
    except (msgspec.DecodeError, RecursionError):
        return None


def _resolve(value: Any, path: Pointer) -> Any:
    for name in path:
        if isinstance(value, dict):
            value = value.get(name, _MISSING)
        elif isinstance(value, list):
            at = pointers.index(name)
            value = value[at] if at is not None and at < len(value) else _MISSING
        else:
            return _MISSING
    return value


class _Level(NamedTuple):
    """One struct: the fields of the source in it by attribute, and the structs in it."""

    kind: Any
    leaves: dict[str, str]
    inner: dict[str, _Level]

    def collect(self, objects: list[Any], values: dict[str, list[Any]]) -> None:
        """Gather the fields of objects, and of those in them."""
        for attribute, name in self.leaves.items():
            values[name] = list(map(attrgetter(attribute), objects))
        for attribute, level in self.inner.items():
            inner = list(map(attrgetter(attribute), objects))
            try:
                level.collect(inner, values)
            except AttributeError:  # an object is not there
                blank = level.kind()
                level.collect([blank if held is None else held for held in inner], values)


def _make_native(
    schema: Mapping[str, EventField], paths: Mapping[str, Pointer]
) -> Callable[[bytes], dict[str, list[Any]]] | None:
    """A decoder into structs; None where a path leads through an array, or is the same as that of another field."""
    every = list(paths.values())
    collide = any(_collides(path, other) for at, path in enumerate(every) for other in every[:at])
    if not every or collide or not all(_is_plain(name) for path in every for name in path):
        return None
    level = _make_level(schema, paths)
    decode = decoding.make_decoder(list[level.kind]).decode  # type: ignore[name-defined]

    def extract(body: bytes) -> dict[str, list[Any]]:
        values: dict[str, list[Any]] = {}
        level.collect(decode(body), values)
        return values

    return extract


def _is_plain(name: str) -> bool:
    return pointers.index(name) is None and name.isprintable() and not {'"', "\\"} & set(name)


def _collides(left: Pointer, right: Pointer) -> bool:
    return pointers.has_prefix(left, right) or pointers.has_prefix(right, left)


def _make_level(schema: Mapping[str, EventField], paths: Mapping[str, Pointer]) -> _Level:
    leaves, inner, members, names = dict[str, str](), dict[str, _Level](), list[Any](), dict[str, str]()
    for number, first in enumerate(dict.fromkeys(path[0] for path in paths.values())):
        attribute = f"f{number}"
        names[attribute] = first
        below = {name: path[1:] for name, path in paths.items() if path[0] == first}
        name, rest = next(iter(below.items()))
        if rest:
            level = inner[attribute] = _make_level(schema, below)
            members.append((attribute, level.kind | None, None))
        else:
            leaves[attribute] = name
            members.append((attribute, DECODED_TYPES[schema[name].type], schema[name].default))
    return _Level(msgspec.defstruct("Fields", members, rename=names, gc=False), leaves, inner)


class BoundShapes:
    """Turns the stored events of a stream into events of a source that is bound to it.

    Events are brought to the newest version, but those from before a break or the loss of a field only to the last
    version before it.
    """

    def __init__(self, registry: Registry, event: Event, binding: StreamBinding) -> None:
        self.event = event
        #: How the event time is read; None where events count by their append time.
        self.event_time = event_time_of(event)
        self._paths = follow_fields(registry, event, binding.versions)
        lost = [path.lost_in - 1 for path in self._paths.values() if path.lost_in is not None]
        self._promotion = Promotion(registry, (*registry.breaks, *lost))
        self._decoders: dict[int, FieldsDecoder] = {}

    def fields(self, version: int) -> FieldsDecoder:
        """What takes the fields out of events of a version, once they are promoted."""
        target = self._promotion.target(version)
        decoder = self._decoders.get(target)
        if decoder is None:
            paths = {name: path.at(target) for name, path in self._paths.items()}
            decoder = self._decoders[target] = FieldsDecoder(self.event.schema, paths)
        return decoder

    def newest_body(self, joined: bytes, version: int) -> bytes:
        """Events joined by commas, in the newest version in which all of their fields are."""
        return self._promotion.promote(joined, version)

    def extract(self, joined: bytes, version: int) -> Extracted:
        """The fields of events, and which of them do not fit."""
        return self.fields(version).extract(self.newest_body(joined, version))

    def events(self, joined: bytes, version: int) -> list[dict[str, Any] | None]:
        """Events with every field of the source; None for one that does not fit."""
        extracted = self.extract(joined, version)
        names = tuple(extracted.values)
        events: list[dict[str, Any] | None] = [
            dict(zip(names, values, strict=True)) for values in zip(*extracted.values.values(), strict=True)
        ]
        for at in extracted.unfit:
            events[at] = None
        return events

    def is_newest(self, version: int) -> bool:
        """Whether keys can be taken from stored events as they are: their fields are not at the top, or not typed."""
        return False

    def decode_run(self, run: EventRun) -> Iterator[Folded]:
        """The events one after the other; None in place of one that does not fit."""
        return time_events(self.events(run.body, run.version), run, self.event_time)


#: The field of what is folded of events that do not fit.
REASON = "reason"
_AHEAD = "has no time, or one that is more than 60 s ahead of its append"


class UnfitShapes(BoundShapes):
    """Turns the stored events of a stream into reasons why they do not fit a source; None for those that do."""

    def events(self, joined: bytes, version: int) -> list[dict[str, Any] | None]:
        """The reason of each event that does not fit, by what it holds."""
        extracted = self.extract(joined, version)
        count = len(next(iter(extracted.values.values())))
        return [{REASON: extracted.unfit[at]} if at in extracted.unfit else None for at in range(count)]

    def decode_run(self, run: EventRun) -> Iterator[Folded]:
        """The reasons one after the other, those by event time included."""
        reasons = self.events(run.body, run.version)
        fit = super().events(run.body, run.version) if self.event_time is not None else []
        for at, event in enumerate(fit):
            event_time = None if event is None else self.event_time
            if event_time is not None and event_time.folded_ms(event or {}, run.times_us[at]) == UNFIT_MS:
                reasons[at] = {REASON: ahead_reason(event_time)}
        for at, reason in enumerate(reasons):
            yield run.first_seq + at, run.times_us[at] // 1000, reason


def ahead_reason(event_time: EventTime) -> str:
    """Why an event does not fit that has no usable event time."""
    return f"{event_time.field} {_AHEAD}"
