from __future__ import annotations

from headrace.schema.entity.identity import Identity, resolve
from headrace.schema.entity.relations import Link, Moment, find_links, find_moments
from schema.entity.samples import defined, schema

DEFINITION = schema().schema_definition


def test_each_dated_value_is_a_moment() -> None:
    assert find_moments(DEFINITION, {"born": "1815-12-10"}) == [Moment("born", "birth", "1815-12-10")]
    assert find_moments(DEFINITION, {"born": None}) == find_moments(DEFINITION, {}) == []
    plain = defined({"on": "date"}, temporal_fields=[{"field": "on"}]).schema_definition
    assert find_moments(plain, {"on": "2026-01-01"}) == [Moment("on", "on", "2026-01-01")]


def test_each_named_entity_is_a_link_to_the_id_that_storing_it_gives() -> None:
    company = defined({"name": "string"}, canonical_name_fields=["name"]).schema_definition
    stored = resolve(company, "company", {"name": "Acme, Inc."}, {}, "t")
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
