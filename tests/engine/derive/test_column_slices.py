"""Runs of events that are folded into tails as columns, cut and stopped anywhere, are those folded one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.derive.column_slices import fold_runs, slices
from headrace.engine.derive.generation import Generation
from headrace.format.decoded_columns import LruCache
from headrace.reduce.features.build import TableColumns
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.events import EventShapes
from headrace.reduce.states.coverage import Base
from headrace.reduce.states.definition import EventRun
from headrace.schema.descriptor.nodes import Event, EventField, Feature, FeatureVersion, Table
from headrace.schema.registry import Registry

SOURCE = Event("E", {"user": EventField("str", required=False), "shop": EventField("i64"), "x": EventField("f64")})
SHAPES = EventShapes(Registry.empty("events/E"), SOURCE)
FEATURES = {
    "n": Feature("count", {"window": 5000}),
    "total": Feature("sum", {"field": "x"}),
    "newest": Feature("last_n", {"field": "x", "n": 3}),
    "run": Feature("max_streak", {"where": "(x > 2)"}),
}
KEYS = {"ByUser": ("user",), "ByShop": ("shop",)}
DEFINED = [
    TableDefinition(
        name,
        "E",
        "events/E",
        {"E": SOURCE, name: Table(name, "E", key, FEATURES)},
        {feature: FeatureVersion(f"{feature}-1", 0) for feature in FEATURES},
    )
    for name, key in KEYS.items()
]
values = st.fixed_dictionaries(
    {"user": st.sampled_from(["a", "b", "c", None]), "shop": st.integers(0, 2), "x": st.integers(0, 5)}
)


def tails(positions: Sequence[int]) -> list[Generation]:
    pairs = zip(DEFINED, positions, strict=True)
    return [Generation(table, Base(start, (), frozenset()), {}, LruCache(0), hot_rows=2) for table, start in pairs]


def runs(made: list[list[dict[str, object]]]) -> list[EventRun]:
    starts, bodies = count(10), []
    for some in made:
        seqs = [next(starts) for _ in some]
        times = [seq * 900_000 for seq in seqs]
        bodies.append(EventRun(seqs[0], 0, times, msgspec.json.encode(some)[1:-1]))
    return bodies


def answers(tail: Generation) -> list[object]:
    reducer, keys = tail.fold.reducer, ("a", "b", "c") if tail.defined.name == "ByUser" else (0, 1, 2)
    return [tail.position, *(reducer.finish(tail.row(reducer.key(key)), 10**5) for key in keys)]


def stop_after(steps: int) -> Callable[[], bool]:
    left = iter(range(steps))
    return lambda: next(left, None) is not None


@given(
    st.lists(st.lists(values, min_size=1, max_size=6), min_size=1, max_size=8),
    st.tuples(st.integers(10, 20), st.integers(10, 20)),
    st.lists(st.integers(0, 12), max_size=4),
)
def test_tails_are_the_same_however_they_are_cut_and_stopped(
    made: list[list[dict[str, object]]], positions: tuple[int, int], stops: list[int]
) -> None:
    plain, columns, events = tails(positions), tails(positions), runs(made)
    fold_runs(events, SHAPES, plain, None, lambda: True)
    for steps in stops:
        fold_runs(events, SHAPES, columns, TableColumns, stop_after(steps))
    for at in range(0, len(events), 2):
        fold_runs(events[: at + 2], SHAPES, columns, TableColumns, lambda: True)
    end = events[-1].first_seq + len(events[-1].times_us)
    for one, other, start in zip(plain, columns, positions, strict=True):
        assert answers(one) == answers(other)
        assert other.position == max(start, end)


def test_events_that_are_no_columns_are_folded_one_by_one() -> None:
    body = b'{"user":"a","shop":1,"x":1.0},{"user":7,"shop":2,"x":2.0},{"user":"a","shop":3,"x":3.0}'
    plain, columns = tails((0, 0)), tails((0, 0))
    for made, columns_of in ((plain, None), (columns, TableColumns)):
        fold_runs([EventRun(0, 0, [0, 1, 2], body)], SHAPES, made, columns_of, lambda: True)
    reducer = columns[0].fold.reducer
    assert reducer.finish(columns[0].row(reducer.key("a")), 3)["total"] == 4.0
    assert list(map(answers, plain)) == list(map(answers, columns))


def test_slices_have_a_bounded_number_of_events() -> None:
    events = [EventRun(at * 40_000, 1, range(40_000), b"") for at in range(5)]
    assert [len(together) for together in slices(events)] == [1] * 5
    assert [len(together) for together in slices([EventRun(0, 1, [0], b"")] * 9)] == [9]
    assert [len(together) for together in slices([EventRun(0, 1, [0], bytes(2**23))] * 7)] == [3, 3, 1]
