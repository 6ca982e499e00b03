"""Fetching objects to the local disk, which may be full of what can be fetched again."""

from __future__ import annotations

import errno
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from headrace.errors import CorruptData, Unavailable
from headrace.storage.files import open_private
from headrace.storage.objects import Objects

log = logging.getLogger("headrace.cache")


def log_dropped(path: Path, key: str) -> None:
    """Say that a damaged file of a cache is made or fetched again."""
    log.warning("%s, which caches %s, is damaged: it was dropped and is made anew", path, key)


def download(objects: Objects, key: str, size: int, path: Path, make_room: Callable[[], None]) -> None:
    """Write an object of this size to a file; where the disk is full, room is made once."""
    try:
        _write(objects, key, size, path)
    except OSError as reason:
        if reason.errno != errno.ENOSPC:
            raise Unavailable(f"{key} could not be kept: {reason.strerror}", reason="storage") from reason
        make_room()
        try:
            _write(objects, key, size, path)
        except OSError as again:
            raise Unavailable(f"the disk is full; {key} could not be fetched", reason="disk_full") from again


def check(path: Path, key: str, sha256: str) -> None:
    """Raise CorruptData where a file is not the object that was written."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise CorruptData(f"{key} is not what was written: its checksum differs", object=key, check="checksum")


def _write(objects: Objects, key: str, size: int, path: Path) -> None:
    with open(path, "wb", opener=open_private) as file:
        objects.download(key, size, file)
