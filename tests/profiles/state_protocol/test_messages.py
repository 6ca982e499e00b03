"""Messages of the state protocol: which are taken, and what is said of the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.profiles.state_protocol import messages
from headrace.schema.entries import Failure

INSERT = {"type": "todos", "key": "1", "value": {"a": 1}, "headers": {"operation": "insert"}}
UPDATE = {**INSERT, "old_value": {"a": 0}, "headers": {"operation": "update"}}
DELETE = {"type": "todos", "key": "1", "headers": {"operation": "delete"}}
RESET = {"headers": {"control": "reset"}}


def failures(*entries: Any) -> list[Failure]:
    return messages.failures(",".join(json.dumps(entry) for entry in entries).encode())


def change(**other: Any) -> dict[str, Any]:
    return {**INSERT, **other}


def headed(**headers: Any) -> dict[str, Any]:
    return {**INSERT, "headers": {"operation": "insert", **headers}}


@pytest.mark.parametrize(
    "message",
    [
        INSERT,
        UPDATE,
        DELETE,
        {**DELETE, "old_value": {"a": 1}, "value": None},
        change(value=None),
        change(value=[1, "any value"]),
        headed(txid="42"),
        headed(timestamp="2026-01-02T03:04:05.123456789+05:30"),
        RESET,
        {"headers": {"control": "snapshot-start", "offset": "-1"}},
        {"headers": {"control": "snapshot-end", "offset": "00000000000000000004000000"}},
    ],
)
def test_a_change_and_a_control_mark_are_taken(message: Any) -> None:
    assert failures(message) == []
    assert failures(RESET, message, INSERT) == []


@pytest.mark.parametrize(
    ("message", "pointer"),
    [
        (5, ""),
        ([], ""),
        ({}, "/headers"),
        ({"headers": []}, "/headers"),
        ({"headers": {}}, "/headers"),
        ({**INSERT, "headers": {"operation": "insert", "control": "reset"}}, "/headers"),
        (change(type="  "), "/type"),
        (change(type=5), "/type"),
        (change(key=""), "/key"),
        ({"type": "t", "value": 1, "headers": {"operation": "insert"}}, "/key"),
        (change(extra=1), "/extra"),
        (change(**{"a/b": 1}), "/a~1b"),
        (headed(extra=1), "/headers/extra"),
        (headed(operation="upsert"), "/headers/operation"),
        (headed(operation=None), "/headers/operation"),
        (headed(txid=" "), "/headers/txid"),
        (headed(txid=5), "/headers/txid"),
        (headed(timestamp="2026-01-02"), "/headers/timestamp"),
        (headed(timestamp="2026-02-30T00:00:00Z"), "/headers/timestamp"),
        (headed(timestamp=5), "/headers/timestamp"),
        ({"type": "t", "key": "k", "headers": {"operation": "insert"}}, "/value"),
        ({"type": "t", "key": "k", "old_value": {}, "headers": {"operation": "update"}}, "/value"),
        ({"headers": {"control": "stop"}}, "/headers/control"),
        ({"headers": {"control": "reset", "offset": "1"}}, "/headers/offset"),
        ({"headers": {"control": "reset", "offset": 5}}, "/headers/offset"),
        ({"headers": {"control": "reset", "txid": "5"}}, "/headers/txid"),
        ({**RESET, "type": "todos"}, "/type"),
    ],
)
def test_anything_else_is_refused_where_it_is_wrong(message: Any, pointer: str) -> None:
    assert [(one.index, one.pointer) for one in failures(INSERT, message, RESET, DELETE)] == [(1, pointer)]


def test_every_message_that_is_wrong_is_named() -> None:
    found = failures(change(type=""), INSERT, change(key=""))
    assert [(one.index, one.pointer) for one in found] == [(0, "/type"), (2, "/key")]
    refusal = messages.refusal(found, number=10)
    assert refusal.message.startswith("message 10 ")
    assert [one["index"] for one in refusal.facts["failures"]] == [10, 12]


def test_a_repeated_key_is_not_taken() -> None:
    body = (
        b'{"type":"a","type":"b","key":"k","value":1,"headers":{"operation":"insert"}},{"headers":{"control":"reset"}}'
    )
    assert [(one.index, one.reason) for one in messages.failures(body)] == [(0, "is a repeated key")]


def test_only_changes_are_changes() -> None:
    body = ",".join(json.dumps(one) for one in (INSERT, RESET, DELETE, {"legacy": True})).encode()
    found = messages.changes_of(body)
    assert [None if one is None else one.headers.operation for one in found] == ["insert", None, "delete", None]
    assert found[0] is not None and found[0].value == {"a": 1}
