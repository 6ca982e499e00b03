"""The profile ``otel-traces``: one canonical record per span, appended one by one or many in an OTLP export."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace import decoding
from headrace.profiles.definition import Definition
from headrace.profiles.hook import AppendHook, make_records, refusal
from headrace.profiles.otel_traces.normalise import SpanNormaliser
from headrace.profiles.otel_traces.rules import Rules, read_settings, rules_of
from headrace.profiles.otel_traces.span import DEFAULTS, SCHEMA
from headrace.schema import entries
from headrace.schema.canonical import same
from headrace.schema.entries import Failure
from headrace.schema.routing_key import MAX_FAILURES

_ENCODE = msgspec.json.Encoder(decimal_format="number").encode


class _Traced(msgspec.Struct, gc=False, rename="camel"):
    """What routes a span."""

    trace_id: str


_TRACED = decoding.make_decoder(list[_Traced])


class TracesHook(AppendHook):
    """Makes canonical spans, and routes them by their traces."""

    normalises = True
    suggests_keys = True

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._normaliser = SpanNormaliser(rules)

    def normalise(self, joined: bytes, terms: Any) -> bytes:
        """Entries as canonical spans."""
        values, failures = entries.read(joined)
        spans, misfits = make_records(values, self._normaliser.span)
        failures += misfits
        if failures:
            raise refusal(sorted(failures, key=lambda failure: failure.index)[:MAX_FAILURES])
        return _ENCODE(spans)[1:-1]

    def exported(self, spans: list[dict[str, Any]]) -> tuple[bytes, int, list[Failure]]:
        """The canonical ones of some spans, how many they are, and what is wrong with the others."""
        canonical, failures = make_records(spans, self._normaliser.span)
        return _ENCODE(canonical)[1:-1], len(canonical), failures

    def guarantees(self, schema: Any) -> bool:
        """Spans fit the schema that they come with."""
        return same(schema, SCHEMA)

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
