"""Folding the observations of a unit of the job ``snapshots``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace import decoding
from headrace.errors import CorruptData
from headrace.format.segment import layout
from headrace.format.state_file import Packed
from headrace.reduce.policies.arrays import merge_elements
from headrace.reduce.policies.definition import TypeDefinition
from headrace.reduce.policies.fields import Policies, encode_fields
from headrace.reduce.policies.order import Key, Origin, last_write_key, origin_of
from headrace.reduce.policies.reducer import EntityState, TypeReducer, encode_frame
from headrace.reduce.states.definition import EventRun, Folded
from headrace.reduce.work_units import Unit
from headrace.schema.entity.observation import Observation


class _Folded(msgspec.Struct, gc=False):
    """The members of an observation that are folded; the others are not even read, which takes a third of the time."""

    id: str
    kind: str
    entity_id: str
    user_id: str
    schema_version: str
    source_id: str | None
    observed_at_us: int
    source_priority: int
    observation_source: str
    specificity_score: float | None = None
    fields: dict[str, Any] = {}
    run_id: str | None = None


OBSERVATIONS = cast("msgspec.json.Decoder[list[Observation]]", decoding.make_decoder(list[_Folded]))


class ObservationShapes:
    """Turns stored bodies into observations."""

    def decode_run(self, run: EventRun) -> Iterator[Folded]:
        """The observations of a body, with the time they were appended in milliseconds."""
        for at, observation in enumerate(OBSERVATIONS.decode(b"[" + run.body + b"]")):
            yield run.first_seq + at, run.times_us[at] // 1000, observation


SHAPES = ObservationShapes()


#: An observation with its sequence number and the time it was appended, µs.
SeenObservation = tuple[int, int, Observation]


def fold_observations(
    reducer: TypeReducer, observations: Iterable[SeenObservation], rows: dict[bytes, EntityState] | None = None
) -> dict[bytes, EntityState]:
    """Fold observations into one state for each entity; rows that are given are continued, and changed."""
    rows = {} if rows is None else rows
    key_and_row, fold, held = reducer.key_and_row, reducer.fold, rows.get
    for seq, at_us, observation in observations:
        placed = key_and_row(observation)
        if placed is not None:
            key, row = placed
            rows[key] = fold(held(key), at_us // 1000, seq, row)
    return rows


def pack_rows(reducer: TypeReducer, rows: dict[bytes, EntityState]) -> Iterator[tuple[bytes, dict[str, bytes]]]:
    """The packed rows in the order of keys; ``rows`` is empty afterwards."""
    for key in sorted(rows):
        yield key, reducer.pack(rows.pop(key))


def reduce_observations(
    reducer: TypeReducer, observations: Iterable[SeenObservation]
) -> Iterator[tuple[bytes, dict[str, bytes]]]:
    """The packed rows of observations."""
    return pack_rows(reducer, fold_observations(reducer, observations))


#: Observations that are decoded together.
_SLICE = 2048


class _Batch(NamedTuple):
    """Stored observations: their numbers, times and keys, and where each begins and ends in a piece of memory."""

    seqs: Any
    times_us: Any
    keys: Any
    starts: Any
    ends: Any
    memory: memoryview


class ObservationBatches:
    """Stored observations, whose keys are the entities that they are about."""

    def __init__(self) -> None:
        self._batches: list[_Batch] = []

    def __len__(self) -> int:
        return sum(len(batch.seqs) for batch in self._batches)

    def add(self, batch: Any) -> None:
        """More observations, later than all others: a record batch in the columns of a segment."""
        seqs, times = (batch.column(name).cast("int64").to_numpy() for name in (layout.SEQ, layout.APPEND_TIME))
        payloads = batch.column(layout.PAYLOAD)
        _, offsets, data = payloads.buffers()
        places = np.frombuffer(offsets, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1]
        self._batches.append(_Batch(seqs, times, batch.column(layout.KEY), places[:-1], places[1:], memoryview(data)))

    def by_entity(self) -> Iterator[list[SeenObservation]]:
        """All of them in slices: those of one entity in order, after those of entities with lesser ids."""
        if not self._batches:
            return
        seqs, times, keys, starts, ends, memories = zip(*self._batches, strict=True)
        order = pc.sort_indices(pa.concat_arrays(keys)).to_numpy()  # keeps the order of equal ones
        held = np.repeat(np.arange(len(memories)), [len(numbers) for numbers in seqs])
        columns = [np.concatenate(column)[order] for column in (seqs, times, starts, ends, [held])]
        for at in range(0, len(order), _SLICE):
            seq, time, start, end, number = (column[at : at + _SLICE].tolist() for column in columns)
            bodies = [memories[of][first:last] for of, first, last in zip(number, start, end, strict=True)]
            observations = OBSERVATIONS.decode(b"[" + b",".join(bodies) + b"]")
            yield list(zip(seq, time, observations, strict=True))


_PLAIN = "observation"

#: An observation with its key among others, and what a state keeps of it.
Keyed = tuple[Key, Origin, Observation]
#: The numbers that a state gives to observations, by their places in the order.
Numbers = dict[int, int]


def pack_entities(
    reducer: TypeReducer, observations: Iterable[SeenObservation]
) -> Iterator[tuple[bytes, dict[str, bytes]]]:
    """Rows as they are kept, given all observations of an entity together, and in the order of the log."""
    for entity_id, same in groupby(observations, key=_entity_id):
        entity_observations = list(same)
        ordered = _order_by_last_write(entity_observations)
        if ordered is None:
            yield from reduce_observations(reducer, entity_observations)
        elif names := reducer.versions_for(ordered[0][2].user_id):
            row = {"": _frame(entity_observations, ordered[0][2])}
            for name in names:
                row[reducer.ids[name]] = _fields(reducer.policies[name], ordered)
            yield entity_id.encode(), row


def _entity_id(observation: SeenObservation) -> str:
    return observation[2].entity_id


def _order_by_last_write(observations: Sequence[SeenObservation]) -> list[Keyed] | None:
    """Observations in the order of last_write; None where that order does not suffice."""
    keyed: list[Keyed] = []
    user_id = observations[0][2].user_id
    for _, _, observation in observations:
        if observation.kind != _PLAIN or observation.user_id != user_id or observation.run_id is not None:
            return None
        kept = origin_of(observation)
        keyed.append((last_write_key(kept), kept, observation))
    if len(keyed) > 1:
        keyed.sort(key=itemgetter(0))
        if len({key for key, _, _ in keyed}) < len(keyed):
            return None
    return keyed


def _frame(observations: Sequence[SeenObservation], newest: Observation) -> bytes:
    (first_seq, first_us, _), (last_seq, last_us, _) = observations[0], observations[-1]
    latest = -newest.observed_at_us, newest.id, newest.schema_version
    return encode_frame(first_seq, first_us // 1000, last_seq, last_us // 1000, len(observations), latest, None)


def _fields(policies: Policies, ordered: Sequence[Keyed]) -> bytes:
    """The fields as they are kept; observations are numbered as fields in the order of their names come to them."""
    numbers: Numbers = {}
    rows: list[Any] = []
    if policies.priorities:
        ordered = [(key, origin_of(observation, policies.priorities), observation) for key, _, observation in ordered]
    latest, keys, arrays = _latest(ordered), policies.keys, policies.arrays
    for name in sorted(latest):
        index = latest[name]
        if name in keys:
            if name in arrays:
                rows.append(_pack_array(name, ordered, numbers))
                continue
            index = _best(keys[name], name, ordered)
        rows.append((name, numbers.setdefault(index, len(numbers)), ordered[index][2].fields[name]))
    return encode_fields([ordered[index][1] for index in numbers], rows)


def _latest(ordered: Sequence[Keyed]) -> dict[str, int]:
    """The place of the first observation with each field."""
    indices = dict.fromkeys(ordered[0][2].fields, 0)
    for index in range(1, len(ordered)):
        fields = ordered[index][2].fields
        if not fields.keys() <= indices.keys():
            indices = dict.fromkeys(fields, index) | indices
    return indices


def _best(key: Callable[[Origin], Key], name: str, ordered: Sequence[Keyed]) -> int:
    """The place of the observation that another order puts before all others with a field."""
    having = [index for index, (_, _, observation) in enumerate(ordered) if name in observation.fields]
    return having[0] if len(having) == 1 else min(having, key=lambda index: key(ordered[index][1]))


def _pack_array(name: str, ordered: Sequence[Keyed], numbers: Numbers) -> tuple[str, int, list[Any], bool]:
    """The values of merge_array as they are kept: those of the observations with the greatest priority."""
    values: list[tuple[int, Any]] = []
    greatest: int | None = None
    for index, (_, kept, observation) in enumerate(ordered):
        if name in observation.fields:
            priority = kept.source_priority
            if greatest is None or priority > greatest:
                greatest, values = priority, []
            if priority == greatest:
                values.append((index, observation.fields[name]))
    elements, dropped = merge_elements(values)
    first = numbers.setdefault(values[0][0], len(numbers))
    rows = [(numbers.setdefault(index, len(numbers)), position, element) for index, position, element in elements]
    return name, first, rows, dropped


_KEPT = 64


def fold_events(unit: Unit, batches: Iterable[Any], rest: Callable[[], None]) -> Iterator[Packed]:
    """The rows of a unit's observations, in the columns of segments; ``rest`` is called between slices of them."""
    gathered = ObservationBatches()
    for batch in batches:
        gathered.add(batch)
        rest()
    if (count := len(gathered)) != unit.count:
        raise CorruptData(f"the segments of {unit.unit} hold {count} entries, not {unit.count}")
    return pack_entities(defined_by(unit).reducer, _observations(gathered, rest))


def _observations(gathered: ObservationBatches, rest: Callable[[], None]) -> Iterator[SeenObservation]:
    for observations in gathered.by_entity():
        yield from observations
        rest()


def defined_by(unit: Unit) -> TypeDefinition:
    """The entity type of a unit, restricted to the versions that it names."""
    return _load_definition(msgspec.json.encode(unit.defined, order="sorted"), tuple(sorted(unit.lives or {})))


@lru_cache(maxsize=_KEPT)
def _load_definition(document: bytes, names: tuple[str, ...]) -> TypeDefinition:
    return TypeDefinition.load(msgspec.json.decode(document)).restricted(names)
