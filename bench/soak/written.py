"""What one writer has sent to a stream and what of it was acknowledged; events follow from their numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.requests import stream_path
from bench.soak.load import Unexpected

SERVICES = 20
WORDS = ("request", "served", "cache", "after", "retry", "upstream", "closed", "timeout", "queue", "full", "login")
#: One event in so many has the word `needle`.
NEEDLES = 50
START_MS = 1_760_000_000_000
#: Between the times of two events.
STEP_MS = 50


def event(number: int) -> dict[str, Any]:
    """The event with a number."""
    text = " ".join(WORDS[number * step % len(WORDS)] for step in (1, 3, 5, 7))
    return {
        "n": number,
        "at": START_MS + number * STEP_MS,
        "service": f"svc-{number % SERVICES:02d}",
        "ms": number * 37 % 1000 / 8,
        "user": f"u{number % 5_003}",
        "message": f"{text} needle" if number % NEEDLES == 0 else text,
    }


def every(step: int, remainder: int, start: int, stop: int) -> int:
    """How many numbers of a range leave a remainder."""
    return max(0, (stop - remainder + step - 1) // step) - max(0, (start - remainder + step - 1) // step)


@dataclass
class Written:
    """The numbered events of one stream, whose only writer sends one request after the other."""

    name: str
    acknowledged: int = 0
    sent: int = 0
    #: Ranges of numbers whose append was never answered: they may be there.
    unknown: list[tuple[int, int]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The address of the stream."""
        return stream_path(self.name)

    @property
    def least(self) -> int:
        """How many events are there at least."""
        return self.acknowledged - sum(stop - start for start, stop in self.unknown)

    def send(self, count: int) -> int:
        """The number of the first of so many events that are being sent."""
        first = self.acknowledged
        self.sent = first + count
        return first

    def settle(self, status: int) -> None:
        """What was sent last was answered so."""
        if status in (200, 204):
            self.acknowledged = self.sent
        elif status == 408:
            self.unknown.append((self.acknowledged, self.sent))
            self.acknowledged = self.sent
        else:
            self.sent = self.acknowledged

    def may_follow(self, expected: int, number: int) -> bool:
        """Whether a reader may find an event next where another is expected: what lies between may be missing."""
        while expected < number:
            beyond = next((stop for first, stop in self.unknown if first == expected), None)
            if beyond is None:
                return False
            expected = beyond
        return expected == number

    def follow(self, expected: int | None, events: list[Any]) -> int | None:
        """The number that comes after events read from where `expected` comes next; raises where they are wrong."""
        for found in events:
            number = found["n"]
            if found != event(number):
                raise Unexpected(f"{self.name}: event {number} was changed: {found}")
            if expected is not None and not self.may_follow(expected, number):
                raise Unexpected(f"{self.name}: event {number} comes where {expected} should")
            if number >= self.sent:
                raise Unexpected(f"{self.name}: event {number} was never sent, only {self.sent} were")
            expected = number + 1
        return expected
