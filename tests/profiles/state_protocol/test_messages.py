"""Messages of the state protocol: which are taken, why others are refused, and what a change touches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.profiles.state_protocol import keys, messages
from headrace.profiles.state_protocol.keys import Field, Template
from headrace.profiles.state_protocol.messages import Change, ChangeHeaders, NoBefore, touched_keys
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
    assert refusal.message.startswith("message 11 ")
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


BY_USER = Template("todos", (Field("user", "string"),))
T = BY_USER.id
OPERATIONS = (messages.INSERT, messages.UPDATE, messages.DELETE)


def row_change(operation: Any, before: Any = None, after: Any = None) -> Change:
    return Change("todos", "1", ChangeHeaders(operation), after, before)


def watch(user: str) -> int:
    return keys.watch_key(T, [user])


def member(user: str) -> int:
    return keys.membership_key(T, [user])


def field(name: str, user: str) -> int:
    return keys.field_key(T, name, [user])


def test_an_insert_touches_where_the_row_comes_to() -> None:
    assert touched_keys(BY_USER, row_change("insert", after={"user": "a", "n": 1}), "coarse") == {
        watch("a"),
        member("a"),
    }


def test_a_delete_touches_where_the_row_was() -> None:
    assert touched_keys(BY_USER, row_change("delete", before={"user": "a"}), "coarse") == {watch("a"), member("a")}


def test_an_update_that_moves_a_row_touches_both_places() -> None:
    moved = row_change("update", {"user": "a", "n": 1}, {"user": "b", "n": 2})
    assert touched_keys(BY_USER, moved, "coarse") == {watch("a"), member("a"), watch("b"), member("b")}


def test_an_update_in_place_touches_the_fields_that_changed() -> None:
    before = {"user": "a", "same": 1, "n": 1, "gone": "x", "deep": {"x": 1}, "list": [1], "flag": 1, "null": None}
    after = {"user": "a", "same": 1.0, "n": 2, "new": True, "deep": {"x": 2}, "list": [2], "flag": True, "null": 0}
    changed = {field(name, "a") for name in ("n", "gone", "new", "flag", "null")}
    assert touched_keys(BY_USER, row_change("update", before, after), "coarse") == {watch("a"), *changed}


def test_an_update_that_changes_nothing_touches_the_row() -> None:
    assert touched_keys(BY_USER, row_change("update", {"user": "a"}, {"user": "a"}), "coarse") == {watch("a")}


@pytest.mark.parametrize("value", [None, [], {}])
def test_a_row_that_the_template_does_not_pick_is_not_told(value: Any) -> None:
    was = {"user": "a"}
    now = {"user": value}
    assert touched_keys(BY_USER, row_change("insert", after=now), "coarse") == set()
    assert touched_keys(BY_USER, row_change("delete", before=now), "coarse") == set()
    assert touched_keys(BY_USER, row_change("update", was, now), "coarse") == {watch("a"), member("a")}
    assert touched_keys(BY_USER, row_change("update", now, was), "coarse") == {watch("a"), member("a")}
    assert touched_keys(BY_USER, row_change("update", now, now), "coarse") == set()


@pytest.mark.parametrize("before", [None, "text", [], {}, {"n": 1}])
def test_an_update_without_the_row_before_may_touch_anything(before: Any) -> None:
    assert touched_keys(BY_USER, row_change("update", before, {"user": "a"}), "coarse") is None
    assert touched_keys(BY_USER, row_change("delete", before), "coarse") is None
    assert touched_keys(BY_USER, row_change("delete", before), "skipBefore") is None


def test_an_update_without_the_row_before_touches_all_of_the_row_after_where_that_is_the_rule() -> None:
    after = {"user": "a", "n": 1, "none": None, "deep": {}}
    told = touched_keys(BY_USER, row_change("update", None, after), "skipBefore")
    assert told == {watch("a"), member("a"), field("n", "a"), field("none", "a")}
    assert touched_keys(BY_USER, row_change("update", None, {"user": None}), "skipBefore") == set()


def test_an_update_without_the_row_before_is_an_error_where_that_is_the_rule() -> None:
    with pytest.raises(NoBefore):
        touched_keys(BY_USER, row_change("update", None, {"user": "a"}), "error")
    assert touched_keys(BY_USER, row_change("update", {"user": "a"}, {"user": "a"}), "error") == {watch("a")}
    assert touched_keys(BY_USER, row_change("delete", None), "error") is None
    assert touched_keys(BY_USER, row_change("insert", after={"user": "a"}), "error") == {watch("a"), member("a")}
