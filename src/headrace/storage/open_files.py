"""How many files a cache keeps open."""

from __future__ import annotations

import resource


def most_open_files(wanted: int, share: int = 16) -> int:
    """As many as are wanted, or a small part of those that the system lets this process open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else min(wanted, files // share)
