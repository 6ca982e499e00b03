"""Questions about the past: keys, the moments that are asked about, and which events count for each of them.

A moment has two clocks: an event counts that happened until ``at_us`` and was appended until ``appended_us``. Each
event is folded once for every *chain* of moments, along which neither clock goes back: into the first moment of the
chain that it counts for, and so for all that follow. Moments with one common ``appended_us`` are one chain, and so are
those whose ``appended_us`` is the moment itself. A key never has more chains than values of ``appended_us``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import msgspec

from headrace.reduce.features.definition import TableDefinition

#: Later than every event.
FOREVER_US = 1 << 62


class KeyMoment(NamedTuple):
    """A key at a moment, by what was appended until another one; None is everything that is there."""

    key: bytes
    at_us: int
    appended_us: int | None = None


class Limits(NamedTuple):
    """The last event that counts for a moment, by both clocks."""

    event_us: int
    append_us: int


class MomentChain:
    """Moments along which neither clock goes back; their slots are numbered from ``first_slot`` on."""

    def __init__(self) -> None:
        self.first_slot = 0
        #: The limits of each slot, and the requests that have them, as positions in the question.
        self.events_us: list[int] = []
        self.appends_us: list[int] = []
        self.positions: list[list[int]] = []

    def append(self, limits: Limits, position: int) -> None:
        """Add a request whose limits are not before those of the last one."""
        if not self.positions or limits != (self.events_us[-1], self.appends_us[-1]):
            self.events_us.append(limits.event_us)
            self.appends_us.append(limits.append_us)
            self.positions.append([])
        self.positions[-1].append(position)


class KeyMoments:
    """The moments of one key, as few chains as there can be."""

    def __init__(self, requests: Iterable[tuple[Limits, int]]) -> None:
        self.chains: list[MomentChain] = []
        last_us: list[int] = []  # the append time at which each chain ends, in order
        for limits, position in sorted(requests):
            number = bisect_right(last_us, limits.append_us) - 1
            if number < 0:
                number = 0
                self.chains.insert(0, MomentChain())
                last_us.insert(0, limits.append_us)
            self.chains[number].append(limits, position)
            last_us[number] = limits.append_us
        slots = 0
        for chain in self.chains:
            chain.first_slot = slots
            slots += len(chain.positions)

    def slots(self, event_us: int, append_us: int) -> Iterator[int]:
        """The first slot of each chain that an event counts for."""
        for chain in self.chains:
            slot = max(bisect_left(chain.events_us, event_us), bisect_left(chain.appends_us, append_us))
            if slot < len(chain.positions):
                yield chain.first_slot + slot


class Question(msgspec.Struct, frozen=True, dict=True):
    """Keys and moments, the features that are wanted, and the table as it was defined."""

    features: tuple[str, ...]
    requests: tuple[KeyMoment, ...] = msgspec.field(name="asked")
    defined: TableDefinition

    def limits(self, request: KeyMoment) -> Limits:
        """The last event that counts for a request; without event time an event happens when it is appended."""
        appended_us = FOREVER_US if request.appended_us is None else request.appended_us
        if self.defined.event.timestamp_field is None:
            both_us = min(request.at_us, appended_us)
            return Limits(both_us, both_us)
        return Limits(request.at_us, appended_us)

    @cached_property
    def moments(self) -> Mapping[bytes, KeyMoments]:
        """The moments of each key."""
        by_key: dict[bytes, list[tuple[Limits, int]]] = {}
        for position, request in enumerate(self.requests):
            by_key.setdefault(request.key, []).append((self.limits(request), position))
        return {key: KeyMoments(requests) for key, requests in by_key.items()}

    def first_limit_us(self) -> int:
        """The append time until which every event counts for all requests, by the clock of appends alone."""
        return min((self.limits(request).append_us for request in self.requests), default=0)

    def last_limit_us(self) -> int:
        """The append time after which no event counts for any request."""
        return max((self.limits(request).append_us for request in self.requests), default=0)
