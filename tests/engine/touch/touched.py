"""A stream of the state protocol in an engine that tests drive, and waits on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.engine.touch.active_templates import Activation
from headrace.engine.touch.stream_touches import StreamTouches, WaitRequest
from headrace.engine.touch.timer import TouchTimer
from headrace.engine.touch.waiters import Waiter
from headrace.profiles.state_protocol import keys
from headrace.profiles.state_protocol.keys import Field, Template
from headrace.types import JSON
from support.engine_rig import Rig, array

NAME = "db"
#: Buckets so short that a test need not wait for them.
QUICK = {"coarseIntervalMs": 1, "touchCoalesceWindowMs": 1, "memory": {"bucketMs": 1}}


def by(entity: str, *fields: str) -> Template:
    return Template(entity, tuple(Field(name, "string") for name in fields))


def change(entity: str, operation: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    found = {"type": entity, "key": "1", "headers": {"operation": operation}}
    found |= {} if operation == "delete" else {"value": after}
    return found | ({} if before is None else {"old_value": before})


class Wait:
    """A wait and what came of it; while nothing has, the outcome is None."""

    def __init__(self, waiter: Waiter, outcome: bool | str | None) -> None:
        self.waiter = waiter
        self.outcome = outcome
        self.parked = False


class Touched:
    """One stream whose touches are told."""

    def __init__(self, directory: Path, **touch: Any) -> None:
        self.rig = Rig(directory)
        settings = {**QUICK, **touch, "memory": {**QUICK["memory"], **touch.get("memory", {})}}  # type: ignore[dict-item]
        profile = {"kind": "state-protocol", "touch": {"enabled": True, **settings}}
        self.rig.create(NAME, JSON, profile=json.dumps(profile))

    def __enter__(self) -> Touched:
        return self

    def __exit__(self, *_: object) -> None:
        self.rig.close()

    @property
    def timer(self) -> TouchTimer:
        return self.rig.run(self.rig.engine.touches.open(self.rig.find(NAME)))

    @property
    def stream_touches(self) -> StreamTouches:
        return self.timer.stream_touches

    @property
    def cursor(self) -> str:
        return self.stream_touches.journal.cursor

    def activate(self, *templates: Any, ttl_ms: float | None = None) -> Activation:
        touches = self.rig.engine.touches
        return self.rig.run(touches.activate(self.stream_touches, templates, ttl_ms))

    def append(self, *changes: dict[str, Any]) -> None:
        self.rig.append(NAME, array(*changes))

    def settle(self) -> None:
        self.rig.run(self.timer.settle(20.0))
        assert self.stream_touches.settled or self.stream_touches.halted

    def ask(self, cursor: str, *wanted: int, templates: tuple[Template, ...] = (), **more: Any) -> Wait:
        """Wait for keys; parked where nothing is known yet."""
        used = tuple(one.id for one in templates)
        request = WaitRequest(cursor, [keys.format_key(key) for key in wanted], [], templates=used, **more)
        waiter, outcome = self.stream_touches.begin_wait(request)
        wait = Wait(waiter, outcome)
        if outcome is None:
            self.rig.run(self._park(wait))
        return wait

    async def _park(self, wait: Wait) -> None:
        touches = self.rig.engine.touches
        stream_touches = (await touches.open(self.rig.find(NAME))).stream_touches

        def answered(outcome: bool | str) -> None:
            wait.outcome, wait.parked = outcome, False
            touches.leave(wait.waiter)

        wait.waiter.answer, wait.parked = answered, True
        touches.park(stream_touches, wait.waiter, 60.0)
