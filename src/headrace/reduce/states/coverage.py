"""Coverage of a definition by states: how far each feature version is folded, what is missing, what to read together.

A state holds some feature versions over a range of events. Every commit of work ensures that no version is held twice
over the same event; so the states of a version, in order, are its history.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from headrace.format.ranges import Range, without
from headrace.format.state import State
from headrace.reduce.states.definition import Definition, KeyedReducer
from headrace.schema.descriptor.nodes import FeatureVersion


class Chain(NamedTuple):
    """Names whose history lies in the same states, which follow each other."""

    names: tuple[str, ...]
    states: tuple[State, ...]


class Base(NamedTuple):
    """What states answer for: everything before ``start``, which is where the tail begins."""

    start: int
    chains: tuple[Chain, ...]
    #: Names of which something before the tail is not folded yet.
    backfilling: frozenset[str]
    #: Names of which something before the tail is in no state, and is not retained any more.
    lost: frozenset[str] = frozenset()

    @property
    def states(self) -> list[State]:
        """Every state that is read, once."""
        return list({state.name: state for chain in self.chains for state in chain.states}.values())

    def carried_on(self, kept: Collection[str], newborn: Collection[str]) -> Base:
        """The same for those that are kept, and for new ones whose first event is not before the end of the tail."""
        left = [(tuple(name for name in chain.names if name in kept), chain.states) for chain in self.chains]
        alone = sorted([*newborn, *(name for names, states in left if not states for name in names)])
        left = [*((names, states) for names, states in left if states), (tuple(alone), ())]
        chains = tuple(Chain(names, states) for names, states in left if names)
        return self._replace(
            chains=chains, backfilling=self.backfilling.intersection(kept), lost=self.lost.intersection(kept)
        )


def span(state: State) -> Range:
    """The events that a state holds."""
    return Range(state.first_seq, state.end_seq)


def base(defined: Definition, states: Sequence[State], first_seq: int, published: int, max_tail: int) -> Base:
    """Choose the states to answer from, and where the tail begins: at the end of the states that reach furthest.

    If more than ``max_tail`` published events follow, they are left to workers: the tail begins at the end of the first
    version that lacks fewer events, or after all published ones if there is none. Events before ``first_seq`` are not
    retained: where no state holds them they are gone.
    """
    histories = {name: history(version, states, first_seq) for name, version in defined.lives.items()}
    ends = [end for held, end in histories.values() if held]
    start = max(ends) if ends else max(defined.start_seq, first_seq)
    if published - start > max_tail:
        start = min([published, *(end for _, end in histories.values() if published - end <= max_tail)])
    complete = {name for name, (_, end) in histories.items() if end >= start}
    names_by_states: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(complete):
        names_by_states.setdefault(tuple(state.name for state in histories[name][0]), []).append(name)
    chains = [Chain(tuple(names), tuple(histories[names[0]][0])) for names in names_by_states.values()]
    chains.sort(key=lambda chain: chain.states[0].first_seq if chain.states else start)
    lost = [name for name, (held, _) in histories.items() if _has_gap(defined.lives[name], held, first_seq)]
    return Base(start, tuple(chains), frozenset(defined.lives.keys() - complete), frozenset(lost))


def history(version: FeatureVersion, states: Iterable[State], first_seq: int) -> tuple[list[State], int]:
    """The states of a feature version from its first event on without a gap, and where they end."""
    end, held_states = version.birth, list[State]()
    for state in sorted(holding(version, states), key=lambda state: state.first_seq):
        if state.first_seq > max(end, first_seq):
            break
        held_states.append(state)
        end = max(end, state.end_seq)
    return held_states, max(end, first_seq)


def _has_gap(version: FeatureVersion, held_states: Iterable[State], first_seq: int) -> bool:
    """Whether events that count for a version are neither in its states nor retained."""
    end = version.birth
    for state in held_states:
        if state.first_seq > end:
            return True
        end = max(end, state.end_seq)
    return end < (first_seq if version.end is None else min(first_seq, version.end))


def holding(version: FeatureVersion, states: Iterable[State]) -> list[State]:
    """The states that hold a feature version."""
    return [state for state in states if version.id in state.lives.values()]


def missing(defined: Definition, states: Sequence[State], events: Range) -> list[tuple[Range, dict[str, str]]]:
    """The events of a range that are not folded yet, in order, and the feature versions that lack them."""
    lacking: dict[str, list[Range]] = {}
    for name, version in defined.lives.items():
        wanted = Range(max(events.first, version.birth), events.end)
        if wanted.first < wanted.end:
            lacking[name] = without([wanted], map(span, holding(version, states)))
    edges = sorted({edge for ranges in lacking.values() for gap in ranges for edge in gap})
    cells: list[tuple[Range, dict[str, str]]] = []
    for first, end in pairwise(edges):
        cell = Range(first, end)
        names = [name for name, ranges in lacking.items() if any(gap.overlaps(cell) for gap in ranges)]
        if names:
            cells.append((cell, {name: defined.lives[name].id for name in sorted(names)}))
    return cells


def unused_states(definitions: Iterable[Definition], states: Iterable[State]) -> list[str]:
    """The names of states that hold no feature version of any of these definitions."""
    alive = {(defined.name, version.id) for defined in definitions for version in defined.lives.values()}
    return [
        state.name for state in states if not any((state.table, version) in alive for version in state.lives.values())
    ]


Packed = Mapping[str, bytes]


def merge_row(
    reducer: KeyedReducer[Any, Any],
    version_ids: Mapping[str, str],
    chains: Sequence[Chain],
    find: Callable[[State], Packed | None],
) -> Any:
    """The row of a key, given what each state has of it; None where none has anything. ``version_ids`` are by name."""
    rows = [row for chain in chains if (row := _merge_chain(reducer, version_ids, chain, find)) is not None]
    if len(rows) <= 1:
        return rows[0] if rows else None
    # The frame is that of the longest history, which comes first.
    packed: dict[str, bytes] = {}
    for row in reversed(rows):
        packed |= reducer.pack(row)
    return reducer.unpack(packed)


def _merge_chain(
    reducer: KeyedReducer[Any, Any],
    version_ids: Mapping[str, str],
    chain: Chain,
    find: Callable[[State], Packed | None],
) -> Any:
    """Merge the versions of one chain over all its states."""
    wanted = {"", *(version_ids[name] for name in chain.names)}
    row = None
    for state in chain.states:
        packed = find(state)
        if packed is not None:
            part = reducer.unpack(
                {version: packed_state for version, packed_state in packed.items() if version in wanted}
            )
            row = part if row is None else reducer.merge(row, part)
    return row
