from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import server as server_package
from headrace.config import Config, ConfigError, ServerConfig
from headrace.errors import BadRequest, Forbidden, Unauthorized, Unavailable
from headrace.server.http.auth import LOCAL, Authenticator, Principal, is_loopback, refuse_open_bind
from headrace.server.http.route import Access
from headrace.server.routes.route_table import ROUTES
from headrace.storage.keys import MAX_TEXT, Key, KeyStore

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[KeyStore]:
    store = KeyStore(tmp_path / "keys.db")
    yield store
    store.close()


@pytest.fixture
def authenticator(keys: KeyStore) -> Authenticator:
    return Authenticator(ServerConfig(), keys)


@pytest.fixture
def public(keys: KeyStore) -> Authenticator:
    return Authenticator(ServerConfig(host="0.0.0.0"), keys)


def _bearer(token: str) -> dict[bytes, bytes]:
    return {b"host": b"streams.example", b"authorization": f"Bearer {token}".encode()}


# -- on loopback, without a key


@pytest.mark.parametrize(
    "host",
    [b"127.0.0.1:4437", b"127.0.0.1", b"127.8.9.10:80", b"localhost", b"LOCALHOST:4437", b"[::1]:4437", b"[::1]", None],
)
def test_a_program_on_this_machine_is_local_with_every_scope(authenticator: Authenticator, host: bytes | None) -> None:
    principal = authenticator.admit({} if host is None else {b"host": host})
    assert principal is LOCAL
    for scope in ("read", "write", "admin"):
        principal.require(scope, "any/stream")
        principal.require(scope)


@pytest.mark.parametrize(
    "host",
    [
        b"example.com", b"example.com:4437", b"127.0.0.1.example.com", b"localhost.example.com", b"192.168.0.1",
        b"0.0.0.0", b"", b":4437", b"127.0.0.1:4437:1", b"127.0.0.1 ", b"127.0.0.1,127.0.0.1", b"user@127.0.0.1",
        b"[::1", b"::1", b"127.0.0.1:99999999", b"127.1", b"0x7f.0.0.1", b"\xff",
    ],
)  # fmt: skip
def test_a_host_that_is_no_loopback_name_is_refused(authenticator: Authenticator, host: bytes) -> None:
    with pytest.raises(Forbidden):
        authenticator.admit({b"host": host})


@pytest.mark.parametrize(
    "origin",
    [b"https://evil.example", b"null", b"http://localhost:3000", b"https://127.0.0.1:4437", b"http://127.0.0.1", b""],
)
def test_a_page_of_another_origin_is_refused(authenticator: Authenticator, origin: bytes) -> None:
    with pytest.raises(Forbidden):
        authenticator.admit({b"host": b"127.0.0.1:4437", b"origin": origin})


def test_a_page_of_the_server_itself_is_let_in(authenticator: Authenticator) -> None:
    assert authenticator.admit({b"host": b"127.0.0.1:4437", b"origin": b"http://127.0.0.1:4437"}) is LOCAL


def test_a_page_of_the_server_itself_is_let_in_over_tls(keys: KeyStore) -> None:
    authenticator = Authenticator(ServerConfig(tls_cert="cert.pem", tls_key="key.pem"), keys)
    assert authenticator.admit({b"host": b"localhost:4437", b"origin": b"https://localhost:4437"}) is LOCAL


def test_a_page_that_leaves_host_out_has_no_own_origin(authenticator: Authenticator) -> None:
    with pytest.raises(Forbidden):
        authenticator.admit({b"origin": b"http://127.0.0.1:4437"})


def test_an_allowed_origin_is_let_in_and_others_are_not(keys: KeyStore) -> None:
    authenticator = Authenticator(ServerConfig(cors_origins=("https://app.example/", "http://localhost:3000")), keys)
    for origin in (b"https://app.example", b"http://localhost:3000"):
        assert authenticator.admit({b"host": b"localhost:4437", b"origin": origin}) is LOCAL
    with pytest.raises(Forbidden):
        authenticator.admit({b"host": b"localhost:4437", b"origin": b"https://app.example.evil"})
    with pytest.raises(Forbidden):
        authenticator.admit({b"host": b"rebound.example", b"origin": b"https://app.example"})


@pytest.mark.parametrize("site", [b"cross-site", b"same-site", b"", b"Same-Origin", b"none, none"])
def test_a_page_of_another_site_is_refused(authenticator: Authenticator, site: bytes) -> None:
    headers = {b"host": b"127.0.0.1:4437", b"sec-fetch-site": site}
    authenticator.admit(headers | {b"sec-fetch-site": b"none"})
    with pytest.raises(Forbidden) as refusal:
        authenticator.admit(headers)
    assert refusal.value.facts == {"field": "Sec-Fetch-Site"}
    with pytest.raises(Forbidden):
        authenticator.refuse_other_sites(headers)


@pytest.mark.parametrize("site", [b"same-origin", b"none"])
def test_what_a_user_types_or_our_own_page_asks_is_let_in(authenticator: Authenticator, site: bytes) -> None:
    assert authenticator.admit({b"host": b"localhost", b"sec-fetch-site": site}) is LOCAL
    authenticator.refuse_other_sites({b"sec-fetch-site": site})


def test_a_listed_origin_is_let_in_from_its_own_site(keys: KeyStore) -> None:
    authenticator = Authenticator(ServerConfig(cors_origins=("https://app.example",)), keys)
    headers = {b"host": b"localhost", b"sec-fetch-site": b"cross-site"}
    assert authenticator.admit(headers | {b"origin": b"https://app.example"}) is LOCAL
    for other in ({}, {b"origin": b"https://other.example"}):
        with pytest.raises(Forbidden):
            authenticator.admit(headers | other)
    assert Authenticator(ServerConfig(cors_origins=("*",)), keys).admit(headers) is LOCAL


def test_with_a_key_the_site_does_not_matter(
    authenticator: Authenticator, public: Authenticator, keys: KeyStore
) -> None:
    _, token = keys.create(user_id="ann", scopes=["read"])
    for one in (authenticator, public):
        assert one.admit(_bearer(token) | {b"sec-fetch-site": b"cross-site"}).user_id == "ann"
    public.refuse_other_sites({b"sec-fetch-site": b"cross-site"})
    with pytest.raises(Unauthorized):
        public.admit({b"sec-fetch-site": b"cross-site"})


# -- with a key


def test_a_key_makes_the_caller_its_user(authenticator: Authenticator, keys: KeyStore) -> None:
    _, token = keys.create(user_id="ann", scopes=["write"], prefix="team/")
    principal = authenticator.admit(_bearer(token))
    assert principal.user_id == "ann"
    assert principal.scopes == {"read", "write"}
    assert principal.prefix == "team/"
    assert authenticator.admit({b"authorization": f"bearer  {token}".encode()}) == principal


@pytest.mark.parametrize(
    "authorization", [b"", b"Bearer", b"Bearer ", b"Bearer nonsense", b"Basic aGk6aG8=", b"hr_a_b", b"Bearer \xff"]
)
def test_a_wrong_key_is_refused_even_on_loopback(
    authenticator: Authenticator, keys: KeyStore, authorization: bytes
) -> None:
    keys.create(user_id="ann", scopes=["read"])
    with pytest.raises(Unauthorized):
        authenticator.admit({b"host": b"127.0.0.1", b"authorization": authorization})


def test_a_token_is_not_looked_at_while_there_are_no_keys(authenticator: Authenticator, keys: KeyStore) -> None:
    assert authenticator.admit({b"host": b"localhost", b"authorization": b"Bearer anything"}) is LOCAL
    key, token = keys.create(user_id="ann", scopes=["read"])
    with pytest.raises(Unauthorized):
        authenticator.admit({b"host": b"localhost", b"authorization": b"Bearer anything"})
    keys.revoke(key.id)
    with pytest.raises(Unauthorized):
        authenticator.admit({b"host": b"localhost", b"authorization": f"Bearer {token}".encode()})


def test_a_token_lets_no_web_page_in_while_there_are_no_keys(authenticator: Authenticator) -> None:
    for headers in ({b"host": b"rebound.example"}, {b"host": b"localhost", b"origin": b"https://evil.example"}):
        with pytest.raises(Forbidden):
            authenticator.admit({**headers, b"authorization": b"Bearer anything"})


def test_elsewhere_a_token_is_unknown_while_there_are_no_keys(public: Authenticator) -> None:
    with pytest.raises(Unauthorized):
        public.admit({b"host": b"localhost", b"authorization": b"Bearer anything"})


def test_elsewhere_everyone_needs_a_key(public: Authenticator, keys: KeyStore) -> None:
    _, token = keys.create(user_id="ann", scopes=["read"])
    with pytest.raises(Unauthorized) as refusal:
        public.admit({b"host": b"127.0.0.1"})
    assert refusal.value.headers() == {"www-authenticate": "Bearer"}
    assert public.admit(_bearer(token)).user_id == "ann"


def test_a_key_revoked_here_stops_working_at_once(public: Authenticator, keys: KeyStore) -> None:
    key, token = keys.create(user_id="ann", scopes=["read"])
    public.admit(_bearer(token))
    keys.revoke(key.id)
    with pytest.raises(Unauthorized):
        public.admit(_bearer(token))


def test_a_key_revoked_by_another_process_stops_working_soon(
    public: Authenticator, keys: KeyStore, tmp_path: Path
) -> None:
    key, token = keys.create(user_id="ann", scopes=["read"])
    public.admit(_bearer(token))
    other = KeyStore(tmp_path / "keys.db")
    other.revoke(key.id)
    other.close()
    with pytest.raises(Unauthorized):
        for _ in range(100):
            public.admit(_bearer(token))
            time.sleep(0.05)


class _Guest:
    """Someone who stays, and counts how often they are woken."""

    def __init__(self, principal: Principal) -> None:
        self.key_status, self.woken = principal.key_status, 0
        self.key_status.watch(self)

    def wake(self) -> None:
        self.woken += 1
        self.key_status.unwatch(self)


def test_who_stays_with_a_key_is_woken_when_it_is_revoked_and_nobody_else(
    authenticator: Authenticator, keys: KeyStore
) -> None:
    gone, kept = (keys.create(user_id="ann", scopes=["read"]) for _ in range(2))
    callers = [_bearer(gone[1]), _bearer(gone[1]) | {b"host": b"another.example"}, _bearer(kept[1]), {}]
    guests = [_Guest(authenticator.admit(caller)) for caller in callers]
    keys.create(user_id="ben", scopes=["read"])
    authenticator.refresh()
    assert [guest.woken for guest in guests] == [0, 0, 0, 0]
    keys.revoke(gone[0].id)
    for _ in range(2):
        authenticator.refresh()
        assert [guest.woken for guest in guests] == [1, 1, 0, 0]
    for guest in guests[:2]:
        with pytest.raises(Unauthorized):
            guest.key_status.require()
    for guest in guests[2:]:
        guest.key_status.require()
        guest.key_status.unwatch(guest)


def test_who_has_left_is_not_woken(authenticator: Authenticator, keys: KeyStore) -> None:
    key, token = keys.create(user_id="ann", scopes=["read"])
    guest = _Guest(authenticator.admit(_bearer(token)))
    guest.key_status.unwatch(guest)
    keys.revoke(key.id)
    authenticator.refresh()
    assert guest.woken == 0 and not guest.key_status.is_valid


def test_keys_that_cannot_be_read_are_looked_at_again(
    authenticator: Authenticator, keys: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable() -> list[Key]:
        raise Unavailable("the disk is gone")

    key, token = keys.create(user_id="ann", scopes=["read"])
    guest = _Guest(authenticator.admit(_bearer(token)))
    keys.revoke(key.id)
    with monkeypatch.context() as patch:
        patch.setattr(keys, "list", unreadable)
        authenticator.refresh()
        assert guest.woken == 0
    authenticator.refresh()
    assert guest.woken == 1


def test_many_different_callers_do_not_fill_the_memory(authenticator: Authenticator, keys: KeyStore) -> None:
    _, token = keys.create(user_id="ann", scopes=["read"])
    for number in range(10_000):
        authenticator.admit(_bearer(token) | {b"host": b"host-%d" % number})
    authenticator.admit(_bearer(token) | {b"origin": b"x" * 5000})
    assert len(authenticator._memo) <= 4096
    assert sum(len(part or b"") for caller in authenticator._memo for part in caller) < 4096 * 512


# -- what a principal may do


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [(["read"], 1), (["write"], 2), (["admin"], 3), (["read", "write"], 2), (["read", "admin"], 3)],
)
def test_admin_may_write_and_write_may_read(
    authenticator: Authenticator, keys: KeyStore, scopes: list[str], allowed: int
) -> None:
    _, token = keys.create(user_id="ann", scopes=scopes)
    principal = authenticator.admit(_bearer(token))
    order = ("read", "write", "admin")
    for scope in order[:allowed]:
        principal.require(scope, "stream")
    for scope in order[allowed:]:
        with pytest.raises(Forbidden):
            principal.require(scope, "stream")


def test_a_prefix_limits_the_streams_and_keeps_the_server_to_itself() -> None:
    principal = Principal("ann", frozenset({"read", "write", "admin"}), "team/")
    principal.require("write", "team/a")
    principal.require("read")
    for scope, stream in (("read", "teams"), ("write", "other/team/"), ("read", ""), ("admin", None)):
        with pytest.raises(Forbidden):
            principal.require(scope, stream)


def test_an_admin_names_the_users_that_keys_can_be_of(keys: KeyStore) -> None:
    longest = "u" * MAX_TEXT
    keys.create(user_id=longest, scopes=["read"])
    assert LOCAL.acting_for(longest) == longest
    for user in ("", longest + "u"):
        with pytest.raises(BadRequest):
            keys.create(user_id=user, scopes=["read"])
        with pytest.raises(BadRequest):
            LOCAL.acting_for(user)


def test_a_key_with_a_prefix_does_not_learn_which_other_streams_exist(
    server: ServerProcess, api: Api, eventually: Callable[..., None]
) -> None:
    there, missing = api.stream(1), api.name()
    store = KeyStore(server.data_dir / "keys.db")
    token = store.create(user_id="ann", scopes=["read", "write"], prefix="team/")[1]
    store.close()
    key = {"authorization": f"Bearer {token}"}
    eventually(lambda: api.get("/v1/streams", key).status_code == 200)
    resources = (
        "",
        "/pk/k",
        "/_details",
        "/_schema",
        "/_profile",
        "/_retention",
        "/_index_status",
        "/_search",
        "/_seal",
        "/_plan",
        "/_plan/rows",
    )
    for verb, resource in itertools.product(("GET", "HEAD", "POST", "PUT", "DELETE"), resources):
        asked = [api.call(verb, path + resource, headers=key) for path in (there, missing)]
        assert asked[0].status_code == asked[1].status_code in (403, 405), (verb, resource)
        assert asked[0].content == asked[1].content
    mine = api.get("/v1/stream/team/x", key)
    assert mine.status_code == 404


_NAMES = st.text("ab/", max_size=4)


@given(limit=_NAMES, asked=_NAMES, name=_NAMES)
def test_a_narrowed_listing_shows_what_was_asked_and_allowed_and_nothing_else(
    limit: str, asked: str, name: str
) -> None:
    wanted = name.startswith(asked) and name.startswith(limit)
    try:
        narrowed = Principal("ann", frozenset({"read"}), limit).narrow(asked)
    except Forbidden:
        assert not wanted
    else:
        assert name.startswith(narrowed) == wanted


# -- web pages


def test_without_allowed_origins_no_answer_speaks_of_cors(authenticator: Authenticator) -> None:
    assert authenticator.cors_headers(b"https://app.example") == []
    assert authenticator.cors_headers(None) == []


def test_an_allowed_origin_may_read_the_answers_headers(keys: KeyStore) -> None:
    authenticator = Authenticator(ServerConfig(cors_origins=("https://app.example",)), keys)
    headers = dict(authenticator.cors_headers(b"https://app.example"))
    assert headers["access-control-allow-origin"] == "https://app.example"
    assert headers["vary"] == "Origin"
    exposed = headers["access-control-expose-headers"].split(", ")
    sources = "".join(path.read_text() for path in Path(server_package.__file__).parent.rglob("*.py"))
    sent = set(re.findall(r'(?<![b\w])"((?:stream|producer)-[a-z-]+)"', sources))
    assert len(sent) > 15 and sent | {"etag", "link"} <= set(exposed)
    for other in (None, b"https://other.example", b"null"):
        assert authenticator.cors_headers(other) == [("vary", "Origin")]


def test_a_preflight_names_the_headers_to_anyone_but_allows_only_some(keys: KeyStore) -> None:
    authenticator = Authenticator(ServerConfig(cors_origins=("https://app.example",)), keys)
    stranger = dict(authenticator.preflight({b"origin": b"https://other.example"}))
    friend = dict(authenticator.preflight({b"origin": b"https://app.example"}))
    for answer in (stranger, friend):
        allowed = answer["access-control-allow-headers"].split(", ")
        assert {"content-type", "authorization", "if-none-match", "if-match", "stream-seq", "producer-id"} <= set(
            allowed
        )
        assert "PUT" in answer["access-control-allow-methods"]
    assert "access-control-allow-origin" not in stranger
    assert friend["access-control-allow-origin"] == "https://app.example"


def test_a_star_allows_every_origin(keys: KeyStore) -> None:
    authenticator = Authenticator(ServerConfig(cors_origins=("*",)), keys)
    assert authenticator.admit({b"host": b"localhost", b"origin": b"https://any.example"}) is LOCAL
    assert (
        dict(authenticator.cors_headers(b"https://any.example"))["access-control-allow-origin"] == "https://any.example"
    )


# -- where the server may be bound


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_key_to_start(keys: KeyStore, host: str) -> None:
    assert is_loopback(host)
    refuse_open_bind(Config(server=ServerConfig(host=host)), keys)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "streams.example", ""])
def test_another_address_needs_a_living_key_to_start(keys: KeyStore, host: str) -> None:
    config = Config(server=ServerConfig(host=host))
    with pytest.raises(ConfigError, match="headrace key create"):
        refuse_open_bind(config, keys)
    key, _ = keys.create(user_id="ann", scopes=["admin"])
    refuse_open_bind(config, keys)
    keys.revoke(key.id)
    with pytest.raises(ConfigError):
        refuse_open_bind(config, keys)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/health/ready", True),
        ("/v1/stream/__ds/jwks.json", True),
        ("/v1/stream/__ds/subscriptions/s1/callback", True),
        ("/v1/stream/__ds/subscriptions/s1/ack", True),
        ("/v1/stream/__ds/subscriptions/s1/claim", False),
        ("/v1/stream/__ds/subscriptions/s1", False),
        ("/v1/stream/__ds/subscriptions/s1/streams/callback", False),
        ("/v1/stream/callback", False),
        ("/metrics", False),
    ],
)
def test_only_probes_and_calls_with_their_own_proof_need_no_key(path: str, expected: bool) -> None:
    assert Access(ROUTES).is_open(path) is expected
