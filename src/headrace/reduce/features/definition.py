"""A table as it is defined at one version of the registry, whole enough to be folded anywhere."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import msgspec

from headrace import decoding
from headrace.reduce.features.table import TableReducer
from headrace.schema.descriptor.nodes import Event, Life, Node, Table
from headrace.schema.descriptor.resolve import resolve
from headrace.types import Steps

if TYPE_CHECKING:
    from headrace.reduce.features.keying import FieldKeying, RowKeying

_KEPT = 256


class Defined(msgspec.Struct, frozen=True, dict=True):
    """A table, what it is made from, and the lives of its features; equal ones fold alike."""

    table: str
    #: The event source, and the stream whose events are folded.
    root: str
    stream: str
    nodes: dict[str, Node]
    lives: dict[str, Life]
    #: How long an entity may be idle, by the event from which on that holds.
    cold: Steps = ((0, None),)

    @classmethod
    def load(cls, document: object) -> Defined:
        """Read back what was dumped."""
        return decoding.convert(document, cls)

    def dump(self) -> object:
        """The definition as a document."""
        return msgspec.to_builtins(self)

    @property
    def name(self) -> str:
        """The table's."""
        return self.table

    @property
    def event(self) -> Event:
        """The source whose events are folded."""
        root = self.nodes[self.root]
        assert isinstance(root, Event)
        return root

    @property
    def born(self) -> int:
        """The first event that any feature folds."""
        return min(life.birth for life in self.lives.values())

    @cached_property
    def reducer(self) -> TableReducer:
        """What folds it; equal ones share it."""
        return _reducer(msgspec.json.encode(self))

    @cached_property
    def keying(self) -> FieldKeying | RowKeying:
        """How the keys of its events are hashed."""
        from headrace.reduce.features.keying import keying

        return keying(self.reducer, self.event, resolve(self.nodes, self.table).ops)

    def restricted(self, names: Collection[str]) -> Defined:
        """The same with some of its features only."""
        table = self.nodes[self.table]
        assert isinstance(table, Table)
        kept = {name: feature for name, feature in table.features.items() if name in names}
        nodes = {**self.nodes, self.table: msgspec.structs.replace(table, features=kept)}
        return msgspec.structs.replace(self, nodes=nodes, lives={name: self.lives[name] for name in kept})


@lru_cache(maxsize=_KEPT)
def _reducer(encoded: bytes) -> TableReducer:
    defined = decoding.decode(encoded, Defined)
    return TableReducer(resolve(defined.nodes, defined.table), defined.lives, defined.cold)
