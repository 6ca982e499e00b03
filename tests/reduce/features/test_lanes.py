"""States as rows for Catalyst: which operators go that way, which lives share rows, and what comes back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import find

from headrace.operators.catalogue import DECLARATIONS, make_operator
from headrace.operators.parts import COLUMNS, INTEGERS
from headrace.operators.state_bytes import pack, unpack
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.lanes import Lane, assign_lanes, columns, explode_states, implode_rows
from headrace.reduce.features.table import TableReducer
from headrace.schema.descriptor.nodes import Event, EventField, Feature, FeatureVersion, Table
from operators.events import TYPES
from operators.law import EXAMPLES
from operators.reducing import reduced

SORTED = ("key", "lane", "pane")

REDUCED = {
    *(
        "count",
        "sum",
        "sum_squares",
        "mean",
        "min",
        "max",
        "ratio",
        "var",
        "std",
        "geo_spread",
        "n_unique",
        "burst_count",
        "quantile",
    ),
    *("outlier_count", "first_seen", "last_seen", "age", "has_seen", "time_since", "first_seen_in_window"),
    "inter_arrival_stats",
}


def table(cold: tuple[tuple[int, int | None], ...] = ((0, None),), **features: Feature) -> TableReducer:
    """A table over one source, without the registry."""
    schema = {name: EventField(kind, required=False) for name, kind in TYPES.items()} | {"k": EventField("str")}
    nodes = {"E": Event("E", schema), "T": Table("T", "E", ("k",), features)}
    lives = {name: FeatureVersion(f"life-{name}", 0) for name in features}
    return TableDefinition("T", "E", "events/E", nodes, lives, cold).reducer


def packed(reducer: TableReducer, *events: tuple[str, int, dict[str, Any]]) -> dict[bytes, dict[str, bytes]]:
    """What every key of these events has."""
    rows: dict[bytes, Any] = {}
    for seq, (key, at_ms, values) in enumerate(events):
        placed = reducer.key_and_row({"k": key, **values})
        assert placed is not None
        rows[placed[0]] = reducer.fold(rows.get(placed[0]), at_ms, seq, placed[1])
    return {key: reducer.pack(row) for key, row in sorted(rows.items())}


def there(found: list[Lane], held: dict[bytes, dict[str, bytes]]) -> list[pa.RecordBatch]:
    lives = {life for one in held.values() for life in one}
    return explode_states(found, list(held), {life: [one.get(life) for one in held.values()] for life in lives})


def and_back(found: list[Lane], batches: list[pa.RecordBatch]) -> dict[bytes, dict[str, bytes]]:
    rows = pa.concat_tables([pa.Table.from_batches([one]) for one in batches], promote_options="default")
    made = reduced(rows, SORTED, columns(found))
    return dict(implode_rows(found, made.sort_by([(name, "ascending") for name in SORTED])))


def test_commutative_operators_that_catalyst_has_aggregates_for_are_reduced_by_it() -> None:
    params = {name: find(values, lambda value: True) for name, values in EXAMPLES.items()} | {"field": "x"}
    made = {op: make_operator(op, params, TYPES) for op in DECLARATIONS}
    assert {op for op, found in made.items() if found.catalyst_parts() is not None} == REDUCED
    assert all(made[op].order == "any" for op in REDUCED)


def test_lives_with_the_same_panes_and_different_columns_share_a_lane() -> None:
    hour = {"window": 3_600_000}
    found = assign_lanes(
        table(
            count=Feature("count", hour),
            mean=Feature("mean", {"field": "x", **hour}),
            sum=Feature("sum", {"field": "x", **hour}),
            total=Feature("sum", {"field": "x"}),
            uniq=Feature("n_unique", {"field": "s"}),
            streak=Feature("streak", {"where": None}),
        )
    )
    told = [(lane.width_ms, lane.gathers, [member.version_id for member in lane.members]) for lane in found]
    assert told == [
        (0, False, ["life-total"]),
        (56_250, False, ["life-count", "life-sum"]),
        (56_250, False, ["life-mean"]),
        (0, True, ["life-uniq"]),
    ]


def test_states_come_back_as_they_were_and_old_panes_do_not() -> None:
    reducer = table(
        n=Feature("count", {"window": 64}),
        total=Feature("sum", {"field": "i"}),
        least=Feature("min", {"field": "x"}),
        q=Feature("quantile", {"field": "x", "q": 0.5}),
        away=Feature("outlier_count", {"field": "x", "sigma": 3.0, "window": 64}),
    )
    events = [("a", 10, {"i": 2**62, "x": 1.5}), ("b", 11, {}), ("a", 73, {"i": 2**62, "x": 0.5}), ("b", 99, {"x": 3})]
    held, found = packed(reducer, *events), assign_lanes(reducer)
    assert and_back(found, there(found, held)) == held
    first_version = {key: {**states, "": pack(unpack(states[""])[:5])} for key, states in held.items()}
    assert and_back(found, there(found, first_version)) == held
    # As if another state had a pane that is too old by now.
    old = packed(reducer, ("a", 9, {}))
    counted = [lane for lane in found if "life-n" in (member.version_id for member in lane.members)]
    both = [one for state in (old, held) for one in there(counted, state)]
    assert [*unpack(and_back(counted, both)[next(iter(old))]["life-n"])] == [10, 73]


def test_rows_are_shared_where_two_lives_have_the_same_ones() -> None:
    reducer = table(n=Feature("count", {}), total=Feature("sum", {"field": "x"}))
    found = assign_lanes(reducer)
    assert [len(one) for one in there(found, packed(reducer, ("a", 1, {"x": 1.0}), ("b", 2, {"x": 2.0})))] == [2]
    assert [len(one) for one in there(found, packed(reducer, ("a", 1, {"x": 1.0}), ("b", 2, {})))] == [2, 1]


@pytest.mark.parametrize("values", [[2**63, -(2**63), -1], [1.5, 2**64 - 1], [0.5, 1e300], [-1, -1]])
def test_halves_of_integers_sum_to_the_whole(values: list[Any]) -> None:
    sums = [sum(one for one in column if one is not None) if any(one is not None for one in column) else None
            for column in INTEGERS.split(values)]  # fmt: skip
    assert INTEGERS.join(*([one] for one in sums)) == [sum(values)]
    assert all(abs(one) < 2**33 for column in INTEGERS.split(values)[:2] for one in column if one is not None)


def test_every_column_is_reduced_by_an_aggregate_over_itself() -> None:
    assert all(f"({name}" in column.aggregate for name, column in COLUMNS.items())


@pytest.mark.parametrize(
    ("cold", "first", "end", "may"),
    [
        (((0, None),), 0, 99, False),
        (((0, 5),), 0, 99, True),
        (((0, None), (50, 5)), 0, 50, False),
        (((0, None), (50, 5)), 0, 51, True),
        (((0, 5), (50, None)), 49, 99, True),
        (((0, 5), (50, None)), 50, 99, False),
        (((0, None), (50, 5), (60, None)), 60, 99, False),
    ],
)
def test_keys_may_start_afresh_where_a_limit_is_in_force(cold: Any, first: int, end: int, may: bool) -> None:
    assert table(cold, n=Feature("count", {})).may_restart(first, end) is may


def test_a_sum_that_left_64_bits_is_stored_as_a_double() -> None:
    assert unpack(pack(INTEGERS.join([2**33], [0], [None])[0])) == float(2**65)
