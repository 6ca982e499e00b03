"""How changes are classed, by the rows of the matrix: what is reported, whether it needs force, what features keep."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.descriptor.diff import diff, fingerprint, same_definition
from schema.descriptor import matrix_derived, matrix_sources
from schema.descriptor.matrix import KEPT, OPTIONAL, UB, E, Row, U, changed, features, fields
from schema.descriptor.payloads import Descriptor, derivation, event, filtered, nodes, op, table

ROWS = [*matrix_sources.ROWS, *matrix_derived.ROWS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number.replace(" ", "-"))
def test_a_change_is_classed_and_told_as_its_row_says(row: Row) -> None:
    found = diff(nodes(*row.before), nodes(*row.after))
    assert found.destructive is row.destructive
    assert found.added == row.added
    assert found.removed == row.removed
    assert found.changed == row.told
    assert found.state_effects == row.lives
    assert found.dropped == row.dropped


def test_every_row_of_the_matrix_is_there() -> None:
    assert {int(row.number.split()[0]) for row in ROWS} == set(range(1, 30))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number.replace(" ", "-"))
def test_a_destructive_change_says_where_something_is_lost(row: Row) -> None:
    before, after = nodes(*row.before), nodes(*row.after)
    for loss in diff(before, after).losses:
        assert loss.node in (after if loss.node not in row.removed else before)
        assert loss.rest == "" or loss.rest.startswith(".")
        assert loss.message


def test_state_is_kept_where_a_step_moves_from_a_derivation_into_its_table() -> None:
    """The chain from the source to the table is the same, told at another place."""
    step = filtered("amount > 10")
    moved = nodes(E, derivation("Big", "Txn"), changed(UB, ops=[step]))
    found = diff(nodes(E, derivation("Big", "Txn", step), UB), moved)
    assert found.destructive is True
    assert found.state_effects == {"User": KEPT}


@pytest.mark.parametrize(
    ("steps", "zeroed"),
    [
        ([{"op": "rename", "mapping": {"x": "y"}}], {"y"}),
        ([{"op": "with_columns", "exprs": {"y": "x * 2"}}], {"y"}),
        (
            [{"op": "with_columns", "exprs": {"a": "x * 2"}}, {"op": "with_columns", "exprs": {"y": "cast(a, float)"}}],
            {"y"},
        ),
        ([{"op": "with_columns", "exprs": {"a": "x * 2", "y": "a + 1"}}], {"y"}),
        ([{"op": "with_columns", "exprs": {"y": "z"}}], set()),
        ([{"op": "with_columns", "exprs": {"y": "x"}}, {"op": "with_columns", "exprs": {"y": "z"}}], set()),
        ([{"op": "with_columns", "exprs": {"y": "0 * 1"}}, filtered("x > 1")], {"y", "n_events"}),
        ([{"op": "fillna", "defaults": {"x": 1}}, {"op": "rename", "mapping": {"x": "y"}}], {"y"}),
        ([{"op": "cast", "type_map": {"x": "float"}}, {"op": "rename", "mapping": {"x": "y"}}], {"y"}),
        ([{"op": "select", "fields": ["user", "z"]}, {"op": "rename", "mapping": {"z": "y"}}], set()),
    ],
)
def test_dependence_is_traced_field_by_field_through_steps(steps: list[Descriptor], zeroed: set[str]) -> None:
    def known(kind: str) -> Any:
        source = event(schema={"user": "str", "x": kind, "z": "i64"})
        return nodes(source, table(ops=steps, n_events=op("count"), y=op("sum", field="y")))

    found = diff(known("f64"), known("i64"))
    assert {name for name, fate in found.state_effects["User"].items() if fate == "zeroed"} == zeroed


def test_widening_keeps_what_follows_from_the_field() -> None:
    def known(kind: str) -> Any:
        steps = [{"op": "with_columns", "exprs": {"double": "n * 2"}}, filtered("n > 1")]
        return nodes(fields(n=kind), table(ops=steps, d=op("sum", field="double"), w=op("count", where="double > 3")))

    found = diff(known("i64"), known("f64"))
    assert found.destructive is False
    assert found.state_effects == {"User": {"d": "kept", "w": "kept"}}


@pytest.mark.parametrize(
    ("before", "after", "renamed", "removed", "added"),
    [
        ({"a": "str"}, {"b": "str"}, [("a", "b")], [], []),
        ({"a": "str"}, {"b": "i64"}, [], ["a"], ["b"]),
        ({"a": "str"}, {"b": OPTIONAL}, [], ["a"], ["b"]),
        ({"a": "str", "b": "str"}, {"c": "str"}, [], ["a", "b"], ["c"]),
        ({"a": "str"}, {"b": "str", "c": "str"}, [], ["a"], ["b", "c"]),
        ({"a": "str", "b": "i64"}, {"c": "i64", "d": "str"}, [("a", "d"), ("b", "c")], [], []),
        ({"a": "str", "b": "str"}, {"c": "str", "d": "str"}, [], ["a", "b"], ["c", "d"]),
    ],
)
def test_a_field_counts_as_renamed_where_only_one_went_and_one_came_of_its_type(
    before: Any, after: Any, renamed: Any, removed: Any, added: Any
) -> None:
    (told,) = diff(nodes(fields(**before)), nodes(fields(**after))).changed
    assert [(pair["from"], pair["to"]) for pair in told.get("renamed_fields", [])] == renamed
    assert told.get("removed_fields", []) == removed
    assert [field["name"] for field in told.get("added_fields", [])] == added


def test_removed_nodes_of_others_are_cascaded() -> None:
    before = nodes(E, U, table("Theirs"))
    assert diff(before, nodes(event("New")), owned=["Txn", "User"]).cascaded == ["Theirs"]
    assert diff(before, nodes(event("New"))).cascaded == []


def test_a_feature_removed_and_added_again_is_new() -> None:
    with_it, without = nodes(E, U), nodes(E, features(total=None))
    assert diff(with_it, without).dropped == {"User": ["total"]}
    assert diff(without, with_it).state_effects == {"User": {**KEPT, "total": "additive"}}


def test_all_kinds_of_changes_of_one_node_are_told_together_in_one_order() -> None:
    before = nodes(event(schema={"user": "str", "a": "i64", "b": "i64", "gone": "bool"}, keep_events_for="1d"))
    after = nodes(
        event(schema={"new": OPTIONAL, "b": "f64", "a2": "i64", "user": "str"}, cold_after="1d", dedupe_key="user")
    )
    (told,) = diff(before, after).changed
    assert list(told) == [
        "name",
        "added_fields",
        "removed_fields",
        "changed_fields",
        "renamed_fields",
        "keep_events_for",
        "cold_after",
        "dedupe_key",
    ]


ONE = [
    event(schema={"a": "str", "b": {"type": "f64", "default": 1}}, keep_events_for="24h"),
    derivation("D", "Txn", filtered("b>1"), {"op": "select", "fields": ["a", "b"]}),
    table(upstream="D", key=["a"], c=op("count", window="60m"), q=op("top_k", field="a")),
]
OTHER: list[dict[str, Any]] = [
    {
        "agg": {"q": op("top_k", k=10.0, field="a"), "c": op("count", window="1h")},
        "upstream": "D",
        "key": "a",
        "name": "User",
        "kind": "table",
    },
    {
        "kind": "derivation",
        "name": "D",
        "upstream": "Txn",
        "ops": [filtered("(Txn.b > 1)"), {"op": "select", "fields": ["b", "a"]}],
    },
    {
        "keep_events_for_ms": 86_400_000,
        "schema": {"b": {"default": 1.0, "required": True, "type": "f64"}, "a": {"type": "str"}},
        "name": "Txn",
        "kind": "event",
        "dedupe_key": None,
    },
]


def test_order_spelling_and_defaults_do_not_matter() -> None:
    assert fingerprint(nodes(*ONE)) == fingerprint(nodes(*OTHER))


@pytest.mark.parametrize(
    "change",
    [
        {"keep_events_for": "25h"},
        {"schema": {"a": "str", "b": {"type": "f64", "default": 2}}},
        {"schema": {"a": "str", "b": "f64"}},
        {"cold_after": "1d"},
    ],
)
def test_what_is_said_matters(change: dict[str, Any]) -> None:
    assert fingerprint(nodes({**ONE[0], **change}, *ONE[1:])) != fingerprint(nodes(*ONE))


def test_true_is_not_one_and_a_whole_number_needs_no_fraction() -> None:
    assert not same_definition({"a": True}, {"a": 1})
    assert same_definition({"a": 1.0, "b": [2.0]}, {"b": [2], "a": 1})
    assert not same_definition({"a": 1.5}, {"a": 1})
