"""Subscriptions and keys: a webhook ends with its key, and nobody uses up the room of others or learns of them."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from headrace.storage.keys import KeyStore

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

Eventually = Callable[..., None]
HIDDEN_ERROR = "the receiver did not confirm the wake; the log of the server says why"
JSON = {"content-type": "application/json"}


class Receiver:
    """Answers every webhook with a status, and keeps what it was sent."""

    def __init__(self, status: int = 200) -> None:
        self.received: queue.Queue[dict[str, Any]] = queue.Queue()
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                content = b'{"done": true}'
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def next(self) -> dict[str, Any]:
        return self.received.get(timeout=10)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with closing(Receiver()) as made:
        yield made


class Caller:
    """Requests with a key, or without one."""

    def __init__(self, server: ServerProcess, token: str = "") -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        self.http = httpx2.Client(base_url=f"{url}/v1/stream/", headers=headers, timeout=10, trust_env=False)

    def put(self, id: str, **body: Any) -> httpx2.Response:
        return self.http.put(f"__ds/subscriptions/{id}", json=body)

    def call(self, method: str, id: str, rest: str = "", body: Any = None, token: str = "") -> tuple[int, Any]:
        """Status and document; the name of the subscription, by which it was asked, is left out."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        answer = self.http.request(method, f"__ds/subscriptions/{id}{rest}", json=body, headers=headers)
        return answer.status_code, json.loads(answer.text.replace(f'"{id}"', '"ID"')) if answer.text else None

    def append(self, name: str) -> None:
        self.http.put(name, headers=JSON)
        assert self.http.post(name, json={"a": 1}).is_success


@pytest.fixture
def caller() -> Iterator[Callable[..., Caller]]:
    made: list[Caller] = []

    def make(server: ServerProcess, token: str = "") -> Caller:
        made.append(Caller(server, token))
        return made[-1]

    yield make
    for one in made:
        one.http.close()


def key(server: ServerProcess, prefix: str = "", scope: str = "write") -> tuple[str, str]:
    """The id and the token of a new key."""
    with closing(KeyStore(server.data_dir / "keys.db")) as keys:
        made, token = keys.create(user_id="ann", scopes=[scope], prefix=prefix)
    return made.id, token


def revoke(server: ServerProcess, id: str) -> None:
    with closing(KeyStore(server.data_dir / "keys.db")) as keys:
        keys.revoke(id)


def delete(server: ServerProcess, id: str) -> None:
    with closing(KeyStore(server.data_dir / "keys.db")) as keys:
        keys._connection.execute("DELETE FROM keys WHERE id = ?", (id,))


def hook(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "webhook", "webhook": {"url": url}, **more}


def pull(**more: Any) -> dict[str, Any]:
    return {"type": "pull-wake", "wake_stream": "mine/wake", **more}


@pytest.mark.parametrize("end", [revoke, delete])
def test_a_webhook_is_suspended_with_its_key_and_says_so(
    start_server: StartServer, caller: Any, receiver: Receiver, eventually: Eventually, end: Any
) -> None:
    server = start_server()
    local, (id, token) = caller(server), key(server, "mine/")
    asked = hook(receiver.url, pattern="mine/**")
    assert caller(server, token).put("s", **asked).status_code == 201
    local.append("mine/a")
    told = receiver.next()
    end(server, id)
    eventually(lambda: local.call("GET", "s")[1]["status"] == "suspended")
    with closing(Receiver()) as other:
        local.put("other", **hook(other.url, pattern="mine/*"))
        local.append("mine/a")
        other.next()
    report = {"wake_id": told["wake_id"], "generation": told["generation"]}
    assert local.call("POST", "s", "/callback", report, told["callback_token"])[0] == 401
    server.kill()
    server.start()
    local = caller(server)
    description = local.call("GET", "s")[1]
    assert description["status"] == "suspended" and "put it again with another key" in description["last_error"]
    assert receiver.received.empty()
    _, another = key(server, "mine/")
    again = caller(server, another).put("s", **asked)
    assert (again.status_code, again.json()["status"]) == (200, "active")
    assert receiver.next()["generation"] == told["generation"] + 1


def test_a_webhook_belongs_to_the_key_that_last_asked_for_it(
    start_server: StartServer, caller: Any, eventually: Eventually
) -> None:
    server = start_server()
    (old, first), (new, second), (wide, third) = key(server, "mine/"), key(server, "mine/"), key(server)
    asked = hook("https://hooks.example/", pattern="mine/*")
    for token, status in ((first, 201), (second, 200), (third, 200)):
        assert caller(server, token).put("s", **asked).status_code == status
    local = caller(server)
    for ended, witness, status in ((old, wide, "active"), (new, "", "suspended")):
        assert local.put(f"witness{status}", **asked).is_success
        revoke(server, ended)
        if witness:
            revoke(server, witness)
        eventually(lambda status=status: local.call("GET", "s")[1]["status"] == status)
    assert local.call("GET", "witnessactive")[1]["status"] == "active"


def test_neither_a_key_nor_a_prefix_uses_up_the_room_of_others(start_server: StartServer, caller: Any) -> None:
    server = start_server(subscriptions__max_per_key="2", subscriptions__max_per_prefix="3")
    first, second = (caller(server, key(server, "mine/")[1]) for _ in range(2))
    asked = pull(pattern="mine/*")
    for place, (who, id, status) in enumerate(
        [(first, "a", 201), (first, "b", 201), (first, "c", 409), (first, "a", 200), (second, "c", 201),
         (second, "d", 409), (caller(server, key(server, "yours/")[1]), "e", 201), (caller(server), "f", 201)]
    ):  # fmt: skip
        answer = who.put(id, **(asked if id != "e" else pull(pattern="yours/*", wake_stream="yours/wake")))
        assert (place, answer.status_code) == (place, status)
        if status == 409:
            assert answer.json()["error"]["code"] == "SUBSCRIPTION_LIMIT"
    assert first.call("DELETE", "a")[0] == 204
    assert second.put("d", **asked).status_code == 201


def test_a_key_follows_everything_below_its_prefix_and_nothing_else(
    start_server: StartServer, caller: Any, receiver: Receiver
) -> None:
    server = start_server()
    local, mine = caller(server), caller(server, key(server, "mine/")[1])
    local.append("mine")
    local.append("mine/before")
    assert mine.put("s", **hook(receiver.url, pattern="mine/**")).status_code == 201
    for name in ("mine", "mine/a/b"):
        local.append(name)
    assert [view["path"] for view in receiver.next()["streams"] if view["has_pending"]] == ["mine/a/b"]
    assert {link["path"] for link in mine.call("GET", "s")[1]["streams"]} == {"mine/before", "mine/a/b"}
    assert mine.put("t", **pull(pattern="mine/**/x")).status_code == 201
    for pattern in ("**", "mine", "min/**", "entities/**", "__registry__/**", "*/a"):
        assert mine.put("bad", **pull(pattern=pattern)).status_code == 403
    # One that follows the stream above, too, is not for this key.
    assert local.put("wide", **pull(pattern="mine/**", wake_stream="mine/w2")).status_code == 201
    assert mine.call("GET", "wide")[0] == 404


def test_what_a_key_does_not_open_is_as_if_it_were_not_there(start_server: StartServer, caller: Any) -> None:
    server = start_server()
    local, mine = caller(server), caller(server, key(server, "mine/")[1])
    asked = pull(pattern="mine/*")
    assert local.put("hidden", **asked).status_code == 201
    assert local.call("POST", "hidden", "/streams", {"streams": ["secret/plan"]})[0] == 204
    local.append("secret/plan")
    for method, rest, body in (
        ("GET", "", None), ("DELETE", "", None), ("POST", "/claim", {"worker": "w"}),
        ("POST", "/streams", {"streams": ["mine/a"]}), ("DELETE", "/streams/mine/a", None),
    ):  # fmt: skip
        hidden, nothing = (mine.call(method, id, rest, body) for id in ("hidden", "nothing"))
        assert hidden == nothing and hidden[0] in (404, 204)
    assert local.call("GET", "hidden")[0] == 200
    same, other = (mine.put("hidden", **one) for one in (asked, pull(pattern="mine/other")))
    assert same.status_code == other.status_code == 409
    assert same.text == other.text and "secret" not in same.text
    assert mine.put("hidden", **pull(pattern="other/*")).status_code == 403


def test_who_has_no_token_does_not_learn_which_subscriptions_there_are(
    start_server: StartServer, caller: Any, receiver: Receiver
) -> None:
    server = start_server()
    local = caller(server)
    local.put("pulled", **pull(pattern="mine/*"))
    local.put("hook", **hook(receiver.url, pattern="mine/*"))
    report = {"wake_id": "w_0", "generation": 1}
    for verb in ("/ack", "/callback", "/release"):
        for token in ("1.x", "0." + "A" * 43, "x"):
            answers = [local.call("POST", id, verb, report, token) for id in ("pulled", "hook", "nobody")]
            assert answers[0] == answers[1] == answers[2]
            assert (answers[0][0], answers[0][1]["error"]["code"]) == (401, "TOKEN_INVALID")


@pytest.mark.parametrize("allowed", [False, True])
def test_a_server_that_others_reach_calls_its_own_machine_only_where_a_setting_says_so(
    start_server: StartServer, caller: Any, receiver: Receiver, eventually: Eventually, allowed: bool
) -> None:
    server = start_server(data="d")
    _, token = key(server)
    assert caller(server, token).put("before", **hook(receiver.url, streams=["s"])).status_code == 201
    server.stop()
    server = start_server(data="d", server__host="0.0.0.0", subscriptions__local_webhooks=str(allowed).lower())
    known = caller(server, token)
    for url in (receiver.url, "http://localhost:9/", "http://169.254.169.254/latest", "http://[fe80::1]/"):
        answer = known.put(f"new{url[7]}{len(url)}", **hook(url, streams=["t"]))
        assert answer.status_code == (201 if allowed else 400)
        assert allowed or answer.json()["error"]["code"] == "WEBHOOK_URL_REJECTED"
    for url in ("https://169.254.169.254/", "https://127.0.0.1/", "http://10.0.0.1/", "http://hooks.example/"):
        assert known.put("never", **hook(url, streams=["t"])).status_code == 400
    known.append("s")
    if allowed:
        assert receiver.next()["subscription_id"] == "before"
    else:
        eventually(lambda: known.call("GET", "before")[1]["status"] == "failed")
        assert receiver.received.empty()


def test_the_error_that_is_shown_is_the_same_for_a_closed_port_and_an_open_one(
    start_server: StartServer, caller: Any, eventually: Eventually
) -> None:
    server = start_server(subscriptions__webhook_timeout_s="1")
    local = caller(server)
    with closing(Receiver(404)) as answering, socket.create_server(("127.0.0.1", 0)) as silent:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            closed = probe.getsockname()[1]
        urls = [answering.url, f"http://127.0.0.1:{silent.getsockname()[1]}/", f"http://127.0.0.1:{closed}/"]
        for place, url in enumerate(urls):
            assert local.put(f"s{place}", **hook(url, streams=["s"])).status_code == 201
        local.append("s")
        for place in range(len(urls)):
            eventually(lambda place=place: local.call("GET", f"s{place}")[1]["status"] == "failed")
            assert local.call("GET", f"s{place}")[1]["last_error"] == HIDDEN_ERROR
    assert "the receiver answered 404" in server.log()
