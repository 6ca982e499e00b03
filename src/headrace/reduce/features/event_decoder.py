"""The stored events of a source as values, with every digit of their integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.schema.descriptor.nodes import Field
from headrace.schema.entries import whole_or_double
from headrace.types import Piece

_PLAIN = msgspec.json.Decoder(list[dict[str, Any]])
_EXACT = msgspec.json.Decoder(list[dict[str, Any]], float_hook=whole_or_double)


class EventDecoder:
    """Decodes events; only integers that are spelled with a fraction or an exponent take a second reading."""

    def __init__(self, schema: Mapping[str, Field]) -> None:
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
