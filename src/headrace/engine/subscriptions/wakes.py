"""The wakes of a subscription as an immutable state: begun, leased to one worker, finished, released or expired.

Nothing here uses clocks, disks or networks. Every step returns the next state, so a state that could not be written
is simply not used.
"""

from __future__ import annotations

import msgspec

from headrace.errors import Conflict

FIRST_RETRY_US = 1_000_000
LAST_RETRY_US = 60_000_000
JITTER = 0.2
_MAX_REASON = 200


class Fenced(Conflict):
    """The wake of the request is over."""

    code = "FENCED"


class AlreadyClaimed(Conflict):
    """Another worker holds the lease."""

    code = "ALREADY_CLAIMED"


class Wakes(msgspec.Struct, frozen=True):
    """The state of a subscription: at most one wake is in flight, and at most one worker holds it.

    ``deliver_at_us`` says when the wake is to be announced (again). Without a wake it says before when no new one
    begins, so that the pause after a failure holds even if the lease ends during it.
    """

    generation: int = 0
    wake_id: str | None = None
    holder: str | None = None
    lease_until_us: int | None = None
    deliver_at_us: int | None = None
    attempts: int = 0
    last_error: str | None = None

    def begin(self, wake_id: str, now_us: int) -> Wakes:
        """Begin a new generation, to be announced at once."""
        assert self.wake_id is None
        return msgspec.structs.replace(
            self,
            generation=self.generation + 1,
            wake_id=wake_id,
            holder=None,
            lease_until_us=None,
            deliver_at_us=now_us,
        )

    def lease(self, until_us: int) -> Wakes:
        """Lease the wake until a moment."""
        assert self.wake_id is not None
        return msgspec.structs.replace(self, lease_until_us=until_us)

    def claim(self, worker: str, until_us: int) -> Wakes:
        """Give the wake in flight to a worker; it is not announced any more."""
        if self.holder is not None:
            raise AlreadyClaimed(
                f"{self.holder} holds the lease", current_holder=self.holder, generation=self.generation
            )
        assert self.wake_id is not None
        return msgspec.structs.replace(self.delivered(), holder=worker, lease_until_us=until_us)

    def check(self, wake_id: str, generation: int, now_us: int) -> None:
        """Refuse requests for a wake that is not the one in flight, or whose lease is over."""
        if wake_id != self.wake_id or generation != self.generation or self.overdue(now_us):
            raise Fenced("the wake is over", generation=self.generation)

    def overdue(self, now_us: int) -> bool:
        """Whether the lease is over."""
        return self.lease_until_us is not None and now_us >= self.lease_until_us

    def delivered(self) -> Wakes:
        """The wake was announced."""
        return msgspec.structs.replace(self, deliver_at_us=None, attempts=0, last_error=None)

    def announce_again(self, now_us: int) -> Wakes:
        """Announce the wake once more."""
        return msgspec.structs.replace(self, deliver_at_us=now_us)

    def failed(self, now_us: int, spread: float, reason: str) -> Wakes:
        """Announce the wake again after a pause that doubles; ``spread`` in [-1, 1] is the jitter."""
        pause = min(FIRST_RETRY_US << min(self.attempts, 10), LAST_RETRY_US)
        return msgspec.structs.replace(
            self,
            deliver_at_us=now_us + round(pause * (1 + JITTER * spread)),
            attempts=self.attempts + 1,
            last_error=reason[:_MAX_REASON],
        )

    def finish(self) -> Wakes:
        """End the wake, which no worker holds."""
        return Wakes(generation=self.generation)

    def expire(self, now_us: int) -> Wakes:
        """End the wake and its lease if the lease is over; a pause after a failure goes on."""
        if not self.overdue(now_us):
            return self
        return msgspec.structs.replace(self, wake_id=None, holder=None, lease_until_us=None)
