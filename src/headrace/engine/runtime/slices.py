"""Many small pieces of work on the event loop, a few milliseconds at a time, so that others are served in between."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from time import monotonic

log = logging.getLogger("headrace.loop")

#: So few pieces are done at once: the way over the loop would take longer.
FEW = 32
SLICE_S = 0.005


class Slices:
    """Work that waits for its turn, in order; all who share one share its time."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        #: Pieces that came one by one in this turn of the loop.
        self._came = 0

    @property
    def queued(self) -> int:
        """How many pieces wait."""
        return len(self._waiting)

    def do(self, pieces: Collection[Callable[[], None]]) -> None:
        """Do some pieces of work: few at once, many in slices."""
        if len(pieces) <= FEW:
            for piece in pieces:
                piece()
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._do_some)
        self._waiting.extend(pieces)

    def spread(self, piece: Callable[[], None]) -> None:
        """Do a piece of work: at once, or soon where many have come one by one in this turn of the loop."""
        if not self._came:
            asyncio.get_running_loop().call_soon(self._turn)
        self._came += 1
        if self._came <= FEW and not self._waiting:
            piece()
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._do_some)
        self._waiting.append(piece)

    def _turn(self) -> None:
        self._came = 0

    def _do_some(self) -> None:
        waiting, until = self._waiting, monotonic() + SLICE_S
        while waiting and monotonic() < until:
            try:
                waiting.popleft()()
            except Exception:
                log.exception("a piece of work failed; the others go on")
        if waiting:
            asyncio.get_running_loop().call_soon(self._do_some)
