"""Lists: the entities of a user, page by page, and the observations of one entity. Pages go on by keys alone."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple

from headrace.engine.entities.read.observations import Observed
from headrace.engine.entities.read.snapshots import Asked, Shown, Snapshots, View
from headrace.storage.database import Connection
from headrace.storage.entities import Aliases, Entities, EntityRow

#: Entities that are looked at together, and for how long a page is filled.
_STEP = 64
_PAGE_S = 2.0
#: How long entities are looked up before others are served.
_SLICE_S = 0.002


class EntityFilter(NamedTuple):
    """Which entities of a user: of one type or all, of a name, with values in fields."""

    user_id: str
    #: The stream of the type; None for all types.
    stream: int | None = None
    canonical_name: str | None = None
    #: A part of the name, in small letters.
    search: str | None = None
    #: Fields with one of some values each.
    fields: Mapping[str, Collection[Any]] = {}

    def may_take(self, row: EntityRow) -> bool:
        """Whether the name is right."""
        if self.canonical_name is not None and row.canonical_name != self.canonical_name:
            return False
        return self.search is None or self.search in row.canonical_name.lower()

    def takes(self, snapshot: Mapping[str, Any]) -> bool:
        """Whether the values are."""
        return all(snapshot.get(name) in values for name, values in self.fields.items())


class EntityPage(NamedTuple):
    """Entities in the order in which they came, and after which one the next page begins; None after the last."""

    shown: list[Shown]
    after: str | None


class EntityList:
    """Runs on the event loop, except what is read from the log."""

    def __init__(self, snapshots: Snapshots, reader: Connection) -> None:
        self._snapshots = snapshots
        self._entities, self._aliases = Entities(reader), Aliases(reader)

    async def page(self, wanted: EntityFilter, after: str, limit: int) -> EntityPage:
        """Entities after one; fewer than there are where they are hard to find: then it says from where to go on."""
        shown: list[Shown] = []
        ends, slice_ends = monotonic() + _PAGE_S, monotonic() + _SLICE_S
        while rows := self._rows(wanted, after):
            for row in rows:
                if len(shown) >= limit:
                    return EntityPage(shown, after)
                after = row.entity_id
                if wanted.may_take(row) and (shown_entity := await self._shown(row, wanted)) is not None:
                    shown.append(shown_entity)
                if monotonic() > slice_ends:
                    await asyncio.sleep(0)
                    slice_ends = monotonic() + _SLICE_S
            if monotonic() > ends:
                return EntityPage(shown, after)
        return EntityPage(shown, None)

    async def every(self, wanted: EntityFilter) -> list[Shown]:
        """All of them, however many there are."""
        shown: list[Shown] = []
        after: str | None = ""
        while after is not None:
            page = await self.page(wanted, after, 1000)
            shown, after = shown + page.shown, page.after
        return shown

    def _rows(self, wanted: EntityFilter, after: str) -> list[EntityRow]:
        if wanted.stream is None:
            return self._entities.of_user(wanted.user_id, after, _STEP)
        return self._entities.page(wanted.stream, wanted.user_id, after, _STEP)

    async def _shown(self, row: EntityRow, wanted: EntityFilter) -> Shown | None:
        """An entity, unless it is told of under another, deleted, or has other values."""
        if self._aliases.alias(row.entity_id) is not None:
            return None
        shown = await self._snapshots.find(Asked(row.entity_id, row.user_id))
        return shown if shown.snapshot is not None and wanted.takes(shown.snapshot.snapshot) else None

    async def observations(self, view: View, after: int | None, limit: int, *, newest_first: bool) -> list[Observed]:
        """The observations of an entity beyond one, in order or the newest first."""

        def read() -> list[Observed]:
            with self._snapshots.reading.opened(view.stream, view.head) as observations:
                start, stop = (0, after) if newest_first else (0 if after is None else after + 1, None)
                return list(
                    islice(view.group.observations(observations, start, stop, newest_first=newest_first), limit)
                )

        return await asyncio.to_thread(read)

    async def named(self, view: View, ids: Collection[str]) -> list[Observed]:
        """The observations of an entity with these ids."""

        def read() -> list[Observed]:
            with self._snapshots.reading.opened(view.stream, view.head) as observations:
                return [
                    observed for observed in view.group.observations(observations) if observed.observation.id in ids
                ]

        return await asyncio.to_thread(read)
