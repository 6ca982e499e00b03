"""The rows of ``dedupe``: which event of a stream had a key first, so that none is stored twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from headrace import decoding
from headrace.format.body_compression import LEAST_BYTES, pack, unpack
from headrace.storage.table import IN_LIST, TableQueries, json_list


class FirstEvent(NamedTuple):
    """The event that had a key first, and when it came."""

    seq: int
    at_us: int


class Dedupe(TableQueries):
    """Reads and writes the deduplication keys of event sources."""

    def find(self, stream: int, keys: list[str]) -> dict[str, FirstEvent]:
        """The first events of those keys that are stored."""
        if len(keys) == 1:
            sql = "SELECT seq, at_us FROM dedupe WHERE stream = ? AND key = ?"
            row: Any = self._connection.execute(sql, (stream, keys[0])).fetchone()
            return {} if row is None else {keys[0]: FirstEvent(*row)}
        sql = f"SELECT key, seq, at_us FROM dedupe WHERE stream = ? AND key {IN_LIST}"
        return {str(row[0]): FirstEvent(*row[1:]) for row in self._connection.execute(sql, (stream, json_list(keys)))}

    def save(self, rows: Iterable[tuple[int, str, int, int]]) -> None:
        """Store keys as (stream, key, seq, time), in place of what was stored of them."""
        self._connection.executemany("INSERT OR REPLACE INTO dedupe VALUES (?, ?, ?, ?)", rows)

    def save_run(self, stream: int, keys: list[str], first_seq: int, at_us: int) -> None:
        """Store the keys of consecutive events; one statement for all, as each waits for the lock."""
        sql = "INSERT OR REPLACE INTO dedupe SELECT ?1, value, ?2 + key, ?3 FROM json_each(?4)"
        self._connection.execute(sql, (stream, first_seq, at_us, json_list(keys)))

    def forget(self, stream: int, before_seq: int, before_us: int, limit: int) -> int:
        """Remove up to so many of the oldest keys that came before a number or a moment; returns how many."""
        sql = "SELECT key, seq, at_us FROM dedupe WHERE stream = ? ORDER BY seq LIMIT ?"
        oldest: list[Any] = self._connection.execute(sql, (stream, limit)).fetchall()
        gone = [(stream, key) for key, seq, at_us in oldest if seq < before_seq or at_us <= before_us]
        self._delete_each("dedupe", "stream = ? AND key = ?", gone)
        return len(gone)

    def drop(self, stream: int, seqs: Iterable[int]) -> None:
        """Remove the keys of some events."""
        self._delete("dedupe", f"stream = ? AND seq {IN_LIST}", stream, json_list(seqs))

    def count(self, stream: int) -> int:
        """How many keys are stored."""
        return self._count("dedupe", "stream = ?", stream)


_DIGESTED = "sha256:"


def stored_key(user_id: str, key: str) -> str:
    """A key as it is stored: a digest, since the text of a key may be personal data."""
    return _DIGESTED + sha256(msgspec.json.encode([user_id, key])).hexdigest()


class StoredAnswer(NamedTuple):
    """The digest of a request, and its answer, which is empty for one entity among others in a request."""

    digest: bytes
    answer: bytes


class _PackedAnswer(msgspec.Struct, array_like=True):
    """An answer as it is stored: in less space where that pays, with the size that it had."""

    size: int
    body: bytes


class Idempotency(TableQueries):
    """Reads and writes the answers to requests with idempotency keys."""

    def find(self, user_id: str, key: str) -> StoredAnswer | None:
        """The answer to a user's request with this key, if it is stored."""
        sql = "SELECT digest, answer FROM idempotency WHERE user_id = ? AND key = ?"
        row = self._connection.execute(sql, (user_id, stored_key(user_id, key))).fetchone()
        if row is None and not key.startswith(_DIGESTED):
            # Keys that were stored before they were digested; they are forgotten with the answers.
            row = self._connection.execute(sql, (user_id, key)).fetchone()
        return None if row is None else StoredAnswer(row[0], _unpack_answer(row[1]))

    def save(self, user_id: str, key: str, answered: StoredAnswer, at_us: int) -> None:
        """Store an answer."""
        sql = "INSERT INTO idempotency (user_id, key, digest, answer, at_us) VALUES (?, ?, ?, ?, ?)"
        values = user_id, stored_key(user_id, key), answered.digest, _pack_answer(answered.answer), at_us
        self._connection.execute(sql, values)

    def mentioning(self, user_id: str, texts: Iterable[bytes], digests: Collection[bytes], since_us: int) -> list[str]:
        """The stored keys of a user's requests since a moment whose answers hold one of some texts or digests."""
        sql, sought = "SELECT key, digest, answer FROM idempotency WHERE user_id = ? AND at_us >= ?", list(texts)
        matching_keys: list[str] = []
        for key, digest, stored in self._connection.execute(sql, (user_id, since_us)):
            answer = _unpack_answer(stored)
            if digest in digests or any(text in answer for text in sought):
                matching_keys.append(str(key))
        return matching_keys

    def drop(self, user_id: str, keys: Iterable[str]) -> None:
        """Remove answers, by their stored keys."""
        self._delete_each("idempotency", "user_id = ? AND key = ?", ((user_id, key) for key in keys))

    def forget(self, before_us: int, max_answers: int, max_bytes: int, limit: int) -> int:
        """Remove up to so many of the oldest that are too old, too many or have too many bytes; returns how many."""
        row: Any = self._connection.execute(_TOTAL).fetchone()
        if row[0] > max_answers or (row[1] or 0) > max_bytes:
            before_us = max(before_us, int(self._value(_CUT, max_answers, max_bytes)) + 1)
        return self._delete("idempotency", _OLDEST, before_us, limit)


# Of the lengths the index knows, so that no answer is read.
_TOTAL = "SELECT count(*), sum(length(answer)) FROM idempotency INDEXED BY idempotency_age"
# The newest moment whose answers are too many, counted from the newest answer back.
_CUT = """SELECT max(at_us) FROM (
    SELECT at_us, row_number() OVER newest AS number, sum(length(answer)) OVER newest AS bytes
    FROM idempotency INDEXED BY idempotency_age WINDOW newest AS (ORDER BY at_us DESC ROWS UNBOUNDED PRECEDING)
) WHERE number > ?1 OR bytes > ?2"""
_OLDEST = "(user_id, key) IN (SELECT user_id, key FROM idempotency WHERE at_us < ? ORDER BY at_us LIMIT ?)"


def _pack_answer(answer: bytes) -> bytes:
    packed = pack(answer) if len(answer) >= LEAST_BYTES else None
    return msgspec.msgpack.encode(_PackedAnswer(len(answer), answer if packed is None else packed))


def _unpack_answer(stored: bytes) -> bytes:
    kept = decoding.unpack(stored, _PackedAnswer)
    return kept.body if len(kept.body) == kept.size else unpack(kept.body, kept.size)
