"""``/touch/…`` on the wire: exact shapes, and waits that end when they should and not before."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from headrace.profiles.state_protocol import keys
from headrace.server.routes.route_table import openapi_document
from headrace.storage.keys import KeyStore

DOCUMENT = openapi_document()
STATUS = {"name": "status", "encoding": "string"}
USER = {"name": "userId", "encoding": "int64"}
TEMPLATE = {"entity": "todos", "fields": [STATUS, USER]}
T = keys.template_id("todos", ["status", "userId"])
T_ID = keys.format_key(T)
#: Long enough that what ends sooner was woken.
LONG_MS = 20_000


def key(status: str, user: int) -> str:
    return keys.format_key(keys.watch_key(T, [status, str(user)]))


def insert(status: str, user: int) -> dict[str, Any]:
    return {
        "type": "todos",
        "key": "1",
        "value": {"status": status, "userId": user},
        "headers": {"operation": "insert"},
    }


def fits(path: str, verb: str, document: Any) -> None:
    media = DOCUMENT["paths"][f"/v1/stream/{{name}}/touch/{path}"][verb]["responses"]["200"]["content"]
    jsonschema_rs.validate(media["application/json"]["schema"] | {"components": DOCUMENT["components"]}, document)


class Db:
    """One stream whose touches are told."""

    def __init__(self, api: Any, **touch: Any) -> None:
        self.api = api
        self.path = api.stream()
        self.profile(kind="state-protocol", touch={"enabled": True, **touch})

    def profile(self, **profile: Any) -> None:
        assert self.api.post(f"{self.path}/_profile", {"profile": profile}).status_code == 200

    def append(self, *changes: Any) -> None:
        assert self.api.post(self.path, list(changes)).status_code == 204

    def meta(self, **query: Any) -> Any:
        answer = self.api.get(f"{self.path}/touch/meta", **query)
        assert answer.status_code == 200
        fits("meta", "get", answer.json())
        return answer.json()

    def activate(self, *templates: Any, **more: Any) -> Any:
        answer = self.api.post(f"{self.path}/touch/templates/activate", {"templates": templates, **more})
        assert answer.status_code == 200
        fits("templates/activate", "post", answer.json())
        return answer.json()

    def ask(self, **body: Any) -> httpx2.Response:
        found: httpx2.Response = self.api.client.post(f"{self.path}/touch/wait", json=body, timeout=30)
        return found

    def wait(self, **body: Any) -> Any:
        answer = self.ask(**body)
        assert answer.status_code == 200, answer.content
        assert answer.headers["cache-control"] == "no-store"
        fits("wait", "post", answer.json())
        return answer.json()


@pytest.fixture
def db_of(api: Any) -> Callable[..., Db]:
    return lambda **touch: Db(api, **touch)


class Waiting:
    """A wait in a thread of its own."""

    def __init__(self, db: Db, **body: Any) -> None:
        self._found: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._found.append(db.ask(**body)))
        before = db.meta()["activeWaiters"]
        self._thread.start()
        until = time.monotonic() + 8
        while db.meta()["activeWaiters"] == before and self._thread.is_alive():
            assert time.monotonic() < until
            time.sleep(0.01)

    def answer(self) -> Any:
        self._thread.join(30)
        return self._found[0]


def test_a_stream_that_does_not_tell_touches_says_so(api: Any, code_of: Any) -> None:
    plain, off = api.stream(), Db(api, enabled=False).path
    for path in (plain, off):
        for answer in (
            api.get(f"{path}/touch/meta"),
            api.post(f"{path}/touch/wait", {"cursor": "now", "keys": ["a"]}),
            api.post(f"{path}/touch/templates/activate", {"templates": [TEMPLATE]}),
        ):
            assert (answer.status_code, code_of(answer)) == (404, "not_found")
            assert answer.json()["error"]["message"] == "touch not enabled"


def test_messages_that_are_none_are_refused(db_of: Any, api: Any) -> None:
    path = db_of().path
    answer = api.post(path, [insert("open", 1), {"type": "todos"}])
    assert answer.status_code == 400
    assert answer.json()["error"]["failures"] == [{"index": 1, "pointer": "/headers", "reason": "is not an object"}]
    assert api.get(path).json() == []
    assert api.post(path, {"headers": {"control": "snapshot-start"}}).status_code == 204


def test_meta_says_how_things_stand(db_of: Any) -> None:
    db = db_of(memory={"bucketMs": 50, "k": 3, "filterPow2": 12})
    found = db.meta()
    assert found["cursor"] == f"{found['epoch']}:{found['generation']}"
    assert (found["bucketMs"], found["k"], found["filterSize"]) == (50, 3, 4096)
    assert (found["settled"], found["touchMode"], found["walScannedThrough"]) == (True, "idle", None)
    db.append(insert("open", 1), insert("open", 2))
    after = db.meta(settle="flush")
    assert (after["settled"], after["lagSourceOffsets"], after["pendingKeys"]) == (True, 0, 0)
    assert after["generation"] > found["generation"]
    assert after["bucketMaxSourceOffsetSeq"] == "1"
    assert after["walScannedThrough"] == db.api.offset(db.path)
    assert (after["scanRowsTotal"], after["touchesTableTotal"]) == (2, 2)


def test_settling_takes_no_longer_than_it_may(db_of: Any) -> None:
    db = db_of(memory={"bucketMs": 3_600_000})
    db.meta()
    db.append(insert("open", 1))
    assert db.meta(settle="flush", timeoutMs=50)["settled"] is False
    assert db.meta(settle="flush", timeoutMs=0)["settled"] is False


@pytest.mark.parametrize(
    "query",
    [
        {"settle": "all"},
        {"settle": ""},
        {"x": "1"},
        *({"settle": "flush", "timeoutMs": text} for text in ("", "x", "nan", "inf", "1_0")),
    ],
)
def test_a_wrong_parameter_of_meta_is_refused(db_of: Any, query: Any) -> None:
    db = db_of()
    assert db.api.get(f"{db.path}/touch/meta", **query).status_code == 400


def test_templates_are_activated_once(db_of: Any) -> None:
    db = db_of()
    first, again = db.activate(TEMPLATE), db.activate({**TEMPLATE, "fields": [USER, STATUS]}, inactivityTtlMs=5000)
    active = {"templateId": T_ID, "state": "active", "activeFromTouchOffset": db.meta()["cursor"]}
    assert first == again
    assert first == {
        "activated": [active],
        "denied": [],
        "limits": {"maxActiveTemplatesPerStream": 2048, "maxActiveTemplatesPerEntity": 256},
    }
    assert db.meta()["activeTemplates"] == 1


def test_templates_that_cannot_be_are_denied(db_of: Any) -> None:
    wrong = [{"name": "a", "encoding": "uuid"}], [STATUS, STATUS], [{"name": "a"}], [{"name": "a", "encoding": {}}]
    found = db_of().activate(TEMPLATE, *({"entity": "todos", "fields": fields} for fields in wrong))
    assert [one["templateId"] for one in found["activated"]] == [T_ID]
    assert found["denied"] == [{"templateId": "0" * 16, "reason": "invalid"}] * 4


def test_templates_are_activated_at_a_rate(db_of: Any) -> None:
    db = db_of(templates={"activationRateLimitPerMinute": 1})
    other = {"entity": "users", "fields": [USER]}
    found = db.activate(TEMPLATE, other)
    denied = {"templateId": keys.format_key(keys.template_id("users", ["userId"])), "reason": "rate_limited"}
    assert (len(found["activated"]), found["denied"]) == (1, [denied])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"templates": []},
        {"templates": [TEMPLATE] * 257},
        {"templates": [{"entity": " ", "fields": [USER]}]},
        {"templates": [{"entity": "a", "fields": []}]},
        {"templates": [{"entity": "a", "fields": [USER] * 4}]},
        {"templates": [{"entity": "a", "fields": [{"name": "", "encoding": "string"}]}]},
        {"templates": [{"entity": "a"}]},
        {"templates": [{"entity": "a", "fields": [USER], "x": 1}]},
        {"templates": [TEMPLATE], "inactivityTtlMs": -1},
        {"templates": [TEMPLATE], "x": 1},
        [],
    ],
)
def test_a_wrong_activation_is_refused(db_of: Any, body: Any) -> None:
    db = db_of()
    assert db.api.post(f"{db.path}/touch/templates/activate", body).status_code == 400
    assert db.meta()["activeTemplates"] == 0


def test_a_wait_is_woken_by_its_key(db_of: Any) -> None:
    db = db_of()
    db.activate(TEMPLATE)
    waiting = Waiting(db, cursor="now", keys=[key("open", 1)], timeoutMs=LONG_MS)
    began = time.monotonic()
    db.append(insert("open", 2))
    db.append(insert("open", 1))
    found = waiting.answer().json()
    assert time.monotonic() - began < LONG_MS / 2000
    assert found["touched"] is True
    assert found["effectiveWaitKind"] == "fineKey"
    assert int(found["bucketMaxSourceOffsetSeq"]) == int(found["cursor"].partition(":")[2]) - 1
    assert found["bucketStartMs"] <= found["flushAtMs"]
    assert list(found) == [
        "touched", "cursor", "effectiveWaitKind", "bucketMaxSourceOffsetSeq", "flushAtMs", "bucketStartMs",
    ]  # fmt: skip


@pytest.mark.parametrize("how", [{"keyIds": [keys.id_of_text(key("open", 1))]}, {"keys": [key("open", 1).upper()]}])
def test_a_key_may_be_given_by_its_id_and_in_capitals(db_of: Any, how: Any) -> None:
    db = db_of()
    cursor = db.activate(TEMPLATE)["activated"][0]["activeFromTouchOffset"]
    db.append(insert("open", 1))
    assert db.wait(cursor=cursor, timeoutMs=LONG_MS, **how)["touched"] is True


def test_a_wait_ends_when_its_time_is_up_and_goes_on_from_its_cursor(db_of: Any) -> None:
    db = db_of()
    db.activate(TEMPLATE)
    began = time.monotonic()
    first = db.wait(cursor="now", keys=[key("open", 1)], timeoutMs=150)
    assert (first["touched"], time.monotonic() - began >= 0.15) == (False, True)
    db.append(insert("open", 1))
    assert db.wait(cursor=first["cursor"], keys=[key("open", 1)], timeoutMs=LONG_MS)["touched"] is True
    assert db.wait(cursor="now", keys=[key("open", 1)], timeoutMs=0)["touched"] is False
    assert db.wait(cursor="now", keys=[key("open", 1)], timeoutMs=-5)["touched"] is False
    counted = db.meta()
    assert (counted["waitTouchedTotal"], counted["waitTimeoutTotal"], counted["activeWaiters"]) == (1, 3, 0)


def test_who_waits_from_now_on_is_not_told_of_what_was_before(db_of: Any) -> None:
    db = db_of(memory={"bucketMs": 2_000})
    db.append(insert("open", 1))
    table = keys.format_key(keys.table_key("todos"))
    first = db.wait(cursor="now", keys=[table], timeoutMs=0)
    assert first["cursor"].endswith(":1")
    db.meta(settle="flush")
    assert db.wait(cursor=first["cursor"], keys=[table], timeoutMs=0)["touched"] is False


def test_a_wait_outlives_every_other_limit_of_a_request(start_server: Any, api_of: Any) -> None:
    server = start_server(
        server__resolver_timeout_s="0.3", server__request_timeout_s="0.3", server__idle_timeout_s="0.3",
        server__max_long_poll_s="0.3",
    )  # fmt: skip
    db = Db(api_of(server))
    db.activate(TEMPLATE)
    began = time.monotonic()
    assert db.wait(cursor="now", keys=[key("open", 1)], timeoutMs=1500)["touched"] is False
    assert time.monotonic() - began >= 1.5
    # A body in chunks takes another way through the server, and waits as long.
    body = json.dumps({"cursor": "now", "keys": [key("open", 1)], "timeoutMs": 1000}).encode()
    answer = db.api.client.post(f"{db.path}/touch/wait", content=iter([body[:9], body[9:]]))
    assert (answer.status_code, answer.json()["touched"]) == (200, False)
    assert time.monotonic() - began >= 2.5


def test_a_cursor_of_another_journal_is_stale(db_of: Any) -> None:
    db = db_of()
    db.append(insert("open", 1))
    found = db.wait(cursor=f"{'0' * 16}:1", keys=["a"], timeoutMs=LONG_MS)
    assert found["stale"] is True
    assert found["error"]["code"] == "stale"
    assert found["cursor"] == f"{found['epoch']}:{found['generation']}"
    assert "touched" not in found
    assert db.wait(cursor=found["cursor"], keys=["a"], timeoutMs=0)["touched"] is False
    assert db.meta()["waitStaleTotal"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"cursor": "now"},
        {"cursor": "now", "keys": []},
        {"cursor": "now", "keys": [""]},
        {"cursor": "now", "keys": "a"},
        {"cursor": "now", "keys": ["a"] * 1025},
        {"cursor": "now", "keyIds": [-1]},
        {"cursor": "now", "keyIds": [2**32]},
        {"cursor": "now", "keyIds": [1.5]},
        {"cursor": "now", "keyIds": list(range(1025))},
        {"cursor": "", "keys": ["a"]},
        {"cursor": "later", "keys": ["a"]},
        {"cursor": 5, "keys": ["a"]},
        {"cursor": "now", "keys": ["a"], "timeoutMs": "5"},
        {"cursor": "now", "keys": ["a"], "interestMode": "any"},
        {"cursor": "now", "keys": ["a"], "exact": "yes"},
        {"cursor": "now", "keys": ["a"], "exact": True},
        {"cursor": "now", "keyIds": [5], "exact": True},
        {"cursor": "now", "keys": [f"{n:016x}" for n in range(17)], "exact": True},
        {"cursor": "now", "keys": ["0" * 16], "exact": True, "interestMode": "coarse"},
        {"cursor": "now", "keys": ["a"], "templateIdsUsed": ["todos"]},
        {"cursor": "now", "keys": ["a"], "declareTemplates": []},
        {"cursor": "now", "keys": ["a"], "declareTemplates": [TEMPLATE], "inactivityTtlMs": -1},
        {"cursor": "now", "keys": ["a"], "until": 5},
    ],
)
def test_a_wrong_wait_is_refused(db_of: Any, body: Any) -> None:
    db = db_of()
    answer = db.ask(**body)
    assert answer.status_code == 400
    assert answer.json()["error"]["field"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"cursor":"now","keys":["\xff"]}'])
def test_a_body_that_is_no_wait_is_refused(db_of: Any, body: bytes) -> None:
    db = db_of()
    assert db.api.call("POST", f"{db.path}/touch/wait", body).status_code == 400


def test_a_coarse_wait_is_for_the_table(db_of: Any) -> None:
    db = db_of()
    db.activate(TEMPLATE)
    cursor = db.meta()["cursor"]
    db.append(insert("done", 5))
    by_key = db.wait(cursor=cursor, keys=[keys.format_key(keys.table_key("todos"))], interestMode="coarse")
    by_template = db.wait(
        cursor=cursor, keys=[key("open", 1)], templateIdsUsed=[T_ID], interestMode="coarse", timeoutMs=LONG_MS
    )
    for found in (by_key, by_template):
        assert (found["touched"], found["effectiveWaitKind"]) == (True, "tableKey")


def test_templates_may_be_declared_with_the_wait(db_of: Any) -> None:
    db = db_of()
    waiting = Waiting(
        db, cursor="now", keys=[key("open", 1)], declareTemplates=[TEMPLATE], templateIdsUsed=[T_ID],
        timeoutMs=LONG_MS,
    )  # fmt: skip
    assert db.meta()["activeTemplates"] == 1
    db.append(insert("open", 1))
    assert waiting.answer().json()["touched"] is True


def test_a_template_that_may_not_come_in_is_waited_for_by_its_table(db_of: Any) -> None:
    db = db_of(templates={"activationRateLimitPerMinute": 1})
    db.activate({"entity": "users", "fields": [USER]})
    waiting = Waiting(
        db, cursor="now", keys=[key("open", 1)], declareTemplates=[TEMPLATE], templateIdsUsed=[T_ID],
        timeoutMs=LONG_MS,
    )  # fmt: skip
    db.append(insert("done", 7))
    found = waiting.answer().json()
    assert (found["touched"], found["effectiveWaitKind"]) == (True, "tableKey")


def test_a_template_that_is_not_active_makes_a_wait_stale(db_of: Any) -> None:
    found = db_of().wait(cursor="now", keys=["a"], templateIdsUsed=["0" * 16], timeoutMs=LONG_MS)
    assert found["error"]["code"] == "stale"


def test_degraded_waits_say_what_they_wait_for(db_of: Any) -> None:
    db = db_of(fineTouchBudgetPerBatch=0)
    db.activate(TEMPLATE)
    used = {"keys": [key("open", 1)], "templateIdsUsed": [T_ID], "timeoutMs": 0}
    assert db.wait(cursor="now", **used)["effectiveWaitKind"] == "fineKey"
    db.append(insert("open", 1))
    assert db.meta(settle="flush")["touchMode"] == "restricted"
    assert db.wait(cursor="now", **used)["effectiveWaitKind"] == "templateKey"


def test_who_waits_on_a_stream_that_goes_is_told(db_of: Any) -> None:
    db = db_of()
    waiting = Waiting(db, cursor="now", keys=["a"], timeoutMs=LONG_MS)
    assert db.api.delete(db.path).status_code == 204
    assert waiting.answer().status_code == 404


def test_who_waits_on_a_stream_that_ceases_to_tell_touches_is_told(db_of: Any) -> None:
    db = db_of()
    cursor = db.meta()["cursor"]
    waiting = Waiting(db, cursor="now", keys=["a"], timeoutMs=LONG_MS)
    db.profile(kind="generic")
    answer = waiting.answer()
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "touch not enabled")
    db.profile(kind="state-protocol", touch={"enabled": True})
    assert db.wait(cursor=cursor, keys=["a"])["stale"] is True


def test_a_caller_that_hangs_up_is_not_waited_for(db_of: Any, server: Any, connect: Any, eventually: Any) -> None:
    db = db_of()
    db.meta()
    body = json.dumps({"cursor": "now", "keys": ["a"], "timeoutMs": LONG_MS}).encode()
    wire = connect(server)
    wire.request("POST", f"{db.path}/touch/wait", body)
    eventually(lambda: db.meta()["activeWaiters"] == 1)
    wire.close()
    eventually(lambda: db.meta()["activeWaiters"] == 0)


def test_waiting_needs_a_key_that_reads_the_stream(server: Any, db_of: Any) -> None:
    db = db_of()
    name, store = db.path.removeprefix("/v1/stream/"), KeyStore(server.data_dir / "keys.db")
    codes = []
    for prefix in (name, "another/"):
        _, token = store.create(user_id="ann", scopes=["read"], prefix=prefix)
        headers = {"authorization": f"Bearer {token}"}
        answers = [
            db.api.get(f"{db.path}/touch/meta", headers=headers),
            db.api.post(f"{db.path}/touch/wait", {"cursor": "now", "keys": ["a"], "timeoutMs": 0}, headers),
            db.api.post(f"{db.path}/touch/templates/activate", {"templates": [TEMPLATE]}, headers),
        ]
        codes.append([answer.status_code for answer in answers])
    store.close()
    assert codes == [[200] * 3, [403] * 3]


def test_waits_are_bounded(start_server: Any, api_of: Any) -> None:
    db = Db(api_of(start_server(limits__waiters="1")))
    waiting = Waiting(db, cursor="now", keys=["a"], timeoutMs=1000)
    assert db.ask(cursor="now", keys=["a"]).status_code == 429
    assert waiting.answer().json()["touched"] is False


def test_a_server_that_stops_answers_who_waits(start_server: Any, api_of: Any) -> None:
    server = start_server()
    db = Db(api_of(server))
    waiting = Waiting(db, cursor="now", keys=["a"], timeoutMs=LONG_MS)
    server.stop()
    answer = waiting.answer()
    assert (answer.status_code, answer.json()["touched"]) == (200, False)


def test_a_cursor_outlives_a_server_that_was_killed(start_server: Any, api_of: Any) -> None:
    server = start_server()
    db = Db(api_of(server))
    cursor = db.activate(TEMPLATE)["activated"][0]["activeFromTouchOffset"]
    db.append(insert("open", 1))
    server.kill()
    server.start()
    db.api = api_of(server)
    used = {"cursor": cursor, "templateIdsUsed": [T_ID]}
    assert db.wait(keys=[key("open", 1)], exact=True, timeoutMs=LONG_MS, **used)["touched"] is True
    assert db.wait(keys=[key("open", 2)], timeoutMs=0, **used)["touched"] is False


def test_what_happens_to_touches_is_a_stream_of_its_own(start_server: Any, api_of: Any, eventually: Any) -> None:
    api = api_of(start_server(system__live_interval_s="0.1"))
    db = Db(api, templates={"maxActiveTemplatesPerStream": 1})
    name = db.path.removeprefix("/v1/stream/")
    db.activate(TEMPLATE)
    db.activate({"entity": "users", "fields": [USER]})
    db.append(insert("open", 1))
    db.wait(cursor="now", keys=["a"], timeoutMs=0)

    def lived() -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        answer = api.get("/v1/stream/__live_metrics__")
        for record in answer.json() if answer.status_code == 200 else ():
            assert record["stream"] == name
            found.setdefault(record["type"], []).append(record)
        return found

    eventually(lambda: sum(tick["processor"]["eventsIn"] for tick in lived().get("live.tick", ())) == 1)
    eventually(lambda: sum(tick["wait"]["timeout"] for tick in lived()["live.tick"]) == 1)
    records = lived()
    activated = records["live.template_activated"]
    assert [(one["entity"], one["fields"], one["encodings"]) for one in activated] == [
        ("todos", ["status", "userId"], ["string", "int64"]),
        ("users", ["userId"], ["int64"]),
    ]
    assert [(one["templateId"], one["reason"]) for one in records["live.template_evicted"]] == [(T_ID, "cap_exceeded")]
    assert len(records["live.templates_snapshot"]) == 1
    assert sum(tick["touch"]["touchesEmitted"] for tick in records["live.tick"]) == 1
    head = api.head("/v1/stream/__live_metrics__").headers
    assert head["stream-retention-age"] in ("7d", "168h")
    assert "__live_metrics__" not in api.get("/v1/streams").text
    assert api.post("/v1/stream/__live_metrics__", {"x": 1}).status_code in (403, 409)
    # While nothing happens, nothing is told.
    before = api.offset("/v1/stream/__live_metrics__")
    time.sleep(0.4)
    assert api.offset("/v1/stream/__live_metrics__") == before
