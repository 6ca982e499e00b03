"""Damage of the database that is found while a server runs."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import CorruptData
from headrace.storage.page_checksums import damaged, is_bad_checksum


class Damage:
    """Tells damage of the database from other failures, and remembers the first; for any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: The first damage that was found.
        self.found: CorruptData | None = None

    def note(self, reason: BaseException) -> CorruptData | None:
        """The error that names the database, where a failure comes from a page that does not match its checksum."""
        if not is_bad_checksum(reason):
            return None
        self.found = self.found or damaged(self._path, reason)
        return damaged(self._path, reason)
