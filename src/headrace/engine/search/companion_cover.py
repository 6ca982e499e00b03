"""Which companions count: those that hold what is defined, the widest first, none over another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable

from headrace.engine.search.definitions import Defined
from headrace.format.companion.layout import Companion
from headrace.format.ranges import Range, merge_ranges


def span(companion: Companion) -> Range:
    """The entries that a companion describes."""
    return Range(companion.first_seq, companion.end_seq)


def may_answer(companion: Companion, defined: Defined, fields: Collection[str], rollups: Collection[str] = ()) -> bool:
    """Whether a companion holds these fields and rollups as they are defined now."""
    wanted = defined.hashes(companion.through_version)
    return all(companion.fields.get(name, "") == wanted.fields.get(name) for name in fields) and all(
        companion.rollups.get(name, "") == wanted.rollups.get(name) for name in rollups
    )


def is_current(companion: Companion, defined: Defined) -> bool:
    """Whether a companion holds everything that is defined now."""
    wanted = defined.hashes(companion.through_version)
    return (
        companion.keys
        and wanted.fields.items() <= companion.fields.items()
        and wanted.rollups.items() <= companion.rollups.items()
    )


def widest(companions: Iterable[Companion]) -> list[Companion]:
    """Of companions that overlap the one of a higher level, or the wider, or what was given later; in order."""
    chosen: list[Companion] = []
    firsts: list[int] = []
    for companion in sorted(reversed(list(companions)), key=lambda one: (-one.level, -one.count)):
        at = bisect_right(firsts, companion.first_seq)
        is_after_the_one_before = not at or chosen[at - 1].end_seq <= companion.first_seq
        if is_after_the_one_before and (at == len(chosen) or companion.end_seq <= firsts[at]):
            chosen.insert(at, companion)
            firsts.insert(at, companion.first_seq)
    return chosen


def replaced(listed: list[Companion], defined: Defined, start: int) -> list[str]:
    """The names of companions that are of no more use: others have their entries from ``start`` on."""
    chosen = widest(companion for companion in listed if is_current(companion, defined))
    kept = {companion.name for companion in chosen if companion.end_seq > start}
    covered = merge_ranges([Range(-1, start), *map(span, chosen)])
    firsts = [first for first, _ in covered]
    return [
        companion.name
        for companion in listed
        if companion.name not in kept
        and companion.end_seq <= covered[bisect_right(firsts, companion.first_seq) - 1].end
    ]
