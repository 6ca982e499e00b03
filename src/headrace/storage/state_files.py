"""States on the local disk: each becomes a file in which a key is looked up at once.

A state is fetched from the store when first asked for, and written into a small SQLite file under the checksum of its
object. Files outlive a restart. Those that are held are not removed, so the disk may hold more than the limit by what
answers right now.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from headrace.errors import Unavailable
from headrace.format.state.layout import State
from headrace.format.state.names import state_key
from headrace.storage.fetching import check, download
from headrace.storage.objects import Objects

if TYPE_CHECKING:
    from headrace.format.state.reader import Reader

_SUFFIX, _PARTIAL, _SCRATCH = ".rows", ".part", "headrace-state-"
_CACHE_KIB = 2048
#: Larger pages than usual are written sooner, and hold more rows than one.
_PAGE_BYTES = 8192
_DECODER = msgspec.msgpack.Decoder(dict[str, bytes])
_ENCODER = msgspec.msgpack.Encoder()


class StateFile:
    """One state, open for looking keys up; from any thread."""

    def __init__(self, path: Path, state: State) -> None:
        self.state = state
        self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=4)
        self._connection.pragma("cache_size", -_CACHE_KIB)

    def get(self, key: bytes) -> dict[str, bytes] | None:
        """What a key has: the frame under the empty name, states under their lives."""
        found: Any = self._connection.execute("SELECT packed FROM rows WHERE key = ?", (key,)).get
        return None if found is None else _DECODER.decode(found)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


class StateFiles:
    """The files of all states that answer, and of others while there is room; for any thread."""

    def __init__(self, objects: Objects, directory: Path, *, limit_bytes: int) -> None:
        self._objects = objects
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        #: By checksum, the one used longest ago first: how large a file is, and how often it is held.
        self._files: OrderedDict[str, list[int]] = OrderedDict()
        self._find_files()

    @contextmanager
    def fetched(self, stream: str, incarnation: str, state: State) -> Iterator[Reader]:
        """A state for reading from its beginning to its end."""
        from headrace.format.state.reader import Reader

        key = state_key(stream, incarnation, state.name)
        local = self._objects.local_path(key)
        if local is not None:
            self._objects.head(key)  # says so where it is missing
            yield Reader(local, key)
            return
        with self.scratch() as directory:
            path = directory / "state.parquet"
            download(self._objects, key, state.bytes, path, self._make_room)
            check(path, key, state.sha256)
            yield Reader(path, key)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory for a while; what a killed server leaves in it goes when the next one starts."""
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=self._directory) as directory:
            yield Path(directory)

    def hold(self, stream: str, incarnation: str, state: State) -> StateFile:
        """The file of a state, made if need be; it stays until it is released."""
        with self._lock:
            known = self._files.get(state.sha256)
            if known is not None:
                known[1] += 1
                self._files.move_to_end(state.sha256)
        path = self._directory / (state.sha256 + _SUFFIX)
        if known is None:
            size = self._make(stream, incarnation, state, path)
            with self._lock:
                entry = self._files.setdefault(state.sha256, [size, 0])
                entry[1] += 1
                self._shrink(self._limit_bytes)
        return StateFile(path, state)

    def release(self, file: StateFile) -> None:
        """A file is not needed any more."""
        file.close()
        with self._lock:
            self._files[file.state.sha256][1] -= 1
            self._shrink(self._limit_bytes)

    def prune(self, listed: Collection[str]) -> int:
        """Remove files of states whose checksums are not among these; answers how many of them are held."""
        with self._lock:
            unlisted = [sha256 for sha256 in self._files if sha256 not in listed]
            held = [sha256 for sha256 in unlisted if self._files[sha256][1]]
            for sha256 in set(unlisted).difference(held):
                del self._files[sha256]
                (self._directory / (sha256 + _SUFFIX)).unlink(missing_ok=True)
            return len(held)

    def _find_files(self) -> None:
        """Know what an earlier run left behind, the oldest first; files that were cut short go."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in self._directory.glob(f"*{_PARTIAL}"):
            path.unlink()
        for path in self._directory.glob(f"{_SCRATCH}*"):
            shutil.rmtree(path)
        found = [(path.stat(), path.stem) for path in self._directory.glob(f"*{_SUFFIX}")]
        for stat, sha256 in sorted(found, key=lambda item: item[0].st_mtime_ns):
            self._files[sha256] = [stat.st_size, 0]

    def _make(self, stream: str, incarnation: str, state: State, path: Path) -> int:
        """Write the file of a state, whole or not at all."""
        number, name = tempfile.mkstemp(suffix=_PARTIAL, dir=self._directory)
        os.close(number)
        partial = Path(name)
        try:
            with self.fetched(stream, incarnation, state) as reader:
                _write(partial, reader)
            partial.replace(path)
        except apsw.Error as reason:
            raise Unavailable(f"{state.name} could not be kept: {reason}", reason="storage") from reason
        finally:
            partial.unlink(missing_ok=True)
        return path.stat().st_size

    def _make_room(self) -> None:
        with self._lock:
            self._shrink(0)

    def _shrink(self, limit_bytes: int) -> None:
        """Remove what was used longest ago until the rest is within the limit; nothing that is held."""
        total = sum(size for size, _ in self._files.values())
        for sha256 in [sha256 for sha256, (_, pins) in self._files.items() if not pins]:
            if total <= limit_bytes:
                return
            total -= self._files.pop(sha256)[0]
            (self._directory / (sha256 + _SUFFIX)).unlink(missing_ok=True)


def _write(path: Path, reader: Reader) -> None:
    connection = apsw.Connection(str(path))
    try:
        connection.pragma("page_size", _PAGE_BYTES)
        connection.pragma("journal_mode", "off")
        connection.pragma("synchronous", "full")  # what a restart finds is whole
        with connection:
            connection.execute("CREATE TABLE rows (key BLOB PRIMARY KEY, packed BLOB NOT NULL) STRICT, WITHOUT ROWID")
            rows = ((key, _ENCODER.encode(packed)) for key, packed in reader.rows())
            connection.executemany("INSERT INTO rows VALUES (?, ?)", rows)
    finally:
        connection.close()
