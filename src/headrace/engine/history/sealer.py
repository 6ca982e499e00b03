"""Decides in the background which streams are published when; appends do not wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config import StorageConfig
from headrace.engine.history.journal import Journal
from headrace.engine.history.publication import (
    TRIM_ROWS,
    MakeRewriter,
    Publication,
    abandon_publication,
    commit_publication,
    trim_published,
)
from headrace.engine.history.publisher import ObjectRemover, Publisher
from headrace.engine.history.read_leases import GRACE_S, ReadLeases
from headrace.engine.history.seal_watch import SealPace, SealWatch
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import apply
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.engine.log.writer import Writer
from headrace.engine.runtime.background import BackgroundLoop, BackgroundThread, RepeatedWarning
from headrace.errors import Fenced, Overloaded, Unavailable
from headrace.storage.database import Connection
from headrace.storage.node import Node
from headrace.storage.objects import Objects
from headrace.storage.published import Backlog, DeletedStream, Published
from headrace.storage.reserve import is_disk_full
from headrace.storage.streams import Streams
from headrace.types import Clock

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

logger = logging.getLogger("headrace.sealing")

TICK_S = 1.0
#: How often objects are looked for that a crash left behind, and how old they have to be.
_ORPHANS_S = 6 * 3600.0
_PAGE = 500
_LONGEST_PAUSE_S = 60.0
#: A stream that cannot be published may be so for good, and each try may leave objects behind.
_LONGEST_PUT_OFF_S = 600.0
#: So many streams are sealed at the same time for callers who wait for it.
MAX_SEALS = 100


class Sealer:
    """Publishes streams that are due, one after the other, in a thread of its own."""

    def __init__(
        self,
        *,
        log: Log,
        writer: Writer,
        streams: Streams,
        published: Published,
        reader: Connection,
        connect: Callable[[], Connection],
        objects: Objects,
        node: Node,
        segments: Callable[[], Segments],
        close_removed: Callable[[Collection[str]], None],
        journals: Sequence[Journal[Any]],
        make_rewriter: MakeRewriter,
        clock: Clock,
        config: StorageConfig,
        columns_share: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``close_removed`` closes the files of objects that were removed."""
        self._log = log
        self._writer = writer
        self._streams = streams
        self._published = published
        self._reader = reader
        self._objects = objects
        self._node = node
        self._open_segments = segments
        self._journals = journals
        self._make_rewriter = make_rewriter
        self.remover = ObjectRemover(objects, node, clock, close_removed)
        #: Who reads segments outside this server, and until when those that were replaced are kept for them.
        self.read_leases = ReadLeases(writer, streams, clock)
        self._clock = clock
        self._config = config
        self._thread = BackgroundThread("sealer", connect)
        self._loop = BackgroundLoop(
            "headrace.sealing", self._publish_due, failed="nothing was published", retry_s=TICK_S
        )
        self._failures = 0
        #: Streams that could not be published: how often, and when they are tried again.
        self._backoffs: dict[int, tuple[int, int]] = {}
        #: Streams that are published at the next look, however little they hold.
        self._requested: set[int] = set()
        self._publishing = asyncio.Lock()
        #: Publications that callers wait for, by stream.
        self._seals: dict[int, asyncio.Task[None]] = {}
        self._orphans_us = clock.now_us() + int(_ORPHANS_S * 1e6)
        self.watch = SealWatch(
            writer, connect, lambda: self._thread.run(node.check), clock, limit_bytes=config.backlog_bytes
        )
        self.pace = SealPace(self.watch, lambda: log.counters.appends, clock, config, columns_share)
        self.seals = 0
        self.failed_seals = 0
        #: Why the object store took nothing the last time; None where it did.
        self.trouble: str | None = None
        self._warning = RepeatedWarning("headrace.sealing", "the object store takes nothing")
        self.segments = 0
        self.bytes = 0

    @cached_property
    def publisher(self) -> Publisher:
        """Writes the objects of streams; made in the thread, when it is first needed."""
        return Publisher(
            connection=self._thread.connection,
            objects=self._objects,
            segments=self._open_segments(),
            node=self._node,
            clock=self._clock,
            directory=Path(self._config.data_dir) / "sealing",
            config=self._config,
            journals=self._journals,
            make_rewriter=self._make_rewriter,
        )

    def start(self) -> None:
        """Start to publish due streams, until another node takes over."""
        self.watch.start()
        self._loop.start(after_s=TICK_S)

    async def stop(self) -> None:
        """Stop publishing once the current publication has ended."""
        self.pace.stop()
        for seal in self._seals.values():
            seal.cancel()
        await self._loop.stop(timeout_s=0)
        await self.watch.stop()
        await self._thread.stop()

    async def _publish_due(self) -> float | None:
        """Publish due streams; returns the pause until the next round, with backoff after failures."""
        if self._writer.fenced:
            return None
        try:
            await self.work()
            self._failures, self.trouble = 0, None
        except Fenced as reason:
            self.watch.fence(reason)
        except Unavailable as reason:
            self._failures += 1
            self.failed_seals += 1
            self.trouble = reason.message
            self._warning.warn(reason)
        except Exception as reason:
            self._failures += 1
            self.failed_seals += 1
            self._writer.damage.note(reason)
            logger.exception("publishing failed; it is tried again")
        return min(TICK_S * 2.0**self._failures, _LONGEST_PAUSE_S)

    async def work(self) -> None:
        """Publish every due stream, and remove objects that nothing refers to."""
        await self.publish_journals()
        for stream in await self._due():
            try:
                await self.publish(stream)
                self._backoffs.pop(stream, None)
            except Exception as reason:
                if is_disk_full(reason):
                    self.failed_seals += 1
                    logger.warning("the disk is full; nothing is published until there is room")
                    break
                if isinstance(reason, Unavailable):
                    raise
                self.failed_seals += 1
                self._writer.damage.note(reason)
                logger.exception("stream %d could not be published; it is tried again, and the others go on", stream)
                self._back_off(stream)
            await self._thread.run(self.pace.rest)
        await self.clear()
        await self._reserve_epochs()

    def _back_off(self, stream: int) -> None:
        """Postpone a stream with exponential backoff."""
        failures, _ = self._backoffs.get(stream, (0, 0))
        pause_s = min(TICK_S * 2**failures, _LONGEST_PUT_OFF_S)
        self._backoffs[stream] = failures + 1, self._clock.now_us() + int(pause_s * 1e6)

    async def publish_journals(self) -> None:
        """Publish new records of every journal."""
        for journal in self._journals:
            if journal.is_due(self._reader):
                until = await self._thread.run(partial(self._publish_journal, journal))
                await self._apply(partial(_note_published, journal=journal, until=until))

    def _publish_journal(self, journal: Journal[Any]) -> int:
        return self.publisher.publish_journal(journal)

    async def _reserve_epochs(self) -> None:
        """Reserve a spare block of epochs, unless there is one."""
        if self._streams.meta("spare_epoch", -1) >= 0:
            return
        block = await self._thread.run(self._node.reserve_epochs)
        await self._apply(partial(_store_spare_epochs, start=block.start))

    def request(self, stream: int) -> None:
        """Publish a stream soon, even with few entries."""
        self._requested.add(stream)

    async def _due(self) -> list[int]:
        """The streams to publish: old enough, large enough or requested, except those that are postponed."""
        now_us, due = self._clock.now_us(), sorted(self._requested)
        self._requested.clear()
        await self.watch.count(
            lambda page: due.extend(backlog.stream for backlog in page if self._is_due(backlog, now_us))
        )
        changed = self._published.marked(now_us - int(self._config.seal_age_s * 1e6), now_us, _PAGE)
        longest_us = int(_LONGEST_PUT_OFF_S * 1e6)
        postponed = {stream for stream, (_, until_us) in self._backoffs.items() if 0 < until_us - now_us <= longest_us}
        return [stream for stream in dict.fromkeys([*due, *changed]) if stream not in postponed]

    def _is_due(self, backlog: Backlog, now_us: int) -> bool:
        config, age_s = self._config, (now_us - backlog.since_us) / 1e6
        return backlog.bytes >= config.seal_bytes or backlog.entries >= config.seal_rows or age_s >= config.seal_age_s

    async def publish(self, stream: int) -> Publication | None:
        """Publish one stream as it is now, and remove its rows; what a fork reads of others is published first.

        Answers what was published, None where the stream is gone.
        """
        async with self._publishing:
            for ancestor in self._behind(stream):
                await self._publish(ancestor)
            return await self._publish(stream)

    def seal(self, stream: Stream) -> asyncio.Task[None]:
        """Publish one stream now, whatever it holds; every caller who waits for a stream gets the same task.

        What fails is tried again in the next round.
        """
        if (seal := self._seals.get(stream.id)) is not None:
            return seal
        if len(self._seals) >= MAX_SEALS:
            raise Overloaded("too many streams are being sealed", retry_after=1)
        seal = self._seals[stream.id] = asyncio.create_task(self._seal(stream))
        seal.add_done_callback(partial(self._forget_seal, stream.id))
        return seal

    async def _seal(self, stream: Stream) -> None:
        self.pace.callers += 1
        try:
            with stream.held():
                await self.publish(stream.id)
        except Fenced as reason:
            self.watch.fence(reason)
            raise
        finally:
            self.pace.callers -= 1

    def _forget_seal(self, stream: int, seal: asyncio.Task[None]) -> None:
        del self._seals[stream]
        if not seal.cancelled() and seal.exception() is not None:
            self.request(stream)

    def published_until(self, stream: Stream) -> int:
        """How many entries of a stream are in the store, from its first on; those that a fork reads of others count."""
        for owner, limit in stream.lineage:
            row = self._streams.by_id(owner)
            if row is not None and row.published_seq < limit:
                return row.published_seq
        return max(stream.head.published_seq, stream.own_from)

    async def purge(self, stream: int) -> list[str]:
        """Remove every object of a stream that is on none of its lists; returns their keys."""
        async with self._publishing:
            keys = await self._thread.run(lambda: self.publisher.unlisted_keys(stream))
            await self._thread.run(lambda: self.remover.remove(keys))
            await self._apply(partial(_forget_objects, keys=keys), frees=True)
            return keys

    def _behind(self, stream: int) -> list[int]:
        """Ancestors of a fork whose manifests lack entries that it reads, the oldest first."""
        ancestors: list[int] = []
        row, limit = self._streams.by_id(stream), 1 << 62
        while row is not None and row.parent is not None and row.fork_seq is not None:
            limit = min(limit, row.fork_seq)
            row = self._streams.by_id(row.parent)
            if row is not None and (not row.generation or row.published_seq < limit):
                ancestors.append(row.id)
        return ancestors[::-1]

    async def _publish(self, stream: int) -> Publication | None:
        row = self._streams.by_id(stream)
        if row is not None and not row.attempted:
            await self._apply(lambda batch: batch.streams.update(stream, attempted=1))
        publication = await self._thread.run(lambda: self.publisher.publish(stream, self.pace))
        loaded = None if publication is None else self._log.catalog.find(publication.snapshot.row.name)
        if publication is None or loaded is None or loaded.id != stream:
            await self._apply(lambda batch: abandon_publication(batch, stream, publication), frees=True)
            return None
        await self._commit(loaded, publication)
        return publication

    async def _commit(self, stream: Stream, publication: Publication) -> None:
        await self._apply(lambda batch: commit_publication(batch, stream, publication), frees=True, pinned=(stream,))
        self.seals += 1
        self.segments += len(publication.built)
        self.bytes += sum(built.segment.bytes for built in publication.built)
        while await self._apply(lambda batch: trim_published(batch, stream), frees=True, pinned=(stream,)) >= TRIM_ROWS:
            await asyncio.sleep(0)

    async def clear(self) -> None:
        """Remove objects of deleted streams, and those that were replaced a while ago."""
        for deleted_stream in self._published.deleted_streams(_PAGE):
            try:
                keys = await self._thread.run(partial(self.remover.remove_stream, deleted_stream))
            except Unavailable as reason:
                if is_disk_full(reason):
                    self._writer.reserve.release()
                raise
            await self._apply(partial(_forget_objects, keys=keys, deleted_stream=deleted_stream), frees=True)
        now_us = self._clock.now_us()
        is_held, after = self.read_leases.holding(now_us), ""
        while leftovers := self._published.leftovers(now_us - int(GRACE_S * 1e6), _PAGE, after):
            after = leftovers[-1].key
            if keys := [leftover.key for leftover in leftovers if not is_held(leftover)]:
                await self._thread.run(partial(self.remover.remove, keys))
                await self._apply(partial(_forget_objects, keys=keys), frees=True)
        if now_us >= self._orphans_us:
            self._orphans_us = now_us + int(_ORPHANS_S * 1e6)
            keys = await self._thread.run(lambda: self.publisher.orphans(now_us - int(_ORPHANS_S * 1e6)))
            await self._apply(lambda batch: batch.published.discard(keys, batch.now_us), frees=True)

    async def _apply(
        self, perform: Callable[[Batch], Any], *, frees: bool = False, pinned: tuple[Stream, ...] = ()
    ) -> Any:
        return await apply(self._writer, perform, is_chore=True, frees=frees, pinned=pinned)


def _note_published(batch: Batch, journal: Journal[Any], until: int) -> None:
    """Note that the store has every record of a journal up to a number."""
    journal.rows(batch.connection).note_published(until)


def _store_spare_epochs(batch: Batch, start: int) -> None:
    """Store epochs that were reserved for later use, unless there are some."""
    if batch.streams.meta("spare_epoch", -1) < 0:
        batch.streams.set_meta("spare_epoch", start)


def _forget_objects(batch: Batch, keys: list[str], deleted_stream: DeletedStream | None = None) -> None:
    """Forget objects that were removed, and perhaps the deleted stream that they were of."""
    batch.published.forget(keys)
    if deleted_stream is not None:
        batch.published.unmark_deleted(deleted_stream)
