"""Writing the files of states, and reading them: rows sorted by key, in row groups.

Every failure of the bytes of a file is ``CorruptData`` and names the object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.format.parquet_file import ParquetSource, intact
from headrace.format.state import FRAME, KEY, METADATA, VERSION_PREFIX, State, StateInfo, decode_info, state_entry


class StateReader:
    """One file; it stays open while rows are taken from it."""

    def __init__(self, path: Path, name: str, *, sha256: str | None = None) -> None:
        """Where ``sha256`` is known, the whole file is verified."""
        self._name = name
        with intact(self._name):
            self._source = ParquetSource(path, name, sha256=sha256)
            self.info = decode_info((self._source.metadata.metadata or {}).get(METADATA), name)

    def rows(self, version_ids: Collection[str] | None = None) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        """Every key in order, with its frame under "" and the states of some feature versions, or of all."""
        for keys, columns in self.columns(version_ids):
            names = tuple(columns)
            rows = (dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True))
            if any(None in column for column in columns.values()):
                rows = ({version_id: state for version_id, state in row.items() if state is not None} for row in rows)
            yield from zip(keys, rows, strict=True)

    def encoded_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key in order, with the MessagePack of what `rows` has for it."""
        for group in range(self._source.metadata.num_row_groups):
            with intact(self._name):
                table = self._source.table(group, self._source.metadata.schema.names)
            while len(table):
                part = table.slice(0, _ENCODED_AT_ONCE)
                while part.nbytes > _MAX_ENCODED_BYTES and len(part) > 1:
                    part = part.slice(0, len(part) // 2)
                yield from zip(part.column(KEY).to_pylist(), _encode_rows(part), strict=True)
                table = table.slice(len(part))

    def columns(self, version_ids: Collection[str] | None = None) -> Iterator[tuple[list[bytes], dict[str, list[Any]]]]:
        """The same in batches of keys: the keys in order, and a column by version id, None where a key has no state."""
        held = sorted(set(self.info.lives.values()))
        chosen = [version_id for version_id in held if version_ids is None or version_id in version_ids]
        for group in range(self._source.metadata.num_row_groups):
            keys, *columns = self._columns(group, chosen)
            yield keys, dict(zip(("", *chosen), columns, strict=True))

    def _columns(self, group: int, version_ids: list[str]) -> list[list[bytes]]:
        with intact(self._name):
            names = [KEY, FRAME, *(VERSION_PREFIX + version_id for version_id in version_ids)]
            table = self._source.table(group, names)
            return [table.column(name).to_pylist() for name in names]


def _encode_rows(table: pa.Table) -> list[bytes]:
    """Each row as MessagePack of a map from names to bytes, without what is null."""
    columns = [(name, table.column(name).combine_chunks()) for name in table.column_names if name != KEY]
    count = sum(column.is_valid().to_numpy(zero_copy_only=False).astype(">u2") for _, column in columns)
    heads = _fixed(b"\xde", np.asarray(count, ">u2"))
    members = [_member("" if name == FRAME else name.removeprefix(VERSION_PREFIX), column) for name, column in columns]
    empty = pa.scalar(b"", pa.binary())
    options = {"null_handling": "replace", "null_replacement": b""}
    rows: list[bytes] = pc.binary_join_element_wise(heads, *members, empty, **options).to_pylist()
    return rows


def _member(name: str, column: pa.Array) -> pa.Array:
    """A member of each row's map: its name, how many bytes it has, and these; null for null."""
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy()
    heads = _fixed(msgspec.msgpack.encode(name) + b"\xc6", lengths.astype(">u4"))
    return pc.binary_join_element_wise(heads, column, pa.scalar(b"", pa.binary()))


def _fixed(prefix: bytes, numbers: Any) -> pa.Array:
    """The same bytes and then a number, for each."""
    width = len(prefix) + numbers.itemsize
    rows = np.empty((len(numbers), width), np.uint8)
    rows[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    rows[:, len(prefix) :] = np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), -1)
    offsets = np.arange(0, (len(numbers) + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


#: Rows that are encoded together, and their bytes: an Arrow array holds up to 2 GiB.
_ENCODED_AT_ONCE, _MAX_ENCODED_BYTES = 1024, 1 << 28
ROWS = 16_384
_COMPRESSION_LEVEL = 1

#: A key and what it has: the frame under the empty name, states under the ids of their feature versions.
Packed = tuple[bytes, Mapping[str, bytes]]


class PackedColumns(NamedTuple):
    """The same of many keys, in order, as binary columns; null where a key has no state. Without keys there are none.

    The columns are Arrow arrays under the names that `Packed` has them under.
    """

    keys: Any
    columns: Mapping[str, Any]


def write(path: Path, info: StateInfo, name: str, rows: Iterable[Packed] | PackedColumns) -> State:
    """Write a state, and return its entry in metadata; the file is not synced."""
    sink = _Sink(path, info, name)
    if isinstance(rows, PackedColumns):
        sink.add_columns(rows)
    else:
        for key, packed in rows:
            sink.add(key, packed)
    sink.close()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return state_entry(info, name, sink.rows, path.stat().st_size, digest)


class _Sink:
    """One file; rows are gathered until they make a row group."""

    def __init__(self, path: Path, info: StateInfo, name: str) -> None:
        self._name, self._last = name, b""
        self._version_ids = sorted(set(info.lives.values()))
        fields = [pa.field(name, pa.binary(), nullable=False) for name in (KEY, FRAME)]
        fields += [pa.field(VERSION_PREFIX + version_id, pa.binary()) for version_id in self._version_ids]
        self._schema = pa.schema(fields)
        self._info = info
        self._file = pq.ParquetWriter(
            str(path),
            self._schema,
            compression="zstd",
            compression_level=_COMPRESSION_LEVEL,
            use_dictionary=False,
            write_statistics=[KEY],
            write_page_checksum=True,
            store_schema=False,
        )
        self._held: list[Packed] = []
        self.rows = 0

    def add(self, key: bytes, packed: Mapping[str, bytes]) -> None:
        """One more row."""
        if self.rows and key <= self._last:
            raise ValueError(f"the keys of {self._name} are out of order")
        self._last = key
        self._held.append((key, packed))
        self.rows += 1
        if self.rows % ROWS == 0:
            self._flush()

    def add_columns(self, packed: PackedColumns) -> None:
        """All rows."""
        keys = packed.keys
        if not len(keys):
            return
        if not pc.all(pc.greater(keys[1:], keys[:-1]), min_count=0).as_py():
            raise ValueError(f"the keys of {self._name} are out of order")
        columns = [packed.columns[version_id] for version_id in ("", *self._version_ids)]
        self._file.write_table(pa.Table.from_arrays([keys, *columns], schema=self._schema), row_group_size=ROWS)
        self.rows += len(keys)

    def close(self) -> None:
        """Write what is left, and the identity."""
        self._flush()
        self._file.add_key_value_metadata({METADATA: msgspec.json.encode(self._info)})
        self._file.close()

    def _flush(self) -> None:
        if self._held:
            keys, rows = zip(*self._held, strict=True)
            columns = [keys, *([row.get(version_id) for row in rows] for version_id in ("", *self._version_ids))]
            arrays = [pa.array(column, pa.binary()) for column in columns]
            self._file.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=ROWS)
            self._held = []
