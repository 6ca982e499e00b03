"""Rate limits of keys: requests, and bytes of bodies and answers, in a second.

A key without limits has no quota, and nothing here is called for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic

from headrace.errors import RateLimited


class Quota:
    """What is left of one key's limits; up to one second's worth is saved up. A limit of 0 is none."""

    __slots__ = ("_at_s", "_bytes", "_now_s", "_requests", "bytes_per_s", "requests_per_s")

    def __init__(self, requests_per_s: int, bytes_per_s: int, now_s: Callable[[], float] = monotonic) -> None:
        self.requests_per_s = requests_per_s
        self.bytes_per_s = bytes_per_s
        self._requests = float(requests_per_s)
        self._bytes = float(bytes_per_s)
        self._now_s = now_s
        self._at_s = now_s()

    def require(self) -> None:
        """Refuse a request if the limits are used up."""
        self._refill()
        if self.requests_per_s and self._requests < 1:
            raise self._refusal("requests", self.requests_per_s, (1 - self._requests) / self.requests_per_s)
        if self.bytes_per_s and self._bytes <= 0:
            raise self._refusal("bytes", self.bytes_per_s, self.wait_s())

    def take(self, size: int = 0) -> None:
        """Count a request with a body of this size; refuse it if the limits are used up."""
        self.require()
        self._requests -= 1
        self._bytes -= size

    def give_back(self, size: int) -> None:
        """Take back a request that will be counted again."""
        self._requests += 1
        self._bytes += size

    def spend(self, size: int) -> None:
        """Count bytes that are already on their way."""
        self._bytes -= size

    def wait_s(self) -> float:
        """How long until bytes are left; 0 where some are."""
        self._refill()
        return max(0.0, -self._bytes / self.bytes_per_s) if self.bytes_per_s else 0.0

    def _refill(self) -> None:
        now_s = self._now_s()
        passed_s, self._at_s = now_s - self._at_s, now_s
        self._requests = min(self._requests + passed_s * self.requests_per_s, float(self.requests_per_s))
        self._bytes = min(self._bytes + passed_s * self.bytes_per_s, float(self.bytes_per_s))

    @staticmethod
    def _refusal(unit: str, limit: int, wait_s: float) -> RateLimited:
        return RateLimited(
            f"this key may use {limit} {unit} a second; try again later",
            retry_after=max(1, math.ceil(wait_s)),
            limit=limit,
            unit=unit,
        )
