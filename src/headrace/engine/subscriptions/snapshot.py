"""What a subscription's streams look like at this moment."""

from __future__ import annotations

from itertools import islice

import msgspec

from headrace.engine.log.catalog import Catalog
from headrace.engine.log.stream import Stream
from headrace.engine.subscriptions.subscription import Link, Subscription
from headrace.storage.streams import LIVE

MOST_STREAMS = 1_000


class StreamView(msgspec.Struct, frozen=True):
    """One stream as a worker is told of it."""

    path: str
    link_type: str
    acked_offset: str
    tail_offset: str
    has_pending: bool


def living(catalog: Catalog, name: str) -> Stream | None:
    """The stream of this name that can be read."""
    stream = catalog.find(name)
    return None if stream is None or stream.head.state != LIVE or catalog.expired(stream) else stream


def stream_of(catalog: Catalog, link: Link) -> Stream | None:
    """The stream that a link means, and not a later one of the same name."""
    stream = catalog.find(link.path)
    if stream is None or stream.head.state != LIVE or link.stream not in (None, stream.id):
        return None
    return stream


def first_pending(subscription: Subscription, catalog: Catalog) -> Link | None:
    """A stream with work for someone; streams that are gone are let go on the way."""
    for link in tuple(islice(subscription.pending.values(), MOST_STREAMS)):
        if stream_of(catalog, link) is not None:
            return link
        subscription.lose(link.path)
    return None


def snapshot(subscription: Subscription, catalog: Catalog) -> list[StreamView]:
    """The streams of a subscription, those with pending entries first, at most :data:`MOST_STREAMS`."""
    views = [_pending(link, catalog) for link in islice(subscription.pending.values(), MOST_STREAMS)]
    stream_views = [view for view in views if view is not None]
    idle = (link for link in subscription.links.values() if link.path not in subscription.pending)
    stream_views += (
        StreamView(link.path, link.kind, link.acked, link.acked, has_pending=False)
        for link in islice(idle, MOST_STREAMS - len(stream_views))
    )
    return stream_views


def _pending(link: Link, catalog: Catalog) -> StreamView | None:
    stream = stream_of(catalog, link)
    if stream is None:
        return None
    return StreamView(link.path, link.kind, link.acked, stream.tail_offset(), has_pending=True)
