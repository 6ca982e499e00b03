"""Events of a stream as events of a source: decoded at once, one by one and as columns they are the same."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.reduce.features.bound_events import REASON, BoundShapes, FieldsDecoder, UnfitShapes
from headrace.reduce.features.event_columns import SEQ, gather_columns
from headrace.reduce.states.definition import EventRun
from headrace.schema.descriptor.bound_fields import StreamBinding
from headrace.schema.descriptor.nodes import Event, EventField
from headrace.schema.registry import Registry

SCHEMA = {
    "id": EventField("str", pointer="/user/id"),
    "age": EventField("i64", required=False, pointer="/user/facts/age"),
    "ms": EventField("f64", default=7.0),
    "at": EventField("datetime"),
    "blob": EventField("bytes", required=False),
    "ok": EventField("bool", required=False, pointer="/user/facts/ok"),
}
PATHS = {
    "id": ("user", "id"), "age": ("user", "facts", "age"), "ms": ("ms",), "at": ("at",), "blob": ("blob",),
    "ok": ("user", "facts", "ok"),
}  # fmt: skip
SOURCE = Event("E", SCHEMA, stream="s")
SHAPES = BoundShapes(Registry.empty("s"), SOURCE, StreamBinding("0", dict.fromkeys(SCHEMA, 0)))
UNFIT = UnfitShapes(Registry.empty("s"), SOURCE, StreamBinding("0", dict.fromkeys(SCHEMA, 0)))

MISSING = object()
numbers = st.sampled_from([0, -1, 2**63 - 1, 2**63, 1.5, 3.0, 1e300])
texts = st.sampled_from(["", "a", "2024-02-29T00:00:00Z", "2023-02-29T00:00:00Z", "YQ==", "YR=="])
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
TIME = st.one_of(st.just("2024-02-29T00:00:00Z"), scalars)
facts = st.one_of(scalars, st.fixed_dictionaries({}, optional={"age": scalars, "ok": scalars, "x": scalars}))
users = st.one_of(scalars, st.fixed_dictionaries({}, optional={"id": st.one_of(texts, scalars), "facts": facts}))
objects = st.fixed_dictionaries(
    {}, optional={"user": users, "ms": scalars, "at": TIME, "blob": scalars, "other": st.lists(scalars, max_size=2)}
)
fitting = st.builds(
    lambda id, age, ms: {"user": {"id": id, "facts": {"age": age}}, "ms": ms, "at": "2024-02-29T00:00:00Z"},
    texts,
    st.sampled_from([None, 5]),
    st.sampled_from([1, 2.5]),
)
entries = st.one_of(fitting, fitting, objects, scalars, st.lists(scalars, max_size=2))


def value_at(entry: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(entry, dict) or name not in entry:
            return MISSING
        entry = entry[name]
    return entry


def fits(value: Any, kind: str) -> bool:
    """Whether a JSON value is of a type; the texts above that are times and base64 are known."""
    if kind == "bool":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind == "i64":
        return isinstance(value, int | float) and value == int(value) and -(2**63) <= value < 2**63
    if kind == "f64":
        return isinstance(value, int | float)
    known = {"datetime": ["2024-02-29T00:00:00Z"], "bytes": ["", "YQ=="]}
    return isinstance(value, str) and (kind == "str" or value in known[kind])


def expected(entry: Any) -> dict[str, Any] | None:
    """The event that an entry is, by the meaning of the schema; None for one that does not fit."""
    event: dict[str, Any] = {}
    for name, field in SCHEMA.items():
        value = value_at(entry, PATHS[name])
        if value is MISSING:
            if field.required and field.default is None:
                return None
            event[name] = field.default
        elif value is None:
            if field.required:
                return None
            event[name] = None
        elif fits(value, field.type):
            event[name] = {"i64": int, "f64": float}.get(field.type, lambda same: same)(value)
        else:
            return None
    return event


@given(st.lists(entries, min_size=1, max_size=6))
def test_events_are_what_the_schema_means(made: list[Any]) -> None:
    joined = ",".join(map(json.dumps, made)).encode()
    wanted = [expected(entry) for entry in made]
    assert SHAPES.events(joined, 0) == wanted
    reasons = UNFIT.events(joined, 0)
    assert [reason is None for reason in reasons] == [event is not None for event in wanted]


@given(st.lists(entries, min_size=1, max_size=6), st.lists(entries, min_size=1, max_size=3))
def test_columns_hold_the_events_that_fit_and_why_others_do_not(first: list[Any], second: list[Any]) -> None:
    columns = gather_columns(SHAPES, SOURCE, sorted(SCHEMA))
    runs = []
    seq = 10
    for made in (first, second):
        runs.append(EventRun(seq, 0, [1_000_000] * len(made), ",".join(map(json.dumps, made)).encode()))
        columns.add(runs[-1])
        seq += len(made)
    numbered = list(enumerate(map(expected, [*first, *second]), 10))
    rows = columns.table().to_pylist()
    assert [row[SEQ] for row in rows] == [number for number, event in numbered if event is not None]
    wanted = [event for _, event in numbered if event is not None]
    assert [{name: row[name] for name in SCHEMA} for row in rows] == wanted
    reasons = [(row[SEQ], row[REASON]) for row in columns.unfit().to_pylist()]
    one_by_one = [(seq, event[REASON]) for run in runs for seq, _, event in UNFIT.decode_run(run) if event is not None]
    assert reasons == one_by_one


def test_a_pointer_may_lead_through_an_array_or_to_what_another_one_holds() -> None:
    schema = {"first": EventField("str"), "user": EventField("str", required=False), "again": EventField("str")}
    paths = {"first": ("names", "0"), "user": ("user", "id"), "again": ("names", "0")}
    decoder = FieldsDecoder(schema, paths)
    extracted = decoder.extract(b'{"names":["a","b"]},{"names":[]},{"names":{"0":"z"},"user":{"id":"u"}}')
    assert extracted.unfit == {1: "/names/0 is missing"}
    assert (extracted.values["first"][0], extracted.values["again"][2], extracted.values["user"][2]) == ("a", "z", "u")
