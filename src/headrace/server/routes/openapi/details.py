"""The paths of what is told about a stream: its details, its indexes, its routing keys."""

from __future__ import annotations

from headrace.server.routes.openapi.index_status import INDEX_STATUS, TIME
from headrace.server.routes.openapi.routing_keys import KEY_PATHS
from headrace.server.routes.openapi.schemas import BINDING
from headrace.server.routes.openapi.streams import DESCRIPTOR, NAME, WAIT
from headrace.server.routes.openapi.words import (
    DIGITS,
    TEXT,
    WHOLE,
    Node,
    answer,
    answers,
    either,
    header,
    operation,
    plain,
    query,
    record,
)


def _tag(kind: str) -> Node:
    return {"ETag": {"description": "names what is told", "schema": {"type": "string", "pattern": f'^W/"{kind}:'}}}


def _numbers(names: str, schema: Node) -> dict[str, Node]:
    return dict.fromkeys(names.split(), schema)


_COUNTS = _numbers("puts gets heads lists deletes reads", DIGITS)
_STREAM = record(
    **DESCRIPTOR["properties"],
    **_numbers("pending_rows pending_bytes total_size_bytes wal_rows wal_bytes", DIGITS),
    **_numbers("segment_count uploaded_segment_count", WHOLE),
    **_numbers("last_append_at last_segment_cut_at", either(TIME)),
    updated_at=TIME,
    ttl_seconds=either(WHOLE),
    stream_seq=either(TEXT),
)
_OBJECTS = record(
    **_numbers("total_bytes segments_bytes indexes_bytes manifest_and_meta_bytes manifest_bytes", DIGITS),
    schema_registry_bytes=DIGITS,
    **_numbers("segment_object_count routing_index_object_count routing_lexicon_object_count", WHOLE),
    **_numbers("exact_index_object_count bundled_companion_object_count", WHOLE),
)
_LOCAL = record(
    **_numbers("total_bytes wal_retained_bytes pending_tail_bytes pending_sealed_segment_bytes", DIGITS),
    **_numbers("segment_cache_bytes routing_index_cache_bytes exact_index_cache_bytes", DIGITS),
    **_numbers("lexicon_index_cache_bytes companion_cache_bytes sqlite_shared_total_bytes", DIGITS),
)
DETAILS = record(
    stream=_STREAM,
    profile=record(apiVersion={"const": "durable.streams/profile/v1"}, profile=record(kind=TEXT)),
    schema={"$ref": "#/components/schemas/Registry"},
    emptied_fields={"type": "array", "items": record(field=TEXT, from_version=WHOLE, binding=BINDING)},
    index_status=INDEX_STATUS,
    storage=record(
        object_storage=_OBJECTS,
        local_storage=_LOCAL,
        companion_families=record(**_numbers("exact_bytes col_bytes fts_bytes agg_bytes mblk_bytes", DIGITS)),
    ),
    object_store_requests=record(**_COUNTS, by_artifact={"type": "array", "items": record(artifact=TEXT, **_COUNTS)}),
)


def _watched(name: str, text: str, kind: str, schema: Node) -> Node:
    """A document that is answered now, or once it differs from what the caller has."""
    tag = _tag(kind)
    return operation(
        name,
        text,
        answers(
            "404 410 429",
            s200=answer("as it is now", schema, tag),
            s304=plain("the caller has this, also at the end of the wait", tag),
        ),
        query("live", {"type": "string", "enum": ["", "false", "0", "true", "1", "long-poll"]}, "wait for a change"),
        query("timeout", WAIT, "longest wait; 3 s if left out"),
        query("timeout_ms", WAIT, "the same"),
        header("If-None-Match", TEXT, "ETag of what the caller has"),
    )


_DETAILS = _watched(
    "detail_stream",
    "Everything about a stream, now or once it differs from what the caller has",
    "details",
    DETAILS,
)
_STATUS = _watched(
    "status_stream",
    "How far the indexes of a stream are, now or once that differs from what the caller has",
    "index_status",
    INDEX_STATUS,
)

DETAILS_PATHS: Node = {
    "/v1/stream/{name}/_details": {"parameters": [NAME], "get": _DETAILS},
    "/v1/stream/{name}/_index_status": {"parameters": [NAME], "get": _STATUS},
    **KEY_PATHS,
}
