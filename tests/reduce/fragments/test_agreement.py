"""What users agree on becomes everyone's."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.reduce.fragments.agreement import Adoption, Agreement, agreements
from headrace.schema.entity.nodes import Field, ReducerConfig
from headrace.schema.entity.update import TypeUpdate, UpdatedSchema, apply_update
from reduce.policies.samples import schema

BASE = schema(ReducerConfig({}), name="string")


def agreed(*given: tuple[str | Field, int], name: str = "nick") -> Agreement:
    (found,) = agreements(
        [
            Adoption(f"user {number}", schema(ReducerConfig({}), name="string", **{name: field}), entities)
            for number, (field, entities) in enumerate(given)
        ],
        BASE,
    )
    return found


def test_three_users_with_fifty_entities_make_a_field_everyones() -> None:
    found = agreed(*[("number", 50)] * 3)
    assert found.promotable is True
    assert found.users == 3
    assert found.entities == 150
    assert found.type_share == 1.0
    made = apply_update(BASE, TypeUpdate(fields_to_add=(found.addition,)))
    assert isinstance(made, UpdatedSchema)
    assert made.schema.schema_definition.fields["nick"] == Field("number")
    assert agreements([Adoption("ada", made.schema, 50)] * 3, made.schema) == []


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([("number", 50)] * 2, "too_few_users"),
        ([("number", 50)] * 2 + [("number", 49)], "too_few_users"),
        ([("number", 50)] * 8 + [("string", 50)], "mixed_types"),
        ([(Field("number", description=str(number)), 50) for number in range(5)], "low_confidence"),
    ],
)
def test_what_falls_short_says_of_what(given: list[tuple[str | Field, int]], code: str) -> None:
    assert [reason.code for reason in agreed(*given).reasons] == [code]


def test_nine_of_ten_with_the_same_type_are_enough() -> None:
    found = agreed(*[("number", 50)] * 9, ("string", 99))
    assert found.promotable is True
    assert found.field == Field("number")


def test_users_with_few_entities_have_no_say() -> None:
    assert agreed(*[("number", 50)] * 3, *[("string", 49)] * 9).field == Field("number")


def test_a_field_that_some_require_is_optional_for_everyone() -> None:
    assert agreed(*[(Field("number", required=True), 50)] * 3).field == Field("number")


def test_names_are_checked() -> None:
    assert [reason.code for reason in agreed(*[("number", 50)] * 3, name="x_debug").reasons] == ["blacklisted"]
    assert [reason.code for reason in agreed(*[("number", 50)] * 3, name="a b").reasons] == ["invalid_name"]


def test_the_order_of_users_does_not_matter() -> None:
    given = [
        Adoption(f"user {number}", replace(schema(ReducerConfig({}), nick=kind), user_id=f"user {number}"), 50)
        for number, kind in enumerate(["number", "string", "string", "number"])
    ]
    assert agreements(given, BASE) == agreements(given[::-1], BASE)
