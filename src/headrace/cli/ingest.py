"""From a pipe into a stream: lines of JSON, or bytes, through a producer that never appends twice."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, Unpack

import msgspec

from headrace.cli import output
from headrace.errors import BadRequest
from headrace.types import JSON, media_type

if TYPE_CHECKING:
    from headrace.client import Delivery, Stream
    from headrace.client.requests import AppendOptions


_CHUNK_BYTES = 1024 * 1024
_LINGER_MS = 20


def append_at_once(stream: Stream, values: Sequence[str], **options: Unpack[AppendOptions]) -> tuple[int, str]:
    """All events in one request, so that they are appended together or not at all."""
    given = _checked((value.encode() for value in values), "event", 0) if values else _lines()
    events = [msgspec.Raw(event) for event in given]
    return len(events), stream.append(events, **options).next_offset


def append_lines(stream: Stream, routing_key: str) -> tuple[int, str]:
    """Every line of stdin that is not blank is an event; batches go out while lines come in."""
    return _produce(stream, _lines(), routing_key, JSON)


def append_bytes(stream: Stream, **options: Unpack[AppendOptions]) -> tuple[int, str]:
    """Stdin as it is: as one body where that matters, otherwise in chunks."""
    content_type = stream.info().content_type
    if media_type(content_type) == JSON or len(options) > 1:
        return 1, stream.append(_stdin().read(), **options).next_offset
    chunks = iter(lambda: _stdin().read(_CHUNK_BYTES), b"")
    return _produce(stream, chunks, options.get("key", ""), content_type)


def _produce(stream: Stream, events: Iterable[bytes], routing_key: str, content_type: str) -> tuple[int, str]:
    count = 0
    last: Delivery | None = None
    try:
        with (
            output.counting("events") as advance,
            stream.producer(linger_ms=_LINGER_MS, content_type=content_type) as producer,
        ):
            for event in events:
                last = producer.send(event, key=routing_key)
                count += 1
                advance(1)
    except BadRequest as reason:
        if "line" not in reason.facts or last is None or last.exception() is not None:
            raise
        told = f"{reason.message}; events before it, which are appended: {count}"
        raise BadRequest(told, **reason.facts, appended=count) from reason
    return count, last.result() if last else stream.info().next_offset


def _stdin() -> BinaryIO:
    if sys.stdin.isatty():
        print("Reading from the terminal; end with Ctrl-D.", file=sys.stderr)
    return sys.stdin.buffer


def _lines() -> Iterator[bytes]:
    return _checked(_stdin(), "line", 1)


def _checked(texts: Iterable[bytes], what: str, first: int) -> Iterator[bytes]:
    """The texts that are not blank, each checked, so that a bad one is named and not its batch."""
    for number, text in enumerate(texts, first):
        event = text.strip()
        if not event:
            continue
        try:
            msgspec.json.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
            raise BadRequest(f"{what} {number} is not JSON: {reason}", **{what: number}) from reason
        yield event
