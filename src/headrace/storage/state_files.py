"""States on the local disk: each is stored as a file with an index by key.

A state is fetched from the store when first asked for, and written into a small SQLite file. The name of a file has the
checksum of the state's object and that of the file itself. Files outlive a restart. Those that are held are not
removed, so the disk may hold more than the limit by what answers right now.

A file is verified as a whole when a process holds it for the first time. Later damage shows when a key is looked up:
every row has a checksum and a number, and the rows before and after a missing key must follow each other. A damaged
file is dropped and made anew.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any

import apsw
import msgspec
import xxhash

from headrace.errors import CorruptData, Unavailable
from headrace.format.object_names import state_key
from headrace.format.state import State
from headrace.format.state_file import StateReader
from headrace.storage.file_cache import CachedFile, FileCache, OpenFiles, download, verify_copy
from headrace.storage.files import create_private
from headrace.storage.objects import Objects

_SUFFIX, _SCRATCH = ".sums", "headrace-state-"
#: Files of earlier versions, whose rows have no checksums.
_OUTDATED = ".rows"
#: States whose files are open, and the page cache of each.
MAX_OPEN, _CACHE_KIB = 64, 512
#: Larger pages than usual are written sooner, and hold more rows than one.
_PAGE_BYTES = 8192
_DECODER = msgspec.msgpack.Decoder(dict[str, bytes])
#: Before what a key has: the CRC-32 of everything that follows and of the key, and the number of the row.
_PREFIX = Struct("<IQ")
_CHUNK_BYTES = 1 << 20
_FROM_KEY = "SELECT key, packed FROM rows WHERE key >= ? ORDER BY key LIMIT 1"
_LAST = "SELECT key, packed FROM rows ORDER BY key DESC LIMIT 1"
_BEFORE_KEY = "SELECT key, packed FROM rows WHERE key < ? ORDER BY key DESC LIMIT 1"


class StateFile:
    """One state, for looking keys up; from any thread. Its file is open while it is among those opened last."""

    def __init__(self, file: CachedFile, state: State, note_open: Callable[[StateFile], None]) -> None:
        """``note_open`` is called whenever the file is opened."""
        self.file, self.state = file, state
        self._note_open = note_open
        self._lock = threading.Lock()
        self._connection: apsw.Connection | None = None
        if file.remembered is None:
            with self._lock:
                #: How many rows the file has.
                file.remembered = self._row(_LAST)[0] + 1
            note_open(self)

    def get(self, key: bytes) -> dict[str, bytes] | None:
        """What a key has: the frame under the empty name, states by version; raises CorruptData for damage."""
        was_open = self._connection is not None
        try:
            with self._lock:
                return self._get(key)
        except (apsw.Error, msgspec.DecodeError, ValueError) as reason:  # ValueError: a text that is no UTF-8
            raise self._damaged(str(reason)) from reason
        finally:
            if not was_open:
                self._note_open(self)

    def close(self) -> None:
        """Close the file; it is opened again when a key is looked up."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _get(self, key: bytes) -> dict[str, bytes] | None:
        number, row = self._row(_FROM_KEY, key)
        if row is not None and row[0] == key:
            return _DECODER.decode(memoryview(row[1])[_PREFIX.size :])
        before, _ = self._row(_BEFORE_KEY, key)
        following = self.file.remembered if row is None else number
        if before + 1 != following:
            raise self._damaged("a row is missing")
        return None

    def _row(self, sql: str, *values: bytes) -> tuple[int, tuple[bytes, bytes] | None]:
        """A row and its number, -1 where there is none; raises CorruptData where its checksum differs."""
        connection = self._connection
        if connection is None:
            connection = self._connection = _open(self.file.path)
        row: Any = connection.execute(sql, values).fetchone()
        if row is None:
            return -1, None
        if not isinstance(row[0], bytes) or not isinstance(row[1], bytes) or len(row[1]) < _PREFIX.size:
            raise self._damaged("a row has another form")
        checksum, number = _PREFIX.unpack_from(row[1])
        if _row_checksum(*row) != checksum:
            raise self._damaged("the checksum of a row differs")
        return number, row

    def _damaged(self, what: str) -> CorruptData:
        path = self.file.path
        return CorruptData(f"{path.name}, which caches {self.state.name}, is damaged: {what}", object=path.name)


class StateFiles:
    """The files of all states that answer, and of others while there is room; for any thread."""

    def __init__(self, objects: Objects, directory: Path, *, limit_bytes: int) -> None:
        self._objects = objects
        self._directory = directory
        self._files = FileCache(directory, _SUFFIX, limit_bytes=limit_bytes)
        self._open: OpenFiles[StateFile, StateFile] = OpenFiles(MAX_OPEN)
        for path in directory.glob(f"*{_OUTDATED}"):
            path.unlink()
        for path in directory.glob(f"{_SCRATCH}*"):
            shutil.rmtree(path)

    @property
    def dropped(self) -> int:
        """Damaged files that were dropped."""
        return self._files.dropped

    @property
    def opened(self) -> int:
        """How many files are open."""
        return len(self._open)

    @contextmanager
    def fetched(self, stream: str, incarnation: str, state: State) -> Iterator[StateReader]:
        """A state for reading from its beginning to its end, verified."""
        key = state_key(stream, incarnation, state.name)
        local = self._objects.local_path(key)
        if local is not None:
            self._objects.head(key)  # says so where it is missing
            yield StateReader(local, key, sha256=state.sha256)
            return
        with self.scratch() as directory:
            path = directory / "state.parquet"
            download(self._objects, key, state.bytes, path, self._files.make_room)
            verify_copy(path, key, state.sha256)
            yield StateReader(path, key)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A temporary directory; one that a killed server leaves behind is removed at the next start."""
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=self._directory) as directory:
            yield Path(directory)

    def hold(self, stream: str, incarnation: str, state: State) -> StateFile:
        """The file of a state, verified, and made if need be; it stays until it is released."""
        make = partial(self._make, stream, incarnation, state)
        file = self._files.pin(state.sha256)
        try:
            self._files.ensure(file, state.bytes, make)
            try:
                return self._verified(file, state)
            except (CorruptData, apsw.Error, OSError, ValueError):
                self._files.replace(file, state.name, state.bytes, make)
                return StateFile(file, state, self._note_open)
        except BaseException:
            self._files.unpin(file)
            raise

    def release(self, held: StateFile) -> None:
        """Release a file that was held."""
        held.close()
        self._open.pop(held)
        self._files.unpin(held.file)

    def close_all(self) -> None:
        """Close all files; those that are held are opened again when a key is looked up."""
        for held in self._open.clear():
            held.close()

    def drop(self, held: StateFile) -> None:
        """Remove a damaged file, so that it is fetched again; it stays held until it is released."""
        self._files.drop(held.file, held.state.name)

    def prune(self, listed: Collection[str]) -> int:
        """Remove files of states whose checksums are not among these; returns how many of them are held."""
        return self._files.prune(listed)

    def _note_open(self, held: StateFile) -> None:
        """Close what was opened longest ago where too many files are open."""
        for oldest in self._open.put(held, held):
            oldest.close()

    def _verified(self, file: CachedFile, state: State) -> StateFile:
        if not file.verified:
            if file.path.stem != state.sha256 + _tag(_digest(file.path)):
                raise CorruptData(f"{file.path.name} is damaged: its checksum differs", object=file.path.name)
            file.verified = True
        return StateFile(file, state, self._note_open)

    def _make(self, stream: str, incarnation: str, state: State, path: Path) -> str:
        """Write the file of a state."""
        create_private(path)
        try:
            with self.fetched(stream, incarnation, state) as reader:
                _write(path, reader)
            return _tag(_digest(path))
        except apsw.Error as reason:
            raise Unavailable(f"{state.name} could not be kept: {reason}", reason="storage") from reason


def _open(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=4)
    connection.pragma("cache_size", -_CACHE_KIB)
    return connection


def _tag(digest: str) -> str:
    """The part of a file's name after the checksum of its object."""
    return f"-{digest}"


def _digest(path: Path) -> str:
    """The checksum of a whole file."""
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _row_checksum(key: bytes, row: bytes) -> int:
    """The checksum of a row: of its key, its number and what the key has."""
    return zlib.crc32(memoryview(row)[4:], zlib.crc32(key))


def _row(number: int, key: bytes, encoded: bytes) -> tuple[bytes, bytes]:
    """The row of a key in a file."""
    row = bytearray(_PREFIX.pack(0, number) + encoded)
    row[:4] = _row_checksum(key, bytes(row)).to_bytes(4, "little")
    return key, bytes(row)


def _write(path: Path, reader: StateReader) -> None:
    connection = apsw.Connection(str(path))
    try:
        connection.pragma("page_size", _PAGE_BYTES)
        connection.pragma("journal_mode", "off")
        connection.pragma("synchronous", "full")  # what a restart finds is whole
        with connection:
            connection.execute("CREATE TABLE rows (key BLOB PRIMARY KEY, packed BLOB NOT NULL) STRICT, WITHOUT ROWID")
            rows = (_row(number, key, encoded) for number, (key, encoded) in enumerate(reader.encoded_rows()))
            connection.executemany("INSERT INTO rows VALUES (?, ?)", rows)
    finally:
        connection.close()
