"""The rows of ``subscriptions``, ``links`` and ``signing_keys``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.storage.database import Connection


class SubscriptionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as it is stored."""

    id: str
    definition: str
    base_url: str
    created_us: int
    generation: int
    wake_id: str | None
    holder: str | None
    lease_until_us: int | None
    deliver_at_us: int | None
    attempts: int
    last_error: str | None
    key_id: str
    prefix: str


class LinkRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of a subscription as it is stored."""

    subscription: str
    path: str
    stream: int | None
    explicit: bool
    acked: str


_COLUMNS = SubscriptionRow.__struct_fields__
_SAVE = f"INSERT OR REPLACE INTO subscriptions ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_LINK = LinkRow.__struct_fields__
_SAVE_LINK = f"INSERT OR REPLACE INTO links ({', '.join(_LINK)}) VALUES ({', '.join('?' * len(_LINK))})"
_UNLINK = "DELETE FROM links WHERE subscription = ? AND path = ?"


class SubscriptionRows:
    """Reads and writes subscriptions through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[SubscriptionRow]:
        """Every subscription."""
        rows: Any = self._connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM subscriptions").fetchall()
        return [SubscriptionRow(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]

    def links(self, subscription: str) -> list[LinkRow]:
        """The streams of a subscription, by name."""
        sql = f"SELECT {', '.join(_LINK)} FROM links WHERE subscription = ? ORDER BY path"
        rows: Any = self._connection.execute(sql, (subscription,)).fetchall()
        return [
            LinkRow(subscription=owner, path=path, stream=stream, explicit=bool(explicit), acked=acked)
            for owner, path, stream, explicit, acked in rows
        ]

    def save(self, row: SubscriptionRow) -> None:
        """Store a subscription, new or changed."""
        self._connection.execute(_SAVE, msgspec.structs.astuple(row))

    def save_links(self, rows: Iterable[LinkRow]) -> None:
        """Store links, new or moved."""
        self._connection.executemany(_SAVE_LINK, (msgspec.structs.astuple(row) for row in rows))

    def unlink(self, subscription: str, paths: Iterable[str]) -> None:
        """Forget some streams of a subscription."""
        self._connection.executemany(_UNLINK, ((subscription, path) for path in paths))

    def remove(self, subscription: str) -> None:
        """Forget a subscription and its links."""
        self._connection.execute("DELETE FROM links WHERE subscription = ?", (subscription,))
        self._connection.execute("DELETE FROM subscriptions WHERE id = ?", (subscription,))

    def stream_names(self, prefix: str, after: str, limit: int) -> list[str]:
        """Names of live streams in order, strictly after a name."""
        sql = "SELECT name FROM streams WHERE name > ? AND name >= ? AND name < ? AND state = 0 ORDER BY name LIMIT ?"
        return [str(row[0]) for row in self._connection.execute(sql, (after, prefix, _beyond(prefix), limit))]

    def secret(self, purpose: str, fresh: bytes) -> bytes:
        """The stored secret for a purpose; the fresh one where there was none."""
        self._connection.execute("INSERT OR IGNORE INTO signing_keys VALUES (?, ?)", (purpose, fresh))
        stored: Any = self._connection.execute("SELECT secret FROM signing_keys WHERE purpose = ?", (purpose,)).get
        return bytes(stored)


def _beyond(prefix: str) -> str:
    return prefix + "\U0010ffff" * 4
