from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.descriptor.generated import write_node
from headrace.schema.descriptor.nodes import Derivation, Event, EventField, Feature, RowOp, Table
from headrace.schema.descriptor.registration import Registration, read_registration
from schema.descriptor.payloads import SCHEMA, derivation, event, filtered, nodes, op, table, told


def test_a_payload_is_read_with_its_flags() -> None:
    found = read_registration(
        {
            "descriptors": [event()],
            "force": True,
            "dry_run": True,
            "backfill": False,
            "app": "fraud-team",
            "expected_version": 7,
            "cascade": True,
        }
    )
    assert isinstance(found, Registration)
    flags = (found.force, found.dry_run, found.backfill, found.app, found.expected_version, found.cascade)
    assert flags == (True, True, False, "fraud-team", 7, True)


def test_flags_are_off_and_the_app_is_default_where_nothing_is_said() -> None:
    found = read_registration({"descriptors": [event()], "backfill": None, "expected_version": None})
    assert isinstance(found, Registration)
    flags = (found.force, found.dry_run, found.backfill, found.app, found.expected_version, found.cascade)
    assert flags == (False, False, None, "default", None, False)


def test_nodes_is_another_name_of_descriptors_but_not_beside_it() -> None:
    one, other = read_registration({"nodes": [event()]}), read_registration({"descriptors": [event()]})
    assert one == other
    assert told(event(), nodes=[event()]) == [("schema_invalid", "nodes")]


def test_an_event_is_normalised() -> None:
    fields = {
        "user": "str",
        "amount": {"type": "f64", "required": True, "default": 0},
        "n": {"type": "i64", "required": False, "default": 3.0},
        "at": {"type": "datetime", "required": False},
    }
    sent = event(schema=fields, keep_events_for="30d", cold_after="90s", dedupe_key="user", dedupe_window="36h")
    (node,) = nodes(sent).values()
    assert node == Event(
        "Txn",
        {
            "user": EventField("str"),
            "amount": EventField("f64", True, 0.0),
            "n": EventField("i64", False, 3),
            "at": EventField("datetime", False),
        },
        keep_events_for_ms=2_592_000_000,
        cold_after_ms=90_000,
        dedupe_key="user",
        dedupe_window_ms=129_600_000,
    )
    assert isinstance(node, Event)
    assert type(node.schema["amount"].default) is float
    assert type(node.schema["n"].default) is int


def test_durations_may_be_milliseconds_and_forever_is_no_end() -> None:
    texts = nodes(event(keep_events_for="1h", cold_after="2s", dedupe_key="user", dedupe_window="1d"))
    numbers = nodes(
        event(keep_events_for_ms=3_600_000, cold_after_ms=2_000, dedupe_key="user", dedupe_window_ms=86_400_000)
    )
    assert texts == numbers
    assert nodes(event(keep_events_for="forever")) == nodes(event(keep_events_for=None)) == nodes(event())
    assert nodes(event(dedupe_key="user")) == nodes(event(dedupe_key="user", dedupe_window="24h"))


def test_fields_may_be_listed_as_the_server_of_the_peer_wants_them() -> None:
    listed = event(schema={"fields": SCHEMA, "optional_fields": ["ok"]})
    assert nodes(listed) == nodes(event(schema={**SCHEMA, "ok": {"type": "bool", "required": False}}))
    assert nodes(event(schema={"fields": {"a": "str"}})) == nodes(event(schema={"a": "str"}))
    assert nodes(event(schema={"fields": {"type": "str"}})) == nodes(event(schema={"fields": "str"}))
    assert nodes(event(schema={"fields": "str"}))["Txn"] == Event("Txn", {"fields": EventField("str")})


def test_a_table_is_normalised() -> None:
    sent = table(
        key="user",
        ops=[{"op": "map", "exprs": {"big": "amount>100"}}],
        c=op("count", window="1h", where="Txn.big or not ok"),
        q=op("percentile", field="amount", q=0.5),
        k=op("top_k", field="user"),
        e=op("ema", field="amount", half_life="1m"),
        forever=op("sum", field="amount", window="forever"),
    )
    sent["key"] = "user"
    assert nodes(event(), sent)["User"] == Table(
        "User",
        "Txn",
        ("user",),
        {
            "c": Feature("count", {"window": 3_600_000, "where": "(big or (not ok))"}),
            "q": Feature("quantile", {"field": "amount", "q": 0.5}),
            "k": Feature("top_k", {"field": "user", "k": 10}),
            "e": Feature("ewma", {"field": "amount", "half_life": 60_000}),
            "forever": Feature("sum", {"field": "amount"}),
        },
        (RowOp("with_columns", exprs={"big": "(amount > 100)"}),),
    )


def test_a_table_may_be_a_derivation_that_ends_in_group_by() -> None:
    agg = {"c": op("count")}
    grouped = {
        "kind": "derivation",
        "name": "User",
        "upstreams": ["Txn"],
        "output_kind": "table",
        "table_primary_key": ["user"],
        "schema": {"fields": {}},
        "ops": [filtered("ok"), {"op": "group_by", "keys": ["user"], "agg": agg}],
    }
    plain = table(ops=[filtered("ok")], **agg)
    described = {**grouped, "key": ["user"], "agg": agg, "ops": [filtered("ok")]}
    del described["table_primary_key"]
    without_keys = {**grouped, "ops": [filtered("ok"), {"op": "group_by", "agg": agg}]}
    wanted = nodes(event(), plain)
    assert nodes(event(), grouped) == nodes(event(), described) == nodes(event(), without_keys) == wanted


def test_steps_are_normalised() -> None:
    steps = [
        filtered("((amount) > 1)"),
        {"op": "select", "fields": ["user", "amount", "n", "user"]},
        {"op": "drop", "fields": ["nothing"]},
        {"op": "rename", "mapping": {"n": "m"}},
        {"op": "with_columns", "exprs": {"x": "amount*2"}},
        {"op": "cast", "type_map": {"m": "f64", "amount": "int"}},
        {"op": "fillna", "defaults": {"user": "?"}},
    ]
    assert nodes(event(), derivation("D", "Txn", *steps))["D"] == Derivation(
        "D",
        "Txn",
        (
            RowOp("filter", expr="(amount > 1)"),
            RowOp("select", fields=("amount", "n", "user")),
            RowOp("drop", fields=("nothing",)),
            RowOp("rename", mapping={"n": "m"}),
            RowOp("with_columns", exprs={"x": "(amount * 2)"}),
            RowOp("cast", type_map={"m": "float", "amount": "int"}),
            RowOp("fillna", defaults={"user": "?"}),
        ),
    )


PRELUDE: list[tuple[dict[str, Any], str, str]] = [
    ({"kind": "join"}, "feature_removed_no_joins_v0", ".kind"),
    ({"kind": "union", "name": 3}, "feature_removed_no_unions_v0", ".kind"),
    ({"kind": "derivation", "ops": [{"op": "join"}]}, "feature_removed_no_joins_v0", ".ops[0]"),
    ({"kind": "table", "ops": [{}, {"op": "union"}]}, "feature_removed_no_unions_v0", ".ops[1]"),
    ({"kind": "event", "event_time_field": "t"}, "unknown_field_event_time_v0", ".event_time_field"),
    ({"kind": "event", "tolerate_delay_ms": 1}, "unknown_field_tolerate_delay_v0", ".tolerate_delay_ms"),
    ({"kind": "event", "tolerate_delay": "1s"}, "unknown_field_tolerate_delay_v0", ".tolerate_delay"),
    ({"kind": "upsert"}, "unsupported_node_kind", ".kind"),
    ({"kind": "delete"}, "unsupported_node_kind", ".kind"),
    ({"kind": "retract"}, "unsupported_node_kind", ".kind"),
    ({"kind": "table", "agg": {"f": op("first_n", field="x")}}, "unbounded_op_in_lifetime_mode", ".agg.f.params"),
    ({"kind": "table", "agg": {"f": op("last_n", n=None)}}, "unbounded_op_in_lifetime_mode", ".agg.f.params"),
    ({"kind": "table", "agg": {"f": op("most_recent_n")}}, "unbounded_op_in_lifetime_mode", ".agg.f.params"),
    ({"kind": "table", "agg": {"f": op("time_since_last_n")}}, "unbounded_op_in_lifetime_mode", ".agg.f.params"),
    ({"kind": "table", "agg": {"f": op("reservoir_sample")}}, "unbounded_op_in_lifetime_mode", ".agg.f.params"),
    (
        {"kind": "table", "agg": {"f": op("histogram", window="forever")}},
        "unbounded_op_in_lifetime_mode",
        ".agg.f.params",
    ),
    (
        {"kind": "derivation", "ops": [{"op": "group_by", "agg": {"f": op("last_n")}}]},
        "unbounded_op_in_lifetime_mode",
        ".ops[0].agg.f.params",
    ),
    (
        {"kind": "table", "agg": {"f": op("count", session_gap="5m")}},
        "session_windows_not_supported_in_v0",
        ".agg.f.params",
    ),
    (
        {"kind": "table", "agg": {"f": op("count", window={"session": "5m"})}},
        "session_windows_not_supported_in_v0",
        ".agg.f.params",
    ),
]


@pytest.mark.parametrize(("descriptor", "code", "rest"), PRELUDE)
def test_the_first_look_refuses_by_code_whatever_else_is_wrong(
    descriptor: dict[str, Any], code: str, rest: str
) -> None:
    assert told({"kind": 3}, descriptor, forse=True) == [(code, f"descriptors[1]{rest}")]


def test_the_first_look_says_everything_at_once() -> None:
    assert told(*(descriptor for descriptor, _, _ in PRELUDE)) == [
        (code, f"descriptors[{number}]{rest}") for number, (_, code, rest) in enumerate(PRELUDE)
    ]


@pytest.mark.parametrize("name", ["sum_up", "cuont"])
def test_a_misspelt_operator_is_no_matter_of_memory(name: str) -> None:
    assert told(event(), table(f=op(name))) == [("unknown_op", "descriptors[1].agg.f.op")]


T = table()
STRUCTURE: list[tuple[dict[str, Any], list[str]]] = [
    ({}, [".kind"]),
    ({"kind": "event", "schema": {"a": "str"}}, [".name"]),
    ({"kind": "event", "name": 3, "schema": {"a": "str"}}, [".name"]),
    ({"kind": "event", "name": "E"}, [".schema"]),
    ({"kind": "event", "name": "E", "schema": []}, [".schema"]),
    (event(bogus=1), [".bogus"]),
    (event(key=["user"]), [".key"]),
    (event(schema={"a": 3}), [".schema.a"]),
    (event(schema={"a": {}}), [".schema.a.type"]),
    (event(schema={"a": {"type": "str", "optional": True}}), [".schema.a.optional"]),
    (event(schema={"a": {"type": "str", "required": "yes"}}), [".schema.a.required"]),
    (event(schema={"fields": {"a": "str"}, "optional_fields": ["b"]}), [".schema.fields"]),
    (event(keep_events_for=30), [".keep_events_for"]),
    (event(keep_events_for="1d", keep_events_for_ms=3), [".keep_events_for_ms"]),
    (event(cold_after_ms="1d"), [".cold_after_ms"]),
    (event(cold_after_ms=True), [".cold_after_ms"]),
    (event(dedupe_key=["a"]), [".dedupe_key"]),
    ({**T, "upstreams": []}, [".upstreams"]),
    ({**T, "upstreams": ["a", "b"]}, [".upstreams"]),
    ({**T, "upstream": "a"}, [".upstream"]),
    ({**T, "key": None}, [".key"]),
    ({**T, "key": [3]}, [".key"]),
    ({**T, "table_primary_key": ["user"]}, [".table_primary_key"]),
    ({**T, "agg": {}}, [".agg"]),
    ({**T, "agg": {"a": "count"}}, [".agg.a"]),
    ({**T, "agg": {"a": {"params": {}}}}, [".agg.a.op"]),
    ({**T, "agg": {"a": {"op": "count", "window": "1h"}}}, [".agg.a.window"]),
    ({**T, "agg": {"a": {"op": "count", "params": []}}}, [".agg.a.params"]),
    ({**T, "output_kind": "table"}, [".output_kind"]),
    (derivation("D", "Txn", {"op": "filter"}), [".ops[0].expr"]),
    (derivation("D", "Txn", {"op": "filter", "expr": "x", "exprs": {}}), [".ops[0].exprs"]),
    (derivation("D", "Txn", {"op": "select", "fields": []}), [".ops[0].fields"]),
    (derivation("D", "Txn", {"op": "rename", "mapping": {"a": 3}}), [".ops[0].mapping"]),
    (derivation("D", "Txn", {"op": "with_columns", "exprs": {"a": 1}}), [".ops[0].exprs"]),
    (derivation("D", "Txn", {"op": "fillna", "defaults": {"a": None}}), [".ops[0].defaults"]),
    (derivation("D", "Txn", {"op": "fillna", "defaults": {"a": [1]}}), [".ops[0].defaults"]),
    (derivation("D", "Txn", "filter"), [".ops[0]"]),  # type: ignore[arg-type]
    (derivation("D", "Txn", {"op": "group_by", "keys": ["user"], "agg": {"c": op("count")}}), [".ops[0]"]),
    ({**T, "ops": [{"op": "group_by", "keys": ["user"], "agg": {"c": op("count")}}, filtered("ok")]}, [".ops[0]"]),
    ({**T, "ops": [{"op": "group_by", "keys": ["user"], "agg": {"c": op("count")}}]}, [".ops[0].agg"]),
    ({**derivation("D", "Txn"), "output_kind": "stream"}, [".output_kind"]),
    ({**derivation("D", "Txn"), "agg": {"c": op("count")}}, [".agg"]),
    ({**derivation("D", "Txn"), "ops": {}}, [".ops"]),
    ({**derivation("D", "Txn"), "schema": []}, [".schema"]),
    ({"kind": "table", "name": "T", "bogus": 1}, [".bogus", ".upstream", ".key", ".agg"]),
]


@pytest.mark.parametrize(("descriptor", "rests"), STRUCTURE)
def test_a_descriptor_of_the_wrong_shape_is_refused_with_its_paths(
    descriptor: dict[str, Any], rests: list[str]
) -> None:
    assert told(descriptor) == [("schema_invalid", f"descriptors[0]{rest}") for rest in rests]


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ([], ""),
        ({}, "descriptors"),
        ({"descriptors": {}}, "descriptors"),
        ({"descriptors": [3]}, "descriptors[0]"),
        ({"descriptors": [event()] * 1001}, "descriptors"),
        ({"descriptors": [event()], "force": 1}, "force"),
        ({"descriptors": [event()], "dry_run": "yes"}, "dry_run"),
        ({"descriptors": [event()], "cascade": None}, "cascade"),
        ({"descriptors": [event()], "backfill": 0}, "backfill"),
        ({"descriptors": [event()], "app": ""}, "app"),
        ({"descriptors": [event()], "app": 3}, "app"),
        ({"descriptors": [event()], "app": "a b"}, "app"),
        ({"descriptors": [event()], "expected_version": -1}, "expected_version"),
        ({"descriptors": [event()], "expected_version": True}, "expected_version"),
        ({"descriptors": [event()], "dryrun": True}, "dryrun"),
    ],
)
def test_a_payload_of_the_wrong_shape_is_refused_with_its_path(payload: Any, path: str) -> None:
    found = read_registration(payload)
    assert isinstance(found, list)
    assert [(problem.code, problem.path) for problem in found] == [("schema_invalid", path)]


def test_the_shape_of_everything_is_judged_at_once() -> None:
    found = told(*(descriptor for descriptor, _ in STRUCTURE), forse=True)
    assert found == [
        ("schema_invalid", "forse"),
        *(("schema_invalid", f"descriptors[{at}]{rest}") for at, (_, rests) in enumerate(STRUCTURE) for rest in rests),
    ]


def test_nodes_are_written_as_they_are_sent_and_read_back() -> None:
    sent = [
        event(
            keep_events_for="36h",
            cold_after="90s",
            dedupe_key="user",
            schema={**SCHEMA, "x": {"type": "bytes", "required": False}},
        ),
        derivation("Big", "Txn", filtered("(amount > 100)"), {"op": "select", "fields": ["amount", "user"]}),
        table(upstream="Big", t=op("sum", field="amount", window="90m"), k=op("top_k", field="user", k=10)),
    ]
    found = nodes(*sent)
    written = [write_node(node) for node in found.values()]
    assert nodes(*written) == found
    assert written[0] == {**sent[0], "dedupe_window": "1d"}
    assert written[1] == sent[1]
    assert written[2]["agg"] == {"t": op("sum", field="amount", window="90m"), "k": op("top_k", field="user")}
