"""The fragments of an entity type as states are kept of them, and folding those of a unit of the job ``enhance``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec

from headrace import decoding
from headrace.errors import CorruptData
from headrace.format.state_file import Packed
from headrace.reduce.fragments.reducer import VERSION_ID, FragmentReducer, UserFragments
from headrace.reduce.states.definition import EventRun, Folded
from headrace.reduce.states.fold import runs_of_batch
from headrace.reduce.work_units import Unit
from headrace.schema.descriptor.nodes import FeatureVersion
from headrace.schema.entity.observation import Observation

#: What tells the fragments of a type apart from the type itself, which is folded over the same stream.
_SUFFIX = "/fragments"
#: Payload that is decoded together.
_SLICE_BYTES = 1024 * 1024
_OBSERVATIONS = decoding.make_decoder(list[Observation])
_REDUCER = FragmentReducer()


def name_of(entity_type: str) -> str:
    """What the fragments of a type are called among all that is folded."""
    return entity_type + _SUFFIX


class FragmentsDefinition(msgspec.Struct, frozen=True, dict=True):
    """The fragments of an entity type; they are always counted alike."""

    entity_type: str
    #: The stream of its observations.
    stream: str
    is_alive: bool = True

    @property
    def name(self) -> str:
        """A name of its own: the snapshots of the type have the name of the type."""
        return name_of(self.entity_type)

    @property
    def source(self) -> str:
        """The entity type."""
        return self.entity_type

    @property
    def delays_retention(self) -> bool:
        """Observations are retained for ever."""
        return True

    @property
    def start_seq(self) -> int:
        """The first observation: all of them are counted."""
        return 0

    @cached_property
    def lives(self) -> Mapping[str, FeatureVersion]:
        """The only version; none where the definition was restricted to other names."""
        return {"": FeatureVersion(VERSION_ID, 0)} if self.is_alive else {}

    @property
    def reducer(self) -> FragmentReducer:
        """What folds it."""
        return _REDUCER

    def with_versions(self, versions: Mapping[str, FeatureVersion]) -> FragmentsDefinition:
        """The same: no version of it is ever replaced by one that answers in its place."""
        return self

    def restricted(self, names: Collection[str]) -> FragmentsDefinition:
        """The same definition, which keeps its version only where ``names`` contains its name."""
        return msgspec.structs.replace(self, is_alive=self.is_alive and "" in names)

    def dump(self) -> object:
        """The definition as a document."""
        return msgspec.to_builtins(self)


class FragmentShapes:
    """Turns stored bodies into observations with their fragments."""

    def decode_run(self, run: EventRun) -> Iterator[Folded]:
        """The observations of a body, with the time they were appended in microseconds."""
        observations = _OBSERVATIONS.decode(b"[" + run.body + b"]")
        return zip(range(run.first_seq, run.first_seq + len(observations)), run.times_us, observations, strict=True)


SHAPES = FragmentShapes()


def fold_events(unit: Unit, batches: Iterable[Any], rest: Callable[[], None]) -> Iterator[Packed]:
    """The rows of a unit's users, in the columns of segments; ``rest`` is called between slices of them."""
    rows: dict[bytes, UserFragments] = {}
    count = 0
    for batch in batches:
        for run in runs_of_batch(batch, _SLICE_BYTES):
            for seq, at_us, observation in SHAPES.decode_run(run):
                placed = _REDUCER.key_and_row(observation)
                if placed is not None:
                    key, row = placed
                    rows[key] = _REDUCER.fold(rows.get(key), at_us, seq, row)
            count += len(run.times_us)
            rest()
    if count != unit.count:
        raise CorruptData(f"the segments of {unit.unit} hold {count} entries, not {unit.count}")
    return ((key, _REDUCER.pack(rows.pop(key))) for key in sorted(rows))


def defined_by(unit: Unit) -> FragmentsDefinition:
    """The fragments that a unit counts."""
    return decoding.convert(unit.defined, FragmentsDefinition).restricted(tuple(unit.lives or {}))
