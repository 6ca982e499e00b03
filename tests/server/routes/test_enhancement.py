"""What fragments speak for and what becomes of it, over HTTP, as the document says; and who may see and do what."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from headrace.storage.keys import KeyStore
from server.routes.test_entity_types import TYPES, Keyed, Kind, fits, payload

if TYPE_CHECKING:
    from server.conftest import Api

ONE = f"{TYPES}/{{entity_type}}"
GLOBAL = {"scope": "global"}


@pytest.fixture
def contact(api: Api) -> Kind:
    kind = Kind(api)
    assert kind.register().status_code == 200
    return kind


def store(kind: Kind, count: int = 3, **values: Any) -> list[str]:
    """Contacts with fragments, each from a request of its own."""
    found = []
    for number in range(count):
        given = {key: value(number) if callable(value) else value for key, value in values.items()}
        entity = {"entity_type": kind.name, "email": f"{number}@x.yz", **given}
        answer = kind.api.post("/v1/observations", {"entities": [entity]})
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["entities"][0]["entity_id"])
    return found


def named(number: int) -> str:
    return f"n{number}"


def snapshot(kind: Kind, entity_id: str) -> dict[str, Any]:
    found: dict[str, Any] = kind.api.get(f"/v1/entities/{entity_id}").json()["snapshot"]
    return found


def test_candidates_come_with_their_evidence(contact: Kind) -> None:
    store(contact, nick=named, _test_x=1)
    answer = contact.get("/candidates")
    body = answer.json()
    fits(f"{ONE}/candidates", "get", body)
    assert body["schema_version"] == "1.0.0"
    assert body["scope"] == "user"
    assert body["user_id"] == "local"
    assert body["coverage"] == {"complete": True, "observations": 3, "missing": 0, "truncated": False}
    nick = next(one for one in body["candidates"] if one["fragment_key"] == "nick")
    assert nick["frequency"] == 3
    assert nick["sources"] == 3
    assert nick["field_type"] == "string"
    assert nick["promotable"] is True
    assert nick["types"] == {"string": 3}
    assert nick["type_share"] == 1.0
    assert nick["change"] == "add_field"
    assert nick["status"] is None
    banned = next(one for one in body["candidates"] if one["fragment_key"] == "_test_x")
    assert banned["reasons"][0]["code"] == "blacklisted"
    only = contact.get("/candidates", promotable="true").json()["candidates"]
    assert [one["fragment_key"] for one in only] == ["nick"]


def test_an_enhancement_is_a_dry_run_unless_it_says_otherwise(contact: Kind) -> None:
    ids = store(contact, nick=named)
    planned = contact.post("enhance", **GLOBAL, migrate_existing=True)
    fits(f"{ONE}/enhance", "post", planned.json())
    assert planned.json()["dry_run"] is True
    assert planned.json()["schema_version"] == "1.1.0"
    assert planned.json()["change"] is None
    assert planned.json()["migration"] == {"dry_run": True, "fragments": {"nick": 3}}
    assert contact.get().json()["schema_version"] == "1.0.0"
    done = contact.post("enhance", **GLOBAL, migrate_existing=True, dry_run=False).json()
    fits(f"{ONE}/enhance", "post", done)
    assert done["bump"] == "minor"
    assert done["fields_added"] == ["nick"]
    assert done["active"] is True
    assert done["migration"]["state"] == "completed"
    assert done["migration"]["migrated"] == 3
    assert snapshot(contact, ids[1])["nick"] == "n1"
    again = contact.post("enhance", **GLOBAL, dry_run=False).json()
    assert again["changed"] is False
    assert again["promoted"] == []
    assert again["schema_version"] == "1.1.0"
    (found,) = contact.get("/recommendations", scope="global").json()["recommendations"]
    assert found["key"] == f"auto_enhance_{contact.name}_nick_global"
    assert found["status"] == "applied"
    assert found["can_rollback"] is True


def test_single_fields_are_promoted_and_refused_by_name(contact: Kind) -> None:
    store(contact, nick=named, town=named, weak=lambda number: "w" if number else None)
    done = contact.post("enhance", **GLOBAL, fields=["town"], dry_run=False).json()
    assert done["fields_added"] == ["town"]
    refused = contact.post("enhance", **GLOBAL, fields=["weak"], dry_run=False)
    assert refused.status_code == 400
    assert refused.json()["error"]["problems"][0]["code"] == "too_few_occurrences"
    forced = contact.post("enhance", **GLOBAL, fields=["weak"], force=True, dry_run=False)
    assert forced.json()["fields_added"] == ["weak"]


def test_settings_are_kept_and_a_type_grows_by_itself(contact: Kind) -> None:
    assert contact.get("/enhancement").json()["settings"]["enabled"] is False
    answer = contact.post("enhancement", **GLOBAL, enabled=True, threshold=2, blacklist=["x*", {"pattern": "y*"}])
    fits(f"{ONE}/enhancement", "post", answer.json())
    assert answer.json()["settings"]["blacklist"][1] == {"pattern": "y*", "entity_type": None, "user_id": None}
    ids = store(contact, 2, nick=named, xx=named)
    deadline = time.monotonic() + 15
    while "nick" not in snapshot(contact, ids[0]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    told = contact.get("/enhancement", scope="global").json()
    fits(f"{ONE}/enhancement", "get", told)
    assert told["is_set"] is True
    assert any(run["outcome"].get("fields") == ["nick"] for run in told["runs"])
    (found,) = contact.get("/recommendations", scope="global").json()["recommendations"]
    assert found["field"] == "nick"
    assert found["status"] == "auto_applied"
    assert "xx" not in contact.get().json()["schema_definition"]["fields"]


def test_what_is_rejected_is_not_promoted(contact: Kind) -> None:
    store(contact, nick=named)
    decided = contact.post("recommendations", **GLOBAL, field="nick", status="rejected")
    fits(f"{ONE}/recommendations", "post", decided.json())
    listed = contact.get("/recommendations", scope="global").json()
    fits(f"{ONE}/recommendations", "get", listed)
    assert [one["status"] for one in listed["recommendations"]] == ["rejected"]
    assert contact.post("enhance", **GLOBAL, dry_run=False).json()["changed"] is False
    assert contact.post("recommendations", **GLOBAL, field="no", status="rejected").status_code == 404


def test_a_migration_is_told_of_and_undone(contact: Kind) -> None:
    ids = store(contact, nick=named)
    contact.post("update", fields_to_add=[{"field_name": "nick", "field_type": "string"}])
    planned = contact.post("migrate", fields=["nick"], dry_run=True).json()
    fits(f"{ONE}/migrate", "post", planned)
    assert planned["fragments"] == {"nick": 3}
    done = contact.post("migrate", fields=["nick"]).json()
    fits(f"{ONE}/migrate", "post", done)
    assert done["state"] == "completed"
    assert done["migrated"] == 3
    assert done["scope"] == "user"
    run = f"/migrations/{done['run_id']}"
    told = contact.get(run).json()
    fits(f"{ONE}/migrations/{{run_id}}", "get", told)
    listed = contact.get("/migrations").json()
    fits(f"{ONE}/migrations", "get", listed)
    assert listed["migrations"] == [told]
    undone = contact.post(f"{run[1:]}/undo").json()
    fits(f"{ONE}/migrations/{{run_id}}/undo", "post", undone)
    assert undone["undone"] is True
    assert [snapshot(contact, one).get("nick") for one in ids] == [None] * 3
    actions = [one["action"] for one in contact.get("/history").json()["changes"]]
    assert actions == ["register", "update", "migrate", "migrate", "undo"]


def test_an_update_moves_what_was_stored(contact: Kind) -> None:
    ids = store(contact, 1, nick=named)
    field = {"field_name": "nick", "field_type": "string"}
    done = contact.post("update", fields_to_add=[field], migrate_existing=True).json()
    fits(f"{ONE}/update", "post", done)
    assert done["migration"]["state"] == "completed"
    assert done["migration"]["migrated"] == 1
    assert snapshot(contact, ids[0])["nick"] == "n0"


def test_users_reconcile_with_everybody(contact: Kind) -> None:
    field = {"field_name": "nick_name", "field_type": "string"}
    for user in ("u1", "u2", "u3"):
        contact.post("update", scope="user", user_id=user, fields_to_add=[field])
        entities = [{"entity_type": contact.name, "email": f"{n}@{user}.yz"} for n in range(50)]
        answer = contact.api.post("/v1/observations", {"entities": entities, "user_id": user})
        assert answer.status_code == 200, answer.text
    planned = contact.post("reconcile").json()
    fits(f"{ONE}/reconcile", "post", planned)
    assert planned["dry_run"] is True
    assert planned["agreements"][0]["users"] == 3
    done = contact.post("reconcile", dry_run=False).json()
    assert done["fields_added"] == ["nick_name"]
    assert done["schema_version"] == "1.1.0"


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("enhance", {"unknown": 1}),
        ("enhance", {"fields": []}),
        ("enhance", {"scope": "all"}),
        ("enhancement", {"threshold": 0}),
        ("enhancement", {"min_type_share": 1.5}),
        ("enhancement", {"trusted_sources": ["nobody"]}),
        ("enhancement", {"blacklist": [""]}),
        ("migrate", {}),
        ("migrate", {"fields": ["never"]}),
        ("recommendations", {"field": "x", "status": "applied"}),
        ("reconcile", {"fields": []}),
    ],
)
def test_what_cannot_be_meant_is_refused(contact: Kind, verb: str, body: dict[str, Any]) -> None:
    answer = contact.post(verb, **body)
    assert (answer.status_code, "code" in answer.json()["error"]) == (400, True), answer.text


@pytest.mark.parametrize("rest", ["/candidates?limit=3", "/candidates?scope=all", "/candidates?promotable=1"])
def test_parameters_that_cannot_be_meant_are_refused(contact: Kind, rest: str) -> None:
    assert contact.api.get(f"{TYPES}/{contact.name}{rest}").status_code == 400


def test_types_that_nobody_has_are_not_found(contact: Kind) -> None:
    for path in ("candidates", "enhancement", "migrations/mig_x", "recommendations"):
        assert contact.api.get(f"{TYPES}/nothing_here/{path}").status_code == 404
    assert contact.api.post(f"{TYPES}/nothing_here/enhance", {}).status_code == 404


@pytest.fixture
def keyed(start_server: Any, api_of: Callable[..., Api]) -> Keyed:
    server = start_server()
    keys = KeyStore(server.data_dir / "keys.db")
    scopes = {"root": ["admin"], "ann": ["write"], "bob": ["write"], "eve": ["read"]}
    return Keyed(api_of(server), {user: keys.create(user_id=user, scopes=one)[1] for user, one in scopes.items()})


def test_a_migration_of_everybody_is_found_and_undone_without_naming_its_scope(contact: Kind) -> None:
    ids = store(contact, nick=named)
    wish = {"fields_to_add": [{"field_name": "nick", "field_type": "string"}], "migrate_existing": True}
    run_id = contact.post("update", **wish).json()["migration"]["run_id"]
    listed = contact.get("/migrations").json()["migrations"]
    assert [(one["run_id"], one["scope"]) for one in listed] == [(run_id, "global")]
    assert contact.get("/migrations", scope="user").json()["migrations"] == []
    assert contact.get(f"/migrations/{run_id}").json() == listed[0]
    assert contact.get(f"/migrations/{run_id}", scope="user").status_code == 404
    assert contact.post(f"migrations/{run_id}/undo", scope="user").status_code == 404
    assert contact.post(f"migrations/{run_id}/undo").json()["undone"] is True
    assert "nick" not in snapshot(contact, ids[0])


def test_migrations_of_everybody_are_for_operators(keyed: Keyed) -> None:
    one = f"{TYPES}/contact"
    assert keyed.status("root", "POST", TYPES, payload("contact")) == 200
    wish = {"fields_to_add": [{"field_name": "nick", "field_type": "string"}], "migrate_existing": True}
    run_id = keyed.call("root", "POST", f"{one}/update", wish).json()["migration"]["run_id"]
    assert keyed.call("ann", "GET", f"{one}/migrations").json()["migrations"] == []
    assert keyed.status("ann", "GET", f"{one}/migrations", scope="global") == 403
    assert keyed.status("ann", "GET", f"{one}/migrations/{run_id}") == 404
    assert keyed.status("ann", "POST", f"{one}/migrations/{run_id}/undo", {}) == 404
    assert keyed.status("ann", "POST", f"{one}/migrations/{run_id}/undo", {"scope": "global"}) == 403
    assert keyed.call("root", "POST", f"{one}/migrations/{run_id}/undo", {}).json()["undone"]


def test_a_dry_run_does_not_claim_a_change(contact: Kind) -> None:
    store(contact, nick=named)
    add = {"fields_to_add": [{"field_name": "age", "field_type": "number"}]}
    for answer in (
        contact.post("enhance", **GLOBAL),
        contact.post("reconcile"),
        contact.post("update", **add, dry_run=True),
        contact.post("deactivate", schema_version="1.0.0", dry_run=True),
    ):
        body = answer.json()
        assert answer.status_code == 200
        assert body["success"] is True
        assert body["dry_run"] is True
        assert body["changed"] is False
    done = contact.post("enhance", **GLOBAL, dry_run=False).json()
    assert done["dry_run"] is False
    assert done["changed"] is True


def test_a_user_sees_and_changes_only_their_own(keyed: Keyed) -> None:
    one = f"{TYPES}/contact"
    assert keyed.status("root", "POST", TYPES, payload("contact")) == 200
    for number in range(3):
        said = {"entities": [{"entity_type": "contact", "email": f"{number}@x.yz", "secret": f"s{number}"}]}
        assert keyed.status("ann", "POST", "/v1/observations", said) == 200
    users = ("ann", "bob", "eve", "root")
    seen = [keyed.call(user, "GET", f"{one}/candidates").json()["candidates"] for user in users]
    assert [len(found) for found in seen] == [1, 0, 0, 0]
    everybody = keyed.call("root", "GET", f"{one}/candidates", scope="global").json()["candidates"]
    assert [(found["fragment_key"], found["users"]) for found in everybody] == [("secret", 1)]
    for user in ("ann", "bob"):
        assert keyed.status(user, "GET", f"{one}/candidates", scope="global") == 403
        assert keyed.status(user, "POST", f"{one}/reconcile", {}) == 403
        assert keyed.status(user, "POST", f"{one}/enhance", {"scope": "global"}) == 403
        assert keyed.status(user, "POST", f"{one}/enhancement", {"scope": "global"}) == 403
    assert keyed.status("bob", "GET", f"{one}/candidates", user_id="ann") == 403
    assert keyed.status("bob", "POST", f"{one}/enhance", {"user_id": "ann"}) == 403
    assert keyed.status("eve", "POST", f"{one}/enhance", {}) == 403
    wish = {"dry_run": False, "migrate_existing": True}
    done = keyed.call("ann", "POST", f"{one}/enhance", wish).json()
    assert done["scope"] == "user"
    assert done["user_id"] == "ann"
    assert done["migration"]["migrated"] == 3
    run = f"{one}/migrations/{done['migration']['run_id']}"
    assert [keyed.status(user, "GET", run) for user in ("ann", "bob")] == [200, 404]
    assert [keyed.status(user, "POST", f"{run}/undo", {}) for user in ("bob", "ann")] == [404, 200]
    assert "secret" not in keyed.call("bob", "GET", one).json()["schema_definition"]["fields"]
