"""An open Parquet file: verified when it is opened, and replaced with a fresh copy where it turns out to be damaged.

Pages have checksums of their own, which every read verifies. The footer has none, so its checksum is remembered after
the whole file was verified, and compared when the file is opened again. The file stays open, so reads go on after it
was removed. It is not mapped: mapped pages would count as memory of the process.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import CorruptData

T = TypeVar("T")

#: The length of the footer and the magic number, with which every Parquet file ends.
_TRAILER_BYTES = 8


class OpenParquet(NamedTuple):
    """An open file; ``parquet`` may be used by one thread at a time, ``source`` by any number."""

    source: Any
    parquet: Any
    lock: threading.Lock
    footer_checksum: int


class ParquetSource:
    """One Parquet file, for any thread; every failure of its bytes is ``CorruptData`` and names the object."""

    def __init__(
        self,
        source: Path | bytes,
        name: str,
        *,
        sha256: str | None = None,
        footer_checksum: int | None = None,
        replace: Callable[[], Path] | None = None,
    ) -> None:
        """Verify the whole file against ``sha256``, or only its footer where the checksum of that is known.

        ``replace`` drops a damaged copy and makes a fresh one.
        """
        self.name = name
        self._sha256, self._replace = sha256, replace
        self._replacing = threading.Lock()
        try:
            self._opened = self._open(source, footer_checksum)
        except CorruptData:
            if replace is None:
                raise
            self._opened = self._open(replace(), None)

    @property
    def metadata(self) -> Any:
        """The footer."""
        return self._opened.parquet.metadata

    @property
    def schema(self) -> Any:
        """The Arrow schema."""
        return self._opened.parquet.schema_arrow

    @property
    def footer_checksum(self) -> int:
        """The checksum of the footer, by which the file is verified when it is opened again."""
        return self._opened.footer_checksum

    def table(self, group: int, columns: list[str] | None = None) -> Any:
        """Some columns of a row group, or all."""
        return self.ask(lambda opened: _row_group(opened, group, columns))

    def ask(self, question: Callable[[OpenParquet], T]) -> T:
        """Run a function on the open file, and once more where a damaged copy was replaced."""
        opened = self._opened
        try:
            with intact(self.name):
                return question(opened)
        except CorruptData:
            if self._replace is None:
                raise
            with self._replacing:
                if self._opened is opened:
                    self._opened = self._open(self._replace(), None)
        with intact(self.name):
            return question(self._opened)

    def _open(self, source: Path | bytes, footer_checksum: int | None) -> OpenParquet:
        opened = pa.BufferReader(source) if isinstance(source, bytes) else pa.OSFile(str(source))
        expected_sha256 = self._sha256 if footer_checksum is None else None
        if expected_sha256 is not None and hashlib.file_digest(opened, "sha256").hexdigest() != expected_sha256:
            raise self._different()
        with intact(self.name):
            checksum = _footer_checksum(opened)
            if footer_checksum not in (None, checksum):
                raise self._different()
            parquet = pq.ParquetFile(opened, pre_buffer=False, page_checksum_verification=True)
        return OpenParquet(opened, parquet, threading.Lock(), checksum)

    def _different(self) -> CorruptData:
        message = f"{self.name} is not what was written: its checksum differs"
        return CorruptData(message, object=self.name, check="checksum")


def _row_group(opened: OpenParquet, group: int, columns: list[str] | None) -> Any:
    with opened.lock:
        table = opened.parquet.read_row_group(group, columns=columns, use_threads=False)
    # Where one column's name goes on with that of another and a dot, Parquet means both.
    return table if columns is None else table.select(columns)


def _footer_checksum(source: Any) -> int:
    """The CRC-32 of a file's footer; 0 where the file is too short to have one, which the Parquet library refuses."""
    size = source.size()
    if size < _TRAILER_BYTES:
        return 0
    length = int.from_bytes(source.read_at(4, size - _TRAILER_BYTES), "little") + _TRAILER_BYTES
    return zlib.crc32(source.read_at(min(length, size), max(0, size - length)))


@contextmanager
def intact(name: str) -> Iterator[None]:
    """Raise CorruptData, naming the file, for whatever the Parquet library or a decoder finds wrong with it."""
    try:
        yield
    except (pa.ArrowException, msgspec.DecodeError, OSError, ValueError, LookupError) as reason:
        raise CorruptData(f"{name} is damaged: {reason}", object=name, check="parquet") from reason
