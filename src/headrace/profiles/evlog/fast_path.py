"""A fast path for events like those seen before: their shape as a type that admits such events and no others.

Every name in a decoded event is known in advance. Structures are encoded in the order of their fields, which is the
order in which the names were seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType, to_builtins

from headrace import decoding
from headrace.profiles.evlog.envelope import KEYS, Envelope
from headrace.profiles.evlog.normalise import LEVEL_OF, NOTHING, TEXTS, EventNormaliser, infer_level
from headrace.schema.entries import BLANKS
from headrace.schema.fast_validator import NotExpressible

#: Types of more names, or of deeper ones, are unsayable: they take long to make.
MAX_NAMES = 300
MAX_DEPTH = 12

_SCALAR = str | int | float | bool | None


class Shape:
    """The values seen at one path: any scalars, objects with these members, and arrays of such elements."""

    __slots__ = ("_elements", "members")

    def __init__(self) -> None:
        self.members: dict[str, Shape] | None = None
        self._elements: Shape | None = None

    def learn(self, value: Any, depth: int = 0) -> None:
        """Admit a value too."""
        if depth > MAX_DEPTH:
            raise NotExpressible
        if type(value) is dict:
            if len(value.keys() | (self.members or {})) > MAX_NAMES:
                raise NotExpressible
            self.members = _merge_members(self.members or {}, value)
            for name, member in value.items():
                self.members[name].learn(member, depth + 1)
        elif type(value) is list:
            self._elements = self._elements or Shape()
            for element in value:
                self._elements.learn(element, depth + 1)

    def names(self) -> Iterator[str]:
        """The names of all members, at any depth."""
        for name, member in (self.members or {}).items():
            yield name
            yield from member.names()
        if self._elements is not None:
            yield from self._elements.names()

    def type(self) -> Any:
        """The type of what was seen."""
        made: Any = _SCALAR
        if self.members is not None:
            members = enumerate(self.members.items())
            made |= structure(
                "Object", {name: (f"m{n}", shape.type() | UnsetType, UNSET) for n, (name, shape) in members}
            )
        if self._elements is not None:
            made |= list[self._elements.type()]  # type: ignore[misc]
        return made


def structure(title: str, fields: dict[str, tuple[str, Any, Any]]) -> type[msgspec.Struct]:
    """A structure whose fields have other names in JSON; what is missing or as it is by default is not spelled."""
    renamed = {field: name for name, (field, _, _) in fields.items()}
    try:
        return msgspec.defstruct(
            title, [*fields.values()], rename=renamed, forbid_unknown_fields=True, omit_defaults=True, gc=False
        )
    except ValueError as reason:  # a name that no field can have
        raise NotExpressible from reason


def _merge_members(shapes: dict[str, Shape], value: dict[str, Any]) -> dict[str, Shape]:
    """The members that are known and those of a value, in an order in which the value has its own."""
    names, at = [*shapes], 0
    for name in value:
        index = names.index(name) if name in shapes else -1
        if index < at:
            if index >= 0:
                names.remove(name)
                at -= 1
            names.insert(at, name)
            index = at
        at = index + 1
    return {name: shapes.get(name) or Shape() for name in names}


#: How many bodies are skipped, at most, after several in a row did not fit.
MAX_WAITING = 63
#: From how many events of a body the shape is learnt.
MAX_SHOWN = 100

_SPELL = msgspec.json.Encoder().encode
_FIELDS = dict(zip(KEYS, Envelope.__struct_fields__, strict=True))
_TYPES: dict[str, Any] = {
    **dict.fromkeys(TEXTS, Annotated[str, Meta(min_length=1)] | None),
    "status": int | None,
    "duration": int | float | None,
}
#: How a text is spelled that begins or ends with a blank; what it begins with is what the search is fast at.
_PADDED = re.compile(rb' (?:(?<=":" )|(?="[,}]))')
#: The members that are checked before they are taken over.
_PARTS = tuple(field for name, field in _FIELDS.items() if name not in _TYPES)
_COUNT = len(_PARTS)
_NO_PARTS = (UNSET,) * _COUNT
_texts_of = attrgetter(*(_FIELDS[name] for name in TEXTS))


class FastPath:
    """The structure of the events of one stream, as they were seen so far."""

    def __init__(self, normaliser: EventNormaliser) -> None:
        self._normaliser = normaliser
        self._shape = Shape()
        self._plan: _CompiledShape | None = None
        self._misses = self._pause = self._waiting = 0
        #: Whether `learn` should get the events that were missed: seldom, as new structures take long to make.
        self.wants_examples = False

    def envelopes(self, body: bytes, now: str) -> list[Envelope] | None:
        """The envelopes of an array of events; None where they do not have the learnt structure."""
        if self._waiting > 0:
            self._waiting -= 1
            return None
        plan = self._plan
        events = None if plan is None else plan.decode(body)
        if plan is not None and events is not None:
            self._pause = 0
            return plan.envelopes(events, now)
        self._misses += 1
        self._waiting = self._pause = min(2 * self._pause + 1, MAX_WAITING)
        self.wants_examples = self._normaliser.is_plain and self._misses.bit_count() == 1
        return None

    def learn(self, events: list[dict[str, Any]]) -> None:
        """Expect events like those that were missed."""
        self.wants_examples = False
        try:
            for event in events[:MAX_SHOWN]:
                self._shape.learn(event)
            self._plan = _CompiledShape(self._shape, self._normaliser)
            self._waiting = 0
        except NotExpressible:
            self._shape = Shape()


class _CompiledShape:
    """The conversion of events of one shape, compiled."""

    def __init__(self, shape: Shape, normaliser: EventNormaliser) -> None:
        if sum(1 for _ in shape.names()) > MAX_NAMES:
            raise NotExpressible
        seen = shape.members or {}
        members = {**seen, **{name: Shape() for name in KEYS if name not in seen}}
        fields = {
            name: (_FIELDS[name], _TYPES[name], None)
            if name in _TYPES
            else (_FIELDS.get(name, f"m{n}"), member.type() | UnsetType, UNSET)
            for n, (name, member) in enumerate(members.items())
        }
        others = {name: field for name, field in fields.items() if name not in KEYS}
        self._normaliser = normaliser
        self._decode_events = decoding.make_decoder(list[structure("Event", fields)]).decode  # type: ignore[misc]
        self._context = structure("Context", others)
        self._members = _getter([field for field, _, _ in others.values()])
        #: The doubtful members of the context, in its order.
        self._names = {
            name: field for name, (field, _, _) in others.items() if normaliser.may_change(name, members[name].names())
        }
        self._doubtful = attrgetter(*_PARTS, *self._names.values())
        self._clear = (UNSET,) * (_COUNT + len(self._names))

    def decode(self, body: bytes) -> list[Any] | None:
        """The events of an array, where nothing was lost when they were decoded and no text is to be trimmed."""
        try:
            events = self._decode_events(body)
            spelled = _SPELL(events)
        except (msgspec.DecodeError, RecursionError):
            return None
        if spelled != body and spelled.translate(None, BLANKS) != body.translate(None, BLANKS):
            return None
        plain = spelled.isascii() and b"\\" not in spelled and _PADDED.search(spelled) is None
        return events if plain or _are_trimmed(events) else None

    def envelopes(self, events: list[Any], now: str) -> list[Envelope]:
        """The envelopes of events that were seen."""
        context, members, doubtful, clear = self._context, self._members, self._doubtful, self._clear
        made: list[Envelope] = []
        for event in events:
            level = event.level
            if level is None:
                level = infer_level(event.why or event.fix or event.link, event.status)
            doubtful_values = doubtful(event)
            is_clear = doubtful_values == clear
            if level not in LEVEL_OF or not (is_clear or doubtful_values[:_COUNT] == _NO_PARTS):
                made.append(self._normaliser.envelope(to_builtins(event), now))
                continue
            envelope = Envelope(
                event.timestamp or now, level, event.service, event.environment, event.version, event.region,
                event.request_id, event.trace_id, event.span_id, event.method, event.path, event.status,
                event.duration, event.message, event.why, event.fix, event.link, None, NOTHING,
                context(*members(event)),  # type: ignore[arg-type]
            )  # fmt: skip
            if not is_clear:
                self._settle(envelope, doubtful_values)
            made.append(envelope)
        return made

    def _settle(self, envelope: Envelope, doubtful_values: tuple[Any, ...]) -> None:
        """Redact what is doubtful of a context, and find identifiers there; the rest of it has neither."""
        context, fields = envelope.context, self._names
        doubtful = enumerate(fields, _COUNT)
        envelope.context = part = {
            name: to_builtins(doubtful_values[n]) for n, name in doubtful if doubtful_values[n] is not UNSET
        }
        self._normaliser.redact(envelope)
        self._normaliser.identify(envelope)
        for name, value in part.items():
            setattr(context, fields[name], value)
        envelope.context = context


def _are_trimmed(events: list[Any]) -> bool:
    texts = [*filter(None, chain.from_iterable(map(_texts_of, events)))]
    return [*map(str.strip, texts)] == texts


def _getter(fields: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives fields as a tuple."""
    if len(fields) > 1:
        return attrgetter(*fields)
    if fields:
        get = attrgetter(*fields)
        return lambda value: (get(value),)
    return lambda value: ()
