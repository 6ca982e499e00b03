"""One snapshot of a stream, as a plan of the server says; and how its ranges are divided among tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from headrace.client.client import Client
from headrace.client.requests import Request, stream_path
from headrace.errors import HeadraceError, OffsetGone
from headrace.schema.registry import Registry
from headrace.spark.options import ReadOptions
from headrace.types import JSON, media_type

LEASE = "10m"
#: Tasks read about so many bytes: as many as Spark's own readers where there is much, fewer where cores would idle.
MAX_BYTES, MIN_BYTES = 64 * 1024 * 1024, 4 * 1024 * 1024


class StoredObject(msgspec.Struct, frozen=True):
    """A segment in the object store."""

    key: str
    bytes: int
    sha256: str
    first_seq: int
    count: int


class RangeToRead(msgspec.Struct, frozen=True):
    """Consecutive events in one segment; without an object the server has them."""

    first_seq: int
    count: int
    bytes: int
    object: StoredObject | None

    @property
    def end_seq(self) -> int:
        """The sequence number after its last event."""
        return self.first_seq + self.count


class _Lease(msgspec.Struct, frozen=True):
    id: str


class _Plan(msgspec.Struct, frozen=True):
    """An answer of ``_plan``."""

    stream: str
    content_type: str
    registry: Any
    epochs: list[tuple[int, int]]
    from_offset: str = msgspec.field(name="from")
    to_offset: str = msgspec.field(name="to")
    first_seq: int
    end_seq: int
    store: str
    ranges: list[RangeToRead]
    next: str | None
    lease: _Lease | None


class Snapshot(NamedTuple):
    """The events of a stream at one moment."""

    stream: str
    is_json: bool
    registry: Registry | None
    epochs: list[tuple[int, int]]
    store: str
    ranges: list[RangeToRead]
    lease: str | None


def take_snapshot(client: Client, options: ReadOptions, *, leased: bool) -> Snapshot:
    """A snapshot of what the options ask for, over as many answers as it takes."""
    query = _query(options)
    plan = _fetch_first(client, options, query, leased=leased)
    ranges, following = list(plan.ranges), plan.next
    while following is not None:
        more = _fetch(client, options.stream, {"from": following, "to": plan.to_offset})
        ranges += more.ranges
        following = more.next
    return Snapshot(
        stream=plan.stream,
        is_json=media_type(plan.content_type) == JSON,
        registry=None if plan.registry is None else Registry.load(plan.registry),
        epochs=plan.epochs,
        store=plan.store,
        ranges=ranges,
        lease=None if plan.lease is None else plan.lease.id,
    )


def _query(options: ReadOptions) -> dict[str, str]:
    query: dict[str, str] = {}
    if options.starting_timestamp is not None:
        query["since"] = options.starting_timestamp
    else:
        query["from"] = options.starting_offset
    if options.ending_timestamp is not None:
        query["until"] = options.ending_timestamp
    else:
        query["to"] = options.ending_offset
    if options.schema_version is not None:
        query["schema_version"] = str(options.schema_version)
    return query


def _fetch_first(client: Client, options: ReadOptions, query: dict[str, str], *, leased: bool) -> _Plan:
    leasing = {"lease": LEASE} if leased else {}
    try:
        return _fetch(client, options.stream, {**query, **leasing})
    except OffsetGone:
        if options.fail_on_data_loss or query.get("from", "-1") == "-1":
            raise
        return _fetch(client, options.stream, {**query, "from": "-1", **leasing})
    except HeadraceError as refusal:
        if refusal.code != "too_many_read_leases":
            raise
        # Without a lease a segment may be replaced; then its events come from the server.
        return _fetch_first(client, options, query, leased=False)


def _fetch(client: Client, stream: str, query: dict[str, str]) -> _Plan:
    target = f"{stream_path(stream)}/_plan?{urlencode(query)}"
    return client.fetch(Request("GET", target, changes=False), _Plan)


def renew_lease(client: Client, lease: str) -> None:
    """Let the lease of a snapshot last longer; where it has ended, replaced segments come from the server."""
    try:
        client.send(Request("POST", f"/v1/read-leases/{lease}/renew?lease={LEASE}", changes=False))
    except HeadraceError:
        pass


def pack_ranges(
    ranges: Sequence[RangeToRead], min_partitions: int | None, max_records: int | None
) -> list[list[RangeToRead]]:
    """The ranges of each task, in order: about as many bytes for each, and no more events than it may have."""
    total = sum(_read_bytes(each) for each in ranges)
    fair = max(MIN_BYTES, total / (os.cpu_count() or 1))
    limit = max(1.0, min(MAX_BYTES, fair, total / min_partitions if min_partitions else MAX_BYTES))
    pieces = list(_cut(ranges, limit, max_records))
    return [[piece for _, piece in numbered] for _, numbered in groupby(pieces, lambda piece: piece[0])]


def _cut(ranges: Sequence[RangeToRead], limit: float, max_records: int | None) -> Iterator[tuple[int, RangeToRead]]:
    """Pieces of the ranges, each with the number of its task."""
    task, read_bytes, records = 0, 0.0, 0
    for each in ranges:
        start, per_record = each.first_seq, _read_bytes(each) / each.count
        while start < each.end_seq:
            room = int((limit - read_bytes) / per_record) if per_record else each.count
            if max_records is not None:
                room = min(room, max_records - records)
            if room <= 0 and records:
                task, read_bytes, records = task + 1, 0.0, 0
                continue
            count = min(each.end_seq - start, max(1, room))
            yield task, msgspec.structs.replace(each, first_seq=start, count=count)
            start, read_bytes, records = start + count, read_bytes + count * per_record, records + count


def _read_bytes(each: RangeToRead) -> float:
    """About how many bytes are read for a range."""
    return each.bytes if each.object is None else each.bytes * each.count / each.object.count
