"""Damage of the database that is found while a server runs."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import CorruptData, HeadraceError
from headrace.storage.page_checksums import damaged, is_bad_checksum


class Damage:
    """Turns unexpected failures into answers, and remembers that the database was found damaged; for any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: The first damage that was found.
        self.found: CorruptData | None = None

    def note(self, reason: BaseException) -> CorruptData | None:
        """The error that names the database, where a failure comes from a page that does not match its checksum."""
        if not is_bad_checksum(reason):
            return None
        error = damaged(self._path, reason)
        self.found = self.found or error
        return error

    def answer(self, reason: BaseException) -> HeadraceError:
        """What a caller is told about a failure that nobody expected."""
        return self.note(reason) or HeadraceError("the server failed; the log has the details")
