"""``evlog``: one wide event per request, in a canonical envelope."""

from __future__ import annotations

from headrace.profiles.definition import Definition, Settings, read_counterpart, read_words
from headrace.profiles.evlog.envelope import DEFAULTS, KEYS
from headrace.profiles.evlog.hook import EvlogHook
from headrace.profiles.evlog.normalise import Correlation
from headrace.query.document_reader import Part

#: What is redacted in any case.
REDACTED_KEYS = ("password", "token", "secret", "authorization", "cookie", "apikey")

_ENDS = ("traceId", "spanId", "traceparent")
_ENVELOPE = frozenset(name.lower() for name in KEYS)


def _read(part: Part) -> Settings:
    if not part.knows(("redactKeys", "correlation", "observability")):
        return {}
    settings: Settings = {}
    if part["redactKeys"].is_given:
        settings["redactKeys"] = read_words(part["redactKeys"], lowercase=True, refused=_ENVELOPE)
    if part["correlation"].is_given:
        settings["correlation"] = _correlation(part["correlation"])
    if part["observability"].is_given:
        settings["observability"] = read_counterpart(part["observability"], "tracesStream")
    return settings


def _correlation(part: Part) -> Settings:
    if not part.knows(("requestIdFields", "traceContextFields", "parseTraceparent")):
        return {}
    settings: Settings = {name: read_words(part[name]) for name in part.value if name.endswith("Fields")}
    for element in part["traceContextFields"].elements() if part["traceContextFields"].is_given else ():
        if isinstance(element.value, str) and element.value.strip().rpartition(".")[2] not in _ENDS:
            element.note(f"must end in one of {', '.join(_ENDS)}")
    if part["parseTraceparent"].is_given:
        settings["parseTraceparent"] = part["parseTraceparent"].flag()
    return settings


def _hook(settings: Settings) -> EvlogHook:
    correlation = settings.get("correlation", {})
    return EvlogHook(
        (*REDACTED_KEYS, *settings.get("redactKeys", ())),
        Correlation(
            tuple(correlation.get("requestIdFields", ())),
            tuple(correlation.get("traceContextFields", ())),
            traceparent=correlation.get("parseTraceparent", True),
        ),
    )


EVLOG = Definition(name="evlog", read=_read, hook=_hook, defaults=DEFAULTS, needs_schema=True, signal="events")
