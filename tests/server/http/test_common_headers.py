from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import pytest

from headrace.config import ServerConfig
from headrace.server.http.auth import Authenticator
from headrace.server.http.common_headers import common_headers
from headrace.storage.keys import KeyStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import ServerProcess
    from tests.server.conftest import Api, Wire

Connect = Callable[..., "Wire"]

SECURE = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox; default-src 'none'",
    "cross-origin-resource-policy": "same-origin",
}
EVERYWHERE = ["/v1/stream/none", "/v1/streams", "/health", "/nowhere", "/v1/stream/", "/openapi.json", "/metrics"]


@pytest.mark.parametrize("target", EVERYWHERE)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_no_answer_can_run_in_a_browser(server: ServerProcess, connect: Connect, method: str, target: str) -> None:
    answer = connect(server).request(method, target).answer(method)
    assert {name: answer.headers[name] for name in SECURE} == SECURE
    assert abs(parsedate_to_datetime(answer.headers["date"]).timestamp() - time.time()) < 60
    assert answer.status < 500
    if answer.status >= 400 and method != "HEAD":
        answer.code()


@pytest.mark.parametrize("target", EVERYWHERE)
def test_the_callers_request_id_comes_back(server: ServerProcess, connect: Connect, target: str) -> None:
    for method in ("GET", "OPTIONS", "POST", "HEAD"):
        answer = connect(server).request(method, target, b"", "X-Request-Id: abc-123/~").answer(method)
        assert answer.headers["x-request-id"] == "abc-123/~"


@pytest.mark.parametrize("unsafe", ["", "a b", "a\tb", "\xe9", "x" * 129])
def test_a_request_id_that_is_no_token_is_left_out(server: ServerProcess, connect: Connect, unsafe: str) -> None:
    for target in ("/v1/stream/none", "/v1/streams"):
        answer = connect(server).request("GET", target, b"", f"X-Request-Id: {unsafe}").answer()
        assert "x-request-id" not in answer.headers


def test_events_and_empty_answers_carry_the_common_headers_too(
    server: ServerProcess, api: Api, connect: Connect
) -> None:
    path, wire = api.stream(1), connect(server)
    assert wire.append(path, b"2", "X-Request-Id: a").answer().headers["x-request-id"] == "a"
    status, headers = wire.request("GET", f"{path}?live=sse&offset=-1", b"", "X-Request-Id: b").head()
    assert status == 200
    assert headers["x-request-id"] == "b"
    assert {name: headers[name] for name in SECURE} == SECURE
    assert SECURE.items() <= connect(server).append(path, b"[2]").answer().headers.items()
    assert SECURE.items() <= connect(server).send(b"nonsense\r\n\r\n").answer().headers.items()
    assert "date" in headers and "date" in connect(server).append(path, b"3").answer().headers
    assert "date" in connect(server).send(b"nonsense\r\n\r\n").answer().headers


@pytest.mark.parametrize(
    ("listed", "origin", "policy"),
    [
        ((), None, "same-origin"),
        ((), b"https://app.example", "same-origin"),
        (("https://app.example",), b"https://app.example", "cross-origin"),
        (("https://app.example",), b"https://other.example", "same-origin"),
        (("https://app.example",), None, "same-origin"),
        (("*",), b"https://any.example", "cross-origin"),
        (("*",), None, "cross-origin"),
    ],
)
def test_only_pages_of_listed_origins_may_embed_an_answer(
    tmp_path: Path, listed: tuple[str, ...], origin: bytes | None, policy: str
) -> None:
    keys = KeyStore(tmp_path / "keys.db")
    authenticator = Authenticator(ServerConfig(cors_origins=listed), keys)
    headers = {} if origin is None else {b"origin": origin}
    assert dict(common_headers(headers, authenticator))["cross-origin-resource-policy"] == policy
    keys.close()
