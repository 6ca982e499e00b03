"""OTLP exports in both encodings: the same spans come out, limits hold, and nonsense is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadRequest
from headrace.profiles.otel_traces import otlp
from headrace.profiles.otel_traces.protobuf import partial_success
from headrace.profiles.otel_traces.rules import OtlpLimits
from support.otlp_exports import CHILD, ROOT, TRACE, attributes, block, export, json_export, json_span, number, span

LIMITS = OtlpLimits()
GIVEN: dict[str, Any] = {
    "text": "é",
    "flag": True,
    "whole": -5,
    "large": 2**62,
    "float": 1.5,
    "list": ["a", 1, [True]],
    "object": {"inner": {"deep": 1.25}},
}


def from_json(body: Any, limits: OtlpLimits = LIMITS) -> otlp.Export:
    return otlp.from_json(json.dumps(body).encode(), limits)


def test_both_encodings_say_the_same() -> None:
    (binary,) = otlp.from_protobuf(export(span(given=GIVEN)), LIMITS).spans
    (spelled,) = from_json(json_export(json_span(attributes=GIVEN, status={"code": 0, "message": ""}))).spans
    assert binary["attributes"] == spelled["attributes"] == GIVEN
    for name in ("traceId", "spanId", "name", "kind", "startUnixNano", "endUnixNano", "status"):
        assert binary[name] == spelled[name], name
    assert binary["resource"]["attributes"] == spelled["resource"]["attributes"] == {"service.name": "checkout"}
    assert binary["instrumentationScope"]["name"] == spelled["instrumentationScope"]["name"] == "tests"


def test_every_member_of_a_span_is_read() -> None:
    one = span(
        span=CHILD,
        parent=ROOT,
        events=[("exception", {"exception.message": "m"})],
        status=(2, "failed"),
    )
    link = block(1, bytes.fromhex(TRACE)) + block(2, bytes.fromhex(ROOT)) + block(3, "a=b") + attributes(4, {"l": 1})
    more = block(3, "k=v") + number(10, 1) + number(12, 2) + number(14, 3) + block(13, link)
    (found,) = otlp.from_protobuf(export(one + more), LIMITS).spans
    assert found["parentSpanId"] == ROOT
    assert found["traceState"] == "k=v"
    assert found["traceFlags"] == 257
    assert found["status"] == {"message": "failed", "code": 2}
    assert found["events"][0]["name"] == "exception"
    assert found["events"][0]["attributes"] == {"exception.message": "m"}
    assert found["links"] == [{"attributes": {"l": 1}, "traceId": TRACE, "spanId": ROOT, "traceState": "a=b"}]
    assert found["droppedAttributesCount"] == 1


def test_what_json_cannot_say_is_said_in_words() -> None:
    values = {"nan": float("nan"), "inf": float("inf"), "bytes": b"\x00\xff"}
    (found,) = otlp.from_protobuf(export(span(given=values)), LIMITS).spans
    assert found["attributes"] == {"nan": "NaN", "inf": "Infinity", "bytes": "AP8="}


def test_unknown_fields_are_passed_over() -> None:
    (found,) = otlp.from_protobuf(export(span() + number(200, 5) + block(201, "new")), LIMITS).spans
    assert found["traceId"] == TRACE


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_values_are_bounded(encoding: str) -> None:
    limits = OtlpLimits(max_any_value_depth=2, max_array_values_per_any_value=2, max_kv_list_values_per_any_value=1)
    given: dict[str, Any] = {"deep": [[["x"]]], "long": [1, 2, 3], "wide": {"a": 1, "b": 2}}
    if encoding == "protobuf":
        (found,) = otlp.from_protobuf(export(span(given=given)), limits).spans
    else:
        (found,) = from_json(json_export(json_span(attributes=given)), limits).spans
    assert found["attributes"] == {"deep": ["[NESTED]"], "long": [1, 2], "wide": {"a": 1}}
    assert found["dropped"] == {"values": 3}


def test_spans_beyond_the_limit_are_counted() -> None:
    limits = OtlpLimits(max_spans_per_request=2)
    found = otlp.from_protobuf(export(*[span()] * 5), limits)
    assert len(found.spans) == 2
    assert found.beyond == 3
    found = from_json(json_export(*[json_span()] * 5), limits)
    assert len(found.spans) == 2
    assert found.beyond == 3


@pytest.mark.parametrize(
    "limits", [OtlpLimits(max_resource_spans_per_request=1), OtlpLimits(max_scope_spans_per_request=1)]
)
def test_resources_and_scopes_beyond_the_limit_are_refused(limits: OtlpLimits) -> None:
    with pytest.raises(BadRequest, match="at most 1"):
        otlp.from_protobuf(export(span()) * 2, limits)
    twice = json_export(json_span())
    twice["resourceSpans"] *= 2
    with pytest.raises(BadRequest, match="at most 1"):
        from_json(twice, limits)


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a\x05ab",
        b"\x0a",
        b"\xff" * 11,
        b"\x03",
        b"\x00\x00",
        block(1, number(2, 1)),
        block(1, block(1, b"\x0a\x02\xff\xff")),
    ],
)
def test_nonsense_is_no_export(body: bytes) -> None:
    with pytest.raises(BadRequest, match="no OTLP export"):
        otlp.from_protobuf(body, LIMITS)


@pytest.mark.parametrize(
    "body",
    [
        b"nonsense",
        b"[]",
        b'{"resourceSpans":5}',
        b'{"resourceSpans":[1]}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"attributes":[5]}]}]}]}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"attributes":[{"key":"a","value":{"intValue":"x"}}]}]}]}]}',
    ],
)
def test_json_that_is_no_export_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        otlp.from_json(body, LIMITS)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        otlp.from_protobuf(body, LIMITS)
    except BadRequest as refusal:
        assert refusal.facts["field"] == "body"


def test_partial_success_is_spelled_as_protobuf_has_it() -> None:
    assert partial_success(300, "no") == b"\x0a\x07\x08\xac\x02\x12\x02no"
