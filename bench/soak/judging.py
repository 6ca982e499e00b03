"""Whether a server that was under load for a while has grown, and whether what it holds is within bounds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from bench.soak.sampling import Sample

MB = 1_000_000
#: Caches fill in the first part of a soak; growth is looked for in the rest.
WARM_UP = 0.4
#: How much more there may be of each at the end of the rest than at its beginning, by the fitted line.
#: Files stay open up to their bounds in number, which takes longer than a soak of half an hour.
MOST_GROWTH = {"rss": 160 * MB, "descriptors": 300, "deleted": 24, "threads": 8, "wal": 48 * MB}
#: What there may be at any time.
MOST = {"descriptors": 1_000, "deleted": 64, "threads": 120, "wal": 256 * MB}
#: How far the memory of the process may exceed its limit.
SPARE = 1.1
_WINDOWS = 24


def growth(samples: Sequence[Sample], name: str) -> float:
    """By how much a line through the samples after the warm-up rises: the median slope between windows of samples."""
    rest = samples[int(len(samples) * WARM_UP) :]
    size = max(1, len(rest) // _WINDOWS)
    windows = [rest[start : start + size] for start in range(0, len(rest), size)]
    points = [
        (statistics.fmean(one.at for one in window), statistics.median(getattr(one, name) for one in window))
        for window in windows
    ]
    slopes = [
        (later - earlier) / (end - begin)
        for at, (begin, earlier) in enumerate(points)
        for end, later in points[at + 1 :]
    ]
    return statistics.median(slopes) * (points[-1][0] - points[0][0]) if slopes else 0.0


def troubles(samples: Sequence[Sample], memory_limit: float) -> Iterator[str]:
    """Everything that is beyond its bound."""
    for name, most in MOST_GROWTH.items():
        grown = growth(samples, name)
        if grown > most:
            yield f"{name} grew by {grown:,.0f} after the warm-up, and may by {most:,}"
    for name, most in MOST.items():
        highest = max(getattr(sample, name) for sample in samples)
        if highest > most:
            yield f"{name} reached {highest:,}, and may reach {most:,}"
    highest = max(sample.rss for sample in samples)
    if memory_limit and highest > memory_limit * SPARE:
        yield f"the memory of the process reached {highest / MB:,.0f} MB, and its limit is {memory_limit / MB:,.0f} MB"
