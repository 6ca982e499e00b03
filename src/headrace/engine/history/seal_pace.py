"""How much of the machine publishing takes: a small part while appends are busy, all of it once the backlog grows.

After each segment, and each stream, whoever publishes rests. What is put off by that is done when appends pause.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from headrace.config import StorageConfig
from headrace.engine.history.seal_watch import SealWatch
from headrace.types import Clock

#: A rest is so many times as long as the work before it.
RESTS = 9
#: There is no rest once so much of the backlog's limit is used up, or of the room for columns of what has no companion.
_FULL_SPEED = 0.25
#: Nor once entries have waited so many times as long as they should: what is due all at once is paced in between.
_LATEST = 1.1
#: A rest ends when nothing was appended for so long.
_LULL_S = 0.05


class SealPace:
    """Lets the sealer's thread rest, by what the watch has counted."""

    def __init__(
        self,
        watch: SealWatch,
        appends: Callable[[], int],
        clock: Clock,
        config: StorageConfig,
        columns_share: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``appends`` says how many there have been, ``columns_share`` how much of the room for columns is taken."""
        self._watch = watch
        self._appends = appends
        self._clock = clock
        self._config = config
        self._columns_share = columns_share
        self._stopping = threading.Event()
        self.begin()

    def begin(self) -> None:
        """Work begins."""
        self._began_s, self._began_with = monotonic(), self._appends()

    def rest(self) -> None:
        """Let appends have the machine for a while, if there are any."""
        now_s, seen = monotonic(), self._began_with
        until_s = now_s + self.length_s(now_s - self._began_s)
        while now_s < until_s and seen != (seen := self._appends()):
            if self._stopping.wait(min(until_s - now_s, _LULL_S)):
                break
            now_s = monotonic()
        self.begin()

    def length_s(self, worked_s: float) -> float:
        """How long a rest may be after so much work."""
        config, oldest_us = self._config, self._watch.oldest_us
        fill = max(self._watch.backlog_bytes / max(1, config.backlog_bytes), self._columns_share())
        haste = min(1.0, fill / _FULL_SPEED)
        waited_s = 0.0 if oldest_us is None else (self._clock.now_us() - oldest_us) / 1e6
        return max(0.0, min(RESTS * worked_s * (1 - haste), (_LATEST * config.seal_age_s - waited_s) / 2))

    def stop(self) -> None:
        """Rest no more: the server stops."""
        self._stopping.set()
