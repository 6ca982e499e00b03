"""Decoded columns of row groups, kept while they are read again and again, bounded in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class DecodedCache:
    """A cache of decoded columns of any segment; the least recently used are dropped first."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._lock = threading.Lock()
        self._items: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, name: Hashable) -> Any:
        """What was kept under this name, or None."""
        with self._lock:
            entry = self._items.get(name)
            if entry is None:
                return None
            self._items.move_to_end(name)
            return entry[0]

    def keep(self, name: Hashable, value: Any, size: int) -> None:
        """Keep a value of so many bytes, unless it alone exceeds the limit."""
        with self._lock:
            _, before = self._items.pop(name, (None, 0))
            self.bytes -= before
            if size > self.limit_bytes:
                return
            self._items[name] = value, size
            self.bytes += size
            self._drop_oldest(self.limit_bytes)

    def shrink(self, bytes: int) -> None:
        """Keep so many bytes at most, now; there may be more again later."""
        with self._lock:
            self._drop_oldest(bytes)

    def _drop_oldest(self, bytes: int) -> None:
        while self.bytes > bytes:
            _, (_, gone) = self._items.popitem(last=False)
            self.bytes -= gone
