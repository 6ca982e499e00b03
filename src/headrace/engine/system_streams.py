"""The streams of the server itself: its metrics, and what was done to streams and registries, by whom.

``__registry__`` gets what commits have noted. A note is on disk with what it tells of, and moves into the stream in one
commit, so none is lost or told twice. Keys have a file of their own, and notes in it, which are taken over.
``__stream_metrics__`` has the schema of its profile and nothing else: no routing key and no search, so nothing is ever
derived from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from headrace.engine.log.append import Append
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import apply, create_managed, make_done_callback
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.engine.log.writer import Writer
from headrace.engine.runtime.background import BackgroundLoop
from headrace.errors import Conflict, HeadraceError
from headrace.profiles.metrics import SCHEMA
from headrace.schema.registry import KeySetting, Registry
from headrace.storage.database import Connection
from headrace.storage.keys import KeyStore
from headrace.storage.notes import Notes

METRICS, REGISTRY, LIVE = "__stream_metrics__", "__registry__", "__live_metrics__"
#: Metrics are for watching, not for keeping.
METRICS_KEPT_US = 7 * 86_400_000_000
_MAX_NOTES = 1_000
_RETRY_S = 5.0
#: How often the file of keys is read.
_KEYS_S = 1.0
#: Where it is remembered which note on keys was the last to be taken over.
_TAKEN_OVER = "keys_told"
#: Notes of so long are recorded together.
_GATHERING_S = 0.5
#: What is not recorded by then at the end is recorded at the next beginning.
_LAST_S = 2.0


class _OwnAppend(Append):
    """Entries that the server itself appends."""

    is_chore = True


class _Recording(_OwnAppend):
    """Notes on their way into the stream, which are then no notes any more."""

    through = 0
    only = None

    def perform(self, batch: Batch) -> None:
        """Append the entries, and drop those that were appended."""
        super().perform(batch)
        Notes(batch.connection).remove(self.through)


class System:
    """Writes the streams of the server."""

    def __init__(self, *, writer: Writer, log: Log, connect: Callable[[], Connection]) -> None:
        self._writer, self._log = writer, log
        self._connection = connect()
        self._notes = Notes(self._connection)
        self._recorder = BackgroundLoop(
            "headrace.system", self._record_again, failed="notes wait to be recorded", retry_s=_RETRY_S
        )
        self._keys: KeyStore | None = None
        self._key_follower = BackgroundLoop(
            "headrace.system", self._take_over_again, failed="notes on keys wait to be recorded", retry_s=_KEYS_S
        )

    @classmethod
    def open(cls, *, writer: Writer, log: Log, connect: Callable[[], Connection], notes: bool = True) -> System:
        """Begin, where ``notes`` are wanted, to note what is done; what was noted before a crash is recorded first."""
        system = cls(writer=writer, log=log, connect=connect)
        writer.on_noted = system._recorder.wake if notes else None
        system._recorder.start()
        return system

    async def close(self) -> None:
        """Record the remaining notes, and stop."""
        self._writer.on_noted = None
        await self._key_follower.stop()
        if self._keys is not None:
            self._keys.close()
        await self._recorder.stop(timeout_s=_LAST_S)
        try:
            with contextlib.suppress(HeadraceError, TimeoutError):
                async with asyncio.timeout(_LAST_S):
                    await self.record()
        finally:
            self._connection.close()

    async def record(self) -> None:
        """Move all notes into the stream."""
        while notes := self._notes.first(_MAX_NOTES):
            stream = await self._stream(REGISTRY, _registry_stream)
            body = ",".join(document for _, document in notes).encode()
            await self._append(stream, body, len(notes), through=notes[-1][0])

    def follow_keys(self, path: Path) -> None:
        """Start to record the audit notes on keys, which are stored in the file of keys."""
        self._keys = KeyStore(path)
        self._key_follower.start()

    async def _take_over_again(self) -> float:
        assert self._keys is not None
        await self.take_over(self._keys)
        return _KEYS_S

    async def take_over(self, keys: KeyStore) -> None:
        """Move the audit notes on keys to the other notes, each exactly once."""
        while notes := keys.pending_notes(_MAX_NOTES):
            documents = [document for _, document in notes]
            await apply(self._writer, partial(_take_over, documents=documents), is_chore=True)
            self._recorder.wake()
            await asyncio.to_thread(keys.remove_notes, notes[-1][0])

    async def measured(self, records: list[dict[str, Any]]) -> None:
        """Append the measurements of one interval."""
        if records:
            stream = await self._stream(METRICS, _metrics_stream)
            await self._append(stream, msgspec.json.encode(records)[1:-1], len(records))

    async def lived(self, records: list[dict[str, Any]]) -> None:
        """Append what happened to touches in one interval."""
        if records:
            stream = await self._stream(LIVE, _live_stream)
            await self._append(stream, msgspec.json.encode(records)[1:-1], len(records))

    async def _record_again(self) -> None:
        """Record the notes in batches, after a short delay."""
        await self._recorder.rest(_GATHERING_S)
        await self.record()

    async def _stream(self, name: str, create: Callable[[Batch], int]) -> Stream:
        """The stream, which is made where there is none."""
        stream = self._log.catalog.find(name)
        if stream is None:
            with contextlib.suppress(Conflict):
                await apply(self._writer, create, is_chore=True)
            stream = self._log.find(name)
        return stream

    async def _append(self, stream: Stream, body: bytes, count: int, *, through: int = 0) -> None:
        settled: asyncio.Future[Append] = asyncio.get_running_loop().create_future()
        kind = _Recording if through else _OwnAppend
        append = kind(stream, body, count, make_done_callback(settled))
        if isinstance(append, _Recording):
            append.through = through
        self._log.append(append)
        await settled
        if append.error is not None:
            raise append.error
        # Who reads or follows it hears of it; counters are for what clients append.
        self._log.announce(stream, append.position - count)


def _take_over(batch: Batch, documents: list[str]) -> None:
    """Add notes, but for those that were added when a crash kept them from being removed."""
    marks = [_mark(document) for document in documents]
    last = batch.streams.meta(_TAKEN_OVER)
    Notes(batch.connection).add(documents[marks.index(last) + 1 if last in marks else 0 :])
    batch.streams.set_meta(_TAKEN_OVER, marks[-1])


def _mark(document: str) -> int:
    return int.from_bytes(hashlib.sha256(document.encode()).digest()[:7])


def _registry_stream(batch: Batch) -> int:
    registry = Registry(schema=REGISTRY, routing_key=KeySetting("/stream", False))
    return create_managed(batch, registry, "", batch.new_system_epoch())


def _metrics_stream(batch: Batch) -> int:
    registry = Registry.empty(METRICS).advanced(SCHEMA, None, 0)
    return create_managed(batch, registry, "", batch.new_system_epoch(), METRICS_KEPT_US, "metrics")


def _live_stream(batch: Batch) -> int:
    return create_managed(batch, Registry.empty(LIVE), "", batch.new_system_epoch(), METRICS_KEPT_US)
