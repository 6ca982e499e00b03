"""Read leases: segments that were replaced stay in the store while readers outside the server may still open them.

A lease is of the streams whose segments a plan names. It ends by itself, at most an hour after it was granted, and
never delays the deletion of a stream or an erasure: those remove objects whatever is leased. Leases are in memory; the
database only notes a moment by which all have ended, so that after a restart everything replaced is kept until then.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from headrace.engine.log.lifecycle import apply
from headrace.engine.log.stream import Stream
from headrace.engine.log.writer import Writer
from headrace.errors import Gone, Overloaded
from headrace.format.object_names import parse_segment_key
from headrace.storage.published import Leftover
from headrace.storage.streams import Streams
from headrace.types import Clock

#: How long an object that nothing refers to is left to those who still read it, leased or not.
GRACE_S = 60.0
#: A lease lasts so long at most, renewals included.
LONGEST_US = 3_600_000_000
MAX_LEASES, MAX_OF_USER = 1_000, 500
_ALL_ENDED = "read_leases_end_us"
_GRACE_US = int(GRACE_S * 1e6)


class ReadLeaseEnded(Gone):
    """The read lease has ended, or was released."""

    code = "read_lease_ended"


class TooManyReadLeases(Overloaded):
    """The server, or one user, has as many read leases as it may have; a plan without one is answered."""

    code = "too_many_read_leases"


class ReadLease(msgspec.Struct):
    """One reader of segments; ``incarnations`` are those of the streams that it may read."""

    id: str
    user: str
    incarnations: frozenset[str]
    granted_us: int
    expires_us: int


class ReadLeases:
    """All read leases of this node; for the event loop."""

    def __init__(self, writer: Writer, streams: Streams, clock: Clock) -> None:
        self._writer, self._streams, self._clock = writer, streams, clock
        self._leases: dict[str, ReadLease] = {}
        #: Until then leases may exist that are not known here.
        self._unknown_until_us = 0
        self._noted_us = 0

    def prepare(self, *, after_takeover: bool) -> None:
        """Keep what is replaced for readers that another process may have leased it to; before the start."""
        latest_us = self._clock.now_us() + LONGEST_US
        self._unknown_until_us = latest_us if after_takeover else min(self._streams.meta(_ALL_ENDED), latest_us)

    async def grant(self, stream: Stream, user: str, ttl_us: int) -> ReadLease:
        """A lease of everything that a stream reads; refuses more than the server or one user may have."""
        now_us = self._clock.now_us()
        self._forget_ended(now_us)
        of_user = sum(lease.user == user for lease in self._leases.values())
        if len(self._leases) >= MAX_LEASES or of_user >= MAX_OF_USER:
            limit = MAX_LEASES if of_user < MAX_OF_USER else MAX_OF_USER
            raise TooManyReadLeases(
                f"there are {limit} read leases already: release some, or plan without one", retry_after=10, limit=limit
            )
        rows = (self._streams.by_id(owner) for owner, _ in stream.lineage)
        incarnations = frozenset((stream.incarnation, *(row.incarnation for row in rows if row is not None)))
        lease = ReadLease(secrets.token_hex(12), user, incarnations, now_us, now_us + min(ttl_us, LONGEST_US))
        self._leases[lease.id] = lease
        await self._note(lease.expires_us)
        return lease

    async def renew(self, id: str, user: str, ttl_us: int) -> ReadLease:
        """Let a lease last longer from now on, up to an hour after it was granted."""
        lease, now_us = self._find(id, user), self._clock.now_us()
        lease.expires_us = max(lease.expires_us, min(now_us + ttl_us, lease.granted_us + LONGEST_US))
        await self._note(lease.expires_us)
        return lease

    def release(self, id: str, user: str) -> None:
        """End a lease."""
        del self._leases[self._find(id, user).id]

    def holding(self, now_us: int) -> Callable[[Leftover], bool]:
        """A function that says of an object which was replaced whether a reader may still need it."""
        self._forget_ended(now_us)
        # What was replaced shortly before a lease was granted may be in its plan, which another moment of the
        # database shows.
        earliest_us: dict[str, int] = {}
        for lease in self._leases.values():
            for incarnation in lease.incarnations:
                earliest_us[incarnation] = min(earliest_us.get(incarnation, lease.granted_us), lease.granted_us)
        holds_all = now_us < self._unknown_until_us

        def is_held(leftover: Leftover) -> bool:
            located = parse_segment_key(leftover.key)
            if located is None:
                return False
            granted_us = earliest_us.get(located[0][1])
            return holds_all or (granted_us is not None and leftover.since_us >= granted_us - _GRACE_US)

        return is_held

    def _find(self, id: str, user: str) -> ReadLease:
        self._forget_ended(self._clock.now_us())
        lease = self._leases.get(id)
        if lease is None or lease.user != user:
            raise ReadLeaseEnded("there is no such read lease: it has ended, or was released; plan again", lease=id)
        return lease

    def _forget_ended(self, now_us: int) -> None:
        # A clock that was set back must not prolong them.
        ended = [id for id, lease in self._leases.items() if not 0 < lease.expires_us - now_us <= LONGEST_US]
        for id in ended:
            del self._leases[id]

    async def _note(self, expires_us: int) -> None:
        """Note durably by when all leases have ended; seldom, since the moment lies ahead."""
        if expires_us <= self._noted_us:
            return
        self._noted_us = noted_us = self._clock.now_us() + LONGEST_US
        await apply(self._writer, lambda batch: batch.streams.set_meta(_ALL_ENDED, noted_us), is_chore=True)
