"""What a PUT asks for: reading it, comparing it with what exists, and turning it into a row."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from headrace.engine.log.append import Terms
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.errors import BadRequest, Conflict, Gone, ManagedStream, NotFound, OffsetGone, ReservedStream
from headrace.schema.entries import split_json
from headrace.server.http import parameters, target
from headrace.server.http.auth import ENTITY_STREAM_PREFIX
from headrace.server.http.exchange import Headers, Reply
from headrace.server.http.request import Request
from headrace.storage.streams import LIVE, StreamRow
from headrace.types import JSON, OCTETS, media_type, rfc3339

_APPEND_ONLY = (b"stream-seq", b"producer-id", b"producer-epoch", b"producer-seq", b"if-match")
_TOKEN = r"[!#$%&'*+.^_`|~0-9a-z-]+"
_MEDIA_TYPE = re.compile(f"{_TOKEN}/{_TOKEN}")
#: The spellings of a fork offset that stand for the start of the source, wherever that is by now.
_START = re.compile(r"-1|[0O_]+", re.IGNORECASE)


class ForkSource(NamedTuple):
    """Where a fork is to leave its source, as a PUT describes it; without an offset that is the tail."""

    source: Stream
    offset: str | None
    sub: int
    #: The source as readers may see it.
    readable: Head


class ForkPoint(NamedTuple):
    """The same, as a place that the source has now."""

    source: Stream
    position: int
    sub: int


class StreamSpec(msgspec.Struct):
    """A stream as a PUT describes it."""

    content_type: str
    ttl_s: int | None
    expires_us: int | None
    closed: bool
    retention_age_us: int | None
    retention_bytes: int | None
    terms: Terms
    body: bytes
    origin: ForkSource | None


def read(log: Log, request: Request) -> StreamSpec:
    """Read the headers of a PUT; a fork's source is looked up here."""
    headers = request.headers
    for name in _APPEND_ONLY:
        if name in headers:
            field = parameters.header_title(name)
            raise BadRequest(f"{field} belongs to an append: create the stream, then POST", field=field)
    ttl_s, expires_us = parameters.ttl_s(headers), parameters.timestamp_us(headers, b"stream-expires-at")
    if ttl_s is not None and expires_us is not None:
        raise BadRequest("Stream-TTL and Stream-Expires-At exclude each other", field="Stream-TTL")
    age_us, size = parameters.retention(headers)
    content_type = _content_type(headers)
    origin = _origin(log, request)
    if origin is not None:
        source = origin.source
        if content_type is not None and media_type(content_type) != source.media_type:
            raise Conflict(f"the source holds {source.content_type}", field="Content-Type")
        content_type = content_type or source.content_type
        if ttl_s is None and expires_us is None:
            ttl_s, expires_us = source.ttl_s, source.expires_us
    return StreamSpec(
        content_type=content_type or OCTETS,
        ttl_s=ttl_s,
        expires_us=expires_us,
        closed=parameters.closes(headers),
        retention_age_us=age_us,
        retention_bytes=size,
        terms=Terms(
            key=parameters.text(headers, b"stream-key") or None,
            timestamp_us=parameters.timestamp_us(headers, b"stream-timestamp"),
        ),
        body=request.body,
        origin=origin,
    )


def _content_type(headers: dict[bytes, bytes]) -> str | None:
    content_type = parameters.text(headers, b"content-type")
    if content_type is None or not content_type.strip():
        return None
    if not (content_type.isascii() and _MEDIA_TYPE.fullmatch(media_type(content_type))):
        raise BadRequest(f"{content_type!r} is not a media type", field="Content-Type")
    return content_type.strip()


def _origin(log: Log, request: Request) -> ForkSource | None:
    headers = request.headers
    path, at = parameters.text(headers, b"stream-forked-from"), parameters.text(headers, b"stream-fork-offset")
    sub_text = parameters.text(headers, b"stream-fork-sub-offset")
    if path is None:
        for name, text in (("Stream-Fork-Offset", at), ("Stream-Fork-Sub-Offset", sub_text)):
            if text is not None:
                raise BadRequest(f"{name} needs Stream-Forked-From", field=name)
        return None
    sub = 0 if sub_text is None else parameters.non_negative_integer(sub_text, "Stream-Fork-Sub-Offset")
    if sub and at is None:
        raise BadRequest("Stream-Fork-Sub-Offset needs Stream-Fork-Offset", field="Stream-Fork-Sub-Offset")
    source = _source(log, request, path)
    return ForkSource(source, at, sub, log.readable_head(source))


def _source(log: Log, request: Request, path: str) -> Stream:
    raw = path.strip().encode()
    marker = raw.rfind(target.PREFIX) if not raw.startswith(target.PREFIX) else 0
    if marker < 0:
        raise BadRequest("Stream-Forked-From is not the path of a stream", field="Stream-Forked-From")
    address = target.parse(raw[marker:])
    if address.resource or address.key is not None:
        raise BadRequest("Stream-Forked-From is not the path of a stream itself", field="Stream-Forked-From")
    name = address.name
    request.principal.require("read", name)
    try:
        source = log.find(name)
    except Gone as reason:
        raise Conflict("the source was deleted", field="Stream-Forked-From", stream=name) from reason
    except NotFound as reason:
        raise NotFound("the source does not exist", field="Stream-Forked-From", stream=name) from reason
    if source.managed and name.startswith(ENTITY_STREAM_PREFIX):
        # A fork would be nobody's entities: open to others than admins, and out of reach of who erases one.
        raise ManagedStream("streams of entities cannot be forked", field="Stream-Forked-From", stream=name)
    if source.is_reserved:
        # Their epochs are the highest there are: no offset of a fork could come after them.
        raise ReservedStream("streams of the server cannot be forked", field="Stream-Forked-From", stream=name)
    return source


def fork_point(spec: StreamSpec) -> ForkPoint | None:
    """Where a new stream leaves its source; refuses an offset that is not retained, or was never there."""
    if spec.origin is None:
        return None
    source, offset, sub, readable = spec.origin
    position = source.head.next_seq if offset is None else parameters.fork_offset(offset, source, readable)
    return ForkPoint(source, position, sub)


def confirm(stream: Stream, spec: StreamSpec, request: Request) -> Reply:
    """200 where the stream exists as described; a difference is named."""
    if stream.head.state != LIVE:
        raise Conflict("the name belongs to a deleted stream that forks still need", stream=stream.name)
    for field, same in (
        ("Content-Type", media_type(spec.content_type) == stream.media_type),
        ("Stream-TTL", spec.ttl_s == stream.ttl_s),
        ("Stream-Expires-At", spec.expires_us == stream.expires_us),
        ("Stream-Closed", spec.closed == stream.head.closed),
        ("Stream-Forked-From", _same_origin(stream, spec.origin)),
    ):
        if not same:
            raise Conflict(f"the stream exists with another {field}", field=field, stream=stream.name)
    return Reply(200, headers(stream) | {"location": location(request)})


def created(row: StreamRow, request: Request) -> Reply:
    """201 for the stream that was stored as this row, whatever has become of it since."""
    return Reply(201, headers(Stream(row, (), None)) | {"location": location(request)})


def _same_origin(stream: Stream, wished: ForkSource | None) -> bool:
    if stream.fork_origin is None or wished is None:
        return stream.fork_origin is None and wished is None
    incarnation, position, sub = msgspec.json.decode(stream.fork_origin)
    if incarnation != wished.source.incarnation or sub != wished.sub:
        return False
    # Forks of the tail were once stored without their position.
    return _left_at(stream, stream.own_from if position is None else position, wished)


def _left_at(fork: Stream, position: int, wished: ForkSource) -> bool:
    """Whether a fork has left its source where an offset says, be that place retained or not."""
    source, offset, _, readable = wished
    if offset is None:
        return True
    try:
        fork_position = parameters.fork_offset(offset, source, readable)
    except OffsetGone:
        return parameters.offset(offset).position == position
    if _START.fullmatch(offset):
        # The start moves on; a fork that began with it has nothing from before.
        return position <= min(fork_position, fork.head.first_seq)
    return fork_position == position


def row(spec: StreamSpec, point: ForkPoint | None, name: str, now_us: int) -> tuple[StreamRow, bytes, int]:
    """The row to store, and the first entries."""
    deadline_us = spec.expires_us if spec.ttl_s is None else now_us + spec.ttl_s * 1_000_000
    body, count = spec.body, 1 if spec.body else 0
    if spec.body and media_type(spec.content_type) == JSON:
        body, count = split_json(spec.body)
    origin = None if point is None else [point.source.incarnation, point.position, point.sub]
    stored = StreamRow(
        name=name,
        content_type=spec.content_type,
        created_us=now_us,
        ttl_s=spec.ttl_s,
        expires_us=spec.expires_us,
        deadline_us=deadline_us,
        retention_age_us=spec.retention_age_us,
        retention_bytes=spec.retention_bytes,
        closed=int(spec.closed),
        epochs="[]",
        fork_origin=None if origin is None else msgspec.json.encode(origin).decode(),
    )
    return stored, body, count


def headers(stream: Stream) -> Headers:
    """The headers of a PUT's answer."""
    head = stream.head
    described = {"content-type": stream.content_type, "stream-next-offset": stream.offset_at(head.next_seq)}
    if head.closed:
        described["stream-closed"] = "true"
    if stream.deadline_us is not None:
        described["stream-expires-at"] = rfc3339(stream.deadline_us)
    return described


def location(request: Request) -> str:
    """The absolute address of the stream, as the caller reached it."""
    host = request.headers.get(b"host", b"").decode("latin-1")
    path = target.address(request.target.name)
    return f"{request.exchange.scheme}://{host}{path}" if host else path
