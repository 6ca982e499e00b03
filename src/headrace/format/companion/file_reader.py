"""Reading a companion from local files: the footers first, then the row groups that a look-up needs."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Generic

from headrace.errors import CorruptData
from headrace.format import bloom
from headrace.format.companion.layout import (
    INDEX,
    METADATA,
    ByteRange,
    ColumnsIndex,
    Companion,
    Index,
    PanesIndex,
    PartFile,
    PartName,
    PostingsIndex,
    decode_index,
    decode_info,
    groups_holding,
)
from headrace.format.companion.postings import Block, Int32s, Lists, PostingRun, flat, one_array
from headrace.format.companion.reader import ColumnGroup, CompanionReader
from headrace.format.decoded_columns import LruCache
from headrace.format.object_names import file_name
from headrace.format.parquet_file import OpenParquet, ParquetSource, intact

# What an open footer takes for each column of each row group, measured.
_CHUNK_FOOTPRINT = 1024


class CompanionFile(Generic[Index]):
    """One file, with an index of one kind; for any thread."""

    def __init__(self, source: ParquetSource, kind: type[Index]) -> None:
        self.name = source.name
        self._source = source
        with intact(self.name):
            footer = source.metadata
            metadata = footer.metadata or {}
            self.info = decode_info(metadata.get(METADATA), self.name)
            self.index = decode_index(metadata[INDEX], kind)
        self.groups: int = footer.num_row_groups
        self.rows: int = footer.num_rows
        self.schema = source.schema
        #: About how much memory the open file takes.
        self.footprint = _CHUNK_FOOTPRINT * (1 + self.groups) * footer.num_columns

    def column(self, group: int, name: str) -> Any:
        """A column of a row group, as one Arrow array."""
        return one_array(self.table(group, [name]).column(name))

    def table(self, group: int, names: list[str] | None = None) -> Any:
        """Some columns of a row group, or all."""
        return self._source.table(group, names)

    def bytes_at(self, byte_range: ByteRange) -> bytes:
        """Bytes that belong to no row group."""
        return self._source.ask(lambda opened: _bytes_at(opened, byte_range))

    def must(self, holds: bool, what: str) -> None:
        """Raise CorruptData unless something holds."""
        if not holds:
            raise CorruptData(f"{self.name} is damaged: {what}", object=self.name, check="identity")


def _bytes_at(opened: OpenParquet, byte_range: ByteRange) -> bytes:
    content: bytes = opened.source.read_at(byte_range.size, byte_range.offset)
    if zlib.crc32(content) != byte_range.checksum:
        raise ValueError("bytes between its row groups are not what was written")
    return content


class FileCompanion(CompanionReader):
    """A companion in files; thread-safe; what was decoded is kept in the cache that all companions share.

    ``name`` must never name other bytes. Postings and panes are opened on first use.
    """

    def __init__(
        self, sources: Mapping[PartName, Callable[[], ParquetSource]], *, name: str, decoded: LruCache
    ) -> None:
        """``sources`` open the file of each part."""
        self.name = name
        self._decoded = decoded
        self._sources = sources
        self._columns = CompanionFile(sources["columns"](), ColumnsIndex)
        super().__init__(self._columns.info)
        rows = self._columns.index.rows
        self._columns.must(len(rows) == self._columns.groups, "its index is of other row groups")
        self._columns.must(sum(rows) == self._columns.rows == self.info.count, "it has another number of rows")
        self._edges = [*pairwise(accumulate(rows, initial=0))]
        self.schema = self._columns.schema

    @classmethod
    def opened(cls, directory: Path, companion: Companion, decoded: LruCache) -> FileCompanion:
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
    def max_files(self) -> int:
        """How many files it has open at most: those of its parts."""
        return len(self._sources)

    def column(self, name: str, group: int) -> Any:
        """A stored column of one row group."""
        if name not in self._columns.index.zones:
            raise KeyError(name)
        return self._cached(("column", name, group), lambda: self._columns.column(group, name))

    def groups(self, name: str) -> Sequence[ColumnGroup]:
        """The row groups of a stored column."""
        return [
            ColumnGroup(*edges, *zone) for edges, zone in zip(self._edges, self._columns.index.zones[name], strict=True)
        ]

    def panes(self, rollup: str, interval: int) -> Iterator[Any] | None:
        """The panes of a rollup with this interval, row group by row group, or None where they are not held."""
        if rollup not in self.info.rollups:
            return None
        file = self._panes
        numbers = (number for number, pane_group in enumerate(file.index.groups) if pane_group == (rollup, interval))
        return (self._cached(("panes", number), partial(file.table, number)) for number in numbers)

    def column_tables(self) -> Iterator[Any]:
        """All stored columns, row group by row group, not cached."""
        return map(self._columns.table, range(self._columns.groups))

    def posting_groups(self, field: str) -> range:
        """The row groups that hold the postings of a field."""
        first, firsts = self._posted.get(field, (0, []))
        return range(first, first + len(firsts))

    def block(self, group: int) -> Block:
        """All of one row group of postings, not cached."""
        return Block.of(self._postings.table(group))

    def _runs(
        self, field: str, low: str, beyond: Callable[[str], bool], *, exact: bool = False
    ) -> Iterator[PostingRun]:
        first, firsts = self._posted.get(field, (0, []))
        for number in groups_holding(firsts, low, beyond):
            if not exact or self._may_hold(first + number, low):
                yield _GroupRun(self._postings, first + number, self._cached)

    def _may_hold(self, group: int, term: str) -> bool:
        """Whether a row group of postings may have a term."""
        places = self._postings.index.filters
        filter_range = places[group] if places else None
        if filter_range is None:
            return True
        with intact(self._postings.name):
            return bloom.may_hold_term(self._postings.bytes_at(filter_range), term)

    @cached_property
    def _posted(self) -> dict[str, tuple[int, list[str]]]:
        """For every field its first row group, and how each of its row groups begins."""
        fields = self._postings.index.fields
        starts = accumulate((len(firsts) for _, firsts in fields), initial=0)
        return {field: (start, firsts) for (field, firsts), start in zip(fields, starts, strict=False)}

    @cached_property
    def _postings(self) -> CompanionFile[PostingsIndex]:
        file = self._open("postings", PostingsIndex)
        listed = sum(len(firsts) for _, firsts in file.index.fields)
        file.must(listed == file.groups, "its index is of other row groups")
        file.must(len(file.index.filters) in (0, file.groups), "its filters are of other row groups")
        return file

    @cached_property
    def _panes(self) -> CompanionFile[PanesIndex]:
        file = self._open("panes", PanesIndex)
        file.must(len(file.index.groups) == file.groups, "its index is of other row groups")
        return file

    def _open(self, part: PartName, kind: type[Index]) -> CompanionFile[Index]:
        source = self._sources.get(part)
        if source is None:
            message = f"{self.name} must have {part} and has none"
            raise CorruptData(message, object=file_name(self.name, part), check="identity")
        file = CompanionFile(source(), kind)
        file.must(file.info == self.info, "it belongs to another companion")
        return file

    def _cached(self, name: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The cached value of this name, or a new one; two threads that are first together may both make it."""
        name = (self.info.incarnation, self.name, *name)
        array = self._decoded.get(name)
        if array is None:
            array = make()
            self._decoded.put(name, array, array.nbytes)
        return array


def sources_of(
    name: str, paths: Mapping[PartName, Path], parts: Mapping[PartName, PartFile] | None = None
) -> dict[PartName, Callable[[], ParquetSource]]:
    """How the files of a companion are opened; where its parts are given, each is verified by its checksum."""
    return {
        part: partial(ParquetSource, path, file_name(name, part), sha256=parts[part].sha256 if parts else None)
        for part, path in paths.items()
    }


class _GroupRun(PostingRun):
    """A row group of postings: its terms, its rows and its positions are decoded on first use."""

    def __init__(self, file: CompanionFile[PostingsIndex], group: int, kept: Callable[..., Any]) -> None:
        self._file, self._group, self._cached = file, group, kept
        self.terms = kept(("term", group), lambda: file.column(group, "term"))

    def lists(self) -> Lists:
        """The rows of all terms."""
        return flat(self._column("rows"))

    def positions(self) -> Int32s:
        """The position beside every row."""
        return flat(self._column("positions")).rows

    def _column(self, name: str) -> Any:
        return self._cached((name, self._group), lambda: self._file.column(self._group, name))
