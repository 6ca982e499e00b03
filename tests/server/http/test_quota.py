from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import RateLimited
from headrace.server.http.quota import Quota
from headrace.storage.keys import KeyStore

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire

Connect = Callable[..., "Wire"]
Eventually = Callable[..., None]
Code = Callable[[Any], str]
JSON = {"content-type": "application/json"}
#: So few that a second request right after the first is refused.
FEW = 1


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


# -- the quota


def test_requests_of_one_second_are_taken_and_the_next_is_refused_until_one_is_left_again() -> None:
    clock = Clock()
    quota = Quota(2, 0, clock)
    quota.take(10**9)
    quota.take()
    with pytest.raises(RateLimited, match="2 requests a second") as refusal:
        quota.take()
    assert refusal.value.headers() == {"retry-after": "1"}
    assert refusal.value.facts["unit"] == "requests"
    assert refusal.value.facts["limit"] == 2
    clock.now_s += 0.5
    quota.take()
    with pytest.raises(RateLimited):
        quota.take()
    clock.now_s += 3600
    for _ in range(2):
        quota.take()
    with pytest.raises(RateLimited):
        quota.take()


def test_bytes_that_were_too_many_are_owed() -> None:
    clock = Clock()
    quota = Quota(0, 1000, clock)
    quota.take(500)
    quota.take(3000)
    quota.spend(500)
    with pytest.raises(RateLimited, match="1000 bytes a second") as refusal:
        quota.take()
    assert refusal.value.headers() == {"retry-after": "3"}
    clock.now_s += 2.9
    with pytest.raises(RateLimited):
        quota.require()
    assert math.isclose(quota.wait_s(), 0.1, rel_tol=1e-6)
    clock.now_s += 0.2
    quota.take(1)


def test_a_request_that_is_handled_again_is_counted_once() -> None:
    quota = Quota(1, 100, Clock())
    quota.take(100)
    quota.give_back(100)
    quota.take(100)
    with pytest.raises(RateLimited):
        quota.take()


# -- the server


class Callers:
    """A server, and keys for it."""

    def __init__(self, server: ServerProcess, api: Api) -> None:
        self.api = api
        self.path = server.data_dir / "keys.db"

    def key(self, **limits: int) -> tuple[str, dict[str, str]]:
        with closing(KeyStore(self.path)) as keys:
            key, token = keys.create(user_id="ann", scopes=["write"], **limits)
        return key.id, {"authorization": f"Bearer {token}"}


@pytest.fixture
def callers(server: ServerProcess, api: Api) -> Callers:
    return Callers(server, api)


def exhaust(ask: Callable[[], Any], most: int = 20) -> Any:
    """Ask until it is refused; the refusal."""
    for _ in range(most):
        answer = ask()
        if answer.status_code == 429:
            return answer
        assert answer.status_code < 500
    raise AssertionError("it was never refused")


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/v1/stream/limited", JSON),
        ("POST", "/v1/stream/limited", {**JSON, "content-encoding": "identity"}),
        ("GET", "/v1/stream/limited", {}),
        ("HEAD", "/v1/stream/limited", {}),
        ("GET", "/v1/stream/absent", {}),
        ("GET", "/v1/stream/limited?offset=bad", {}),
        ("PATCH", "/v1/stream/limited", {}),
        ("GET", "/v1/stream/entities/guest", {}),
        ("POST", "/v1/get", JSON),
        ("GET", "/v1/streams", {}),
        ("GET", "/v1/work", {}),
        ("GET", "/nowhere", {}),
    ],
)
def test_every_way_in_refuses_a_key_that_asks_too_often(
    callers: Callers, code_of: Code, method: str, path: str, headers: dict[str, str]
) -> None:
    """Whether the requests succeed, or are refused for another reason."""
    callers.api.put("/v1/stream/limited", headers=JSON)
    _, key = callers.key(requests_per_s=FEW)
    body = b"[1]" if method == "POST" else None
    refusal = exhaust(lambda: callers.api.call(method, path, body, {**headers, **key}))
    assert int(refusal.headers["retry-after"]) >= 1
    if method != "HEAD":
        assert code_of(refusal) == "rate_limited"
        assert refusal.json()["error"]["unit"] == "requests"
    other = callers.key()[1]
    assert callers.api.get("/v1/stream/limited", other).status_code == 200
    assert callers.api.get("/v1/stream/limited").status_code == 200, "who has no key has no limits"


def test_a_refused_append_was_not_stored(callers: Callers) -> None:
    path, (_, key) = callers.api.stream(), callers.key(requests_per_s=FEW)
    taken = 0
    for number in range(10):
        taken += callers.api.post(path, [number], key).status_code == 204
    assert 1 <= taken < 10
    assert len(callers.api.get(path).json()) == taken


@pytest.mark.parametrize("coding", [{}, {"content-encoding": "identity"}])
def test_bytes_of_bodies_count(callers: Callers, code_of: Code, coding: dict[str, str]) -> None:
    path, (_, key) = callers.api.stream(), callers.key(bytes_per_s=1000)
    large = b'"' + b"x" * 5000 + b'"'
    refusal = exhaust(lambda: callers.api.post(path, large, {**JSON, **key, **coding}), 3)
    assert code_of(refusal) == "rate_limited"
    assert refusal.json()["error"]["unit"] == "bytes"
    assert int(refusal.headers["retry-after"]) >= 3


@pytest.mark.parametrize("path", ["/v1/stream/{}", "/v1/streams?limit=1000", "/openapi.json"])
def test_bytes_of_answers_count(callers: Callers, path: str) -> None:
    stream = callers.api.stream("x" * 5000)
    _, key = callers.key(bytes_per_s=100)
    refusal = exhaust(lambda: callers.api.get(path.format(stream.rpartition("/")[2]), key), 3)
    assert refusal.json()["error"]["unit"] == "bytes"


def test_server_sent_events_wait_for_the_limit_and_lose_nothing(
    server: ServerProcess, callers: Callers, connect: Connect
) -> None:
    path, (_, key) = callers.api.stream(), callers.key(bytes_per_s=20_000)
    text, count = "x" * 10_000, 8
    wire = connect(server).request("GET", f"{path}?live=sse&offset=-1", b"", f"Authorization: {key['authorization']}")
    wire.head()
    began = time.monotonic()
    read: list[str] = []
    for _ in range(count):
        callers.api.post(path, [text])
    while len(read) < count:
        event = wire.event()
        assert event is not None
        read += json.loads(event.data) if event.kind == "data" else []
    assert read == [text] * count
    # All may be on their way at once before the limit is looked at; what is owed then holds up the next answer.
    callers.api.post(path, ["end"])
    while (event := wire.event()) is not None and event.data != '["end"]':
        pass
    assert event is not None
    assert time.monotonic() - began > 1.0


def test_a_read_that_waits_for_a_thread_is_counted_and_answered(
    start_server: StartServer, api_of: Any, eventually: Eventually
) -> None:
    server = start_server(storage__seal_rows="1", storage__decoded_bytes="0")
    api = api_of(server)
    path = api.stream(*range(5))
    _, key = Callers(server, api).key(requests_per_s=1000)
    eventually(
        lambda: (
            api.metric("headrace_published_segments_total") and not api.metric("headrace_oldest_unpublished_seconds")
        )
    )
    assert api.get(path, key).json() == api.get(path).json() != []


def test_a_change_of_limits_holds_within_a_second(callers: Callers, eventually: Eventually) -> None:
    path, (key_id, key) = callers.api.stream(), callers.key(requests_per_s=FEW)
    exhaust(lambda: callers.api.get(path, key))
    with closing(KeyStore(callers.path)) as keys:
        keys.update(key_id, requests_per_s=0)
    eventually(lambda: [callers.api.get(path, key).status_code for _ in range(20)] == [200] * 20)


def test_a_change_of_another_key_does_not_renew_what_is_used_up(callers: Callers) -> None:
    path, (_, key) = callers.api.stream(), callers.key(bytes_per_s=100)
    callers.api.post(path, b'"' + b"x" * 100_000 + b'"', {**JSON, **key})
    assert callers.api.get(path, key).status_code == 429
    other = callers.key()[1]
    assert callers.api.get(path, other).status_code == 200
    assert callers.api.get(path, key).status_code == 429


@pytest.fixture
def limited_server(start_server: StartServer) -> Iterator[ServerProcess]:
    yield start_server(server__key_requests_per_s="1", server__key_bytes_per_s="1000")


def test_settings_limit_keys_without_limits_of_their_own(limited_server: ServerProcess, api_of: Any) -> None:
    api = api_of(limited_server)
    callers = Callers(limited_server, api)
    path, plain = api.stream(), callers.key()[1]
    assert exhaust(lambda: api.get(path, plain)).json()["error"]["unit"] == "requests"
    free = callers.key(requests_per_s=0, bytes_per_s=0)[1]
    assert [api.get(path, free).status_code for _ in range(10)] == [200] * 10
