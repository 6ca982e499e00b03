"""Event sources as append hooks: they fill in defaults, find keys, and explain why events do not fit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET

from headrace import decoding
from headrace.errors import (
    BadRequest,
    Conflict,
    EventTimeAhead,
    Gone,
    MissingField,
    SchemaMismatch,
    UnknownEvent,
    UnknownField,
)
from headrace.profiles.hook import AppendHook
from headrace.reduce.features.event_time import EventTime, event_time_of
from headrace.schema.descriptor.nodes import Event
from headrace.schema.entries import Failure, entries_of, integer_or_double
from headrace.schema.entries import read as read_entries
from headrace.schema.routing_key import MAX_FAILURES
from headrace.types import MAX_AHEAD_US, Clock, Steps, SystemClock, rfc3339

if TYPE_CHECKING:
    from headrace.engine.log.stream_registry import StreamRegistry

#: How long a key is remembered by default.
DEDUPE_WINDOW_MS = 86_400_000
_KINDS: dict[str, type[BadRequest]] = {
    kind.code: kind for kind in (MissingField, UnknownField, SchemaMismatch, EventTimeAhead)
}
_ENCODE = msgspec.json.Encoder().encode


class NotPushedTo(Conflict):
    """The events of the source are those of a stream: they are appended to it, and not pushed."""

    code = "push_not_supported"


class SourceGone(Gone):
    """The stream was deleted whose events are those of a source."""

    code = "source_gone"


class SourceRules(msgspec.Struct, frozen=True, tag="event", tag_field="kind", omit_defaults=True):
    """The rules of an event source as they are stored with its stream."""

    event: Event
    #: How long events are kept, in milliseconds; None is for ever. An event keeps the lifetime of its append.
    kept: Steps = ((0, None),)
    #: Keys of events before this one do not count, since another field held the key.
    dedupe_since: int = 0

    def dump(self) -> str:
        """The rules as they are stored."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def load(cls, text: str) -> SourceRules:
        """Read them back."""
        return decoding.decode(text, cls)


class EventSource(AppendHook):
    """The append hook of one event source; immutable."""

    __slots__ = (
        "_clock", "_default_of", "_defaults", "_event_times", "_key_of", "_probe", "can_be_late", "dedupe_since",
        "dedupe_window_us", "deduplicates", "has_event_time", "lifetimes_ms", "max_dedupe_keys", "normalises", "rules",
    )  # fmt: skip

    def __init__(self, rules: SourceRules, max_dedupe_keys: int = 0, clock: Clock | None = None) -> None:
        event = rules.event
        self._clock = clock or SystemClock()
        event_time = event_time_of(event)
        self._event_times = None if event_time is None else EventTimes(event_time)
        self.has_event_time = event_time is not None
        self.can_be_late = event_time is not None and event_time.late_after_us is not None
        self.rules = rules
        self.lifetimes_ms: Steps | None = rules.kept
        self.dedupe_since = rules.dedupe_since
        self.max_dedupe_keys = max_dedupe_keys
        window_ms = event.dedupe_window_ms or DEDUPE_WINDOW_MS
        self.dedupe_window_us = window_ms * 1000 if event.dedupe_key is not None else 0
        self._defaults = {name: field.default for name, field in event.schema.items() if field.default is not None}
        self._probe = _decoder(list(self._defaults)) if self._defaults else None
        self._default_of = attrgetter(*_names(len(self._defaults))) if self._defaults else None
        self._key_of = None if event.dedupe_key is None else _decoder([event.dedupe_key])
        self.normalises = self._probe is not None
        self.deduplicates = self._key_of is not None

    def normalise(self, joined: bytes, terms: object = None) -> bytes:
        """Entries joined by commas, with defaults for the fields that they leave out."""
        if self._probe is None or self._default_of is None:
            return joined
        try:
            members: list[Any] = [self._default_of(probe) for probe in self._probe.decode(b"[" + joined + b"]")]
        except (msgspec.DecodeError, RecursionError):
            return joined  # the check against the schema says what is wrong
        many = len(self._defaults) > 1
        left_out = [UNSET in values if many else values is UNSET for values in members]
        if not any(left_out):
            return joined
        entries = [bytes(entry) for entry in entries_of(joined)]
        for index, lacks in enumerate(left_out):
            if lacks:
                values = members[index] if many else (members[index],)
                entries[index] = self._with_defaults(entries[index], values)
        return b",".join(entries)

    def _with_defaults(self, entry: bytes, values: tuple[Any, ...]) -> bytes:
        defaults = zip(self._defaults.items(), values, strict=True)
        added = _ENCODE({name: default for (name, default), value in defaults if value is UNSET})
        inside = entry.strip()[1:-1]
        return b"{" + inside + b"," + added[1:] if inside.strip() else added

    def failures(self, joined: bytes, timestamp_us: int | None = None) -> list[Failure]:
        """The entries whose event time lies too far ahead, or cannot be."""
        if self._event_times is None:
            return []
        return self._event_times.failures(joined, self._clock.now_us() if timestamp_us is None else timestamp_us)

    def count_late(self, joined: bytes, at_us: int) -> int:
        """The entries that are appended too late by their event time."""
        return 0 if self._event_times is None else self._event_times.count_late(joined, at_us)

    def dedupe_keys(self, joined: bytes) -> list[str | None]:
        """The key of each entry, None for one that has none."""
        assert self._key_of is not None
        return [_canonical(probe.f0) for probe in self._key_of.decode(b"[" + joined + b"]")]

    def refusal(self, joined: bytes, failures: list[Failure], number: int = 0) -> BadRequest:
        """Why entries do not fit, given their violations of the schema; ``number`` is that of the first entry."""
        values, _ = read_entries(joined)
        indexes, fields = dict.fromkeys(failure.index for failure in failures), self.rules.event.schema
        problems = [problem for index in indexes for problem in self._field_problems(index, values)]
        problems += [_described(failure) for failure in failures if failure.pointer.strip("/").split("/")[0] in fields]
        problems = problems or [_described(failure) for failure in failures]
        problems = [{**problem, "index": number + problem["index"]} for problem in problems]
        problems.sort(key=itemgetter("index"))
        first = problems[0]
        field = str(first["path"]).removeprefix("/") or "body"
        message = f"event {first['index'] + 1} does not fit: {first['message']}"
        return _KINDS[first["code"]](message, field=field, path=first["path"], failures=problems)

    def _field_problems(self, index: int, values: list[Any]) -> list[dict[str, Any]]:
        """The missing and the unknown fields of an entry."""
        value, schema = values[index] if index < len(values) else None, self.rules.event.schema
        if not isinstance(value, dict):
            return []
        missing = [name for name, field in schema.items() if field.required and name not in value]
        unknown = [name for name in value if name not in schema]
        return [
            *(_problem(index, "missing_field", name, f"{name!r} is required") for name in missing),
            *(_problem(index, "unknown_field", name, f"there is no field {name!r}") for name in unknown),
        ]


#: Makes the hook of a source from its rules.
MakeSource = Callable[[SourceRules], EventSource]


_SECOND_US = 1_000_000


class _ValueRange(NamedTuple):
    """Values of a timestamp field between which an event is at no moment of a second ahead, or late."""

    second: int
    least: Any
    greatest: Any


class TimeFailure(Failure, frozen=True):
    """An entry that is refused for its event time."""

    code: str = "event_time_ahead"


class EventTimes:
    """Checks the event times of entries joined by commas; others of their fields are not decoded."""

    def __init__(self, event_time: EventTime) -> None:
        self._event_time = event_time
        name = event_time.field
        kind = datetime if event_time.unit is None else int
        probe: Any = msgspec.defstruct("Time", [("value", kind)], rename={"value": name}, gc=False)
        self._decode = decoding.make_decoder(list[probe]).decode
        self._decode_exactly = _decoder([name]).decode
        #: What is neither ahead nor late during the newest second that was asked for, computed once for it.
        self._not_ahead = self._not_late = _ValueRange(-1, None, None)

    def failures(self, joined: bytes, now_us: int) -> list[Failure]:
        """The entries whose time is more than 60 s after a moment, or cannot be."""
        second = now_us // _SECOND_US
        if self._not_ahead.second != second:
            bounds = self._event_time.bounds(None, second * _SECOND_US + MAX_AHEAD_US)
            self._not_ahead = _ValueRange(second, *bounds)
        if self._are_all_between(joined, self._not_ahead):
            return []
        failures: list[Failure] = []
        for index, event_us in enumerate(self._micros(joined)):
            if event_us is None:
                reason = "is no time between the years 1 and 9999: timestamp_unit may be another"
                failures.append(TimeFailure(index, f"/{self._event_time.field}", reason, "schema_mismatch"))
            elif event_us > now_us + MAX_AHEAD_US:
                reason = (
                    f"is {rfc3339(event_us)}, more than 60 s ahead of {rfc3339(now_us)}: "
                    "an event is pushed when it has happened, and timestamp_unit may be another"
                )
                failures.append(TimeFailure(index, f"/{self._event_time.field}", reason))
        return failures[:MAX_FAILURES]

    def count_late(self, joined: bytes, at_us: int) -> int:
        """How many entries are late if they are appended at a time."""
        late_after_us = self._event_time.late_after_us
        if late_after_us is None:
            return 0
        second = at_us // _SECOND_US
        if self._not_late.second != second:
            bounds = self._event_time.bounds((second + 1) * _SECOND_US - late_after_us, None)
            self._not_late = _ValueRange(second, *bounds)
        if self._are_all_between(joined, self._not_late):
            return 0
        return sum(
            event_us is not None and self._event_time.is_late(event_us, at_us) for event_us in self._micros(joined)
        )

    def _are_all_between(self, joined: bytes, bounds: _ValueRange) -> bool:
        """Whether it is seen at a glance that all times lie within bounds."""
        _, least, greatest = bounds
        try:
            probes = self._decode(b"[" + joined + b"]")
        except (msgspec.DecodeError, RecursionError):
            return False
        values = [probe.value for probe in probes]
        are_between: bool = not values or (least <= min(values) and max(values) <= greatest)
        return are_between

    def _micros(self, joined: bytes) -> list[int | None]:
        name = self._event_time.field
        values = [probe.f0 for probe in self._decode_exactly(b"[" + joined + b"]")]
        return [None if value is UNSET else self._event_time.micros({name: value}) for value in values]


def source_of(registry: StreamRegistry | None) -> EventSource:
    """The event source of a stream, by its registry; raises UnknownEvent for other streams."""
    hook = None if registry is None else registry.hook
    if not isinstance(hook, EventSource):
        raise UnknownEvent("the stream is no event source")
    return hook


def _problem(index: int, code: str, name: str, message: str) -> dict[str, Any]:
    escaped = name.replace("~", "~0").replace("/", "~1")
    return {"index": index, "code": code, "path": f"/{escaped}", "message": message}


def _described(failure: Failure) -> dict[str, Any]:
    where = failure.pointer or "the event"
    message = f"{where} {failure.reason}" if failure.reason.startswith("is ") else f"{where}: {failure.reason}"
    code = failure.code if isinstance(failure, TimeFailure) else "schema_mismatch"
    return {"index": failure.index, "code": code, "path": failure.pointer, "message": message}


def _names(count: int) -> list[str]:
    return [f"f{number}" for number in range(count)]


def _decoder(fields: list[str]) -> msgspec.json.Decoder[list[Any]]:
    """A decoder of some members of objects, which skips the others."""
    names = _names(len(fields))
    probe = msgspec.defstruct(
        "Probe", [(name, Any, UNSET) for name in names], rename=dict(zip(names, fields, strict=True)), gc=False
    )
    return decoding.make_decoder(list[probe], float_hook=integer_or_double)  # type: ignore[valid-type]


def _canonical(value: Any) -> str | None:
    """A key as text: equal values have equal texts, values of different types different ones."""
    if value is UNSET or value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return _ENCODE(value).decode()
