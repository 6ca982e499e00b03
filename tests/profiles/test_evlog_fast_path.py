"""Events seen at a glance: which are, which are not, and that it learns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.profiles.evlog.fast_path import MAX_DEPTH, MAX_NAMES, MAX_WAITING, FastPath
from headrace.profiles.evlog.normalise import Correlation, EventNormaliser
from headrace.profiles.redaction import is_among

KNOWN: dict[str, Any] = {"a": 1, "service": "api", "status": 200, "b": {"c": [{"d": 1.5}]}, "headers": {"token": "x"}}


@pytest.fixture
def glance() -> FastPath:
    made = FastPath(EventNormaliser(is_among(["token"]), Correlation()))
    made.learn([json.loads(json.dumps(KNOWN))])
    return made


def body(*events: Any) -> bytes:
    return json.dumps(events, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "event",
    [
        KNOWN,
        {},
        {"a": None, "b": "text"},
        {"b": {"c": [1, "x", None, {}]}},
        {"service": "é"},
        {"service": 'a"b'},
        {"a": " ", "service": "a b", "b": {"c": [{"d": " x "}]}},
        {"level": "loud"},
    ],
)
def test_events_of_known_names_are_seen(glance: FastPath, event: Any) -> None:
    made = glance.envelopes(body(event, KNOWN), "now")
    assert made is not None
    assert [one.timestamp for one in made] == ["now", "now"]


def test_blanks_between_tokens_hide_nothing(glance: FastPath) -> None:
    assert glance.envelopes(json.dumps([KNOWN], indent=1).encode(), "now") is not None


def test_what_is_listed_is_redacted(glance: FastPath) -> None:
    made = glance.envelopes(body(KNOWN, {"a": 1}), "now")
    assert made is not None
    assert [one.redaction.keys for one in made] == [["headers.token"], []]


@pytest.mark.parametrize(
    "given",
    [
        b'[{"a":1,"a":2}]',
        b'[{"b":{"c":1,"c":2}}]',
        b'[{"z":1}]',
        b'[{"b":{"z":1}}]',
        b'[{"b":{"c":[{"z":1}]}}]',
        b'[{"a":{"z":1}}]',
        b'[{"service":"api","a":1}]',
        b'[{"service":" api"}]',
        b'[{"service":"api "}]',
        b'[{"service":"api ","status":1}]',
        '[{"service":"api\u2003"}]'.encode(),
        b'[{"service":"api\\t"}]',
        b'[{"service":""}]',
        b'[{"service":null}]',
        b'[{"service":5}]',
        b'[{"status":"200"}]',
        b'[{"status":200.0}]',
        b'[{"a":0.12345678901234567890123}]',
        b'[{"a":1.50}]',
        b"[1]",
    ],
)
def test_what_must_be_looked_at_is_not_seen(glance: FastPath, given: bytes) -> None:
    assert glance.envelopes(given, "now") is None


def test_what_was_missed_is_learnt(glance: FastPath) -> None:
    stranger = {"a": 1, "z": {"y": 2}}
    assert glance.envelopes(body(stranger), "now") is None
    assert glance.wants_examples
    glance.learn([stranger])
    assert not glance.wants_examples
    assert glance.envelopes(body(stranger, {"a": 1, "service": "x", "b": {}}), "now") is not None


def test_bodies_are_let_pass_after_misses_and_seen_again_later(glance: FastPath) -> None:
    for _ in range(500):
        assert glance.envelopes(b'[{"z":1}]', "now") is None
    seen = [glance.envelopes(body(KNOWN), "now") is not None for _ in range(MAX_WAITING + 2)]
    assert seen[-2:] == [True, True]


@pytest.mark.parametrize(
    "event",
    [
        {f"n{n}": 1 for n in range(MAX_NAMES + 1)},
        {"a": [{f"n{n}": {"x": 1}} for n in range(MAX_NAMES // 2 + 1)]},
        json.loads('{"a":' * (MAX_DEPTH + 1) + "{}" + "}" * (MAX_DEPTH + 1)),
        {'a"b': 1},
    ],
)
def test_what_no_structure_can_say_is_not_learnt_and_costs_nothing_that_was(glance: FastPath, event: Any) -> None:
    glance.learn([event])
    assert glance.envelopes(body(KNOWN), "now") is not None
    assert glance.envelopes(body(event), "now") is None


def test_nothing_is_seen_where_fields_are_named_to_look_into() -> None:
    glance = FastPath(EventNormaliser(is_among([]), Correlation(("rid",))))
    assert glance.envelopes(body(KNOWN), "now") is None
    assert not glance.wants_examples
