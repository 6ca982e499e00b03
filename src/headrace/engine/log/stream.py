"""A stream in memory: what never changes about it, and the head that every commit replaces whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from sys import intern
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from headrace.errors import Gone, HeadraceError, NotFound, OffsetFenced, OffsetGone
from headrace.format import offset as offsets
from headrace.format.offset import Offset
from headrace.storage.streams import LIVE, SOFT_DELETED, StreamRow
from headrace.types import JSON, NEVER_US, RESERVED, Steps, media_type

if TYPE_CHECKING:
    from headrace.engine.log.stream_registry import StreamRegistry

Producer = tuple[str, int, int]
_EPOCHS = msgspec.json.Decoder(tuple[tuple[int, int], ...])


class Head:
    """What appends change. The writer drafts the next head; readers only ever see a committed one."""

    __slots__ = (
        "bytes", "closed", "closed_by", "first_bytes", "first_seq", "last_us", "next_seq", "published_seq",
        "registry", "state", "stream_seq",
    )  # fmt: skip

    def __init__(self) -> None:
        self.next_seq = 0
        self.last_us = NEVER_US
        self.bytes = 0
        self.stream_seq: str | None = None
        self.closed = False
        self.closed_by: Producer | None = None
        self.state = LIVE
        self.first_seq = 0
        self.first_bytes = 0
        self.registry: StreamRegistry | None = None
        self.published_seq = 0

    def copy(self) -> Head:
        """A draft that starts from this head."""
        draft = Head.__new__(Head)
        draft.next_seq = self.next_seq
        draft.last_us = self.last_us
        draft.bytes = self.bytes
        draft.stream_seq = self.stream_seq
        draft.closed = self.closed
        draft.closed_by = self.closed_by
        draft.state = self.state
        draft.first_seq = self.first_seq
        draft.first_bytes = self.first_bytes
        draft.registry = self.registry
        draft.published_seq = self.published_seq
        return draft


class TailWatcher(Protocol):
    """Someone at the tail of a stream; ``wake`` is called on the loop after each commit that moved it."""

    def wake(self) -> None:
        """The stream has a new head, or is gone."""

    def end(self) -> None:
        """The server stops: answer and leave."""


class ReadableStart(NamedTuple):
    """The first event of a stream that has not expired, as long as its rule and the time do not change that."""

    seq: int
    #: It holds up to and including this moment; None is for ever.
    until_us: int | None
    lifetimes: Steps


class Stream:
    """One stream. The loop owns it; the writer touches only ``head`` and ``producers`` of pinned streams."""

    __slots__ = (
        "content_type", "created_us", "deadline_us", "epochs", "expires_us", "fork_origin", "head", "id",
        "incarnation", "is_json", "is_reserved", "is_text", "lineage", "managed", "media_type", "name", "parent",
        "pins", "producers", "profile", "readable_start", "retention_age_us", "retention_bytes", "ttl_s", "used",
        "watchers",
    )  # fmt: skip

    def __init__(
        self, row: StreamRow, lineage: tuple[tuple[int, int], ...], registry: StreamRegistry | None = None
    ) -> None:
        self.id = row.id
        self.name = row.name
        #: Whether it belongs to the server, and only the server writes to it.
        self.is_reserved = row.name.startswith(RESERVED)
        self.incarnation = row.incarnation
        # Many streams say the same.
        self.content_type = intern(row.content_type)
        self.media_type = media_type(self.content_type)
        self.is_json = self.media_type == JSON
        self.is_text = self.is_json or self.media_type.startswith("text/")
        self.created_us = row.created_us
        self.ttl_s = row.ttl_s
        self.expires_us = row.expires_us
        self.deadline_us = row.deadline_us
        self.retention_age_us = row.retention_age_us
        self.retention_bytes = row.retention_bytes
        #: The first event that has not expired, once it was looked up.
        self.readable_start: ReadableStart | None = None
        self.epochs: tuple[tuple[int, int], ...] = _EPOCHS.decode(row.epochs)
        self.parent = row.parent
        self.fork_origin = row.fork_origin
        self.profile = intern(row.profile)
        #: Whether it changes only through a registry that it belongs to.
        self.managed = bool(row.managed)
        self.lineage = lineage
        self.head = _head(row, registry)
        #: The last epoch and sequence number of some producers; None while there are none.
        self.producers: dict[str, tuple[int, int]] | None = None
        self.pins = 0
        #: Whether it was used since the last eviction; None until the catalog keeps it.
        self.used: bool | None = None
        self.watchers: dict[TailWatcher, None] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep it in memory while others are served."""
        self.pins += 1
        try:
            yield
        finally:
            self.pins -= 1

    @property
    def own_from(self) -> int:
        """How many entries it has from the streams that it is a fork of."""
        return self.lineage[-1][1] if self.lineage else 0

    def offset_at(self, position: int) -> str:
        """The offset after so many entries."""
        epoch, first = self.epochs[-1]
        if position > first:
            return offsets.encode(epoch, position)
        for epoch, first in reversed(self.epochs[:-1]):
            if position > first:
                return offsets.encode(epoch, position)
        return offsets.START

    def tail_offset(self) -> str:
        """The offset after the last committed entry."""
        return self.offset_at(self.head.next_seq)

    def locate(self, offset: Offset, head: Head | None = None) -> int:
        """The position an offset stands for, by a head or the newest one; beyond the end it is the tail."""
        head = head or self.head
        if not offset.position:
            return head.first_seq
        position = self._position(offset, head)
        if position < head.first_seq:
            earliest = self.offset_at(head.first_seq)
            raise OffsetGone("the offset lies before the first retained entry", earliest_offset=earliest)
        return position

    def _position(self, offset: Offset, head: Head) -> int:
        last_epoch, last_first = self.epochs[-1]
        if offset.epoch == last_epoch and offset.position > last_first:
            return min(offset.position, head.next_seq)
        for (epoch, first), (_, end) in zip(self.epochs, self.epochs[1:], strict=False):
            if epoch == offset.epoch and first < offset.position <= end:
                return offset.position
        message = "the offset belongs to another stream, to an earlier one of this name, or to an entry that was lost"
        raise OffsetFenced(message, stream=self.name)


def deleted(stream: Stream, state: int) -> HeadraceError:
    """Make the error for a stream that is not live any more."""
    if state == SOFT_DELETED:
        return Gone("the stream was deleted; only its forks can be read", stream=stream.name)
    return NotFound("the stream was deleted", stream=stream.name)


def _head(row: StreamRow, registry: StreamRegistry | None) -> Head:
    head = Head.__new__(Head)
    head.registry = registry
    head.state = row.state
    head.closed = bool(row.closed)
    head.closed_by = msgspec.json.decode(row.closed_by, type=tuple[str, int, int]) if row.closed_by else None
    head.first_seq, head.first_bytes = row.first_seq, row.first_bytes
    head.published_seq = row.published_seq
    head.next_seq, head.last_us, head.bytes, head.stream_seq = row.next_seq, row.last_us, row.bytes, row.stream_seq
    return head
