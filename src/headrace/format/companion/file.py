"""A Parquet file of a companion while it is read: its identity and index at once, row groups when asked for.

Several threads may use it. It stays open, so it works on after the file was removed; it is not mapped, since mapped
pages would count as memory of the process. Every failure of its bytes is ``CorruptData`` and names the object.
"""

from __future__ import annotations

import threading
import zlib
from pathlib import Path
from typing import Any, Generic

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import CorruptData
from headrace.format.companion import index as indexes
from headrace.format.companion.index import Index, Place
from headrace.format.companion.layout import INDEX, METADATA, decode_info
from headrace.format.companion.postings import one_array
from headrace.format.intact import intact

# What an open footer takes for each column of each row group, measured.
_CHUNK_FOOTPRINT = 1024


class File(Generic[Index]):
    """One file, with an index of one kind."""

    def __init__(self, path: Path, name: str, kind: type[Index]) -> None:
        self.name = name
        self._lock = threading.Lock()
        with intact(self.name):
            self._source = pa.OSFile(str(path))
            self._file = pq.ParquetFile(self._source, pre_buffer=False, page_checksum_verification=True)
            footer = self._file.metadata
            metadata = footer.metadata or {}
            self.info = decode_info(metadata.get(METADATA), name)
            self.index = indexes.decode(metadata[INDEX], kind)
        self.groups: int = footer.num_row_groups
        self.rows: int = footer.num_rows
        self.schema = self._file.schema_arrow
        #: About how much memory the open file takes.
        self.footprint = _CHUNK_FOOTPRINT * (1 + self.groups) * footer.num_columns

    def column(self, group: int, name: str) -> Any:
        """A column of a row group, as one Arrow array."""
        return one_array(self.table(group, [name]).column(name))

    def table(self, group: int, names: list[str] | None = None) -> Any:
        """Some columns of a row group, or all."""
        with self._lock, intact(self.name):
            # Where one column's name goes on with that of another and a dot, Parquet means both.
            table = self._file.read_row_group(group, columns=names, use_threads=False)
            return table if names is None else table.select(names)

    def bytes_at(self, place: Place) -> bytes:
        """Bytes that belong to no row group."""
        with intact(self.name):
            found: bytes = self._source.read_at(place.size, place.offset)
        self.must(zlib.crc32(found) == place.checksum, "bytes between its row groups are not what was written")
        return found

    def must(self, holds: bool, what: str) -> None:
        """Raise CorruptData unless something holds."""
        if not holds:
            raise CorruptData(f"{self.name} is damaged: {what}", object=self.name, check="identity")
