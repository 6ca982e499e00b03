"""Statistics of the fragments with one key of one user, counted in any order."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from operator import itemgetter
from typing import Any

import msgspec

from headrace.operators.reducer import Reducer
from headrace.reduce.fragments.shapes import NULL, shape_of
from headrace.schema.canonical import value_text
from headrace.schema.entity.accept import Fragment
from headrace.schema.entity.observation import Observation

MAX_HASHES = 512

_RANGE = 2**64
_KEPT = 1 << 15


def add_text(held: set[int], text: str) -> None:
    """Add the hash of a text to a set of which the least hashes are kept."""
    held.add(_hash(text))
    if len(held) > 2 * MAX_HASHES:
        held.intersection_update(least(held))


def merge_texts(parts: Iterable[set[int]]) -> set[int]:
    """The texts of all; none of them is changed."""
    return set(least(set().union(*parts)))


def least(held: set[int]) -> list[int]:
    """The hashes that are kept, in their order."""
    return sorted(held)[:MAX_HASHES]


def estimate_count(held: set[int]) -> int:
    """About how many different texts were added; exact as long as all hashes are kept."""
    if len(held) < MAX_HASHES:
        return len(held)
    return round((MAX_HASHES - 1) * _RANGE / least(held)[-1])


@lru_cache(maxsize=_KEPT)
def _hash(text: str) -> int:
    """The hash of a text, cached because the same users, sources and entities recur."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


MAX_EXAMPLES = 5
LONGEST_EXAMPLE = 200


class ShapeCount(msgspec.Struct):
    """The values of one shape: how many, and the sources that they are from."""

    count: int = 0
    sources: set[int] = msgspec.field(default_factory=set)


class Stats(msgspec.Struct):
    """The fragments with one key; those of values that were converted are only counted.

    ``kinds`` are the kinds of sources. The examples are those with the least hashes, so they are always the same.
    """

    first_us: int
    last_us: int
    converted: int = 0
    nulls: int = 0
    shapes: dict[str, ShapeCount] = msgspec.field(default_factory=dict)
    kinds: dict[str, int] = msgspec.field(default_factory=dict)
    users: set[int] = msgspec.field(default_factory=set)
    entities: set[int] = msgspec.field(default_factory=set)
    examples: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def frequency(self) -> int:
        """How many values have no place yet, or had none when they came."""
        return sum(tally.count for tally in self.shapes.values())

    def sources(self, shapes: Iterable[str]) -> int:
        """How many sources the values with these shapes are from."""
        return estimate_count(merge_texts(self.shapes[shape].sources for shape in shapes))


class StatsReducer(Reducer[tuple[Observation, Fragment], Stats, bytes]):
    """The fragments with one key as a reducer; times are in microseconds."""

    order = "any"

    def fold(
        self, state: Stats | None, at: int, seq: int, row: tuple[Observation, Fragment], matched: bool = True
    ) -> Stats:
        """The statistics with one more fragment of an observation."""
        observation, fragment = row
        stats = Stats(at, at) if state is None else state
        stats.first_us, stats.last_us = min(stats.first_us, at), max(stats.last_us, at)
        if fragment.reason == "converted_value_original":
            stats.converted += 1
            return stats
        shape = shape_of(fragment.value)
        if shape == NULL:
            stats.nulls += 1
            return stats
        tally = stats.shapes.setdefault(shape, ShapeCount())
        tally.count += 1
        if observation.source_id is not None:
            add_text(tally.sources, observation.source_id)
        stats.kinds[observation.observation_source] = stats.kinds.get(observation.observation_source, 0) + 1
        add_text(stats.users, observation.user_id)
        add_text(stats.entities, observation.entity_id)
        _add_example(stats, fragment.value)
        return stats

    def merge_both(self, left: Stats, right: Stats) -> Stats:
        """The statistics of both."""
        examples = dict(left.examples)
        for digest, shown in right.examples.items():
            examples[digest] = min(examples.get(digest, shown), shown, key=_encode)
        return Stats(
            min(left.first_us, right.first_us),
            max(left.last_us, right.last_us),
            left.converted + right.converted,
            left.nulls + right.nulls,
            {shape: _tally(left, right, shape) for shape in {**left.shapes, **right.shapes}},
            {kind: left.kinds.get(kind, 0) + right.kinds.get(kind, 0) for kind in {**left.kinds, **right.kinds}},
            merge_texts([left.users, right.users]),
            merge_texts([left.entities, right.entities]),
            {digest: examples[digest] for digest in sorted(examples)[:MAX_EXAMPLES]},
        )

    def finish(self, state: Stats | None, now: int = 0) -> Stats | None:
        """The statistics as they are."""
        return state

    def pack(self, state: Stats) -> bytes:
        """The statistics as bytes, which are the same for the same fragments."""
        shapes = {shape: [tally.count, least(tally.sources)] for shape, tally in state.shapes.items()}
        head = [state.first_us, state.last_us, state.converted, state.nulls, shapes, state.kinds]
        return _encode(
            [*head, least(state.users), least(state.entities), sorted(state.examples.items(), key=itemgetter(0))]
        )

    def unpack(self, packed: bytes) -> Stats:
        """The statistics in these bytes."""
        first_us, last_us, converted, nulls, shapes, kinds, users, entities, examples = msgspec.json.decode(packed)
        tallies = {shape: ShapeCount(count, set(sources)) for shape, (count, sources) in shapes.items()}
        return Stats(first_us, last_us, converted, nulls, tallies, kinds, set(users), set(entities), dict(examples))


STATS = StatsReducer()


def _add_example(stats: Stats, value: Any) -> None:
    text = value_text(value)
    digest = blake2b(text.encode(), digest_size=8).hexdigest()
    if len(stats.examples) == MAX_EXAMPLES and digest > max(stats.examples):
        return
    shown = value if len(text) <= LONGEST_EXAMPLE else text[:LONGEST_EXAMPLE]
    # One value may be spelled in several ways, of which one is shown.
    held = stats.examples.get(digest, shown)
    stats.examples[digest] = min(held, shown, key=_encode)
    if len(stats.examples) > MAX_EXAMPLES:
        del stats.examples[max(stats.examples)]


def _tally(left: Stats, right: Stats, shape: str) -> ShapeCount:
    parts = [tally for tally in (left.shapes.get(shape), right.shapes.get(shape)) if tally is not None]
    return ShapeCount(sum(tally.count for tally in parts), merge_texts(tally.sources for tally in parts))


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")
