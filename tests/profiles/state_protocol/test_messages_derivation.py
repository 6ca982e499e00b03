"""What a change touches, for every kind of change and every rule for what it leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.profiles.state_protocol import keys, messages
from headrace.profiles.state_protocol.messages import Change, ChangeHeaders, NoBefore, touched_keys
from headrace.profiles.state_protocol.templates import Field, Template

BY_USER = Template("todos", (Field("user", "string"),))
T = BY_USER.id
OPERATIONS = (messages.INSERT, messages.UPDATE, messages.DELETE)


def change(operation: Any, before: Any = None, after: Any = None) -> Change:
    return Change("todos", "1", ChangeHeaders(operation), after, before)


def watch(user: str) -> int:
    return keys.watch_key(T, [user])


def member(user: str) -> int:
    return keys.membership_key(T, [user])


def field(name: str, user: str) -> int:
    return keys.field_key(T, name, [user])


def test_an_insert_touches_where_the_row_comes_to() -> None:
    assert touched_keys(BY_USER, change("insert", after={"user": "a", "n": 1}), "coarse") == {watch("a"), member("a")}


def test_a_delete_touches_where_the_row_was() -> None:
    assert touched_keys(BY_USER, change("delete", before={"user": "a"}), "coarse") == {watch("a"), member("a")}


def test_an_update_that_moves_a_row_touches_both_places() -> None:
    moved = change("update", {"user": "a", "n": 1}, {"user": "b", "n": 2})
    assert touched_keys(BY_USER, moved, "coarse") == {watch("a"), member("a"), watch("b"), member("b")}


def test_an_update_in_place_touches_the_fields_that_changed() -> None:
    before = {"user": "a", "same": 1, "n": 1, "gone": "x", "deep": {"x": 1}, "list": [1], "flag": 1, "null": None}
    after = {"user": "a", "same": 1.0, "n": 2, "new": True, "deep": {"x": 2}, "list": [2], "flag": True, "null": 0}
    changed = {field(name, "a") for name in ("n", "gone", "new", "flag", "null")}
    assert touched_keys(BY_USER, change("update", before, after), "coarse") == {watch("a"), *changed}


def test_an_update_that_changes_nothing_touches_the_row() -> None:
    assert touched_keys(BY_USER, change("update", {"user": "a"}, {"user": "a"}), "coarse") == {watch("a")}


@pytest.mark.parametrize("value", [None, [], {}])
def test_a_row_that_the_template_does_not_pick_is_not_told(value: Any) -> None:
    was = {"user": "a"}
    now = {"user": value}
    assert touched_keys(BY_USER, change("insert", after=now), "coarse") == set()
    assert touched_keys(BY_USER, change("delete", before=now), "coarse") == set()
    assert touched_keys(BY_USER, change("update", was, now), "coarse") == {watch("a"), member("a")}
    assert touched_keys(BY_USER, change("update", now, was), "coarse") == {watch("a"), member("a")}
    assert touched_keys(BY_USER, change("update", now, now), "coarse") == set()


@pytest.mark.parametrize("before", [None, "text", [], {}, {"n": 1}])
def test_an_update_without_the_row_before_may_touch_anything(before: Any) -> None:
    assert touched_keys(BY_USER, change("update", before, {"user": "a"}), "coarse") is None
    assert touched_keys(BY_USER, change("delete", before), "coarse") is None
    assert touched_keys(BY_USER, change("delete", before), "skipBefore") is None


def test_an_update_without_the_row_before_touches_all_of_the_row_after_where_that_is_the_rule() -> None:
    after = {"user": "a", "n": 1, "none": None, "deep": {}}
    told = touched_keys(BY_USER, change("update", None, after), "skipBefore")
    assert told == {watch("a"), member("a"), field("n", "a"), field("none", "a")}
    assert touched_keys(BY_USER, change("update", None, {"user": None}), "skipBefore") == set()


def test_an_update_without_the_row_before_is_an_error_where_that_is_the_rule() -> None:
    with pytest.raises(NoBefore):
        touched_keys(BY_USER, change("update", None, {"user": "a"}), "error")
    assert touched_keys(BY_USER, change("update", {"user": "a"}, {"user": "a"}), "error") == {watch("a")}
    assert touched_keys(BY_USER, change("delete", None), "error") is None
    assert touched_keys(BY_USER, change("insert", after={"user": "a"}), "error") == {watch("a"), member("a")}
