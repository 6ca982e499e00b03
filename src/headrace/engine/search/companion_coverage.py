"""The definition of a stream's companions, and the selection of companions that cover its events.

What companions leave out is read from segments and the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import msgspec

from headrace.engine.log.stream import Stream
from headrace.format.companion.layout import Companion
from headrace.format.decoded_columns import LruCache
from headrace.format.ranges import Range, merge_ranges
from headrace.query.definition import Definition
from headrace.schema.registry import Registry
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, Stamp
from headrace.storage.registries import Registries
from headrace.storage.streams import StreamRow

#: Definitions and decoded companions that are kept, of all streams together.
_MAX_DEFINITIONS, _MAX_COMPANIONS = 512, 20_000


class Hashes(NamedTuple):
    """The content of a companion that is up to date: field → hash, rollup → hash."""

    fields: dict[str, str]
    rollups: dict[str, str]


class SearchDefinition:
    """The search fields and rollups that a revision of a stream's registry defines."""

    def __init__(self, registry: Registry, definition: Definition) -> None:
        self.registry = registry
        self.definition = definition
        self._hashes: dict[int, Hashes] = {}

    def hashes(self, through_version: int) -> Hashes:
        """The hashes of everything that is defined, for events of versions up to this one."""
        hashes = self._hashes.get(through_version)
        if hashes is None:
            definition, search = self.definition, self.definition.search
            hashes = self._hashes[through_version] = Hashes(
                {name: definition.field_hash(name, through_version) for name in search.fields},
                {name: definition.rollup_hash(name, through_version) for name in search.rollups},
            )
        return hashes

    def may_answer(self, companion: Companion, fields: Collection[str], rollups: Collection[str] = ()) -> bool:
        """Whether a companion holds these fields and rollups as they are defined here."""
        hashes = self.hashes(companion.through_version)
        return all(companion.fields.get(name, "") == hashes.fields.get(name) for name in fields) and all(
            companion.rollups.get(name, "") == hashes.rollups.get(name) for name in rollups
        )

    def is_current(self, companion: Companion) -> bool:
        """Whether a companion holds everything that is defined here."""
        hashes = self.hashes(companion.through_version)
        return (
            companion.keys
            and hashes.fields.items() <= companion.fields.items()
            and hashes.rollups.items() <= companion.rollups.items()
        )


class SearchDefinitions:
    """Search definitions by stream and revision: each is read once, and shared by all threads."""

    def __init__(self) -> None:
        self._cache = LruCache(_MAX_DEFINITIONS)

    def stored(self, registries: Registries, row: StreamRow) -> SearchDefinition | None:
        """The definition of the newest revision in the database; None where a stream has none."""

        def load() -> Registry:
            return Registry.load(msgspec.json.decode(registries.document(row.id, row.revision)))

        return self.get(row.id, row.revision, load) if row.revision else None

    def get(self, stream: int, revision: int, load: Callable[[], Registry]) -> SearchDefinition | None:
        """The definition of a revision, whose registry is loaded where that is not known; None where it has none."""
        key = stream, revision
        cached: tuple[SearchDefinition | None] | None = self._cache.get(key)
        if cached is None:
            registry = load()
            definition = Definition.of(registry)
            cached = (None if definition is None else SearchDefinition(registry, definition),)
            self._cache.put(key, cached, 1)
        return cached[0]


def span(companion: Companion) -> Range:
    """The entries that a companion describes."""
    return Range(companion.first_seq, companion.end_seq)


def widest(companions: Iterable[Companion]) -> list[Companion]:
    """Companions without those that overlap one of a higher level, a wider, or one that comes later; in order."""
    chosen: list[Companion] = []
    firsts: list[int] = []
    for companion in sorted(reversed(list(companions)), key=lambda companion: (-companion.level, -companion.count)):
        at = bisect_right(firsts, companion.first_seq)
        is_after_the_previous = not at or chosen[at - 1].end_seq <= companion.first_seq
        if is_after_the_previous and (at == len(chosen) or companion.end_seq <= firsts[at]):
            chosen.insert(at, companion)
            firsts.insert(at, companion.first_seq)
    return chosen


def replaced(listed: list[Companion], defined: SearchDefinition, start: int) -> list[str]:
    """The names of companions that are of no more use: others have their entries from ``start`` on."""
    chosen = widest(companion for companion in listed if defined.is_current(companion))
    kept = {companion.name for companion in chosen if companion.end_seq > start}
    covered = merge_ranges([Range(-1, start), *map(span, chosen)])
    firsts = [first for first, _ in covered]
    return [
        companion.name
        for companion in listed
        if companion.name not in kept
        and companion.end_seq <= covered[bisect_right(firsts, companion.first_seq) - 1].end
    ]


class _ListedCompanions(NamedTuple):
    """The companions of one stream as of a stamp."""

    stamp: Stamp
    companions: list[Companion]


class CompanionCoverage:
    """Finds companions in the database; for the thread of its connection."""

    def __init__(self, connection: Connection, definitions: SearchDefinitions) -> None:
        self.connection = connection
        self._companions = Companions(connection)
        self._definitions = definitions
        self._cache = LruCache(_MAX_COMPANIONS)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def defined(self, stream: Stream) -> SearchDefinition | None:
        """The search definition of a stream; None where it has none."""
        registry = stream.head.registry
        if registry is None:
            return None
        return self._definitions.get(stream.id, registry.revision, lambda: registry.registry)

    def listed(self, stream: Stream) -> list[Companion]:
        """All companions of a stream that count, current or not, by their first entries; do not change the list."""
        stamp = self._companions.stamp(stream.id)
        cached: _ListedCompanions | None = self._cache.get(stream.id)
        if cached is None or cached.stamp != stamp:
            cached = _ListedCompanions(stamp, self._companions.listed(stream.id))
            self._cache.put(stream.id, cached, max(1, min(len(cached.companions), _MAX_COMPANIONS)))
        return cached.companions
