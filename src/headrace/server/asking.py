"""What questions about the events of a stream have in common: their bodies, whom they may ask, what answers cover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace.engine.assembly import Engine
from headrace.engine.log.stream import Stream
from headrace.errors import BadRequest
from headrace.schema.entries import decode_exact
from headrace.server.exchange import Request
from headrace.server.values import only
from headrace.types import json_fault, rfc3339

if TYPE_CHECKING:
    from headrace.engine.search.aggregate import Aggregated
    from headrace.engine.search.hits import Found

_MAX_BODY = 1024 * 1024


def document(request: Request, what: str) -> Any:
    """The JSON document that a question is."""
    only(request.query)
    if len(request.body) > _MAX_BODY:
        raise BadRequest(f"{what} has at most 1 MiB", field="body")
    try:
        return decode_exact(request.body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as reason:
        raise BadRequest(f"the body is not JSON: {json_fault(reason, request.body)}", field="body") from reason


def asked(engine: Engine, request: Request) -> Stream:
    """The stream that is asked, by someone who may read it; that is an access."""
    stream = engine.log.find(request.target.name)
    request.principal.require("read", stream.name)
    if stream.ttl_s is not None:
        engine.log.catalog.note_access(stream)
    return stream


def coverage(stream: Stream, found: Found | Aggregated, *, visible: int, complete: bool) -> dict[str, Any]:
    """What an answer covers, and how much it may have left out; ``visible`` is where the events end that were seen."""
    missing, tally = found.missing, found.tally
    return {
        "mode": "complete" if complete else "partial",
        "complete": complete,
        "stream_head_offset": stream.offset_at(found.stop),
        "visible_from_offset": stream.offset_at(found.start),
        "visible_through_offset": stream.offset_at(visible),
        "visible_through_primary_timestamp_max": None if tally.latest_ms is None else rfc3339(tally.latest_ms * 1000),
        "oldest_omitted_append_at": None if missing.since_us is None else rfc3339(missing.since_us),
        "possible_missing_events_upper_bound": missing.events,
        "possible_missing_uploaded_segments": missing.segments,
        "possible_missing_sealed_rows": missing.events - missing.log_rows,
        "possible_missing_wal_rows": missing.log_rows,
    }
