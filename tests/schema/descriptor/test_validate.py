"""Nodes are checked together, and resolved."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.descriptor.nodes import RowOp
from headrace.schema.descriptor.registration import Registration, read_registration
from headrace.schema.descriptor.validate import downstream, resolve_chain, resolve_table, sort_nodes, validate
from headrace.schema.problem import RequestProblem
from schema.descriptor.payloads import derivation, event, filtered, nodes, op, problems, table, told

E = event()


def test_any_order_of_the_payload_will_do() -> None:
    sent = [table(upstream="B"), derivation("B", "A"), derivation("A", "Txn"), E]
    known = nodes(*sent)
    assert list(known) == ["User", "B", "A", "Txn"]
    assert sort_nodes(known) == ["Txn", "A", "B", "User"]
    assert downstream(known, ["A"]) == ["User", "B"]
    assert downstream(known, ["Txn"]) == ["User", "B", "A"]
    assert downstream(known, ["User"]) == []


def test_circles_missing_upstreams_and_repeated_names_are_found_together() -> None:
    found = problems(
        derivation("A", "C"),
        derivation("B", "A"),
        derivation("C", "B"),
        derivation("Self", "Self"),
        E,
        event(),
        table(upstream="Nowhere"),
        derivation("OfCircle", "A"),
    )
    assert [(problem.code, problem.path) for problem in found] == [
        ("duplicate_name", "descriptors[5].name"),
        ("missing_upstream", "descriptors[6].upstreams"),
        ("registration_cycle", "descriptors[0].upstreams"),
        ("registration_cycle", "descriptors[3].upstreams"),
    ]
    messages = {problem.path: problem.message for problem in found}
    assert messages["descriptors[0].upstreams"] == "this follows from itself: 'A' from 'C' from 'B' from 'A'"
    assert messages["descriptors[3].upstreams"] == "this follows from itself: 'Self' from 'Self'"


def test_order_comes_before_single_descriptors_and_those_before_types() -> None:
    unfit, wrong = event("9"), table(upstream="Txn", f=op("sum", field="nothing"))
    assert told(E, unfit, wrong, derivation("D", "Nowhere")) == [("missing_upstream", "descriptors[3].upstreams")]
    assert told(E, unfit, wrong) == [("validation_failed", "descriptors[1].name")]
    assert told(E, wrong) == [("unknown_field_reference", "descriptors[1].agg.f.params.field")]


def test_an_upstream_of_another_app_will_do_and_its_nodes_are_named_by_the_registry() -> None:
    theirs = nodes(event("Theirs"), table("Used", "Theirs", total=op("sum", field="amount")))
    ours = read_registration({"descriptors": [table("Ours", "Theirs")]})
    assert isinstance(ours, Registration)
    assert validate({**theirs, **ours.nodes}, ours.nodes) == []
    narrowed = read_registration({"descriptors": [event("Theirs", {"user": "str"})]})
    assert isinstance(narrowed, Registration)
    assert validate({**theirs, **narrowed.nodes}, narrowed.nodes) == [
        RequestProblem(
            "unknown_field_reference",
            "registry.Used.agg.total.params.field",
            "there is no field 'amount' here; there are: user",
        )
    ]


NAMES = ["", "9a", "a b", "a-b", "ä", "a" * 129, "a.b", "a\n"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_nodes_fields_features_and_columns_follow_one_rule(name: str) -> None:
    bad = "validation_failed"
    assert told(event(name)) == [(bad, "descriptors[0].name")]
    assert told(event(schema={name: "str"}))[0] == (bad, f"descriptors[0].schema.{name}")
    assert told(E, table(**{name: op("count")})) == [(bad, f"descriptors[1].agg.{name}")]
    assert told(E, derivation("D", "Txn", {"op": "rename", "mapping": {"n": name}})) == [
        (bad, "descriptors[1].ops[0].mapping.n")
    ]
    assert told(E, derivation("D", "Txn", {"op": "with_columns", "exprs": {name: "n"}})) == [
        (bad, f"descriptors[1].ops[0].exprs.{name}")
    ]


@pytest.mark.parametrize("name", ["a", "_", "A9_", "a" * 128])
def test_a_name_is_a_letter_or_underscore_then_letters_digits_underscores(name: str) -> None:
    assert told(event(name, {name: "str"}), table("T__", name, key=[name], f=op("count"))) == []


def test_a_name_is_of_one_node_whatever_its_kind() -> None:
    assert told(E, table("Txn", "Txn"), derivation("Txn", "Txn")) == [
        ("duplicate_name", "descriptors[1].name"),
        ("duplicate_name", "descriptors[2].name"),
    ]
    assert told(E, event("txn"), table("TXN", "txn")) == []


@pytest.mark.parametrize("name", ["_beava_x", "_headrace_x"])
def test_some_names_are_reserved(name: str) -> None:
    assert told(event(name)) == [("validation_failed", "descriptors[0].name")]


SETTINGS: list[tuple[dict[str, Any], str, str]] = [
    ({"schema": {}}, "validation_failed", "schema"),
    ({"schema": {"a": "int"}}, "unknown_field_type", "schema.a"),
    ({"schema": {"a": {"type": "json"}}}, "unknown_field_type", "schema.a"),
    ({"schema": {"event_time": "str"}}, "unknown_field_event_time_v0", "schema.event_time"),
    ({"schema": {"event_time_ms": "i64"}}, "unknown_field_event_time_v0", "schema.event_time_ms"),
    ({"schema": {"a": {"type": "i64", "default": "3"}}}, "schema_mismatch", "schema.a.default"),
    ({"schema": {"a": {"type": "i64", "default": 1.5}}}, "schema_mismatch", "schema.a.default"),
    ({"schema": {"a": {"type": "i64", "default": 2**63}}}, "schema_mismatch", "schema.a.default"),
    ({"schema": {"a": {"type": "f64", "default": 10**400}}}, "schema_mismatch", "schema.a.default"),
    ({"schema": {"a": {"type": "f64", "default": True}}}, "schema_mismatch", "schema.a.default"),
    ({"schema": {"a": {"type": "bool", "default": 1}}}, "schema_mismatch", "schema.a.default"),
    ({"schema": {"a": {"type": "str", "default": 1}}}, "schema_mismatch", "schema.a.default"),
    ({"schema": {"a": {"type": "bytes", "default": "?"}}}, "schema_mismatch", "schema.a.default"),
    ({"schema": {"a": {"type": "datetime", "default": "noon"}}}, "schema_mismatch", "schema.a.default"),
    ({"schema": {f"a{n}": "bytes" for n in range(101)}}, "validation_failed", "schema"),
    ({"keep_events_for": "1 day"}, "validation_failed", "keep_events_for"),
    ({"keep_events_for": "0d"}, "validation_failed", "keep_events_for"),
    ({"keep_events_for_ms": 0}, "validation_failed", "keep_events_for"),
    ({"cold_after": "999ms"}, "validation_failed", "cold_after"),
    ({"cold_after": "366d"}, "validation_failed", "cold_after"),
    ({"cold_after": "forever"}, "validation_failed", "cold_after"),
    ({"dedupe_key": "nothing"}, "unknown_field_reference", "dedupe_key"),
    ({"dedupe_key": "user", "dedupe_window": "forever"}, "validation_failed", "dedupe_window"),
    ({"dedupe_window": "1d"}, "validation_failed", "dedupe_window"),
]


@pytest.mark.parametrize(("settings", "code", "rest"), SETTINGS)
def test_settings_of_an_event_are_checked(settings: dict[str, Any], code: str, rest: str) -> None:
    assert told({**E, **settings}) == [(code, f"descriptors[0].{rest}")]


@pytest.mark.parametrize("settings", [{"cold_after": "1s"}, {"cold_after": "365d"}, {"keep_events_for": "1ms"}])
def test_settings_at_their_ends_are_taken(settings: dict[str, Any]) -> None:
    assert told({**E, **settings}) == []


KEYS: list[tuple[Any, str]] = [
    (["user", "user"], ".key[1]"),
    (["nothing"], ".key[0]"),
    (["amount"], ".key[0]"),
    ([f"k{n}" for n in range(17)], ".key"),
    (["n_events"], ".agg.n_events"),
]


@pytest.mark.parametrize(("key", "rest"), KEYS)
def test_a_key_names_fields_once_and_none_with_fractions(key: Any, rest: str) -> None:
    schema = {"user": "str", "amount": "f64", "n_events": "str"}
    assert told(event(schema=schema), table(key=key)) == [("table_key_invalid", f"descriptors[1]{rest}")]


@pytest.mark.parametrize("key", [[], ["user"], ["user", "n", "ok"], ["raw", "at"]])
def test_keys_may_be_composite_of_other_types_or_none_at_all(key: Any) -> None:
    schema = {"user": "str", "amount": "f64", "n": "i64", "ok": "bool", "raw": "bytes", "at": "datetime"}
    assert told(event(schema=schema), table(key=key)) == []


def test_nothing_follows_from_a_table() -> None:
    code = "aggregation_on_table_not_supported"
    assert told(E, table(), table("Over", "User"), derivation("D", "User")) == [
        (code, "descriptors[2].upstreams"),
        (code, "descriptors[3].upstreams"),
    ]
    assert (code, "descriptors[2].upstreams") in told(E, table(f=op("nothing")), table("Over", "User"))


UNFIT: list[tuple[dict[str, Any], str, str]] = [
    (filtered("amount >"), "invalid_expression", "expr"),
    (filtered("(not " * 513 + "ok" + ")" * 513), "invalid_expression", "expr"),
    (filtered("amount"), "schema_mismatch", "expr"),
    (filtered("user > 3"), "schema_mismatch", "expr"),
    (filtered("Other.amount > 3"), "unknown_field_reference", "expr"),
    (filtered("cast(amount, money) == 1"), "invalid_cast_target", "expr"),
    ({"op": "select", "fields": ["user", "nothing"]}, "unknown_field_reference", "fields"),
    ({"op": "drop", "fields": ["user", "amount", "n", "ok"]}, "schema_propagation_failure", ""),
    ({"op": "rename", "mapping": {"nothing": "x"}}, "unknown_field_reference", "mapping"),
    ({"op": "rename", "mapping": {"user": "n"}}, "schema_propagation_failure", "mapping.user"),
    ({"op": "rename", "mapping": {"user": "x", "n": "x"}}, "schema_propagation_failure", "mapping.n"),
    ({"op": "with_columns", "exprs": {"x": "user + 1"}}, "schema_mismatch", "exprs.x"),
    ({"op": "with_columns", "exprs": {"x": "y", "y": "n"}}, "unknown_field_reference", "exprs.x"),
    ({"op": "cast", "type_map": {"nothing": "int"}}, "unknown_field_reference", "type_map.nothing"),
    ({"op": "cast", "type_map": {"n": "bytes"}}, "invalid_cast_target", "type_map.n"),
    ({"op": "fillna", "defaults": {"nothing": 1}}, "unknown_field_reference", "defaults.nothing"),
    ({"op": "fillna", "defaults": {"n": "1"}}, "schema_mismatch", "defaults.n"),
    ({"op": "fillna", "defaults": {"ok": 1}}, "schema_mismatch", "defaults.ok"),
]


@pytest.mark.parametrize(("step", "code", "rest"), UNFIT)
def test_a_step_that_does_not_fit_is_refused_in_derivations_and_tables(
    step: dict[str, Any], code: str, rest: str
) -> None:
    path = ".".join(filter(None, ("descriptors[1].ops[1]", rest)))
    before = filtered("n > 0")
    assert told(E, derivation("D", "Txn", before, step)) == [(code, path)]
    assert told(E, table(ops=[before, step], f=op("count"))) == [(code, path)]


@pytest.mark.parametrize("name", ["join_all", "explode", "Filter"])
def test_an_unknown_step_is_refused(name: str) -> None:
    assert told(E, derivation("D", "Txn", {"op": name})) == [("unknown_op", "descriptors[1].ops[0].op")]


def test_types_are_carried_through_chains_and_all_misfits_are_told() -> None:
    found = told(
        E,
        derivation("A", "Txn", {"op": "rename", "mapping": {"amount": "price"}}),
        derivation("B", "A", {"op": "with_columns", "exprs": {"double": "price * 2", "name": "cast(n, str)"}}),
        derivation("Bad", "B", filtered("amount > 1"), filtered("name > 1")),
        table("T", "B", a=op("sum", field="amount"), b=op("sum", field="double"), c=op("sum", field="name")),
        table("OfBad", "Bad", key=["nothing"], a=op("sum", field="price")),
    )
    assert sorted(found) == [
        ("schema_mismatch", "descriptors[3].ops[1].expr"),
        ("schema_mismatch", "descriptors[4].agg.c.params.field"),
        ("table_key_invalid", "descriptors[5].key[0]"),
        ("unknown_field_reference", "descriptors[3].ops[0].expr"),
        ("unknown_field_reference", "descriptors[4].agg.a.params.field"),
    ]


def test_what_follows_from_fields_in_doubt_is_not_judged() -> None:
    found = told(
        E,
        derivation("Bad", "Txn", {"op": "with_columns", "exprs": {"x": "nothing"}}, filtered("y > 1")),
        table("T", "Bad", a=op("sum", field="x")),
    )
    assert found == [("unknown_field_reference", "descriptors[1].ops[0].exprs.x")]


def test_dropping_what_is_not_there_is_no_mistake() -> None:
    assert told(E, derivation("D", "Txn", {"op": "drop", "fields": ["nothing"]})) == []


def test_names_may_be_swapped() -> None:
    swap = {"op": "rename", "mapping": {"amount": "n", "n": "amount"}}
    assert told(E, table(ops=[swap, filtered("amount % 2 == 0")], f=op("sum", field="n"))) == []


KNOWN = nodes(
    event(),
    derivation("Priced", "Txn", {"op": "rename", "mapping": {"amount": "price"}}),
    derivation("Big", "Priced", filtered("price > 100"), {"op": "with_columns", "exprs": {"z": "null", "k": "n % 3"}}),
    table("User", "Big", key=["user", "k"], ops=[{"op": "drop", "fields": ["ok"]}], total=op("sum", field="price")),
    table("All", "Txn", key=[], n_events=op("count")),
)


def test_a_table_knows_its_source_all_steps_in_order_and_its_fields() -> None:
    found = resolve_table(KNOWN, "User")
    assert found.table == KNOWN["User"]
    assert found.root == KNOWN["Txn"]
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
    assert found["a"] == "i64"
    assert found["b"] == "f64"
    assert found["n"] == "str"


def test_casts_and_fills_keep_or_change_types() -> None:
    steps = [
        {"op": "cast", "type_map": {"n": "str", "amount": "int", "ok": "float", "user": "bool"}},
        {"op": "fillna", "defaults": {"n": "", "amount": 0, "ok": 1, "user": False}},
        {"op": "select", "fields": ["n", "amount", "ok", "user"]},
    ]
    found = resolve_chain(nodes(event(), derivation("D", "Txn", *steps)), "D").types
    assert found == {"n": "str", "amount": "i64", "ok": "f64", "user": "bool"}
