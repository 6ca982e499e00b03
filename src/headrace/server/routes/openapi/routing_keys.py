"""The path of a stream's routing keys."""

from __future__ import annotations

from headrace.server.routes.openapi.streams import NAME
from headrace.server.routes.openapi.words import TEXT, WHOLE, Node, answer, answers, either, operation, query, record

_COVERAGE = (
    "indexed_segments scanned_uploaded_segments scanned_local_segments scanned_wal_rows"
    " possible_missing_uploaded_segments possible_missing_local_segments"
)
_TIMING = (
    "lexicon_run_get_ms lexicon_decode_ms lexicon_enumerate_ms lexicon_merge_ms fallback_scan_ms"
    " fallback_segment_get_ms fallback_wal_scan_ms lexicon_runs_loaded"
)
PAGE = record(
    stream=TEXT,
    source=record(kind={"const": "routing_key"}, name=TEXT),
    took_ms=WHOLE,
    coverage=record(complete={"type": "boolean"}, **dict.fromkeys(_COVERAGE.split(), WHOLE)),
    timing=record(**dict.fromkeys(_TIMING.split(), WHOLE)),
    keys={"type": "array", "items": TEXT, "uniqueItems": True, "maxItems": 500},
    next_after=either(TEXT),
)
_GET = operation(
    "list_keys",
    "The routing keys of a stream in the order of code points, the newest events included",
    answers("404 410 429", s200=answer("a page of keys", PAGE)),
    query("limit", {"type": "integer", "minimum": 1, "maximum": 500}, "keys of a page; 100 if left out"),
    query("after", TEXT, "next_after of the page before"),
)

KEY_PATHS: Node = {"/v1/stream/{name}/_routing_keys": {"parameters": [NAME], "get": _GET}}
