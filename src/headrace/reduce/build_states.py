"""Performs units that build states: events become a state, or several states become one.

Workers do it on Spark, where a shuffle brings the rows of a key together; the server does it where none comes.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from headrace.format.state import State, StateInfo
from headrace.format.state_file import Packed, PackedColumns, write
from headrace.reduce.fragments import build as fragments
from headrace.reduce.policies import build as types
from headrace.reduce.states.coverage import Chain, holding, merge_row
from headrace.reduce.states.definition import Definition
from headrace.reduce.work_units import JobName, Unit

#: A key, the number of the input that has it, and what it has there.
InputRow = tuple[bytes, int, Mapping[str, bytes]]


class JobFolder(Protocol):
    """How the units of one job are made."""

    def defined_by(self, unit: Unit) -> Definition:
        """The definition that a unit folds, restricted to the feature versions that it names."""

    def fold_events(
        self, unit: Unit, batches: Iterable[Any], rest: Callable[[], None]
    ) -> Iterator[Packed] | PackedColumns:
        """The rows of a unit's events."""


def folder_of(job: JobName) -> JobFolder:
    """How the units of a job are made; what makes them is loaded then."""
    if job == "snapshots":
        return types
    if job == "enhance":
        return fragments
    if job != "features":
        raise ValueError(f"the job {job} makes no states")
    from headrace.reduce.features import build as tables  # only workers that fold tables need it

    return tables


def defined_by(unit: Unit) -> Definition:
    """The definition that a unit folds, restricted to the feature versions that it names."""
    return folder_of(unit.job).defined_by(unit)


def fold_events(
    unit: Unit, batches: Iterable[Any], rest: Callable[[], None] = lambda: None
) -> Iterator[Packed] | PackedColumns:
    """The rows of a unit's events, in the columns of segments; ``rest`` is called between slices of them."""
    return folder_of(unit.job).fold_events(unit, batches, rest)


def merge_inputs(inputs: Sequence[Iterator[Packed]]) -> Iterator[InputRow]:
    """The rows of several states, in the order of keys and inputs."""

    def numbered(number: int) -> Iterator[InputRow]:
        return ((key, number, packed) for key, packed in inputs[number])

    return heapq.merge(*(numbered(number) for number in range(len(inputs))), key=itemgetter(0, 1))


def merge_states(unit: Unit, rows: Iterable[InputRow]) -> Iterator[Packed]:
    """The rows of a unit's states, given in the order of keys, as those of one state."""
    defined = defined_by(unit)
    reducer, version_ids = defined.reducer, unit.lives or {}
    chains = _chains(unit, defined)
    numbers = {state.name: number for number, state in enumerate(unit.states)}
    for key, same in groupby(rows, key=itemgetter(0)):
        parts = {number: packed for _, number, packed in same}
        if len(parts) == 1 and len(chains) == 1:
            yield key, reducer.renew(next(iter(parts.values())))  # there is nothing to merge it with
            continue
        row = merge_row(reducer, version_ids, chains, lambda state, parts=parts: parts.get(numbers[state.name]))  # type: ignore[misc]
        if row is not None:
            yield key, reducer.pack(row)


def longest_history(unit: Unit) -> frozenset[str]:
    """The names of the states of a unit whose frames hold each of its events once; other states repeat some."""
    return frozenset(state.name for state in _chains(unit, defined_by(unit))[0].states)


def write_state(unit: Unit, rows: Iterable[Packed] | PackedColumns, directory: Path) -> tuple[Path, State]:
    """The file of a unit's state, under a name of this attempt."""
    assert unit.table is not None and unit.lives is not None
    name = unit.name_begins + secrets.token_hex(4)
    info = StateInfo(
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


def _chains(unit: Unit, defined: Definition) -> list[Chain]:
    """The feature versions of a unit, grouped by the states that hold them; the longest history first."""
    names_by_states: dict[tuple[str, ...], list[str]] = {}
    for name, version in sorted(defined.lives.items()):
        held = sorted(holding(version, unit.states), key=lambda state: state.first_seq)
        names_by_states.setdefault(tuple(state.name for state in held), []).append(name)
    by_name = {state.name: state for state in unit.states}
    chains = [
        Chain(tuple(names), tuple(by_name[name] for name in held)) for held, names in names_by_states.items() if held
    ]
    return sorted(chains, key=lambda chain: chain.states[0].first_seq)
