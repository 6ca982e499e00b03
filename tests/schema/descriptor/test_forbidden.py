"""What is refused always: force does not make it possible."""

from __future__ import annotations

from typing import Any

import pytest

from schema.descriptor.payloads import derivation, event, filtered, op, table, told

E = event()
GROUPED = {"op": "group_by", "keys": ["user"], "agg": {"c": op("count")}}
AS_TABLE = {"kind": "derivation", "name": "T", "upstreams": ["Txn"], "output_kind": "table"}

FORBIDDEN: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "an expression as field": (
        [E, table(f=op("sum", field="(amount * 2)"))],
        "schema_mismatch",
        "[1].agg.f.params.field",
    ),
    "a cast as field": ([E, table(f=op("sum", field="cast(n, float)"))], "schema_mismatch", "[1].agg.f.params.field"),
    "a step after group_by": (
        [E, {**AS_TABLE, "key": ["user"], "agg": {"c": op("count")}, "ops": [GROUPED, filtered("ok")]}],
        "schema_invalid",
        "[1].ops[0]",
    ),
    "group_by in group_by": (
        [E, {**AS_TABLE, "key": ["user"], "ops": [GROUPED, GROUPED]}],
        "schema_invalid",
        "[1].ops[0]",
    ),
    "a join": (
        [E, derivation("D", "Txn", {"op": "join", "with": "Other"})],
        "feature_removed_no_joins_v0",
        "[1].ops[0]",
    ),
    "a union": (
        [E, derivation("D", "Txn", {"op": "union", "with": "Other"})],
        "feature_removed_no_unions_v0",
        "[1].ops[0]",
    ),
    "two upstreams": (
        [E, event("Other"), {**table(), "upstreams": ["Txn", "Other"]}],
        "schema_invalid",
        "[2].upstreams",
    ),
    "a field event_time": (
        [event(schema={"event_time": "i64"})],
        "unknown_field_event_time_v0",
        "[0].schema.event_time",
    ),
    "event_time_field": ([event(event_time_field="n")], "unknown_field_event_time_v0", "[0].event_time_field"),
    "tolerate_delay": ([event(tolerate_delay_ms=5)], "unknown_field_tolerate_delay_v0", "[0].tolerate_delay_ms"),
    "nesting beyond 512": (
        [E, table(f=op("count", where="(not " * 513 + "ok" + ")" * 513))],
        "invalid_expression",
        "[1].agg.f.params.where",
    ),
    "a table over a table": (
        [E, table(), table("Over", "User", f=op("count"))],
        "aggregation_on_table_not_supported",
        "[2].upstreams",
    ),
    "upsert": ([E, {"kind": "upsert", "name": "U"}], "unsupported_node_kind", "[1].kind"),
    "delete": ([E, {"kind": "delete", "name": "U"}], "unsupported_node_kind", "[1].kind"),
    "retract": ([E, {"kind": "retract", "name": "U"}], "unsupported_node_kind", "[1].kind"),
    "a session window": (
        [E, table(f=op("count", session_gap="30m"))],
        "session_windows_not_supported_in_v0",
        "[1].agg.f.params",
    ),
    "a half-life without end": (
        [E, table(f=op("ewma", field="n", half_life="forever"))],
        "aggregation_invalid_half_life",
        "[1].agg.f.params.half_life",
    ),
    "memory without bound": (
        [E, table(f=op("last_n", field="n"))],
        "unbounded_op_in_lifetime_mode",
        "[1].agg.f.params",
    ),
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_it_is_refused_with_force_as_without(pattern: str, force: bool) -> None:
    descriptors, code, rest = FORBIDDEN[pattern]
    assert told(*descriptors, force=force) == [(code, f"descriptors{rest}")]


def test_allowed_are_filters_in_a_row_a_constant_column_and_a_table_without_key() -> None:
    steps = [filtered("ok"), filtered("n > 1"), {"op": "with_columns", "exprs": {"one": "1"}}]
    assert told(E, derivation("D", "Txn", *steps), table(upstream="D", key=[], f=op("sum", field="one"))) == []
