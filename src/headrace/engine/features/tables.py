"""Feature tables, put together: what answers for them, now and as of the past, and what they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headrace.config import Config
from headrace.engine.derive.lease_scheduler import Apply
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.derive.state_demand import StateDemand
from headrace.engine.derive.state_job import StateJob
from headrace.engine.features.features import Features
from headrace.engine.features.histories import HistoryJob
from headrace.engine.features.past import Pasts
from headrace.engine.features.serving import Serving
from headrace.engine.features.training import Training
from headrace.engine.history.sealer import Sealer
from headrace.engine.log.log import Log
from headrace.storage.database import Connection
from headrace.storage.derived import States
from headrace.storage.published import Published
from headrace.storage.wal import Wal
from headrace.types import Clock

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

#: What is left of the working time of a request when the answer is written.
_SHARE = 0.9


class Ground(NamedTuple):
    """What tables stand on."""

    features: Features
    log: Log
    sealer: Sealer
    states: StateJob
    histories: HistoryJob
    apply: Apply
    reader: Connection
    connect: Callable[[], Connection]
    segments: Callable[[], Segments]
    bench: StateBuilder
    clock: Clock


class Tables:
    """Starts and stops with the engine."""

    def __init__(self, ground: Ground, config: Config) -> None:
        features, log, sealer, states, histories, apply, reader, connect, segments, bench, clock = ground
        settings = config.features
        self.serving = Serving(log, Wal(reader), States(reader), lambda: features.current, bench, clock, settings)
        self.pasts = Pasts(log, self.serving, connect, segments, config.server.resolver_timeout_s * _SHARE)
        self.training = Training(apply, log, sealer, histories, self.pasts, reader, settings.fold_rows)
        self.needs = StateDemand(self.serving, Published(reader), clock, settings)
        log.on_append.append(self.serving.appended)
        states.listeners.append(self.serving.states_changed)

    def start(self) -> None:
        """Go on with what nobody else does."""
        self.training.start()

    async def stop(self) -> None:
        """Let go of threads and files."""
        await self.training.stop()
        await self.serving.stop()
