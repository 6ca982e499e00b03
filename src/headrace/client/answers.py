"""Responses as values, without any IO."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec

from headrace import decoding
from headrace.client.errors import BadAnswer, from_answer
from headrace.types import JSON, media_type

T = TypeVar("T")

_NEXT_LINK = re.compile(r'<([^>]*)>\s*;[^,]*\brel="?next"?')


class Answer(msgspec.Struct, frozen=True):
    """Status, headers by lower-case name, and the whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def checked(self) -> Answer:
        """Itself if it is a success, or a partial result after a timeout; raises the error of the answer otherwise."""
        if self.status >= 300 and not self.claims("search-timed-out"):
            raise from_answer(self.status, self.headers, self.body)
        return self

    def decode(self, kind: type[T]) -> T:
        """The body of a success as the value that the protocol promises; raises the error otherwise."""
        return decode_body(self.checked().body, kind)

    def header(self, name: str) -> str:
        """A header that the protocol requires."""
        try:
            return self.headers[name]
        except KeyError:
            raise BadAnswer(f"the answer lacks the header {name}") from None

    def claims(self, name: str) -> bool:
        """Whether a header says ``true``."""
        return self.headers.get(name, "").lower() == "true"


@dataclass(frozen=True)
class Batch:
    """The events of one read, and the offset of the next."""

    data: bytes
    content_type: str
    next_offset: str
    up_to_date: bool
    closed: bool
    #: Where the newest entries begin, in the first batch of a read with ``last``.
    start_offset: str | None = None

    @cached_property
    def items(self) -> list[Any]:
        """The events of a JSON stream, decoded; of any other stream the data as one item."""
        if media_type(self.content_type) != JSON:
            return [self.data] if self.data else []
        return decode_events(self.data) if self.data else []

    @cached_property
    def raw_items(self) -> list[bytes]:
        """The same events as the bytes that were appended."""
        if media_type(self.content_type) != JSON:
            return [self.data] if self.data else []
        return [bytes(raw) for raw in decode_body(self.data, list[msgspec.Raw])] if self.data else []

    def __bool__(self) -> bool:
        return bool(self.data) and self.data != b"[]"


class AppendResult(msgspec.Struct, frozen=True):
    """The tail after the append; ``duplicate`` if the server already had it."""

    next_offset: str
    closed: bool = False
    duplicate: bool = False


class CreateResult(msgspec.Struct, frozen=True):
    """Whether the stream is new, and its state."""

    created: bool
    content_type: str
    next_offset: str
    closed: bool


class StreamInfo(msgspec.Struct, frozen=True):
    """The metadata of a stream."""

    name: str
    content_type: str
    next_offset: str
    closed: bool
    ttl_s: int | None
    expires_at: str | None


class SealResult(msgspec.Struct, frozen=True):
    """How much of a stream was published, and whether everything that it held at first is in the object store."""

    stream: str
    #: Everything was published, or was before; or it takes longer.
    state: Literal["sealed", "nothing_to_seal", "sealing"]
    sealed_entries: int
    published_offset: str
    end_offset: str
    #: Why the object store took nothing the last time, where it takes longer.
    trouble: str | None = None

    def after(self, earlier: SealResult) -> SealResult:
        """The result of an earlier request with what a later one published."""
        is_published = self.published_offset >= earlier.end_offset
        return SealResult(
            stream=self.stream,
            state="sealed" if is_published else "sealing",
            sealed_entries=earlier.sealed_entries + self.sealed_entries,
            published_offset=min(self.published_offset, earlier.end_offset),
            end_offset=earlier.end_offset,
            trouble=None if is_published else self.trouble,
        )


class StreamPage(msgspec.Struct, frozen=True):
    """One page of stream descriptors; ``next_after`` is None on the last."""

    streams: list[dict[str, Any]]
    next_after: str | None


def read_create_result(answer: Answer) -> CreateResult:
    """The result of a PUT."""
    return CreateResult(
        created=answer.checked().status == 201,
        content_type=answer.header("content-type"),
        next_offset=answer.header("stream-next-offset"),
        closed=answer.claims("stream-closed"),
    )


def read_append_result(answer: Answer, *, by_producer: bool = False) -> AppendResult:
    """The result of a POST; 204 to a producer means that the server already had the batch."""
    return AppendResult(
        next_offset=answer.checked().headers.get("stream-next-offset", ""),
        closed=answer.claims("stream-closed"),
        duplicate=by_producer and answer.status == 204,
    )


def read_batch(answer: Answer) -> Batch:
    """The batch of a GET, long-polls included."""
    return Batch(
        data=answer.checked().body,
        content_type=answer.headers.get("content-type", ""),
        next_offset=answer.header("stream-next-offset"),
        up_to_date=answer.claims("stream-up-to-date") or answer.status == 204,
        closed=answer.claims("stream-closed"),
        start_offset=answer.headers.get("stream-start-offset"),
    )


def read_newest(answer: Answer) -> tuple[Batch, str]:
    """The first batch of the newest entries, and where they end; refuses what a server that has no ``last`` answers."""
    batch = read_batch(answer)
    if batch.start_offset is None:
        raise BadAnswer("the server does not know the parameter last: it is older than this client")
    return batch, answer.header("stream-end-offset")


def read_stream_info(name: str, answer: Answer) -> StreamInfo:
    """The metadata in the headers of a HEAD."""
    ttl = answer.checked().headers.get("stream-ttl", "")
    return StreamInfo(
        name=name,
        content_type=answer.header("content-type"),
        next_offset=answer.header("stream-next-offset"),
        closed=answer.claims("stream-closed"),
        ttl_s=int(ttl) if ttl.isdigit() else None,
        expires_at=answer.headers.get("stream-expires-at"),
    )


def read_stream_page(answer: Answer) -> StreamPage:
    """One page of the listing, and where the ``Link`` header says that the next begins."""
    streams = decode_body(answer.checked().body, list[dict[str, Any]])
    link = _NEXT_LINK.search(answer.headers.get("link", ""))
    after = parse_qs(urlsplit(link[1]).query).get("after") if link else None
    return StreamPage(streams, after[0] if after else None)


def decode_events(body: bytes) -> list[Any]:
    """The events of a JSON stream; a number that is too large for a float is infinite."""
    try:
        return decode_body(body, list[Any])
    except BadAnswer:
        decoded_events = _decode_leniently(body)
        if not isinstance(decoded_events, list):
            raise
        return decoded_events


def _decode_leniently(body: bytes) -> Any:
    """A body decoded by the standard library, which takes numbers of any size; None if it is not JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def decode_body(body: bytes, kind: type[T]) -> T:
    """A body as this type; raises BadAnswer if it is something else."""
    try:
        return decoding.decode(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as reason:
        raise BadAnswer(f"the body is not what the protocol promises: {reason}") from reason
