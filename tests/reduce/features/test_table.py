"""A table as a reducer: steps, keys, births, entities that go cold, states as bytes."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import KeyShapeMismatch
from headrace.operators.state_bytes import pack, unpack
from headrace.reduce.features.table import KeyState, TableReducer
from headrace.schema.descriptor.nodes import Event, EventField, Feature, FeatureVersion, RowOp, Table
from headrace.schema.descriptor.validate import resolve_table

SCHEMA = {
    "user": EventField("str"),
    "device": EventField("i64"),
    "ok": EventField("bool"),
    "amount": EventField("f64"),
    "at": EventField("datetime", required=False),
}
COUNT = Feature("count")
COLD = st.lists(st.tuples(st.integers(0, 30), st.sampled_from([None, 5, 20, 100])), max_size=3)


def reducer(
    key: tuple[str, ...] = ("user",),
    ops: tuple[RowOp, ...] = (),
    features: dict[str, Feature] | None = None,
    births: dict[str, int] | None = None,
    cold: list[tuple[int, int | None]] | None = None,
) -> TableReducer:
    features = features or {"n": COUNT}
    nodes = {"E": Event("E", SCHEMA), "T": Table("T", "E", key, features, ops)}
    lives = {name: FeatureVersion(f"{name}-1", (births or {}).get(name, 0)) for name in features}
    return TableReducer(resolve_table(nodes, "T"), lives, cold or [])


def event(**fields: Any) -> dict[str, Any]:
    return {"user": "u", "device": 7, "ok": True, "amount": 1.5, **fields}


def folded(table: TableReducer, events: list[tuple[int, int]]) -> KeyState | None:
    """The state of events, each a time and a sequence number."""
    state = None
    for at_ms, seq in events:
        placed = table.key_and_row(event())
        assert placed is not None
        state = table.fold(state, at_ms, seq, placed[1])
    return state


def test_an_event_becomes_a_row_through_the_steps_in_order() -> None:
    ops = (
        RowOp("filter", expr="(amount > 1)"),
        RowOp("with_columns", exprs={"a": "(amount * 2)", "b": "(a + 1)"}),
        RowOp("rename", mapping={"a": "double"}),
        RowOp("cast", type_map={"device": "str"}),
        RowOp("fillna", defaults={"at": "2024-01-01T00:00:00Z"}),
        RowOp("drop", fields=("amount", "ok")),
    )
    given_event = event()
    placed = reducer(ops=ops).key_and_row(given_event)
    assert placed is not None
    row = {"user": "u", "device": "7", "at": "2024-01-01T00:00:00Z", "double": 3.0, "b": 4.0}
    assert placed[1] == row
    assert given_event == event()
    assert reducer(ops=ops).key_and_row(event(amount=1.0)) is None


def test_numbers_have_the_type_of_their_field_in_rows() -> None:
    features = {"last": Feature("last", {"field": "amount"}), "first": Feature("first", {"field": "device"})}
    placed = reducer(features=features).key_and_row(event(amount=3, device=7.0))
    assert placed is not None
    assert placed[1]["amount"] == 3.0
    assert type(placed[1]["amount"]) is float
    assert placed[1]["device"] == 7
    assert type(placed[1]["device"]) is int


def test_an_event_without_a_part_of_its_key_has_no_row() -> None:
    table = reducer(key=("user", "at"))
    assert table.key_and_row(event()) is None
    assert table.key_and_row(event(at="2024-01-01T00:00:00Z")) is not None


@pytest.mark.parametrize(
    ("key", "fields", "asked"),
    [
        (("user",), {"user": 'a|b"\\é'}, 'a|b"\\é'),
        (("user",), {"user": ""}, [""]),
        (("device",), {"device": 7.0}, 7),
        (("device",), {"device": -(2**63)}, [-(2**63)]),
        (("ok",), {"ok": False}, False),
        (("at",), {"at": "2024-01-01T00:00:00Z"}, "2024-01-01T01:00:00+01:00"),
        (("user", "device", "ok"), {"user": "a"}, ["a", 7, True]),
        ((), {}, ""),
        ((), {}, []),
    ],
)
def test_a_row_is_found_by_its_key(key: tuple[str, ...], fields: dict[str, Any], asked: Any) -> None:
    table = reducer(key=key)
    placed = table.key_and_row(event(**fields))
    assert placed is not None
    assert table.key(asked) == placed[0]


@pytest.mark.parametrize(
    ("key", "asked"),
    [
        (("user",), 7),
        (("user",), None),
        (("user",), ["a", "b"]),
        (("user",), "\ud800"),
        (("device",), "7"),
        (("device",), True),
        (("device",), 1.5),
        (("device",), 2**63),
        (("ok",), 1),
        (("at",), "yesterday"),
        (("user", "device"), "a|7"),
        (("user", "device"), ["a"]),
        ((), "x"),
        ((), ["x"]),
    ],
)
def test_a_key_of_another_shape_is_refused(key: tuple[str, ...], asked: Any) -> None:
    with pytest.raises(KeyShapeMismatch):
        reducer(key=key).key(asked)


def test_different_keys_have_different_bytes() -> None:
    table = reducer(key=("user", "device"))
    assert len({table.key(["a", 1]), table.key(["a", 11]), table.key(["a1", 1]), table.key(["", 1])}) == 4


def test_where_decides_what_a_feature_counts_and_null_is_not_true() -> None:
    table = reducer(features={"big": Feature("count", {"where": "(amount > 1)"}), "all": COUNT})
    state = None
    for seq, amount in enumerate([0.5, 2.0, None]):
        placed = table.key_and_row(event(amount=amount))
        assert placed is not None
        state = table.fold(state, seq, seq, placed[1])
    assert table.finish(state, 10) == {"big": 1, "all": 3}
    assert table.finish(state, 10, ["big"]) == {"big": 1}


def test_a_feature_counts_from_its_birth_on() -> None:
    table = reducer(features={"old": COUNT, "new": COUNT}, births={"new": 2})
    state = folded(table, [(seq, seq) for seq in range(5)])
    assert table.finish(state, 10) == {"old": 5, "new": 3}


def test_a_key_that_was_never_seen_has_no_features() -> None:
    assert reducer().finish(None, 10) == {}


def test_a_state_is_packed_by_life() -> None:
    table = reducer(features={"n": COUNT, "total": Feature("sum", {"field": "amount"})})
    state = folded(table, [(1, 1), (2, 2)])
    assert state is not None
    packed = table.pack(state)
    assert packed.keys() == {"", "n-1", "total-1"}
    assert table.unpack(packed) == state
    assert table.finish(table.unpack({"": packed[""], "n-1": packed["n-1"]}), 3) == {"n": 2, "total": None}


def test_sums_beyond_64_bits_are_packed_as_doubles() -> None:
    table = reducer(features={"total": Feature("sum", {"field": "device"})})
    state = None
    for seq in range(4):
        state = table.fold(state, seq, seq, event(device=2**63 - 1))
    assert state is not None
    assert table.finish(table.unpack(table.pack(state)), 9) == {"total": 4.0 * (2**63 - 1)}


def test_an_entity_that_was_idle_for_longer_reads_as_unseen_and_starts_afresh() -> None:
    table = reducer(cold=[(0, 10)])
    state = folded(table, [(0, 0), (10, 1)])
    assert table.finish(state, 20) == {"n": 2}
    assert table.finish(state, 21) == {}
    assert table.finish(folded(table, [(0, 0), (10, 1), (21, 2)]), 21) == {"n": 1}


def test_a_global_table_never_goes_cold() -> None:
    assert reducer(key=(), cold=[(0, 10)]).finish(folded(reducer(key=(), cold=[(0, 10)]), [(0, 0), (99, 1)]), 999) == {
        "n": 2
    }


def test_a_new_limit_holds_for_an_entity_from_its_next_event_on() -> None:
    table = reducer(cold=[(0, None), (5, 10)])
    state = folded(table, [(0, 0), (50, 1)])
    assert table.finish(state, 500) == {"n": 2}
    assert table.finish(folded(table, [(0, 0), (50, 1), (500, 5)]), 500) == {"n": 1}


def test_a_limit_that_is_gone_lets_an_idle_entity_live_on() -> None:
    table = reducer(cold=[(0, 10), (5, None)])
    assert table.finish(folded(table, [(0, 0)]), 500) == {"n": 1}
    assert table.finish(folded(table, [(0, 0), (500, 5)]), 500) == {"n": 2}


def alive(events: list[tuple[int, int]], cold: list[tuple[int, int | None]]) -> list[tuple[int, int]]:
    """The events since the entity last started afresh."""
    kept: list[tuple[int, int]] = []
    for at_ms, seq in events:
        limits = [limit for since, limit in sorted(cold, key=lambda step: step[0]) if since <= seq]
        limit = limits[-1] if limits else None
        if kept and limit is not None and at_ms - kept[-1][0] > limit:
            kept = []
        kept.append((at_ms, seq))
    return kept


@given(st.lists(st.integers(0, 40), max_size=30), COLD, st.data())
def test_parts_start_afresh_where_the_whole_does(
    gaps: list[int], cold: list[tuple[int, int | None]], data: st.DataObject
) -> None:
    table = reducer(features={"n": COUNT, "since": Feature("first_seen"), "run": Feature("streak")}, cold=cold)
    events = [(sum(gaps[: at + 1]), at) for at in range(len(gaps))]
    at = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=4)))
    found = [folded(table, events[start:end]) for start, end in zip([0, *at], [*at, len(events)], strict=True)]
    parts = [part for part in found if part is not None]
    packed = [table.pack(part) for part in parts]
    one = folded(table, events)
    forth = reduce(table.merge, parts) if parts else None
    back = reduce(lambda right, left: table.merge(left, right), reversed(parts)) if parts else None
    assert [table.pack(part) for part in parts] == packed
    assert forth == one == back
    if events:
        wanted = alive(events, cold)
        answer = {"n": len(wanted), "since": wanted[0][0], "run": len(wanted)}
        assert table.finish(one, events[-1][0]) == answer


def of_version_1(packed: dict[str, bytes]) -> dict[str, bytes]:
    """A packed state with the frame that version 1 had."""
    return {**packed, "": pack(unpack(packed[""])[:5])}


def test_a_row_of_version_1_is_unpacked_and_packed_as_one_of_today() -> None:
    table = reducer()
    packed = table.pack(folded(table, [(10, 1), (20, 2)]))
    assert len(unpack(packed[""])) == 6
    assert table.unpack(of_version_1(packed)) == table.unpack(packed)
    assert table.renew(of_version_1(packed)) == packed
    assert table.renew(packed) is packed


def test_rows_of_version_1_merge_with_those_of_today() -> None:
    ops = {"first": {}, "last": {}, "last_n": {"n": 3}}
    table = reducer(features={op: Feature(op, {"field": "amount", **params}) for op, params in ops.items()})
    rows = [
        {"": [1, 10, 2, 20, False], "first-1": 1.0, "last-1": 2.0, "last_n-1": [1.0, 2.0]},
        {"": [3, 20, 4, 20, False], "first-1": 3.0, "last-1": 4.0, "last_n-1": [3.0, 4.0]},
    ]
    oldest, older = ({name: pack(state) for name, state in row.items()} for row in rows)
    newest = table.pack(table.fold(None, 20, 5, event(amount=5.0)))
    for one, other in ((oldest, older), (table.renew(oldest), older), (oldest, table.renew(older))):
        left = table.merge(table.merge(table.unpack(one), table.unpack(other)), table.unpack(newest))
        right = table.merge(table.unpack(one), table.merge(table.unpack(other), table.unpack(newest)))
        for state in (left, right, table.unpack(table.pack(left))):
            assert table.finish(state, 20) == {"first": 1.0, "last": 5.0, "last_n": [3.0, 4.0, 5.0]}
