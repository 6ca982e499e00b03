"""A filter of the names of streams that may have entries in the log; others are looked up without the log.

The writer adds to it, and whoever counts what waits makes it anew from time to time, as entries leave the log.
"""

from __future__ import annotations

from collections.abc import Iterable

# A byte each, as threads that set bits of one byte would undo each other's.
_SLOTS = 1 << 22


class WalNameFilter:
    """Names every stream that has entries in the log, and few others; in the beginning it names all."""

    def __init__(self) -> None:
        self._slots = bytearray(b"\1") * _SLOTS
        self._anew: bytearray | None = None

    def __contains__(self, name: str) -> bool:
        return self._slots[hash(name) % _SLOTS] != 0

    def add(self, name: str) -> None:
        """A stream has got entries: called when they are on disk, and before anybody is told."""
        slot = hash(name) % _SLOTS
        anew = self._anew
        # First the ones that are to come: they may become the others in between.
        if anew is not None:
            anew[slot] = 1
        self._slots[slot] = 1

    def begin(self) -> None:
        """Someone begins to count, and will find everything that is on disk by now."""
        self._anew = bytearray(_SLOTS)

    def add_counted(self, names: Iterable[str]) -> None:
        """Some streams were counted."""
        assert self._anew is not None
        for name in names:
            self._anew[hash(name) % _SLOTS] = 1

    def end(self) -> None:
        """All were counted: nothing else has entries but what was added since it began."""
        assert self._anew is not None
        self._slots = self._anew
        self._anew = None
