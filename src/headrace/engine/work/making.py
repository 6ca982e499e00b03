"""Making the units of one stream."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from headrace.config import PipelineConfig
from headrace.engine.work.compaction import windows
from headrace.engine.work.cover import widest
from headrace.engine.work.ranges import Range, without
from headrace.engine.work.readable import Piece, pieces
from headrace.engine.work.units import Job, Unit
from headrace.engine.work.view import View
from headrace.format.companion.names import COMPANIONS, companion_name
from headrace.format.manifest import name_hash
from headrace.storage.published import Published
from headrace.storage.work import FailureRow

#: Segments in one unit, however small they are.
MOST_SEGMENTS = 256


class Planned(NamedTuple):
    """A unit, the id of its stream, and whether workers were lost over it."""

    unit: Unit
    stream: int
    suspect: bool

    @property
    def range(self) -> Range:
        """The entries it is about."""
        return Range(self.unit.first_seq, self.unit.end_seq)


class Maker:
    """Makes units of a stream that leave out what others work on."""

    def __init__(
        self,
        view: View,
        published: Published,
        config: PipelineConfig,
        failures: list[FailureRow],
        busy: list[Range],
        now_us: int,
    ) -> None:
        self._view = view
        self._published = published
        self._config = config
        self._failures = failures
        self._busy = busy
        self._now_us = now_us

    def make(self, job: Job) -> Iterator[Planned]:
        """All units of a job, one after the other."""
        return self._index() if job == "index" else self._compact()

    def _index(self) -> Iterator[Planned]:
        """Ranges that nothing describes, then those whose companions are out of date."""
        view, taken = self._view, [*self._busy, *self._resting("index")]
        for wanted in (*without(view.uncovered, taken), *without(view.stale, taken)):
            for together in self._grouped(pieces(self._published, view.owned, wanted)):
                where = Range(together[0].range.first, together[-1].range.end)
                yield self._planned("index", where, level=0, segments=tuple(one.source for one in together))

    def _grouped(self, found: Iterator[Piece]) -> Iterator[list[Piece]]:
        """Adjacent segments up to the size of a unit; one on which work has failed is alone."""
        together: list[Piece] = []
        for piece in found:
            is_alone = any(True for _ in self._failed("index", piece.range))
            if together and (is_alone or self._is_full(together, piece)):
                yield together
                together = []
            together.append(piece)
            if is_alone:
                yield together
                together = []
        if together:
            yield together

    def _compact(self) -> Iterator[Planned]:
        """Companions that follow each other and can be merged."""
        view, taken = self._view, [*self._busy, *self._resting("compact")]
        for inputs, level in windows(widest(view.current), taken, self._config.fan_out):
            through = max(one.through_version for one in inputs)
            fields, rollups = view.defined.hashes(through)
            yield self._planned(
                "compact",
                Range(inputs[0].first_seq, inputs[-1].end_seq),
                level=level,
                inputs=tuple(inputs),
                through_version=through,
                fields=fields,
                rollups=rollups,
            )

    def _is_full(self, together: list[Piece], piece: Piece) -> bool:
        payload = sum(one.payload_bytes for one in together) + piece.payload_bytes
        return payload > self._config.unit_bytes or len(together) >= MOST_SEGMENTS

    def _resting(self, job: Job) -> Iterator[Range]:
        for failure in self._failures:
            if failure.job == job and (failure.parked or failure.retry_us > self._now_us):
                yield Range(failure.first_seq, failure.end_seq)

    def _failed(self, job: Job, where: Range) -> Iterator[FailureRow]:
        for failure in self._failures:
            if failure.job == job and where.overlaps(Range(failure.first_seq, failure.end_seq)):
                yield failure

    def _planned(self, job: Job, where: Range, **facts: Any) -> Planned:
        row, unique = self._view.row, secrets.token_hex(6)
        name = companion_name(where.first, where.end - where.first, unique)
        unit = Unit(
            unit=f"{job}-{row.incarnation}-{where.first}-{unique}",
            job=job,
            stream=row.name,
            incarnation=row.incarnation,
            first_seq=where.first,
            count=where.end - where.first,
            out=f"{COMPANIONS}/{name_hash(row.name)}/{row.incarnation}/{name}",
            registry=self._registry,
            **facts,
        )
        return Planned(unit, row.id, any(one.lost > 1 for one in self._failed(job, where)))

    @cached_property
    def _registry(self) -> dict[str, Any]:
        return self._view.defined.registry.dump()
