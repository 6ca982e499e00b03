"""Reading a request body as an update: strictly, and with every problem at once."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.registry import KeySetting
from headrace.schema.update import UNSET, SchemaUpdate, parse_update

KEY = {"jsonPointer": "/user/id", "required": True}
API = "durable.streams/schema-registry/v1"

ACCEPTED: list[tuple[Any, SchemaUpdate]] = [
    ({"schema": {"type": "object"}}, SchemaUpdate(schema={"type": "object"})),
    ({"schema": True}, SchemaUpdate(schema=True)),
    ({"apiVersion": API, "schema": False}, SchemaUpdate(schema=False)),
    ({"schema": {}, "lens": {"ops": []}}, SchemaUpdate(schema={}, lens={"ops": []})),
    (
        {"schema": {}, "routingKey": KEY, "search": {"fields": {}}},
        SchemaUpdate(schema={}, routing_key=KeySetting("/user/id", True), search={"fields": {}}),
    ),
    ({"schema": {}, "search": None}, SchemaUpdate(schema={}, search=None)),
    ({"routingKey": KEY}, SchemaUpdate(routing_key=KeySetting("/user/id", True))),
    ({"routingKey": {"required": False, "jsonPointer": ""}}, SchemaUpdate(routing_key=KeySetting("", False))),
    ({"routingKey": None}, SchemaUpdate(routing_key=None)),
    ({"search": {"fields": {}}}, SchemaUpdate(search={"fields": {}})),
    ({"search": None}, SchemaUpdate(search=None)),
]


@pytest.mark.parametrize(("body", "update"), ACCEPTED)
def test_an_update_holds_what_was_sent_and_nothing_else(body: Any, update: SchemaUpdate) -> None:
    assert parse_update(body) == update


def test_what_is_not_sent_is_unset_and_not_none() -> None:
    update = parse_update({"schema": {}})
    assert isinstance(update, SchemaUpdate)
    assert update.lens == UNSET
    assert update.routing_key == UNSET
    assert update.search == UNSET


REFUSED: list[tuple[Any, list[tuple[str, str]]]] = [
    (None, [("", "is an object")]),
    ([], [("", "is an object")]),
    ({}, [("", "must include `schema`, `routingKey` or `search`")]),
    ({"apiVersion": API}, [("", "must include `schema`, `routingKey` or `search`")]),
    ({"apiVersion": "v2", "schema": {}}, [("/apiVersion", API)]),
    ({"apiVersion": None, "schema": {}}, [("/apiVersion", API)]),
    ({"schema": None}, [("/schema", "an object, true or false")]),
    ({"schema": "x"}, [("/schema", "an object, true or false")]),
    ({"schema": {}, "lens": None}, [("/lens", "leave it out")]),
    ({"schema": {}, "lens": []}, [("/lens", "must be an object")]),
    ({"lens": {}}, [("/lens", "missing schema")]),
    ({"lens": {}, "routingKey": KEY}, [("/lens", "missing schema")]),
    ({"search": []}, [("/search", "an object, or null")]),
    ({"routingKey": "/id"}, [("/routingKey", "an object with jsonPointer and required")]),
    ({"routingKey": False}, [("/routingKey", "an object with jsonPointer and required")]),
    ({"routingKey": {"required": True}}, [("/routingKey/jsonPointer", "JSON Pointer")]),
    ({"routingKey": {"jsonPointer": "id", "required": True}}, [("/routingKey/jsonPointer", "JSON Pointer")]),
    ({"routingKey": {"jsonPointer": "/a~2", "required": True}}, [("/routingKey/jsonPointer", "JSON Pointer")]),
    ({"routingKey": {"jsonPointer": "/a" * 65, "required": True}}, [("/routingKey/jsonPointer", "at most 64 names")]),
    ({"routingKey": {"jsonPointer": 7, "required": True}}, [("/routingKey/jsonPointer", "JSON Pointer")]),
    ({"routingKey": {"jsonPointer": "/a"}}, [("/routingKey/required", "true or false")]),
    ({"routingKey": {"jsonPointer": "/a", "required": 1}}, [("/routingKey/required", "true or false")]),
    ({"routingKey": {**KEY, "json_pointer": "/a"}}, [("/routingKey/json_pointer", "is not supported")]),
    ({"schema": {}, "routingKey": None}, [("/routingKey", "update of its own")]),
    ({"routingKey": KEY, "search": {}}, [("", "missing schema")]),
    ({"routingKey": None, "search": None}, [("", "missing schema")]),
    ({"schemas": {}}, [("/schemas", "not written as a whole")]),
    ({"lenses": {}}, [("/lenses", "not written as a whole")]),
    ({"schema": {}, "currentVersion": 2}, [("/currentVersion", "not written as a whole")]),
    ({"schema": {}, "boundaries": []}, [("/boundaries", "not written as a whole")]),
    ({"routing_key": KEY}, [("/routing_key", "routingKey")]),
    ({"routingKeyPointer": "/a"}, [("/routingKeyPointer", "routingKey")]),
    ({"json_pointer": "/a"}, [("/json_pointer", "routingKey")]),
    ({"schema": {}, "indexes": []}, [("/indexes", "fields of `search`")]),
    ({"schema": {}, "profile": "evlog"}, [("/profile", "_profile")]),
    ({"schema": {}, "touch": {}}, [("/touch", "_profile")]),
    ({"schema": {}, "a/b": 1}, [("/a~1b", "and nothing else")]),
]


@pytest.mark.parametrize(("body", "problems"), REFUSED)
def test_a_wrong_body_is_refused_with_its_place_and_reason(body: Any, problems: list[tuple[str, str]]) -> None:
    found = parse_update(body)
    assert isinstance(found, list)
    assert [problem.pointer for problem in found] == [pointer for pointer, _ in problems]
    for problem, (_, words) in zip(found, problems, strict=True):
        assert words in problem.reason


def test_everything_that_is_wrong_is_said_at_once() -> None:
    found = parse_update(
        {"apiVersion": 1, "indexes": [], "schemas": {}, "lens": 3, "routingKey": {"x": 1}, "search": 1}
    )
    assert isinstance(found, list)
    assert [problem.pointer for problem in found] == [
        "/indexes",
        "/schemas",
        "/apiVersion",
        "/lens",
        "/search",
        "/routingKey/x",
        "/routingKey/jsonPointer",
        "/routingKey/required",
        "/lens",
        "",
    ]


def test_a_body_that_is_nested_too_deep_is_refused_before_anyone_looks_inside() -> None:
    schema: Any = {}
    for _ in range(900):
        schema = {"not": schema}
    found = parse_update({"search": schema})
    assert isinstance(found, list)
    assert "nested" in found[0].reason
