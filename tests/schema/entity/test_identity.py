"""Names, ids and links of entities."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.entity.identity import (
    Identity,
    Link,
    Moment,
    Resolver,
    Unresolved,
    check_name_collision,
    entity_id,
    find_links,
    find_moments,
    missing_identity_fields,
)
from headrace.schema.entity.nodes import Definition, Notice
from headrace.schema.problem import RequestProblem
from schema.entity.samples import defined, schema

FIELDS: dict[str, Any] = {
    "name": "string",
    "city": "string",
    "email": "string",
    "code": {"type": "string"},
    "n": "number",
}
GUESSING = defined(FIELDS).schema_definition


def ruled(*rules: Any, **options: Any) -> Definition:
    return defined(FIELDS, canonical_name_fields=list(rules), **options).schema_definition


def name(definition: Definition, given: dict[str, Any]) -> tuple[str, str, str] | None:
    fields = {key: value for key, value in given.items() if key in definition.fields}
    found = Resolver(definition, "place").resolve(fields, given, "t")
    return (found.canonical_name, found.basis, found.rule) if isinstance(found, Identity) else None


def test_all_parts_of_a_flat_rule_are_needed() -> None:
    definition = ruled("name", "city", canonical_name_strict=True)
    assert name(definition, {"name": "Town Hall", "city": "Ulm"}) == ("place:town hall|ulm", "schema_rule", "name,city")
    assert name(definition, {"name": "Town Hall"}) is None
    assert name(definition, {"name": "Town Hall", "city": "  "}) is None
    assert name(definition, {"name": "Town Hall", "city": None}) is None


def test_the_first_complete_alternative_wins() -> None:
    definition = ruled("email", {"composite": ["name", "city"]}, "n")
    assert name(definition, {"email": "A@b.de", "name": "X", "city": "Y"}) == ("place:a@b.de", "schema_rule", "email")
    assert name(definition, {"name": "X", "city": "Y", "n": 3}) == ("place:x|y", "schema_rule", "name,city")
    assert name(definition, {"name": "X", "n": 3.0}) == ("place:3", "schema_rule", "n")


def test_a_rule_that_is_not_complete_falls_back_on_habit_unless_it_is_strict() -> None:
    given = {"name": "X", "title": "T"}
    assert name(ruled("email"), given) == ("place:x", "heuristic_name", "name")
    assert name(ruled("email", canonical_name_strict=True), given) is None


def test_what_would_have_helped_is_said_when_nothing_tells() -> None:
    found = Resolver(ruled("email", {"composite": ["name", "city"]}, canonical_name_strict=True), "place").resolve(
        {}, {}, "t"
    )
    assert isinstance(found, Unresolved)
    assert found.code == "ERR_CANONICAL_NAME_UNRESOLVED"
    assert found.hint == {
        "text": "give email or name and city",
        "required_identity_fields": {
            "entity_type": "place",
            "required": [],
            "any_of_fields": ["email"],
            "composite_fields": [["name", "city"]],
        },
    }


@pytest.mark.parametrize(
    ("given", "rule", "basis"),
    [
        ({"title": "T", "name": "N", "full_name": "F"}, "name", "heuristic_name"),
        ({"name": "", "title": "T"}, "title", "heuristic_name"),
        ({"name": 42}, "name", "heuristic_name"),
        ({"id": 7, "thread_id": "x"}, "thread_id", "heuristic_fallback"),
        ({"zeta": "words here", "alpha": "other words"}, "alpha", "heuristic_fallback"),
        ({"a_status": "Pending", "currency": "EUR", "what": "shoes"}, "what", "heuristic_fallback"),
    ],
)
def test_a_name_is_guessed_from_what_usually_is_one(given: dict[str, Any], rule: str, basis: str) -> None:
    found = name(GUESSING, given)
    assert found is not None
    assert found[1:] == (basis, rule)


@pytest.mark.parametrize(
    "given", [{}, {"n": 5}, {"state": "open"}, {"flag": True}, {"list": ["x"]}, {"name": None}, {"name": True}]
)
def test_nothing_is_guessed_from_what_many_share(given: dict[str, Any]) -> None:
    assert name(GUESSING, given) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ACME Corp.", "acme"),
        ("Acme, Inc.", "Acme"),
        ("Dr. Ada  Lovelace", "ada lovelace"),
        ("Café", "Cafe\u0301"),
    ],
)
def test_spellings_of_one_name_are_one_entity(one: str, other: str) -> None:
    assert name(GUESSING, {"name": one}) == name(GUESSING, {"name": other})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a-b@x.de", "a.b@x.de"),
        ("INV-001", "INV001"),
        ("C++", "C"),
        ("हिन्दी भाषा", "हनद भष"),
        ("!!! ???", "??? !!!"),
        ("Inc.", "Corp."),
    ],
)
def test_names_that_differ_in_more_than_spelling_are_two(one: str, other: str) -> None:
    assert name(GUESSING, {"name": one}) != name(GUESSING, {"name": other})


def test_parts_cannot_be_mistaken_for_one_another() -> None:
    definition = ruled("name", "city")
    assert name(definition, {"name": "a|b", "city": "c"}) != name(definition, {"name": "a", "city": "b|c"})


def test_case_counts_where_the_field_says_so() -> None:
    keeping = defined({"code": {"type": "string", "preserveCase": True}}, canonical_name_fields=["code"])
    assert name(keeping.schema_definition, {"code": "aB"}) == ("place:aB", "schema_rule", "code")
    assert name(ruled("code"), {"code": "aB"}) == ("place:ab", "schema_rule", "code")


def test_case_is_that_of_unicode_with_dotted_i_and_final_sigma() -> None:
    assert name(ruled("code"), {"code": "İ"}) == ("place:i\u0307", "schema_rule", "code")
    assert name(ruled("code"), {"code": "ΟΔΟΣ"}) == ("place:οδος", "schema_rule", "code")


def test_an_id_is_the_same_for_one_tenant_and_another_for_others() -> None:
    assert entity_id("t", "place:x") == entity_id("t", "place:x")
    assert len({entity_id(tenant, text) for tenant in ("t", "u", "") for text in ("place:x", "place:y")}) == 6
    assert entity_id("t", "place:x").startswith("ent_")
    assert len(entity_id("t", "place:x")) == 28
    assert entity_id("t:1", "x") != entity_id("t", "1:x")


def test_what_the_preferred_rule_lacks_is_told_only_where_no_rule_is_complete() -> None:
    definition = ruled({"composite": ["name", "city"]}, "email")
    assert missing_identity_fields(definition, {"name": "x"}) == ("city",)
    assert missing_identity_fields(definition, {"email": "x"}) == ()
    assert missing_identity_fields(GUESSING, {}) == ()


def test_a_name_that_exists_is_merged_told_or_refused() -> None:
    identity = Identity("ent_x", "place:x", "schema_rule", "name")
    assert check_name_collision(ruled("name"), identity) is None
    warned = check_name_collision(ruled("name", name_collision_policy="warn"), identity)
    assert isinstance(warned, Notice)
    for refused in (
        check_name_collision(ruled("name", name_collision_policy="reject"), identity),
        check_name_collision(ruled("name"), identity, strict=True),
    ):
        assert isinstance(refused, RequestProblem)
        assert refused.code == "ERR_MERGE_REFUSED"


DEFINITION = schema().schema_definition


def test_each_dated_value_is_a_moment() -> None:
    assert find_moments(DEFINITION, {"born": "1815-12-10"}) == [Moment("born", "birth", "1815-12-10")]
    assert find_moments(DEFINITION, {"born": None}) == find_moments(DEFINITION, {}) == []
    plain = defined({"on": "date"}, temporal_fields=[{"field": "on"}]).schema_definition
    assert find_moments(plain, {"on": "2026-01-01"}) == [Moment("on", "on", "2026-01-01")]


def test_each_named_entity_is_a_link_to_the_id_that_storing_it_gives() -> None:
    company = defined({"name": "string"}, canonical_name_fields=["name"]).schema_definition
    stored = Resolver(company, "company").resolve({"name": "Acme, Inc."}, {}, "t")
    assert isinstance(stored, Identity)
    assert find_links(DEFINITION, {"company": "ACME Corp."}, "t") == [
        Link("company", "WORKS_AT", "company", "ACME Corp.", stored.entity_id)
    ]


def test_a_list_names_many_and_an_id_stands_for_itself() -> None:
    many = defined(
        {"friends": "array"}, reference_fields=[{"field": "friends", "target_entity_type": "contact"}]
    ).schema_definition
    found = find_links(many, {"friends": ["Bob", None, "ent_0123"]}, "t")
    assert [(link.value, link.relationship_type) for link in found] == [("Bob", "REFERS_TO"), ("ent_0123", "REFERS_TO")]
    assert found[1].target_id == "ent_0123"
    assert find_links(many, {"friends": None}, "t") == []
