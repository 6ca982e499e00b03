"""The paths of streams."""

from __future__ import annotations

from headrace.server.routes.openapi.words import (
    AGE,
    COUNTER,
    DIGITS,
    DURATION,
    MINTED,
    MOMENT,
    OFFSET,
    TEXT,
    TRUE,
    WHOLE,
    Node,
    answer,
    answers,
    closed_record,
    content,
    either,
    header,
    leading_to,
    operation,
    path,
    plain,
    query,
    record,
)

NAME = path(
    "name",
    {"type": "string", "minLength": 1, "maxLength": 512, "pattern": r"^[^\x00-\x1f\x7f]+$"},
    "the stream's name; its slashes may be written as they are",
)
NEXT = {"Stream-Next-Offset": {"description": "where to read on", "schema": MINTED}}
END = {"Stream-End-Offset": {"description": "the end of the stream", "schema": MINTED}}
CLOSED = {"Stream-Closed": {"description": "the stream is closed_record, and this is its end", "schema": TRUE}}
EXPIRES = {"Stream-Expires-At": {"description": "when the stream is gone", "schema": TEXT}}
TTL = {"Stream-TTL": {"description": "the sliding window in seconds", "schema": WHOLE}}
UP_TO_DATE = {"Stream-Up-To-Date": {"description": "the answer reaches the end", "schema": TRUE}}
CURSOR = {"Stream-Cursor": {"description": "to be sent back with the next live read", "schema": TEXT}}
LOCATION = {"Location": {"description": "the stream's address", "schema": TEXT}}
ETAG = {"ETag": {"description": "names this slice", "schema": TEXT}}
PRODUCED = {
    "Producer-Epoch": {"description": "the producer's epoch", "schema": COUNTER},
    "Producer-Seq": {"description": "the highest sequence number accepted", "schema": COUNTER},
}
SLICE = {**NEXT, **END, **UP_TO_DATE, **CLOSED, **EXPIRES}

CLOSING = header("Stream-Closed", TEXT, "`true` closes the stream; anything else is as if absent")
KEYING = header("Stream-Key", {"type": "string", "maxLength": 1024}, "the key of the entries")
PAYLOAD: Node = {
    "description": "entries; the body may be encoded as gzip or zstd",
    "required": False,
    "content": {
        "application/json": {"schema": {}},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        "text/plain": {"schema": TEXT},
    },
}

CREATED = plain("it was created", {**NEXT, **CLOSED, **EXPIRES, **LOCATION})
CREATE = operation(
    "create_stream",
    "Create a stream, or confirm that it exists as described",
    answers(
        "404 409 410 413 415 429",
        s200=CREATED | {"description": "it exists just so"},
        s201=leading_to(
            "append_stream read_stream head_stream delete_stream retain_stream read_key_of_stream"
            " show_schema change_schema detail_stream",
            "name",
            CREATED,
        ),
    ),
    header("Stream-TTL", {"type": "string", "pattern": f"^(0|[1-9][0-9]*|{DURATION})$"}, "sliding lifetime"),
    header("Stream-Expires-At", MOMENT, "fixed end of life, instead of a sliding one"),
    header("Stream-Retention-Age", AGE, "how long entries are kept"),
    header("Stream-Retention-Bytes", DIGITS, "how much is kept"),
    header("Stream-Forked-From", TEXT, "the path of the stream to fork"),
    header("Stream-Fork-Offset", TEXT, "where the fork leaves its source; its tail by default"),
    header("Stream-Fork-Sub-Offset", DIGITS, "bytes or messages past the fork offset"),
    CLOSING,
    KEYING,
    body=PAYLOAD,
)
APPEND = operation(
    "append_stream",
    "Append entries, close the stream, or both at once",
    answers(
        "404 409 410 412 413 415 429",
        s200=plain("the producer's entries are on disk", {**NEXT, **CLOSED, **PRODUCED}),
        s204=plain("the entries are on disk", {**NEXT, **CLOSED, **PRODUCED}),
    ),
    header("Stream-Timestamp", MOMENT, "append time; raised to that of the last entry"),
    header("Stream-Seq", {"type": "string", "minLength": 1, "maxLength": 1024}, "must grow, byte by byte"),
    header("Producer-Id", {"type": "string", "minLength": 1, "maxLength": 1024}, "goes with the next two"),
    header("Producer-Epoch", COUNTER, "a higher epoch takes over from a lower one"),
    header("Producer-Seq", COUNTER, "grows by one with each request"),
    header("If-Match", TEXT, "append only while this offset is the tail; `*` always matches"),
    CLOSING,
    KEYING,
    body=PAYLOAD,
)
WAIT: Node = {"type": "string", "pattern": f"^((0|[1-9][0-9]{{0,17}})|{DURATION})$"}
READING = (
    query("offset", {"type": "string", "pattern": f"^(-1|now|{OFFSET})$"}, "read after it; live reads need one"),
    query("since", MOMENT, "without an offset: read from this moment on"),
    query("format", {"type": "string", "enum": ["raw", "json"]}, "json: an array; raw: entries joined"),
    query(
        "live", {"type": "string", "enum": ["", "false", "0", "true", "1", "long-poll", "sse"]}, "wait for new entries"
    ),
    query("timeout", WAIT, "longest wait of a long-poll"),
    query("schema_version", {"type": "string", "pattern": "^[1-9][0-9]{0,8}$"}, "the shape of events; the newest"),
    query("filter", TEXT, "only events that match; for streams with search fields, and not with live=sse"),
    query("cursor", TEXT, "Stream-Cursor of the last live answer"),
    header("If-None-Match", TEXT, "ETag of a slice the caller has"),
)
SCANNED: Node = {
    f"Stream-Filter-{name}": {"description": text, "schema": TEXT}
    for name, text in {
        "Scan-Limit-Reached": "true: a filtered read ended since it had looked at enough",
        "Scan-Limit-Bytes": "how much that is",
        "Scanned-Bytes": "what was looked at",
        "Timed-Out": "true: a filtered read ended since its time was over",
    }.items()
}
READ_ANSWERS = answers(
    "404 409 410 429",
    s200={
        "description": "entries as the stream's own type, or events with live=sse",
        "headers": {**SLICE, **CURSOR, **ETAG, **SCANNED},
        "content": {"*/*": {"schema": {}}},
    },
    s204=plain("no entries came in time, or the stream is closed", {**SLICE, **CURSOR}),
    s304=plain("the caller has this slice", {**SLICE, **ETAG}),
)
READ = operation(
    "read_stream",
    "Read entries: once, when they come, or as they come",
    READ_ANSWERS,
    *READING,
    query("key", TEXT, "only entries of this key"),
)
READ_KEY = operation("read_key_of_stream", "Read the entries of one key", READ_ANSWERS, *READING)
HEAD = operation(
    "head_stream",
    "Where the stream stands; not an access",
    {
        status: {**answer, "content": {}}
        for status, answer in answers(
            "404 410", s200=plain("it exists", {**NEXT, **END, **CLOSED, **TTL, **EXPIRES})
        ).items()
    },
)
DELETE = operation(
    "delete_stream",
    "Delete the stream; its forks stay readable",
    answers("404 410 413 429", s204=plain("it is gone")),
)
RETAIN = operation(
    "retain_stream",
    "Change how much the stream keeps; what is left out is no limit",
    answers("404 410 413 415 429", s204=plain("the rule is set")),
    body=content(closed_record(age=either(AGE), bytes=either({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}))),
)
DESCRIPTOR = record(
    name=TEXT,
    content_type=TEXT,
    created_at={"type": "string", "format": "date-time"},
    expires_at=either({"type": "string", "format": "date-time"}),
    epoch=WHOLE,
    next_offset=DIGITS,
    sealed_through={"type": "string", "pattern": "^(-1|[0-9]+)$"},
    uploaded_through={"type": "string", "pattern": "^(-1|[0-9]+)$"},
    closed={"type": "boolean"},
    profile=TEXT,
)
LIST = operation(
    "list_streams",
    "Streams in name order, a page at a time",
    answers(
        s200=answer(
            "a page",
            {"type": "array", "maxItems": 1000, "items": {"$ref": "#/components/schemas/Stream"}},
            {"Link": {"description": 'the next page, as rel="next"', "schema": TEXT}},
        )
    ),
    query("prefix", TEXT, "only names that begin so"),
    query("after", TEXT, "only names that come later"),
    query("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, "length of the page"),
)

STREAM_PATHS: Node = {
    "/v1/streams": {"get": LIST},
    "/v1/stream/{name}": {
        "parameters": [NAME],
        "put": CREATE,
        "post": APPEND,
        "get": READ,
        "head": HEAD,
        "delete": DELETE,
    },
    "/v1/stream/{name}/pk/{key}": {
        "parameters": [NAME, path("key", {"type": "string", "minLength": 1}, "the key")],
        "get": READ_KEY,
    },
    "/v1/stream/{name}/_retention": {"parameters": [NAME], "post": RETAIN},
}
