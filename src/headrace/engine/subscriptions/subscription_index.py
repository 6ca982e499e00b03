"""Which subscriptions are linked to a stream: one dictionary lookup per append."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from headrace.engine.log.catalog import Catalog
from headrace.engine.log.stream import Stream
from headrace.engine.subscriptions.store import StoredSubscription, SubscriptionStore
from headrace.engine.subscriptions.subscription import (
    Link,
    Owner,
    Subscription,
    TooManyStreams,
    TooManySubscriptions,
    living,
    stream_of,
)
from headrace.format import offset as offsets

log = logging.getLogger("headrace.subscriptions")

_MEMO_STREAMS = 100_000
_PAGE = 500


class SubscriptionLimits(msgspec.Struct, frozen=True):
    """How many subscriptions, links and deliveries there may be."""

    subscriptions: int = 1_000
    per_key: int = 100
    per_prefix: int = 250
    streams: int = 10_000
    streams_per_key: int = 50_000
    streams_in_all: int = 200_000
    deliveries: int = 64


class SubscriptionIndex:
    """Every subscription, and its links to streams; ``changed`` is called with each one that may be due."""

    def __init__(
        self,
        catalog: Catalog,
        store: SubscriptionStore,
        limits: SubscriptionLimits,
        changed: Callable[[Subscription], None],
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._limits = limits
        self._changed = changed
        self._routes: dict[int, tuple[Link, ...]] = {}
        self.by_id: dict[str, Subscription] = {}

    def appended(self, stream: Stream, seq: int) -> None:
        """Note that entries were appended to a stream, the first of them at ``seq``."""
        if not self.by_id:
            return
        links = self._routes.get(stream.id)
        if links is None:
            links = self._route(stream, seq)
        tail = stream.head.next_seq
        for link in links:
            owner = link.owner
            owner.advance(link, tail)
            if owner.wakes.wake_id is None:
                self._changed(owner)

    def check_limits(self, owner: Owner) -> None:
        """Refuse a subscription beyond what the server, the keys of a prefix, or one key may have."""
        owners = [subscription.owner for subscription in self.by_id.values()]
        if len(owners) >= self._limits.subscriptions:
            limit = self._limits.subscriptions
            raise TooManySubscriptions(f"this server keeps at most {limit} subscriptions", limit=limit)
        self.check_key_limit(owner.key_id)
        if owner.prefix and sum(other.prefix == owner.prefix for other in owners) >= (limit := self._limits.per_prefix):
            message = f"the keys of a prefix have at most {limit} subscriptions: delete one"
            raise TooManySubscriptions(message, limit=limit)

    def check_key_limit(self, key_id: str) -> None:
        """Refuse a subscription beyond what one key may have."""
        limit = self._limits.per_key
        if key_id and sum(subscription.owner.key_id == key_id for subscription in self.by_id.values()) >= limit:
            raise TooManySubscriptions(f"a key has at most {limit} subscriptions: delete one", limit=limit)

    def deleted(self, stream: Stream) -> None:
        """Remove the links to a deleted stream, and note that wake events in it are lost."""
        self._routes.pop(stream.id, None)
        for subscription in self.by_id.values():
            link = subscription.links.get(stream.name)
            if link is not None and link.stream in (None, stream.id):
                self._stream_deleted(subscription, stream.name)
            if subscription.definition.wake_stream == stream.name:
                subscription.event_lost = True
                self._changed(subscription)

    def add(self, subscription: Subscription) -> None:
        """Route streams to a subscription from now on."""
        self.by_id[subscription.id] = subscription
        self._routes.clear()

    def drop(self, subscription: Subscription) -> None:
        """Route nothing to a subscription any more."""
        self.by_id.pop(subscription.id, None)
        self._routes.clear()

    async def restore(self, stored: StoredSubscription) -> None:
        """Add a subscription from disk, and link streams that were not written before a crash."""
        subscription = stored.subscription
        self.add(subscription)
        for row in stored.links:
            link = Link(subscription, row.path, stream=row.stream, explicit=bool(row.explicit), acked=row.acked, tail=0)
            subscription.links[row.path] = link
            if row.stream is not None and stream_of(self._catalog, link) is None:
                subscription.stream_deleted(row.path)
            self._catch_up(subscription, row.path)
        if self._links_left(subscription) > 0:
            await self._match(subscription, self._link_from_start)
        subscription.event_lost = self._has_lost_event(subscription)

    def _catch_up(self, subscription: Subscription, path: str) -> None:
        """Note the tail of the stream of a link, if there is one."""
        link = subscription.links.get(path)
        stream = None if link is None else stream_of(self._catalog, link)
        if link is not None and stream is not None:
            if link.stream is None:
                subscription.attach(link, stream)
            subscription.advance(link, stream.head.next_seq)

    def _has_lost_event(self, subscription: Subscription) -> bool:
        """Whether the wake stream is gone, or so new that no event can be in it."""
        name = subscription.definition.wake_stream
        stream = None if name is None else living(self._catalog, name)
        return name is not None and (stream is None or not stream.head.next_seq)

    async def link_matches(self, subscription: Subscription) -> None:
        """Link the streams that exist and fit the pattern, each at its tail."""
        await self._match(subscription, self._link_at_tail)

    def link_named(self, subscription: Subscription, paths: Iterable[str]) -> None:
        """Link streams by name, each at its tail; they need not exist yet."""
        paths = tuple(paths)
        new = sum(path not in subscription.links for path in paths)
        if new > self._links_left(subscription):
            raise self._too_many()
        for path in paths:
            stream = living(self._catalog, path)
            if stream is None:
                subscription.link(path, stream=None, explicit=True, acked=offsets.START, tail=0)
            else:
                self._link(subscription, stream, stream.head.next_seq, explicit=True)
        self._routes.clear()

    def unlink_named(self, subscription: Subscription, path: str) -> None:
        """Unlink a stream that was linked by name."""
        subscription.unlink_named(path)
        self._routes.clear()

    def _route(self, stream: Stream, seq: int) -> tuple[Link, ...]:
        if len(self._routes) >= _MEMO_STREAMS:
            self._routes.clear()
        candidates = (self._link_for(subscription, stream, seq) for subscription in self.by_id.values())
        links = self._routes[stream.id] = tuple(link for link in candidates if link is not None)
        return links

    def _link_for(self, subscription: Subscription, stream: Stream, seq: int) -> Link | None:
        """The link of a subscription to a stream that has just grown; a new one begins before that."""
        link = subscription.links.get(stream.name)
        if link is not None and link.stream not in (None, stream.id):
            self._stream_deleted(subscription, stream.name)
            link = subscription.links.get(stream.name)
        if link is not None and link.stream is None:
            subscription.attach(link, stream)
            self._changed(subscription)
        if link is not None or not subscription.wants(stream.name):
            return link
        if self._links_left(subscription) < 1:
            if not subscription.full:
                log.warning("subscription %s is linked to as many streams as it may be", subscription.id)
            subscription.full = True
            return None
        link = self._link(subscription, stream, seq, explicit=False)
        self._changed(subscription)
        return link

    async def _match(self, subscription: Subscription, link: Callable[[Subscription, Stream], None]) -> None:
        """Link the streams that match the pattern, page by page."""
        if subscription.glob is None:
            return
        prefix, after = subscription.glob.prefix, ""
        while names := await self._store.stream_names(prefix, after, _PAGE):
            after = names[-1]
            for name in names:
                if name not in subscription.links and subscription.wants(name):
                    stream = living(self._catalog, name)
                    if stream is not None:
                        link(subscription, stream)

    def _link_at_tail(self, subscription: Subscription, stream: Stream) -> None:
        if self._links_left(subscription) < 1:
            raise self._too_many()
        self._link(subscription, stream, stream.head.next_seq, explicit=False)

    def _link_from_start(self, subscription: Subscription, stream: Stream) -> None:
        """Link a stream before its first own entry, if it has one, as the append of that entry would."""
        start = stream.own_from
        if stream.head.next_seq > start and self._links_left(subscription) > 0:
            self._link(subscription, stream, start, explicit=False)

    def _link(self, subscription: Subscription, stream: Stream, position: int, *, explicit: bool) -> Link:
        tail, acked = stream.head.next_seq, stream.offset_at(position)
        link = subscription.link(stream.name, stream=stream.id, explicit=explicit, acked=acked, tail=tail)
        subscription.advance(link, tail)
        return link

    def _stream_deleted(self, subscription: Subscription, path: str) -> None:
        if subscription.full:
            self._routes.clear()
        subscription.stream_deleted(path)
        self._changed(subscription)

    def _links_left(self, subscription: Subscription) -> int:
        in_all = sum(len(other.links) for other in self.by_id.values())
        room = min(self._limits.streams - len(subscription.links), self._limits.streams_in_all - in_all)
        if key_id := subscription.owner.key_id:
            of_key = sum(len(other.links) for other in self.by_id.values() if other.owner.key_id == key_id)
            room = min(room, self._limits.streams_per_key - of_key)
        return room

    def _too_many(self) -> TooManyStreams:
        return TooManyStreams(
            f"a subscription is linked to at most {self._limits.streams} streams, and those of a key together to "
            f"{self._limits.streams_per_key}",
            limit=self._limits.streams,
        )
