"""What object stores are made of: files below a directory, and services or memory through obstore.

Files are on disk when a write returns. An object is written to a staging file, synced, and linked or renamed into
place; then the directories above it are synced. obstore has a local store too, which does not sync. Files and
directories get the permissions of the root, so every process that writes here lets the same others in.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import obstore
from obstore.exceptions import AlreadyExistsError, GenericError
from obstore.store import MemoryStore, from_url

from headrace.storage.files import (
    DIRECTORY,
    copy_private,
    file_mode,
    fsync_path,
    make_directories,
    make_directory,
    write_private,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

#: Objects in a page of a listing; only the last page has fewer.
PAGE = 1000


class ObjectInfo(NamedTuple):
    """An object without its bytes."""

    key: str
    bytes: int
    modified_us: int


class Backend(Protocol):
    """The verbs; an object that is not there raises FileNotFoundError, and writes are whole, durable or nothing."""

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that does not exist yet; False if it does."""

    def put(self, key: str, data: bytes) -> None:
        """Write an object, replacing an existing one."""

    def upload(self, key: str, path: Path) -> None:
        """Write an object from a file that no longer changes."""

    def get(self, key: str) -> bytes:
        """All of an object."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object, shorter where the object ends."""

    def head(self, key: str) -> ObjectInfo:
        """An object's size and age."""

    def list(self, prefix: str) -> Iterator[Sequence[ObjectInfo]]:
        """All objects below a prefix, which ends where a part of the key does; page by page, in any order."""

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is not there is no error."""


STAGING = ".staging"
_ABANDONED_S = 86_400.0
_TRIES = 20


class Directory:
    """A backend on a local file system, which several processes may share."""

    def __init__(self, root: Path, mode: int | None = None) -> None:
        """With a mode the root is given these permissions; without one it keeps those that it has."""
        self.root = root
        if mode is not None or not root.is_dir():
            make_directories(root, DIRECTORY if mode is None else mode)
        self._mode = stat.S_IMODE(root.stat().st_mode) & 0o777 if mode is None else mode
        self._staging = root / STAGING
        self._make(self._staging)
        for left in self._staging.iterdir():
            if left.stat().st_mtime < time.time() - _ABANDONED_S:
                left.unlink(missing_ok=True)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that does not exist yet; False if it does."""
        staged = self._stage(data)
        try:
            self._publish_staged(staged, self.root / key, os.link)
        except FileExistsError:
            return False
        finally:
            staged.unlink(missing_ok=True)
        return True

    def put(self, key: str, data: bytes) -> None:
        """Write an object, replacing an existing one."""
        self._publish_staged(self._stage(data), self.root / key, os.replace)

    def upload(self, key: str, path: Path) -> None:
        """Write an object from a file that no longer changes; on the same file system nothing is copied."""
        staged = self._staging / uuid.uuid4().hex
        try:
            os.link(path, staged)
        except OSError as reason:
            if reason.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP):
                raise
            copy_private(path, staged)
        staged.chmod(self.file_mode)
        fsync_path(staged)
        self._publish_staged(staged, self.root / key, os.replace)

    @property
    def file_mode(self) -> int:
        """The permissions of an object."""
        return file_mode(self._mode)

    def get(self, key: str) -> bytes:
        """All of an object."""
        return (self.root / key).read_bytes()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object, shorter where the object ends."""
        with (self.root / key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def head(self, key: str) -> ObjectInfo:
        """An object's size and age."""
        return _file_info(key, (self.root / key).stat())

    def list(self, prefix: str) -> Iterator[Sequence[ObjectInfo]]:
        """All objects below a prefix, page by page."""
        page: list[ObjectInfo] = []
        for object_info in self._walk(prefix):
            page.append(object_info)
            if len(page) == PAGE:
                yield page
                page = []
        if page:
            yield page

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, and the directories that they leave empty."""
        for key in keys:
            path = self.root / key
            path.unlink(missing_ok=True)
            try:
                for parent in path.relative_to(self.root).parents[:-1]:
                    (self.root / parent).rmdir()
            except OSError:
                pass  # not empty, or someone was quicker

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(self.root / prefix) as unsorted:
                entries = sorted(unsorted, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            key = f"{prefix}/{entry.name}" if prefix else entry.name
            try:
                if not entry.is_dir():
                    yield _file_info(key, entry.stat())
                elif key != STAGING:
                    yield from self._walk(key)
            except FileNotFoundError:
                continue

    def _stage(self, data: bytes) -> Path:
        staged = self._staging / uuid.uuid4().hex
        write_private(staged, data)
        staged.chmod(self.file_mode)
        fsync_path(staged)
        return staged

    def _publish_staged(self, staged: Path, path: Path, move: Callable[[Path, Path], None]) -> None:
        """Give a staged file its name; the directory may be removed under us until something is in it."""
        for left in reversed(range(_TRIES)):
            try:
                self._make(path.parent)
                move(staged, path)
                break
            except FileNotFoundError:
                if not left:
                    raise
        fsync_path(path.parent)

    def _make(self, directory: Path) -> None:
        """Make a directory that survives a power failure, with those above it."""
        if directory.is_dir():
            return
        self._make(directory.parent)
        make_directory(directory, self._mode)
        fsync_path(directory.parent)


def _file_info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1000)


_MiB = 1024 * 1024
# An upload holds this much at a time, and every part has the whole timeout for itself.
_PART_BYTES = 8 * _MiB
_PARTS_AT_ONCE = 2
_LISTING_PAUSE_S = 0.1
_ENDPOINTS = ("ENDPOINT", "ENDPOINT_URL", "ENDPOINT_URL_S3")


class Remote:
    """A backend on obstore; it retries what may be retried, for so long and so often."""

    def __init__(self, url: str, *, timeout_s: float, retries: int) -> None:
        self._store: ObjectStore = (
            MemoryStore() if url.startswith("memory:") else _open_service(url, timeout_s, retries)
        )
        self._timeout_s = timeout_s

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that does not exist yet; False if it does."""
        try:
            obstore.put(self._store, key, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def put(self, key: str, data: bytes) -> None:
        """Write an object, replacing an existing one."""
        obstore.put(self._store, key, data, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def upload(self, key: str, path: Path) -> None:
        """Write an object from a file that no longer changes."""
        obstore.put(self._store, key, path, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def get(self, key: str) -> bytes:
        """All of an object."""
        return bytes(obstore.get(self._store, key).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object, shorter where the object ends."""
        return bytes(obstore.get_range(self._store, key, start=start, length=length))

    def head(self, key: str) -> ObjectInfo:
        """An object's size and age."""
        return _service_info(obstore.head(self._store, key))

    def list(self, prefix: str) -> Iterator[Sequence[ObjectInfo]]:
        """All objects below a prefix, page by page.

        obstore does not retry a page whose answer ends too soon; where time is left, the listing goes on from there.
        """
        last: str | None = None
        deadline = time.monotonic() + self._timeout_s / 2
        while True:
            try:
                for page in obstore.list(self._store, prefix or None, offset=last, chunk_size=PAGE):
                    last = page[-1]["path"]
                    yield [_service_info(entry) for entry in page]
                    deadline = time.monotonic() + self._timeout_s / 2
                return
            except GenericError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LISTING_PAUSE_S)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is not there is no error."""
        try:
            obstore.delete(self._store, keys)
        except FileNotFoundError:
            for key in keys:
                try:
                    obstore.delete(self._store, key)
                except FileNotFoundError:
                    pass


def _open_service(url: str, timeout_s: float, retries: int) -> ObjectStore:
    options = _client_config()
    options["timeout"] = timedelta(seconds=timeout_s)
    options["connect_timeout"] = timedelta(seconds=min(5.0, timeout_s))
    return from_url(
        url,
        client_options=options,
        retry_config={
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=timeout_s),
            "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
        },
    )


def _client_config() -> ClientConfig:
    """What the environment says about connections; obstore forgets it where it is given timeouts."""
    options: ClientConfig = {}
    for service in ("AWS", "AZURE", "GOOGLE"):
        if _is_true(f"{service}_ALLOW_HTTP") or any(
            os.environ.get(f"{service}_{name}", "").startswith("http://") for name in _ENDPOINTS
        ):
            options["allow_http"] = True
        if _is_true(f"{service}_ALLOW_INVALID_CERTIFICATES"):
            options["allow_invalid_certificates"] = True
        if proxy := os.environ.get(f"{service}_PROXY_URL"):
            options["proxy_url"] = proxy
    return options


def _is_true(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes")


def _service_info(entry: Any) -> ObjectInfo:
    return ObjectInfo(entry["path"], entry["size"], int(entry["last_modified"].timestamp() * 1e6))
