"""Laws of what is given for entities: nothing is lost, nothing is invented, and moments are exact."""

from __future__ import annotations

import json
import time
import unicodedata
from collections import Counter
from decimal import Decimal
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.schema.entity.accept import Splitter, rejoin_fragments
from headrace.schema.entity.identity import Identity, Resolver, normalise_name
from headrace.schema.entity.nodes import Schema
from headrace.schema.entity.observation import Observation, decode, encode, observation_id
from headrace.schema.entity.update import UpdatedSchema, apply_update
from headrace.schema.entity.values import FUNCTIONS, LAST_MS
from schema.entity.strategies import entities, entities_of, likely, numbers, schemas, shuffled, updates
from schema.entity.updating import request

PYTHON: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "date": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def spelled(value: Any) -> str:
    """A text in which 1, 1.0 and true are three values."""
    return json.dumps(value, sort_keys=True)


def test_fields_and_fragments_are_what_was_given() -> None:
    seen = Counter[str]()

    @settings(max_examples=200)
    @given(schemas(), entities, st.data())
    def holds(schema: Schema, others: dict[str, Any], data: st.DataObject) -> None:
        entity = {**data.draw(entities_of(schema)), **others}
        fields, fragments = Splitter(schema.schema_definition).split(entity)
        assert spelled(rejoin_fragments(fields, fragments)) == spelled(entity)
        declared = schema.schema_definition.fields
        for name, value in fields.items():
            assert value is None or type(value) in PYTHON[declared[name].type]
        reasons = {fragment.key: fragment.reason for fragment in fragments}
        assert len(reasons) == len(fragments)
        for name, value in entity.items():
            converted = name in fields and spelled(fields[name]) != spelled(value)
            assert reasons.get(name) == (
                "converted_value_original" if converted else None if name in fields else "unknown_field"
            )
            seen[reasons.get(name, "kept")] += 1
        assert all(name in fields for name, value in entity.items() if name in declared and value is None)

    holds()
    reasons = ("kept", "unknown_field", "converted_value_original")
    assert min(seen[reason] for reason in reasons) >= 5, seen


@settings(max_examples=120)
@given(schemas(), likely, st.data())
def test_an_update_that_only_adds_changes_no_value_that_was_there(
    schema: Schema, entity: dict[str, Any], data: st.DataObject
) -> None:
    asked = data.draw(updates(schema))
    adding = {name: asked[name] for name in ("fields_to_add", "converters_to_add") if name in asked}
    made = apply_update(schema, request(adding))
    assert isinstance(made, UpdatedSchema)
    before = Splitter(schema.schema_definition).split(entity).fields
    after = Splitter(made.schema.schema_definition).split(entity).fields
    assert spelled({name: after[name] for name in before}) == spelled(before)


@settings(max_examples=200)
@given(st.integers(0, LAST_MS * 1_000_000 + 999_999))
@example(1_700_000_000_999_999_999)
@example(2**53 + 1)
def test_nanoseconds_become_text_digit_by_digit(nanos: int) -> None:
    digits = str(nanos).rjust(19, "0")
    day = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(int(digits[:-9])))
    assert FUNCTIONS["timestamp_nanos_to_iso"].convert(nanos) == f"{day}.{digits[-9:-6]}Z"
    millis = nanos // 1_000_000
    assert FUNCTIONS["timestamp_ms_to_iso"].convert(millis) == f"{day}.{digits[-9:-6]}Z"
    assert FUNCTIONS["timestamp_s_to_iso"].convert(millis // 1000) == f"{day}.000Z"


@settings(max_examples=200)
@given(numbers)
def test_a_number_and_its_text_are_converted_into_each_other(number: float) -> None:
    text = FUNCTIONS["number_to_string"].convert(number)
    assert not set(text) - set("-.0123456789")
    assert Decimal(text) == Decimal(repr(number))
    if len(text) <= 300:
        found = FUNCTIONS["string_to_number"].convert(text)
        assert found == number if isinstance(number, int) else float(found) == number


@settings(max_examples=300)
@given(st.text("0123456789+-.eE x_", max_size=8))
def test_a_text_is_a_number_only_as_a_whole(text: str) -> None:
    found = FUNCTIONS["string_to_number"].convert(text)
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    if expected is not None and abs(expected) != float("inf"):
        assert found == expected
    if found is not None:
        assert float(found) == float(Decimal(text.strip()))
        assert "_" not in text
        assert "x" not in text


@settings(max_examples=120)
@given(schemas(), entities | likely, st.integers(), st.sampled_from(["t", "u"]))
def test_the_order_of_members_changes_neither_the_entity_nor_the_id(
    schema: Schema, entity: dict[str, Any], seed: int, tenant: str
) -> None:
    definition, turned = schema.schema_definition, shuffled(entity, seed)
    one, other = (Splitter(definition).split(spelling) for spelling in (entity, turned))
    named = Resolver(definition, "contact").resolve(one.fields, entity, tenant)
    assert Resolver(definition, "contact").resolve(other.fields, turned, tenant) == named
    if isinstance(named, Identity):
        assert Resolver(definition, "contact").resolve(one.fields, entity, tenant + "x") != named
        assert named.canonical_name.count("|") == (named.rule.count(",") if named.basis == "schema_rule" else 0)
    ids = {observation_id(entity_id="e", fields=split.fields, fragments=split.fragments) for split in (one, other)}
    assert ids == {observation_id(entity_id="e", fields=entity)}


@settings(max_examples=60)
@given(schemas(), entities)
def test_an_observation_is_stored_exactly(schema: Schema, entity: dict[str, Any]) -> None:
    fields, fragments = Splitter(schema.schema_definition).split(entity)
    observation = Observation(
        id="i",
        kind="observation",
        entity_id="e",
        entity_type="contact",
        user_id="u",
        schema_version="1.0.0",
        source_id=None,
        observed_at_us=0,
        source_priority=100,
        observation_source="human",
        fields=fields,
        fragments=fragments,
    )
    found = decode(encode(observation))
    assert spelled(rejoin_fragments(found.fields, found.fragments)) == spelled(entity)
    assert found == observation


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(["Mr.", "Dr", "Acme", "Inc.", "a-b", "|", "!", " ", "É", "İ", "co"]) | st.text(max_size=4)
    ).map(" ".join)
)
def test_the_one_spelling_of_a_name_is_its_own_spelling(text: str) -> None:
    once = normalise_name(text)
    assert normalise_name(once) == once
    assert normalise_name(f"  {text}\t") == once
    assert "|" not in once
    assert bool(once) == bool(unicodedata.normalize("NFKC", text).replace("|", " ").strip())
