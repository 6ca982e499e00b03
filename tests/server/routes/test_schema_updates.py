"""The body of an update: the shapes that are accepted, and everything else, refused with all reasons at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from server.registries import (
    API_VERSION,
    TEXT,
    WHOLE,
    append,
    evolve,
    installed,
    lens,
    post,
    problems,
    registry,
    rename,
    shape,
    unchanged,
)

if TYPE_CHECKING:
    from tests.server.conftest import Api

JSON = {"content-type": "application/json"}
Code = Callable[[Any], str]

KEY = {"jsonPointer": "/user", "required": True}


def bound(*versions: tuple[int, str]) -> list[dict[str, Any]]:
    return [{"version": version, "jsonPointer": pointer} for version, pointer in versions]


SEARCH: dict[str, Any] = {
    "primaryTimestampField": "time",
    "defaultFields": [{"field": "message", "boost": 2.5}, {"field": "service"}],
    "aliases": {"ts": "time", "svc": "service"},
    "fields": {
        "time": {"kind": "date", "bindings": bound((1, "/time")), "column": True, "exists": True, "sortable": True},
        "service": {
            "kind": "keyword",
            "bindings": bound((1, "/service")),
            "normalizer": "lowercase_v1",
            "exact": True,
            "prefix": True,
            "exists": True,
        },
        "message": {"kind": "text", "bindings": bound((1, "/message")), "analyzer": "unicode_word_v1"},
        "status": {"kind": "integer", "bindings": bound((1, "/status")), "exact": True, "column": True},
        "took": {"kind": "float", "bindings": bound((1, "/took")), "column": True, "aggregatable": True},
        "failed": {"kind": "bool", "bindings": bound((1, "/failed")), "exact": True},
    },
    "rollups": {
        "requests": {
            "include": "service:api AND status:>=500",
            "dimensions": ["service"],
            "intervals": ["1m", "1h"],
            "measures": {
                "requests": {"kind": "count"},
                "latency": {"kind": "summary", "field": "took", "histogram": "log2_v1"},
            },
        }
    },
}


def with_search(**changed: Any) -> dict[str, Any]:
    return {**SEARCH, **changed}


def with_field(field: Any) -> dict[str, Any]:
    return with_search(fields={**SEARCH["fields"], "it": field})


def refuses(api: Api, code_of: Code, path: str, body: Any, *pointers: str) -> None:
    """The update is refused for reasons at these pointers, and nothing has changed."""
    before = registry(api, path)
    refused = api.post(f"{path}/_schema", body)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert problems(refused) == list(pointers)
    assert unchanged(api, path, before)


# -- what is accepted


def test_everything_may_come_with_the_first_schema(api: Api) -> None:
    path = api.stream()
    body = {"apiVersion": API_VERSION, "schema": shape(user=TEXT), "routingKey": KEY, "search": SEARCH}
    assert api.post(f"{path}/_schema", body).status_code == 200
    found = registry(api, path)
    assert found["routingKey"] == KEY
    assert found["search"] == SEARCH
    assert found["currentVersion"] == 1


def test_the_next_version_keeps_the_routing_key_and_the_search_it_does_not_mention(api: Api) -> None:
    path = installed(api, shape(user=TEXT), routingKey=KEY, search=SEARCH)
    evolve(api, path, shape("a", user=TEXT, a=WHOLE))
    found = registry(api, path)
    assert found["routingKey"] == KEY
    assert found["search"] == SEARCH
    assert found["currentVersion"] == 2


def test_the_next_version_may_replace_both(api: Api) -> None:
    path = installed(api, shape(user=TEXT), routingKey=KEY, search=SEARCH)
    fewer = {"primaryTimestampField": "time", "fields": {"time": SEARCH["fields"]["time"]}}
    other = {"jsonPointer": "/name", "required": True}
    evolve(api, path, shape(name=TEXT), rename("user", "name"), routingKey=other, search=fewer)
    found = registry(api, path)
    assert found["routingKey"] == other
    assert found["search"] == fewer


def test_a_routing_key_set_before_the_first_schema_stays(api: Api) -> None:
    path = api.stream()
    assert post(api, path, routingKey=KEY).status_code == 200
    evolve(api, path, shape(user=TEXT))
    assert registry(api, path)["routingKey"] == KEY
    append(api, path, {"user": "ada"})
    assert api.get(path, key="ada").json() == [{"user": "ada"}]


def test_search_alone_is_set_changed_and_cleared_without_a_new_version(api: Api) -> None:
    path = installed(api, shape("time", time=TEXT))
    append(api, path, {})
    assert post(api, path, search=SEARCH).json()["search"] == SEARCH
    fewer = with_search(rollups={}, aliases={})
    changed = post(api, path, search=fewer).json()
    assert changed["diff"]["classification"] == "destructive"  # queries that need what is gone are refused
    assert registry(api, path)["search"] == fewer
    assert post(api, path, search=None).status_code == 200
    found = registry(api, path)
    assert "search" not in found and found["currentVersion"] == 1
    assert len(api.get(f"{path}/_schema/history").json()["revisions"]) == 4


def test_search_needs_a_schema_version(api: Api, code_of: Code) -> None:
    path = api.stream()
    refuses(api, code_of, path, {"search": SEARCH}, "/search")
    assert post(api, path, search=None).status_code == 200  # there is none anyway


# -- what is refused


@pytest.mark.parametrize(
    "body",
    [{}, {"apiVersion": API_VERSION}, [], "schema", 1, None, True, [{"schema": {}}]],
)
def test_an_update_that_asks_for_nothing_is_refused(api: Api, code_of: Code, body: Any) -> None:
    path = api.stream()
    before = registry(api, path)
    refused = api.post(f"{path}/_schema", b"null" if body is None else body, JSON)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert unchanged(api, path, before)


@pytest.mark.parametrize(
    ("named", "value"),
    [
        ("schemas", {"1": {}}),
        ("lenses", {}),
        ("currentVersion", 1),
        ("boundaries", []),
        ("breaks", []),
        ("routing_key", KEY),
        ("routingKeyPointer", "/user"),
        ("routing_key_pointer", "/user"),
        ("jsonPointer", "/user"),
        ("json_pointer", "/user"),
        ("required", True),
        ("indexes", []),
        ("index", {}),
        ("profile", "evlog"),
        ("touch", {"enabled": True}),
        ("live", {}),
        ("kind", "metrics"),
        ("Schema", {}),
        ("schema ", {}),
        ("dry_run", True),
        ("force", True),
        ("", 1),
        ("a/b~c", 1),
    ],
)
def test_an_unknown_member_is_refused_by_name(api: Api, code_of: Code, named: str, value: Any) -> None:
    path = api.stream()
    pointer = "/" + named.replace("~", "~0").replace("/", "~1")
    refuses(api, code_of, path, {"schema": {}, named: value}, pointer)
    refused = api.post(f"{path}/_schema", {"schema": {}, named: value}).json()["error"]
    assert "not supported" in refused["message"] and refused["field"] == pointer


def test_a_registry_as_it_is_served_is_no_update(api: Api, code_of: Code) -> None:
    path = installed(api, {}, routingKey=KEY, search=SEARCH)
    refuses(api, code_of, path, registry(api, path), "/currentVersion", "/boundaries", "/schemas", "/lenses", "/schema")


def test_a_key_that_is_sent_twice_is_refused_where_it_is(api: Api, code_of: Code) -> None:
    path = api.stream()
    refuses(api, code_of, path, b'{"schema": {"type": "object"}, "schema": true}', "/schema")
    refuses(api, code_of, path, b'{"schema": {"properties": {"a": true, "a": false}}}', "/schema/properties/a")


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({"lens": {}}, ["/lens"]),
        ({"routingKey": KEY, "search": SEARCH}, [""]),
        ({"routingKey": None, "search": None}, [""]),
        ({"schema": {}, "routingKey": None}, ["/routingKey"]),
        ({"schema": None}, ["/schema"]),
        ({"schema": [], "lens": [], "search": "x"}, ["/schema", "/lens", "/search"]),
        ({"schema": "object"}, ["/schema"]),
        ({"schema": {}, "lens": None}, ["/lens"]),
        ({"schema": {}, "apiVersion": "durable.streams/schema-registry/v2"}, ["/apiVersion"]),
        ({"schema": {}, "apiVersion": None}, ["/apiVersion"]),
        ({"routingKey": "/user"}, ["/routingKey"]),
        ({"routingKey": {}}, ["/routingKey/jsonPointer", "/routingKey/required"]),
        ({"routingKey": {"jsonPointer": "/a"}}, ["/routingKey/required"]),
        ({"routingKey": {"jsonPointer": "a", "required": 1}}, ["/routingKey/jsonPointer", "/routingKey/required"]),
        ({"routingKey": {"jsonPointer": "/a~2", "required": True}}, ["/routingKey/jsonPointer"]),
        ({"routingKey": {**KEY, "json_pointer": "/b"}}, ["/routingKey/json_pointer"]),
        ({"x": 1, "y": 2, "routingKey": False}, ["/x", "/y", "/routingKey"]),
    ],
)
def test_every_reason_is_given_at_once(api: Api, code_of: Code, body: dict[str, Any], pointers: list[str]) -> None:
    refuses(api, code_of, api.stream(), body, *pointers)


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "objekt"}, "/schema/type"),
        ({"properties": []}, "/schema/properties"),
        ({"required": "a"}, "/schema/required"),
        ({"properties": {"a": {"minimum": "1"}}}, "/schema/properties/a/minimum"),
        ({"pattern": "("}, "/schema/pattern"),
        ({"pattern": "(?=a)"}, "/schema/pattern"),
        ({"pattern": "(a)\\1"}, "/schema/pattern"),
        ({"$ref": "https://example.com/s.json"}, "/schema/$ref"),
        ({"$ref": "other.json#/a"}, "/schema/$ref"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "/schema/properties/a/$ref"),
        ({"$ref": "#/$defs/none"}, "/schema/$ref"),
        ({"$schema": "https://example.com/mine"}, "/schema/$schema"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "/schema/$schema"),
        ({"$ref": "#"}, "/schema"),
        ({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#"}}}, None),
    ],
)
def test_a_schema_that_is_none_is_refused_where_it_is_wrong(
    api: Api, code_of: Code, schema: dict[str, Any], pointer: str | None
) -> None:
    path = api.stream()
    refused = post(api, path, schema=schema)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert {problem["code"] for problem in refused.json()["error"]["problems"]} == {"schema_invalid"}
    assert pointer is None or problems(refused) == [pointer]
    assert registry(api, path)["currentVersion"] == 0


@pytest.mark.parametrize(
    ("search", "pointers"),
    [
        ({}, ["/search/fields", "/search/primaryTimestampField"]),
        (with_search(indexes=[]), ["/search/indexes"]),
        (with_search(fields={}), None),
        (with_search(primaryTimestampField="service"), ["/search/primaryTimestampField"]),
        (with_search(primaryTimestampField="none"), ["/search/primaryTimestampField"]),
        (with_search(aliases={"x": "none"}), ["/search/aliases/x"]),
        (with_search(defaultFields=[{"field": "none"}]), ["/search/defaultFields/0/field"]),
        (with_search(defaultFields=[{"field": "message", "boost": 0}]), ["/search/defaultFields/0/boost"]),
        (with_field({"kind": "blob", "bindings": bound((1, "/a"))}), ["/search/fields/it/kind"]),
        (with_field({"kind": "keyword", "bindings": []}), ["/search/fields/it/bindings"]),
        (with_field({"kind": "keyword", "bindings": bound((0, "/a"))}), ["/search/fields/it/bindings/0/version"]),
        (with_field({"kind": "keyword", "bindings": bound((1, "a"))}), ["/search/fields/it/bindings/0/jsonPointer"]),
        (with_field({"kind": "keyword", "bindings": bound((1, "/a"), (1, "/b"))}), None),
        (with_field({"kind": "integer", "bindings": bound((1, "/a")), "prefix": True}), ["/search/fields/it/prefix"]),
        (with_field({"kind": "text", "bindings": bound((1, "/a"))}), ["/search/fields/it/analyzer"]),
        (
            with_field({"kind": "text", "bindings": bound((1, "/a")), "analyzer": "other", "sortable": True}),
            ["/search/fields/it/analyzer", "/search/fields/it/sortable"],
        ),
        (
            with_field({"kind": "keyword", "bindings": bound((1, "/a")), "normalizer": "upper", "positions": True}),
            ["/search/fields/it/normalizer", "/search/fields/it/positions"],
        ),
        (
            with_search(rollups={"r": {"intervals": ["1m"], "measures": {"n": {"kind": "count"}}, "include": "a:("}}),
            ["/search/rollups/r/include"],
        ),
        (
            with_search(rollups={"r": {"intervals": ["0m"], "measures": {}, "dimensions": ["none"]}}),
            ["/search/rollups/r/dimensions/0", "/search/rollups/r/intervals/0", "/search/rollups/r/measures"],
        ),
    ],
)
def test_a_search_configuration_is_checked_whole(
    api: Api, code_of: Code, search: dict[str, Any], pointers: list[str] | None
) -> None:
    path = installed(api, shape("time", time=TEXT))
    before = registry(api, path)
    refused = post(api, path, search=search)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert {problem["code"] for problem in refused.json()["error"]["problems"]} == {"search_invalid"}
    assert pointers is None or sorted(problems(refused)) == sorted(pointers)
    assert unchanged(api, path, before)


def test_a_binding_to_a_version_that_is_not_there_yet_is_refused(api: Api, code_of: Code) -> None:
    path = installed(api, shape("time", time=TEXT))
    ahead = with_field({"kind": "keyword", "bindings": bound((1, "/a"), (2, "/b")), "exact": True})
    refuses(api, code_of, path, {"search": ahead}, "/search/fields/it/bindings/1/version")
    evolve(api, path, shape("time", "b", time=TEXT, b=TEXT), search=ahead)
    assert registry(api, path)["search"] == ahead


def test_what_is_wrong_with_schema_lens_and_search_is_said_together(api: Api, code_of: Code) -> None:
    path = installed(api, shape(a=WHOLE))
    before = registry(api, path)
    carrier = {**lens(path, 1, {"op": "nope"}), "extra": 1}
    refused = post(api, path, schema={"type": "objekt"}, lens=carrier, search={})
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    found = set(problems(refused))
    assert {"/schema/type", "/lens/ops/0", "/lens/extra", "/search/fields"} <= found
    assert unchanged(api, path, before)
