"""What is told about the indexes of a stream, and the path of it."""

from __future__ import annotations

from headrace.server.routes.openapi.words import DIGITS, FLAG, TEXT, WHOLE, Node, either, record

TIME: Node = {"type": "string", "format": "date-time"}


def _list(items: Node) -> Node:
    return {"type": "array", "items": items}


_FACTS = {
    "lag_segments": WHOLE,
    "lag_ms": either(DIGITS),
    "bytes_at_rest": DIGITS,
    "object_count": WHOLE,
    "fully_indexed_uploaded_segments": FLAG,
    "updated_at": either(TIME),
}
_RUNS = {**_FACTS, **dict.fromkeys(("indexed_segment_count", "active_run_count", "retired_run_count"), WHOLE)}
_COUNTS = ("plan_generation", "covered_segment_count", "contiguous_covered_segment_count", "stale_segment_count")
INDEX_STATUS = record(
    stream=TEXT,
    profile=TEXT,
    desired_index_plan_generation=WHOLE,
    segments=record(total_count=WHOLE, uploaded_count=WHOLE),
    manifest=record(
        generation=WHOLE,
        uploaded_generation=WHOLE,
        last_uploaded_at=either(TIME),
        last_uploaded_etag=either(TEXT),
        last_uploaded_size_bytes=either(DIGITS),
    ),
    routing_key_index=record(configured=FLAG, **_RUNS),
    routing_key_lexicon=record(configured=FLAG, **_RUNS),
    exact_indexes=_list(record(name=TEXT, kind=TEXT, stale_configuration=FLAG, **_RUNS)),
    bundled_companions=record(object_count=WHOLE, bytes_at_rest=DIGITS, fully_indexed_uploaded_segments=FLAG),
    search_families=_list(
        record(
            family={"enum": ["exact", "col", "fts", "agg"]},
            fields=_list(TEXT),
            **dict.fromkeys(_COUNTS, WHOLE),
            **_FACTS,
        )
    ),
)
