"""The segments and companions of the object store that are kept here: opened when the first of them is needed.

What only some requests need is imported where it is used, so that a server starts quickly. These modules are loaded
once the server is ready, so that no request waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config import Config
from headrace.engine.runtime import auto_tune
from headrace.extract.erasure import Masks
from headrace.format.decoded_columns import keep_freed_pages
from headrace.storage.objects import Objects
from headrace.storage.segments import Segments

if TYPE_CHECKING:
    from headrace.engine.search.archive import Archive


class ObjectCaches:
    """Opens what reads objects on first use; safe for threads."""

    def __init__(self, *, config: Config, objects: Objects, masks: Masks, vfs: str | None) -> None:
        self._config, self._objects, self._masks, self._vfs = config, objects, masks, vfs
        self._opening = threading.RLock()
        #: What is open; None while nobody has needed it.
        self.opened_segments: Segments | None = None
        self.opened_archive: Archive | None = None

    def segments(self) -> Segments:
        """The cache of segments."""
        with self._opening:
            if self.opened_segments is None:
                keep_freed_pages()
                storage = self._config.storage
                self.opened_segments = Segments(
                    self._objects,
                    Path(storage.data_dir) / "cache",
                    limit_bytes=storage.segment_cache_bytes,
                    decoded_bytes=storage.decoded_bytes,
                    footer_bytes=auto_tune.footer_bytes(self._config),
                    masks=self._masks,
                )
            return self.opened_segments

    def archive(self) -> Archive:
        """What searches and aggregates are answered from."""
        with self._opening:
            if self.opened_archive is None:
                from headrace.engine.search.archive import Archive  # loads DuckDB, which takes long

                self.opened_archive = Archive(self._config, self._objects, self.segments, self._vfs)
            return self.opened_archive

    def close(self) -> None:
        """Close the archive; segments hold nothing that must be closed."""
        if self.opened_archive is not None:
            self.opened_archive.close()

    def forget_events(self) -> None:
        """Drop the events that are kept to answer from."""
        if self.opened_archive is not None:
            self.opened_archive.clear_events()

    def forget_objects(self, keys: Collection[str]) -> None:
        """Close the files of objects that were removed from the store."""
        if self.opened_segments is not None:
            self.opened_segments.forget(keys)
        if self.opened_archive is not None:
            self.opened_archive.files.forget(keys)

    def prune(self, *, segments: set[str], companion_parts: set[str]) -> int:
        """Remove every file but those with these checksums; returns how many of the others are still in use."""
        archive = self.archive()
        archive.clear_events()
        return self.segments().prune(segments) + archive.files.prune(companion_parts)

    def columns_share(self) -> float:
        """How much of the room for columns of events without companions is taken, from 0 to 1."""
        return 0.0 if self.opened_archive is None else self.opened_archive.blocks.used_share


MODULES = (
    "headrace.engine.search.archive",
    "headrace.engine.search.search",
    "headrace.engine.search.filtered_read",
    "headrace.engine.search.aggregate",
    "headrace.reduce.features.build",
    "headrace.reduce.answer",
    "headrace.reduce.duck",
    "headrace.reduce.request",
)


def load_modules() -> None:
    """Import them, one after the other; for a thread."""
    for name in MODULES:
        import_module(name)
