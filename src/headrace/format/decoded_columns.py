"""The memory of decoded columns: Arrow's memory pool, and a cache that is bounded in bytes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import pyarrow as pa


def keep_freed_pages() -> None:
    """Use jemalloc where there is one and no pool was chosen: it keeps pages for a second, and row groups come and go.

    What Arrow prefers gives them back at once. The kernel then clears several mebibytes for each one that is decoded.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        with contextlib.suppress(NotImplementedError):
            pa.set_memory_pool(pa.jemalloc_memory_pool())


def allocated_bytes() -> int:
    """What Arrow has allocated in this process."""
    return int(pa.total_allocated_bytes())


def release_unused() -> None:
    """Give free pages of Arrow's memory pool back to the system."""
    pa.default_memory_pool().release_unused()


class LruCache:
    """A cache of values with sizes, for any thread; the least recently used are dropped first."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._lock = threading.Lock()
        self._items: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, name: Hashable) -> Any:
        """The value of this name, or None."""
        with self._lock:
            entry = self._items.get(name)
            if entry is None:
                return None
            self._items.move_to_end(name)
            return entry[0]

    def put(self, name: Hashable, value: Any, size: int) -> None:
        """Store a value of so many bytes, unless it alone exceeds the limit."""
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
