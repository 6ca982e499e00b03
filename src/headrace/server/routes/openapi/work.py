"""The paths of work."""

from __future__ import annotations

from headrace.engine.derive.lease_scheduler import MAX_UNITS
from headrace.reduce.work_units import JOBS
from headrace.schema.trial import MAX_NAMED, MAX_TEXT
from headrace.server.routes.openapi.words import (
    COUNTER,
    FLAG,
    OBJECTS,
    TEXT,
    WHOLE,
    Node,
    answer,
    answers,
    closed_record,
    content,
    either,
    get_only,
    operation,
    path,
    plain,
    record,
)

ID = path("id", {"type": "string", "minLength": 1}, "the lease")
NAME: Node = {"type": "string", "minLength": 1, "maxLength": 1024}
MOMENT: Node = {"type": "string", "format": "date-time"}
JOB: Node = {"enum": list(JOBS)}
SHORT: Node = {"type": "string", "maxLength": MAX_TEXT}
COUNTED: Node = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
RANGE = {"first_seq": WHOLE, "count": WHOLE}

HASHES: Node = {"type": "object", "additionalProperties": TEXT}
PART = closed_record("bytes sha256", bytes=WHOLE, sha256=TEXT)
PAIR: Node = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
COMPANION = closed_record(
    "name first_seq count level through_version fields rollups keys columns postings panes times segments words",
    name=TEXT,
    **RANGE,
    level=WHOLE,
    through_version=WHOLE,
    fields=HASHES,
    rollups=HASHES,
    keys=FLAG,
    columns=PART,
    postings=either(PART),
    panes=either(PART),
    times=either(PAIR),
    segments=WHOLE,
    words={"type": "object", "additionalProperties": PAIR},
)
STATE = closed_record(
    "table name first_seq count level lives rows bytes sha256",
    table=TEXT,
    name=TEXT,
    **RANGE,
    level=WHOLE,
    lives=HASHES,
    rows=WHOLE,
    bytes=WHOLE,
    sha256=TEXT,
)
UNIT: Node = record(unit=TEXT, job=JOB, stream=TEXT, incarnation=TEXT, **RANGE, level=WHOLE, out=TEXT)
UNIT["properties"] |= {
    "segments": {"type": "array", "items": record(key=TEXT, **RANGE, bytes=WHOLE, sha256=TEXT)},
    "inputs": {"type": "array", "items": COMPANION},
    "through_version": WHOLE,
    "fields": HASHES,
    "rollups": HASHES,
    "verification": TEXT,
    "table": TEXT,
    "lives": HASHES,
    "states": {"type": "array", "items": STATE},
    "history": TEXT,
    "known": {},
    "registry": {},
    "defined": {},
    "question": {},
}
LASTS = {"id": TEXT, "expires_at": MOMENT, "ttl_ms": WHOLE}
LEASED = record(
    lease=either(record(token=WHOLE, **LASTS)), store=TEXT, paused=FLAG, units={"type": "array", "items": UNIT}
)
MISFIT = closed_record(
    "seq cause pointer reason",
    seq=COUNTED,
    cause={"enum": ["lens", "schema"]},
    pointer=SHORT,
    reason=SHORT,
)
FINDINGS = closed_record(
    events=COUNTED,
    lens=COUNTED,
    schema=COUNTED,
    misfits={"type": "array", "items": MISFIT, "maxItems": MAX_NAMED},
)
SEGMENT = closed_record(
    "name first_seq count bytes payload_bytes before_bytes total_bytes min_us max_us sha256",
    name=TEXT,
    **RANGE,
    bytes=WHOLE,
    payload_bytes=WHOLE,
    before_bytes=WHOLE,
    total_bytes=WHOLE,
    min_us={"type": "integer"},
    max_us={"type": "integer"},
    sha256=TEXT,
)
RESULT = closed_record(
    "unit",
    unit=NAME,
    companion=either(COMPANION),
    state=either(STATE),
    segment=either(SEGMENT),
    findings=either(FINDINGS),
    rows=either(OBJECTS),
    gone=FLAG | {"default": False},
    error=either({"type": "string", "maxLength": 4096}),
)
SETTLED: Node = record(unit=TEXT, outcome=TEXT)
SETTLED["properties"]["reason"] = TEXT
#: Jobs on tables and entity types are named with these.
FAILURE = {
    "stream": either(TEXT), "job": TEXT, **RANGE, "attempts": WHOLE, "last_attempt_at": MOMENT, "reason": TEXT
}  # fmt: skip
OVERVIEW = record(
    paused=FLAG,
    counts=record(due=WHOLE, leases=WHOLE, units=WHOLE, resting=WHOLE, parked=WHOLE, workers=WHOLE),
    complete=FLAG,
    due={"type": "array", "items": TEXT},
    streams={"type": "array", "items": record(stream=TEXT, done=WHOLE, total=WHOLE)},
    leases={
        "type": "array",
        "items": record(
            id=TEXT,
            worker=TEXT,
            granted_at=MOMENT,
            expires_at=MOMENT,
            done=WHOLE,
            total=WHOLE,
            units={
                "type": "array",
                "items": record(unit=TEXT, job=JOB, stream=either(TEXT), **RANGE, outcome=either(TEXT)),
            },
        ),
    },
    resting={"type": "array", "items": record(retry_at=MOMENT, **FAILURE)},
    parked={"type": "array", "items": record(**FAILURE)},
    workers={
        "type": "array",
        "items": record(
            worker=TEXT,
            local=FLAG,
            alive=FLAG,
            host=either(TEXT),
            master=either(TEXT),
            first_seen_at=MOMENT,
            last_seen_at=MOMENT,
            done=WHOLE,
            failed=WHOLE,
            lost=WHOLE,
            released=WHOLE,
        ),
    },
)


def _asking(name: str, text: str, failures: str, body: Node | None, **successes: Node) -> Node:
    found = answers(f"{failures} 413 415 429" if body else f"{failures} 429", keyed=True, **successes)
    return {"post": operation(name, text, found, body=content(body) if body else None)}


PAUSED = answer("so it is", record(paused=FLAG))
ONE = "/v1/work/leases/{id}"
WORK_PATHS: Node = {
    "/v1/work": get_only("get_work", "What is to be derived, and who does it", answer("as it is now", OVERVIEW)),
    "/v1/work/lease": _asking(
        "lease_work",
        "Take work",
        "",
        closed_record(
            "worker",
            worker=NAME,
            host=either(NAME),
            master=either(NAME),
            limit={"type": "integer", "minimum": 1, "maximum": MAX_UNITS, "default": MAX_UNITS},
            jobs=either({"type": "array", "items": JOB, "minItems": 1}),
        ),
        s200=answer("units, or none where nothing is due", LEASED),
    ),
    f"{ONE}/heartbeat": _asking(
        "keep_work",
        "Say that a worker is at it",
        "409",
        closed_record("token", token=COUNTER, done=COUNTER, total=COUNTER),
        s200=answer("the lease goes on", record(lease=record(**LASTS), dropped={"type": "array", "items": TEXT})),
    ),
    f"{ONE}/commit": _asking(
        "commit_work",
        "Report results; repeated, they change nothing",
        "409",
        closed_record(
            "token results", token=COUNTER, results={"type": "array", "items": RESULT, "maxItems": MAX_UNITS}
        ),
        s200=answer("how each unit ended", record(lease=record(**LASTS), results={"type": "array", "items": SETTLED})),
    ),
    f"{ONE}/release": _asking(
        "release_work", "Give work back", "409", closed_record("token", token=COUNTER), s204=plain("it is free")
    ),
    "/v1/work/pause": _asking("pause_work", "Give out no work", "", None, s200=PAUSED),
    "/v1/work/resume": _asking("resume_work", "Give out work again", "", None, s200=PAUSED),
    "/v1/work/run": _asking(
        "run_work",
        "Let a stream be due, however little there is to do",
        "404 410",
        closed_record("stream", stream=NAME, seal=FLAG),
        s200=answer("whether anything is derived from it", record(stream=TEXT, due=FLAG)),
    ),
}
for _where, _verbs in WORK_PATHS.items():
    if "{id}" in _where:
        _verbs["parameters"] = [ID]
