from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadRequest
from headrace.server.http.target import PREFIX, Target, address, check_name, parse

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api, Wire

Connect = Callable[..., "Wire"]


@pytest.mark.parametrize(
    ("rest", "name", "resource", "key"),
    [
        ("a", "a", "", None),
        ("a/", "a", "", None),
        ("a/b/c", "a/b/c", "", None),
        ("a%2Fb", "a/b", "", None),
        ("a/_retention", "a", "_retention", None),
        ("a/b/_seal", "a/b", "_seal", None),
        ("a/b/_plan", "a/b", "_plan", None),
        ("a/_plan/rows", "a", "_plan/rows", None),
        ("a/rows", "a/rows", "", None),
        ("a/b/_schema", "a/b", "_schema", None),
        ("a/_schema/_search", "a/_schema", "_search", None),
        ("a%2F_schema", "a/_schema", "", None),
        ("a/touch/wait", "a", "touch/wait", None),
        ("a/_schema/verifications", "a", "_schema/verifications", None),
        ("a/b/_schema/verifications/x%2Fy", "a/b", "_schema/verifications", "x/y"),
        ("a/_schema/verifications/x/_search", "a/_schema/verifications/x", "_search", None),
        ("a/pk/k", "a", "", "k"),
        ("a/pk/k%2Fl", "a", "", "k/l"),
        ("a/b/pk/_schema", "a/b", "", "_schema"),
        ("", "", "", None),
        ("%C3%A9", "é", "", None),
        ("a%C2%85b", "a\x85b", "", None),
    ],
)
def test_a_path_names_a_stream_and_what_is_asked_of_it(rest: str, name: str, resource: str, key: str | None) -> None:
    assert parse(PREFIX + rest.encode()) == Target(name, resource, key)


@pytest.mark.parametrize("rest", [b"%", b"%2", b"%zz", b"a%g0", b"%ff", b"\xff", b"%c3", b"a/pk/%", b"%ed%a0%80"])
def test_a_path_that_cannot_be_read_is_refused(rest: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(PREFIX + rest)


@given(st.text(min_size=1, max_size=40).filter(lambda name: name.isprintable()))
def test_the_address_of_a_name_leads_back_to_it(name: str) -> None:
    try:
        check_name(name, 512)
    except BadRequest:
        return
    assert parse(address(name).encode()) == Target(name, "", None)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(rest: bytes) -> None:
    try:
        found = parse(PREFIX + rest)
    except BadRequest:
        return
    assert isinstance(found.name, str)


@pytest.mark.parametrize(
    "name",
    ["", "/", "a//b", "/a", "a/", ".", "..", "a/../b", "a/.", "a\x00b", "a\nb", "\x7f", "\x80", "a\x85b", "\x9f",
     "a/_schema", "_retention", "a/_seal", "a/_plan", "a/_plan/rows", "a/pk", "pk", "a/pk/b", "__ds",
     "__ds/x", "__x", "x" * 513, "é" * 257,
     "a/touch/wait", "a/touch/meta", "a/touch/templates/activate", "a/_otlp/v1/traces", "a/_schema/verifications",
     "a/_schema/verifications/x"],
)  # fmt: skip
def test_a_name_that_could_not_be_reached_is_refused(name: str) -> None:
    with pytest.raises(BadRequest):
        check_name(name, 512)


@pytest.mark.parametrize(
    "name",
    ["a", "A", "0", "-", "a.b", "...", "a/b/c", "événement", "a b", "~user", "a:b@c", "_x", "a/_x", "x__", "pkg/a",
     "meta", "wait", "traces", "touch", "schema", "verifications", "x" * 512, "é" * 256, "%", "a?b#c", "a\\b",
     "日本", "a\xa0b"],
)  # fmt: skip
def test_any_other_text_is_a_name(server: ServerProcess, api: Api, connect: Connect, name: str) -> None:
    check_name(name, 512)
    wire, path = connect(server), address(name)
    created = wire.request("PUT", path, b"x", "Content-Type: text/plain").answer()
    assert created.status == 201
    assert created.headers["location"] == f"http://{wire.host}{path}"
    assert wire.request("GET", path).answer().body == b"x"
    assert wire.request("GET", path + "/").answer().body == b"x"
    escaped = "/v1/stream/" + "".join(f"%{byte:02x}" for byte in name.encode())
    assert wire.request("GET", escaped).answer().body == b"x"
    assert name in [stream["name"] for stream in api.get("/v1/streams", prefix=name).json()]


@pytest.mark.parametrize(
    "rest",
    ["%2e%2e", "a%2F%2Fb", "a%00b", "a%0Ab", "a%C2%85b", "a%2F_search", "%5F%5Fds", "a%2Ftouch%2Fwait", "x" * 600,
     "a%2F"],
)  # fmt: skip
def test_a_name_that_may_not_be_is_refused_over_http(server: ServerProcess, connect: Connect, rest: str) -> None:
    wire = connect(server)
    answer = wire.request("PUT", f"/v1/stream/{rest}").answer()
    assert answer.status == 400
    assert answer.code() == "bad_request"
    assert wire.request("GET", f"/v1/stream/{rest}").answer().status in (400, 404)
