"""A Parquet file of a companion while it is read: its identity and index at once, row groups when asked for."""

from __future__ import annotations

import zlib
from typing import Any, Generic

from headrace.errors import CorruptData
from headrace.format.companion import index as indexes
from headrace.format.companion.index import Index, Place
from headrace.format.companion.layout import INDEX, METADATA, decode_info
from headrace.format.companion.postings import one_array
from headrace.format.intact import intact
from headrace.format.parquet_file import Opened, ParquetSource

# What an open footer takes for each column of each row group, measured.
_CHUNK_FOOTPRINT = 1024


class File(Generic[Index]):
    """One file, with an index of one kind; for any thread."""

    def __init__(self, source: ParquetSource, kind: type[Index]) -> None:
        self.name = source.name
        self._source = source
        with intact(self.name):
            footer = source.metadata
            metadata = footer.metadata or {}
            self.info = decode_info(metadata.get(METADATA), self.name)
            self.index = indexes.decode(metadata[INDEX], kind)
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

    def bytes_at(self, place: Place) -> bytes:
        """Bytes that belong to no row group."""
        return self._source.ask(lambda opened: _bytes_at(opened, place))

    def must(self, holds: bool, what: str) -> None:
        """Raise CorruptData unless something holds."""
        if not holds:
            raise CorruptData(f"{self.name} is damaged: {what}", object=self.name, check="identity")


def _bytes_at(opened: Opened, place: Place) -> bytes:
    found: bytes = opened.source.read_at(place.size, place.offset)
    if zlib.crc32(found) != place.checksum:
        raise ValueError("bytes between its row groups are not what was written")
    return found
