"""What each answer means: responses become values, without any input or output."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
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
        """Itself if it is a success, or what was found in time; raises the error it stands for otherwise."""
        if self.status >= 300 and not self.claims("search-timed-out"):
            raise from_answer(self.status, self.headers, self.body)
        return self

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
    """What one read brought, and where the next one begins."""

    data: bytes
    content_type: str
    next_offset: str
    up_to_date: bool
    closed: bool

    @cached_property
    def items(self) -> list[Any]:
        """The events of a JSON stream, decoded; of any other stream the data as one item."""
        if media_type(self.content_type) != JSON:
            return [self.data] if self.data else []
        return events(self.data) if self.data else []

    @cached_property
    def raw_items(self) -> list[bytes]:
        """The same events as the bytes that were appended."""
        if media_type(self.content_type) != JSON:
            return [self.data] if self.data else []
        return [bytes(raw) for raw in decoded(self.data, list[msgspec.Raw])] if self.data else []

    def __bool__(self) -> bool:
        return bool(self.data) and self.data != b"[]"


class AppendResult(msgspec.Struct, frozen=True):
    """The tail after the append; ``duplicate`` if the server already had it."""

    next_offset: str
    closed: bool = False
    duplicate: bool = False


class CreateResult(msgspec.Struct, frozen=True):
    """Whether the stream is new, and how it stands."""

    created: bool
    content_type: str
    next_offset: str
    closed: bool


class StreamInfo(msgspec.Struct, frozen=True):
    """What is known of a stream without reading it."""

    name: str
    content_type: str
    next_offset: str
    closed: bool
    ttl_s: int | None
    expires_at: str | None


class StreamPage(msgspec.Struct, frozen=True):
    """One page of stream descriptors; ``next_after`` is None on the last."""

    streams: list[dict[str, Any]]
    next_after: str | None


def created(answer: Answer) -> CreateResult:
    """What a PUT did."""
    return CreateResult(
        created=answer.checked().status == 201,
        content_type=answer.header("content-type"),
        next_offset=answer.header("stream-next-offset"),
        closed=answer.claims("stream-closed"),
    )


def appended(answer: Answer, *, by_producer: bool = False) -> AppendResult:
    """What a POST did; to a producer's body 204 says that the server already had it."""
    return AppendResult(
        next_offset=answer.checked().headers.get("stream-next-offset", ""),
        closed=answer.claims("stream-closed"),
        duplicate=by_producer and answer.status == 204,
    )


def batch(answer: Answer) -> Batch:
    """What a GET brought, long-polls included."""
    return Batch(
        data=answer.checked().body,
        content_type=answer.headers.get("content-type", ""),
        next_offset=answer.header("stream-next-offset"),
        up_to_date=answer.claims("stream-up-to-date") or answer.status == 204,
        closed=answer.claims("stream-closed"),
    )


def described(name: str, answer: Answer) -> StreamInfo:
    """What a HEAD told."""
    ttl = answer.checked().headers.get("stream-ttl", "")
    return StreamInfo(
        name=name,
        content_type=answer.header("content-type"),
        next_offset=answer.header("stream-next-offset"),
        closed=answer.claims("stream-closed"),
        ttl_s=int(ttl) if ttl.isdigit() else None,
        expires_at=answer.headers.get("stream-expires-at"),
    )


def page(answer: Answer) -> StreamPage:
    """One page of the listing, and where the ``Link`` header says that the next begins."""
    streams = decoded(answer.checked().body, list[dict[str, Any]])
    link = _NEXT_LINK.search(answer.headers.get("link", ""))
    after = parse_qs(urlsplit(link[1]).query).get("after") if link else None
    return StreamPage(streams, after[0] if after else None)


def events(body: bytes) -> list[Any]:
    """The events of a JSON stream; a number that is too large for a float is infinite."""
    try:
        return decoded(body, list[Any])
    except BadAnswer:
        found = _leniently(body)
        if not isinstance(found, list):
            raise
        return found


def _leniently(body: bytes) -> Any:
    """What the standard library makes of a body: it refuses no number for its size."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def decoded(body: bytes, kind: type[T]) -> T:
    """A body as the value that the protocol promises."""
    try:
        return decoding.decode(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as reason:
        raise BadAnswer(f"the body is not what the protocol promises: {reason}") from reason
