"""What every route is asked at its limits: the requests, by verb and path as the OpenAPI document has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.events import array, event
from bench.stalls.load import Load
from bench.wire import http_request

if TYPE_CHECKING:
    from tests.server.conftest import Api

MiB = 1024 * 1024
BODY_BYTES = 9 * MiB
ROWS = 10_000
STREAM, KEYED, DB, TRACES, EVENTS = (
    "/v1/stream/at-limits",
    "/v1/stream/keyed",
    "/v1/stream/db",
    "/v1/stream/traces",
    "Order",
)
SUBSCRIPTIONS = "/v1/stream/__ds/subscriptions"


class World:
    """A server with some of everything, and requests to it."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.entity_id = self.source_id = ""

    def prepare(self) -> None:
        """Make streams, tables, entities and subscriptions, with as much in them as one request can bring."""
        self._streams()
        self._tables()
        self._entities()
        self.ask("PUT", f"{SUBSCRIPTIONS}/all", {"type": "pull-wake", "pattern": "watched/**", "wake_stream": "wakes"})

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to one request, which must succeed."""
        answer = self.api.client.request(method, path, json=body, timeout=60)
        assert answer.status_code < 300, f"{method} {path}: {answer.text[:500]}"
        return answer.json() if answer.content else None

    def _streams(self) -> None:
        for path in (STREAM, KEYED, DB, TRACES, "/v1/stream/wakes", "/v1/stream/plain"):
            answer = self.api.put(path, headers={"content-type": "application/json"})
            assert answer.status_code == 201
        fields = {
            "at": {"kind": "date", "exact": True, "column": True, "sortable": True},
            "n": {"kind": "integer", "exact": True, "column": True, "sortable": True},
            "text": {"kind": "text", "analyzer": "unicode_word_v1", "positions": True},
        }
        search = {
            "primaryTimestampField": "at",
            "fields": {
                name: {**field, "exists": True, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}]}
                for name, field in fields.items()
            },
            "rollups": {"all": {"dimensions": ["n"], "intervals": ["1h"], "measures": {"n": {"kind": "count"}}}},
        }
        key = {"jsonPointer": "/user", "required": False}
        self.ask("POST", f"{KEYED}/_schema", {"schema": {"type": "object"}, "search": search, "routingKey": key})
        for first in range(0, 20_000, 5_000):
            rows = [
                {"at": "2026-01-01T00:00:00Z", "n": n, "text": f"word{n} same", "user": f"u{n}"}
                for n in range(first, first + 5_000)
            ]
            assert self.api.post(KEYED, rows).status_code == 204
        for _ in range(4):
            body = array(0, 10_000, event)
            assert self.api.call("POST", STREAM, body, {"content-type": "application/json"}).status_code == 204
        self.ask("POST", f"{DB}/_profile", {"profile": {"kind": "state-protocol", "touch": {"enabled": True}}})
        self.ask("POST", f"{TRACES}/_profile", {"profile": {"kind": "otel-traces"}})

    def _tables(self) -> None:
        self.ask("POST", "/v1/register", {"descriptors": [order(), users("Users", 3)]})
        body = [{"user": f"u{n}", "amount": 1.0} for n in range(ROWS)]
        assert self.api.client.post(f"/v1/push/{EVENTS}", json=body, timeout=60).status_code == 200
        seen = {"kind": "event", "name": "Seen", "stream": "keyed", "schema": {"user": "str", "text": "i64"}}
        texts = {**users("Texts", 1), "upstreams": ["Seen"], "agg": {"n": {"op": "count", "params": {}}}}
        self.ask("POST", "/v1/register", {"descriptors": [seen, texts], "app": "seen"})

    def _entities(self) -> None:
        self.ask("POST", "/v1/entity-types", person())
        answer = self.api.client.post("/v1/observations", json={"entities": entities(0, ROWS)}, timeout=60)
        assert answer.status_code == 200, answer.text[:500]
        told = answer.json()
        self.entity_id, self.source_id = told["entities"][0]["entity_id"], told["source_id"]


def order() -> dict[str, Any]:
    return {"kind": "event", "name": EVENTS, "schema": {"user": "str", "amount": "f64"}}


def users(name: str, features: int) -> dict[str, Any]:
    """A table with so many features."""
    agg = {f"f{n}": {"op": "sum", "params": {"field": "amount", "window": f"{n + 1}h"}} for n in range(features)}
    return {"kind": "table", "name": name, "key": ["user"], "upstreams": [EVENTS], "agg": agg}


def entities(first: int, count: int) -> list[dict[str, Any]]:
    """People of one type."""
    return [
        {"entity_type": "person", "name": f"Person {n}", "email": f"p{n}@example.com", "score": n}
        for n in range(first, first + count)
    ]


def person() -> dict[str, Any]:
    """Their type."""
    fields = {"name": {"type": "string"}, "email": {"type": "string"}, "score": {"type": "number"}}
    definition = {"fields": fields, "canonical_name_fields": ["email"]}
    return {
        "entity_type": "person",
        "schema_version": "1.0.0",
        "schema_definition": definition,
        "reducer_config": {"merge_policies": {}},
        "activate": True,
    }


def posted(path: str, body: Any, kind: str = "application/json") -> bytes:
    """A POST of a document."""
    return http_request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), kind)


def got(path: str) -> bytes:
    """A GET."""
    return http_request("GET", path)


class Case(NamedTuple):
    """What a route is asked at its limits, by so many connections at once."""

    requests: Callable[[World], list[bytes]]
    connections: int = 4
    rounds: int = 1
    #: Whether it is refused in the end, after all of it was read.
    is_refused: bool = False

    def load(self, world: World) -> Load:
        """The load of this case."""
        return Load(self.requests(world), self.connections, self.rounds)


def _always(*requests: bytes) -> Callable[[World], list[bytes]]:
    return lambda _: list(requests)


def _person(path: str, body: Any = None) -> Callable[[World], list[bytes]]:
    """Requests about an entity."""

    def made(world: World) -> list[bytes]:
        where = path.format(id=world.entity_id, source=world.source_id)
        return [got(where) if body is None else posted(where, body)]

    return made


def _many_nodes(_: World) -> list[bytes]:
    """A dry run of a registration with as many tables and features as fit into its body."""
    nodes = [order(), *[users(f"Users{n}", 50) for n in range(600)]]
    return [posted("/v1/register", {"descriptors": nodes, "dry_run": True})]


def _wide_schema(_: World) -> list[bytes]:
    members = {f"member{n}": {"type": ["string", "null"], "maxLength": 100} for n in range(2_000)}
    return [posted(f"{STREAM}/_schema?dry_run=true", {"schema": {"type": "object", "properties": members}})]


def _spans(path: str) -> Callable[[World], list[bytes]]:
    spans = [
        {
            "traceId": f"{n + 1:032x}",
            "spanId": f"{n + 1:016x}",
            "name": "n",
            "startTimeUnixNano": "1",
            "endTimeUnixNano": "2",
        }
        for n in range(9_000)
    ]
    return _always(posted(path, {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))


def _observation_batches(_: World) -> list[bytes]:
    return [posted("/v1/observations", {"entities": entities(n * ROWS, ROWS)}) for n in range(1, 5)]


def _values(count: int) -> bytes:
    return json.dumps([{"n": n, "text": "some words of it", "user": f"u{n}"} for n in range(count)]).encode()


TYPE = "/v1/entity-types/person"
_FIELDS = {f"field{n}": {"type": "string"} for n in range(1_000)}
_VERSION = {
    "entity_type": "wide",
    "schema_version": "1.0.0",
    "schema_definition": {"fields": _FIELDS, "canonical_name_fields": ["field0"]},
    "reducer_config": {"merge_policies": {}},
}
_ADDED = [{"field_name": f"more{n}", "field_type": "string"} for n in range(900)]
_TEMPLATES = [{"entity": f"e{n}", "fields": [{"name": "f", "encoding": "string"}]} for n in range(256)]
_BATCH = {"requests": [{"table": "Users", "key": f"u{n}"} for n in range(ROWS)]}
_PAST = {"rows": [{"key": f"u{n}", "at": "2026-01-01T00:00:00Z"} for n in range(ROWS)]}
_LONG_VALUE = b'{"text":"%s"}' % (b"x" * BODY_BYTES)

#: Routes whose work grows with what is asked, or with what there is.
CASES: dict[tuple[str, str], Case] = {
    ("POST", "/v1/stream/{name}"): Case(
        _always(
            posted(STREAM, array(0, BODY_BYTES // 116, event)),
            posted(STREAM, _LONG_VALUE),
            posted(KEYED, _values(100_000)),
        ),
        connections=6,
    ),
    ("GET", "/v1/stream/{name}"): Case(
        _always(
            got(f"{STREAM}?offset=-1"),
            http_request("GET", f"{STREAM}?offset=-1").replace(b"\r\n\r\n", b"\r\nAccept-Encoding: gzip\r\n\r\n"),
            got(f"{KEYED}?offset=-1&filter=n:%3E10"),
        ),
        connections=24,
        rounds=3,
    ),
    ("PUT", "/v1/stream/{name}"): Case(
        lambda _: [http_request("PUT", f"/v1/stream/made{n}", array(0, BODY_BYTES // 116, event)) for n in range(4)]
    ),
    ("GET", "/v1/stream/{name}/pk/{key}"): Case(_always(got(f"{KEYED}/pk/u7?offset=-1")), 8, 5),
    ("POST", "/v1/stream/{name}/_schema"): Case(_wide_schema),
    ("GET", "/v1/stream/{name}/_routing_keys"): Case(_always(got(f"{KEYED}/_routing_keys?limit=500")), 8, 2),
    ("POST", "/v1/stream/{name}/_search"): Case(
        _always(posted(f"{KEYED}/_search", {"q": "text:same", "size": 500, "sort": ["n"], "track_total_hits": True})), 8
    ),
    ("GET", "/v1/stream/{name}/_search"): Case(_always(got(f"{KEYED}/_search?q=n:%3E10&size=500")), 8),
    ("POST", "/v1/stream/{name}/_aggregate"): Case(
        _always(
            posted(
                f"{KEYED}/_aggregate",
                {
                    "rollup": "all",
                    "from": "2026-01-01T00:00:00Z",
                    "to": "2026-01-02T00:00:00Z",
                    "interval": "1h",
                    "group_by": ["n"],
                },
            )
        )
    ),
    ("POST", "/v1/register"): Case(_many_nodes, connections=3),
    ("POST", "/v1/batch_get"): Case(_always(posted("/v1/batch_get", _BATCH)), 10),
    ("POST", "/v1/push/{event}"): Case(
        _always(posted(f"/v1/push/{EVENTS}", [{"user": f"u{n % ROWS}", "amount": 1.0} for n in range(100_000)])), 3
    ),
    ("POST", "/v1/tables/{table}/history"): Case(_always(posted("/v1/tables/Users/history", _PAST)), 3),
    ("POST", "/v1/work/leases/{id}/commit"): Case(
        _always(posted("/v1/work/leases/none/commit", {"token": 1, "results": [{"unit": "x" * BODY_BYTES}]})),
        is_refused=True,
    ),
    ("POST", "/v1/stream/{name}/_otlp/v1/traces"): Case(_spans(f"{TRACES}/_otlp/v1/traces")),
    ("POST", "/v1/observe/request"): Case(
        _always(
            posted(
                "/v1/observe/request",
                {"streams": {"traces": "traces"}, "lookup": {"traceId": "1".zfill(32)}, "include": {"events": False}},
            )
        )
    ),
    ("POST", "/v1/entity-types"): Case(_always(posted("/v1/entity-types?dry_run=true", _VERSION))),
    ("POST", "/v1/entity-types/{entity_type}/update"): Case(
        _always(posted(f"{TYPE}/update?dry_run=true", {"fields_to_add": _ADDED}))
    ),
    ("GET", "/v1/entity-types/{entity_type}/export"): Case(_always(got(f"{TYPE}/export")), 8),
    ("POST", "/v1/observations"): Case(_observation_batches),
    ("GET", "/v1/entities"): Case(
        _always(got("/v1/entities?entity_type=person&limit=500"), got("/v1/entities?search=Person&limit=500")), 8, 2
    ),
    ("GET", "/v1/entities/duplicates"): Case(_always(got("/v1/entities/duplicates?entity_type=person&limit=1000")), 2),
    ("GET", "/v1/registry/events/{event}"): Case(_always(got("/v1/registry/events/Seen")), 8),
    ("GET", "/v1/sources/{id}"): Case(_person("/v1/sources/{source}"), 2),
    ("POST", "/v1/stream/{name}/touch/templates/activate"): Case(
        _always(posted(f"{DB}/touch/templates/activate", {"templates": _TEMPLATES})), 8
    ),
    ("POST", "/v1/stream/{name}/touch/wait"): Case(
        _always(
            posted(f"{DB}/touch/wait", {"cursor": "now", "keys": [f"{n:016x}" for n in range(1024)], "timeoutMs": 10})
        ),
        32,
        2,
    ),
    ("PUT", "/v1/stream/__ds/subscriptions/{id}"): Case(
        lambda _: [
            http_request(
                "PUT",
                f"{SUBSCRIPTIONS}/s{n}",
                json.dumps({"type": "pull-wake", "pattern": f"w{n}/**", "wake_stream": "wakes"}).encode(),
            )
            for n in range(200)
        ],
        8,
        25,
    ),
    ("POST", "/v1/stream/__ds/subscriptions/{id}/streams"): Case(
        _always(posted(f"{SUBSCRIPTIONS}/all/streams", {"streams": [f"linked/{n}" for n in range(1_000)]}))
    ),
    ("GET", "/v1/streams"): Case(_always(got("/v1/streams?limit=1000")), 8, 5),
    ("GET", "/metrics"): Case(_always(got("/metrics")), 4, 5),
    ("GET", "/openapi.json"): Case(_always(got("/openapi.json")), 8, 5),
}

#: Routes that do the same little work whatever is asked. They are driven together.
LITTLE: dict[tuple[str, str], Callable[[World], list[bytes]]] = {
    ("GET", "/"): _always(got("/")),
    ("GET", "/health"): _always(got("/health")),
    ("GET", "/health/live"): _always(got("/health/live")),
    ("GET", "/health/ready"): _always(got("/health/ready")),
    ("GET", "/v1/server/_details"): _always(got("/v1/server/_details")),
    ("GET", "/v1/server/_mem"): _always(got("/v1/server/_mem")),
    ("DELETE", "/v1/stream/{name}"): _always(http_request("DELETE", "/v1/stream/none")),
    ("HEAD", "/v1/stream/{name}"): _always(got(f"{STREAM}?offset=now")),
    ("POST", "/v1/stream/{name}/_retention"): _always(posted(f"{STREAM}/_retention", {"age": None})),
    ("POST", "/v1/stream/{name}/_seal"): _always(http_request("POST", f"{STREAM}/_seal?timeout=0")),
    ("GET", "/v1/stream/{name}/_plan"): _always(got(f"{KEYED}/_plan")),
    ("GET", "/v1/stream/{name}/_plan/rows"): _always(got(f"{KEYED}/_plan/rows?from=now")),
    ("POST", "/v1/read-leases/{id}/renew"): _always(http_request("POST", "/v1/read-leases/x/renew")),
    ("DELETE", "/v1/read-leases/{id}"): _always(http_request("DELETE", "/v1/read-leases/x")),
    ("GET", "/v1/stream/{name}/_schema"): _always(got(f"{KEYED}/_schema")),
    ("GET", "/v1/stream/{name}/_schema/history"): _always(got(f"{KEYED}/_schema/history")),
    ("GET", "/v1/stream/{name}/_schema/verifications/{id}"): _always(got(f"{KEYED}/_schema/verifications/1")),
    ("GET", "/v1/stream/{name}/_details"): _always(got(f"{KEYED}/_details")),
    ("GET", "/v1/stream/{name}/_index_status"): _always(got(f"{KEYED}/_index_status")),
    ("GET", "/v1/stream/{name}/_profile"): _always(got(f"{DB}/_profile")),
    ("POST", "/v1/stream/{name}/_profile"): _always(posted(f"{DB}/_profile", {"profile": {"kind": "x" * 60_000}})),
    ("GET", "/v1/registry"): _always(got("/v1/registry")),
    ("GET", "/v1/registry/history"): _always(got("/v1/registry/history")),
    ("POST", "/v1/ping"): _always(posted("/v1/ping", {})),
    ("POST", "/v1/reset"): _always(posted("/v1/reset", {})),
    ("POST", "/v1/registry/rollback"): _always(posted("/v1/registry/rollback", {"version": 99})),
    ("POST", "/v1/get"): _always(posted("/v1/get", {"table": "Users", "key": "u1"})),
    ("GET", "/v1/tables/{table}/history/{id}"): _always(got("/v1/tables/Users/history/none")),
    ("GET", "/v1/work"): _always(got("/v1/work")),
    ("POST", "/v1/work/attach"): _always(posted("/v1/work/attach", {"pipeline": "p"})),
    ("POST", "/v1/work/lease"): _always(posted("/v1/work/lease", {"worker": "w", "limit": 256})),
    ("POST", "/v1/work/leases/{id}/heartbeat"): _always(posted("/v1/work/leases/none/heartbeat", {"token": 1})),
    ("POST", "/v1/work/leases/{id}/release"): _always(posted("/v1/work/leases/none/release", {"token": 1})),
    ("POST", "/v1/work/pause"): _always(posted("/v1/work/pause", {})),
    ("POST", "/v1/work/resume"): _always(posted("/v1/work/resume", {})),
    ("POST", "/v1/work/run"): _always(posted("/v1/work/run", {"stream": "keyed"})),
    ("POST", "/v1/traces"): _always(posted("/v1/traces", {"resourceSpans": []})),
    ("GET", "/v1/entity-types"): _always(got("/v1/entity-types")),
    ("GET", "/v1/entity-types/{entity_type}"): _always(got(TYPE)),
    ("GET", "/v1/entity-types/{entity_type}/versions"): _always(got(f"{TYPE}/versions")),
    ("GET", "/v1/entity-types/{entity_type}/history"): _always(got(f"{TYPE}/history")),
    ("POST", "/v1/entity-types/{entity_type}/activate"): _always(
        posted(f"{TYPE}/activate", {"schema_version": "9.0.0"})
    ),
    ("POST", "/v1/entity-types/{entity_type}/deactivate"): _always(posted("/v1/entity-types/none/deactivate", {})),
    ("GET", "/v1/entity-types/{entity_type}/candidates"): _always(got(f"{TYPE}/candidates")),
    ("POST", "/v1/entity-types/{entity_type}/enhance"): _always(posted(f"{TYPE}/enhance", {"dry_run": True})),
    ("GET", "/v1/entity-types/{entity_type}/enhancement"): _always(got(f"{TYPE}/enhancement")),
    ("POST", "/v1/entity-types/{entity_type}/enhancement"): _always(posted(f"{TYPE}/enhancement", {})),
    ("GET", "/v1/entity-types/{entity_type}/recommendations"): _always(got(f"{TYPE}/recommendations")),
    ("POST", "/v1/entity-types/{entity_type}/recommendations"): _always(posted(f"{TYPE}/recommendations", {})),
    ("POST", "/v1/entity-types/{entity_type}/migrate"): _always(posted(f"{TYPE}/migrate", {})),
    ("GET", "/v1/entity-types/{entity_type}/migrations"): _always(got(f"{TYPE}/migrations")),
    ("GET", "/v1/entity-types/{entity_type}/migrations/{run_id}"): _always(got(f"{TYPE}/migrations/none")),
    ("POST", "/v1/entity-types/{entity_type}/migrations/{run_id}/undo"): _always(
        posted(f"{TYPE}/migrations/none/undo", {})
    ),
    ("POST", "/v1/entity-types/{entity_type}/reconcile"): _always(posted(f"{TYPE}/reconcile", {})),
    ("GET", "/v1/entities/{id}"): _person("/v1/entities/{id}"),
    ("POST", "/v1/entities/{id}/correct"): _person(
        "/v1/entities/{id}/correct", {"field": "name", "value": "x" * 100_000}
    ),
    ("POST", "/v1/entities/{id}/delete"): _person("/v1/entities/{id}/delete", {}),
    ("POST", "/v1/entities/{id}/restore"): _person("/v1/entities/{id}/restore", {}),
    ("GET", "/v1/entities/{id}/observations"): _person("/v1/entities/{id}/observations?limit=500"),
    ("GET", "/v1/entities/{id}/provenance/{field}"): _person("/v1/entities/{id}/provenance/name"),
    ("POST", "/v1/entities/merge"): _always(posted("/v1/entities/merge", {"from_entity_id": "a", "to_entity_id": "b"})),
    ("POST", "/v1/entities/merge/undo"): _always(posted("/v1/entities/merge/undo", {"from_entity_id": "a"})),
    ("POST", "/v1/entities/split"): _always(
        posted(
            "/v1/entities/split",
            {"entity_id": "a", "predicate": {"observation_ids": ["o"] * ROWS}, "to_entity_id": "b"},
        )
    ),
    ("POST", "/v1/entities/split/undo"): _always(
        posted("/v1/entities/split/undo", {"entity_id": "a", "split_id": "b"})
    ),
    ("POST", "/v1/entities/{id}/erase"): _always(posted("/v1/entities/none/erase", {})),
    ("GET", "/v1/erasures"): _always(got("/v1/erasures?limit=500")),
    ("GET", "/v1/erasures/{id}"): _always(got("/v1/erasures/none")),
    ("GET", "/v1/stream/{name}/touch/meta"): _always(got(f"{DB}/touch/meta")),
    ("GET", "/v1/stream/__ds/jwks.json"): _always(got("/v1/stream/__ds/jwks.json")),
    ("GET", "/v1/stream/__ds/subscriptions/{id}"): _always(got(f"{SUBSCRIPTIONS}/all")),
    ("DELETE", "/v1/stream/__ds/subscriptions/{id}"): _always(http_request("DELETE", f"{SUBSCRIPTIONS}/none")),
    ("DELETE", "/v1/stream/__ds/subscriptions/{id}/streams/{path}"): _always(
        http_request("DELETE", f"{SUBSCRIPTIONS}/all/streams/none")
    ),
    ("POST", "/v1/stream/__ds/subscriptions/{id}/claim"): _always(
        posted(f"{SUBSCRIPTIONS}/all/claim", {"worker": "w"})
    ),
    ("POST", "/v1/stream/__ds/subscriptions/{id}/ack"): _always(posted(f"{SUBSCRIPTIONS}/all/ack", {})),
    ("POST", "/v1/stream/__ds/subscriptions/{id}/callback"): _always(posted(f"{SUBSCRIPTIONS}/all/callback", {})),
    ("POST", "/v1/stream/__ds/subscriptions/{id}/release"): _always(posted(f"{SUBSCRIPTIONS}/all/release", {})),
}
