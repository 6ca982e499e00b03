"""A subscription in memory: its definition, its streams with their cursors, and what workers see of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Literal, NamedTuple
from urllib.parse import quote

import msgspec

from headrace.engine.log.catalog import Catalog
from headrace.engine.log.stream import Stream
from headrace.engine.subscriptions.glob import Glob
from headrace.engine.subscriptions.wakes import Wakes
from headrace.errors import BadRequest, Conflict, NotFound, Unauthorized
from headrace.format import offset as offsets
from headrace.format.offset import OffsetText
from headrace.storage.streams import LIVE

DEFAULT_LEASE_MS = 30_000
SHORTEST_LEASE_MS, LONGEST_LEASE_MS = 1_000, 600_000


class InvalidRequest(BadRequest):
    """A value of a subscription request is wrong."""

    code = "INVALID_REQUEST"


class InvalidOffset(Conflict):
    """An acked offset to which the cursor cannot move."""

    code = "INVALID_OFFSET"


class SubscriptionNotFound(NotFound):
    """There is no such subscription."""

    code = "SUBSCRIPTION_NOT_FOUND"


class SubscriptionExists(Conflict):
    """A subscription of this name asks for something else."""

    code = "SUBSCRIPTION_ALREADY_EXISTS"


class TooManySubscriptions(Conflict):
    """The server keeps no more subscriptions."""

    code = "SUBSCRIPTION_LIMIT"


class TooManyStreams(Conflict):
    """A subscription is linked to no more streams."""

    code = "STREAM_LIMIT"


class NoPendingWork(Conflict):
    """There is nothing to claim."""

    code = "NO_PENDING_WORK"


class TokenInvalid(Unauthorized):
    """The bearer token is missing, or is not one of this subscription."""

    code = "TOKEN_INVALID"


class Definition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The definition of a subscription. Requests with equal definitions ask for the same."""

    type: Literal["webhook", "pull-wake"]
    pattern: str | None = None
    streams: tuple[str, ...] = ()
    webhook_url: str | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = DEFAULT_LEASE_MS
    description: str | None = None


class Owner(msgspec.Struct, frozen=True):
    """The key that last asked for a subscription, and the prefix that it opens; no key opens all streams."""

    key_id: str = ""
    prefix: str = ""


NO_KEY = Owner()


class Ack(NamedTuple):
    """How far a worker has processed a stream."""

    path: str
    offset: str


class Link:
    """One stream of a subscription: its cursor, and how far the stream has come since."""

    __slots__ = ("acked", "explicit", "owner", "path", "position", "stream", "tail")

    def __init__(
        self, owner: Subscription, path: str, *, stream: int | None, explicit: bool, acked: str, tail: int
    ) -> None:
        self.owner = owner
        self.path = path
        self.stream = stream
        self.explicit = explicit
        self.acked = acked
        self.position = offsets.decode(acked).position
        self.tail = tail

    @property
    def kind(self) -> str:
        """The kind of a link in listings: explicit where it was named, even if the pattern matches too."""
        return "explicit" if self.explicit else "glob"


class Subscription:
    """A subscription, and its links that are not written yet. ``wakes`` and cursors change under ``lock``."""

    def __init__(
        self, id: str, definition: Definition, base_url: str, created_us: int, wakes: Wakes, owner: Owner = NO_KEY
    ) -> None:
        self.id = id
        self.owner = owner
        #: Nothing is sent, since the key was revoked.
        self.suspended = False
        self.definition = definition
        self.base_url = base_url
        self.created_us = created_us
        self.wakes = wakes
        self.glob = Glob(definition.pattern) if definition.pattern else None
        self.links: dict[str, Link] = {}
        self.pending: dict[str, Link] = {}
        self.unsaved: dict[str, Link] = {}
        self.unlinked: set[str] = set()
        self.lock = asyncio.Lock()
        self.ready = False
        self.full = False
        self.working = False
        self.event_lost = False
        self.paused_until_us = 0

    @property
    def is_webhook(self) -> bool:
        """Whether wakes are posted to a receiver rather than appended to a stream."""
        return self.definition.type == "webhook"

    @property
    def lease_us(self) -> int:
        """How long a lease lasts."""
        return self.definition.lease_ttl_ms * 1000

    @property
    def callback_url(self) -> str:
        """The address of callbacks, at the base URL that the subscriber used."""
        return f"{self.base_url}/subscriptions/{quote(self.id, safe='')}/callback"

    def wants(self, name: str) -> bool:
        """Whether the pattern matches a stream that the key opens; never the wake stream of the subscription."""
        is_open = name.startswith(self.owner.prefix) and name != self.definition.wake_stream
        return is_open and self.glob is not None and self.glob.matches(name)

    def link(self, path: str, *, stream: int | None, explicit: bool, acked: str, tail: int) -> Link:
        """Link a stream, or make a matched one explicit; an existing cursor does not move."""
        link = self.links.get(path)
        if link is None:
            link = Link(self, path, stream=stream, explicit=explicit, acked=acked, tail=tail)
            self.links[path] = link
            self.unlinked.discard(path)
        else:
            link.explicit = link.explicit or explicit
        self.unsaved[path] = link
        return link

    def unlink(self, path: str) -> None:
        """Remove the link to a stream."""
        if self.links.pop(path, None) is not None:
            self.pending.pop(path, None)
            self.unsaved.pop(path, None)
            self.unlinked.add(path)
            self.full = False

    def stream_deleted(self, path: str) -> None:
        """Unlink a deleted stream; an explicit link waits for the next stream of the name."""
        link = self.links.get(path)
        if link is not None:
            self.unlink(path)
            if link.explicit:
                self.link(path, stream=None, explicit=True, acked=offsets.START, tail=0)

    def attach(self, link: Link, stream: Stream) -> None:
        """Attach a new stream to an explicit link, from its first own entry on."""
        link.stream = stream.id
        self.move(link, stream.offset_at(stream.own_from))
        self.unsaved[link.path] = link

    def unlink_named(self, path: str) -> None:
        """Remove an explicit link; it stays as a matched one if the pattern takes the stream too."""
        link = self.links.get(path)
        if link is None or not link.explicit:
            return
        if link.stream is not None and self.wants(path):
            link.explicit = False
            self.unsaved[path] = link
        else:
            self.unlink(path)

    def advance(self, link: Link, tail: int) -> None:
        """Note that a stream has grown."""
        link.tail = tail
        if tail > link.position:
            self.pending[link.path] = link

    def moves(self, acks: Iterable[Ack], find: Callable[[Link], Stream | None]) -> dict[str, str]:
        """The new cursors after acks, by stream; raises InvalidOffset if one of them goes back or does not fit."""
        moves: dict[str, str] = {}
        for path, text in acks:
            link = self.links.get(path)
            if link is None:
                raise InvalidOffset("the ack names a stream that is not linked", stream=path)
            floor = offsets.decode(moves[path]).position if path in moves else link.position
            moves[path] = _checked(link, text, floor, find(link))
        return moves

    def forward(self, moves: Mapping[str, str], find: Callable[[Link], Stream | None]) -> dict[str, str]:
        """The new cursors that are ahead of the present ones, within their streams."""
        offsets_by_path: dict[str, str] = {}
        for path, text in moves.items():
            link, position = self.links.get(path), offsets.decode(text).position
            stream = None if link is None else find(link)
            if link is not None and stream is not None and position > link.position:
                offsets_by_path |= {path: text} if stream.offset_at(position) == text else {}
        return offsets_by_path

    def move(self, link: Link, text: str) -> None:
        """Set a cursor."""
        link.acked, link.position = text, offsets.decode(text).position
        if link.position >= link.tail:
            self.pending.pop(link.path, None)


def _checked(link: Link, text: str, floor: int, stream: Stream | None) -> str:
    """The canonical text of an acked offset; raises InvalidOffset unless it is between the cursor and the tail."""
    try:
        decoded = offsets.decode(text)
    except ValueError as reason:
        raise InvalidOffset(f"not an offset: {reason}", stream=link.path) from reason
    position, tail = decoded.position, 0 if stream is None else stream.head.next_seq
    if position < floor:
        raise InvalidOffset("the offset lies before the cursor", stream=link.path, acked_offset=link.acked)
    if position > tail:
        raise InvalidOffset("the offset lies beyond the stream's tail", stream=link.path)
    canonical = offsets.START if stream is None else stream.offset_at(position)
    if offsets.decode(canonical) != decoded:
        raise InvalidOffset("the offset is not one of this stream", stream=link.path)
    return canonical


MAX_STREAMS = 1_000


class StreamView(msgspec.Struct, frozen=True):
    """One stream as workers see it."""

    path: str
    link_type: str
    acked_offset: OffsetText
    tail_offset: OffsetText
    has_pending: bool


def living(catalog: Catalog, name: str) -> Stream | None:
    """The stream of this name that can be read."""
    stream = catalog.find(name)
    return None if stream is None or stream.head.state != LIVE or catalog.expired(stream) else stream


def stream_of(catalog: Catalog, link: Link) -> Stream | None:
    """The stream of a link, and not a later one of the same name."""
    stream = catalog.find(link.path)
    if stream is None or stream.head.state != LIVE or link.stream not in (None, stream.id):
        return None
    return stream


def first_pending(subscription: Subscription, catalog: Catalog) -> Link | None:
    """A link with pending entries; links to streams that are gone are removed on the way."""
    for link in tuple(islice(subscription.pending.values(), MAX_STREAMS)):
        if stream_of(catalog, link) is not None:
            return link
        subscription.stream_deleted(link.path)
    return None


def stream_views(subscription: Subscription, catalog: Catalog) -> list[StreamView]:
    """The streams of a subscription, those with pending entries first, at most :data:`MAX_STREAMS`."""
    pending = (_pending_view(link, catalog) for link in islice(subscription.pending.values(), MAX_STREAMS))
    views = [view for view in pending if view is not None]
    idle = (link for link in subscription.links.values() if link.path not in subscription.pending)
    views += (
        StreamView(link.path, link.kind, link.acked, link.acked, has_pending=False)
        for link in islice(idle, MAX_STREAMS - len(views))
    )
    return views


def _pending_view(link: Link, catalog: Catalog) -> StreamView | None:
    stream = stream_of(catalog, link)
    if stream is None:
        return None
    return StreamView(link.path, link.kind, link.acked, stream.tail_offset(), has_pending=True)
