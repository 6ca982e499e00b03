"""Watching how much memory a server takes."""

from __future__ import annotations

import threading
from types import TracebackType

from bench.serving import Running

EVERY_SECONDS = 0.05


class MemoryWatch:
    """Samples a server's resident memory while the block runs; ``most_mb`` is the highest value."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.most_mb = 0.0

    def __enter__(self) -> MemoryWatch:
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            self._sample()

    def _sample(self) -> None:
        try:
            self.most_mb = max(self.most_mb, self._server.resident_bytes() / 1e6)
        except (OSError, IndexError):
            self._over.set()  # the server is gone, and whoever asks it will say so
