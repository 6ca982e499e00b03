"""The rows of ``idempotency``: requests that may come again under the same key, and what they were answered."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from headrace import decoding
from headrace.format.packing import LEAST_BYTES, pack, unpack
from headrace.storage.database import Connection

_DIGESTED = "sha256:"


def stored_key(user_id: str, key: str) -> str:
    """A key as it is stored: a digest, since the text of a key may be personal data."""
    return _DIGESTED + sha256(msgspec.json.encode([user_id, key])).hexdigest()


class Answered(NamedTuple):
    """What a request asked for, as a digest, and its answer; that of one entity in a request has none of its own."""

    digest: bytes
    answer: bytes


class _Kept(msgspec.Struct, array_like=True):
    """An answer as it is stored: in less space where that pays, with the size that it had."""

    size: int
    body: bytes


class Idempotency:
    """Reads and writes answers through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def find(self, user_id: str, key: str) -> Answered | None:
        """What a user's request of this key was answered, if it is remembered."""
        sql = "SELECT digest, answer FROM idempotency WHERE user_id = ? AND key = ?"
        row = self._connection.execute(sql, (user_id, stored_key(user_id, key))).fetchone()
        if row is None and not key.startswith(_DIGESTED):
            # Keys that were stored before they were digested; they are forgotten with the answers.
            row = self._connection.execute(sql, (user_id, key)).fetchone()
        return None if row is None else Answered(row[0], _unpacked(row[1]))

    def save(self, user_id: str, key: str, answered: Answered, at_us: int) -> None:
        """Remember an answer."""
        sql = "INSERT INTO idempotency (user_id, key, digest, answer, at_us) VALUES (?, ?, ?, ?, ?)"
        values = user_id, stored_key(user_id, key), answered.digest, _packed(answered.answer), at_us
        self._connection.execute(sql, values)

    def mentioning(self, user_id: str, texts: Iterable[bytes], digests: Collection[bytes], since_us: int) -> list[str]:
        """The stored keys of a user's requests since a moment whose answers hold one of some texts or digests."""
        sql, sought = "SELECT key, digest, answer FROM idempotency WHERE user_id = ? AND at_us >= ?", list(texts)
        found: list[str] = []
        for key, digest, stored in self._connection.execute(sql, (user_id, since_us)):
            answer = _unpacked(stored)
            if digest in digests or any(text in answer for text in sought):
                found.append(str(key))
        return found

    def drop(self, user_id: str, keys: Iterable[str]) -> None:
        """Forget answers, by their stored keys."""
        sql = "DELETE FROM idempotency WHERE user_id = ? AND key = ?"
        self._connection.executemany(sql, [(user_id, key) for key in keys])

    def forget(self, before_us: int, most: int, most_bytes: int, limit: int) -> int:
        """Forget up to so many of the oldest that are too old or beyond so many, or so many bytes; answers how many."""
        row: Any = self._connection.execute(_TOTAL).fetchone()
        if row[0] > most or (row[1] or 0) > most_bytes:
            cut = self._connection.execute(_CUT, (most, most_bytes)).get
            before_us = max(before_us, int(cut) + 1)
        self._connection.execute(_FORGET, (before_us, limit))
        return int(self._connection.changes())


# Of the lengths the index knows, so that no answer is read.
_TOTAL = "SELECT count(*), sum(length(answer)) FROM idempotency INDEXED BY idempotency_age"
# The newest moment whose answers are too many, counted from the newest answer back.
_CUT = """SELECT max(at_us) FROM (
    SELECT at_us, row_number() OVER newest AS number, sum(length(answer)) OVER newest AS bytes
    FROM idempotency INDEXED BY idempotency_age WINDOW newest AS (ORDER BY at_us DESC ROWS UNBOUNDED PRECEDING)
) WHERE number > ?1 OR bytes > ?2"""
_FORGET = """DELETE FROM idempotency WHERE (user_id, key) IN (
    SELECT user_id, key FROM idempotency WHERE at_us < ?1 ORDER BY at_us LIMIT ?2)"""


def _packed(answer: bytes) -> bytes:
    packed = pack(answer) if len(answer) >= LEAST_BYTES else None
    return msgspec.msgpack.encode(_Kept(len(answer), answer if packed is None else packed))


def _unpacked(stored: bytes) -> bytes:
    kept = decoding.unpack(stored, _Kept)
    return kept.body if len(kept.body) == kept.size else unpack(kept.body, kept.size)
