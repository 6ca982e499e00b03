"""The rows of ``subscriptions``, ``links`` and ``signing_keys``."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.storage.streams import beyond
from headrace.storage.table import Table, TableQueries


class SubscriptionRow(msgspec.Struct, frozen=True):
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


class LinkRow(msgspec.Struct, frozen=True):
    """A stream of a subscription as it is stored."""

    subscription: str
    path: str
    stream: int | None
    #: Whether it was named itself: 1, or 0 where a pattern has it.
    explicit: int
    acked: str


_SUBSCRIPTIONS = Table("subscriptions", SubscriptionRow)
_LINKS = Table("links", LinkRow)


class SubscriptionRows(TableQueries):
    """Reads and writes subscriptions through one connection."""

    def all(self) -> list[SubscriptionRow]:
        """Every subscription."""
        return self._all(_SUBSCRIPTIONS)

    def links(self, subscription: str) -> list[LinkRow]:
        """The streams of a subscription, by name."""
        return self._all(_LINKS, "WHERE subscription = ? ORDER BY path", subscription)

    def save(self, row: SubscriptionRow) -> None:
        """Store a subscription, new or changed."""
        self._replace(_SUBSCRIPTIONS, [row])

    def save_links(self, rows: Iterable[LinkRow]) -> None:
        """Store links, new or moved."""
        self._replace(_LINKS, rows)

    def unlink(self, subscription: str, paths: Iterable[str]) -> None:
        """Remove some streams of a subscription."""
        self._delete_each("links", "subscription = ? AND path = ?", ((subscription, path) for path in paths))

    def remove(self, subscription: str) -> None:
        """Remove a subscription and its links."""
        self._delete("links", "subscription = ?", subscription)
        self._delete("subscriptions", "id = ?", subscription)

    def stream_names(self, prefix: str, after: str, limit: int) -> list[str]:
        """Names of live streams in order, strictly after a name."""
        sql = "SELECT name FROM streams WHERE name > ? AND name >= ? AND name < ? AND state = 0 ORDER BY name LIMIT ?"
        return self._texts(sql, after, prefix, beyond(prefix), limit)

    def secret(self, purpose: str, fresh: bytes) -> bytes:
        """The stored secret for a purpose; the fresh one where there was none."""
        self._connection.execute("INSERT OR IGNORE INTO signing_keys VALUES (?, ?)", (purpose, fresh))
        return bytes(self._value("SELECT secret FROM signing_keys WHERE purpose = ?", purpose))
