from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from headrace.server.routes.route_table import openapi_document
from headrace.storage.keys import KeyStore

if TYPE_CHECKING:
    from server.conftest import Api

TYPES = "/v1/entity-types"
DOCUMENT = openapi_document()
_numbers = itertools.count(1)


def fits(path: str, verb: str, body: Any, status: int = 200) -> None:
    """Check an answer against what the document says of it."""
    answer = DOCUMENT["paths"][path][verb]["responses"][str(status)]
    schema = answer["content"]["application/json"]["schema"] | {"components": DOCUMENT["components"]}
    jsonschema_rs.validate(schema, body)


def payload(entity_type: str, version: str = "1.0.0", **more: Any) -> dict[str, Any]:
    return {
        "entity_type": entity_type,
        "schema_version": version,
        "schema_definition": {
            "fields": {"name": {"type": "string"}, "email": {"type": "string", "validator": "email"}},
            "canonical_name_fields": ["email"],
        },
        "reducer_config": {"merge_policies": {}},
        "activate": True,
        **more,
    }


class Kind:
    """One entity type on a server."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.name = f"contact_{next(_numbers)}"

    def register(self, version: str = "1.0.0", **more: Any) -> Any:
        return self.api.post(TYPES, payload(self.name, version, **more))

    def post(self, verb: str, **wishes: Any) -> Any:
        return self.api.post(f"{TYPES}/{self.name}/{verb}", wishes)

    def get(self, rest: str = "", **query: Any) -> Any:
        return self.api.get(f"{TYPES}/{self.name}{rest}", **query)


@pytest.fixture
def kind(api: Api) -> Kind:
    return Kind(api)


@pytest.fixture
def contact(kind: Kind) -> Kind:
    assert kind.register().status_code == 200
    return kind


def test_a_registration_answers_what_was_stored(kind: Kind) -> None:
    answer = kind.register("1.0", activate=False)
    body = answer.json()
    fits(TYPES, "post", body)
    assert answer.status_code == 200
    assert body["success"] is True
    assert body["scope"] == "global"
    assert body["schema_version"] == "1.0.0"
    assert body["active"] is False
    assert body["warnings"] == []
    assert body["plan"]["refusals"] == []
    assert body["change"] > 0
    (version,) = kind.get("/versions").json()["versions"]
    assert version["schema_id"] == body["schema_id"]
    assert version["active"] is False
    assert kind.get().status_code == 404


def test_a_definition_of_mere_fields_is_taken_with_a_warning(kind: Kind) -> None:
    answer = kind.register(schema_definition={"fields": {"name": {"type": "string"}}})
    assert answer.status_code == 200
    assert [one["code"] for one in answer.json()["warnings"]] == ["IDENTITY_OPT_OUT_IMPLIED"]
    assert kind.get().json()["schema_definition"]["identity_opt_out"] == "heuristic_canonical_name"


def test_a_new_field_is_of_use_at_once(contact: Kind) -> None:
    answer = contact.post("update", fields_to_add=[{"field_name": "age", "field_type": "number"}])
    body = answer.json()
    fits(f"{TYPES}/{{entity_type}}/update", "post", body)
    assert answer.status_code == 200
    assert body["schema_version"] == "1.1.0"
    assert body["previous_version"] == "1.0.0"
    assert body["bump"] == "minor"
    assert body["fields_added"] == ["age"]
    assert body["fields_removed"] == []
    assert body["active"] is True
    found = contact.get().json()
    fits(f"{TYPES}/{{entity_type}}", "get", found)
    assert found["schema_version"] == "1.1.0"
    assert found["schema_definition"]["fields"]["age"] == {"type": "number"}
    assert found["stream"] == f"entities/{contact.name}"
    stored = contact.api.post(
        "/v1/observations", {"entities": [{"entity_type": contact.name, "email": "a@x.example", "age": 7}]}
    )
    assert stored.status_code == 200
    assert stored.json()["entities"][0].get("unknown_fields", []) == []


def test_a_repeated_version_is_a_conflict(contact: Kind) -> None:
    answer = contact.register(schema_definition={"fields": {"other": {"type": "string"}}})
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "version_taken"
    assert answer.json()["error"]["problems"][0]["path"] == "/schema_version"
    assert "other" not in contact.get().json()["schema_definition"]["fields"]


@pytest.mark.parametrize("missing", ["entity_type", "schema_version", "schema_definition", "reducer_config"])
def test_what_a_version_needs_is_asked_for(kind: Kind, missing: str) -> None:
    given = payload(kind.name)
    for body in ({name: value for name, value in given.items() if name != missing}, {**given, missing: None}):
        answer = kind.api.post(TYPES, body)
        assert answer.status_code == 400
        assert [one["path"] for one in answer.json()["error"]["problems"]] == [f"/{missing}"]


def test_every_problem_is_told_at_once(kind: Kind) -> None:
    definition = {
        "fields": {
            "name": {"type": "text"},
            "at": {
                "type": "date",
                "validator": "is_nice",
                "converters": [
                    {"from": "number", "to": "date", "function": "guess", "deterministic": True},
                    {"from": "number", "to": "string", "function": "number_to_string", "deterministic": True},
                    {"from": "number", "to": "date", "function": "timestamp_ms_to_iso", "deterministic": False},
                ],
            },
        },
        "canonical_name_fields": ["gone"],
        "temporal_fields": [{"field": "never"}],
    }
    config = {"merge_policies": {"nowhere": {"strategy": "last_write"}, "at": {"strategy": "best"}}}
    answer = kind.register("one", schema_definition=definition, reducer_config=config, odd=1)
    assert answer.status_code == 400
    fits(TYPES, "post", answer.json(), 400)
    paths = {problem["path"] for problem in answer.json()["error"]["problems"]}
    fields = "/schema_definition/fields"
    assert paths >= {
        "/odd",
        "/schema_version",
        f"{fields}/name/type",
        f"{fields}/at/validator",
        f"{fields}/at/converters/0/function",
        f"{fields}/at/converters/2/deterministic",
        "/schema_definition/canonical_name_fields/0",
        "/schema_definition/temporal_fields/0/field",
        "/reducer_config/merge_policies/nowhere",
        "/reducer_config/merge_policies/at/strategy",
    }
    assert any(path.startswith(f"{fields}/at/converters/1") for path in paths)


def test_a_definition_without_identity_is_refused(kind: Kind) -> None:
    definition = {"fields": {"name": {"type": "string"}}, "aliases": ["somebody_else"]}
    answer = kind.register(schema_definition=definition)
    assert answer.status_code == 400
    assert [one["code"] for one in answer.json()["error"]["problems"]] == ["identity_missing"]


@pytest.mark.parametrize("verb", ["update", "activate", "deactivate"])
@pytest.mark.parametrize("body", [{"odd": 1, "schema_version": "1.0.0"}, [], 1, {"schema_version": "x.y"}])
def test_what_a_change_cannot_mean_is_refused(contact: Kind, verb: str, body: Any) -> None:
    answer = contact.api.post(f"{TYPES}/{contact.name}/{verb}", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["problems"]


def test_unknown_parameters_are_refused(contact: Kind) -> None:
    for rest in ("", "/versions", "/history", "/export"):
        answer = contact.get(rest, odd=1)
        assert answer.status_code == 400
        assert answer.json()["error"]["field"] == "odd"
    assert contact.api.get(TYPES, odd=1).status_code == 400
    assert contact.api.call("POST", TYPES, payload("x"), odd=1).status_code == 400
    for rest, query in (("/versions", {"limit": 0}), ("/history", {"after": "x"}), ("", {"scope": "team"})):
        assert contact.get(rest, **query).status_code == 400


def test_a_dry_run_is_a_plan_and_nothing_else(contact: Kind) -> None:
    wishes = {"fields_to_remove": ["name"]}
    for answer in (
        contact.post("update", **wishes, dry_run=True),
        contact.api.call("POST", f"{TYPES}/{contact.name}/update", wishes, dry_run="true"),
    ):
        body = answer.json()
        assert answer.status_code == 200
        assert body["dry_run"] is True
        assert body["success"] is True
        assert body["change"] is None
        assert body["schema_version"] == "2.0.0"
        assert body["schema_id"] is None
        assert body["fields_removed"] == ["name"]
        assert body["plan"]["impact"] == [{"subject": "snapshots", "effect": "kept", "entities": 0, "observations": 0}]
    refused = contact.register(dry_run=True)
    assert refused.status_code == 200
    assert refused.json()["success"] is False
    assert [one["code"] for one in refused.json()["plan"]["refusals"]] == ["version_taken"]
    assert len(contact.get("/versions").json()["versions"]) == 1


def test_a_plan_counts_what_it_concerns(contact: Kind) -> None:
    entities = [{"entity_type": contact.name, "email": f"{n % 3}@x.example", "name": f"n{n}"} for n in range(6)]
    assert contact.api.post("/v1/observations", {"entities": entities}).status_code == 200
    plan = contact.post("update", fields_to_remove=["name"], dry_run=True).json()["plan"]
    assert plan["impact"] == [{"subject": "snapshots", "effect": "kept", "entities": 3, "observations": 6}]


def test_another_identity_rule_tells_what_it_would_make_of_entities(contact: Kind) -> None:
    given = [("a@x.example", "Ann"), ("b@x.example", "Ann"), ("c@x.example", "Cid"), ("d@x.example", None)]
    entities = [{"entity_type": contact.name, "email": email, "name": name} for email, name in given]
    assert contact.api.post("/v1/observations", {"entities": entities}).status_code == 200
    assert contact.post("update", fields_to_remove=["name"], dry_run=True).json()["rekey"] is None
    body = contact.post("update", canonical_name_fields=["name"], dry_run=True).json()
    fits(f"{TYPES}/{{entity_type}}/update", "post", body)
    assert body["bump"] == "major"
    assert body["plan"]["classification"] == "destructive"
    found = body["rekey"]
    assert found.pop("examples")[0].keys() >= {"entity_id", "new_entity_id", "canonical_name"}
    assert found == {"checked": 4, "kept": 1, "renamed": 3, "merging": 1, "unresolved": 0, "complete": True}
    done = contact.post("update", canonical_name_fields=["name"]).json()
    assert done["schema_version"] == "2.0.0"
    assert done["rekey"] is None
    back = contact.post("activate", schema_version="1.0.0", dry_run=True).json()["rekey"]
    assert back["checked"] == 4
    assert back["kept"] == 4


def test_activation_goes_forth_and_back(contact: Kind) -> None:
    contact.post("update", fields_to_add=[{"field_name": "age", "field_type": "number"}])
    back = contact.post("activate", schema_version="1.0").json()
    fits(f"{TYPES}/{{entity_type}}/activate", "post", back)
    assert back["schema_version"] == "1.0.0"
    assert back["previous_version"] == "1.1.0"
    assert back["active"] is True
    assert contact.get().json()["schema_version"] == "1.0.0"
    off = contact.post("deactivate", schema_version="1.0.0").json()
    fits(f"{TYPES}/{{entity_type}}/deactivate", "post", off)
    assert off["active"] is False
    assert contact.get().status_code == 404
    assert contact.post("activate", schema_version="9.0.0").status_code == 404
    assert contact.get(schema_version="1.1.0").json()["active"] is False


def test_versions_and_changes_are_paged(contact: Kind) -> None:
    for number in range(4):
        contact.post("update", fields_to_add=[{"field_name": f"f{number}", "field_type": "string"}])
    first = contact.get("/versions", limit=3).json()
    fits(f"{TYPES}/{{entity_type}}/versions", "get", first)
    rest = contact.get("/versions", limit=3, after=first["next"]).json()
    versions = [one["schema_version"] for one in (*first["versions"], *rest["versions"])]
    assert versions == ["1.4.0", "1.3.0", "1.2.0", "1.1.0", "1.0.0"]
    assert rest["next"] is None
    assert contact.get("/versions", after="nothing").status_code == 400
    page = contact.get("/history", limit=2).json()
    fits(f"{TYPES}/{{entity_type}}/history", "get", page)
    assert [(one["action"], one["to_version"], one["who"]) for one in page["changes"]] == [
        ("register", "1.0.0", "local"),
        ("update", "1.1.0", "local"),
    ]
    more = contact.get("/history", after=page["next"], limit=9).json()
    assert [one["to_version"] for one in more["changes"]] == ["1.2.0", "1.3.0", "1.4.0"]
    assert more["next"] is None


def test_types_are_listed_and_searched(contact: Kind) -> None:
    label = f"Label{contact.name}"
    contact.post("update", metadata={"label": label})
    found = contact.api.get(TYPES, keyword=label.lower()).json()
    fits(TYPES, "get", found)
    assert [(one["entity_type"], one["effective"]) for one in found["entity_types"]] == [(contact.name, True)]
    contact.post("update", user_specific=True, fields_to_add=[{"field_name": "mine", "field_type": "string"}])
    both = contact.api.get(TYPES, keyword=label).json()["entity_types"]
    assert [(one["scope"], one["effective"]) for one in both] == [("global", False), ("user", True)]


def test_exports_are_files_with_the_same_bytes(contact: Kind) -> None:
    first = contact.get("/export")
    fits(f"{TYPES}/{{entity_type}}/export", "get", first.json())
    assert [one["path"] for one in first.json()["files"]] == [f"schema_snapshots/{contact.name}/v1.0.0.json"]
    assert contact.get("/export").content == first.content


def test_an_alias_is_another_name_of_the_type(kind: Kind) -> None:
    definition = {**payload("x")["schema_definition"], "aliases": [f"other_{kind.name}"]}
    assert kind.register(schema_definition=definition).status_code == 200
    found = kind.api.get(f"{TYPES}/Other-{kind.name}").json()
    assert found["entity_type"] == kind.name
    taken = kind.api.post(TYPES, payload(f"other_{kind.name}"))
    assert taken.status_code == 409
    assert taken.json()["error"]["code"] == "alias_taken"


def test_the_stream_of_a_type_changes_only_with_it(contact: Kind) -> None:
    stream = f"/v1/stream/entities/{contact.name}"
    for answer in (
        contact.api.delete(stream),
        contact.api.put(stream, headers={"content-type": "application/json"}),
        contact.api.post(f"{stream}/_schema", {"schema": {}}),
    ):
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "managed_stream"


class Keyed:
    """A server whose callers have keys."""

    def __init__(self, api: Api, keys: dict[str, str]) -> None:
        self.api = api
        self._keys = keys

    def call(self, user: str, method: str, path: str, body: Any = None, **query: Any) -> Any:
        headers = {"authorization": f"Bearer {self._keys[user]}"}
        return self.api.call(method, path, body, headers, **query)

    def status(self, user: str, method: str, path: str, body: Any = None, **query: Any) -> int:
        return int(self.call(user, method, path, body, **query).status_code)


@pytest.fixture
def keyed(start_server: Any, api_of: Callable[..., Api]) -> Keyed:
    server = start_server()
    store = KeyStore(server.data_dir / "keys.db")
    scopes = {"root": ["admin"], "ann": ["write"], "bob": ["write"], "eve": ["read"]}
    return Keyed(api_of(server), {user: store.create(user_id=user, scopes=one)[1] for user, one in scopes.items()})


def test_only_operators_change_what_is_global(keyed: Keyed) -> None:
    given, own = payload("contact"), payload("contact", "3.0.0", scope="user")
    assert keyed.status("ann", "POST", TYPES, given) == 403
    assert keyed.status("eve", "POST", TYPES, own) == 403
    assert keyed.status("root", "POST", TYPES, given) == 200
    field = {"fields_to_add": [{"field_name": "a", "field_type": "string"}]}
    for verb, body in (
        ("update", field),
        ("activate", {"schema_version": "1.0.0"}),
        ("deactivate", {"schema_version": "1.0.0"}),
    ):
        assert keyed.status("ann", "POST", f"{TYPES}/contact/{verb}", body) == 403
    assert keyed.status("ann", "POST", f"{TYPES}/contact/update", {**field, "user_specific": True}) == 200
    assert keyed.status("ann", "POST", TYPES, own) == 200
    assert keyed.status("eve", "GET", f"{TYPES}/contact") == 200


def test_what_is_a_users_own_is_theirs_alone(keyed: Keyed) -> None:
    assert keyed.status("ann", "POST", TYPES, payload("diary", scope="user")) == 200
    found = keyed.call("ann", "GET", f"{TYPES}/diary").json()
    assert found["scope"] == "user"
    assert found["user_id"] == "ann"
    for rest in ("", "/versions", "/history", "/export"):
        assert keyed.status("bob", "GET", f"{TYPES}/diary{rest}") == 404
        assert keyed.status("bob", "GET", f"{TYPES}/diary{rest}", user_id="ann") == 403
        assert keyed.status("root", "GET", f"{TYPES}/diary{rest}", user_id="ann") == 200
    assert keyed.call("bob", "GET", TYPES).json()["entity_types"] == []
    field = {"scope": "user", "fields_to_add": [{"field_name": "a", "field_type": "string"}]}
    assert keyed.status("bob", "POST", f"{TYPES}/diary/update", field) == 404
    assert keyed.status("bob", "POST", f"{TYPES}/diary/update", {**field, "user_id": "ann"}) == 403
    for verb in ("activate", "deactivate"):
        body = {"schema_version": "1.0.0", "scope": "user"}
        assert keyed.status("bob", "POST", f"{TYPES}/diary/{verb}", body) == 404
    changed = keyed.call("root", "POST", f"{TYPES}/diary/update", {**field, "user_id": "ann"})
    assert changed.status_code == 200
    assert changed.json()["user_id"] == "ann"
    history = keyed.call("ann", "GET", f"{TYPES}/diary/history").json()["changes"]
    assert [(one["action"], one["who"], one["user_id"]) for one in history] == [
        ("register", "ann", "ann"), ("update", "root", "ann"),
    ]  # fmt: skip
    assert keyed.status("bob", "POST", TYPES, payload("diary", scope="user")) == 200


def test_odd_names_need_force_where_callers_have_keys(keyed: Keyed, api: Api) -> None:
    for name, code in (("contacts", "ERR_PLURAL_ENTITY_TYPE"), ("test_thing", "ERR_FORBIDDEN_ENTITY_TYPE")):
        refused = keyed.call("root", "POST", TYPES, payload(name))
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == code
        forced = keyed.call("root", "POST", TYPES, payload(name, force=True))
        assert forced.status_code == 200
        assert [one["code"] for one in forced.json()["warnings"]] == [code]
        warned = api.post(TYPES, payload(name, dry_run=True))
        assert warned.status_code == 200
        assert [one["code"] for one in warned.json()["warnings"]] == [code]


def test_types_are_there_after_a_restart(start_server: Any, api_of: Callable[..., Api]) -> None:
    server = start_server()
    kind = Kind(api_of(server))
    kind.register()
    kind.post("update", fields_to_add=[{"field_name": "age", "field_type": "number"}])
    before = kind.get("/versions").content
    server.kill()
    again = Kind(api_of(start_server()))
    again.name = kind.name
    assert again.get("/versions").content == before
    assert again.post("update", fields_to_remove=["age"]).json()["schema_version"] == "2.0.0"


def test_clients_that_change_and_store_together_leave_nothing_torn(
    start_server: Any, api_of: Callable[..., Api]
) -> None:
    api = api_of(start_server())
    kind = Kind(api)
    kind.register()
    wrong: list[Any] = []

    def change(client: int) -> None:
        for number in range(3):
            field = {"field_name": f"f{client}_{number}", "field_type": "string"}
            answers = [kind.post("update", fields_to_add=[field], user_specific=client % 4 == 0)]
            answers.append(kind.register(f"{100 + client}.{number}.0", activate=False))
            wrong.extend(one.text for one in answers if one.status_code != 200)

    def store(client: int) -> None:
        for number in range(12):
            entity = {"entity_type": kind.name, "email": f"{client}-{number}@x.example", "f0_0": "x", "f1_0": "y"}
            answer = api.post("/v1/observations", {"entities": [entity]})
            wrong.extend([answer.text] if answer.status_code != 200 else [])

    threads = [threading.Thread(target=change if n < 12 else store, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    versions = kind.get("/versions", limit=1000).json()["versions"]
    for scope in ("global", "user"):
        assert sum(one["active"] for one in versions if one["scope"] == scope) == 1
    names = {f"f{client}_{number}" for client in range(12) for number in range(3)}
    assert set(kind.get(scope="user").json()["schema_definition"]["fields"]) == {"name", "email", *names}
    shared = {name for name in names if int(name[1:].partition("_")[0]) % 4}
    assert set(kind.get(scope="global").json()["schema_definition"]["fields"]) == {"name", "email", *shared}
    stored = api.get(f"/v1/stream/entities/{kind.name}").json()
    known = {(one["scope"], one["schema_version"]): one["schema_definition"]["fields"] for one in versions}
    assert len(stored) == 48
    for one in stored:
        fields = known.get(("user", one["schema_version"])) or known["global", one["schema_version"]]
        assert set(one["fields"]) <= set(fields)
        assert {*one["fields"], *(fragment["key"] for fragment in one.get("fragments", ()))} == {
            "email",
            "f0_0",
            "f1_0",
        }
