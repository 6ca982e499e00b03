"""The laws of normalisation: once is enough, no value is lost, and what stands under a listed key is never stored."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.log.append import Terms
from headrace.profiles import table
from headrace.profiles.definition import Profile
from headrace.profiles.evlog.envelope import KEYS, SCHEMA
from headrace.profiles.evlog.fast_path import FastPath
from headrace.profiles.evlog.normalise import Correlation, EventNormaliser
from headrace.profiles.evlog.profile import REDACTED_KEYS
from headrace.profiles.hook import AppendHook
from headrace.profiles.otel_traces.rules import REDACTED_KEYS as SPAN_REDACTED
from headrace.profiles.otel_traces.span import SCHEMA as SPAN_SCHEMA
from headrace.profiles.redaction import is_among
from headrace.schema import entries
from headrace.schema.document import Validator

TERMS = Terms(timestamp_us=1_772_020_800_000_000)
SECRET = "s3cr3t-"
LISTED = (*REDACTED_KEYS, "ssn")
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

encoded = msgspec.json.Encoder(decimal_format="number").encode

SETTINGS: list[dict[str, Any]] = [
    {},
    {"redactKeys": ["SSN"]},
    {"correlation": {"requestIdFields": ["rid", "http.rid", "context.rid", "token.rid"]}},
    {"correlation": {"traceContextFields": ["otel.traceId", "otel.spanId", "context.traceId"]}},
    {"correlation": {"requestIdFields": ["context.requestId"], "parseTraceparent": False}},
]

_PARENT = f"00-{TRACE}-{SPAN}-01"
_texts = st.sampled_from(["", " ", "x", " padded ", "200", "12.5", "WARN", "fatal", "é\u2003", "a.b", _PARENT])
_numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_scalars = st.none() | st.booleans() | _numbers | _texts | st.text(max_size=5)
_OTHER = ["rid", "http", "otel", "headers", "traceparent", "traceContext", "user", "requestId_", "a.b", ""]
_names = st.sampled_from(KEYS) | st.sampled_from(_OTHER) | st.text(max_size=4)


def _cased(name: str) -> st.SearchStrategy[str]:
    return st.sampled_from([name, name.upper(), name.capitalize()])


_secrets = st.integers(0, 9).map(lambda n: f"{SECRET}{n}") | st.lists(
    st.dictionaries(st.sampled_from(["x", "rid"]), st.just(f"{SECRET}x"), max_size=2), max_size=2
)
_hidden = st.dictionaries(st.sampled_from(LISTED).flatmap(_cased), _secrets, max_size=2)


def _object(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(st.dictionaries(_names, values, max_size=5), _hidden).map(lambda two: {**two[0], **two[1]})


_values = st.recursive(_scalars, lambda inner: st.lists(inner, max_size=3) | _object(inner), max_leaves=8)
#: Some have a context whose names are those of other members too, listed ones among them.
events = st.tuples(_object(_values), st.none() | _object(_values)).map(
    lambda two: two[0] if two[1] is None else {**two[0], "context": {**two[1], **dict(list(two[0].items())[-2:])}}
)


def hook_of(kind: str, **settings: Any) -> AppendHook:
    found = table.read({"profile": {"kind": kind, **settings}})
    assert isinstance(found, Profile)
    assert found.hook is not None
    return found.hook


def spelled(event: Any) -> bytes:
    return json.dumps(event, ensure_ascii=False).encode()


def leaves(value: Any, listed: frozenset[str] = frozenset()) -> Iterator[Any]:
    """The scalars of a value that stand under no listed key."""
    if isinstance(value, dict):
        for name, member in value.items():
            if name.lower() not in listed:
                yield from leaves(member, listed)
    elif isinstance(value, list):
        for member in value:
            yield from leaves(member, listed)
    else:
        yield value


def known(value: Any) -> Any:
    """What counts of a scalar: neither blanks around it, nor its case, nor whether a number is spelled as a text."""
    text = str(value).strip().lower()
    try:
        number = float(text)
    except ValueError:
        return text
    return text if math.isnan(number) else number  # no number is equal to that one


@pytest.mark.parametrize("settings", SETTINGS)
@given(event=events)
def test_an_envelope_is_its_own_envelope(settings: dict[str, Any], event: dict[str, Any]) -> None:
    hook = hook_of("evlog", **settings)
    stored = hook.normalise(spelled(event), TERMS)
    assert hook.normalise(stored, Terms(timestamp_us=1)) == stored
    assert Validator(SCHEMA).failures(stored) == []


@pytest.mark.parametrize("settings", SETTINGS)
@given(event=events)
def test_no_value_of_an_event_is_lost(settings: dict[str, Any], event: dict[str, Any]) -> None:
    stored = json.loads(hook_of("evlog", **settings).normalise(spelled(event), TERMS))
    listed = frozenset(REDACTED_KEYS) | ({"ssn"} if "redactKeys" in settings else set())
    given = Counter(known(leaf) for leaf in leaves(event, listed) if leaf is not None and str(leaf).strip())
    kept = Counter(known(leaf) for leaf in leaves(stored))
    dated = event.get("timestamp")
    if isinstance(dated, int) and not isinstance(dated, bool):
        given[known(dated)] -= 1  # a number of milliseconds becomes the moment that it is
    assert not given - kept


@pytest.mark.parametrize("settings", SETTINGS)
@given(event=events)
def test_what_stands_under_a_listed_key_is_never_stored(settings: dict[str, Any], event: dict[str, Any]) -> None:
    settings = {**settings, "redactKeys": ["Ssn"]}
    stored = hook_of("evlog", **settings).normalise(spelled(event), TERMS)
    assert SECRET.encode() not in stored
    envelope = json.loads(stored)
    redacted = {*_redacted(envelope["context"]), *_redacted({"sampling": envelope["sampling"]})}
    assert redacted <= set(envelope["redaction"]["keys"])


def _redacted(value: Any, where: str = "") -> Iterator[str]:
    if isinstance(value, dict | list):
        for name, member in value.items() if isinstance(value, dict) else enumerate(value):
            if member == "[REDACTED]":
                yield f"{where}{name}"
            yield from _redacted(member, f"{where}{name}.")


@given(batch=st.lists(events, min_size=1, max_size=4))
def test_many_events_become_what_each_of_them_does(batch: list[dict[str, Any]]) -> None:
    hook = hook_of("evlog")
    alone = [hook.normalise(spelled(event), TERMS) for event in batch]
    together = hook.normalise(b",".join(map(spelled, batch)), TERMS)
    assert together == b",".join(alone)
    keys = [hook.routing_keys(one)[0] for one in alone]
    assert hook.routing_keys(together) == keys


#: What applications log most of the time: the same members in the same order, some of them only now and then.
_logged = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(0, 10**20),
        "timestamp": st.sampled_from(["2026-02-25T12:00:00Z", "", " x"]),
        "level": st.sampled_from(["info", "WARN", "error", "loud"]),
        "service": st.sampled_from(["api", "ap i", " api", "api\u2003", "é", 'a"b', None]),
        "requestId": st.text(max_size=3),
        "status": st.sampled_from([200, 404, 503, "200"]),
        "duration": st.integers(0, 9) | st.floats(0, 1e6),
        "why": st.just("disk full"),
        "sampling": st.just({"kept": True, "secret": SECRET}),
        "user": st.fixed_dictionaries({"plan": _scalars}, optional={"Token": _secrets, "tags": st.lists(_scalars)}),
        "cart": st.lists(st.fixed_dictionaries({"item": _scalars}, optional={"cookie": _secrets}), max_size=2),
        "headers": st.fixed_dictionaries({}, optional={"authorization": _secrets, "traceparent": _texts}),
        "context": st.fixed_dictionaries({}, optional={"password": _secrets, "id": _scalars}),
        "password": _secrets,
    },
)


#: One with all of these members.
_WHOLE: dict[str, Any] = {
    **dict.fromkeys(("id", "timestamp", "level", "service", "requestId", "why"), "x"),
    "status": 200,
    "duration": 1.5,
    "sampling": {"kept": True, "secret": SECRET},
    "user": {"plan": None, "Token": [{"x": SECRET, "rid": SECRET}], "tags": [1]},
    "cart": [{"item": 1, "cookie": [{"x": SECRET, "rid": SECRET}]}],
    "headers": {"authorization": [{"x": SECRET, "rid": SECRET}], "traceparent": _PARENT},
    "context": {"password": [{"x": SECRET, "rid": SECRET}], "id": 1},
    "password": [{"x": SECRET, "rid": SECRET}],
}


@pytest.mark.parametrize("spell", [spelled, msgspec.json.encode])
@given(known=st.lists(_logged | events, max_size=3), batch=st.lists(_logged | events, min_size=1, max_size=4))
def test_an_event_seen_at_a_glance_becomes_what_it_becomes_the_long_way(
    spell: Callable[[Any], bytes], known: list[dict[str, Any]], batch: list[dict[str, Any]]
) -> None:
    normaliser = EventNormaliser(is_among(REDACTED_KEYS), Correlation())
    body = b"[" + b",".join(map(spell, batch)) + b"]"
    slow = [normaliser.envelope(event, "now") for event in entries.read(body[1:-1])[0]]
    glance = FastPath(normaliser)
    glance.learn([*known, *entries.read(body[1:-1])[0]])
    quick = glance.envelopes(body, "now")
    assert quick is None or encoded(quick) == encoded(slow)


@given(batch=st.lists(_logged, min_size=1, max_size=4))
def test_an_event_that_was_seen_before_is_seen_at_a_glance(batch: list[dict[str, Any]]) -> None:
    normaliser = EventNormaliser(is_among(REDACTED_KEYS), Correlation())
    usual = {"service": "api", "timestamp": "now", "requestId": "r", "status": 1}
    body = msgspec.json.encode([_WHOLE, *({**event, **usual} for event in batch)], order="sorted")
    glance = FastPath(normaliser)
    glance.learn(msgspec.json.decode(body))
    quick = glance.envelopes(body, "now")
    assert quick is not None
    assert SECRET.encode() not in encoded(quick)
    assert encoded(quick) == encoded([normaliser.envelope(event, "now") for event in msgspec.json.decode(body)])


@given(first=events, batch=st.lists(_logged, min_size=1, max_size=3))
def test_a_hook_makes_the_same_of_events_however_often_it_saw_them(first: Any, batch: list[dict[str, Any]]) -> None:
    hook, joined = hook_of("evlog"), b",".join(map(msgspec.json.encode, batch))
    fresh = hook.normalise(joined, TERMS)
    hook.normalise(spelled(first), TERMS)
    for _ in range(4):
        again = hook.normalise(joined, TERMS)
        assert again == fresh
        assert hook.routing_keys(again) == hook_of("evlog").routing_keys(fresh)
    assert hook.normalise(fresh, Terms(timestamp_us=1)) == fresh


# -- metrics


_words = st.text(min_size=1, max_size=4).filter(str.strip)
_attributes = st.dictionaries(st.text(max_size=4), st.booleans() | st.integers() | st.text(max_size=4), max_size=4)
_amounts = st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6)
intervals = st.fixed_dictionaries(
    {"metric": _words, "unit": _words, "windowStart": st.integers(0, 10**12), "count": st.integers(0, 50)},
    optional={
        "stream": _words,
        "instance": st.text(max_size=3),
        "attributes": _attributes,
        "min": _amounts,
        "max": _amounts,
        "p95": _amounts,
        "buckets": st.dictionaries(st.integers(0, 40).map(lambda e: str(2**e)), st.integers(0, 9), max_size=4),
        "temporality": _words,
    },
).flatmap(lambda made: st.tuples(st.just(made), st.integers(0, 10**5), _amounts))


@given(drawn=intervals)
def test_an_interval_is_its_own_interval_and_loses_nothing(drawn: Any) -> None:
    given, lasting, total = drawn
    given = {**given, "windowEnd": given["windowStart"] + lasting, "sum": total}
    hook = hook_of("metrics")
    stored = hook.normalise(spelled(given), TERMS)
    assert hook.normalise(stored, TERMS) == stored
    made = json.loads(stored)
    kept = Counter(known(leaf) for leaf in leaves(made))
    skipped = {"min", "max"} if not given["count"] else set()
    lost = {name: value for name, value in given.items() if name not in skipped}
    lost["buckets"] = {name: count for name, count in given.get("buckets", {}).items() if count}
    assert not Counter(known(leaf) for leaf in leaves(lost) if str(leaf).strip()) - kept
    assert set(made["attributes"]) == set(given.get("attributes", {}))


# -- spans


_SPANNED = ["http", "db", "error", "status", "resource", "instrumentationScope", "events", "links", "dropped"]
_span_names = st.sampled_from([*_SPANNED, "service", "requestId", "eventNames", "redaction", "traceState", "kind", "x"])
_attribute_names = st.sampled_from(
    ["attributes", "name", "method", "code", "service.name", "request.id", "a.token", "y"]
)


def _span_object(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    plain = st.dictionaries(_attribute_names | st.text(max_size=3), values, max_size=4)
    dotted = st.sampled_from(["http.request.header.authorization", "db.password", "Cookie"])
    hidden = st.dictionaries(dotted, _secrets, max_size=2)
    return st.tuples(plain, hidden).map(
        lambda two: {**{name: value for name, value in two[0].items() if name != "a.token"}, **two[1]}
    )


_span_values = st.recursive(_scalars, lambda inner: st.lists(inner, max_size=2) | _span_object(inner), max_leaves=6)
_objects = st.lists(_span_object(_span_values), max_size=2)
spans = st.tuples(
    st.dictionaries(_span_names, _span_values, max_size=4),
    _span_object(_span_values),
    st.fixed_dictionaries({}, optional={"events": _objects, "links": _objects}),
).map(
    lambda drawn: {
        **drawn[0],
        "attributes": drawn[1],
        "events": [],
        "links": [],
        **drawn[2],
        "traceId": TRACE,
        "spanId": SPAN,
        "name": "n",
        "startUnixNano": "1",
        "endUnixNano": "5",
    }
)


@pytest.mark.parametrize("settings", [{}, {"dbStatementMode": "raw", "urlMode": "raw"}])
@given(span=spans)
def test_a_span_is_its_own_span_and_leaks_nothing(settings: dict[str, Any], span: dict[str, Any]) -> None:
    hook = hook_of("otel-traces", **settings)
    stored = hook.normalise(spelled(span), TERMS)
    assert hook.normalise(stored, TERMS) == stored
    assert Validator(SPAN_SCHEMA).failures(stored) == []
    assert SECRET.encode() not in stored


@given(span=spans)
def test_no_value_of_a_span_is_lost(span: dict[str, Any]) -> None:
    hook = hook_of("otel-traces", dbStatementMode="raw", urlMode="raw")
    made = json.loads(hook.normalise(spelled(span), TERMS))

    def hidden(name: str) -> bool:
        return name.lower().rpartition(".")[2] in SPAN_REDACTED

    given = Counter(known(leaf) for leaf in _shown(span, hidden) if leaf is not None and str(leaf).strip())
    kept = Counter(known(leaf) for leaf in leaves(made))
    assert not given - kept


def _shown(value: Any, hidden: Callable[[str], bool]) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, member in value.items():
            if not hidden(name):
                yield from _shown(member, hidden)
    elif isinstance(value, list):
        for member in value:
            yield from _shown(member, hidden)
    else:
        yield value
