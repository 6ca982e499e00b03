"""Leases whose worker is alive and whose units make no progress: they end after a while."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from headrace.storage.work import LeaseRow


class _Progress(NamedTuple):
    done: int
    at_us: int


class StallLimit:
    """How long a lease may go on without progress; remembers when each made some, since the server has started.

    Progress is a unit with a result, or a greater number of units done than the worker has reported before. For the
    thread that writes.
    """

    def __init__(self, limit_us: int, ttl_us: int) -> None:
        self._limit_us = limit_us
        self._ttl_us = ttl_us
        self._newest: dict[str, _Progress] = {}

    def begin(self, lease: str, now_us: int, held: Collection[str]) -> None:
        """A lease was given; what is known about leases that are not held is forgotten."""
        self._newest = {lease_id: progress for lease_id, progress in self._newest.items() if lease_id in held}
        self._newest[lease] = _Progress(0, now_us)

    def report(self, lease: LeaseRow, done: int, now_us: int) -> None:
        """A worker says how many units are done."""
        newest = self._newest.get(lease.id)
        if newest is None:
            self._newest[lease.id] = _Progress(max(done, lease.done), now_us)
        elif done > newest.done:
            self._newest[lease.id] = _Progress(done, now_us)

    def settle(self, lease: LeaseRow, now_us: int) -> None:
        """Units of a lease have got results."""
        newest = self._newest.get(lease.id)
        self._newest[lease.id] = _Progress(lease.done if newest is None else newest.done, now_us)

    def extended(self, lease: LeaseRow, now_us: int) -> int:
        """Until when a lease lasts whose worker was just heard of."""
        newest = self._newest.get(lease.id)
        deadline_us = now_us + self._limit_us if newest is None else newest.at_us + self._limit_us
        return max(lease.expires_us, min(now_us + self._ttl_us, deadline_us))

    def has_stalled(self, lease: LeaseRow) -> bool:
        """Whether a lease that has expired was not extended for want of progress."""
        newest = self._newest.get(lease.id)
        return newest is not None and lease.expires_us == newest.at_us + self._limit_us
