"""The data source ``headrace``: batched reads of one stream, from its segments and from the server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.client.client import Client
from headrace.client.requests import Request, stream_path
from headrace.config import ConfigError
from headrace.errors import BadRequest, NotRepresentable, ObjectMissing, OffsetGone, StoreUnavailable
from headrace.format import offset as offsets
from headrace.format.decoded_columns import LruCache
from headrace.format.segment.columns import body_runs
from headrace.format.segment.reader import SegmentReader
from headrace.schema.entries import entries_of
from headrace.schema.registry import Registry
from headrace.schema.view import view_of
from headrace.spark.columns import (
    ENVELOPE,
    TypedColumns,
    check_schema,
    envelope_schema,
    offset_texts,
    typed_schema,
)
from headrace.spark.options import Mode, ReadOptions, read_options
from headrace.spark.snapshot import RangeToRead, Snapshot, pack_ranges, renew_lease, take_snapshot
from headrace.storage.objects import Objects

log = logging.getLogger("headrace.spark")

#: Payload that lenses carry together.
_RUN_BYTES = 1024 * 1024
_CARRIED = ("seq", "version", "payload")


class HeadraceSource(DataSource):
    """``spark.read.format("headrace").option("stream", …)``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "headrace"

    @cached_property
    def _read_options(self) -> ReadOptions:
        return read_options(self.options)

    def schema(self) -> StructType:
        """The columns, where no narrower schema is given."""
        options = self._read_options
        with options.connect() as client:
            snapshot = take_snapshot(client, options, leased=False)
        return _offered(snapshot, options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of one snapshot, which is taken now."""
        return SnapshotReader(self._read_options, schema)


def register(spark: SparkSession) -> None:
    """Let a session read the format ``headrace``."""
    spark.dataSource.register(HeadraceSource)


def _mode(snapshot: Snapshot, options: ReadOptions) -> Mode:
    if options.mode == "typed" and snapshot.registry is None:
        raise BadRequest(
            f"mode: {snapshot.stream!r} has no schema that could type columns; read it with mode=envelope",
            field="mode",
        )
    if options.mode is not None:
        return options.mode
    return "envelope" if snapshot.registry is None else "typed"


def _target_version(snapshot: Snapshot, options: ReadOptions) -> int | None:
    """The schema version of all events; None where they are read as they are stored."""
    if options.schema_version is not None or snapshot.registry is None:
        return options.schema_version
    return snapshot.registry.current_version if _mode(snapshot, options) == "typed" else None


def _offered(snapshot: Snapshot, options: ReadOptions) -> StructType:
    version = _target_version(snapshot, options)
    if _mode(snapshot, options) == "envelope" or snapshot.registry is None or version is None:
        return envelope_schema(is_json=snapshot.is_json)
    return typed_schema(snapshot.registry, version)


class TaskRanges(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: list[RangeToRead]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class SnapshotReader(DataSourceReader):
    """Reads one snapshot: the driver divides it among tasks, which read segments and ask the server for the rest."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        with options.connect() as client:
            snapshot = take_snapshot(client, options, leased=True)
        self._mode = _mode(snapshot, options)
        self._version = _target_version(snapshot, options)
        check_schema(schema, _offered(snapshot, options), typed=self._mode == "typed")
        self._stream, self._is_json = snapshot.stream, snapshot.is_json
        self._epochs, self._store, self._lease = snapshot.epochs, snapshot.store, snapshot.lease
        registry, ranges = snapshot.registry, snapshot.ranges
        self._encoded_registry = None if registry is None else msgspec.json.encode(registry.dump())
        if registry is not None and options.schema_version is None and self._version is not None:
            # As plain reads do: events that no lens carries to the newest version are left out.
            ranges = _from(ranges, registry.readable_from)
        self._ranges = ranges
        self._reads_store = options.store_access != "http" and _can_read(self._store, ranges, options)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get their own ranges alone.
        return {**self.__dict__, "_ranges": []}

    def partitions(self) -> list[InputPartition]:
        """One for each task."""
        options = self._options
        packs = pack_ranges(self._ranges, options.min_partitions, options.max_records_per_partition)
        return [TaskRanges(pack) for pack in packs]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of one task."""
        if not isinstance(partition, TaskRanges):
            return  # a snapshot without events
        with self._options.connect() as client:
            if self._lease is not None and self._reads_store:
                renew_lease(client, self._lease)
            for each in partition.ranges:
                for batch in self._batches(client, each):
                    yield self._made(batch)

    @cached_property
    def _columns(self) -> list[str]:
        """The columns of segments that are needed."""
        if self._mode == "typed":
            return list(_CARRIED)
        needed = {ENVELOPE[name] for name in self._schema.fieldNames()}
        if self._version is not None and "payload" in needed:
            needed |= set(_CARRIED)
        return [name for name in ("seq", "append_time", "key", "version", "payload") if name in needed] or ["seq"]

    def _batches(self, client: Client, each: RangeToRead) -> Iterator[Any]:
        """The stored rows of a range in order; from the server where its object is not there any more."""
        start = each.first_seq
        if each.object is not None and self._reads_store:
            stored = each.object
            try:
                objects = _opened(self._store)
                source = objects.local_path(stored.key) or objects.get(stored.key)
                reader = SegmentReader(source, name=stored.key, decoded=LruCache(0), sha256=stored.sha256)
            except (ObjectMissing, FileNotFoundError):
                pass  # it was replaced, or the stream is gone, which the server says
            else:
                yield from reader.batches(start, each.end_seq, self._columns)
                return
        yield from _fetch_rows(client, self._stream, self._epochs, start, each.end_seq)

    def _made(self, batch: Any) -> Any:
        """The wanted columns of stored rows."""
        version = self._version
        registry = None if self._encoded_registry is None else _load_registry(self._encoded_registry)
        payloads = batch.column("payload") if "payload" in batch.schema.names else None
        if payloads is not None and version is not None and registry is not None:
            payloads = self._carried(batch, payloads, registry, version)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        if self._mode == "typed":
            assert payloads is not None and registry is not None and version is not None
            arrays = TypedColumns(registry, version, self._schema).read(payloads)
        else:
            arrays = [self._envelope(batch, name, payloads) for name in schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _envelope(self, batch: Any, name: str, payloads: Any) -> Any:
        if name == "offset":
            return offset_texts(batch.column("seq"), self._epochs)
        if name == "payload":
            return payloads
        if name == "version" and self._version is not None:
            return pa.repeat(pa.scalar(self._version, pa.int32()), batch.num_rows)
        return batch.column(ENVELOPE[name])

    def _carried(self, batch: Any, payloads: Any, registry: Registry, version: int) -> Any:
        """Events in the target version; raises NotRepresentable for the first that has no such form."""
        versions = batch.column("version").unique().to_pylist()
        if versions in ([version], []):
            return payloads
        view, texts = view_of(registry, version), list[str]()
        for run in body_runs(_in_segment_order(batch), _RUN_BYTES):
            try:
                body = run.body if run.version == version else view.turn(run.body, run.version)
            except NotRepresentable as failure:
                offset = _offset_at(self._epochs, run.first_seq + failure.facts["index"] + 1)
                raise NotRepresentable(
                    f"{failure.message}; it is the event with offset {offset}, and not_representable is the code",
                    offset=offset,
                    schema_version=version,
                ) from failure
            texts += [bytes(entry).decode() for entry in entries_of(body)]
        return pa.array(texts, pa.string())


@lru_cache(maxsize=8)
def _load_registry(document: bytes) -> Registry:
    return Registry.load(msgspec.json.decode(document))


def _in_segment_order(batch: Any) -> Any:
    """A batch in which the columns that runs are made of have the places that they have in a segment."""
    rows = batch.num_rows
    absent = pa.nulls(rows)
    return pa.record_batch(
        [batch.column("seq"), absent, absent, batch.column("version"), absent, batch.column("payload")],
        names=["seq", "append_time", "key", "version", "first", "payload"],
    )


def _from(ranges: list[RangeToRead], first: int) -> list[RangeToRead]:
    """The ranges of the events from a sequence number on."""
    kept = []
    for each in ranges:
        start = max(each.first_seq, first)
        if start < each.end_seq:
            kept.append(RangeToRead(start, each.end_seq - start, each.bytes, each.object))
    return kept


@lru_cache(maxsize=4)
def _opened(store: str) -> Objects:
    """The store of a URL; its credentials come from the environment of this machine."""
    return Objects.open(store)


def _can_read(store: str, ranges: list[RangeToRead], options: ReadOptions) -> bool:
    """Whether the driver can open segments; where it must and cannot, raises why."""
    stored = next((each.object for each in ranges if each.object is not None), None)
    if stored is None:
        return False
    try:
        _opened(store).head(stored.key)
    except ObjectMissing as reason:
        if options.store_access == "direct":
            raise StoreUnavailable(
                f"storeAccess: {store} has no {stored.key} here; use storeAccess=http", object=stored.key
            ) from reason
        return False
    except (StoreUnavailable, ConfigError) as reason:
        if options.store_access == "direct":
            raise
        log.warning("segments are read through the server, since the store cannot be opened here: %s", reason)
        return False
    return True


def _fetch_rows(client: Client, stream: str, epochs: list[tuple[int, int]], start: int, stop: int) -> Iterator[Any]:
    """Stored rows from the server, which says where the next ones begin."""
    until = _offset_at(epochs, stop)
    while start < stop:
        target = f"{stream_path(stream)}/_plan/rows?from={_offset_at(epochs, start)}&to={until}"
        body = client.send(Request("GET", target, changes=False)).body
        for batch in pa.ipc.open_stream(body):
            if not batch.num_rows:
                continue
            if batch.column("seq")[0].as_py() != start:
                raise OffsetGone(f"events of {stream!r} are not retained any more, from number {start} on")
            yield batch
            start += batch.num_rows


def _offset_at(epochs: list[tuple[int, int]], position: int) -> str:
    """The offset after so many events."""
    epoch = next((number for number, first in reversed(epochs) if position > first), 0)
    return offsets.encode(epoch, position)
