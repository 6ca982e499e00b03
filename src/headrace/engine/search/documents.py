"""Events as documents of the newest shape: for odd rows, which columns cannot describe, and for hits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.engine.search.archive import SearchSnapshot
from headrace.extract.match.tally import Tally
from headrace.query.definition import decode_exact
from headrace.query.search import Field, Search
from headrace.schema.lens.values import LensFailure, Raw, encode_value, find_value_slot, open_container


class Documents:
    """The events of one look in the newest shape; those that no lens carries there are noted."""

    def __init__(self, snapshot: SearchSnapshot, tally: Tally) -> None:
        self._events = snapshot.events
        self._definition = snapshot.defined.definition
        self._tally = tally
        self.unreadable: set[int] = set()

    def promoted(self, seq: int) -> Promoted | None:
        """An event, or None where no lens carries it to the newest shape."""
        event = self._events.get([seq])[seq]
        self._tally.decoded_records += 1
        with self._tally.timing("json_parse_time_ms"):
            try:
                return Promoted(self._definition.promote(event.payload, event.version))
            except LensFailure:
                self.unreadable.add(seq)
                return None


class Promoted(NamedTuple):
    """An event in the newest shape, spelled as it is read."""

    payload: bytes

    def document(self, decode: Callable[[bytes], Any] = decode_exact) -> Any:
        """The event as a value, its numbers with all their digits unless ``decode`` says otherwise."""
        try:
            return decode(self.payload)
        except RecursionError:
            return _opened(self.payload, decode)

    def fields(self, search: Search) -> dict[str, Any]:
        """The values of every search field as they are spelled: one alone, several in an array."""
        root = [Raw(self.payload)]
        given = {name: _spelled(root, field) for name, field in search.fields.items()}
        return {name: values[0] if len(values) == 1 else values for name, values in given.items() if values}


def _spelled(root: list[Any], field: Field) -> list[Raw]:
    """What lies where a field is bound, arrays flattened, in order; null is nothing."""
    place = find_value_slot(root, 0, field.pointer)
    pending = [] if place is None else [place]
    values: list[Raw] = []
    while pending:
        holder, key = pending.pop()
        container = open_container(holder, key)
        if isinstance(container, list):
            pending.extend((container, at) for at in reversed(range(len(container))))
        else:
            values.append(encode_value(holder[key]))
    return [value for value in values if bytes(value) != b"null"]


def _opened(payload: bytes, decode: Callable[[bytes], Any]) -> Any:
    """A document that is nested deeper than the decoder goes, opened level by level."""
    root: list[Any] = [Raw(payload)]
    pending: list[tuple[Any, Any]] = [(root, 0)]
    while pending:
        holder, key = pending.pop()
        container = open_container(holder, key)
        if isinstance(container, dict):
            pending.extend((container, name) for name in container)
        elif isinstance(container, list):
            pending.extend((container, at) for at in range(len(container)))
        else:
            holder[key] = decode(bytes(holder[key]))
    return root[0]
