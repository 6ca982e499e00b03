"""Building of HTTP requests for each verb of a stream, without any IO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from difflib import get_close_matches
from itertools import islice
from typing import Any, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

import msgspec

from headrace.client.answers import CreateResult, StreamInfo
from headrace.client.json_values import moment, to_json
from headrace.errors import BadRequest
from headrace.types import JSON, media_type

START = "-1"
NOW = "now"
LONG_POLL_WAIT_S = 20
STREAMS_PATH = "/v1/streams"
_DOTS = {".": "%2E", "..": "%2E%2E"}

Moment = datetime | date | str | int
Span = timedelta | str | int
Live = Literal["sse", "long-poll"]
Item = TypeVar("Item")


class Request(msgspec.Struct, frozen=True):
    """A method, a target below the server's URL, headers and a body."""

    method: str
    target: str
    headers: Mapping[str, str] = {}
    body: bytes = b""
    wait_s: float = 0.0
    #: False where the request only reads, so that it may be retried after any failure.
    changes: bool = True


class CreateOptions(TypedDict, total=False):
    """Options of creating or forking a stream."""

    content_type: str
    ttl: Span
    expires_at: Moment
    body: Any
    closed: bool
    retention_age: Span
    retention_bytes: int
    forked_from: str
    fork_offset: str
    fork_sub_offset: int


class AppendOptions(TypedDict, total=False):
    """Options of an append."""

    key: str
    timestamp: Moment
    seq: str
    if_match: str
    close: bool


class ProducerOptions(TypedDict, total=False):
    """How a producer names itself, batches and waits; what is left out has a sensible value."""

    id: str
    epoch: int
    auto_claim: bool
    content_type: str
    linger_ms: float
    max_batch_events: int
    max_batch_bytes: int
    max_in_flight: int
    max_pending_bytes: int
    delivery_timeout: float


def split_into_batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of up to ``size``, for requests that take so many."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch


def check_options(kind: type, options: Iterable[str]) -> None:
    """Refuse an option that the typed dictionary ``kind`` does not have, and name the one that may be meant."""
    names = list(kind.__annotations__)
    for name in options:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise TypeError(f"there is no option {name!r}; {hint}")


def check_at_least(least: int, options: Mapping[str, Any], *names: str) -> None:
    """Refuse a number below the least, or what is none at all, among these of the options."""
    for name in names:
        if name in options and not options[name] >= least:
            raise ValueError(f"{name} is at least {least}, not {options[name]}")


def check_numbers(options: Mapping[str, Any]) -> None:
    """Refuse numbers with which nothing would ever be sent."""
    check_at_least(1, options, "max_batch_events", "max_batch_bytes", "max_in_flight", "max_pending_bytes")
    check_at_least(0, options, "epoch", "linger_ms", "delivery_timeout")


def stream_path(name: str) -> str:
    """The path of a stream; slashes in the name stay slashes. A name that would be another path is refused."""
    if any(part in ("", *_DOTS) for part in name.split("/")):
        raise BadRequest("a stream name has no empty, '.' or '..' segments", field="name")
    # Spelled so, the server takes "_schema" and its like for a part of the name, and says that it is reserved.
    return "/v1/stream/" + quote(name, safe="/~").replace("/_", "/%5F")


def segment(text: str) -> str:
    """Any text as one segment of a path; dots are escaped, so that no proxy resolves them."""
    return _DOTS.get(text) or quote(text, safe="")


def create(name: str, **options: Unpack[CreateOptions]) -> Request:
    """PUT: create the stream, a JSON stream by default, or a fork of ``forked_from``."""
    check_options(CreateOptions, options)
    source = options.get("forked_from", "")
    content_type = options.get("content_type", "" if source else JSON)
    sub_offset = options.get("fork_sub_offset", 0)
    headers = _present(
        {
            "content-type": content_type,
            "stream-ttl": _seconds(options.get("ttl")),
            "stream-expires-at": moment(options.get("expires_at")),
            "stream-closed": _flag(options.get("closed", False)),
            "stream-retention-age": duration(options.get("retention_age")),
            "stream-retention-bytes": _text(options.get("retention_bytes")),
            "stream-forked-from": stream_path(source) if source else "",
            "stream-fork-offset": options.get("fork_offset", ""),
            "stream-fork-sub-offset": str(sub_offset) if sub_offset else "",
        }
    )
    body = options.get("body")
    return Request("PUT", stream_path(name), headers, b"" if body is None else encode(body, content_type or JSON))


def append(name: str, body: bytes, content_type: str, **options: Unpack[AppendOptions]) -> Request:
    """POST: append a body, and close the stream with it on request."""
    check_options(AppendOptions, options)
    headers = _present(
        {
            "content-type": content_type,
            "stream-key": options.get("key", ""),
            "stream-timestamp": moment(options.get("timestamp")),
            "stream-seq": options.get("seq", ""),
            "if-match": options.get("if_match", ""),
            "stream-closed": _flag(options.get("close", False)),
        }
    )
    return Request("POST", stream_path(name), headers, body)


def produce(name: str, body: bytes, content_type: str, *, key: str, producer_id: str, epoch: int, seq: int) -> Request:
    """POST: append a producer's batch, which the server appends once however often it is sent."""
    plain = append(name, body, content_type, key=key)
    producer = {"producer-id": producer_id, "producer-epoch": str(epoch), "producer-seq": str(seq)}
    return msgspec.structs.replace(plain, headers={**plain.headers, **producer})


def close(name: str) -> Request:
    """POST: nothing more will be appended."""
    return Request("POST", stream_path(name), {"stream-closed": "true"})


def read(
    name: str,
    offset: str,
    *,
    since: Moment | None = None,
    last: int | None = None,
    before: str | None = None,
    key: str | None = None,
    schema_version: int | None = None,
    filter: str | None = None,
) -> Request:
    """GET: what follows ``offset``, what was appended at ``since`` or later, or the ``last`` entries."""
    query = {
        "before": before,
        "filter": filter,
        "key": key,
        "last": _text(last) or None,
        "offset": None if since is not None or (last is not None and offset == START) else offset,
        "schema_version": _text(schema_version) or None,
        "since": None if since is None else moment(since),
    }
    return Request("GET", with_query(stream_path(name), query))


def tail(
    name: str,
    offset: str,
    live: Live,
    *,
    key: str | None = None,
    schema_version: int | None = None,
    filter: str | None = None,
    cursor: str = "",
) -> Request:
    """GET: what follows ``offset``, waiting for more."""
    query = {
        "cursor": cursor or None,
        "filter": filter,
        "key": key,
        "live": live,
        "offset": offset,
        "schema_version": _text(schema_version) or None,
        "timeout": f"{LONG_POLL_WAIT_S}s" if live == "long-poll" else None,
    }
    accept = {"accept": "text/event-stream"} if live == "sse" else {}
    return Request("GET", with_query(stream_path(name), query), accept, wait_s=90.0)


def choose_live(content_type: str, filter: str | None) -> Live:
    """The default way to follow a stream: SSE; long-poll for filters, and for text, whose line ends SSE changes."""
    return "long-poll" if filter is not None or media_type(content_type).startswith("text/") else "sse"


def info(name: str) -> Request:
    """HEAD: the metadata of the stream."""
    return Request("HEAD", stream_path(name))


def details(name: str) -> Request:
    """GET: all details of the stream."""
    return Request("GET", f"{stream_path(name)}/_details")


def seal(name: str) -> Request:
    """POST: publish what is in the log now; it may be asked again."""
    query = {"timeout": f"{LONG_POLL_WAIT_S}s"}
    return Request("POST", with_query(f"{stream_path(name)}/_seal", query), wait_s=90.0, changes=False)


def delete(name: str) -> Request:
    """DELETE the stream."""
    return Request("DELETE", stream_path(name))


def list_streams(*, prefix: str = "", after: str = "", limit: int | None = None) -> Request:
    """GET one page of streams in name order."""
    query = {"prefix": prefix or None, "after": after or None, "limit": _text(limit) or None}
    return Request("GET", with_query(STREAMS_PATH, query))


def encode(value: Any, content_type: str) -> bytes:
    """A body for a stream of this type: bytes as they are, text as UTF-8 or JSON, anything else as JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if media_type(content_type) == JSON:
        return to_json(value)
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"a {content_type} stream takes bytes or text, not {type(value).__name__}")


def post(target: str, document: Mapping[str, Any], *, changes: bool = True) -> Request:
    """POST: a document, without what is None in it."""
    members = {name: value for name, value in document.items() if value is not None}
    return Request("POST", target, {"content-type": JSON}, to_json(members), changes=changes)


def with_query(path: str, query: Mapping[str, str | None]) -> str:
    """A target with the parameters that are given."""
    # Sorted, so that a shared cache sees one address for one question.
    text = urlencode(sorted((name, value) for name, value in query.items() if value is not None), quote_via=quote)
    return f"{path}?{text}" if text else path


def _present(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if value}


def _text(value: int | None) -> str:
    return "" if value is None else str(value)


def _flag(value: bool) -> str:
    return "true" if value else ""


def _seconds(value: Span | None) -> str:
    """A span where the protocol wants whole seconds; text goes as it is."""
    if isinstance(value, timedelta):
        seconds, rest = divmod(value, timedelta(seconds=1))
        return f"{value // timedelta(milliseconds=1)}ms" if rest else str(seconds)
    return value if isinstance(value, str) else _text(value)


def duration(value: Span | None) -> str:
    """A span with its unit; text goes as it is."""
    text = _seconds(value)
    return f"{text}s" if text.isdigit() else text


Described = TypeVar("Described", CreateResult, StreamInfo)


class StreamHandle:
    """A stream's name, and its content type once it is known; builds requests of both clients."""

    def __init__(self, name: str, content_type: str | None) -> None:
        self.name = name
        self.content_type = content_type

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _remember_type(self, described: Described) -> Described:
        self.content_type = described.content_type
        return described

    def _needs_content_type(self, value: Any) -> bool:
        return self.content_type is None and isinstance(value, bytes | bytearray | memoryview)

    def _append_request(self, value: Any, **options: Unpack[AppendOptions]) -> Request:
        content_type = self.content_type or JSON
        return append(self.name, encode(value, content_type), content_type, **options)

    def _producer_options(self, options: ProducerOptions) -> ProducerOptions:
        if self.content_type is not None:
            options.setdefault("content_type", self.content_type)
        return options

    def _fork_options(self, options: CreateOptions) -> CreateOptions:
        options["forked_from"] = self.name
        if self.content_type is not None:
            options.setdefault("content_type", self.content_type)
        return options
