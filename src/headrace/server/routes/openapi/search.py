"""The path of a search."""

from __future__ import annotations

from headrace.query.request import MAX_SIZE, MAX_TIMEOUT_MS
from headrace.server.routes.openapi.streams import NAME
from headrace.server.routes.openapi.words import (
    FLAG,
    MINTED,
    TEXT,
    WHOLE,
    Node,
    answer,
    answers,
    closed_record,
    content,
    either,
    operation,
    query,
    record,
)

_WORD: Node = {"type": "string", "enum": ["true", "false", "1", "0"]}
_TIME: Node = {"type": "string", "format": "date-time"}
_SIZE: Node = {"type": "integer", "minimum": 0, "maximum": MAX_SIZE}
_LIST: Node = {"type": "array"}
_ANY_OFFSET: Node = {"anyOf": [MINTED, {"const": "0" * 26}]}


def _counts(names: str) -> dict[str, Node]:
    return dict.fromkeys(names.split(), WHOLE)


_COUNTS = (
    "indexed_segments indexed_segment_time_ms fts_section_get_ms fts_decode_ms fts_clause_estimate_ms scanned_segments"
    " scanned_segment_time_ms scanned_tail_docs scanned_tail_time_ms exact_candidate_time_ms candidate_doc_ids"
    " decoded_records json_parse_time_ms segment_payload_bytes_fetched sort_time_ms peak_hits_held"
)
COVERAGE = {
    "mode": {"enum": ["complete", "partial"]},
    "complete": FLAG,
    **dict.fromkeys(("stream_head_offset", "visible_from_offset", "visible_through_offset"), _ANY_OFFSET),
    **dict.fromkeys(("visible_through_primary_timestamp_max", "oldest_omitted_append_at"), either(_TIME)),
    **_counts("possible_missing_events_upper_bound possible_missing_uploaded_segments"),
    **_counts("possible_missing_sealed_rows possible_missing_wal_rows"),
    "index_families_used": {"type": "array", "items": TEXT},
}
_HIT = record(
    "source",
    offset=MINTED,
    score=either({"type": "number"}),
    sort=_LIST,
    fields={"type": "object"},
)
_HIT["properties"]["snippets"] = {"type": "object", "additionalProperties": TEXT}
RESULT = record(
    stream=TEXT,
    snapshot_end_offset=_ANY_OFFSET,
    took_ms=WHOLE,
    timed_out=FLAG,
    timeout_ms=WHOLE,
    coverage=record(**COVERAGE, **_counts(_COUNTS)),
    total=record(value=WHOLE, relation={"enum": ["eq", "gte"]}),
    hits={"type": "array", "items": _HIT},
    next_search_after=either(_LIST),
)
NAMES = f"timed_out timeout_ms took_ms total_relation coverage_complete {_COUNTS} index_families_used"
_FACTS: Node = {
    f"search-{name.replace('_', '-')}": {"description": "the same as in the body", "schema": TEXT}
    for name in NAMES.split()
}
_FAILED: Node = {"$ref": "#/components/schemas/Error"}
_ANSWERS: Node = {
    **answers("404 410 413 415 429", s200=answer("everything was looked at", RESULT, _FACTS)),
    "408": answer("what was found until the time was over", {"anyOf": [RESULT, _FAILED]}, _FACTS),
}
_POST = operation(
    "query_search",
    "Search the events of a stream, the newest included",
    _ANSWERS,
    body=content(
        closed_record(
            "q",
            q=TEXT,
            size=_SIZE,
            sort={"type": "array", "items": TEXT},
            search_after=either(_LIST),
            timeout_ms={"type": "number", "minimum": 0},
            track_total_hits=FLAG,
            snippets=FLAG,
        )
    ),
)
_GET = operation(
    "show_search",
    "The same, in query parameters",
    _ANSWERS,
    query("q", TEXT, "the query") | {"required": True},
    query("size", _SIZE, "hits of a page; 50 if left out"),
    query("sort", TEXT, "keys such as status:asc, with commas between them"),
    query("search_after", TEXT, "next_search_after of the page before, as JSON"),
    query("timeout_ms", {"type": "number", "minimum": 0}, f"time to search, {MAX_TIMEOUT_MS} at most"),
    query("track_total_hits", _WORD, "count all matches"),
    query("snippets", _WORD, "show where the text of a hit answers"),
)

SEARCH_PATHS: Node = {"/v1/stream/{name}/_search": {"parameters": [NAME], "get": _GET, "post": _POST}}
