"""The event time of a source: which declarations are taken, which are refused, and what its changes do."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.operators.catalogue import DECLARATIONS
from headrace.schema.descriptor.diff import diff
from headrace.schema.descriptor.generated import write_node
from headrace.schema.descriptor.nodes import Event
from headrace.schema.descriptor.registration import RegistrationResponse
from schema.descriptor.payloads import SCHEMA, Descriptor, derivation, event, nodes, op, problems, table, told

FIELDS = {**SCHEMA, "at": "datetime"}


def timed(schema: dict[str, Any] | None = None, **settings: Any) -> Descriptor:
    return event(schema=FIELDS if schema is None else schema, **{"timestamp_field": "at", **settings})


def test_a_source_keeps_its_event_time_and_writes_it_back() -> None:
    node = nodes(timed(late_after="1h"))["Txn"]
    assert isinstance(node, Event)
    assert (node.timestamp_field, node.timestamp_unit, node.late_after_ms) == ("at", None, 3_600_000)
    assert write_node(node) == timed(late_after="1h")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_unix_time_has_a_unit(unit: str) -> None:
    source = timed(timestamp_field="n", timestamp_unit=unit, late_after_ms=1500)
    assert write_node(nodes(source)["Txn"]) == timed(timestamp_field="n", timestamp_unit=unit, late_after="1500ms")


@pytest.mark.parametrize(
    ("source", "code", "path"),
    [
        (timed(timestamp_field=3), "schema_invalid", "timestamp_field"),
        (timed(timestamp_unit=3), "schema_invalid", "timestamp_unit"),
        (timed(late_after=3), "schema_invalid", "late_after"),
        (timed(timestamp_field="when"), "unknown_field_reference", "timestamp_field"),
        (timed(timestamp_field="user"), "schema_mismatch", "timestamp_field"),
        (timed({**FIELDS, "at": {"type": "datetime", "required": False}}), "validation_failed", "timestamp_field"),
        (
            timed({**FIELDS, "at": {"type": "datetime", "default": "2026-01-01T00:00:00Z"}}),
            "validation_failed",
            "timestamp_field",
        ),
        (timed(timestamp_field="n"), "validation_failed", "timestamp_unit"),
        (timed(timestamp_field="n", timestamp_unit="h"), "validation_failed", "timestamp_unit"),
        (timed(timestamp_unit="s"), "validation_failed", "timestamp_unit"),
        (event(late_after="1h"), "validation_failed", "late_after"),
        (event(timestamp_unit="s"), "validation_failed", "timestamp_unit"),
        (timed(late_after="soon"), "validation_failed", "late_after"),
        (timed(cold_after="1h"), "cold_after_needs_append_time", "cold_after"),
        (event(schema={"n": {"type": "i64", "pointer": "/n"}}), "validation_failed", "schema.n.pointer"),
    ],
)
def test_what_cannot_be_is_refused_where_it_stands(source: Descriptor, code: str, path: str) -> None:
    assert told(source) == [(code, f"descriptors[0].{path}")]


def test_the_removed_keys_name_what_there_is_now() -> None:
    messages = [problem.message for problem in problems(event(event_time_field="at", tolerate_delay_ms=5))]
    assert ["timestamp_field" in message for message in messages] == [True, True]
    assert "late_after" in messages[1]


def required_params(name: str) -> dict[str, Any]:
    """Parameters with which a table may have an operator."""
    params: dict[str, Any] = {"half_life": "1h", "window": "1h", "sub_window": "1m", "n": 3, "sigma": 2.0}
    fields = {
        "field": "n",
        "latitude": "amount",
        "longitude": "amount",
        "lat_field": "amount",
        "lon_field": "amount",
        "x": "n",
        "y": "amount",
    }
    declared = DECLARATIONS[name].params
    chosen = {key: value for key, value in {**params, **fields}.items() if key in declared}
    return {**chosen, **({"where": "ok"} if "where" in declared else {})}


NEED_LOG = [name for name, declaration in DECLARATIONS.items() if declaration.needs_log]


@pytest.mark.parametrize("name", NEED_LOG)
def test_an_operator_that_needs_the_log_is_refused_by_name_with_its_reason(name: str) -> None:
    of_table = table(upstream="View", f=op(name, **required_params(name)))
    view = derivation("View", "Txn", {"op": "drop", "fields": ["at"]})
    assert problems(event(schema=FIELDS), view, of_table) == []
    refusals = problems(timed(), view, of_table)
    assert [(problem.code, problem.path) for problem in refusals] == [("operator_needs_log", "descriptors[2].agg.f.op")]
    assert refusals[0].message.startswith(f"{name} needs ")
    assert DECLARATIONS[name].needs_log in refusals[0].message


BY_APPEND_TIME = event(schema={**FIELDS, "n": "i64"})


@pytest.mark.parametrize(
    ("before", "after", "member", "change"),
    [
        (BY_APPEND_TIME, timed(), "timestamp_field", {"from": None, "to": "at"}),
        (timed(), BY_APPEND_TIME, "timestamp_field", {"from": "at", "to": None}),
        (timed(), timed(late_after="1h"), "late_after", {"from": None, "to": "1h"}),
        (timed(late_after="1h"), timed(late_after="2h"), "late_after", {"from": "1h", "to": "2h"}),
        (timed(late_after="1h"), timed(), "late_after", {"from": "1h", "to": None}),
        (
            timed(timestamp_field="n", timestamp_unit="s"),
            timed(timestamp_field="n", timestamp_unit="ms"),
            "timestamp_unit",
            {"from": "s", "to": "ms"},
        ),
    ],
)
def test_every_change_is_destructive_and_begins_features_afresh(
    before: Descriptor, after: Descriptor, member: str, change: dict[str, Any]
) -> None:
    difference = diff(nodes(before, table()), nodes(after, table()))
    assert difference.destructive
    assert difference.changed[0][member] == change
    assert {loss.rest for loss in difference.losses} == {f".{member}"}
    assert difference.state_effects == {"User": {"n_events": "zeroed", "total": "zeroed"}}
    assert RegistrationResponse("conflict", 1, changed=difference.changed).body()["changed"] == difference.changed


def test_features_keep_their_state_while_the_event_time_stays() -> None:
    difference = diff(nodes(timed(), table()), nodes(timed(keep_events_for="30d"), table()))
    assert difference.state_effects == {"User": {"n_events": "kept", "total": "kept"}}
