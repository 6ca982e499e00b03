"""Subscriptions on disk: a state is written before a response or a wake depends on it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from headrace import decoding
from headrace.engine.log.batch import Batch
from headrace.engine.subscriptions.keyring import Keyring, fresh_secret
from headrace.engine.subscriptions.subscription import Definition, Link, Owner, Subscription
from headrace.engine.subscriptions.wakes import Wakes
from headrace.storage.subscriptions import LinkRow, SubscriptionRow, SubscriptionRows

T = TypeVar("T")
Apply = Callable[[Callable[[Batch], Any]], Coroutine[Any, Any, Any]]
_NO_MOVES: Mapping[str, str] = {}


class StoredSubscription(NamedTuple):
    """A subscription and its links as they are on disk."""

    subscription: Subscription
    links: list[LinkRow]


class AuditEntry(NamedTuple):
    """An entry of the audit log: an operation on a subscription, and its user."""

    action: str
    who: str
    subscription: str
    facts: Mapping[str, object] = {}


class SubscriptionStore:
    """Reads and writes subscriptions inside the log's own commits."""

    def __init__(self, apply: Apply) -> None:
        """``apply`` runs a function inside a commit of the log."""
        self._run_in_commit = apply

    async def load(self) -> list[StoredSubscription]:
        """Every subscription, without its links in memory."""

        def read(rows: SubscriptionRows) -> list[StoredSubscription]:
            return [StoredSubscription(_subscription(row), rows.links(row.id)) for row in rows.all()]

        return await self._apply(read)

    async def keyring(self) -> Keyring:
        """The server's secrets, made once."""
        signing, tokens = fresh_secret(), fresh_secret()

        def keep(rows: SubscriptionRows) -> Keyring:
            return Keyring(rows.secret("ed25519", signing), rows.secret("token", tokens))

        return await self._apply(keep)

    async def stream_names(self, prefix: str, after: str, limit: int) -> list[str]:
        """Names of live streams in order, strictly after a name."""
        return await self._apply(lambda rows: rows.stream_names(prefix, after, limit))

    async def save(
        self,
        subscription: Subscription,
        wakes: Wakes,
        moves: Mapping[str, str] = _NO_MOVES,
        base_url: str | None = None,
        entry: AuditEntry | None = None,
        owner: Owner | None = None,
    ) -> None:
        """Write the next state, moved cursors and links that changed; only then is it the state in memory."""
        address, owner = base_url or subscription.base_url, owner or subscription.owner
        row = _row(subscription, wakes, address, owner)
        touched = {**subscription.unsaved, **{p: subscription.links[p] for p in moves if p in subscription.links}}
        links = [_link_row(link, moves.get(path, link.acked)) for path, link in touched.items()]
        unlinked = tuple(subscription.unlinked)

        def write(rows: SubscriptionRows) -> None:
            rows.save(row)
            rows.unlink(subscription.id, unlinked)
            rows.save_links(links)

        await self._apply(write, entry)
        subscription.wakes, subscription.base_url, subscription.owner = wakes, address, owner
        for path, text in moves.items():
            if path in touched and subscription.links.get(path) is touched[path]:
                subscription.move(touched[path], text)
        _mark_saved(subscription, touched, links, unlinked)

    async def remove(self, subscription: Subscription, entry: AuditEntry) -> None:
        """Remove a subscription."""
        await self._apply(lambda rows: rows.remove(subscription.id), entry)

    async def _apply(self, work: Callable[[SubscriptionRows], T], entry: AuditEntry | None = None) -> T:
        def perform(batch: Batch) -> T:
            if entry is not None:
                batch.note(entry.action, entry.who, subscription=entry.subscription, **entry.facts)
            return work(SubscriptionRows(batch.connection))

        returned: T = await self._run_in_commit(perform)
        return returned


def _mark_saved(
    subscription: Subscription, touched: Mapping[str, Link], links: list[LinkRow], unlinked: tuple[str, ...]
) -> None:
    """Forget links that were written, unless they have changed since."""
    for row in links:
        link = subscription.unsaved.get(row.path)
        if link is touched[row.path] and _link_row(link, link.acked) == row:
            del subscription.unsaved[row.path]
    subscription.unlinked.difference_update(unlinked)


def _subscription(row: SubscriptionRow) -> Subscription:
    wakes = Wakes(
        generation=row.generation,
        wake_id=row.wake_id,
        holder=row.holder,
        lease_until_us=row.lease_until_us,
        deliver_at_us=row.deliver_at_us,
        attempts=row.attempts,
        last_error=row.last_error,
    )
    definition = decoding.decode(row.definition, Definition)
    return Subscription(row.id, definition, row.base_url, row.created_us, wakes, Owner(row.key_id, row.prefix))


def _row(subscription: Subscription, wakes: Wakes, base_url: str, owner: Owner) -> SubscriptionRow:
    return SubscriptionRow(
        id=subscription.id,
        definition=msgspec.json.encode(subscription.definition).decode(),
        base_url=base_url,
        created_us=subscription.created_us,
        **msgspec.structs.asdict(wakes),
        **msgspec.structs.asdict(owner),
    )


def _link_row(link: Link, acked: str) -> LinkRow:
    return LinkRow(subscription=link.owner.id, path=link.path, stream=link.stream, explicit=link.explicit, acked=acked)
