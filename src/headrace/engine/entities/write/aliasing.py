"""Merges, splits and their undoing: observations that say which entity others are about. No state is rewritten.

What they say is kept in the tables ``aliases`` and ``splits``, in the commit that stores them, and whoever reads an
entity puts together what belongs to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.engine.entities.write.relating import Moved, merging, owned, replayed, splitting, unmerging, unsplitting
from headrace.engine.log.append import Append
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import StreamChange, make_done_callback
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.writer import Writer
from headrace.errors import BadRequest, NotFound
from headrace.schema.entity.observation import Observation, encode
from headrace.storage.database import Connection
from headrace.storage.entities import Entities, EntityRow
from headrace.storage.streams import LIVE


class Related(NamedTuple):
    """An observation that was stored, and when."""

    observation: Observation
    at_us: int


Decide = Callable[[Batch, Head, int], Observation]


class Relate(StreamChange):
    """One observation about entities themselves, decided in its commit; ``related`` once it is stored."""

    appends = True
    related: Related | None = None

    def __init__(self, log: Log, stream: Stream, decide: Decide, done: Callable[[Any], None]) -> None:
        """``decide`` is given the time, and raises where the tables forbid it."""
        super().__init__(done, pinned=(stream,), size=2_000)
        self._log, self._stream, self._decide = log, stream, decide
        self._part: Append | None = None

    def perform(self, batch: Batch) -> None:
        """Decide, store and note."""
        head = batch.draft(self._stream)
        if head.state != LIVE:
            raise NotFound("the entity type is gone", stream=self._stream.name)
        at_us = max(batch.now_us, head.last_us)
        observation = self._decide(batch, head, at_us)
        replayed(batch.connection, self._stream.id, head.next_seq, at_us, observation)
        part = Append(self._stream, encode(observation), 1, _ignore)
        part.route([observation.entity_id], head)
        part.write(batch, head, at_us)
        self._part, self.related = part, Related(observation, at_us)

    def answer(self) -> None:
        """Tell who waits for entries, and answer."""
        if self.settled and self._part is not None:
            self._part.error = self.error
            self._log.settled(self._part)
        super().answer()


class Aliasing:
    """The verbs, on the event loop."""

    def __init__(self, writer: Writer, log: Log, stream_of: Callable[[int], Stream], reader: Connection) -> None:
        self._writer, self._log, self._stream_of, self._entities = writer, log, stream_of, Entities(reader)

    async def merge(self, user_id: str, from_id: str, to_id: str) -> Related:
        """Let an entity be told of as a part of another, from now on."""
        if from_id == to_id:
            raise BadRequest("an entity cannot be merged into itself", field="to_entity_id")
        return await self._relate(
            user_id, from_id, lambda batch, head, at_us: merging(batch, head, at_us, user_id, from_id, to_id)
        )

    async def unmerge(self, user_id: str, entity_id: str) -> Related:
        """Let an entity that was merged be told of by itself again."""
        return await self._relate(
            user_id, entity_id, lambda batch, head, at_us: unmerging(batch, head, at_us, user_id, entity_id)
        )

    async def split(self, user_id: str, entity_id: str, into: EntityRow, moved: list[Moved]) -> Related:
        """Let some observations be about another entity, which is made where there is none of its id."""
        return await self._relate(
            user_id,
            entity_id,
            lambda batch, head, at_us: splitting(batch, head, at_us, user_id, entity_id, into, moved),
        )

    async def unsplit(self, user_id: str, split: Observation) -> Related:
        """Let observations that were moved be about the entities that they came from."""
        return await self._relate(
            user_id, split.entity_id, lambda batch, head, at_us: unsplitting(batch, head, at_us, user_id, split)
        )

    async def _relate(self, user_id: str, entity_id: str, decide: Decide) -> Related:
        row = owned(self._entities, user_id, entity_id)
        settled: asyncio.Future[Relate] = asyncio.get_running_loop().create_future()
        stream = self._stream_of(row.stream)
        relate = Relate(self._log, stream, decide, make_done_callback(settled))
        relate.submit(self._writer)
        await settled
        if relate.error is not None:
            raise relate.error
        assert relate.related is not None
        return relate.related


def _ignore(append: Append) -> None:
    """Whoever relates entities is told of it by the change."""
