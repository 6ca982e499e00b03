from __future__ import annotations

import pytest

from headrace.schema.descriptor.nodes import RowOp
from headrace.schema.descriptor.validate import resolve_chain, resolve_table
from schema.descriptor.payloads import derivation, event, filtered, nodes, op, table

KNOWN = nodes(
    event(),
    derivation("Priced", "Txn", {"op": "rename", "mapping": {"amount": "price"}}),
    derivation("Big", "Priced", filtered("price > 100"), {"op": "with_columns", "exprs": {"z": "null", "k": "n % 3"}}),
    table("User", "Big", key=["user", "k"], ops=[{"op": "drop", "fields": ["ok"]}], total=op("sum", field="price")),
    table("All", "Txn", key=[], n_events=op("count")),
)


def test_a_table_knows_its_source_all_steps_in_order_and_its_fields() -> None:
    found = resolve_table(KNOWN, "User")
    assert (found.table, found.root) == (KNOWN["User"], KNOWN["Txn"])
    assert found.ops == (
        RowOp("rename", mapping={"amount": "price"}),
        RowOp("filter", expr="(price > 100)"),
        RowOp("with_columns", exprs={"z": "null", "k": "(n % 3)"}),
        RowOp("drop", fields=("ok",)),
    )
    assert found.types == {"user": "str", "price": "f64", "n": "i64", "z": "str", "k": "i64"}
    assert found.key_types == ("str", "i64")


def test_a_global_table_has_no_key() -> None:
    assert resolve_table(KNOWN, "All").key_types == ()


def test_a_derivation_has_a_chain_too_and_a_source_one_without_steps() -> None:
    assert resolve_chain(KNOWN, "Priced").types == {"user": "str", "price": "f64", "n": "i64", "ok": "bool"}
    assert resolve_chain(KNOWN, "Txn").ops == ()
    with pytest.raises(TypeError, match="no table"):
        resolve_table(KNOWN, "Big")


def test_columns_are_made_in_the_order_of_their_names_each_from_those_before() -> None:
    step = {"op": "with_columns", "exprs": {"b": "a + 0.5", "a": "n + 1", "n": "cast(b, str)"}}
    found = resolve_chain(nodes(event(), derivation("D", "Txn", step)), "D").types
    assert (found["a"], found["b"], found["n"]) == ("i64", "f64", "str")


def test_casts_and_fills_keep_or_change_types() -> None:
    steps = [
        {"op": "cast", "type_map": {"n": "str", "amount": "int", "ok": "float", "user": "bool"}},
        {"op": "fillna", "defaults": {"n": "", "amount": 0, "ok": 1, "user": False}},
        {"op": "select", "fields": ["n", "amount", "ok", "user"]},
    ]
    found = resolve_chain(nodes(event(), derivation("D", "Txn", *steps)), "D").types
    assert found == {"n": "str", "amount": "i64", "ok": "f64", "user": "bool"}
