"""A Parquet file of a companion while it is written: row groups go out one by one, the index and identity last."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.format.companion import index as indexes
from headrace.format.companion.index import Place
from headrace.format.companion.layout import INDEX, METADATA, Info, Part

_COMPRESSION_LEVEL = 1
# A column of a row group is one page, and compresses as one.
_PAGE_BYTES = 64 * 1024 * 1024


class Sink:
    """One file; every table becomes a row group."""

    def __init__(self, path: Path, info: Info, schema: Any, *, encodings: dict[str, str], statistics: bool) -> None:
        self._path, self._info = path, info
        self._out = pa.OSFile(str(path), "wb")
        self._file = pq.ParquetWriter(
            self._out,
            schema,
            compression="zstd",
            compression_level=_COMPRESSION_LEVEL,
            use_dictionary=[path for path in map(_leaf, schema) if path not in encodings],
            column_encoding=encodings,
            write_statistics=statistics,
            write_page_checksum=True,
            data_page_size=_PAGE_BYTES,
            store_schema=False,
        )

    def write(self, table: Any) -> None:
        """Append a row group."""
        self._file.write_table(table, row_group_size=max(1, table.num_rows))

    def put(self, content: bytes) -> Place:
        """Append bytes that belong to no row group, and tell where; readers of Parquet pass over them."""
        place = Place(self._out.tell(), len(content), zlib.crc32(content))
        self._out.write(content)
        return place

    def close(self, index: msgspec.Struct) -> Part:
        """Finish the file, and tell what was written; it is not synced."""
        self._file.add_key_value_metadata({METADATA: msgspec.json.encode(self._info), INDEX: indexes.encode(index)})
        self._file.close()
        self._out.close()
        with self._path.open("rb") as file:
            return Part(self._path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _leaf(field: Any) -> str:
    """How Parquet calls what a column consists of."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else str(field.name)
