"""The paths of the server itself: health, metrics and what it holds."""

from __future__ import annotations

from headrace.server.routes.openapi.words import TEXT, WHOLE, Node, answer, either, get_only, record

LEAF = {"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "string"}, {"type": "null"}]}
LEAVES: Node = {"type": "object", "additionalProperties": LEAF}
GROUPS: Node = {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": WHOLE}}
TOTALS: Node = {"type": "object", "additionalProperties": WHOLE}
TOP = record(
    **{
        name: {"type": "array", "maxItems": 5, "items": LEAVES}
        for name in ("local_storage_bytes", "pending_wal_bytes", "touch_journal_filter_bytes", "notifier_waiters")
    }
)
GATE = record(configured_limit=WHOLE, current_limit=WHOLE, active=WHOLE, queued=WHOLE)
WATER: Node = {"type": "object", "additionalProperties": {"type": "object"}}
PROCESS = {"process": LEAVES, "process_breakdown": LEAVES, "sqlite": LEAVES, "gc": LEAVES, "high_water": WATER}
ACCOUNT = record(
    held=TOTALS,
    held_bytes=WHOLE,
    resident_bytes=either(WHOLE),
    unaccounted_bytes=either(WHOLE),
    allocators=LEAVES,
    limits=LEAVES,
    reliefs=WHOLE,
    refused_requests=WHOLE,
)
MEMORY = record(
    **PROCESS,
    account=ACCOUNT,
    ts={"type": "string", "format": "date-time"},
    counters=TOTALS,
    runtime_counts=TOTALS,
    runtime_bytes=GROUPS,
    runtime_totals=TOTALS,
    top_streams=TOP,
)
DETAILS = record(
    auto_tune=LEAVES,
    configured_limits=record(
        **dict.fromkeys(("caches", "concurrency", "ingest", "search", "segmenting", "timeouts", "memory"), LEAVES)
    ),
    runtime=record(
        memory=record(
            **PROCESS,
            pressure_active={"type": "boolean"},
            pressure_limit_bytes=either(WHOLE),
            last_rss_bytes=either(WHOLE),
            max_rss_bytes=either(WHOLE),
            subsystems=GROUPS,
            totals=TOTALS,
        ),
        ingest_queue=record(requests=WHOLE, bytes=WHOLE, full={"type": "boolean"}),
        local_backpressure=LEAVES,
        uploads=record(pending_segments=WHOLE),
        concurrency=record(ingest=GATE, read=GATE, search=GATE, async_index=GATE),
        top_streams=TOP,
    ),
)
LIVE = answer("it runs", record(ok={"const": True}))
READY = record(ready={"const": True}, recovered=TEXT, serving=TEXT, writes=TEXT, pipeline=TEXT)
METRICS: Node = {
    "description": "numbers, in the format the Accept header asks for",
    "content": {"text/plain": {"schema": TEXT}, "application/openmetrics-text": {"schema": TEXT}},
}


SERVER_PATHS: Node = {
    "/health": get_only("check_health", "Whether the process runs", LIVE, keyed=False),
    "/health/live": get_only("check_live_health", "Whether the process runs", LIVE, keyed=False),
    "/health/ready": get_only(
        "check_ready_health", "Whether requests should come here", answer("it serves and writes", READY), keyed=False
    ),
    "/metrics": get_only("scrape_server", "Prometheus metrics", METRICS),
    "/openapi.json": get_only("describe_server", "This document", answer("the document", {"type": "object"})),
    "/v1/server/_details": get_only("detail_server", "Settings and state", answer("as it is now", DETAILS)),
    "/v1/server/_mem": get_only("measure_server", "Memory of the process", answer("as it is now", MEMORY)),
}
