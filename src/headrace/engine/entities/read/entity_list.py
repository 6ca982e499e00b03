"""Lists the entities of a user page by page, and the observations of an entity; pages continue after a key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple

from headrace.engine.entities.read.observations import StoredObservation
from headrace.engine.entities.read.snapshots import EntityAnswer, EntityQuery, EntityView, Snapshots
from headrace.reduce.policies.reducer import Snapshot
from headrace.storage.database import Connection
from headrace.storage.entities import Aliases, Entities, EntityRow

#: Rows that are read together, and for how long a page is filled.
_STEP = 64
_PAGE_S = 2.0
#: Entities of a list of all of them that are in memory at once: to free many at a time keeps the event loop.
_TOGETHER = 256
#: How long a list works before other requests have their turn.
_SLICE_S = 0.002


class EntityFilter(NamedTuple):
    """A filter of entities by user, type, name, values of fields and the source of a value."""

    user_id: str
    #: The stream of the type; None for all types.
    stream: int | None = None
    canonical_name: str | None = None
    #: A part of the name, in lower case.
    search: str | None = None
    #: The values that each of these fields may have.
    fields: Mapping[str, Collection[Any]] = {}
    #: The source that at least one value is from.
    source_id: str | None = None

    def matches_name(self, row: EntityRow) -> bool:
        """Whether the name of an entity matches."""
        if self.canonical_name is not None and row.canonical_name != self.canonical_name:
            return False
        return self.search is None or self.search in row.canonical_name.lower()

    def matches_values(self, snapshot: Snapshot) -> bool:
        """Whether the values of a snapshot match, and where they are from."""
        if self.source_id is not None and not snapshot.has_source(self.source_id):
            return False
        return all(snapshot.snapshot.get(name) in values for name, values in self.fields.items())


class EntityPage(NamedTuple):
    """Entities in the order of their creation, and the one after which the next page begins; None after the last."""

    entities: list[EntityAnswer]
    after: str | None


class EntityList:
    """Lists entities on the event loop, and observations in threads."""

    def __init__(self, snapshots: Snapshots, reader: Connection) -> None:
        self._snapshots = snapshots
        self._entities, self._aliases = Entities(reader), Aliases(reader)

    async def page(self, wanted: EntityFilter, after: str, limit: int) -> EntityPage:
        """Entities after one; a page ends early where it takes long to find them."""
        entities: list[EntityAnswer] = []
        ends, slice_ends = monotonic() + _PAGE_S, monotonic() + _SLICE_S
        while rows := self._rows(wanted, after):
            for row in rows:
                if len(entities) >= limit:
                    return EntityPage(entities, after)
                after = row.entity_id
                if wanted.matches_name(row) and (answer := await self._answer(row, wanted)) is not None:
                    entities.append(answer)
                if monotonic() > slice_ends:
                    await asyncio.sleep(0)
                    slice_ends = monotonic() + _SLICE_S
            if monotonic() > ends:
                return EntityPage(entities, after)
        return EntityPage(entities, None)

    async def pages(self, wanted: EntityFilter) -> AsyncIterator[list[EntityAnswer]]:
        """All matching entities, a few at a time."""
        after: str | None = ""
        while after is not None:
            entities, after = await self.page(wanted, after, _TOGETHER)
            yield entities

    def _rows(self, wanted: EntityFilter, after: str) -> list[EntityRow]:
        if wanted.stream is None:
            return self._entities.of_user(wanted.user_id, after, _STEP)
        return self._entities.page(wanted.stream, wanted.user_id, after, _STEP)

    async def _answer(self, row: EntityRow, wanted: EntityFilter) -> EntityAnswer | None:
        """An entity, unless it is merged into another, deleted, or has other values."""
        if self._aliases.alias(row.entity_id) is not None:
            return None
        answer = await self._snapshots.find(EntityQuery(row.entity_id, row.user_id))
        return answer if answer.snapshot is not None and wanted.matches_values(answer.snapshot) else None

    async def observations(
        self, view: EntityView, after: int | None, limit: int, *, newest_first: bool, source_id: str | None = None
    ) -> list[StoredObservation]:
        """The observations of an entity after one, of one source or of all, in order or the newest first."""

        def read() -> list[StoredObservation]:
            with self._snapshots.observation_reader.open(view.stream, view.head) as observations:
                start, stop = (0, after) if newest_first else (0 if after is None else after + 1, None)
                stored = view.group.observations(observations, start, stop, newest_first=newest_first)
                if source_id is not None:
                    stored = (candidate for candidate in stored if candidate.observation.source_id == source_id)
                return list(islice(stored, limit))

        return await asyncio.to_thread(read)

    async def observations_by_id(self, view: EntityView, ids: Collection[str]) -> list[StoredObservation]:
        """The observations of an entity with these ids."""

        def read() -> list[StoredObservation]:
            with self._snapshots.observation_reader.open(view.stream, view.head) as observations:
                return [stored for stored in view.group.observations(observations) if stored.observation.id in ids]

        return await asyncio.to_thread(read)
