"""Reading a companion from local files: one look at the footers, then the row groups that a question touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from headrace.errors import CorruptData
from headrace.format.companion import filters
from headrace.format.companion.answers import Answers
from headrace.format.companion.file import File
from headrace.format.companion.index import ColumnsIndex, Index, PanesIndex, PostingsIndex, holding
from headrace.format.companion.layout import Companion, Part, PartName
from headrace.format.companion.names import file_name
from headrace.format.companion.posting_file import Block
from headrace.format.companion.postings import Lists, Run, flat
from headrace.format.companion.rows import Group, Int32s
from headrace.format.intact import intact
from headrace.format.parquet_file import ParquetSource
from headrace.format.segment.decoded import Decoded


class FileCompanion(Answers):
    """A companion in files; several threads may ask it, and what was decoded is kept with that of all others.

    ``name`` must never name other bytes. The postings and the panes are opened when they are first asked for.
    """

    def __init__(self, sources: Mapping[PartName, Callable[[], ParquetSource]], *, name: str, decoded: Decoded) -> None:
        """``sources`` open the file of each part."""
        self.name = name
        self._decoded = decoded
        self._sources = sources
        self._columns = File(sources["columns"](), ColumnsIndex)
        super().__init__(self._columns.info)
        rows = self._columns.index.rows
        self._columns.must(len(rows) == self._columns.groups, "its index is of other row groups")
        self._columns.must(sum(rows) == self._columns.rows == self.info.count, "it has another number of rows")
        self._edges = [*pairwise(accumulate(rows, initial=0))]
        self.schema = self._columns.schema

    @classmethod
    def opened(cls, directory: Path, companion: Companion, decoded: Decoded) -> FileCompanion:
        """The companion whose files lie in a directory under their own names."""
        paths = {part: directory / file_name(companion.name, part) for part in companion.parts}
        return cls(sources_of(companion.name, paths), name=companion.name, decoded=decoded)

    @property
    def footprint(self) -> int:
        """About how much memory its open files take."""
        opened = [file for name in ("_postings", "_panes") if (file := self.__dict__.get(name)) is not None]
        footprint: int = sum(file.footprint for file in [self._columns, *opened])
        return footprint

    @property
    def most_files(self) -> int:
        """How many files it has open at most: those of its parts."""
        return len(self._sources)

    def column(self, name: str, group: int) -> Any:
        """A stored column of one row group."""
        if name not in self._columns.index.zones:
            raise KeyError(name)
        return self._kept(("column", name, group), lambda: self._columns.column(group, name))

    def groups(self, name: str) -> Sequence[Group]:
        """The row groups of a stored column."""
        return [Group(*edges, *zone) for edges, zone in zip(self._edges, self._columns.index.zones[name], strict=True)]

    def panes(self, rollup: str, interval: int) -> Iterator[Any] | None:
        """The panes of a rollup with this interval, row group by row group, or None where they are not held."""
        if rollup not in self.info.rollups:
            return None
        file = self._panes
        numbers = (number for number, place in enumerate(file.index.groups) if place == (rollup, interval))
        return (self._kept(("panes", number), partial(file.table, number)) for number in numbers)

    def column_tables(self) -> Iterator[Any]:
        """All stored columns, row group by row group, kept nowhere."""
        return map(self._columns.table, range(self._columns.groups))

    def posting_groups(self, field: str) -> range:
        """The row groups that hold the postings of a field."""
        first, firsts = self._posted.get(field, (0, []))
        return range(first, first + len(firsts))

    def block(self, group: int) -> Block:
        """All of one row group of postings, kept nowhere."""
        return Block.of(self._postings.table(group))

    def _runs(self, field: str, low: str, beyond: Callable[[str], bool], *, exact: bool = False) -> Iterator[Run]:
        first, firsts = self._posted.get(field, (0, []))
        for number in holding(firsts, low, beyond):
            if not exact or self._may_hold(first + number, low):
                yield _GroupRun(self._postings, first + number, self._kept)

    def _may_hold(self, group: int, term: str) -> bool:
        """Whether a row group of postings may have a term."""
        places = self._postings.index.filters
        place = places[group] if places else None
        if place is None:
            return True
        with intact(self._postings.name):
            return filters.may_hold(self._postings.bytes_at(place), term)

    @cached_property
    def _posted(self) -> dict[str, tuple[int, list[str]]]:
        """For every field its first row group, and how each of its row groups begins."""
        fields = self._postings.index.fields
        starts = accumulate((len(firsts) for _, firsts in fields), initial=0)
        return {field: (start, firsts) for (field, firsts), start in zip(fields, starts, strict=False)}

    @cached_property
    def _postings(self) -> File[PostingsIndex]:
        file = self._open("postings", PostingsIndex)
        listed = sum(len(firsts) for _, firsts in file.index.fields)
        file.must(listed == file.groups, "its index is of other row groups")
        file.must(len(file.index.filters) in (0, file.groups), "its filters are of other row groups")
        return file

    @cached_property
    def _panes(self) -> File[PanesIndex]:
        file = self._open("panes", PanesIndex)
        file.must(len(file.index.groups) == file.groups, "its index is of other row groups")
        return file

    def _open(self, part: PartName, kind: type[Index]) -> File[Index]:
        source = self._sources.get(part)
        if source is None:
            message = f"{self.name} must have {part} and has none"
            raise CorruptData(message, object=file_name(self.name, part), check="identity")
        file = File(source(), kind)
        file.must(file.info == self.info, "it belongs to another companion")
        return file

    def _kept(self, name: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What is kept under this name, or is made now; two threads that are first together may both make it."""
        name = (self.info.incarnation, self.name, *name)
        found = self._decoded.get(name)
        if found is None:
            found = make()
            self._decoded.keep(name, found, found.nbytes)
        return found


def sources_of(
    name: str, paths: Mapping[PartName, Path], parts: Mapping[PartName, Part] | None = None
) -> dict[PartName, Callable[[], ParquetSource]]:
    """How the files of a companion are opened; where its parts are given, each is verified by its checksum."""
    return {
        part: partial(ParquetSource, path, file_name(name, part), sha256=parts[part].sha256 if parts else None)
        for part, path in paths.items()
    }


class _GroupRun(Run):
    """A row group of postings: its terms, its rows and its positions are decoded when they are asked for."""

    def __init__(self, file: File[PostingsIndex], group: int, kept: Callable[..., Any]) -> None:
        self._file, self._group, self._kept = file, group, kept
        self.terms = kept(("term", group), lambda: file.column(group, "term"))

    def lists(self) -> Lists:
        """The rows of all terms."""
        return flat(self._column("rows"))

    def positions(self) -> Int32s:
        """The position beside every row."""
        return flat(self._column("positions")).rows

    def _column(self, name: str) -> Any:
        return self._kept((name, self._group), lambda: self._file.column(self._group, name))
