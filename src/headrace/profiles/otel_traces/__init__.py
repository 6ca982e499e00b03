"""``otel-traces``: one canonical record per span, however it was exported."""

from __future__ import annotations

from headrace.profiles.definition import Definition
from headrace.profiles.otel_traces.hook import TracesHook
from headrace.profiles.otel_traces.rules import read, rules_of
from headrace.profiles.otel_traces.span import DEFAULTS

#: Where exports are sent to.
EXPORT = "_otlp/v1/traces"

OTEL_TRACES = Definition(
    name="otel-traces",
    read=read,
    hook=lambda settings: TracesHook(rules_of(settings)),
    defaults=DEFAULTS,
    needs_schema=True,
    routes=frozenset({EXPORT}),
    signal="traces",
)
