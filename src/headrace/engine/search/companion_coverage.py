"""What is defined to be derived from a stream, and which companions answer for it.

What companions leave out is read from segments and the log.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import msgspec

from headrace.engine.log.stream import Stream
from headrace.format.companion.layout import Companion
from headrace.format.ranges import Range, merge_ranges
from headrace.query.definition import Definition
from headrace.schema.registry import Registry
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, Stamp
from headrace.storage.registries import Registries
from headrace.storage.streams import StreamRow

_MAX_DEFINITIONS = 512


class Hashes(NamedTuple):
    """What a companion must hold to be up to date: field → hash, rollup → hash."""

    fields: dict[str, str]
    rollups: dict[str, str]


class Defined:
    """What a revision of a registry says is to be derived."""

    def __init__(self, registry: Registry, definition: Definition) -> None:
        self.registry = registry
        self.definition = definition
        self._hashes: dict[int, Hashes] = {}

    def hashes(self, through_version: int) -> Hashes:
        """Of everything that is defined, for events of versions up to this one."""
        hashes = self._hashes.get(through_version)
        if hashes is None:
            definition, search = self.definition, self.definition.search
            hashes = self._hashes[through_version] = Hashes(
                {name: definition.field_hash(name, through_version) for name in search.fields},
                {name: definition.rollup_hash(name, through_version) for name in search.rollups},
            )
        return hashes


class Definitions:
    """A bounded cache over the stored registries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int], Defined | None] = OrderedDict()

    def stored(self, registries: Registries, row: StreamRow) -> Defined | None:
        """What the newest revision in the database says; None where a stream has no search configuration."""

        def load() -> Registry:
            return Registry.load(msgspec.json.decode(registries.document(row.id, row.revision)))

        return self.of(row.id, row.revision, load) if row.revision else None

    def of(self, stream: int, revision: int, load: Callable[[], Registry]) -> Defined | None:
        """What a revision says, which is loaded where it is not known yet."""
        mark = stream, revision
        with self._lock:
            if mark in self._kept:
                self._kept.move_to_end(mark)
                return self._kept[mark]
        registry = load()
        definition = Definition.of(registry)
        defined = None if definition is None else Defined(registry, definition)
        with self._lock:
            self._kept[mark] = defined
            while len(self._kept) > _MAX_DEFINITIONS:
                self._kept.popitem(last=False)
        return defined


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


#: Companions that are kept decoded, of all streams together, and questions that are kept answered of each.
_MAX_COMPANIONS = 20_000
_MAX_QUESTIONS = 64

Question = tuple[int, frozenset[str] | None, frozenset[str], bool]


class _Known:
    """The companions of one stream as of a stamp, and which of them answer for what."""

    def __init__(self, stamp: Stamp, companions: list[Companion]) -> None:
        self.stamp = stamp
        self.companions = companions
        self.answers: dict[Question, list[Companion]] = {}


class CompanionCoverage:
    """Looks companions up; for the thread of its connection."""

    def __init__(self, connection: Connection, definitions: Definitions) -> None:
        self._companions = Companions(connection)
        self._definitions = definitions
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._kept = 0

    def defined(self, stream: Stream) -> Defined | None:
        """What is derived from a stream; None without a search configuration."""
        registry = stream.head.registry
        if registry is None:
            return None
        return self._definitions.of(stream.id, registry.revision, lambda: registry.registry)

    def listed(self, stream: Stream) -> list[Companion]:
        """All companions of a stream that count, current or not, by their first entries."""
        return list(self._look(stream).companions)

    def companions(
        self,
        stream: Stream,
        *,
        fields: Collection[str] | None = None,
        rollups: Collection[str] = (),
        keys: bool = False,
    ) -> list[Companion]:
        """Companions that may answer for these fields and rollups as they are defined now, the widest, in order.

        Without fields: those that hold everything that is defined. None overlaps another; there may be gaps between
        them. The first may begin before the first retained entry.
        """
        defined = self.defined(stream)
        registry = stream.head.registry
        if defined is None or registry is None:
            return []
        cached = self._look(stream)
        field_names = None if fields is None else frozenset(fields)
        question = registry.revision, field_names, frozenset(rollups), keys
        answer = cached.answers.get(question)
        if answer is None:
            if len(cached.answers) >= _MAX_QUESTIONS:
                cached.answers.clear()
            answer = cached.answers[question] = _answering(cached.companions, defined, *question[1:])
        start = max(stream.head.first_seq, defined.registry.readable_from)
        return [companion for companion in answer if companion.end_seq > start]

    def _look(self, stream: Stream) -> _Known:
        stamp = self._companions.stamp(stream.id)
        cached = self._known.get(stream.id)
        if cached is None or cached.stamp != stamp:
            self._forget(stream.id)
            cached = self._known[stream.id] = _Known(stamp, self._companions.listed(stream.id))
            self._kept += len(cached.companions)
            while self._kept > _MAX_COMPANIONS and len(self._known) > 1:
                self._forget(next(iter(self._known)))
        self._known.move_to_end(stream.id)
        return cached

    def _forget(self, stream: int) -> None:
        cached = self._known.pop(stream, None)
        self._kept -= 0 if cached is None else len(cached.companions)


def _answering(
    companions: list[Companion], defined: Defined, fields: frozenset[str] | None, rollups: frozenset[str], keys: bool
) -> list[Companion]:
    if fields is None:
        return widest(companion for companion in companions if is_current(companion, defined))
    return widest(
        companion
        for companion in companions
        if companion.keys >= keys and may_answer(companion, defined, fields, rollups)
    )
