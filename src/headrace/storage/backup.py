"""Backups: the SQLite state of a data directory as of one moment, taken while a server may be writing to it.

A backup is a directory: ``headrace.db``, ``keys.db`` where there are keys, ``objects/`` where the object store lies in
the data directory, and ``backup.json``, which names every file with its checksum. It appears whole or not at all. The
objects are copied after the database, so they are as new or newer: that is what a restored directory expects.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from headrace import decoding
from headrace.config import StorageConfig
from headrace.errors import Conflict, CorruptData, NotFound
from headrace.format import manifest as manifests
from headrace.format import object_names
from headrace.format.object_names import companion_key, state_key
from headrace.storage import database
from headrace.storage.database import SQLiteError
from headrace.storage.files import DIRECTORY, copy_private, create_private, fsync_path, make_directories, write_private
from headrace.storage.lock import DirectoryLock, make_directory
from headrace.storage.log_damage import mark_restored, refuse_log_damage
from headrace.storage.node import EPOCHS, NODES, skip_epochs
from headrace.storage.objects import ObjectMissing, Objects
from headrace.storage.page_checksums import connect_to_copy
from headrace.types import Clock

VERSION = 1
LOG, KEYS, OBJECTS, CONTENTS = "headrace.db", "keys.db", "objects", "backup.json"
_CACHE_BYTES = 8 * 1024 * 1024
_STEP_PAGES = 1_000
_TRIES = 5

#: Called with the bytes that are done, and the bytes that are known to be copied.
OnProgress = Callable[[int, int], None]


class CopiedFile(msgspec.Struct, frozen=True):
    """One file of a backup."""

    bytes: int
    sha256: str


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds: its databases, how many objects, and which store has the others."""

    headrace: str = "backup"
    version: int = VERSION
    taken_us: int
    object_store: str
    files: dict[str, CopiedFile]
    objects: int = 0
    object_bytes: int = 0
    #: Objects that were damaged or missing when it was taken.
    problems: tuple[str, ...] = ()


class _Progress:
    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self.done = self.total = 0

    def expect(self, size: int) -> None:
        self.total += size

    def advance(self, size: int) -> None:
        self.done += size
        self._on_progress(self.done, self.total)


def back_up(data_dir: Path, object_store: str, target: Path, clock: Clock, on_progress: OnProgress) -> Backup:
    """Copy the state of a data directory to a new directory; ``object_store`` is empty where it is inside."""
    if not (data_dir / LOG).exists():
        raise NotFound(f"{data_dir} holds no log to back up", data_dir=str(data_dir))
    if target.is_symlink():
        raise Conflict(f"{target} is a symbolic link: name the directory that it leads to", directory=str(target))
    refuse_if_used(target)
    for name in _databases(data_dir):
        refuse_log_damage(data_dir / name)
    partial = target.with_name(target.name + ".partial")
    _make_empty_directory(partial)
    progress, taken_us = _Progress(on_progress), clock.now_us()
    files = {name: _copy_database(data_dir / name, partial / name, progress) for name in _databases(data_dir)}
    backup = Backup(taken_us=taken_us, object_store=object_store, files=files)
    if not object_store and (data_dir / OBJECTS).is_dir():
        copy = _ObjectsCopy(data_dir / OBJECTS, partial / OBJECTS, progress)
        copy.copy()
        backup = msgspec.structs.replace(
            backup, objects=copy.objects, object_bytes=copy.bytes, problems=tuple(copy.problems)
        )
    write_private(partial / CONTENTS, msgspec.json.encode(backup))
    fsync_path(partial / CONTENTS)
    if target.exists():
        target.rmdir()
    partial.rename(target)
    fsync_path(target.parent)
    return backup


def restore(source: Path, storage: StorageConfig, on_progress: OnProgress) -> Backup:
    """Fill an empty data directory from a backup; a server that starts there finds it marked as restored."""
    backup, data_dir = _contents(source), Path(storage.data_dir)
    make_directory(data_dir, storage.directory_permissions)
    lock = DirectoryLock(data_dir)
    try:
        refuse_if_used(data_dir)
        progress = _Progress(on_progress)
        progress.expect(sum(copied.bytes for copied in backup.files.values()))
        for name, copied in backup.files.items():
            _copy_file(source / name, data_dir / f"{name}.restoring", copied, progress)
        if backup.objects:
            copy = _ObjectsCopy(source / OBJECTS, data_dir / OBJECTS, progress, storage.object_permissions)
            copy.copy()
            skip_epochs(copy.target)
        _mark(data_dir / f"{LOG}.restoring")
        # The log comes last: without it the directory is as good as empty.
        for name in sorted(backup.files, reverse=True):
            (data_dir / f"{name}.restoring").rename(data_dir / name)
        fsync_path(data_dir)
    finally:
        lock.release()
    return backup


def _make_empty_directory(path: Path) -> None:
    """Make a directory in place of what an earlier backup left there, which may be a link to another place."""
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)
    if not path.parent.is_dir():
        make_directories(path.parent)
    try:
        path.mkdir(mode=DIRECTORY)
    except FileExistsError as reason:
        raise Conflict(f"{path} is in the way, and could not be removed", directory=str(path)) from reason


def refuse_if_used(directory: Path, *but: str) -> None:
    """Raises where a directory contains anything except its lock and these names."""
    if not directory.exists():
        return
    for path in sorted(directory.iterdir()):
        if path.name not in ("lock", *but):
            raise Conflict(f"{directory} is not empty: it holds {path.name}", directory=str(directory))


def _databases(data_dir: Path) -> Iterator[str]:
    for name in (LOG, KEYS):
        if (data_dir / name).exists():
            yield name


def _copy_database(source: Path, target: Path, progress: _Progress) -> CopiedFile:
    """One transaction's view of a database, in steps that leave room for its writer."""
    create_private(target)
    reading = database.connect(source, cache_bytes=_CACHE_BYTES, readonly=True)
    writing = connect_to_copy(target, reading)
    try:
        # While this transaction is open the copy does not begin anew with every commit of the server.
        reading.execute("BEGIN")
        page_bytes = int(reading.pragma("page_size"))
        pages = int(reading.pragma("page_count"))
        progress.expect(pages * page_bytes)
        with writing.backup("main", reading, "main") as steps:
            while not steps.done:
                left = steps.remaining
                steps.step(_STEP_PAGES)
                progress.advance((left - steps.remaining if left else steps.page_count - steps.remaining) * page_bytes)
        reading.execute("COMMIT")
        writing.pragma("journal_mode", "delete")  # so that the copy is one file, and stays one
    except SQLiteError as reason:
        raise database.refusal(reason, source) from reason
    finally:
        writing.close()
        reading.close()
    return _digest(target)


class _ObjectsCopy:
    """Copies a store in one directory to another, while a server may be writing to it."""

    def __init__(self, source: Path, target: Path, progress: _Progress, mode: int = DIRECTORY) -> None:
        self._source, self.target = Objects.open(str(source)), Objects.open(str(target), mode=mode)
        self._scratch = target.with_name(target.name + ".copying")
        self._progress = progress
        self.objects = self.bytes = 0
        self.problems: list[str] = []

    def copy(self) -> None:
        """The leases, and of each stream what its newest manifest names, and then that manifest."""
        for kind in (NODES, EPOCHS):
            for object_info in self._source.list(kind):
                self._copy_one(object_info.key, object_info.bytes)
        locations = object_names.generations(
            object_info.key for object_info in self._source.list(object_names.MANIFESTS)
        )
        for location in sorted(locations):
            self._copy_stream(location)

    def _copy_stream(self, location: tuple[str, str]) -> None:
        """What a manifest names may be replaced while it is copied: then there is a newer manifest."""
        problem = ""
        for _ in range(_TRIES):
            listing = self._source.list(f"{object_names.MANIFESTS}/{'/'.join(location)}")
            generations = object_names.generations(object_info.key for object_info in listing).get(location)
            if not generations:
                return  # deleted meanwhile
            try:
                self._copy_generation(object_names.generation_key(location, generations[0]))
                return
            except CorruptData as reason:
                problem = reason.message
        self.problems.append(problem)

    def _copy_generation(self, key: str) -> None:
        data = self._source.get(key)
        manifest = manifests.decode(data, key)
        segments = (*manifest.kept, *manifest.segments)
        parts = [part.bytes for companion in manifest.companions for part in companion.parts.values()]
        parts += [state.bytes for state in manifest.states]
        self._progress.expect(sum(segment.bytes for segment in segments) + sum(parts))
        for segment in segments:
            segment_key = object_names.segment_key(manifest.stream, manifest.incarnation, segment.name)
            self._copy_one(segment_key, segment.bytes)
            self._progress.advance(segment.bytes)
        for companion in manifest.companions:
            for name, part in companion.parts.items():
                key_of_part = companion_key(manifest.stream, manifest.incarnation, companion.name, name)
                self._copy_one(key_of_part, part.bytes)
                self._progress.advance(part.bytes)
        for state in manifest.states:
            self._copy_one(state_key(manifest.stream, manifest.incarnation, state.name), state.bytes)
            self._progress.advance(state.bytes)
        self._copy_one(key, len(data))

    def _copy_one(self, key: str, size: int) -> None:
        path = self._source.local_path(key)
        if path is None or not path.exists():
            raise ObjectMissing(f"the object {key} is missing", object=key, check="present")
        if stat.S_IMODE(path.stat().st_mode) == self.target.file_mode:
            self.target.upload(key, path)
        else:  # a link to the same file would change who may read it there
            copy_private(path, self._scratch)
            self.target.upload(key, self._scratch)
            self._scratch.unlink()
        self.objects += 1
        self.bytes += size


def _copy_file(source: Path, target: Path, copied: CopiedFile, progress: _Progress) -> None:
    copy_private(source, target)
    if _digest(target) != copied:
        raise CorruptData(f"{source} is not what was backed up", object=str(source), check="checksum")
    progress.advance(copied.bytes)


def _contents(source: Path) -> Backup:
    path = source / CONTENTS
    if not path.exists():
        raise NotFound(f"{source} is not a backup: it has no {CONTENTS}", source=str(source))
    try:
        backup = decoding.decode(path.read_bytes(), Backup)
    except msgspec.DecodeError as reason:
        raise CorruptData(f"{path} is damaged: {reason}", object=str(path), check="document") from reason
    if backup.headrace != "backup" or backup.version > VERSION:
        raise CorruptData(f"{path} is not a backup that this Headrace knows", object=str(path), check="version")
    return backup


def _mark(path: Path) -> None:
    """Note that the database was restored, and that others may have used the epochs it had reserved."""
    connection = database.connect(path, cache_bytes=_CACHE_BYTES)
    try:
        with connection:
            mark_restored(connection)
    finally:
        connection.close()


def _digest(path: Path) -> CopiedFile:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return CopiedFile(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
