"""Making the units of one stream whose companions lag: what to index, what to merge."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from headrace.engine.derive.levels import windows
from headrace.engine.derive.unit_cutter import PlannedUnit, UnitCutter
from headrace.engine.search.companion_cover import widest
from headrace.engine.search.stream_view import View
from headrace.format.ranges import Range, without
from headrace.reduce.work_units import DERIVED, JobName


class Maker:
    """Makes units of a stream that leave out what others work on."""

    def __init__(self, view: View, cutter: UnitCutter, fan_out: int, busy: list[Range]) -> None:
        self._view = view
        self._cutter = cutter
        self._fan_out = fan_out
        self._busy = busy

    def make(self, job: JobName) -> Iterator[PlannedUnit]:
        """All units of a job that derives something, one after the other."""
        assert job in DERIVED
        return self._index() if job == "index" else self._compact()

    def _index(self) -> Iterator[PlannedUnit]:
        """Ranges that nothing describes, then those whose companions are out of date."""
        view, taken = self._view, [*self._busy, *self._cutter.resting("index")]
        wanted = (*without(view.uncovered, taken), *without(view.stale, taken))
        return self._cutter.units("index", wanted, level=0, registry=self._registry)

    def _compact(self) -> Iterator[PlannedUnit]:
        """Companions that follow each other and can be merged."""
        view, taken = self._view, [*self._busy, *self._cutter.resting("compact")]
        for inputs, level in windows(widest(view.current), taken, self._fan_out):
            through = max(one.through_version for one in inputs)
            fields, rollups = view.defined.hashes(through)
            yield self._cutter.planned(
                "compact",
                Range(inputs[0].first_seq, inputs[-1].end_seq),
                level=level,
                inputs=tuple(inputs),
                through_version=through,
                fields=fields,
                rollups=rollups,
                registry=self._registry,
            )

    @cached_property
    def _registry(self) -> dict[str, Any]:
        return self._view.defined.registry.dump()
