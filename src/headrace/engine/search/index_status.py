"""How far the indexes of a stream are: what companions hold of it, told by rows of the database alone."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple

from headrace.engine.derive.readable import owned_ranges
from headrace.engine.log.stream import Stream
from headrace.engine.search.companion_cover import is_current, may_answer, span
from headrace.engine.search.companion_coverage import CompanionCoverage
from headrace.engine.search.definitions import Defined
from headrace.engine.search.index_ground import Covered, Ground
from headrace.engine.search.index_shares import FAMILIES, Family, Shares
from headrace.errors import NotFound
from headrace.format.companion.layout import Companion, PartName
from headrace.format.ranges import Range, merge_ranges
from headrace.query.search import Kind, Search
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, Stamp
from headrace.storage.published import Counts
from headrace.storage.streams import StreamRow, Streams

_KEPT = 1_000
_PART: dict[Family, PartName] = {"exact": "postings", "col": "columns", "fts": "postings", "agg": "panes"}


class Index(NamedTuple):
    """An index that a stream should have: of one field, of a family, or of routing keys.

    ``behind`` is how many segments it lacks, ``outdated`` how many of these have companions that lack it; ``is_stale``
    where some of these hold it as it was defined before.
    """

    name: str
    kind: str
    fields: tuple[str, ...]
    covered: Covered
    behind: int
    outdated: int
    is_stale: bool
    bytes: int
    objects: int
    active: int
    retired: int


class Status(NamedTuple):
    """All indexes of a stream; a generation of 0 says that none is wanted.

    ``segments`` are those that hold entries which the stream retains, in ancestors of a fork too.
    """

    generation: int
    segments: int
    everything: Covered
    lexicon: Index
    exact: tuple[Index, ...]
    families: tuple[Index, ...]
    objects: int
    is_complete: bool
    shares: Shares


class Indexes:
    """Looks streams up through one connection, and remembers what it found until it changes."""

    def __init__(self, connection: Connection, streams: Streams, coverage: CompanionCoverage) -> None:
        self._streams = streams
        self._coverage = coverage
        self._counts, self._companions = Counts(connection), Companions(connection)
        self._known: OrderedDict[int, tuple[Hashable, Status]] = OrderedDict()

    def newest(self) -> int:
        """What changes whenever a companion comes, of any stream."""
        return self._counts.newest_companion()

    def stamp(self, stream: Stream) -> Stamp:
        """What changes whenever the companions of a stream do."""
        return self._companions.stamp(stream.id)

    def status(self, stream: Stream) -> Status:
        """How the indexes of a stream stand."""
        row = self._streams.by_id(stream.id)
        if row is None:
            raise NotFound("the stream was deleted", stream=stream.name)
        registry = stream.head.registry
        revision = 0 if registry is None else registry.revision
        mark = self.stamp(stream), revision, row.generation, tuple(owned_ranges(self._streams, row, row.first_seq))
        known = self._known.pop(stream.id, None)
        if known is None or known[0] != mark:
            known = mark, self._survey(stream, row)
        self._known[stream.id] = known
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return known[1]

    def companions(self, stream: Stream) -> list[Companion]:
        """All companions of a stream that count; do not change the list."""
        return self._coverage.listed(stream)

    def _survey(self, stream: Stream, row: StreamRow) -> Status:
        defined = self._coverage.defined(stream)
        start = row.first_seq if defined is None else max(row.first_seq, defined.registry.readable_from)
        retained, wanted = (
            Ground(self._counts, owned_ranges(self._streams, row, one)) for one in (row.first_seq, start)
        )
        listed, retired = self._coverage.listed(stream), self._companions.retired(stream.id)
        shares = Shares(None if defined is None else defined.definition.search)
        for companions in _sorted_out(listed):
            shares.add(companions)
        survey = _Survey(wanted, defined, [one for one in listed if one.end_seq > start], retired, shares)
        families = survey.families()
        revision = 0 if stream.head.registry is None else stream.head.registry.revision
        return Status(
            generation=revision if families else 0,
            segments=retained.segments,
            everything=retained.covered([Range(row.first_seq, row.next_seq)]),
            lexicon=survey.lexicon(),
            exact=survey.exact(),
            families=families,
            objects=sum(len(one.parts) for one in listed),
            is_complete=survey.is_complete(),
            shares=shares,
        )


class _Alike(NamedTuple):
    """Companions that hold the same: one of them, how many, which entries they describe, and objects by part."""

    one: Companion
    companions: int
    ranges: list[Range]
    objects: Counter[PartName]


class _Survey:
    """Looks at the companions of one stream."""

    def __init__(
        self,
        ground: Ground,
        defined: Defined | None,
        listed: Sequence[Companion],
        retired: Sequence[Companion],
        shares: Shares,
    ) -> None:
        self._ground, self._defined, self._shares = ground, defined, shares
        self._search: Search | None = None if defined is None else defined.definition.search
        self._retired = retired
        self._alike = [_alike(companions) for companions in _sorted_out(listed)]
        self._covered: dict[tuple[int, ...], Covered] = {}

    def lexicon(self) -> Index:
        """The index of routing keys."""
        return self._index("", "", (), lambda one: one.keys, "postings", self._shares.lexicon)

    def exact(self) -> tuple[Index, ...]:
        """The index of every field that is asked for whole values, by name."""
        names = () if self._search is None else _fields(self._search, "exact")
        return tuple(self._exact(name) for name in sorted(names))

    def families(self) -> tuple[Index, ...]:
        """Every family of indexes that is wanted."""
        if self._search is None:
            return ()
        wanted = {family: _fields(self._search, family) for family in FAMILIES}
        return tuple(self._family(family, names) for family, names in wanted.items() if names)

    def is_complete(self) -> bool:
        """Whether companions hold everything that is defined, of all segments."""
        defined = self._defined
        if defined is None:
            return True
        return self._cover(lambda one: is_current(one, defined)).segments == self._ground.segments

    def _exact(self, name: str) -> Index:
        assert self._search is not None
        kind = str(self._search.fields[name].kind)
        return self._index(name, kind, (name,), self._holding((name,)), "postings", self._shares.postings[name])

    def _family(self, family: Family, names: tuple[str, ...]) -> Index:
        holds = self._holding((), names) if family == "agg" else self._holding(names)
        return self._index(family, family, names, holds, _PART[family], self._shares.families[family])

    def _holding(self, fields: Collection[str], rollups: Collection[str] = ()) -> Callable[[Companion], bool]:
        defined = self._defined
        assert defined is not None
        return lambda one: may_answer(one, defined, fields, rollups)

    def _index(
        self,
        name: str,
        kind: str,
        fields: tuple[str, ...],
        holds: Callable[[Companion], bool],
        part: PartName,
        size: int,
    ) -> Index:
        covered, described = self._cover(holds), self._cover(lambda _: True)
        active = [alike for alike in self._alike if holds(alike.one)]
        others = [alike.one for alike in self._alike if not holds(alike.one)]
        return Index(
            name=name,
            kind=kind,
            fields=fields,
            covered=covered,
            behind=self._ground.segments - covered.segments,
            outdated=described.segments - covered.segments,
            is_stale=any(field in one.fields or field in one.rollups for one in others for field in fields),
            bytes=size,
            objects=sum(alike.objects[part] for alike in active),
            active=sum(alike.companions for alike in active),
            retired=sum(holds(one) for one in self._retired),
        )

    def _cover(self, holds: Callable[[Companion], bool]) -> Covered:
        """What those cover together that hold something."""
        chosen = tuple(at for at, alike in enumerate(self._alike) if holds(alike.one))
        known = self._covered.get(chosen)
        if known is None:
            ranges = [one for at in chosen for one in self._alike[at].ranges]
            known = self._covered[chosen] = self._ground.covered(ranges)
        return known


def _alike(companions: list[Companion]) -> _Alike:
    objects = Counter(part for companion in companions for part in companion.parts)
    return _Alike(companions[0], len(companions), merge_ranges(map(span, companions)), objects)


def _sorted_out(listed: Sequence[Companion]) -> list[list[Companion]]:
    """Companions by what they hold: there are many of them, and few differ."""
    found: dict[Hashable, list[Companion]] = {}
    for one in listed:
        mark = one.through_version, one.keys, tuple(one.fields.items()), tuple(one.rollups.items()), tuple(one.words)
        found.setdefault(mark, []).append(one)
    return list(found.values())


def _fields(search: Search, family: Family) -> tuple[str, ...]:
    """The fields of a family, or its rollups."""
    fields = search.fields.values()
    match family:
        case "exact":
            return tuple(one.name for one in fields if one.exact and one.kind is not Kind.TEXT)
        case "col":
            primary = search.primary_timestamp
            asked = (one for one in fields if one.column or one.sortable or one.aggregatable or one.name == primary)
            return tuple(one.name for one in asked if one.kind is not Kind.TEXT)
        case "fts":
            return tuple(
                one.name for one in fields if one.kind is Kind.TEXT or (one.prefix and one.kind is Kind.KEYWORD)
            )
        case "agg":
            return tuple(search.rollups)
