"""What the sealer's thread works with, made when first needed: a server that publishes nothing loads none of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config import StorageConfig
from headrace.engine.history.journal import Journal
from headrace.engine.history.object_removal import Cleaner
from headrace.engine.history.publication import MakeRewriter
from headrace.storage import database
from headrace.storage.database import Connection
from headrace.storage.node import Node
from headrace.storage.objects import Objects
from headrace.types import Clock

if TYPE_CHECKING:
    from headrace.engine.history.publisher import Publisher
    from headrace.storage.segments import Segments


class Workshop:
    """Belongs to one thread, apart from ``node``, which is set before it starts."""

    def __init__(
        self,
        objects: Objects,
        node: Node,
        segments: Callable[[], Segments],
        clock: Clock,
        config: StorageConfig,
        vfs: str | None,
        close: Callable[[Collection[str]], None],
        journals: Sequence[Journal[Any]],
        make_rewriter: MakeRewriter,
    ) -> None:
        """``close`` closes the files of objects that were removed."""
        self.journals = journals
        self._make_rewriter = make_rewriter
        self._objects = objects
        self.node = node
        self._segments = segments
        self._clock = clock
        self._config = config
        self._vfs = vfs
        self._close = close
        self._connection: Connection | None = None

    @cached_property
    def publisher(self) -> Publisher:
        """Writes the objects of streams."""
        from headrace.engine.history.publisher import Publisher

        data_dir = Path(self._config.data_dir)
        self._connection = database.connect(
            data_dir / "headrace.db", cache_bytes=self._config.cache_bytes // 8, readonly=True, vfs=self._vfs
        )
        return Publisher(
            self._connection,
            self._objects,
            self._segments(),
            self.node,
            self._clock,
            data_dir / "sealing",
            self._config,
            self.journals,
            self._make_rewriter,
        )

    @cached_property
    def cleaner(self) -> Cleaner:
        """Removes objects."""
        return Cleaner(self._objects, self.node, self._clock, self._close)

    def close(self) -> None:
        """Let go of the database."""
        if self._connection is not None:
            self._connection.close()
