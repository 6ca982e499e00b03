"""In which pieces the rows of a companion are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.extract.match.columns import Window
from headrace.format.companion.rows import Group

#: So many row groups are looked at together at most.
_MOST = 16


def by_group(groups: Sequence[Group], start: int, stop: int, *, backward: bool) -> Iterator[Window]:
    """Row group by row group: for orders whose bounds rule many of them out."""
    for group in reversed(groups) if backward else groups:
        low, high = max(group.start, start), min(group.stop, stop)
        if low < high:
            yield Window(low, high)


def growing(groups: Sequence[Group], start: int, stop: int, *, backward: bool) -> Iterator[Window]:
    """One row group, then two, then four: for orders in which the first rows may be enough."""
    pending = list(by_group(groups, start, stop, backward=backward))
    at, size = 0, 1
    while at < len(pending):
        together = pending[at : at + size]
        yield Window(min(window.start for window in together), max(window.stop for window in together))
        at, size = at + size, min(2 * size, _MOST)
