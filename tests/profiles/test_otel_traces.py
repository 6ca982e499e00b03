"""Canonical spans: what becomes of a span, what is derived from it, what is taken out, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.engine.log.append import PLAIN
from headrace.errors import BadRequest
from headrace.profiles import table
from headrace.profiles.definition import Profile
from headrace.profiles.otel_traces.profile import TracesHook
from headrace.profiles.otel_traces.span import KEYS, SCHEMA, SEARCH
from headrace.query import search_document
from headrace.schema.document import Validator, problems

TRACE, SPAN = "5b8efff798038103d269b633813fc60c", "086e83747d0e381e"
LEAST = {"traceId": TRACE, "spanId": SPAN, "name": "GET /checkout", "startUnixNano": "1772020800000000000"}


def hook(**settings: Any) -> TracesHook:
    found = table.read({"profile": {"kind": "otel-traces", **settings}})
    assert isinstance(found, Profile), found
    assert isinstance(found.hook, TracesHook)
    return found.hook


def span(settings: dict[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
    made = hook(**(settings or {}))
    stored = made.normalise(json.dumps({**LEAST, **more}).encode(), PLAIN)
    assert Validator(SCHEMA).failures(stored) == []
    assert made.normalise(stored, PLAIN) == stored
    return dict(json.loads(stored))


def test_what_comes_with_the_profile_can_be_used() -> None:
    assert problems(SCHEMA) == []
    assert not isinstance(search_document.parse_search_document(SEARCH, current_version=1), list)


def test_the_least_that_is_a_span() -> None:
    made = span()
    assert tuple(made) == KEYS
    assert made["schemaVersion"] == 1
    assert made["signal"] == "trace.span"
    assert made["identity"] == {"spanKey": f"{TRACE}:{SPAN}"}
    assert made["timestamp"] == "2026-02-25T12:00:00Z"
    assert made["endTimestamp"] == "2026-02-25T12:00:00Z"
    assert made["duration"] == 0
    assert made["kind"] == "unspecified"
    assert made["status"]["code"] == "unset"
    assert made["parentSpanId"] is None


def test_what_attributes_tell_is_told_by_members() -> None:
    made = span(
        kind="server",
        endUnixNano="1772020800123500000",
        status={"code": "error", "message": "failed"},
        resource={"attributes": {"service.name": "checkout", "deployment.environment.name": "prod"}},
        attributes={
            "request.id": "req_1",
            "http.request.method": "GET",
            "http.route": "/checkout",
            "http.response.status_code": 500,
            "db.system": "postgresql",
            "rpc.service": "Pay",
            "messaging.destination.name": "orders",
        },
        events=[
            {
                "timeUnixNano": "1772020800100000000",
                "name": "exception",
                "attributes": {"exception.type": "Error", "exception.message": "checkout failed"},
            }
        ],
    )
    assert made["service"] == "checkout"
    assert made["environment"] == "prod"
    assert made["requestId"] == "req_1"
    assert made["duration"] == 123.5
    assert made["http"]["method"] == "GET"
    assert made["http"]["route"] == "/checkout"
    assert made["http"]["statusCode"] == 500
    assert made["db"]["system"] == "postgresql"
    assert made["rpc"]["service"] == "Pay"
    assert made["messaging"]["destination"] == "orders"
    assert made["error"] == {"isError": True, "type": "Error", "message": "checkout failed", "stacktrace": None}
    assert made["eventNames"] == ["exception"]
    assert made["events"][0]["timestamp"] == "2026-02-25T12:00:00.100000Z"


def test_what_a_span_says_of_itself_comes_first_and_nothing_is_lost() -> None:
    made = span(service="mine", resource={"attributes": {"service.name": "theirs"}, "host": "h"}, colour="red", kind=9)
    assert made["service"] == "mine"
    assert made["resource"]["attributes"] == {"service.name": "theirs", "host": "h"}
    assert made["attributes"] == {"colour": "red", "kind": 9}
    odd = span(http={"method": 5, "proxy": "p"}, status="broken", attributes={"http.proxy": "q"})
    assert odd["attributes"] == {"http.proxy": "q", "http.method": 5, "http.proxy_": "p", "status": "broken"}


def test_members_stay_where_their_attributes_were_not_kept() -> None:
    store = {"rawResourceAttributes": False, "rawSpanAttributes": False, "rawEvents": False, "rawLinks": False}
    made = span(
        {"store": store},
        resource={"attributes": {"service.name": "checkout"}},
        attributes={"request.id": "r", "http.route": "/c"},
        events=[{"name": "exception", "attributes": {"exception.type": "Timeout", "exception.message": "told"}}],
        links=[{"traceId": TRACE, "spanId": SPAN}],
        status={"code": 2, "message": "failed"},
    )
    assert made["attributes"] == {}
    assert made["events"] == []
    assert made["links"] == []
    assert made["resource"]["attributes"] == {}
    assert made["service"] == "checkout"
    assert made["requestId"] == "r"
    assert made["http"]["route"] == "/c"
    assert made["error"] == {"isError": True, "type": "Timeout", "message": "told", "stacktrace": None}
    assert made["eventNames"] == ["exception"]


@pytest.mark.parametrize(
    ("given", "kind"), [(0, "unspecified"), (2, "server"), ("SPAN_KIND_CLIENT", "client"), ("Producer", "producer")]
)
def test_kinds_are_words(given: Any, kind: str) -> None:
    assert span(kind=given)["kind"] == kind


# -- what is taken out


def test_listed_keys_are_redacted_in_every_set_of_attributes() -> None:
    made = span(
        {"redactKeys": ["sessionToken"]},
        attributes={
            "authorization": "Bearer s",
            "http.request.header.authorization": "Bearer s",
            "http.response.header.set-cookie": ["s"],
            "http.request.header.x-api-key": "s",
            "nested": {"SESSIONTOKEN": "s", "list": [{"password": "s"}]},
        },
        resource={"attributes": {"secret": "s"}},
        instrumentationScope={"name": "lib", "attributes": {"api_key": "s"}},
        events=[{"name": "e", "attributes": {"token": "s"}}],
        links=[{"traceId": TRACE, "attributes": {"cookie": "s"}}],
        http={"token": "s"},
    )
    assert set(made["redaction"]["keys"]) == {
        "attributes.authorization",
        "attributes.http.request.header.authorization",
        "attributes.http.response.header.set-cookie",
        "attributes.http.request.header.x-api-key",
        "attributes.nested.SESSIONTOKEN",
        "attributes.nested.list.0.password",
        "attributes.http.token",
        "resource.attributes.secret",
        "instrumentationScope.attributes.api_key",
        "events.0.attributes.token",
        "links.0.attributes.cookie",
    }
    assert '"s"' not in json.dumps(made)


def test_statements_and_queries_are_dropped_unless_they_are_wanted() -> None:
    attributes = {
        "db.statement": "SELECT 1",
        "url.full": "https://x/y?z=1",
        "http.target": "/y?z=1",
        "url.query": "z=1",
    }
    made = span(attributes=attributes)
    assert made["db"]["statement"] is None
    assert made["http"]["url"] == "https://x/y"
    assert made["http"]["path"] == "/y"
    assert made["attributes"] == {
        "db.statement": "[REDACTED]",
        "url.full": "https://x/y",
        "http.target": "/y",
        "url.query": "[REDACTED]",
    }
    assert len(made["redaction"]["keys"]) == 4
    raw = span({"dbStatementMode": "raw", "urlMode": "raw"}, attributes=attributes)
    assert raw["db"]["statement"] == "SELECT 1"
    assert raw["http"]["url"] == "https://x/y?z=1"
    assert raw["attributes"] == attributes
    given = span(db={"statement": "SELECT 2"})
    assert given["db"]["statement"] is None
    assert given["redaction"]["keys"] == ["db.statement"]


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("https://ada:secret@x.yz/a", "https://x.yz/a"),
        ("https://ada@b@x.yz", "https://x.yz"),
        ("https://x.yz/a#access_token=secret", "https://x.yz/a"),
        ("https://x.yz/@ada", "https://x.yz/@ada"),
        ("mailto:ada@x.yz", "mailto:ada@x.yz"),
    ],
)
def test_addresses_tell_no_secrets(address: str, kept: str) -> None:
    made = span(attributes={"url.full": address})
    assert made["http"]["url"] == made["attributes"]["url.full"] == kept
    assert made["redaction"]["keys"] == ([] if kept == address else ["attributes.url.full"])


def test_what_is_too_much_is_cut_and_counted() -> None:
    limits = {"maxAttributeValueBytes": 8, "maxAttributesPerSpan": 2, "maxEventsPerSpan": 1, "maxLinksPerSpan": 1}
    made = span(
        {"attributeLimits": {**limits, "maxStatementBytes": 3}, "dbStatementMode": "raw"},
        attributes={"a": "é" * 10, "db.statement": "SELECT", "c": 3},
        events=[{"name": "one"}, {"name": "two"}],
        links=[{"traceId": TRACE}] * 3,
        droppedEventsCount=5,
    )
    assert made["attributes"] == {"a": "é" * 4, "db.statement": "SELECT"}
    assert made["db"]["statement"] == "SEL"
    assert [event["name"] for event in made["events"]] == ["one"]
    assert made["eventNames"] == ["one", "two"]
    assert made["dropped"] == {
        "attributes": 1, "events": 6, "links": 2, "resourceAttributes": 0, "scopeAttributes": 0, "values": 1,
    }  # fmt: skip


# -- what is refused


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"traceId": "0" * 32}, "/traceId"),
        ({"traceId": "xyz"}, "/traceId"),
        ({"spanId": None}, "/spanId"),
        ({"spanId": "0" * 16}, "/spanId"),
        ({"parentSpanId": "12"}, "/parentSpanId"),
        ({"startUnixNano": None}, "/startUnixNano"),
        ({"endUnixNano": "soon"}, "/endUnixNano"),
        ({"name": 5}, "/name"),
        ({"signal": "log"}, "/signal"),
        ({"events": [1]}, "/events"),
        ({"links": ["x"]}, "/links"),
        ({"identity": {"spanKey": "other"}}, "/identity"),
    ],
)
def test_what_is_no_span_is_refused_by_its_place(more: Any, pointer: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        hook().normalise(json.dumps({**LEAST, **more}).encode(), PLAIN)
    assert refusal.value.facts["failures"][0]["pointer"] == pointer


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"dbStatementMode": "redact_literals"}, "/profile/dbStatementMode"),
        ({"urlMode": 5}, "/profile/urlMode"),
        ({"store": {"rawLinks": "no"}}, "/profile/store/rawLinks"),
        ({"store": {"raw": True}}, "/profile/store/raw"),
        ({"attributeLimits": {"maxLinksPerSpan": 0}}, "/profile/attributeLimits/maxLinksPerSpan"),
        ({"otlpLimits": {"maxSpansPerRequest": 1.5}}, "/profile/otlpLimits/maxSpansPerRequest"),
        ({"redactKeys": ["name"]}, "/profile/redactKeys/0"),
        ({"observability": {"request": {"eventsStream": ""}}}, "/profile/observability/request/eventsStream"),
        ({"extra": 1}, "/profile/extra"),
    ],
)
def test_settings_that_nobody_knows_are_refused(settings: Any, place: str) -> None:
    found = table.read({"profile": {"kind": "otel-traces", **settings}})
    assert isinstance(found, list)
    assert [problem.pointer for problem in found] == [place]


def test_settings_are_shown_as_they_were_given() -> None:
    settings = {
        "redactKeys": ["sessiontoken"],
        "requestIdAttributes": ["request.id"],
        "attributeLimits": {"maxAttributesPerSpan": 32},
        "store": {"rawLinks": False},
        "dbStatementMode": "raw",
        "otlpLimits": {"maxSpansPerRequest": 100},
        "observability": {"request": {"eventsStream": "app-events"}},
    }
    found = table.read({"profile": {"kind": "otel-traces", **settings}})
    assert isinstance(found, Profile)
    assert found.settings == settings
    assert table.load(found.text).settings == settings


def test_spans_are_routed_by_their_trace() -> None:
    made = hook()
    stored = made.normalise(json.dumps(LEAST).encode(), PLAIN)
    assert made.routing_keys(stored) == [TRACE]
