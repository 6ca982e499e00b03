"""Which kind a stream is of: told by what manages it, or by its profile."""

from __future__ import annotations

from copy import copy

from headrace import decoding
from headrace.engine.entities import kind as entities
from headrace.engine.entities.kind import EntityKind
from headrace.engine.features import source as features
from headrace.engine.features.source import Source
from headrace.engine.log.append_hook import Kind
from headrace.profiles import table
from headrace.storage.database import Connection
from headrace.storage.streams import StreamRow
from headrace.types import RESERVED

_RULES = decoding.make_decoder(features.Rules | entities.Rules)


class Kinds:
    """Makes the kinds of streams, out of their rows and what else is stored about them."""

    def __init__(self, connection: Connection, *, most_keys: int = 0) -> None:
        """``most_keys`` is how many keys an event source remembers."""
        self._connection = connection
        self._most_keys = most_keys

    def of(self, row: StreamRow) -> Kind | None:
        """The kind of a stream; None for a plain one."""
        if row.managed:
            rules = _RULES.decode(row.managed)
            if isinstance(rules, features.Rules):
                return Source(rules, self._most_keys)
            return EntityKind.load(self._connection, rules.entity_type)
        hook = table.load(row.profile).hook
        if hook is not None and hook.suggests and row.name.startswith(RESERVED):
            # Streams of the server have the routing keys that their registries name, and no others.
            hook = copy(hook)
            hook.suggests = False
        return hook
