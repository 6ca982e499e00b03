"""The profile ``otel-traces``: one canonical record per span, appended one by one or many in an OTLP export."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace import decoding
from headrace.profiles.definition import Definition
from headrace.profiles.hook import RecordHook
from headrace.profiles.otel_traces.normalise import SpanNormaliser
from headrace.profiles.otel_traces.rules import Rules, read_settings, rules_of
from headrace.profiles.otel_traces.span import DEFAULTS, SCHEMA


class _Traced(msgspec.Struct, gc=False, rename="camel"):
    """What routes a span."""

    trace_id: str


_TRACED = decoding.make_decoder(list[_Traced])


class TracesHook(RecordHook):
    """Makes canonical spans, and routes them by their traces."""

    schema = SCHEMA

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._normaliser = SpanNormaliser(rules)

    def make_record(self, raw_record: dict[str, Any]) -> dict[str, Any]:
        """The canonical span of a span."""
        return self._normaliser.span(raw_record)

    def routing_keys(self, joined: bytes) -> list[str | None]:
        """The trace of each span."""
        return [span.trace_id for span in _TRACED.decode(b"[" + joined + b"]")]


#: Where exports are sent to.
EXPORT = "_otlp/v1/traces"

OTEL_TRACES = Definition(
    name="otel-traces",
    read=read_settings,
    hook=lambda settings: TracesHook(rules_of(settings)),
    defaults=DEFAULTS,
    needs_schema=True,
    routes=frozenset({EXPORT}),
    signal="traces",
)
