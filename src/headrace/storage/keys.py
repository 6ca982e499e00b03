"""API keys: who may call, kept hashed in a small SQLite file of their own.

The command line writes the file while a server reads it: ``generation`` moves when keys have changed, here or,
after a :meth:`KeyStore.refresh`, elsewhere. A secret has 256 random bits, so one SHA-256 is enough to store it by. What
was done is noted in the same commit, until a server tells it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import UNSET, UnsetType

from headrace.errors import BadRequest, NotFound, Unavailable
from headrace.storage import database
from headrace.storage.database import NewerDatabase, SQLiteError
from headrace.storage.notes import Notes
from headrace.storage.page_checksums import has_checksums, require_checksums, vacuum_with_checksums
from headrace.types import Clock, SystemClock, rfc3339

SCOPES = ("read", "write", "admin")
MAX_TEXT = 128
MAX_PREFIX = 512
MAX_LIMIT = 2**53
#: Whoever can write the file.
LOCAL = "local"

_SCHEMA_VERSION = 4
#: From this version on every page of the file has a checksum.
_CHECKSUMS_SINCE = 3
_CACHE_BYTES = 256 * 1024
_OPEN_TIMEOUT_S = 5.0
_NO_HASH = bytes(32)
_CREATE = """
CREATE TABLE IF NOT EXISTS keys (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    scopes     TEXT NOT NULL,   -- words with spaces between
    prefix     TEXT NOT NULL,   -- the only stream names it opens begin so
    created_us INTEGER NOT NULL,
    revoked_us INTEGER,
    hash       BLOB NOT NULL    -- SHA-256 of the secret
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, document TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS key_limits (
    key_id         TEXT PRIMARY KEY,
    requests_per_s INTEGER,     -- 0 is no limit, NULL that of the server
    bytes_per_s    INTEGER
) STRICT, WITHOUT ROWID"""
_SELECT = """
SELECT id, name, user_id, scopes, prefix, created_us, revoked_us, hash, requests_per_s, bytes_per_s
FROM keys LEFT JOIN key_limits ON key_id = id """


class Key(msgspec.Struct, frozen=True):
    """What is known about a key; the secret is not."""

    id: str
    name: str
    user_id: str
    scopes: tuple[str, ...]
    prefix: str
    created_us: int
    revoked_us: int | None = None
    #: Requests and bytes that it may use in a second: 0 is any number, None what the server's settings say.
    requests_per_s: int | None = None
    bytes_per_s: int | None = None


class KeyStore:
    """The keys of one data directory, shared by every process that opens it."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._path = path
        self._connection = _connect(path)
        with database.using(path):
            self._migrate()
            if not has_checksums(self._connection):
                self._add_checksums()
            require_checksums(self._connection, _CHECKSUMS_SINCE)
        self._data_version = int(self._connection.pragma("data_version"))
        self.generation = 0
        self._notes = Notes(self._connection)

    def create(
        self,
        *,
        user_id: str,
        scopes: Collection[str],
        prefix: str = "",
        name: str = "",
        requests_per_s: int | None = None,
        bytes_per_s: int | None = None,
    ) -> tuple[Key, str]:
        """Make a key; the token is shown this once and cannot be had again."""
        _check_text("user_id", user_id, MAX_TEXT, min_length=1)
        _check_text("name", name, MAX_TEXT)
        _check_text("prefix", prefix, MAX_PREFIX)
        limits = _limit("requests_per_s", requests_per_s), _limit("bytes_per_s", bytes_per_s)
        key = Key(
            secrets.token_hex(6), name, user_id, _check_scopes(scopes), prefix, self._clock.now_us(), None, *limits
        )
        secret = secrets.token_urlsafe(32)
        row = (key.id, name, user_id, " ".join(key.scopes), prefix, key.created_us, None, _hash(secret))
        self._write("key_created", key, ("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row), _setting(key))
        return key, f"hr_{key.id}_{secret}"

    def rotate(self, key_id: str) -> tuple[Key, str]:
        """Make another key with the rights and limits of this one, which holds until it is revoked."""
        old = self._living(key_id)
        return self.create(
            user_id=old.user_id,
            scopes=old.scopes,
            prefix=old.prefix,
            name=old.name,
            requests_per_s=old.requests_per_s,
            bytes_per_s=old.bytes_per_s,
        )

    def update(
        self,
        key_id: str,
        *,
        name: str | UnsetType = UNSET,
        requests_per_s: int | UnsetType | None = UNSET,
        bytes_per_s: int | UnsetType | None = UNSET,
    ) -> Key:
        """Change what is given of a key; its user and its rights stay as they are."""
        changes = {"name": name, "requests_per_s": requests_per_s, "bytes_per_s": bytes_per_s}
        key = msgspec.structs.replace(
            self._living(key_id), **{field: value for field, value in changes.items() if value is not UNSET}
        )
        _check_text("name", key.name, MAX_TEXT)
        _limit("requests_per_s", key.requests_per_s)
        _limit("bytes_per_s", key.bytes_per_s)
        self._write("key_updated", key, ("UPDATE keys SET name = ? WHERE id = ?", (key.name, key_id)), _setting(key))
        return key

    def list(self) -> Sequence[Key]:
        """Every key, revoked ones too, oldest first."""
        return [key for key, _ in self._rows("ORDER BY created_us, id")]

    def living(self) -> frozenset[str]:
        """The ids of the keys that hold."""
        return frozenset(key.id for key in self.list() if key.revoked_us is None)

    def revoke(self, key_id: str) -> Key:
        """End a key; doing it again changes nothing."""
        key = self._key(key_id)
        sql = "UPDATE keys SET revoked_us = ? WHERE id = ? AND revoked_us IS NULL"
        self._write("key_revoked", key, (sql, (self._clock.now_us(), key_id)))
        return self._key(key_id)

    def verify(self, token: str) -> Key | None:
        """The key this token proves, unless it is unknown, wrong or revoked."""
        kind, _, rest = token.partition("_")
        key_id, _, secret = rest.partition("_")
        if kind != "hr" or not token.isascii():
            return None
        key, stored = next(self._rows("WHERE id = ?", key_id), (None, _NO_HASH))
        matches = hmac.compare_digest(_hash(secret), stored)
        return key if key is not None and matches and key.revoked_us is None else None

    def count(self) -> int:
        """How many keys open a door."""
        return sum(key.revoked_us is None for key, _ in self._rows(""))

    def refresh(self) -> None:
        """Notice what other processes have changed; costs a few microseconds."""
        version = int(self._connection.pragma("data_version"))
        if version != self._data_version:
            self._data_version = version
            self.generation += 1

    def pending_notes(self, limit: int) -> Sequence[tuple[int, str]]:
        """Audit notes on keys that are not in the audit stream yet, the oldest first, with their numbers."""
        try:
            return self._notes.first(limit)
        except SQLiteError as reason:
            raise database.refusal(reason, self._path) from reason

    def remove_notes(self, through: int) -> None:
        """Remove notes up to this number, which are in the audit stream now."""
        try:
            self._notes.remove(through)
        except SQLiteError as reason:
            raise database.refusal(reason, self._path) from reason

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _key(self, key_id: str) -> Key:
        for key, _ in self._rows("WHERE id = ?", key_id):
            return key
        raise NotFound("there is no such key", key=key_id)

    def _living(self, key_id: str) -> Key:
        key = self._key(key_id)
        if key.revoked_us is not None:
            raise BadRequest("this key is revoked: create another one", field="key", key=key_id)
        return key

    def _migrate(self) -> None:
        version = int(self._connection.pragma("user_version"))
        if version > _SCHEMA_VERSION:
            message = f"the keys have schema version {version}, this Headrace knows {_SCHEMA_VERSION}"
            raise NewerDatabase(f"{message}: install a newer one", found=version, known=_SCHEMA_VERSION)
        newest = _SCHEMA_VERSION if has_checksums(self._connection) else _CHECKSUMS_SINCE - 1
        if version < newest or not self._has_limits():
            # Another process may be doing the same: take the lock first, and find the work done.
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(_CREATE)
            self._connection.pragma("user_version", newest)
            self._connection.execute("COMMIT")

    def _has_limits(self) -> bool:
        """Whether the table of limits is there; a file that cannot get checksums yet keeps its old version."""
        return bool(self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'key_limits'").fetchall())

    def _add_checksums(self) -> None:
        """Rewrite a file whose pages have no checksums; it stays as it is while another process has it open."""
        if int(self._connection.pragma("user_version")) >= _CHECKSUMS_SINCE or self._connection.readonly("main"):
            return
        try:
            vacuum_with_checksums(self._connection)
        except apsw.BusyError:
            return
        finally:
            self._connection.close()
            self._connection = _connect(self._path)
        self._migrate()

    def _write(self, what: str, key: Key, *statements: tuple[str, tuple[object, ...]]) -> None:
        """Do something to a key, and note it where that changed anything."""
        with database.using(self._path), self._connection:
            before = self._connection.total_changes()
            for sql, values in statements:
                self._connection.execute(sql, values)
            if self._connection.total_changes() > before:
                self._notes.add([_note(what, key, self._clock.now_us())])
        self._checkpoint()
        self.generation += 1

    def _checkpoint(self) -> None:
        """Move what was committed into the file, whose pages are verified.

        Damage in the last commit of a write-ahead log looks like a crash before it: a revoked key would open again.
        """
        with database.using(self._path), contextlib.suppress(apsw.BusyError):
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _rows(self, clause: str, *values: object) -> Iterator[tuple[Key, bytes]]:
        try:
            rows: Sequence[Any] = self._connection.execute(_SELECT + clause, values).fetchall()
        except SQLiteError as reason:
            raise database.refusal(reason, self._path) from reason
        for key_id, name, user_id, scopes, prefix, created_us, revoked_us, stored, *limits in rows:
            yield Key(key_id, name, user_id, tuple(scopes.split()), prefix, created_us, revoked_us, *limits), stored


def _connect(path: Path) -> database.Connection:
    """Open the file; SQLite does not wait by itself while another process makes it a WAL database."""
    give_up = time.monotonic() + _OPEN_TIMEOUT_S
    while True:
        try:
            return database.connect(path, cache_bytes=_CACHE_BYTES)
        except Unavailable as refusal:
            if not isinstance(refusal.__cause__, apsw.BusyError) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _note(what: str, key: Key, now_us: int) -> str:
    facts: dict[str, object] = {
        "key": key.id,
        "user_id": key.user_id,
        "scopes": key.scopes,
        "prefix": key.prefix,
        "name": key.name,
    }
    limits = {"requests_per_s": key.requests_per_s, "bytes_per_s": key.bytes_per_s}
    facts |= {name: limit for name, limit in limits.items() if limit is not None}
    return msgspec.json.encode({"at": rfc3339(now_us), "who": LOCAL, "what": what, **facts}).decode()


def _setting(key: Key) -> tuple[str, tuple[object, ...]]:
    """The statement that sets the limits of a key, and its values."""
    sql = "INSERT OR REPLACE INTO key_limits VALUES (?, ?, ?)"
    return sql, (key.id, key.requests_per_s, key.bytes_per_s)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _limit(field: str, limit: int | None) -> int | None:
    if limit is not None and not 0 <= limit <= MAX_LIMIT:
        raise BadRequest(f"{field} is {limit}, not 0 to {MAX_LIMIT}", field=field)
    return limit


def _check_scopes(scopes: Collection[str]) -> tuple[str, ...]:
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not scopes:
        offending = repr(unknown[0]) if unknown else "nothing"
        raise BadRequest(f"a key has one or more of the scopes {', '.join(SCOPES)}, not {offending}", field="scopes")
    return tuple(scope for scope in SCOPES if scope in scopes)


def _check_text(field: str, text: str, max_length: int, *, min_length: int = 0) -> None:
    if not min_length <= len(text) <= max_length:
        raise BadRequest(f"{field} has {len(text)} characters, not {min_length} to {max_length}", field=field)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise BadRequest(f"{field} holds half a character, which UTF-8 cannot carry", field=field)
