"""Definitions, updates and values at random."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from headrace.schema.entity.nodes import SOURCE_KINDS, Schema
from headrace.schema.entity.values import FUNCTIONS, VALIDATORS
from schema.entity.samples import schema

Document = dict[str, Any]

NAMES = ("name", "email", "age", "born", "tags", "extra")
TYPES = ("string", "number", "date", "boolean", "array", "object")

texts = st.sampled_from(
    ["", "x", "12", "-1.5", "true", "No", "2026-01-31", "a@b.co", "Ada Lovelace", "12abc", "é|"]
) | st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
numbers = (
    st.integers(-(2**70), 2**70)
    | st.integers(0, 4_200_000_000_000_000_000)
    | st.floats(allow_nan=False, allow_infinity=False)
)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
#: What is given for an entity: members that may be fields, and others.
entities = st.dictionaries(st.sampled_from(NAMES) | texts, values, max_size=8)
#: Values of all types, many of which converters take.
simple = st.sampled_from(
    [
        "x",
        "12",
        "-1.5",
        "yes",
        "2026-01-31",
        "a@b.co",
        0,
        1,
        1.5,
        1_700_000_000,
        1_700_000_000_123_456_789,
        True,
        None,
        [1],
        {},
    ]
)
likely = st.fixed_dictionaries({}, optional=dict.fromkeys((*NAMES, "other"), simple))


def shuffled(value: Any, seed: int) -> Any:
    """The same JSON with members in another order."""
    if isinstance(value, dict):
        members = [(name, shuffled(member, seed)) for name, member in value.items()]
        random.Random(seed).shuffle(members)
        return dict(members)
    return [shuffled(element, seed) for element in value] if isinstance(value, list) else value


def converters(kind: str) -> list[Document]:
    """The converters that make values of a type."""
    return [
        {"from": function.from_type, "to": kind, "function": name, "deterministic": True}
        for name, function in FUNCTIONS.items()
        if function.to_type == kind
    ]


@st.composite
def fields(draw: st.DrawFn) -> Document:
    """A field of any type, with options that suit it."""
    kind = draw(st.sampled_from(TYPES))
    found: Document = {"type": kind}
    options: Document = {
        "required": st.just(True),
        "preserveCase": st.just(True),
        "description": st.sampled_from(["one", "two"]),
        "sensitivity_class": st.sampled_from(["public", "restricted"]),
    }
    if known := converters(kind):
        options["converters"] = st.lists(
            st.sampled_from(known), min_size=1, max_size=3, unique_by=lambda c: c["function"]
        )
    if judges := [name for name, validator in VALIDATORS.items() if kind in validator.types]:
        options["validator"] = st.sampled_from(judges)
    if kind == "number":
        options["constraints"] = st.sampled_from(
            [{"min": 0}, {"min": -5, "max": 10}, {"enum": [1, 2]}, {"enum": [1, 2, 3]}]
        )
    if kind == "string":
        options["constraints"] = st.sampled_from([{"pattern": "a"}, {"banned": ["x"]}, {"enum": ["x", "y"]}])
    return {**found, **draw(st.fixed_dictionaries({}, optional=options))}


@st.composite
def definitions(draw: st.DrawFn, within: dict[str, Document] | None = None) -> Document:
    """A definition that is right."""
    known = within or draw(st.dictionaries(st.sampled_from(NAMES), fields(), min_size=1))
    some = st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=3, unique=True)
    composite = some.map(lambda names: {"composite": names})
    options: Document = {
        "temporal_fields": some.map(lambda names: [{"field": name} for name in names]),
        "reference_fields": some.map(lambda names: [{"field": name, "target_entity_type": "x"} for name in names]),
        "aliases": st.lists(st.sampled_from(["p", "q", "r"]), min_size=1, unique=True),
        "query_synonyms": st.just(["friend"]),
        "identity_search_fields": some,
        "content_field": st.sampled_from(sorted(known)),
        "store_warnings": some.map(lambda names: [{"code": "C", "fields": names, "message": "m"}]),
        "constraint_violation_policy": st.just("warn"),
        "duplicate_detection_fields": some,
        "duplicate_detection_threshold": st.sampled_from([0.5, 0.7]),
        "agent_instructions": st.sampled_from(["a", "b"]),
    }
    identity: Document = draw(
        st.just({"identity_opt_out": "heuristic_canonical_name"})
        | st.fixed_dictionaries(
            {"canonical_name_fields": some | st.lists(composite, min_size=1, max_size=2)},
            optional={
                "canonical_name_strict": st.just(True),
                "name_collision_policy": st.sampled_from(["warn", "reject"]),
            },
        )
    )
    return {"fields": known, **identity, **draw(st.fixed_dictionaries({}, optional=options))}


@st.composite
def configs(draw: st.DrawFn, known: Document) -> Document:
    """Merge policies for some of the fields."""
    policy = st.fixed_dictionaries(
        {"strategy": st.sampled_from(["last_write", "highest_priority", "most_specific", "merge_array"])},
        optional={"tie_breaker": st.just("source_priority")},
    )
    found: Document = {"merge_policies": draw(st.dictionaries(st.sampled_from(sorted(known)), policy))}
    kinds = draw(st.lists(st.sampled_from(SOURCE_KINDS), max_size=3, unique=True))
    priorities = draw(st.dictionaries(st.sampled_from(["crm-a", "crm-b"]), st.integers(-(2**31) + 1, 2**31 - 1)))
    found |= {"source_priorities": priorities} if priorities else {}
    return {**found, **({"observation_source_priority": kinds} if kinds else {})}


@st.composite
def payloads(draw: st.DrawFn) -> Document:
    """The changing members of a registration."""
    definition = draw(definitions())
    metadata = draw(st.dictionaries(st.sampled_from(["label", "icon"]), st.sampled_from(["a", "b"])))
    return {
        "schema_definition": definition,
        "reducer_config": draw(configs(definition["fields"])),
        "metadata": metadata,
    }


def schemas() -> st.SearchStrategy[Schema]:
    """A schema that is right."""
    return payloads().map(lambda members: schema(**members))


#: Values that are of a type, or that converters make so.
_SUITABLE: dict[str, list[Any]] = {
    "string": ["x", "a@b.co", "DE", 12, 1.5, True],
    "number": [1, 2.5, 10**20, "12", "1e3"],
    "date": ["2026-01-31", "2026-01-31T12:00:00Z", 1_700_000_000, 1_700_000_000_123, 1_700_000_000_123_456_789],
    "boolean": [True, "yes", "0"],
    "array": [[], [1]],
    "object": [{}, {"a": 1}],
}


@st.composite
def entities_of(draw: st.DrawFn, whole: Schema) -> dict[str, Any]:
    """Something for every field of a schema, most of which finds its place there."""
    declared = whole.schema_definition.fields
    return {name: draw(st.sampled_from(_SUITABLE[field.type]) | simple) for name, field in declared.items()}


@st.composite
def evolved(draw: st.DrawFn, old: Document) -> Document:
    """A registration that resembles another: some of its parts are those of the other."""
    new = draw(payloads())
    mixed = {**old["schema_definition"]["fields"], **new["schema_definition"]["fields"]}
    kept = {name: field for name, field in mixed.items() if draw(st.integers(0, 4))}
    for name in kept:
        if name in old["schema_definition"]["fields"] and draw(st.integers(0, 2)):
            kept[name] = old["schema_definition"]["fields"][name]
    if not kept:
        return old
    definition = draw(definitions(within=kept))
    config = draw(configs(kept))
    if draw(st.booleans()):
        policies = old["reducer_config"]["merge_policies"]
        config = {
            **old["reducer_config"],
            "merge_policies": {name: policies[name] for name in policies if name in kept},
        }
    return {"schema_definition": definition, "reducer_config": config, "metadata": new["metadata"]}


@st.composite
def updates(draw: st.DrawFn, base: Schema) -> Document:
    """An update that can be done to a schema."""
    known = base.schema_definition.fields
    added: list[Document] = []
    for name in draw(st.lists(st.sampled_from((*NAMES, "new_one", "new_two")), max_size=3, unique=True)):
        field = draw(fields())
        options = {key: value for key, value in field.items() if key != "type"}
        added.append({"field_name": name, "field_type": field["type"], **options})
    names = [entry["field_name"] for entry in added]
    candidates = [name for name in (*known, "ghost") if name not in names]
    removed = draw(st.lists(st.sampled_from(candidates), max_size=2, unique=True)) if candidates else []
    left = {entry["field_name"]: entry["field_type"] for entry in added} | {n: f.type for n, f in known.items()}
    left = {name: kind for name, kind in left.items() if name not in removed}
    if not left:
        removed, left = [], {name: field.type for name, field in known.items()}
    places = [(name, one) for name, kind in left.items() for one in converters(kind)]
    more = draw(st.lists(st.sampled_from(places), max_size=2)) if places else []
    asked: Document = {
        "fields_to_add": added,
        "fields_to_remove": removed,
        "converters_to_add": [{"field_name": name, "converter": one} for name, one in more],
    }
    if draw(st.integers(0, 3)) == 0:
        asked["canonical_name_fields"] = draw(st.lists(st.sampled_from(sorted(left)), max_size=2, unique=True))
    if draw(st.integers(0, 3)) == 0:
        asked["metadata"] = {"label": draw(st.sampled_from(["a", "b"]))}
    return {name: value for name, value in asked.items() if value or name == "canonical_name_fields"}
