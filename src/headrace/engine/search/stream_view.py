"""One stream as the planner sees it: what can be derived from it, what was, and what is missing."""

from __future__ import annotations

from typing import NamedTuple

from headrace.engine.derive.readable import OwnedRange, parts
from headrace.engine.search.companion_cover import is_current, span, widest
from headrace.engine.search.definitions import Defined, Definitions
from headrace.format.companion.layout import Companion
from headrace.format.ranges import Range, without
from headrace.storage.companions import Companions
from headrace.storage.database import Connection
from headrace.storage.registries import Registries
from headrace.storage.streams import LIVE, StreamRow, Streams


class View(NamedTuple):
    """A living stream with a search configuration; entries before ``start`` are of no interest."""

    row: StreamRow
    defined: Defined
    owned: list[OwnedRange]
    start: int
    listed: list[Companion]
    #: Those that hold everything that is defined.
    current: list[Companion]
    #: Published entries without any companion, and those whose companions are out of date.
    uncovered: list[Range]
    stale: list[Range]


class Viewer:
    """Looks at streams through one connection."""

    def __init__(self, connection: Connection, definitions: Definitions) -> None:
        self._streams, self._registries = Streams(connection), Registries(connection)
        self._companions = Companions(connection)
        self._definitions = definitions

    def view(self, stream: int) -> View | None:
        """A stream as it is; None where nothing is to be derived."""
        row = self._streams.by_id(stream)
        if row is None or row.state != LIVE:
            return None
        defined = self._definitions.stored(self._registries, row)
        if defined is None:
            return None
        start = max(row.first_seq, defined.registry.readable_from)
        owned = parts(self._streams, row, start)
        whole = [Range(start, owned[-1].end)] if owned else []
        listed = self._companions.listed(stream)
        current = [one for one in listed if is_current(one, defined)]
        uncovered = without(whole, [span(one) for one in listed])
        stale = without(without(whole, [span(one) for one in widest(current)]), uncovered)
        return View(row, defined, owned, start, listed, current, uncovered, stale)
