"""The meaning of a rollup, in plain Python: the states of events, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headrace.query import predicate
from headrace.query.search import Rollup, Search
from headrace.query.values import values
from headrace.reduce.keys import key
from headrace.reduce.measures import reducers
from headrace.reduce.rollup import FARTHEST, Span
from headrace.reduce.state import State, merge

#: The state of every measure by the start of its pane and the key of its group.
Groups = dict[tuple[int, str], dict[str, State]]


def lift(
    documents: Iterable[Any], rollup: Rollup, search: Search, interval: int, *, spans: Sequence[Span] | None = None
) -> Groups:
    """The panes of some events of the newest shape, of any size of number; only those with a time in the spans."""
    measures = reducers(rollup, search)
    groups: Groups = {}
    for time, key_, document in _counted(documents, rollup, search):
        if spans is None or any(start <= time < end for start, end in spans):
            lifted = {name: reducer.lift(document) for name, reducer in measures.items()}
            merge_into(groups, (time // interval * interval, key_), lifted)
    return groups


def merge_into(groups: Groups, place: tuple[int, str], states: dict[str, State]) -> None:
    """Add states to a group."""
    known = groups.setdefault(place, {})
    for name, state in states.items():
        known[name] = merge(known[name], state) if name in known else state


def _counted(documents: Iterable[Any], rollup: Rollup, search: Search) -> Iterator[tuple[int, str, Any]]:
    """The events that count in a rollup, with their time and the key of their group."""
    matches = predicate.compile(rollup.include, search) if rollup.include else lambda _: True
    dimensions = [search[name] for name in rollup.dimensions]
    for document in documents:
        times = values(search[rollup.timestamp], document)
        found = [values(field, document) for field in dimensions]
        if len(times) == 1 and all(len(given) <= 1 for given in found) and matches(document):
            time = int(times[0])
            if -FARTHEST <= time <= FARTHEST:
                yield time, key([given[0] if given else None for given in found]), document
