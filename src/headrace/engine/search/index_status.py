"""How far the indexes of a stream are: which of its segments companions cover, and how many bytes each index takes.

Only rows of the database are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from headrace.engine.derive.unit_cutter import OwnedRange, owned_ranges
from headrace.engine.log.stream import Stream
from headrace.engine.search.companion_coverage import CompanionCoverage, SearchDefinition, span
from headrace.errors import NotFound
from headrace.format.companion.layout import KEYS, Companion, PartName
from headrace.format.decoded_columns import LruCache
from headrace.format.ranges import Range, merge_ranges
from headrace.query.search import Kind, Search
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, Stamp
from headrace.storage.published import Published, SegmentSpan
from headrace.storage.streams import StreamRow, Streams


class CoveredSegments(NamedTuple):
    """Segments that ranges cover: all, those from the first on without a gap, and when the last of these ends."""

    segments: int = 0
    contiguous: int = 0
    last_us: int | None = None


class PublishedSegments:
    """The segments that a stream reads, those of its ancestors included.

    A fork may read a part of a segment, and retention may cut into one: such a segment is covered if that part is.
    """

    def __init__(self, counts: Published, parts: Sequence[OwnedRange]) -> None:
        self._counts = counts
        self._parts = [(part, counts.overlapping(*part)) for part in parts]
        self.segments = sum(touched.segments for _, touched in self._parts)

    def covered(self, ranges: Iterable[Range]) -> CoveredSegments:
        """The segments that some ranges cover."""
        joined_ranges = merge_ranges(ranges)
        if not joined_ranges or not self._parts:
            return CoveredSegments()
        start = self._parts[0][0].first
        first = next(
            (covered_range for covered_range in joined_ranges if covered_range.first <= start < covered_range.end), None
        )
        contiguous = CoveredSegments() if first is None else self._covered_by(first)
        return contiguous._replace(
            segments=sum(self._covered_by(covered_range).segments for covered_range in joined_ranges)
        )

    def _covered_by(self, wanted: Range) -> CoveredSegments:
        segments, last_us = 0, None
        for part, touched in self._parts:
            if wanted.overlaps(Range(part.first, part.end)):
                counted = self._counts.contained(part.owner, *_edges(wanted, part, touched))
                segments += counted.segments
                last_us = counted.last_us if counted.segments else last_us
        return CoveredSegments(segments, segments, last_us)


def _edges(wanted: Range, part: OwnedRange, touched: SegmentSpan) -> tuple[int, int]:
    """A range, widened to whole segments where it reaches the ends of a part."""
    return (
        touched.first if wanted.first <= part.first else wanted.first,
        touched.end if wanted.end >= part.end else wanted.end,
    )


IndexFamily = Literal["exact", "col", "fts", "agg"]
FAMILIES: tuple[IndexFamily, ...] = ("exact", "col", "fts", "agg")


class IndexBytes:
    """The bytes of companions, by family and by the field whose postings they are; the lexicon is no family."""

    def __init__(self, search: Search | None) -> None:
        self._search = search
        self.families: Counter[str] = Counter()
        self.postings: Counter[str] = Counter()
        self.total = 0

    @property
    def lexicon(self) -> int:
        """The bytes of routing keys."""
        return self.postings[KEYS]

    def add(self, companions: Sequence[Companion]) -> None:
        """Count more companions, all of which hold the same fields."""
        sizes = Counter[str]()
        for companion in companions:
            sizes.update({name: part.bytes for name, part in companion.parts.items()})
        self.total += sizes.total()
        self.families["col"] += sizes["columns"]
        self.families["agg"] += sizes["panes"]
        texts = companions[0].words
        for name, size in split(sizes["postings"], self._postings(companions)).items():
            self.postings[name] += size
            if name != KEYS:
                self.families["fts" if name in texts or self._is_prefix(name) else "exact"] += size

    def _postings(self, companions: Sequence[Companion]) -> dict[str, int]:
        """About how many numbers the postings of every field have."""
        first, events = companions[0], sum(companion.count for companion in companions)
        weights = {KEYS: events} if first.keys else {}
        for name in first.fields:
            if name in first.words:
                weights[name] = 2 * sum(companion.words[name][1] for companion in companions)
            elif self._has_postings(name):
                weights[name] = events
        return weights

    def _has_postings(self, name: str) -> bool:
        field = None if self._search is None else self._search.fields.get(name)
        return field is None or field.exact or field.kind is Kind.KEYWORD

    def _is_prefix(self, name: str) -> bool:
        """Whether the postings of a field answer for beginnings of values, and not for whole ones."""
        field = None if self._search is None else self._search.fields.get(name)
        return field is not None and not field.exact


def split(total: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Split a total by weights, so that the parts add up to it; all are 0 where all weights are."""
    total_weight = sum(weights.values())
    parts, so_far, before = dict[str, int](), 0, 0
    for name, weight in weights.items():
        so_far += weight
        upto = total * so_far // total_weight if total_weight else 0
        parts[name], before = upto - before, upto
    return parts


_MAX_CACHED = 1_000
_PART: dict[IndexFamily, PartName] = {"exact": "postings", "col": "columns", "fts": "postings", "agg": "panes"}


class Index(NamedTuple):
    """An index that a stream should have: of one field, of a family, or of routing keys.

    ``behind`` is how many segments it lacks, ``outdated`` how many of these have companions that lack it; ``is_stale``
    where some of these hold it as it was defined before.
    """

    name: str
    kind: str
    fields: tuple[str, ...]
    covered: CoveredSegments
    behind: int
    outdated: int
    is_stale: bool
    bytes: int
    objects: int
    active: int
    retired: int


class IndexStatus(NamedTuple):
    """All indexes of a stream; a generation of 0 says that none is wanted.

    ``segments`` are those that hold entries which the stream retains, in ancestors of a fork too.
    """

    generation: int
    segments: int
    everything: CoveredSegments
    lexicon: Index
    exact: tuple[Index, ...]
    families: tuple[Index, ...]
    objects: int
    is_complete: bool
    sizes: IndexBytes


class IndexStatusReader:
    """Reads the status of indexes through one connection; a status is cached until it changes."""

    def __init__(self, connection: Connection, streams: Streams, coverage: CompanionCoverage) -> None:
        self._streams = streams
        self._coverage = coverage
        self._counts, self._companions = Published(connection), Companions(connection)
        self._cache = LruCache(_MAX_CACHED)

    def newest(self) -> int:
        """A number that changes whenever a companion of any stream is added."""
        return self._counts.newest_companion()

    def stamp(self, stream: Stream) -> Stamp:
        """A value that changes whenever the companions of a stream do."""
        return self._companions.stamp(stream.id)

    def status(self, stream: Stream) -> IndexStatus:
        """The status of the indexes of a stream."""
        row = self._streams.by_id(stream.id)
        if row is None:
            raise NotFound("the stream was deleted", stream=stream.name)
        registry = stream.head.registry
        revision = 0 if registry is None else registry.revision
        ranges = tuple(owned_ranges(self._streams, row, row.first_seq))
        state = self.stamp(stream), revision, row.generation, ranges
        cached: tuple[Hashable, IndexStatus] | None = self._cache.get(stream.id)
        if cached is None or cached[0] != state:
            cached = state, self._compute(stream, row)
            self._cache.put(stream.id, cached, 1)
        return cached[1]

    def companions(self, stream: Stream) -> list[Companion]:
        """All companions of a stream that count; do not change the list."""
        return self._coverage.listed(stream)

    def _compute(self, stream: Stream, row: StreamRow) -> IndexStatus:
        defined = self._coverage.defined(stream)
        start = row.first_seq if defined is None else max(row.first_seq, defined.registry.readable_from)
        retained, wanted = (
            PublishedSegments(self._counts, owned_ranges(self._streams, row, first_seq))
            for first_seq in (row.first_seq, start)
        )
        listed, retired = self._coverage.listed(stream), self._companions.retired(stream.id)
        sizes = IndexBytes(None if defined is None else defined.definition.search)
        for companions in _group_alike(listed):
            sizes.add(companions)
        survey = _Survey(
            wanted, defined, [companion for companion in listed if companion.end_seq > start], retired, sizes
        )
        families = survey.families()
        revision = 0 if stream.head.registry is None else stream.head.registry.revision
        return IndexStatus(
            generation=revision if families else 0,
            segments=retained.segments,
            everything=retained.covered([Range(row.first_seq, row.next_seq)]),
            lexicon=survey.lexicon(),
            exact=survey.exact(),
            families=families,
            objects=sum(len(companion.parts) for companion in listed),
            is_complete=survey.is_complete(),
            sizes=sizes,
        )


class _CompanionGroup(NamedTuple):
    """Companions that hold the same fields: the first, how many, which entries they describe, and objects by part."""

    first: Companion
    companions: int
    ranges: list[Range]
    objects: Counter[PartName]


class _Survey:
    """The indexes that the companions of one stream make up."""

    def __init__(
        self,
        segments: PublishedSegments,
        defined: SearchDefinition | None,
        listed: Sequence[Companion],
        retired: Sequence[Companion],
        sizes: IndexBytes,
    ) -> None:
        self._segments, self._defined, self._sizes = segments, defined, sizes
        self._search: Search | None = None if defined is None else defined.definition.search
        self._retired = retired
        self._groups = [_group(companions) for companions in _group_alike(listed)]
        self._covered: dict[tuple[int, ...], CoveredSegments] = {}

    def lexicon(self) -> Index:
        """The index of routing keys."""
        return self._index("", "", (), lambda companion: companion.keys, "postings", self._sizes.lexicon)

    def exact(self) -> tuple[Index, ...]:
        """The index of every field that is queried by whole values, by name."""
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
        return self._cover(defined.is_current).segments == self._segments.segments

    def _exact(self, name: str) -> Index:
        assert self._search is not None
        kind = str(self._search.fields[name].kind)
        return self._index(name, kind, (name,), self._holding((name,)), "postings", self._sizes.postings[name])

    def _family(self, family: IndexFamily, names: tuple[str, ...]) -> Index:
        holds = self._holding((), names) if family == "agg" else self._holding(names)
        return self._index(family, family, names, holds, _PART[family], self._sizes.families[family])

    def _holding(self, fields: Collection[str], rollups: Collection[str] = ()) -> Callable[[Companion], bool]:
        defined = self._defined
        assert defined is not None
        return lambda companion: defined.may_answer(companion, fields, rollups)

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
        active = [group for group in self._groups if holds(group.first)]
        others = [group.first for group in self._groups if not holds(group.first)]
        return Index(
            name=name,
            kind=kind,
            fields=fields,
            covered=covered,
            behind=self._segments.segments - covered.segments,
            outdated=described.segments - covered.segments,
            is_stale=any(
                field in companion.fields or field in companion.rollups for companion in others for field in fields
            ),
            bytes=size,
            objects=sum(group.objects[part] for group in active),
            active=sum(group.companions for group in active),
            retired=sum(holds(companion) for companion in self._retired),
        )

    def _cover(self, holds: Callable[[Companion], bool]) -> CoveredSegments:
        """The segments that companions cover together that hold something."""
        chosen = tuple(at for at, group in enumerate(self._groups) if holds(group.first))
        covered = self._covered.get(chosen)
        if covered is None:
            ranges = [covered_range for at in chosen for covered_range in self._groups[at].ranges]
            covered = self._covered[chosen] = self._segments.covered(ranges)
        return covered


def _group(companions: list[Companion]) -> _CompanionGroup:
    objects = Counter(part for companion in companions for part in companion.parts)
    return _CompanionGroup(companions[0], len(companions), merge_ranges(map(span, companions)), objects)


def _group_alike(listed: Sequence[Companion]) -> list[list[Companion]]:
    """Companions grouped by content: there are many, with few different contents."""
    groups: dict[Hashable, list[Companion]] = {}
    for companion in listed:
        held = (
            companion.through_version,
            companion.keys,
            tuple(companion.fields.items()),
            tuple(companion.rollups.items()),
            tuple(companion.words),
        )
        groups.setdefault(held, []).append(companion)
    return list(groups.values())


def _fields(search: Search, family: IndexFamily) -> tuple[str, ...]:
    """The fields of a family, or its rollups."""
    fields = search.fields.values()
    match family:
        case "exact":
            return tuple(field.name for field in fields if field.exact and field.kind is not Kind.TEXT)
        case "col":
            primary = search.primary_timestamp
            columns = (
                field
                for field in fields
                if field.column or field.sortable or field.aggregatable or field.name == primary
            )
            return tuple(field.name for field in columns if field.kind is not Kind.TEXT)
        case "fts":
            return tuple(
                field.name
                for field in fields
                if field.kind is Kind.TEXT or (field.prefix and field.kind is Kind.KEYWORD)
            )
        case "agg":
            return tuple(search.rollups)
