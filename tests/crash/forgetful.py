"""A disk that forgets: what was not synced when the power fails may be gone, whole or in part, in any order.

SQLite runs on it as on any other; every write, truncation, sync and removal is recorded. From the record, the
contents after a power failure at any moment can be built, as often as one likes.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from headrace.storage.page_checksums import checksum_vfs

SECTOR = 512
ANY_PART = (0.0, 0.3, 0.7, 0.95, 1.0)
NOTHING = (0.0,)


class Event(NamedTuple):
    """Something that happened to a file."""

    kind: str
    name: str
    at: int = 0
    data: bytes = b""


class Disk(apsw.VFS):
    """A file system for SQLite with a record of everything that was done to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[Event] = []
        self.fail: dict[str, apsw.Error] = {}
        super().__init__(name, checksum_vfs())

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        """A file that is recorded, or one without a name: what SQLite keeps there is for nobody afterwards."""
        return apsw.VFSFile(checksum_vfs(), name, flags) if name is None else _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.events.append(Event("delete", Path(filename).name))
        super().xDelete(filename, syncdir)

    def record(self, event: Event) -> None:
        """Remember what is about to happen, unless it is to fail: ``fail`` says what, and with which error."""
        if event.kind in self.fail:
            raise self.fail[event.kind]
        self.events.append(event)

    def after_power_failure(
        self, moment: int, directory: Path, chance: random.Random, survives: tuple[float, ...] = ANY_PART
    ) -> None:
        """Write the files as they may be found if the power fails after so many events.

        ``survives`` says which shares of the unsynced writes may have reached the disk.
        """
        files: dict[str, _Content] = {}
        for event in self.events[:moment]:
            if event.kind == "delete":
                files.pop(event.name, None)
            else:
                files.setdefault(event.name, _Content()).happen(event)
        directory.mkdir(parents=True)
        for name, content in files.items():
            left = content.left(chance, chance.choice(survives))
            if left is not None:
                (directory / name).write_bytes(left)


class _File(apsw.VFSFile):
    """Passes everything on to the real file system and tells the disk."""

    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._name = Path(name.filename() if isinstance(name, apsw.URIFilename) else name).name
        super().__init__(checksum_vfs(), name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.record(Event("write", self._name, offset, bytes(data)))
        super().xWrite(data, offset)
        if self._name.endswith(".db"):  # what was written has a checksum, which the data did not have
            self._disk.events[-1] = self._disk.events[-1]._replace(data=self.xRead(len(data), offset))

    def xTruncate(self, newsize: int) -> None:
        self._disk.record(Event("truncate", self._name, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._disk.record(Event("sync", self._name))
        super().xSync(flags)


class _Content:
    """A file: what is surely on the disk, and what was done since."""

    def __init__(self) -> None:
        self._synced: bytearray | None = None
        self._since: list[Event] = []

    def happen(self, event: Event) -> None:
        if event.kind == "sync":
            self._synced = self._synced or bytearray()
            for earlier in self._since:
                _apply(self._synced, earlier)
            self._since = []
        else:
            self._since.append(event)

    def left(self, chance: random.Random, survives: float) -> bytes | None:
        """What survives: all that was synced, and a share of the rest, some of it torn."""
        if self._synced is None and chance.random() >= survives:
            return None
        content = bytearray(self._synced or b"")
        for event in self._since:
            if chance.random() < survives:
                _apply(content, event)
            elif event.kind == "write" and chance.random() < survives:
                torn = chance.randrange(0, len(event.data) + 1, SECTOR)
                _apply(content, event._replace(data=event.data[:torn]))
        return bytes(content)


def _apply(content: bytearray, event: Event) -> None:
    if event.kind == "truncate":
        del content[event.at :]
    elif event.data:
        content.extend(bytes(max(0, event.at - len(content))))
        content[event.at : event.at + len(event.data)] = event.data
