"""Writing a state: rows come sorted by key, one after the other, and go out in row groups."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.format.state.layout import FRAME, KEY, LIFE, METADATA, State, StateInfo, state_entry

ROWS = 16_384
_COMPRESSION_LEVEL = 1

#: A key and what it has: the frame under the empty name, states under their lives.
Packed = tuple[bytes, Mapping[str, bytes]]


def write(path: Path, info: StateInfo, name: str, rows: Iterable[Packed]) -> State:
    """Write a state, and tell how it is listed; the file is not synced."""
    sink, last = _Sink(path, info), b""
    for key, packed in rows:
        if sink.rows and key <= last:
            raise ValueError(f"the keys of {name} are out of order")
        sink.add(key, packed)
        last = key
    sink.close()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return state_entry(info, name, sink.rows, path.stat().st_size, digest)


class _Sink:
    """One file; rows are gathered until they make a row group."""

    def __init__(self, path: Path, info: StateInfo) -> None:
        self._lives = sorted(set(info.lives.values()))
        fields = [pa.field(name, pa.binary(), nullable=False) for name in (KEY, FRAME)]
        fields += [pa.field(LIFE + life, pa.binary()) for life in self._lives]
        self._schema = pa.schema(fields)
        self._info = info
        self._file = pq.ParquetWriter(
            str(path),
            self._schema,
            compression="zstd",
            compression_level=_COMPRESSION_LEVEL,
            use_dictionary=False,
            write_page_checksum=True,
            store_schema=False,
        )
        self._held: list[Packed] = []
        self.rows = 0

    def add(self, key: bytes, packed: Mapping[str, bytes]) -> None:
        """One more row."""
        self._held.append((key, packed))
        self.rows += 1
        if self.rows % ROWS == 0:
            self._flush()

    def close(self) -> None:
        """Write what is left, and the identity."""
        self._flush()
        self._file.add_key_value_metadata({METADATA: msgspec.json.encode(self._info)})
        self._file.close()

    def _flush(self) -> None:
        if self._held:
            keys, rows = zip(*self._held, strict=True)
            columns = [keys, *([row.get(life) for row in rows] for life in ("", *self._lives))]
            arrays = [pa.array(column, pa.binary()) for column in columns]
            self._file.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=ROWS)
            self._held = []
