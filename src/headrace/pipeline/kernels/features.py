"""Folding: the events of a unit become a state, of a table or an entity type."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.format.object_names import state_key
from headrace.format.state_file import Packed
from headrace.pipeline.kernels.units import Workspace
from headrace.pipeline.kernels.units import batches as events
from headrace.reduce import build_states
from headrace.reduce.work_units import Unit


def perform(unit: Unit, here: Workspace) -> dict[str, Any]:
    """Fold the events of a unit."""
    with _uncollected():
        return uploaded(unit, here, build_states.fold_events(unit, events(unit, here)))


def uploaded(unit: Unit, here: Workspace, rows: Iterator[Packed]) -> dict[str, Any]:
    """Make the state of a unit durable."""
    path, state = build_states.write_state(unit, rows, here.directory)
    here.objects.upload(state_key(unit.stream, unit.incarnation, state.name), path)
    return {"state": state}


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the garbage collector: folding makes no cycles, but so many objects that it would run often."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
