"""An event source that is bound to a stream whose owner knows nothing of it, held to the oracle in pandas."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.schema.update import SchemaUpdate, parse_update
from headrace.types import JSON
from operators.events import TYPES
from support.feature_oracle import moment_us
from support.feature_rig import Pipelines
from support.timed_source import AHEAD_US, TimedSource

#: Where the fields of the source are in the events of the stream; others are members of their name.
POINTERS = {"k": "/user/id", "at": "/time/at", "x": "/value"}


class BoundSource(TimedSource):
    """A source over a stream of events of any shape, many of which do not fit it."""

    def __init__(self, rig: Pipelines, seed: int, *, by_append_time: bool = False, name: str = "E") -> None:
        super().__init__(rig, seed, by_append_time=by_append_time, name=name)
        self._stream = f"requests{name}"
        #: Where a member of events is by now, after the owner of the stream has moved it; None for one that is gone.
        self.moved: dict[str, str | None] = {}
        #: Whether the stream has a schema, so that all events that it takes fit.
        self.has_schema = False

    @property
    def stream(self) -> str:
        """The stream of its events."""
        return self._stream

    def create(self) -> None:
        """Create the stream, which belongs to somebody else."""
        self.rig.create(self.stream, JSON)

    def bind(self, stream: str) -> None:
        """Go on with another stream."""
        self._stream = stream

    def source_settings(self) -> dict[str, Any]:
        """What the registration says of event time, and of the stream."""
        return {**super().source_settings(), "stream": self.stream}

    def declared_fields(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The fields with their pointers."""
        fields = {name: field if isinstance(field, dict) else {"type": field} for name, field in schema.items()}
        return {
            name: {**field, **({"pointer": POINTERS[name]} if name in POINTERS else {})}
            for name, field in fields.items()
        }

    def document(self, event: dict[str, Any]) -> dict[str, Any]:
        """An event as the owner of the stream writes it."""
        members = {"value" if name == "x" else name: value for name, value in event.items() if name not in ("k", "at")}
        placed = {self.moved.get(name, name): value for name, value in members.items()}
        placed.pop(None, None)
        return {"user": {"id": event["k"], "more": [1]}, "time": {"at": event["at"]}, "other": {"k": 1}, **placed}

    def append(self, events: list[dict[str, Any]]) -> None:
        """Append events to the stream, and some that do not fit among them."""
        documents: list[Any] = []
        for event in events:
            document, kept = self.document(event), event
            if not self.has_schema and self.random.random() < 0.2:
                self.spoil(document)
                kept = None  # type: ignore[assignment]
            elif self.source.field is not None and moment_us(event["at"], self.unit) - self.now_us > AHEAD_US:
                kept = None  # type: ignore[assignment]
            documents.append(document)
            self.events.append((self.now_us, kept))
        self.rig.append(self.stream, msgspec.json.encode(documents))

    def forget(self, first_seq: int, end_seq: int) -> None:
        """Let some events not count."""
        for seq in range(first_seq, end_seq):
            self.events[seq] = self.events[seq][0], None

    def spoil(self, document: dict[str, Any]) -> None:
        """Make an event one that does not fit."""
        place = self.random.randrange(5)
        if place == 0:
            document["user"] = self.random.choice([None, {}, {"id": None}, {"id": 7}, "a"])
        elif place == 1:
            document["time"] = self.random.choice([None, {}, {"at": None}, {"at": True}, {"at": [1]}, {"at": "soon"}])
        elif place == 2:
            document["i"] = self.random.choice([2**63, 1.5, "1", True, {}])
        elif place == 3:
            document["value"] = self.random.choice(["1", False, []])
        else:
            document["t"] = self.random.choice(["yesterday", 5, "2024-02-30T00:00:00Z"])

    def event(self) -> dict[str, Any]:
        """An event, which may lie too far ahead of the clock here."""
        made = super().event()
        if self.has_schema:
            made = {**dict.fromkeys(TYPES), **made}
            made["s"] = made["s"] or "a"
        if self.random.random() < 0.05 and self.unit in ("us", "ns"):
            made["at"] += (2 * AHEAD_US) * (1000 if self.unit == "ns" else 1)
        return made

    def schema(self) -> dict[str, Any]:
        """The schema of events as they are by now: every member is there, and all but a few may be null."""
        kinds: dict[str, Any] = {
            "value": ["number", "null"], "i": ["integer", "null"], "s": "string", "b": ["boolean", "null"],
            "t": ["string", "null"], "lat": ["number", "null"], "lon": ["number", "null"],
        }  # fmt: skip
        members: dict[str, Any] = {self.moved.get(name, name): {"type": kind} for name, kind in kinds.items()}
        members.pop(None, None)
        at = {"type": "string", "format": "date-time"} if self.unit is None else {"type": "integer"}
        members["user"] = closed({"id": {"type": "string"}, "more": {"type": "array"}})
        members["time"] = closed({"at": at})
        members["other"] = {"type": "object"}
        return closed(members)

    def create_schema(self) -> None:
        """Give the stream its first schema."""
        self._change({"schema": self.schema()})
        self.has_schema = True

    def evolve(self, *ops: dict[str, Any]) -> None:
        """Take the stream to its next schema version, as its owner does."""
        registry = self.rig.find(self.stream).head.registry
        assert registry is not None
        lens = {"apiVersion": "durable.lens/v1", "schema": self.stream, "from": registry.version}
        self._change({"schema": self.schema(), "lens": {**lens, "to": registry.version + 1, "ops": list(ops)}})

    def _change(self, body: dict[str, Any]) -> None:
        update = parse_update(body)
        assert isinstance(update, SchemaUpdate), update
        self.rig.run(self.rig.engine.schemas.apply(self.rig.find(self.stream), update))


def closed(members: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with just these members."""
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
