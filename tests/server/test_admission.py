"""Who may use which route: every route of the server, asked by every kind of caller, with TLS and without.

The scope that a route declares says whom it serves; every route is asked by every caller, a new one as well.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from headrace.server.http.route import Access, Route
from headrace.server.routes.route_table import ROUTES
from headrace.storage.keys import KeyStore
from support.certificates import write_certificate
from support.feature_rig import ORDERS, USERS

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api

Code = Callable[[Any], str]
JSON = {"content-type": "application/json"}
STREAM, KIND, ONE = "/v1/stream/{name}", "/v1/entity-types/{entity_type}", "/v1/entities/{id}"
RUN, HOOK = KIND + "/migrations/{run_id}", "/v1/stream/__ds/subscriptions/{id}"


class Rule(NamedTuple):
    """Whom a route serves."""

    #: open: anyone; proof: whoever has the token of a wake; else the least scope.
    needs: str
    #: Whether a key serves it whose prefix does not cover what is asked about.
    elsewhere: bool = True
    #: Whether such a key is answered as if there were nothing, and not refused.
    is_hidden: bool = False


#: Asked about everybody's schema, which takes an admin.
GLOBAL = {"register_entity_type", "update_entity_type", "activate_entity_type", "deactivate_entity_type"}
#: About no stream and no type, or of what the caller may see only.
ELSEWHERE = {
    "scrape_server", "describe_server", "enter_server", "list_streams", "get_feature_registry", "ping", "get_source",
    "list_erasures", "get_erasure", "renew_read_lease", "release_read_lease",
}  # fmt: skip
HIDDEN = {
    "get_subscription", "link_subscription", "unlink_subscription", "claim_subscription", "delete_subscription",
}  # fmt: skip
#: Asked last and in this order, since they remove what the others ask about.
LAST = ["rollback_features", "reset_features", "delete_subscription", "delete_stream", "erase_entity"]


def rule_of(route: Route) -> Rule:
    """Whom a route serves, by its declaration and by what is asked here."""
    if route.scope.is_open:
        return Rule("open" if route.scope.least == "none" else "proof")
    needs = "admin" if route.name in GLOBAL else {"key": "read"}.get(route.scope.least, route.scope.least)
    return Rule(needs, route.name in ELSEWHERE, route.name in HIDDEN)


RULES: dict[tuple[str, str], Rule] = {("head", ONE): Rule("read", False)} | {
    (route.method.lower(), route.address): rule_of(route)
    for route in sorted(ROUTES, key=lambda route: LAST.index(route.name) if route.name in LAST else -1)
}

SCHEMA = {"fields": {"email": {"type": "string"}, "note": {"type": "string"}}, "canonical_name_fields": ["email"]}
EVENT = {"type": "object", "properties": {"a": {"type": "string"}, "t": {"type": "string", "format": "date-time"}}}
BOUND = [{"version": 1, "jsonPointer": pointer} for pointer in ("/a", "/t")]
SEARCH = {
    "primaryTimestampField": "t",
    "fields": {
        "a": {"kind": "keyword", "exact": True, "bindings": BOUND[:1]},
        "t": {"kind": "date", "column": True, "bindings": BOUND[1:]},
    },
}
VERSION = {"schema_version": "1.0.0"}
SPANS: dict[str, Any] = {"resourceSpans": []}
BOUND_SOURCE = {
    "kind": "event",
    "name": "Bound",
    "stream": "other/x",
    "schema": {"a": {"type": "str", "required": False}},
}
WAKE = {"wake_id": "w", "generation": 1}
#: What routes are asked with where an empty object is refused before anyone looks at the caller's rights.
BODIES: dict[tuple[str, str], Any] = {
    ("post", STREAM): [1],
    ("post", STREAM + "/_search"): {"q": "a:x"},
    ("post", STREAM + "/_profile"): {"profile": {"kind": "generic"}},
    ("post", STREAM + "/_otlp/v1/traces"): SPANS,
    ("post", "/v1/traces"): SPANS,
    ("post", "/v1/observe/request"): {
        "streams": {"events": "other/x", "traces": "other/x"}, "lookup": {"requestId": "r"},
    },
    ("post", "/v1/register"): {"descriptors": [ORDERS, USERS]},
    ("post", "/v1/push/{event}"): {"user": "u", "amount": 1.0},
    ("post", "/v1/get"): {"table": "Users", "key": "u"},
    ("post", "/v1/batch_get"): {"requests": [{"table": "Users", "key": "u"}]},
    ("post", "/v1/entity-types"): {
        "entity_type": "odd", "schema_version": "1.0.0", "schema_definition": SCHEMA, "activate": True,
        "reducer_config": {"merge_policies": {}},
    },
    ("post", KIND + "/update"): {"fields_to_add": [{"field_name": "more", "field_type": "string"}]},
    ("post", KIND + "/activate"): VERSION,
    ("post", KIND + "/deactivate"): VERSION,
    ("post", KIND + "/enhancement"): {"enabled": True},
    ("post", KIND + "/recommendations"): {"field": "odd", "status": "rejected"},
    ("post", KIND + "/migrate"): {"fields": ["note"]},
    ("post", "/v1/observations"): {"entities": [{"entity_type": "guest", "email": "x@y.org"}]},
    ("post", ONE + "/correct"): {"field": "note", "value": "x"},
    ("post", "/v1/entities/merge"): {"from_entity_id": "{id}", "to_entity_id": "{other}"},
    ("post", "/v1/entities/merge/undo"): {"from_entity_id": "{id}"},
    ("post", "/v1/entities/split"): {
        "entity_id": "{id}", "predicate": {"fields": {"note": "x"}}, "to_entity_id": "{other}",
    },
    ("post", "/v1/entities/split/undo"): {"entity_id": "{id}", "split_id": "s"},
    ("put", HOOK): {"type": "pull-wake", "pattern": "other/*", "wake_stream": "other/wake"},
    ("post", HOOK + "/streams"): {"streams": ["other/x"]},
    ("post", HOOK + "/claim"): {"worker": "w"},
    ("post", HOOK + "/ack"): WAKE,
    ("post", HOOK + "/callback"): WAKE,
    ("post", HOOK + "/release"): WAKE,
}  # fmt: skip
QUERIES: dict[tuple[str, str], dict[str, str]] = {
    ("get", STREAM + "/_search"): {"q": "a:x"},
    ("get", "/v1/entities"): {"entity_type": "guest"},
    ("get", "/v1/entities/duplicates"): {"entity_type": "guest"},
}
#: Callers: scopes and prefix of their keys. ``limited`` and ``local admin`` ask about what their prefix does not cover.
CALLERS = {
    "read": ("read", ""), "write": ("write", ""), "admin": ("admin", ""), "limited": ("write", "mine/"),
    "admin of mine/": ("admin", "mine/"),
}  # fmt: skip
LEVELS = {"read": 0, "write": 1, "admin": 2}


def test_routes_for_admins_are_known_by_their_addresses() -> None:
    """So that callers without a key that holds are logged there, too."""
    access, for_admins = Access(ROUTES), {route.address for route in ROUTES if route.scope.least == "admin"}
    assert {path for _, path in RULES if access.is_for_admins(path.replace("{", "").replace("}", ""))} == for_admins
    assert {"/v1/work", "/v1/server/_mem", "/v1/reset"} <= for_admins


# -- the walk


class World:
    """A server that others can reach, with a key for each kind of caller, and something to ask about."""

    def __init__(self, server: ServerProcess, api: Api, tokens: dict[str, str]) -> None:
        self.server, self.api = server, api
        self.callers = {name: {"authorization": f"Bearer {token}"} for name, token in tokens.items()}
        self.callers |= {"no key": {}, "unknown key": {"authorization": "Bearer hr_0_unknown"}}
        admin = self.callers["admin"]
        for stream in ("other/x", "other/wake", "requests"):
            assert api.put(f"/v1/stream/{stream}", None, {**admin, **JSON}).status_code == 201
        for path, body in (
            ("/v1/stream/other/x/_schema", {"schema": EVENT, "search": SEARCH}),
            ("/v1/register", {"descriptors": [ORDERS, USERS]}),
            ("/v1/register", {"descriptors": [BOUND_SOURCE], "app": "bound"}),
            ("/v1/entity-types", {**BODIES["post", "/v1/entity-types"], "entity_type": "guest"}),
        ):
            answer = api.post(path, body, admin)
            assert answer.status_code < 300, answer.text
        assert api.put(HOOK.format(id="s1"), BODIES["put", HOOK], admin).status_code == 201
        people = [{"entity_type": "guest", "email": email, "note": "n"} for email in ("a@x.org", "b@x.org")]
        entities = api.post("/v1/observations", {"entities": people}, admin).json()["entities"]
        self.id, self.other = (entity["entity_id"] for entity in entities)

    def ask(self, verb: str, path: str, caller: str) -> Any:
        words = {
            "name": "other/x", "key": "k",
            "event": "Bound" if "registry" in path else "Order",
            "table": "Users", "entity_type": "guest", "field": "note",
            "run_id": "r1", "path": "other/x", "id": self.id if path.startswith(ONE) else "s1",
        }  # fmt: skip
        body = None
        if verb in ("post", "put") and (verb, path) != ("put", STREAM):
            text = json.dumps(BODIES.get((verb, path), {}))
            body = text.replace("{id}", self.id).replace("{other}", self.other).encode()
        headers = {**self.callers[caller], **JSON}
        return self.api.call(verb.upper(), path.format(**words), body, headers, **QUERIES.get((verb, path), {}))


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "tls"])
def world(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[World]:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api

    directory = tmp_path_factory.mktemp("admission")
    data = directory / "data"
    data.mkdir(mode=0o700)
    with closing(KeyStore(data / "keys.db")) as keys:
        tokens = {
            name: keys.create(user_id="ann", scopes=[scope], prefix=prefix, name=name)[1]
            for name, (scope, prefix) in CALLERS.items()
        }
    settings = {"server__host": "0.0.0.0", "system__traces_stream": "other/x", "features__test_mode": "true"}
    trusted = None
    if request.param:
        cert_file, key_file = write_certificate(directory)
        settings |= {"server__tls_cert": str(cert_file), "server__tls_key": str(key_file)}
        trusted = ssl.create_default_context(cafile=str(cert_file))
    server = ServerProcess(data, settings).start()
    assert server.url.startswith("https:" if request.param else "http:")
    api = Api(server.url.replace("0.0.0.0", "127.0.0.1"), trusted)
    try:
        yield World(server, api, tokens)
    finally:
        api.client.close()
        server.kill()


def expected(rule: Rule, caller: str) -> int | None:
    """401, 403, or None where the caller is let in."""
    if rule.needs == "open":
        return None
    if rule.needs == "proof":
        return 401
    if caller not in CALLERS:
        return 401
    scope, prefix = CALLERS[caller]
    if rule.is_hidden and prefix:
        return 404
    may = LEVELS[scope] >= LEVELS[rule.needs] and (rule.elsewhere or not prefix)
    return None if may else 403


def status_class(rule: Rule, caller: str, status: int) -> int | None:
    """401, 403, any failure of the server, or None for what is said to those who are let in."""
    if rule.is_hidden and CALLERS.get(caller, ("", ""))[1] and status in (204, 404):
        return 404  # to remove what is not there is no error
    if rule.needs == "proof" and 400 <= status < 500:
        return 401  # of a wake that nobody was told of, other things may be wrong as well
    return status if status in (401, 403) or status >= 500 else None


def test_every_route_serves_whom_it_should_and_nobody_else(world: World) -> None:
    wrong = []
    # Whoever is refused first: who is let in may remove what the next one asks about.
    callers = ["no key", "unknown key", "limited", "admin of mine/", "read", "write", "admin"]
    for (verb, path), rule in RULES.items():
        for caller in callers:
            answer = world.ask(verb, path, caller)
            if status_class(rule, caller, answer.status_code) != expected(rule, caller):
                wrong.append(f"{verb} {path} as {caller}: {answer.status_code} {answer.text[:150]}")
    assert not wrong, "\n".join(wrong)


def test_a_subscription_that_a_key_does_not_see_stays_when_the_key_removes_it(world: World) -> None:
    path, admin = HOOK.format(id="s2"), world.callers["admin"]
    assert world.api.put(path, BODIES["put", HOOK], admin).status_code == 201
    world.api.call("DELETE", path, None, world.callers["limited"])
    assert world.api.get(path, admin).status_code == 200


def test_a_question_about_a_request_does_not_tell_which_streams_there_are(world: World) -> None:
    for stream in ("other/wake", "other/absent"):
        body = {"streams": {"events": stream, "traces": stream}, "lookup": {"requestId": "r"}}
        assert world.api.post("/v1/observe/request", body, world.callers["limited"]).status_code == 403


def test_refused_admin_requests_are_logged_and_others_are_not(world: World, code_of: Code) -> None:
    asked = [("get", "/v1/work"), ("get", STREAM), ("post", "/v1/entity-types"), ("post", STREAM)]
    for verb, path in asked:
        for caller in world.callers:
            world.ask(verb, path, caller)
    shared = {**world.callers["write"], "x-request-id": "shared"}
    assert code_of(world.api.get("/v1/stream/entities/guest", shared)) == "forbidden"
    assert (
        code_of(world.api.get("/v1/stream/entities/guest?x", {**shared, "content-encoding": "identity"})) == "forbidden"
    )
    lines = [json.loads(line) for line in world.server.log().splitlines() if "headrace.audit" in line]
    told = {(line["method"], line["path"], line.get("user_id")) for line in lines}
    assert told >= {("GET", "/v1/work", "ann"), ("GET", "/v1/work", None), ("POST", "/v1/entity-types", "ann")}
    assert ("GET", "/v1/stream/entities/guest", "ann") in told
    assert not any(path.startswith("/v1/stream/other") for _, path, _ in told)
    assert {line["level"] for line in lines} == {"warning"}
    assert [line["path"] for line in lines if line.get("request_id") == "shared"]
    assert len(lines) <= 121
    assert all(token not in world.server.log() for token in map(str, world.callers.values()))
