"""The canonical envelope of request logs: what becomes of every member, and what is found where."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.engine.log.append import PLAIN, Terms
from headrace.errors import BadRequest
from headrace.profiles import table
from headrace.profiles.definition import Profile
from headrace.profiles.evlog.envelope import KEYS, SCHEMA
from headrace.schema.document import Validator

NOW_US = 1_772_020_800_000_000
NOW = "2026-02-25T12:00:00Z"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def evlog(**settings: Any) -> Profile:
    found = table.read({"profile": {"kind": "evlog", **settings}})
    assert isinstance(found, Profile)
    return found


def envelope(event: Any, **settings: Any) -> dict[str, Any]:
    hook = evlog(**settings).hook
    assert hook is not None
    stored = hook.normalise(json.dumps(event).encode(), Terms(timestamp_us=NOW_US))
    assert Validator(SCHEMA).failures(stored) == []
    return dict(json.loads(stored))


def test_every_member_is_there_in_order() -> None:
    made = envelope({})
    assert tuple(made) == KEYS
    assert len(KEYS) == 20
    assert made["timestamp"] == NOW
    assert made["level"] == "info"
    assert made["redaction"] == {"keys": []}
    assert made["context"] == {}
    others = set(KEYS) - {"timestamp", "level", "redaction", "context"}
    assert all(made[name] is None for name in others)


def test_a_wide_event_becomes_an_envelope() -> None:
    made = envelope(
        {
            "timestamp": "2026-03-25T10:00:00.000Z",
            "status": 402,
            "requestId": "req_123",
            "traceContext": {"traceId": "trace_123", "spanId": "span_123"},
            "message": "Payment failed",
            "why": "Card declined by issuer",
            "password": "hunter2",
            "sessionToken": "tok_secret",
            "user": {"id": 123, "plan": "pro"},
            "sampling": {"kept": True},
        },
        redactKeys=["sessionToken"],
    )
    assert made["timestamp"] == "2026-03-25T10:00:00.000Z"
    assert made["level"] == "error"
    assert made["requestId"] == "req_123"
    assert made["traceId"] == "trace_123"
    assert made["spanId"] == "span_123"
    assert made["sampling"] == {"kept": True}
    assert made["redaction"] == {"keys": ["password", "sessionToken"]}
    assert made["context"] == {
        "traceContext": {"traceId": "trace_123", "spanId": "span_123"},
        "password": "[REDACTED]",
        "sessionToken": "[REDACTED]",
        "user": {"id": 123, "plan": "pro"},
    }


@pytest.mark.parametrize(
    ("event", "level"),
    [
        ({"level": "debug"}, "debug"),
        ({"level": " WARN "}, "warn"),
        ({"level": "Error", "status": 200}, "error"),
        ({"status": 200}, "info"),
        ({"status": 399}, "info"),
        ({"status": 400}, "warn"),
        ({"status": 499}, "warn"),
        ({"status": 500}, "error"),
        ({"status": "503"}, "error"),
        ({"why": "disk full"}, "error"),
        ({"fix": "free some"}, "error"),
        ({"link": "https://x", "status": 200}, "error"),
        ({"why": "  "}, "info"),
        ({"level": "fatal", "status": 404}, "warn"),
        ({"level": 3}, "info"),
    ],
)
def test_the_level_is_what_is_said_or_what_the_rest_says(event: Any, level: str) -> None:
    assert envelope(event)["level"] == level


@pytest.mark.parametrize(
    ("event", "member", "value", "context"),
    [
        ({"service": "  api "}, "service", "api", {}),
        ({"service": "   "}, "service", None, {}),
        ({"service": 5}, "service", None, {"service": 5}),
        ({"status": "200"}, "status", 200, {}),
        ({"status": 200.0}, "status", 200, {}),
        ({"status": "2.5"}, "status", None, {"status": "2.5"}),
        ({"status": True}, "status", None, {"status": True}),
        ({"duration": "12.5"}, "duration", 12.5, {}),
        ({"duration": 7}, "duration", 7, {}),
        ({"duration": "soon"}, "duration", None, {"duration": "soon"}),
        ({"sampling": "all"}, "sampling", None, {"sampling": "all"}),
        ({"level": "fatal"}, "level", "info", {"level": "fatal"}),
        ({"timestamp": 1_772_020_800_500}, "timestamp", "2026-02-25T12:00:00.500000Z", {}),
        ({"timestamp": [1]}, "timestamp", NOW, {"timestamp": [1]}),
        ({"redaction": {"keys": ["a"]}}, "redaction", {"keys": ["a"]}, {}),
        ({"redaction": "none"}, "redaction", {"keys": []}, {"redaction": "none"}),
        ({"context": "text"}, "context", {"context": "text"}, {"context": "text"}),
        ({"context": {"a": 1}, "b": 2}, "context", {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        ({"context": {"a": 1}, "a": 2}, "context", {"a": 1, "a_": 2}, {"a": 1, "a_": 2}),
    ],
)
def test_what_has_no_place_in_the_envelope_is_context(event: Any, member: str, value: Any, context: Any) -> None:
    made = envelope(event)
    assert made[member] == value
    assert made["context"] == context


def test_numbers_keep_all_their_digits() -> None:
    hook = evlog().hook
    assert hook is not None
    stored = hook.normalise(b'{"big":123456789012345678901234567890,"fine":0.12345678901234567890123}', PLAIN)
    assert b"123456789012345678901234567890" in stored
    assert b"0.12345678901234567890123" in stored


# -- redaction


def test_listed_keys_are_redacted_at_any_depth_and_in_any_case() -> None:
    made = envelope(
        {
            "Password": "a",
            "user": {"TOKEN": {"deep": "b"}, "tags": [{"cookie": "c"}, "cookie"]},
            "headers": {"Authorization": "d"},
            "apiKey": 5,
        }
    )
    redacted = {"Password", "apiKey", "headers.Authorization", "user.TOKEN", "user.tags.0.cookie"}
    assert set(made["redaction"]["keys"]) == redacted
    assert len(made["redaction"]["keys"]) == len(redacted)
    assert made["context"]["user"] == {"TOKEN": "[REDACTED]", "tags": [{"cookie": "[REDACTED]"}, "cookie"]}


def test_a_listed_key_that_is_there_twice_is_redacted_as_one() -> None:
    made = envelope({"password": "a", "context": {"password": "b"}})
    assert made["context"] == {"password": "[REDACTED]"}
    assert made["redaction"]["keys"] == ["password"]


def test_an_escaped_key_is_redacted_too() -> None:
    hook = evlog().hook
    assert hook is not None
    made = json.loads(hook.normalise(b'{"pass\\u0077ord":"x"}', PLAIN))
    assert made["context"] == {"password": "[REDACTED]"}


def test_no_identifier_is_taken_from_under_a_listed_key() -> None:
    made = envelope({"token": {"id": "secret"}}, correlation={"requestIdFields": ["token.id", "token"]})
    assert made["requestId"] is None


def test_sampling_is_redacted_too() -> None:
    made = envelope({"sampling": {"secret": 1}})
    assert made["sampling"] == {"secret": "[REDACTED]"}
    assert made["redaction"]["keys"] == ["sampling.secret"]


# -- correlation


@pytest.mark.parametrize(
    ("event", "settings", "ids"),
    [
        ({"requestId": "r"}, {}, ("r", None, None)),
        ({"context": {"requestId": "r"}}, {}, ("r", None, None)),
        ({"requestId": " "}, {}, (None, None, None)),
        ({"traceparent": PARENT}, {}, (None, TRACE, SPAN)),
        ({"traceContext": {"traceparent": PARENT}}, {}, (None, TRACE, SPAN)),
        ({"context": {"traceparent": PARENT}}, {}, (None, TRACE, SPAN)),
        ({"headers": {"traceparent": PARENT.upper()}}, {}, (None, TRACE, SPAN)),
        ({"traceparent": PARENT}, {"parseTraceparent": False}, (None, None, None)),
        ({"traceparent": f"00-{'0' * 32}-{SPAN}-01"}, {}, (None, None, None)),
        ({"traceparent": f"00-{TRACE}-{'0' * 16}-01"}, {}, (None, None, None)),
        ({"traceparent": f"ff-{TRACE}-{SPAN}-01"}, {}, (None, None, None)),
        ({"traceparent": f"{PARENT}-more"}, {}, (None, None, None)),
        ({"traceparent": f"01-{TRACE}-{SPAN}-01-more"}, {}, (None, TRACE, SPAN)),
        ({"traceId": "t", "traceContext": {"traceId": "u", "spanId": "s"}}, {}, (None, "t", "s")),
        ({"traceId": "t", "traceparent": PARENT}, {}, (None, "t", None)),
        ({"traceId": TRACE, "traceparent": PARENT}, {}, (None, TRACE, SPAN)),
        ({"http": {"rid": "r"}}, {"requestIdFields": ["http.rid"]}, ("r", None, None)),
        ({"requestId": "own"}, {"requestIdFields": ["http.rid"]}, ("own", None, None)),
        ({"otel": {"traceId": "t"}, "traceId": "u"}, {"traceContextFields": ["otel.traceId"]}, (None, "t", None)),
        ({"w3c": {"traceparent": PARENT}}, {"traceContextFields": ["w3c.traceparent"]}, (None, TRACE, SPAN)),
    ],
)
def test_identifiers_are_found_where_they_are_said(event: Any, settings: Any, ids: Any) -> None:
    made = envelope(event, correlation=settings)
    assert (made["requestId"], made["traceId"], made["spanId"]) == ids


def test_an_identifier_that_gives_way_is_kept() -> None:
    made = envelope({"otel": {"traceId": "t"}, "traceId": "u"}, correlation={"traceContextFields": ["otel.traceId"]})
    assert made["context"]["traceId"] == "u"


# -- keys and refusals


def test_events_are_routed_by_their_request_else_their_trace() -> None:
    hook = evlog().hook
    assert hook is not None and hook.suggests_keys
    events = [{"requestId": "r", "traceId": "t"}, {"traceId": "t"}, {}, {"requestId": "x" * 513}]
    stored = hook.normalise(b",".join(json.dumps(event).encode() for event in events), PLAIN)
    assert hook.routing_keys(stored) == ["r", "t", None, None]
    assert hook.routing_keys(bytes(bytearray(stored))) == ["r", "t", None, None]
    assert hook.normalise(stored, PLAIN) == stored
    assert hook.routing_keys(stored) == ["r", "t", None, None]


@pytest.mark.parametrize("body", [b"1", b'"text"', b"null", b"[1]", b'{},"no"'])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    hook = evlog().hook
    assert hook is not None
    with pytest.raises(BadRequest, match="is no object"):
        hook.normalise(body, PLAIN)


def test_a_repeated_key_is_refused() -> None:
    hook = evlog().hook
    assert hook is not None
    with pytest.raises(BadRequest, match="repeated key"):
        hook.normalise(b'{"a":1,"a":2}', PLAIN)


def test_it_vouches_for_its_own_schema_only() -> None:
    hook = evlog().hook
    assert hook is not None
    assert hook.guarantees(json.loads(json.dumps(SCHEMA)))
    assert not hook.guarantees({"type": "object"})
