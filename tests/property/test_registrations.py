"""Whatever is sent as a registration is read or refused with codes and paths; nothing escapes."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schema.descriptor.generated import write_node
from headrace.schema.descriptor.registration import Registration, read_registration
from headrace.schema.descriptor.validate import resolve_chain, validate
from headrace.schema.problem import RequestProblem
from schema.descriptor.payloads import derivation, event, filtered, op, table

CONSTANTS: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**400,
    10**5000,
    1e308,
    "",
    "x",
    "1h",
    "forever",
    "amount",
    "a b",
    "\ud800",
    [],
    {},
    [None],
]
ODD = st.sampled_from(CONSTANTS) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PLACE = {"lat_field": "amount", "lon_field": "n"}
SENT: dict[str, Any] = {
    "descriptors": [
        event(
            schema={"user": "str", "amount": {"type": "f64", "default": 1}, "n": "i64", "ok": "bool"},
            keep_events_for="1d",
            cold_after="1d",
            dedupe_key="user",
            dedupe_window="1h",
        ),
        derivation(
            "D",
            "Txn",
            filtered("amount > 1"),
            {"op": "with_columns", "exprs": {"x": "n * 2"}},
            {"op": "rename", "mapping": {"x": "y"}},
            {"op": "cast", "type_map": {"y": "str"}},
            {"op": "fillna", "defaults": {"y": "?"}},
            {"op": "drop", "fields": ["y"]},
            {"op": "select", "fields": ["user", "amount", "n", "ok"]},
        ),
        table(
            "T",
            "D",
            a=op("count", window="1h", where="ok"),
            b=op("quantile", field="amount", q=0.5),
            c=op("top_k", field="user", k=3),
            d=op("histogram", field="n", buckets=[1, 2]),
            e=op("event_type_mix", field="user", categories=["a"], max_categories=3),
            f=op("burst_count", window="1h", sub_window="1m"),
            g=op("ewma", field="n", half_life="1h"),
            h=op("distance_from_home", samples=3, **PLACE),
            i=op("bloom_member", field="user", expected_n=5, fpr=0.1),
        ),
    ],
    "force": False,
    "dry_run": False,
    "backfill": None,
    "app": "default",
    "expected_version": 3,
    "cascade": False,
}


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places within a document."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for name, member in members for place in ((*above, name), *places(member, (*above, name)))]


PLACES = places(SENT)


def outcome(payload: Any) -> list[RequestProblem]:
    found = read_registration(payload)
    problems = found if isinstance(found, list) else validate(found.nodes, found.nodes)
    for problem in problems:
        assert problem.code
        assert problem.code == problem.code.lower()
        assert problem.message
    return problems


def test_the_payload_itself_is_whole() -> None:
    assert outcome(SENT) == []


def test_every_part_may_be_odd_in_every_way() -> None:
    for place in PLACES:
        for value in CONSTANTS:
            for how in ("put", "drop"):
                payload = copy.deepcopy(SENT)
                _change(_held(payload, place[:-1]), place[-1], how, value)
                outcome(payload)


def _held(payload: Any, place: tuple[Any, ...]) -> Any:
    for name in place:
        payload = payload[name]
    return payload


@settings(max_examples=500)
@given(
    st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(("put", "drop", "add")), ODD), min_size=1, max_size=3)
)
def test_a_payload_with_odd_parts_is_read_or_refused(changes: list[tuple[tuple[Any, ...], str, Any]]) -> None:
    payload = copy.deepcopy(SENT)
    for place, how, value in changes:
        try:
            holder = _held(payload, place[:-1])
        except (KeyError, IndexError, TypeError):
            continue
        _change(holder, place[-1], how, value)
    if outcome(payload) == []:
        found = read_registration(payload)
        assert isinstance(found, Registration)
        for name, node in found.nodes.items():
            resolve_chain(found.nodes, name)
            write_node(node)


def _change(holder: Any, name: Any, how: str, value: Any) -> None:
    if isinstance(holder, dict) and how == "add":
        holder["more"] = value
    elif isinstance(holder, dict) and how == "drop":
        holder.pop(name, None)
    elif isinstance(holder, dict) or (isinstance(holder, list) and name in range(len(holder))):
        holder[name] = value


@settings(max_examples=200)
@given(ODD)
def test_anything_at_all_is_read_or_refused(payload: Any) -> None:
    assert outcome(payload)
    assert outcome({"descriptors": [payload]})
