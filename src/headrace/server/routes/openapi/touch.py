"""The paths of a stream's touches."""

from __future__ import annotations

from headrace.server.routes.openapi.streams import NAME
from headrace.server.routes.openapi.words import (
    FLAG,
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

_WORD: Node = {"type": "string", "pattern": r"\S"}
_HEX: Node = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
_CURSOR: Node = {"type": "string", "pattern": "^[0-9a-f]{16}:[0-9]{1,19}$"}
_NUMBER: Node = {"type": "number", "minimum": 0}
_SEQ: Node = {"type": "string", "pattern": "^-?[0-9]+$"}
_MODE: Node = {"enum": ["idle", "fine", "restricted", "coarseOnly"]}
_NAMED: Node = {"type": "string", "pattern": r"^[^\x00]*[^\x00\s][^\x00]*$"}

_TEMPLATE = closed_record(
    "entity fields",
    entity=_NAMED,
    fields={
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": closed_record("name", name=_NAMED, encoding={"description": "string, int64, …; others are denied"}),
    },
)
_TEMPLATES: Node = {"type": "array", "items": _TEMPLATE, "minItems": 1, "maxItems": 256}
_IDS: Node = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}

_WHOLES = (
    "generation bucketMs filterSize k pendingKeys journalKeys overflowBuckets activeWaiters lastFlushAtMs"
    " activeTemplates lagSourceOffsets hotFineKeys hotTemplates hotFineKeysActive hotFineKeysGrace hotTemplatesActive"
    " hotTemplatesGrace fineWaitersActive coarseWaitersActive broadFineWaitersActive scanRowsTotal scanBatchesTotal"
    " scannedButEmitted0BatchesTotal processedThroughDeltaTotal touchesEmittedTotal touchesTableTotal"
    " touchesTemplateTotal fineTouchesDroppedDueToBudgetTotal fineTouchesSkippedColdTemplateTotal"
    " fineTouchesSkippedColdKeyTotal fineTouchesSkippedTemplateBucketTotal waitTouchedTotal waitTimeoutTotal"
    " waitStaleTotal journalFlushesTotal journalNotifyWakeupsTotal journalTimeoutsFiredTotal"
)
_NUMBERS = (
    "coalesceMs flushIntervalMsMaxLast10s flushIntervalMsP95Last10s coarseIntervalMs touchCoalesceWindowMs"
    " journalNotifyWakeMsTotal journalNotifyWakeMsMax journalTimeoutSweepMsTotal"
)
META = record(
    mode={"const": "memory"},
    cursor=_CURSOR,
    epoch=_HEX,
    bucketMaxSourceOffsetSeq=_SEQ,
    settled=FLAG,
    touchMode=_MODE,
    walScannedThrough=either(TEXT),
    hotKeyFilteringEnabled=FLAG,
    hotTemplateFilteringEnabled=FLAG,
    **dict.fromkeys(_WHOLES.split(), WHOLE),
    **dict.fromkeys(_NUMBERS.split(), _NUMBER),
)
_ACTIVATED = record(
    activated={
        "type": "array",
        "items": record(templateId=_HEX, state={"const": "active"}, activeFromTouchOffset=_CURSOR),
    },
    denied={"type": "array", "items": record(templateId=_HEX, reason={"enum": ["rate_limited", "invalid"]})},
    limits=record(maxActiveTemplatesPerStream=WHOLE, maxActiveTemplatesPerEntity=WHOLE),
)
_COMMON = {
    "cursor": _CURSOR,
    "effectiveWaitKind": {"enum": ["fineKey", "templateKey", "tableKey"]},
    "bucketMaxSourceOffsetSeq": _SEQ,
    "flushAtMs": WHOLE,
    "bucketStartMs": WHOLE,
}
_STALE = record(
    stale={"const": True},
    epoch=_HEX,
    generation=WHOLE,
    error=record(code={"const": "stale"}, message=TEXT),
    **_COMMON,
)
_WAITED: Node = {"oneOf": [record(touched=FLAG, **_COMMON), _STALE]}

_GET = operation(
    "get_touch",
    "The cursor of a stream's touches, and how they stand",
    answers("404 410 429", s200=answer("how things stand", META)),
    query("settle", {"const": "flush"}, "wait until everything that was appended is told"),
    query("timeoutMs", {"type": "number"}, "how long to wait for that; 30 s if left out, two minutes at most"),
)
_ACTIVATE = operation(
    "activate_templates",
    "Tell rows apart by some of their fields from now on",
    answers("404 410 413 415 429", s200=answer("what is active now, and what is not", _ACTIVATED)),
    body=content(closed_record("templates", templates=_TEMPLATES, inactivityTtlMs=_NUMBER)),
)
_WAIT = operation(
    "wait_touch",
    "Wait until one of some keys is touched",
    answers("404 410 413 415 429", s200=answer("whether one was, or that this cannot be told any more", _WAITED)),
    body=content(
        closed_record(
            "cursor",
            cursor={"anyOf": [_CURSOR, {"const": "now"}]},
            keys={"type": "array", "items": _WORD, "maxItems": 1024},
            keyIds={"type": "array", "items": _IDS, "maxItems": 1024},
            timeoutMs={"type": "number"},
            interestMode={"enum": ["fine", "coarse"]},
            exact=FLAG,
            templateIdsUsed={"type": "array", "items": _HEX, "maxItems": 1024},
            declareTemplates=_TEMPLATES,
            inactivityTtlMs=_NUMBER,
        )
    ),
)

TOUCH_PATHS: Node = {
    "/v1/stream/{name}/touch/meta": {"parameters": [NAME], "get": _GET},
    "/v1/stream/{name}/touch/templates/activate": {"parameters": [NAME], "post": _ACTIVATE},
    "/v1/stream/{name}/touch/wait": {"parameters": [NAME], "post": _WAIT},
}
