"""Performing a unit of the job ``features``: events become a state, or states become one.

Workers do it on Spark, where a shuffle brings the rows of a key together; the server does it where none comes.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from headrace.engine.features.coverage import Chain, holding
from headrace.engine.features.defined import Defined
from headrace.engine.features.folding import Shapes, of_batch
from headrace.engine.features.merging import merged
from headrace.engine.work.units import Unit
from headrace.errors import CorruptData
from headrace.format.state.layout import Info, State
from headrace.format.state.writer import Packed, write
from headrace.schema.registry import Registry

#: Payload that is decoded together.
_SLICE_BYTES = 1024 * 1024
_KEPT = 64

#: A key, the number of the input that has it, and what it has there.
Held = tuple[bytes, int, Mapping[str, bytes]]


def folded(unit: Unit, batches: Iterable[Any], rest: Callable[[], None] = lambda: None) -> Iterator[Packed]:
    """The rows of a unit's events, in the columns of segments; ``rest`` is called between slices of them."""
    import pyarrow as pa

    from headrace.reduce.features.columns import columns, reduced

    shapes, reducer = _shapes(unit), defined_by(unit).reducer
    found, count = [], 0
    for batch in batches:
        for told in of_batch(batch, _SLICE_BYTES):
            seqs = range(told.first_seq, told.first_seq + len(told.times_us))
            times_ms = [at_us // 1000 for at_us in told.times_us]
            found.append(columns(reducer, seqs, times_ms, shapes.events(told.body, told.version)))
            count += len(seqs)
            rest()
    if count != unit.count:
        raise CorruptData(f"the segments of {unit.unit} hold {count} entries, not {unit.count}")
    rows = reduced(reducer, pa.concat_tables(found)) if found else iter(())
    return ((key, reducer.pack(row)) for key, row in rows)


def joined(inputs: Sequence[Iterator[Packed]]) -> Iterator[Held]:
    """The rows of several states, in the order of keys and inputs."""

    def numbered(number: int) -> Iterator[Held]:
        return ((key, number, packed) for key, packed in inputs[number])

    return heapq.merge(*(numbered(number) for number in range(len(inputs))), key=itemgetter(0, 1))


def combined(unit: Unit, rows: Iterable[Held]) -> Iterator[Packed]:
    """The rows of a unit's states, given in the order of keys, as those of one state."""
    defined = defined_by(unit)
    reducer, lives = defined.reducer, unit.lives or {}
    chains = _chains(unit, defined)
    numbers = {state.name: number for number, state in enumerate(unit.states)}
    for key, same in groupby(rows, key=itemgetter(0)):
        parts = {number: packed for _, number, packed in same}
        row = merged(reducer, lives, chains, lambda state, parts=parts: parts.get(numbers[state.name]))  # type: ignore[misc]
        if row is not None:
            yield key, reducer.pack(row)


def written(unit: Unit, rows: Iterable[Packed], directory: Path) -> tuple[Path, State]:
    """The file of a unit's state, under a name of this attempt."""
    assert unit.table is not None and unit.lives is not None
    name = unit.name_begins + secrets.token_hex(4)
    info = Info(
        stream=unit.stream,
        incarnation=unit.incarnation,
        table=unit.table,
        first_seq=unit.first_seq,
        count=unit.count,
        level=unit.level,
        lives=unit.lives,
    )
    path = directory / f"{name}.parquet"
    return path, write(path, info, name, rows)


def defined_by(unit: Unit) -> Defined:
    """The table of a unit, with the features that it asks for."""
    return _restricted(msgspec.json.encode(unit.defined, order="sorted"), tuple(sorted(unit.lives or {})))


def _chains(unit: Unit, defined: Defined) -> list[Chain]:
    """The features of a unit, together where the same states hold them; the longest history first."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, life in sorted(defined.lives.items()):
        held = sorted(holding(life, unit.states), key=lambda state: state.first_seq)
        found.setdefault(tuple(state.name for state in held), []).append(name)
    by_name = {state.name: state for state in unit.states}
    chains = [Chain(tuple(names), tuple(by_name[name] for name in held)) for held, names in found.items() if held]
    return sorted(chains, key=lambda chain: chain.states[0].first_seq)


def _shapes(unit: Unit) -> Shapes:
    return Shapes(_registry(msgspec.json.encode(unit.registry, order="sorted")), defined_by(unit).event)


@lru_cache(maxsize=_KEPT)
def _registry(document: bytes) -> Registry:
    return Registry.load(msgspec.json.decode(document))


@lru_cache(maxsize=_KEPT)
def _restricted(document: bytes, features: tuple[str, ...]) -> Defined:
    return Defined.load(msgspec.json.decode(document)).restricted(features)
