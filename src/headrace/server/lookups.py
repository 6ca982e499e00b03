"""Streams that are not in memory: what one turn of the event loop asks for is looked up together, at its end.

A look-up by itself costs about as much as the rest of an append, most of it for the locks of its transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.engine.catalog import Catalog


class Lookups:
    """Requests that wait for the end of the turn."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._names: set[str] = set()
        self._waiting: list[Callable[[], None]] = []

    def add(self, name: str, go_on: Callable[[], None]) -> None:
        """Go on when a stream is in memory, or was looked for in vain."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._look)
        self._names.add(name)
        self._waiting.append(go_on)

    def _look(self) -> None:
        names, waiting = self._names, self._waiting
        self._names, self._waiting = set(), []
        try:
            self._catalog.fetch(names)
        finally:  # whatever there was with one of them, each gets to know what became of its own
            for go_on in waiting:
                go_on()
