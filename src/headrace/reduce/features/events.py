"""The stored events of a source as values, with every digit of their integers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from headrace.reduce.features.event_time import UNFIT_MS, EventTime, event_time_of
from headrace.reduce.features.rows import Rows
from headrace.reduce.states.definition import EventRun, Folded
from headrace.schema.descriptor.nodes import Event, EventField, Node
from headrace.schema.descriptor.validate import resolve_chain
from headrace.schema.entries import integer_or_double
from headrace.schema.lens.values import LensFailure
from headrace.schema.registry import Registry
from headrace.schema.view import chain_of
from headrace.types import Piece

_PLAIN = msgspec.json.Decoder(list[dict[str, Any]])
_EXACT = msgspec.json.Decoder(list[dict[str, Any]], float_hook=integer_or_double)


class EventDecoder:
    """Decodes events; only integers that are spelled with a fraction or an exponent take a second reading."""

    def __init__(self, schema: Mapping[str, EventField]) -> None:
        self._integers = [name for name, field in schema.items() if field.type == "i64"]

    def decode(self, joined: Piece) -> list[dict[str, Any]]:
        """The events of a body, in which they are joined by commas."""
        body = b"[" + joined + b"]"
        events = _PLAIN.decode(body)
        rounded = [name for name in self._integers if float in map(type, [event.get(name) for event in events])]
        if rounded:
            for event, exact in zip(events, _EXACT.decode(body), strict=True):
                event.update((name, exact[name]) for name in rounded if name in exact)
        return events


class Promotion:
    """Brings stored events to the newest version that the lenses lead to."""

    def __init__(self, registry: Registry, cuts: Iterable[int]) -> None:
        """Events of a version are not brought beyond the first of ``cuts`` that follows it."""
        self._cuts = sorted(cuts)
        self._newest = registry.current_version
        self._chain = chain_of(registry)

    def target(self, version: int) -> int:
        """The newest version that events of a version can be brought to."""
        return next((cut for cut in self._cuts if cut >= version), self._newest)

    def is_last(self, version: int) -> bool:
        """Whether events of a version are brought to that of the stream."""
        return self.target(version) == self._newest

    def promote(self, joined: bytes, version: int) -> bytes:
        """Events joined by commas, in the newest shape that they can have."""
        target = self.target(version)
        # Events from before the first schema are of version 1, and a stream may have no version yet.
        if max(version, 1) == max(target, 1):
            return joined
        try:
            return self._chain.promote(joined, version, target)
        except LensFailure:
            return joined  # a lens is proven before it is taken; what it cannot carry all the same is taken as it is


class EventShapes:
    """Turns the stored events of a source into its newest shape; those before a break keep the last they can have."""

    def __init__(self, registry: Registry, event: Event) -> None:
        self._registry = registry
        self._promotion = Promotion(registry, registry.breaks)
        self._decoder = EventDecoder(event.schema)
        #: How the event time is read; None where events count by their append time.
        self.event_time = event_time_of(event)
        self._blank = {name: field.default for name, field in event.schema.items()}
        self._optional = [
            (name, field.default)
            for name, field in event.schema.items()
            if not field.required or field.default is not None
        ]

    def events(self, joined: bytes, version: int) -> list[dict[str, Any]]:
        """Events joined by commas, each with every field of the source."""
        events = self._decoder.decode(self.newest_body(joined, version))
        if not self._promotion.is_last(version):
            return [{**self._blank, **event} for event in events]
        for event in events if self._optional else ():
            for name, default in self._optional:
                event.setdefault(name, default)
        return events

    def newest_body(self, joined: bytes, version: int) -> bytes:
        """Events joined by commas, in the newest shape that they can have; fields may be left out."""
        return self._promotion.promote(joined, version)

    def is_newest(self, version: int) -> bool:
        """Whether events that are stored under a version have the newest shape, apart from fields that are left out."""
        return max(version, 1) == max(self._registry.current_version, 1)

    def decode_run(self, run: EventRun) -> Iterator[Folded]:
        """The same, one after the other; in place of one without a usable event time None."""
        return time_events(self.events(run.body, run.version), run, self.event_time)


def time_events(
    events: Iterable[dict[str, Any] | None], run: EventRun, event_time: EventTime | None
) -> Iterator[Folded]:
    """The events of a run with their numbers and the times they are folded by; None for one without such a time."""
    if event_time is None:
        for at, event in enumerate(events):
            yield run.first_seq + at, run.times_us[at] // 1000, event
        return
    folded_ms = event_time.folded_ms
    for at, event in enumerate(events):
        at_ms = run.times_us[at] // 1000 if event is None else folded_ms(event, run.times_us[at])
        yield run.first_seq + at, at_ms, None if at_ms == UNFIT_MS else event


_ENCODE = msgspec.json.Encoder().encode


class DerivedEvents:
    """One derivation, ready for use; never changed, only replaced."""

    def __init__(self, nodes: Mapping[str, Node], name: str, version: int) -> None:
        self.name = name
        #: The version of the registry that it is of.
        self.version = version
        source_chain = resolve_chain(nodes, name)
        self.root = source_chain.root.name
        schema = source_chain.root.schema
        self._blank = {field_name: field.default for field_name, field in schema.items()}
        self._decoder = EventDecoder(schema)
        self._rows = Rows(schema, source_chain.ops, schema)

    def turned(self, parts: Iterable[Piece]) -> list[Piece]:
        """Events joined by commas, in the newest version of their source, as events of this one."""
        converted = (self._convert(part) for part in parts)
        return [part for part in converted if part]

    def _convert(self, joined: Piece) -> bytes:
        rows = (self._rows.of({**self._blank, **event}) for event in self._decoder.decode(joined))
        return _ENCODE([row for row in rows if row is not None])[1:-1]
