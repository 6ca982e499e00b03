"""Derived events: the events of a source, filtered and mapped as they are read, and stored nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headrace.reduce.features.event_decoder import EventDecoder
from headrace.reduce.features.rows import Rows
from headrace.schema.descriptor.nodes import Node
from headrace.schema.descriptor.resolve import chain
from headrace.types import Piece

_ENCODE = msgspec.json.Encoder().encode


class Derived:
    """One derivation, ready for use; never changed, only replaced."""

    def __init__(self, nodes: Mapping[str, Node], name: str, version: int) -> None:
        self.name = name
        #: The version of the registry that it is of.
        self.version = version
        found = chain(nodes, name)
        self.root = found.root.name
        schema = found.root.schema
        self._blank = {field: given.default for field, given in schema.items()}
        self._decoder = EventDecoder(schema)
        self._rows = Rows(schema, found.ops, schema)

    def turned(self, parts: Iterable[Piece]) -> list[Piece]:
        """Events joined by commas, in the newest version of their source, as events of this one."""
        found = (self._turned(part) for part in parts)
        return [part for part in found if part]

    def _turned(self, joined: Piece) -> bytes:
        rows = (self._rows.of({**self._blank, **event}) for event in self._decoder.decode(joined))
        return _ENCODE([row for row in rows if row is not None])[1:-1]
