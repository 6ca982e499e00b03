"""Events of a stream as entities: which field is where in an event, and when it was observed.

Values keep their text, so that no digit of a number is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, DecimalException
from hashlib import sha256
from math import floor
from typing import Any, Literal, NamedTuple

import msgspec

from headrace.errors import BadRequest
from headrace.schema import pointer
from headrace.types import parse_timestamp_us, rfc3339

TimeUnit = Literal["s", "ms", "us", "ns"]
#: Microseconds in each unit of Unix time.
_UNIT_US = {"s": Decimal(1_000_000), "ms": Decimal(1_000), "us": Decimal(1), "ns": Decimal("0.001")}
#: The years 1 to 9999.
_FIRST_US, _END_US = -62_135_596_800_000_000, 253_402_300_800_000_000
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
#: How much of a value a message shows.
_SHOWN = 40
#: Members of an entity that are no fields.
_RESERVED = ("entity_type", "_meta")
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class MappedEvent(NamedTuple):
    """The fields of an entity that an event has, and when that was observed; None where no field says so."""

    fields: dict[str, msgspec.Raw]
    observed_at: str | None


class EventMapping:
    """Where the fields of an entity are in events, by a name or a JSON Pointer each; by default each member is one."""

    def __init__(
        self,
        fields: Mapping[str, str] | None = None,
        *,
        observed_at_field: str | None = None,
        observed_at_unit: TimeUnit | None = None,
    ) -> None:
        """``observed_at_field`` is a name or a pointer as well; a number there is Unix time in the unit."""
        if fields is not None and not fields:
            raise BadRequest("map at least one field, or leave the mapping out to take every member", field="fields")
        for name in fields or ():
            if not name or name in _RESERVED:
                raise BadRequest(f"{name!r} cannot be a field of an entity: choose another name", field="fields")
        if observed_at_unit is not None and observed_at_unit not in _UNIT_US:
            raise BadRequest(f"{observed_at_unit!r} is no unit: s, ms, us or ns", field="observed_at_unit")
        if observed_at_unit is not None and observed_at_field is None:
            raise BadRequest("a unit needs the field of the time: name observed_at_field", field="observed_at_field")
        self._paths = None if fields is None else {name: _read_path(name, text) for name, text in fields.items()}
        self._time_path = None if observed_at_field is None else _read_path("observed_at_field", observed_at_field)
        self._time_name, self._unit = observed_at_field, observed_at_unit

    def digest(self, *options: Any) -> str:
        """A name of this mapping together with options: the same for the same ones."""
        parts = [self._paths, self._time_path, self._unit, *options]
        return sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:32]

    def map(self, event: bytes) -> MappedEvent:
        """The entity of an event; raises ValueError, with the reason, where the event is none."""
        try:
            members = _decode_object(event)
        except (msgspec.DecodeError, RecursionError) as reason:
            raise ValueError("the event is not an object") from reason
        observed_at = None if self._time_path is None else self._read_moment(_find(members, self._time_path))
        return MappedEvent(dict(self._find_fields(members)), observed_at)

    def _find_fields(self, members: dict[str, msgspec.Raw]) -> Iterator[tuple[str, msgspec.Raw]]:
        if self._paths is None:
            for name in _RESERVED:
                if name in members:
                    raise ValueError(f"the event has a member {name!r}, which is no field: map the fields by name")
            if not members:
                raise ValueError("the event has no members")
            yield from members.items()
            return
        is_empty = True
        for name, path in self._paths.items():
            value = _find(members, path)
            if value is not None:
                is_empty = False
                yield name, value
        if is_empty:
            wanted = ", ".join(pointer.text(path) for path in self._paths.values())
            raise ValueError(f"the event has none of the mapped fields: {wanted}")

    def _read_moment(self, raw: msgspec.Raw | None) -> str:
        """When the event was observed, as the API takes it."""
        text = b"" if raw is None else bytes(raw)
        is_text = text.startswith(b'"')
        value = msgspec.json.decode(text, type=str) if is_text else text.decode()
        if value in ("", "null"):
            raise ValueError(f"no value in {self._time_name}")
        if _NUMBER.fullmatch(value):
            return self._read_unix_time(value)
        if not is_text:
            raise ValueError(f"{self._time_name}: {value[:_SHOWN]} is no time")
        moment = f"{value}T00:00:00Z" if _DATE.fullmatch(value) else value
        try:
            parse_timestamp_us(moment, str(self._time_name))
        except BadRequest as refusal:
            raise ValueError(refusal.message) from refusal
        return moment

    def _read_unix_time(self, text: str) -> str:
        if self._unit is None:
            raise ValueError(f"{self._time_name}: {text[:_SHOWN]} is a number: say its unit, s, ms, us or ns")
        try:
            micros = Decimal(text) * _UNIT_US[self._unit]
        except DecimalException:  # such an exponent as no calendar has
            micros = Decimal(_END_US)
        if not _FIRST_US <= micros < _END_US:
            years = "is not in the years 1 to 9999: is the unit right?"
            raise ValueError(f"{self._time_name}: {text[:_SHOWN]} {self._unit} {years}")
        return rfc3339(floor(micros))


def _read_path(name: str, text: str) -> pointer.Pointer:
    """A path of names, given as the name of a member or as a JSON Pointer."""
    path = pointer.parse(text) if text.startswith("/") else (text,)
    if not text or path is None:
        message = f"{name}: {text!r} is neither the name of a member nor a JSON Pointer such as /customer/name"
        raise BadRequest(message, field=name)
    return path


def _find(members: dict[str, msgspec.Raw], path: pointer.Pointer) -> msgspec.Raw | None:
    """The value at a path of an event; None where there is none."""
    value = members.get(path[0])
    for name in path[1:]:
        if value is None:
            return None
        text = bytes(value)
        if text[:1] == b"{":
            value = _decode_object(text).get(name)
        elif text[:1] == b"[":
            elements, at = _decode_array(text), pointer.index(name)
            value = elements[at] if at is not None and at < len(elements) else None
        else:
            return None
    return value
