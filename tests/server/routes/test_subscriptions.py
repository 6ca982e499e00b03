"""Subscriptions over HTTP, asked of a real server process."""

from __future__ import annotations

import http.server
import json
import queue
import re
import threading
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from itertools import count
from time import monotonic
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from headrace.storage.keys import KeyStore

_NUMBERS = count()
START = "0" * 26


class Hooks:
    """A webhook receiver: answers with ``answer`` and hands over what it was sent."""

    def __init__(self) -> None:
        self.answer: tuple[int, dict[str, Any]] = (200, {})
        self.received: queue.Queue[tuple[str, bytes]] = queue.Queue()
        hooks = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status, answer = hooks.answer
                hooks.received.put((self.headers["webhook-signature"], body))
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?secret=1"

    def next(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.received.get(timeout=10)[1])
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    made = Hooks()
    yield made
    made.close()


@pytest.fixture
def http_client(server: Any) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"{server.url}/v1/stream/", timeout=10) as client:
        yield client


@pytest.fixture
def area() -> str:
    """A corner of the name space that no other test uses."""
    return f"area{next(_NUMBERS)}"


def sub(area: str) -> str:
    return f"__ds/subscriptions/{area}"


def pull(area: str, **more: Any) -> dict[str, Any]:
    return {"type": "pull-wake", "pattern": f"{area}/events/*", "wake_stream": f"{area}/wake", **more}


def code(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def described(client: httpx2.Client, area: str, status: str) -> dict[str, Any]:
    """The description once it has this status."""
    deadline = monotonic() + 10
    while monotonic() < deadline:
        body: dict[str, Any] = client.get(sub(area)).json()
        if body["status"] == status:
            return body
    raise AssertionError(f"still {body['status']}")


def append(client: httpx2.Client, path: str) -> None:
    client.put(path, headers={"content-type": "application/json"})
    assert client.post(path, json={"a": 1}).is_success


def test_a_subscription_is_described_as_it_was_asked_for(http_client: httpx2.Client, area: str) -> None:
    asked = pull(area, streams=[f"/{area}/b/", f"{area}/a"], lease_ttl_ms=2000, description="why")
    created = http_client.put(sub(area), json=asked)
    assert created.status_code == 201
    body = http_client.get(sub(area)).json()
    assert body == created.json()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", body.pop("created_at"))
    assert body == {
        "id": area,
        "subscription_id": area,
        "type": "pull-wake",
        "pattern": f"{area}/events/*",
        "streams": [
            {"path": f"{area}/a", "link_type": "explicit", "acked_offset": START},
            {"path": f"{area}/b", "link_type": "explicit", "acked_offset": START},
        ],
        "wake_stream": f"{area}/wake",
        "lease_ttl_ms": 2000,
        "description": "why",
        "status": "active",
        "generation": 0,
    }
    again = {**asked, "streams": [f"{area}/a", f"{area}/b", f"{area}/a"]}
    assert http_client.put(sub(area), json=again).status_code == 200
    other = http_client.put(sub(area), json={**asked, "lease_ttl_ms": 3000})
    assert code(other) == (409, "SUBSCRIPTION_ALREADY_EXISTS")
    assert http_client.delete(sub(area)).status_code == 204
    assert http_client.delete(sub(area)).status_code == 204
    assert code(http_client.get(sub(area))) == (404, "SUBSCRIPTION_NOT_FOUND")


@pytest.mark.parametrize(
    "change",
    [
        {"type": "email"},
        {"type": None},
        {"pattern": None},
        {"pattern": ""},
        {"pattern": "user-*"},
        {"pattern": "a/" * 300 + "b"},
        {"streams": [1]},
        {"streams": [""]},
        {"streams": ["__ds/x"]},
        {"streams": ["a/../b"]},
        {"streams": ["x" * 600]},
        {"streams": ["w"]},
        {"wake_stream": None},
        {"lease_ttl_ms": 999},
        {"lease_ttl_ms": 600_001},
        {"lease_ttl_ms": "1000"},
        {"lease_ttl_ms": 1000.5},
        {"description": "x" * 1025},
        {"type": "webhook"},
        {"type": "webhook", "webhook": {}},
        {"surprise": 1},
    ],
)
def test_a_request_that_makes_no_sense_is_refused(http_client: httpx2.Client, change: dict[str, Any]) -> None:
    asked = {"type": "pull-wake", "pattern": "a/*", "wake_stream": "w", **change}
    assert code(http_client.put(sub("nonsense"), json=asked)) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize("body", [b"", b"[]", b"nonsense", b'{"type": "\xff"}', b'{"type": "\\ud800"}', b"[" * 100_000])
def test_a_body_that_cannot_be_read_is_refused(http_client: httpx2.Client, body: bytes) -> None:
    assert code(http_client.put(sub("unreadable"), content=body)) == (400, "INVALID_REQUEST")


def test_limits_verbs_and_parameters_are_checked(http_client: httpx2.Client, area: str) -> None:
    assert http_client.put(sub(area), content=b" " * (1 << 20) + b"{}").status_code == 413
    assert http_client.put(sub(area), content=b"{}", headers={"content-encoding": "gzip"}).status_code == 415
    assert code(http_client.put(sub("x" * 300), json=pull(area))) == (400, "INVALID_REQUEST")
    assert code(http_client.get(f"{sub(area)}?wait=1")) == (400, "INVALID_REQUEST")
    wrong = http_client.post(sub(area), json={})
    assert wrong.status_code == 405
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD", "PUT", "DELETE", "OPTIONS"}
    assert http_client.get("__ds/unknown").status_code == 404


@pytest.mark.parametrize("url", ["http://10.0.0.1/hook", "http://hooks.example/", "https://127.0.0.1/", "nonsense"])
def test_unsafe_webhooks_are_refused(http_client: httpx2.Client, area: str, url: str) -> None:
    asked = {"type": "webhook", "pattern": f"{area}/*", "webhook": {"url": url}}
    assert code(http_client.put(sub(area), json=asked)) == (400, "WEBHOOK_URL_REJECTED")


def test_a_worker_claims_reports_and_releases(http_client: httpx2.Client, area: str) -> None:
    path = f"{area}/events/é a"
    http_client.put(sub(area), json=pull(area))
    assert code(http_client.post(f"{sub(area)}/claim", json={"worker": "w1"})) == (409, "NO_PENDING_WORK")
    append(http_client, path)
    claim = http_client.post(f"{sub(area)}/claim", json={"worker": "w1"}).json()
    assert claim["lease_ttl_ms"] == 30_000 and claim["streams"][0]["path"] == path
    busy = http_client.post(f"{sub(area)}/claim", json={"worker": "w2"})
    assert code(busy) == (409, "ALREADY_CLAIMED") and busy.json()["error"]["current_holder"] == "w1"
    assert http_client.get(sub(area)).json()["current_holder"] == "w1"
    wake = {"wake_id": claim["wake_id"], "generation": claim["generation"]}
    bearer = {"authorization": f"Bearer {claim['token']}"}
    tail = claim["streams"][0]["tail_offset"]
    report = {**wake, "acks": [{"path": path, "offset": tail.lower()}]}
    assert http_client.post(f"{sub(area)}/ack", json=report, headers=bearer).json() == {"ok": True, "next_wake": False}
    assert http_client.get(sub(area)).json()["streams"][0]["acked_offset"] == tail
    append(http_client, path)
    assert http_client.post(f"{sub(area)}/release", json=wake, headers=bearer).status_code == 204
    assert code(http_client.post(f"{sub(area)}/ack", json=wake, headers=bearer)) == (409, "FENCED")
    assert http_client.post(f"{sub(area)}/claim", json={"worker": "w2"}).json()["generation"] == 2


def test_reports_without_a_good_token_are_refused(http_client: httpx2.Client, area: str) -> None:
    http_client.put(sub(area), json=pull(area))
    append(http_client, f"{area}/events/a")
    claim = http_client.post(f"{sub(area)}/claim", json={"worker": "w1"}).json()
    wake = {"wake_id": claim["wake_id"], "generation": claim["generation"]}
    for verb in ("ack", "release"):
        for headers in (
            {},
            {"authorization": "Bearer"},
            {"authorization": "Basic x"},
            {"authorization": "Bearer 1.x"},
        ):
            refused = http_client.post(f"{sub(area)}/{verb}", json=wake, headers=headers)
            assert code(refused) == (401, "TOKEN_INVALID")
    bearer = {"authorization": f"Bearer {claim['token']}"}
    for bad in ({}, {"wake_id": claim["wake_id"]}, {**wake, "acks": [{"offset": START}]}, {**wake, "more": 1}):
        assert code(http_client.post(f"{sub(area)}/ack", json=bad, headers=bearer)) == (400, "INVALID_REQUEST")
    missing = http_client.post(f"{sub('nobody')}/ack", json=wake, headers=bearer)
    assert code(missing) == (401, "TOKEN_INVALID")
    other_kind = http_client.post(f"{sub(area)}/callback", json=wake, headers=bearer)
    assert code(other_kind) == (400, "INVALID_REQUEST")


def test_a_webhook_is_signed_by_the_published_key_and_answered_by_callback(
    http_client: httpx2.Client, area: str, hooks: Hooks
) -> None:
    asked = {"type": "webhook", "pattern": f"{area}/**", "webhook": {"url": hooks.url}}
    signing = http_client.put(sub(area), json=asked).json()["webhook"]["signing"]
    jwks = httpx2.get(signing["jwks_url"])
    assert jwks.headers["content-type"] == "application/jwk-set+json"
    append(http_client, f"{area}/a")
    signature, raw = hooks.received.get(timeout=10)
    match = re.fullmatch(r"t=(\d+),kid=([^,]+),ed25519=([\w-]+)", signature)
    assert match is not None
    key = next(key for key in jwks.json()["keys"] if key["kid"] == match[2] == signing["kid"])
    public = Ed25519PublicKey.from_public_bytes(urlsafe_b64decode(key["x"] + "="))
    public.verify(urlsafe_b64decode(match[3] + "=="), f"{match[1]}.".encode() + raw)
    body = json.loads(raw)
    report = {"wake_id": body["wake_id"], "generation": body["generation"], "done": True}
    report["acks"] = [{"stream": view["path"], "offset": view["tail_offset"]} for view in body["streams"]]
    bearer = {"authorization": f"Bearer {body['callback_token']}"}
    assert httpx2.post(body["callback_url"], json=report, headers=bearer).json() == {"ok": True, "next_wake": False}
    assert code(httpx2.post(body["callback_url"], json=report, headers=bearer)) == (409, "FENCED")


def test_urls_are_built_from_the_address_that_the_caller_used(server: Any, area: str, hooks: Hooks) -> None:
    port = server.url.rpartition(":")[2]
    asked = {"type": "webhook", "streams": [f"{area}/a"], "webhook": {"url": hooks.url}}
    with httpx2.Client(base_url=f"http://localhost:{port}/v1/stream/") as client:
        created = client.put(sub(area), json=asked).json()
        assert created["webhook"]["signing"]["jwks_url"] == f"http://localhost:{port}/v1/stream/__ds/jwks.json"
        append(client, f"{area}/a")
    assert hooks.next()["callback_url"] == f"http://localhost:{port}/v1/stream/__ds/subscriptions/{area}/callback"


def test_a_subscription_name_with_odd_characters_comes_back_in_its_callback_url(
    http_client: httpx2.Client, area: str, hooks: Hooks
) -> None:
    hooks.answer = (200, {"done": True})
    asked = {"type": "webhook", "streams": [f"{area}/a"], "webhook": {"url": hooks.url}}
    name = f"{area} é?"
    quoted = f"__ds/subscriptions/{area}%20%C3%A9%3F"
    assert http_client.put(quoted, json=asked).json()["id"] == name
    append(http_client, f"{area}/a")
    assert hooks.next()["callback_url"].endswith(f"/{quoted}/callback")


def test_a_failing_receiver_is_seen_in_the_description(http_client: httpx2.Client, area: str, hooks: Hooks) -> None:
    hooks.answer = (500, {})
    asked = {"type": "webhook", "pattern": f"{area}/*", "webhook": {"url": hooks.url}}
    http_client.put(sub(area), json=asked)
    append(http_client, f"{area}/a")
    first = hooks.next()
    failed = described(http_client, area, "failed")
    assert "did not confirm the wake" in failed["last_error"] and "next_attempt_at" in failed
    hooks.answer = (200, {"done": True})
    second = hooks.next()
    assert second["wake_id"] == first["wake_id"]
    body = described(http_client, area, "active")
    assert body["streams"][0]["acked_offset"] == second["streams"][0]["tail_offset"]
    assert "last_error" not in body and "next_attempt_at" not in body


def test_what_was_promised_before_a_kill_holds_after_it(start_server: Callable[..., Any], hooks: Hooks) -> None:
    server = start_server()
    asked = {"type": "webhook", "pattern": "events/*", "webhook": {"url": hooks.url}}
    with httpx2.Client(base_url=f"{server.url}/v1/stream/") as client:
        client.put(sub("hook"), json=asked)
        client.put(sub("pull"), json={"type": "pull-wake", "pattern": "events/*", "wake_stream": "wake"})
        append(client, "events/a")
        before = hooks.next()
        claim = client.post(f"{sub('pull')}/claim", json={"worker": "w1"}).json()
        jwks = client.get("__ds/jwks.json").json()
    server.kill()
    server.start()
    with httpx2.Client(base_url=f"{server.url}/v1/stream/") as client:
        assert client.get("__ds/jwks.json").json() == jwks
        for id, verb, token, body in (
            ("hook", "callback", before["callback_token"], before),
            ("pull", "ack", claim["token"], claim),
        ):
            report = {"wake_id": body["wake_id"], "generation": body["generation"], "done": True}
            report["acks"] = [{"stream": "events/a", "offset": body["streams"][0]["tail_offset"]}]
            bearer = {"authorization": f"Bearer {token}"}
            answer = client.post(f"{sub(id)}/{verb}", json=report, headers=bearer)
            assert answer.json() == {"ok": True, "next_wake": False}


def test_a_key_reaches_only_subscriptions_to_its_own_streams(start_server: Callable[..., Any]) -> None:
    server = start_server()
    keys = KeyStore(server.data_dir / "keys.db")
    _, mine = keys.create(user_id="ann", scopes=["write"], prefix="mine/")
    _, reader = keys.create(user_id="bob", scopes=["read"])
    keys.close()
    good = {"type": "pull-wake", "pattern": "mine/*", "wake_stream": "mine/wake"}
    with httpx2.Client(base_url=f"{server.url}/v1/stream/") as local:
        bearer, read_only = {"authorization": f"Bearer {mine}"}, {"authorization": f"Bearer {reader}"}
        for bad in ({"pattern": "**"}, {"pattern": "mine"}, {"streams": ["other/a"]}, {"wake_stream": "other"}):
            assert local.put(sub("s"), json={**good, **bad}, headers=bearer).status_code == 403
        assert local.put(sub("s"), json=good, headers=read_only).status_code == 403
        assert local.put(sub("s"), json=good, headers=bearer).status_code == 201
        assert local.get(sub("s"), headers=read_only).status_code == 200
        assert local.delete(sub("s"), headers=read_only).status_code == 403
        local.put(sub("all"), json={**good, "pattern": "**"})
        linking = local.post(f"{sub('s')}/streams", json={"streams": ["other/a"]}, headers=bearer)
        assert linking.status_code == 403
