"""The states of a table's keys as rows for Catalyst, and back: many keys at once, without a Python call for each.

A row has a key, a lane, a pane and columns. A *lane* holds feature versions that have the same panes and no column in
common, so that one row serves them all; the first lane holds the frames. Rows of the same key, lane and pane are
reduced to one by the aggregates of their columns.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.operators.operator import Windowed
from headrace.operators.parts import COLUMNS, Parts
from headrace.operators.state_bytes import pack, unpack_all
from headrace.reduce.features.table import EMPTY, TableReducer, pack_frame

#: What a frame is in the first lane, and where events may be late.
_FRAME = ("least", "earliest", "greatest", "latest")
_FRAME_WITH_LATE = (*_FRAME, "late")
_ARROW = {"bigint": pa.int64(), "double": pa.float64(), "binary": pa.binary(), "array<double>": pa.list_(pa.float64())}

Longs = NDArray[np.int64]
Packed = tuple[bytes, dict[str, bytes]]


class Member(NamedTuple):
    """A feature version in a lane."""

    version_id: str
    parts: Parts
    #: How many panes count; 0 where there is no window.
    span: int


class Lane(NamedTuple):
    """Feature versions that share rows."""

    number: int
    width_ms: int
    columns: tuple[str, ...]
    #: Whether any of its aggregates holds more than a number.
    gathers: bool = False
    members: tuple[Member, ...] = ()

    def takes(self, width_ms: int, parts: Parts) -> bool:
        """Whether a further feature version fits into the lane."""
        is_alike = (width_ms, parts.gathers) == (self.width_ms, self.gathers)
        return is_alike and set(self.columns).isdisjoint(parts.columns)

    def with_member(self, member: Member) -> Lane:
        """The lane with one more."""
        return self._replace(columns=self.columns + member.parts.columns, members=(*self.members, member))


class _Rows(NamedTuple):
    """Rows of one lane: the places of their keys, their panes, and columns."""

    places: Longs
    panes: Longs
    columns: dict[str, Sequence[Any]]


def assign_lanes(reducer: TableReducer) -> list[Lane]:
    """Assign the feature versions of a table to lanes, except those that Catalyst does not reduce."""
    lanes = [Lane(0, 0, _FRAME_WITH_LATE if reducer.has_event_time else _FRAME)]
    for name, operator in sorted(reducer.operators.items()):
        parts = operator.catalyst_parts()
        if parts is None:
            continue
        width_ms, span = (operator.width_ms, operator.span) if isinstance(operator, Windowed) else (0, 0)
        lane = next(
            (candidate for candidate in lanes if candidate.takes(width_ms, parts)),
            Lane(len(lanes), width_ms, (), parts.gathers),
        )
        lanes[lane.number :] = [
            lane.with_member(Member(reducer.feature_versions[name].id, parts, span)),
            *lanes[lane.number + 1 :],
        ]
    return lanes


def columns(lanes: Iterable[Lane]) -> list[str]:
    """The columns that lanes need, in the order of all."""
    used = {name for lane in lanes for name in lane.columns}
    return [name for name in COLUMNS if name in used]


def arrow(name: str) -> pa.Field:
    """A column before it is reduced."""
    return pa.field(name, _ARROW[COLUMNS[name].type])


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the garbage collector: there are no reference cycles, and with many small lists it takes half the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def explode_states(
    lanes: Iterable[Lane], keys: Sequence[bytes], states: Mapping[str, Sequence[Any]], *, counts_late: bool = True
) -> list[pa.RecordBatch]:
    """Convert the packed states of keys, by version id, to rows; ``states[""]`` are their frames.

    Without ``counts_late`` the late events of the frames are those of other states too, and are left out.
    """
    key_array, batches = pa.array(keys, pa.binary()), []
    with _uncollected():
        for lane in lanes:
            made = [] if lane.number else [_frames(lane, states[""], counts_late=counts_late)]
            for member in lane.members:
                if member.version_id in states:
                    _add(made, _rows(member, states[member.version_id]))
            batches += [_batch(rows, key_array, lane.number) for rows in made]
    return batches


def _frames(lane: Lane, packed: Sequence[bytes], *, counts_late: bool) -> _Rows:
    frames = unpack_all(packed)
    if lane.columns[: len(_FRAME_WITH_LATE)] == _FRAME_WITH_LATE:
        # Nulls have no part in what is least or greatest; the number of late events follows the format version.
        seen = (frame[: len(_FRAME)] if frame[: len(EMPTY)] != [*EMPTY] else [None] * len(_FRAME) for frame in frames)
        late = (frame[len(EMPTY) + 1] if counts_late and len(frame) > len(EMPTY) + 1 else 0 for frame in frames)
        columns = zip(*([*frame, count] for frame, count in zip(seen, late, strict=True)), strict=True)
    else:
        columns = zip(*(frame[: len(_FRAME)] for frame in frames), strict=True)
    held: dict[str, Sequence[Any]] = dict(zip(lane.columns, columns, strict=False))
    return _Rows(np.arange(len(packed)), np.zeros(len(packed), np.int64), held)


def _rows(member: Member, packed: Sequence[bytes | None]) -> _Rows:
    places = np.array([number for number, state in enumerate(packed) if state is not None], np.int64)
    states = unpack_all([state for state in packed if state is not None])
    panes = np.zeros(len(states), np.int64)
    if member.span:
        places = np.repeat(places, [len(state) for state in states])
        panes = np.array(list(chain.from_iterable(states)), np.int64)
        states = list(chain.from_iterable(state.values() for state in states))
    return _Rows(places, panes, dict(zip(member.parts.columns, member.parts.explode(states), strict=True)))


def _add(made: list[_Rows], rows: _Rows) -> None:
    """Share rows between feature versions that have exactly the same ones; Catalyst joins the others."""
    for other in made:
        if np.array_equal(other.places, rows.places) and np.array_equal(other.panes, rows.panes):
            other.columns.update(rows.columns)
            return
    made.append(rows)


def _batch(rows: _Rows, keys: pa.Array, lane: int) -> pa.RecordBatch:
    made = {
        "key": keys.take(pa.array(rows.places)),
        "lane": pa.repeat(pa.scalar(lane, pa.int32()), len(rows.places)),
        "pane": pa.array(rows.panes),
    }
    made |= {name: pa.array(held, arrow(name).type) for name, held in rows.columns.items()}
    return pa.RecordBatch.from_pydict(made)


def implode_rows(lanes: Iterable[Lane], rows: pa.Table) -> list[Packed]:
    """What keys have packed, in order, given all their reduced rows, sorted."""
    keys = rows["key"].combine_chunks()
    starts = changes(keys)
    key_of = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(keys)))
    made: list[Packed] = [(key, {}) for key in keys.take(pa.array(starts)).to_pylist()]
    numbers = rows["lane"].to_numpy()
    with _uncollected():
        for lane in lanes:
            at = np.flatnonzero(numbers == lane.number)
            own = rows.take(pa.array(at))
            if lane.number == 0:
                _implode_frames(lane, own, key_of[at], made)
            for member in lane.members:
                _implode(member, own, key_of[at], made)
    return made


def _implode_frames(lane: Lane, rows: pa.Table, key_of: Longs, made: list[Packed]) -> None:
    names = lane.columns[: len(_FRAME_WITH_LATE)]
    late = rows["late"].to_pylist() if names == _FRAME_WITH_LATE else [0] * len(rows)
    frames = zip(*(rows[name].to_pylist() for name in _FRAME), late, strict=True)
    for key, (*seen, count) in zip(key_of.tolist(), frames, strict=True):
        made[key][1][""] = pack_frame(EMPTY if seen[0] is None else (*seen, False), count)


def changes(values: pa.Array) -> Longs:
    """Where values begin that are not the ones before."""
    if not len(values):
        return np.zeros(0, np.int64)
    differs = pc.not_equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(np.append(True, differs))


def _implode(member: Member, rows: pa.Table, key_of: Longs, made: list[Packed]) -> None:
    """Put the states of a life to those of their keys."""
    has_any = np.zeros(len(rows), np.bool_)
    for name in member.parts.columns:
        has_any |= rows[name].is_valid().to_numpy()
    rows, key_of = rows.filter(pa.array(has_any)), key_of[has_any]
    states = member.parts.implode([rows[name].to_pylist() for name in member.parts.columns])
    if not member.span:
        for key, state in zip(key_of.tolist(), states, strict=True):
            made[key][1][member.version_id] = pack(state)
        return
    panes = rows["pane"].to_numpy()
    firsts = np.flatnonzero(np.diff(key_of, prepend=-1))
    lasts = np.append(firsts[1:], len(panes))[: len(firsts)]
    counting = panes > np.repeat(panes[lasts - 1], lasts - firsts) - member.span
    numbers = panes.tolist()
    starts = lasts - np.add.reduceat(counting, firsts) if len(firsts) else firsts
    for key, start, end in zip(key_of[firsts].tolist(), starts.tolist(), lasts.tolist(), strict=True):
        made[key][1][member.version_id] = pack(dict(zip(numbers[start:end], states[start:end], strict=True)))
