"""Valid pipelines, and event sources with the changes that take nothing away."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from headrace.schema.descriptor.nodes import Event, EventField, Type
from schema.descriptor.payloads import Descriptor, derivation, event, filtered, op, table

TYPES: tuple[Type, ...] = ("str", "f64", "i64", "bool", "bytes", "datetime")
NAMES = ("a", "b", "c", "d", "e", "f_", "G1")
VALUES: dict[Type, st.SearchStrategy[Any]] = {
    "str": st.text(st.characters(exclude_categories=("Cs",)), max_size=5),
    "f64": st.floats(allow_nan=False, allow_infinity=False),
    "i64": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
    "bytes": st.sampled_from(("", "AA==", "AAA=", "////")),
    "datetime": st.sampled_from(("2026-01-01T00:00:00Z", "2024-02-29T23:59:59.999999999-23:59")),
}


@st.composite
def fields(draw: st.DrawFn, *, harmless: bool = False) -> EventField:
    """A field; a harmless one may be left out of events."""
    kind = draw(st.sampled_from(TYPES))
    required = draw(st.booleans())
    must = harmless and required
    default = draw(VALUES[kind] if must else st.none() | VALUES[kind])
    return EventField(kind, required, default)


def sources() -> st.SearchStrategy[Event]:
    return st.dictionaries(st.sampled_from(NAMES), fields(), min_size=1, max_size=5).map(
        lambda schema: Event("Txn", schema)
    )


@st.composite
def evolved(draw: st.DrawFn, old: Event) -> Event:
    """A source after changes that take nothing away."""
    schema: dict[str, EventField] = {}
    for name, field in old.schema.items():
        kind: Type = "f64" if field.type == "i64" and draw(st.booleans()) else field.type
        required = field.required and draw(st.booleans())
        default = draw(VALUES[kind]) if field.default is not None or draw(st.booleans()) else None
        schema[name] = EventField(kind, required, default)
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        if name not in schema:
            schema[name] = draw(fields(harmless=True))
    return Event(old.name, draw(st.permutations(list(schema.items())).map(dict)))


def instances(source: Event) -> st.SearchStrategy[dict[str, Any]]:
    """Events of a source, as they are stored: required fields are there."""
    required = {name: VALUES[field.type] for name, field in source.schema.items() if field.required}
    optional = {name: st.none() | VALUES[field.type] for name, field in source.schema.items() if not field.required}
    return st.fixed_dictionaries(required, optional=optional)


_AGGREGATES = [
    op("count"),
    op("count", window="1h"),
    op("sum", field="amount"),
    op("sum", field="amount", where="n > 2"),
    op("mean", field="n", window="5m"),
    op("top_k", field="user"),
    op("last_n", field="amount", n=3),
    op("quantile", field="n", q=0.5),
]
_STEPS: list[Descriptor] = [
    filtered("amount > 1"),
    filtered("ok"),
    {"op": "with_columns", "exprs": {"n": "n * 2"}},
    {"op": "with_columns", "exprs": {"amount": "amount + 0.5", "x": "n"}},
    {"op": "rename", "mapping": {"amount": "n", "n": "amount"}},
    {"op": "fillna", "defaults": {"user": "?"}},
    {"op": "drop", "fields": ["x"]},
]
_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "keep_events_for": st.sampled_from(("7d", "30d")),
        "cold_after": st.sampled_from(("1d", "2d")),
        "dedupe_key": st.sampled_from(("user", "n")),
    },
)
_EXTRAS = st.dictionaries(
    st.sampled_from(("p", "q")),
    st.sampled_from(("str", "i64", {"type": "str", "required": False}, {"type": "f64", "default": 1})),
)


@st.composite
def pipelines(draw: st.DrawFn) -> list[Descriptor]:
    """A source, perhaps derivations, and tables; names are few, so that two pipelines share many."""
    kinds = {"user": "str", "amount": draw(st.sampled_from(("f64", "i64"))), "n": "i64", "ok": "bool", **draw(_EXTRAS)}
    found = [event(schema=kinds, **draw(_SETTINGS))]
    upstreams = ["Txn"]
    for name in draw(st.lists(st.sampled_from(("D1", "D2")), unique=True)):
        steps = draw(st.lists(st.sampled_from(_STEPS), max_size=3))
        found.append(derivation(name, draw(st.sampled_from(upstreams)), *steps))
        upstreams.append(name)
    for name in draw(st.lists(st.sampled_from(("T1", "T2")), unique=True)):
        features = draw(st.dictionaries(st.sampled_from(("f1", "f2", "f3")), st.sampled_from(_AGGREGATES), min_size=1))
        key = draw(st.sampled_from((["user"], [], ["user", "ok"])))
        steps = draw(st.lists(st.sampled_from(_STEPS), max_size=2))
        found.append(table(name, draw(st.sampled_from(upstreams)), key=key, ops=steps, **features))
    return found


@st.composite
def variations(draw: st.DrawFn, sent: list[Descriptor]) -> list[Descriptor]:
    """The same pipeline with a few things changed: steps, features, fields, settings."""
    found = [dict(descriptor) for descriptor in sent]
    for descriptor in draw(st.lists(st.sampled_from(found), min_size=1, max_size=2)):
        if descriptor["kind"] == "event":
            kinds = {name: descriptor["schema"][name] for name in ("user", "amount", "n", "ok")}
            descriptor.update({"schema": {**kinds, **draw(_EXTRAS)}, **draw(_SETTINGS)})
            continue
        steps = list(descriptor.get("ops", ()))
        at = draw(st.integers(0, len(steps)))
        steps[at : at + draw(st.integers(0, 1))] = draw(st.lists(st.sampled_from(_STEPS), max_size=1))
        descriptor["ops"] = steps
        if descriptor["kind"] == "table" and draw(st.booleans()):
            more = st.dictionaries(st.sampled_from(("f1", "f2", "f3")), st.sampled_from(_AGGREGATES), max_size=1)
            descriptor["agg"] = {**descriptor["agg"], **draw(more)}
    return found
