from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.descriptor.diff import fingerprint, same_definition
from schema.descriptor.payloads import derivation, event, filtered, nodes, op, table

ONE = [
    event(schema={"a": "str", "b": {"type": "f64", "default": 1}}, keep_events_for="24h"),
    derivation("D", "Txn", filtered("b>1"), {"op": "select", "fields": ["a", "b"]}),
    table(upstream="D", key=["a"], c=op("count", window="60m"), q=op("top_k", field="a")),
]
OTHER: list[dict[str, Any]] = [
    {
        "agg": {"q": op("top_k", k=10.0, field="a"), "c": op("count", window="1h")},
        "upstream": "D",
        "key": "a",
        "name": "User",
        "kind": "table",
    },
    {
        "kind": "derivation",
        "name": "D",
        "upstream": "Txn",
        "ops": [filtered("(Txn.b > 1)"), {"op": "select", "fields": ["b", "a"]}],
    },
    {
        "keep_events_for_ms": 86_400_000,
        "schema": {"b": {"default": 1.0, "required": True, "type": "f64"}, "a": {"type": "str"}},
        "name": "Txn",
        "kind": "event",
        "dedupe_key": None,
    },
]


def test_order_spelling_and_defaults_do_not_matter() -> None:
    assert fingerprint(nodes(*ONE)) == fingerprint(nodes(*OTHER))


@pytest.mark.parametrize(
    "change",
    [
        {"keep_events_for": "25h"},
        {"schema": {"a": "str", "b": {"type": "f64", "default": 2}}},
        {"schema": {"a": "str", "b": "f64"}},
        {"cold_after": "1d"},
    ],
)
def test_what_is_said_matters(change: dict[str, Any]) -> None:
    assert fingerprint(nodes({**ONE[0], **change}, *ONE[1:])) != fingerprint(nodes(*ONE))


def test_true_is_not_one_and_a_whole_number_needs_no_fraction() -> None:
    assert not same_definition({"a": True}, {"a": 1})
    assert same_definition({"a": 1.0, "b": [2.0]}, {"b": [2], "a": 1})
    assert not same_definition({"a": 1.5}, {"a": 1})
