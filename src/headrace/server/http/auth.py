"""Authentication: who is calling, what they may do, and which web pages may ask.

On a loopback address a program needs no key and is the user ``local``. A web page is not such a program: its
browser sends a ``Host``, an ``Origin`` or a ``Sec-Fetch-Site`` that gives it away. Anywhere else everyone needs a key.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Mapping
from time import monotonic
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec

from headrace.config import Config, ConfigError, ServerConfig
from headrace.engine.system_streams import REGISTRY
from headrace.errors import BadRequest, Forbidden, HeadraceError, Unauthorized
from headrace.server.http.quota import Quota
from headrace.storage.keys import MAX_TEXT, SCOPES, Key, KeyStore

#: Pages that a link on any site may lead to: they say nothing of any stream.
_ENTRANCES = frozenset({"/", "/console"})
#: What a browser says of requests of our own pages, and of addresses that the user has typed.
_OWN_SITES = frozenset({None, b"same-origin", b"none"})
_REFRESH_INTERVAL_S = 0.5
#: Of no generation of the keys, so that they are looked at again.
_UNREAD = -1
#: The longest name of a user that anybody may name: that of the user of a key.
MAX_USER = MAX_TEXT
_MEMO_CALLERS = 4096
_MEMO_BYTES = 512
_NO_SUCH_KEY = "the key is unknown, wrong or revoked"
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::\d{1,5})?", re.ASCII)

_METHODS = "GET, HEAD, POST, PUT, DELETE, OPTIONS"
_REQUEST_HEADERS = (
    "content-type, content-encoding, authorization, if-none-match, if-match, x-request-id, "
    "stream-key, stream-timestamp, stream-seq, stream-ttl, stream-expires-at, stream-closed, "
    "stream-forked-from, stream-fork-offset, stream-fork-sub-offset, stream-retention-age, stream-retention-bytes, "
    "producer-id, producer-epoch, producer-seq, traceparent, tracestate, baggage"
)
_RESPONSE_HEADERS = (
    "stream-next-offset, stream-end-offset, stream-start-offset, stream-earliest-offset, stream-up-to-date, "
    "stream-cursor, stream-closed, stream-ttl, stream-expires-at, stream-retention-age, stream-retention-bytes, "
    "stream-sse-data-encoding, stream-expected-seq, stream-received-seq, producer-epoch, producer-seq, "
    "producer-expected-seq, producer-received-seq, stream-deduplicated, idempotency-replayed, headrace-coverage, "
    "headrace-registry-version, headrace-events-from, stream-filter-scan-limit-reached, "
    "stream-filter-scan-limit-bytes, stream-filter-scanned-bytes, stream-filter-timed-out, "
    "etag, link, location, retry-after, x-request-id"
)


class KeyWatcher(Protocol):
    """A request that is still being answered, and must end when its key is revoked."""

    def wake(self) -> None:
        """The key was revoked: end the answer."""


class KeyStatus:
    """Whether a key is still valid, for requests that outlive the moment in which they were admitted."""

    __slots__ = ("__weakref__", "_watchers", "is_valid")

    def __init__(self) -> None:
        self.is_valid = True
        self._watchers: dict[KeyWatcher, None] = {}

    def require(self) -> None:
        """Refuse a caller whose key was revoked, as a new request would be."""
        if not self.is_valid:
            raise Unauthorized(_NO_SUCH_KEY)

    def watch(self, watcher: KeyWatcher) -> None:
        """Wake this watcher when the key is revoked."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: KeyWatcher) -> None:
        """Stop watching."""
        self._watchers.pop(watcher, None)

    def end(self) -> None:
        """The key was revoked: wake every watcher."""
        self.is_valid = False
        for watcher in tuple(self._watchers):
            watcher.wake()


class AdminRefused(Forbidden):
    """The request needs an admin key of the whole server, and the caller has none."""

    def __init__(self, message: str, principal: Principal | None = None, **facts: str) -> None:
        super().__init__(message, **facts)
        self.principal = principal


class Principal(msgspec.Struct, frozen=True):
    """Who calls: a user, what the key allows, and whether it still does."""

    user_id: str
    scopes: frozenset[str]
    prefix: str = ""
    key_status: KeyStatus = msgspec.field(default_factory=KeyStatus)
    #: The public part of the key; empty for a caller without one.
    key_id: str = ""
    #: The rate limits of the key; None where it has none.
    quota: Quota | None = None

    def require(self, scope: str, stream: str | None = None) -> None:
        """Refuse a caller who lacks the scope; without ``stream`` it is needed for the whole server.

        The streams of entity types hold the rows of all users, and the account of who did what tells of all of them,
        so that they are for admins only.
        """
        if stream is not None:
            self._refuse_shared(stream)
        self._require(scope, stream)

    def may(self, scope: str, stream: str) -> bool:
        """Whether the caller has the scope for a stream."""
        return scope in self.scopes and (not self.prefix or self._covers(scope, stream))

    def require_type(self, scope: str, entity_type: str) -> None:
        """Refuse a caller who may not do this with their own entities of a type."""
        self._require(scope, ENTITY_STREAM_PREFIX + entity_type)

    def _require(self, scope: str, stream: str | None) -> None:
        if scope not in self.scopes:
            raise self._refusal(scope, f"this key lacks the scope {scope}", scope=scope)
        if self.prefix and not self._covers(scope, stream):
            raise self._refusal(scope, "this key opens only some streams", prefix=self.prefix)

    def _refusal(self, needed: str, message: str, **facts: str) -> Forbidden:
        return AdminRefused(message, self, **facts) if needed == "admin" else Forbidden(message, **facts)

    def acting_for(self, user_id: str | None) -> str:
        """The user whose rows are requested: the caller, or the user that an admin names."""
        if user_id is None or user_id == self.user_id:
            return self.user_id
        if not 1 <= len(user_id) <= MAX_USER:
            raise BadRequest(f"user_id has 1 to {MAX_USER} characters", field="user_id")
        self.require("admin")
        return user_id

    @property
    def is_operator(self) -> bool:
        """Whether the key is an admin key of the whole server."""
        return "admin" in self.scopes and not self.prefix

    def covers(self, stream: str) -> bool:
        """Whether the prefix of the key covers a stream."""
        return stream.startswith(self.prefix)

    def enter(self, stream: str) -> None:
        """Refuse a stream that the key does not cover, before it is looked up."""
        self._refuse_shared(stream)
        if not self.covers(stream):
            raise Forbidden("this key opens only some streams", prefix=self.prefix)

    @property
    def hidden(self) -> str | None:
        """The prefix of streams that are hidden from this key, if any."""
        return None if "admin" in self.scopes else ENTITY_STREAM_PREFIX

    def _refuse_shared(self, stream: str) -> None:
        if stream.startswith(ENTITY_STREAM_PREFIX) and "admin" not in self.scopes:
            message = "streams of entities hold the rows of all users: this takes an admin key"
            raise AdminRefused(message, self, scope="admin")
        if stream == REGISTRY and "admin" not in self.scopes:
            raise AdminRefused("the account of who did what takes an admin key", self, scope="admin")

    def narrow(self, prefix: str) -> str:
        """The prefix to list by, so that a limited key sees its own streams only."""
        if prefix.startswith(self.prefix):
            return prefix
        if self.prefix.startswith(prefix):
            return self.prefix
        raise Forbidden("this key opens only some streams", prefix=self.prefix)

    def _covers(self, scope: str, stream: str | None) -> bool:
        return scope != "admin" if stream is None else stream.startswith(self.prefix)


#: What the streams are called that hold the rows of all users.
ENTITY_STREAM_PREFIX = "entities/"

LOCAL = Principal("local", frozenset(SCOPES))


class Authenticator:
    """Authenticates requests; remembers each caller until keys change."""

    def __init__(self, config: ServerConfig, keys: KeyStore) -> None:
        self._keys = keys
        self._loopback = is_loopback(config.host)
        self._scheme = "https" if config.tls_cert else "http"
        self._origins = frozenset(origin.rstrip("/").lower() for origin in config.cors_origins)
        self.has_origins = bool(self._origins)
        self._memo: dict[tuple[bytes | None, ...], Principal] = {}
        self._key_statuses: WeakValueDictionary[str, KeyStatus] = WeakValueDictionary()
        self._default_limits = config.key_requests_per_s, config.key_bytes_per_s
        self._quotas: dict[str, Quota] = {}
        #: Changes when keys have; who was admitted before must be looked at again.
        self.generation = keys.generation
        self._refresh_at = 0.0
        #: Called with the ids of the keys that hold, when keys have changed.
        self.on_change: list[Callable[[Collection[str]], None]] = []

    def admit(self, headers: Mapping[bytes, bytes], *, from_any_site: bool = False) -> Principal:
        """The principal of a request with these headers; raises Unauthorized or Forbidden."""
        self.refresh()
        site = None if from_any_site else headers.get(b"sec-fetch-site")
        caller = headers.get(b"host"), headers.get(b"origin"), headers.get(b"authorization"), site
        principal = self._memo.get(caller)
        if principal is None:
            principal = self._judge(*caller)
            self._remember(caller, principal)
        return principal

    def refuse_other_sites(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse the web pages of others where no key is needed."""
        if self._loopback and b"authorization" not in headers:
            self._refuse_site(headers.get(b"sec-fetch-site"), headers.get(b"origin"))

    def refresh(self) -> None:
        """Notice, within a second, that keys were made or revoked; watchers of a revoked key are woken."""
        if monotonic() >= self._refresh_at:
            self._refresh_at = monotonic() + _REFRESH_INTERVAL_S
            self._keys.refresh()
        if self._keys.generation != self.generation:
            self.generation = self._keys.generation
            self._memo.clear()
            self._end_revoked()

    def cors_headers(self, origin: bytes | None) -> list[tuple[str, str]]:
        """What a response to this origin carries, so that its page may read it."""
        if not self._origins:
            return []
        if origin is None or not self.allows(origin):
            return [("vary", "Origin")]
        return [
            ("access-control-allow-origin", origin.decode("latin-1")),
            ("access-control-expose-headers", _RESPONSE_HEADERS),
            ("vary", "Origin"),
        ]

    def preflight(self, headers: Mapping[bytes, bytes]) -> list[tuple[str, str]]:
        """The headers of the answer to OPTIONS: methods and headers, and CORS headers for allowed origins."""
        return [
            ("access-control-allow-methods", _METHODS),
            ("access-control-allow-headers", _REQUEST_HEADERS),
            ("access-control-max-age", "86400"),
            *self.cors_headers(headers.get(b"origin")),
        ]

    def allows(self, origin: bytes | None) -> bool:
        """Whether the settings allow pages of this origin."""
        return "*" in self._origins or (origin is not None and _text(origin) in self._origins)

    def _judge(
        self, host: bytes | None, origin: bytes | None, authorization: bytes | None, site: bytes | None
    ) -> Principal:
        if authorization is not None and (principal := self._holder(_text(authorization, lower=False))) is not None:
            return principal
        if not self._loopback:
            raise Unauthorized("this server wants a key: send Authorization: Bearer <key>")
        # Only programs leave Host out: a browser always sends it.
        if host is not None and not is_loopback(_hostname(_text(host))):
            raise Forbidden("Host names another machine; without a key only loopback names are served", field="Host")
        if origin is not None and not self._is_ours(_text(origin), host) and not self.allows(origin):
            raise Forbidden("web pages of this origin may not call; --cors-origin allows them", field="Origin")
        self._refuse_site(site, origin)
        return LOCAL

    def _refuse_site(self, site: bytes | None, origin: bytes | None) -> None:
        if site not in _OWN_SITES and not self.allows(origin):
            raise Forbidden("web pages of other sites may not call; --cors-origin allows them", field="Sec-Fetch-Site")

    def _holder(self, authorization: str) -> Principal | None:
        """The owner of the key; None on a loopback address where no key was ever made."""
        scheme, _, token = authorization.partition(" ")
        key = self._keys.verify(token.strip()) if scheme.lower() == "bearer" else None
        if key is None and self._loopback and not self._keys.list():
            return None
        if key is None:
            raise Unauthorized(_NO_SUCH_KEY)
        highest = max(SCOPES.index(scope) for scope in key.scopes)
        key_status = self._key_statuses.setdefault(key.id, KeyStatus())
        scopes = frozenset(SCOPES[: highest + 1])
        return Principal(key.user_id, scopes, key.prefix, key_status, key.id, self._quota(key))

    def _quota(self, key: Key) -> Quota | None:
        """The quota that every request of the key shares, for as long as its limits stay the same."""
        own, default = (key.requests_per_s, key.bytes_per_s), self._default_limits
        requests_per_s, bytes_per_s = (
            there if limit is None else limit for limit, there in zip(own, default, strict=True)
        )
        quota = self._quotas.pop(key.id, None)
        if not requests_per_s and not bytes_per_s:
            return None
        if quota is None or (quota.requests_per_s, quota.bytes_per_s) != (requests_per_s, bytes_per_s):
            quota = Quota(requests_per_s, bytes_per_s)
        self._quotas[key.id] = quota
        return quota

    def _end_revoked(self) -> None:
        try:
            living = self._keys.living()
        except HeadraceError:
            self.generation = _UNREAD
            return
        self._quotas = {key_id: quota for key_id, quota in self._quotas.items() if key_id in living}
        for key_id, key_status in list(self._key_statuses.items()):
            if key_id not in living:
                self._key_statuses.pop(key_id, None)
                key_status.end()
        for keep_keys in self.on_change:
            keep_keys(living)

    def _is_ours(self, origin: str, host: bytes | None) -> bool:
        return host is not None and origin == f"{self._scheme}://{_text(host)}"

    def _remember(self, caller: tuple[bytes | None, ...], principal: Principal) -> None:
        if sum(len(part or b"") for part in caller) > _MEMO_BYTES:
            return
        if len(self._memo) >= _MEMO_CALLERS:
            self._memo.clear()
        self._memo[caller] = principal


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_page_navigation(method: str, path: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser opens one of our pages, which it may from a link on any site, but not inside its page."""
    is_opened = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") in (None, b"document")
    return is_opened and method == "GET" and path in _ENTRANCES


def refuse_open_bind(config: Config, keys: KeyStore) -> None:
    """Refuse to start where others could reach a server that nobody needs a key for."""
    if not is_loopback(config.server.host) and not keys.count():
        raise ConfigError(
            f"{config.server.host} can be reached by others, and there is no key yet: make one with "
            "`headrace key create`, or bind 127.0.0.1",
            field="server.host",
        )


def _text(value: bytes, *, lower: bool = True) -> str:
    text = value.decode("latin-1")
    return text.lower() if lower else text


def _hostname(authority: str) -> str:
    match = _AUTHORITY.fullmatch(authority)
    return match[1].strip("[]") if match else ""
