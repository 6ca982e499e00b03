"""Configures the allocators of the C library and of Arrow, and returns free memory to the system.

One heap for all threads: with one for each, every heap keeps free pages of its own, and answers of many threads leave
several times as much of them behind. Free pages inside a heap go back only when they are asked back, by ``trim``.

Nothing happens where the C library is not glibc.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from functools import cache
from typing import Any

from headrace.config import MiB

# Parameters of glibc's mallopt: what is larger gets pages of its own, how much free memory the end of a heap keeps, and
# how many heaps there are.
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = (-3, 4 * MiB), (-1, 16 * MiB), (-8, 1)
_MADV_DONTNEED = 4
#: Loaded with what reads and writes segments; until then Arrow holds nothing.
_ARROW = "headrace.format.decoded_columns"
#: By this Arrow chooses its allocator, when it is loaded.
_ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL"


class _Heaps(ctypes.Structure):
    """The result of glibc's ``mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def loaded_module(name: str) -> Any | None:
    """A module that was imported, whole; None while a thread still imports it."""
    module = sys.modules.get(name)
    return None if module is None or getattr(module.__spec__, "_initializing", False) else module


def use_jemalloc_in_arrow() -> None:
    """Make Arrow use jemalloc, unless another allocator was configured. Call it before pyarrow is imported.

    What Arrow computes or writes uses its own default, whatever pool Python code has set. That is mimalloc, which keeps
    free pages for each thread and gives hardly any of them back.
    """
    if sys.platform == "linux":
        os.environ.setdefault(_ARROW_POOL, "jemalloc")


def configure() -> None:
    """Use one heap, and let one answer of a mebibyte use the pages of the last. Call it before threads start.

    Asking the kernel for new pages costs more than copying.
    """
    with contextlib.suppress(AttributeError, OSError):
        for parameter, value in (_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX):
            _libc().mallopt(parameter, value)


def trim() -> None:
    """Give free pages back to the system; for a thread. Allocations may wait for some milliseconds meanwhile."""
    arrow = loaded_module(_ARROW)
    if arrow is not None:
        arrow.release_unused()
    with contextlib.suppress(AttributeError, OSError):
        _libc().malloc_trim(0)


def arrow_bytes() -> int:
    """The bytes that Arrow has allocated."""
    arrow = loaded_module(_ARROW)
    return 0 if arrow is None else int(arrow.allocated_bytes())


def heap_bytes() -> tuple[int, int] | None:
    """What the C library has given out, and what it keeps free, of which trimming may have given pages back."""
    try:
        mallinfo2 = _libc().mallinfo2
    except (AttributeError, OSError):
        return None
    mallinfo2.restype = _Heaps
    heaps: Any = mallinfo2()
    return heaps.uordblks + heaps.hblkhd, heaps.fordblks


def drop_mapped_pages(address: int, size: int) -> None:
    """Evict the resident pages of a mapped file; pages that are read again come from the page cache."""
    with contextlib.suppress(AttributeError, OSError):
        _libc().madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _MADV_DONTNEED)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
