"""Streams that are not in memory: what one turn of the event loop asks for is looked up together, at its end.

A look-up by itself costs about as much as the rest of an append, most of it for the locks of its transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.engine.log.catalog import Catalog
from headrace.server.http.head_cache import RequestHead

if TYPE_CHECKING:
    from headrace.server.http.exchange import Exchange

#: A request: its head and its body, the way back, when its time is over, and that its stream was looked up.
WaitingRequest = tuple[RequestHead, bytes, "Exchange", float, bool]


class StreamLookups:
    """Requests that wait for the end of the turn."""

    def __init__(self, catalog: Catalog, go_on: Callable[[RequestHead, bytes, Exchange, float, bool], None]) -> None:
        self._catalog = catalog
        self._go_on = go_on
        self._names: set[str] = set()
        self._waiting: list[WaitingRequest] = []

    def add(self, name: str, request: WaitingRequest) -> None:
        """Go on with a request when its stream is in memory, or was looked for in vain."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._look)
        self._names.add(name)
        self._waiting.append(request)

    def _look(self) -> None:
        names, waiting = self._names, self._waiting
        self._names, self._waiting = set(), []
        try:
            self._catalog.fetch(names)
        finally:  # whatever there was with one of them, each gets to know what became of its own
            for request in waiting:
                self._go_on(*request)
