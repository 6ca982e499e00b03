"""What an update makes of a registry, and why it does not."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.apply import MAX_REFUSALS, CarriedSearch, SearchRules, apply
from headrace.schema.change import Classification
from headrace.schema.plan import Plan
from headrace.schema.problem import Problem
from headrace.schema.registry import Boundary, KeySetting, Registry
from headrace.schema.update import SchemaUpdate

NAME = "orders"
STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
USER = KeySetting("/user", True)


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def lens(*ops: dict[str, Any], source: int = 1, target: int = 2, schema: str = NAME) -> dict[str, Any]:
    return {"apiVersion": "durable.lens/v1", "schema": schema, "from": source, "to": target, "ops": list(ops)}


RENAME = {"op": "rename", "from": "/a", "to": "/b"}
FIRST = closed("a", a=INTEGER)
RENAMED = closed("b", b=INTEGER)


def bound(version: int) -> dict[str, Any]:
    return {"fields": {"a": {"kind": "integer", "bindings": [{"version": version, "jsonPointer": "/a"}]}}}


def check_search(search: Any, version: int, _: Any) -> list[Problem]:
    """Fields must be bound for the current version."""
    return [
        Problem(f"/fields/{name}/bindings", f"{name} is not bound for version {version}")
        for name, field in search["fields"].items()
        if field["bindings"][-1]["version"] != version
    ]


#: Bindings stay as they are: what follows a lens is tested where searches are read.
RULES = SearchRules(check_search, lambda old, wanted, new, crossings: CarriedSearch(wanted))


def planned(registry: Registry, *, next_seq: int = 0, **update: Any) -> Plan[Registry]:
    return apply(registry, SchemaUpdate(**update), next_seq=next_seq, is_empty=next_seq == 0, search_rules=RULES)


def installed(schema: Any = FIRST, **update: Any) -> Registry:
    plan = planned(Registry.empty(NAME), schema=schema, **update)
    assert not plan.refusals
    return plan.registry


def codes(plan: Plan[Registry]) -> list[tuple[str, str]]:
    return [(refusal.code, refusal.pointer) for refusal in plan.refusals]


# The first schema


def test_the_first_schema_makes_version_1_from_the_start() -> None:
    plan = planned(Registry.empty(NAME), schema=FIRST)
    assert plan.from_version == 0
    assert plan.to_version == 1
    assert plan.classification == Classification.ADDITIVE
    assert [change.what for change in plan.changes] == ["schema_installed"]
    assert plan.registry.boundaries == (Boundary(0, 1),)
    assert plan.registry.current_schema == FIRST
    assert plan.lens is None
    assert plan.registry.lenses == {}


def test_the_first_schema_needs_an_empty_stream() -> None:
    plan = planned(Registry.empty(NAME), schema=FIRST, next_seq=1)
    assert codes(plan) == [("bad_request", "/schema")]
    assert "empty stream" in plan.refusals[0].message
    assert plan.registry == Registry.empty(NAME)


def test_the_first_schema_begins_at_0_on_a_stream_whose_events_are_gone() -> None:
    plan = apply(Registry.empty(NAME), SchemaUpdate(schema=FIRST), next_seq=40, is_empty=True, search_rules=RULES)
    assert plan.registry.boundaries == (Boundary(0, 1),)


def test_a_lens_to_the_first_schema_is_discarded() -> None:
    plan = planned(Registry.empty(NAME), schema=FIRST, lens=lens(RENAME, source=0, target=1))
    assert not plan.refusals
    assert plan.registry.lenses == {}


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (lens(source=1, target=2), "conflict"),
        (lens(source=0, target=2), "conflict"),
        (lens(source=0, target=1, schema="other"), "bad_request"),
        ({"ops": 1}, "lens_invalid"),
    ],
)
def test_a_lens_to_the_first_schema_must_be_one(document: Any, code: str) -> None:
    plan = planned(Registry.empty(NAME), schema=FIRST, lens=document)
    assert {refusal.code for refusal in plan.refusals} == {code}
    assert plan.registry == Registry.empty(NAME)


def test_a_routing_key_that_was_set_before_stays_with_the_first_schema() -> None:
    keyed = planned(Registry.empty(NAME), routing_key=USER).registry
    assert planned(keyed, schema=FIRST).registry.routing_key == USER


def test_the_first_schema_comes_with_its_routing_key_and_search() -> None:
    registry = installed(routing_key=USER, search=bound(1))
    assert registry.routing_key == USER
    assert registry.search == bound(1)


@pytest.mark.parametrize("registry", [Registry.empty(NAME), installed()])
def test_a_schema_that_is_none_is_refused_where_it_is_wrong(registry: Registry) -> None:
    plan = planned(registry, schema={"properties": {"a": {"type": "text"}}})
    assert codes(plan) == [("schema_invalid", "/schema/properties/a/type")]
    assert plan.registry == registry


# The next schema


def test_a_lens_that_is_proven_leads_to_the_next_version() -> None:
    plan = planned(installed(), schema=RENAMED, lens=lens(RENAME), next_seq=150)
    assert plan.from_version == 1
    assert plan.to_version == 2
    assert plan.refusals == ()
    assert plan.registry.boundaries == (Boundary(0, 1), Boundary(150, 2))
    assert plan.registry.lenses == {1: lens(RENAME)}
    assert plan.registry.schemas == {1: FIRST, 2: RENAMED}
    assert plan.lens is not None and not plan.lens.written
    assert {(change.pointer, change.what) for change in plan.changes} == {
        ("/a", "property_removed"),
        ("/b", "property_added"),
    }
    assert not plan.requires_force
    assert plan.reasons


def reasons(plan: Plan[Registry]) -> dict[str, str]:
    assert not plan.refusals
    return {change.pointer: change.reason for change in plan.changes}


FILLED = "is required from now on; the lens gives it to older events"


def test_a_member_that_the_lens_fills_is_not_called_new_and_required() -> None:
    plan = planned(installed(), schema=RENAMED, lens=lens(RENAME), next_seq=1)
    assert reasons(plan)["/b"] == f"/b: {FILLED}"
    assert plan.classification is Classification.DESTRUCTIVE
    old, new = closed(a=INTEGER), closed("a", a=INTEGER)
    fill = {"op": "add", "path": "/a", "schema": INTEGER, "default": 0, "overwrite": True}
    assert reasons(planned(installed(old), schema=new, lens=lens(fill), next_seq=1))["/a"] == f"/a: {FILLED}"
    lines = {"type": "array", "items": closed()}, {"type": "array", "items": closed("b", b=INTEGER)}
    fill = {"op": "map", "path": "/a", "ops": [{"op": "add", "path": "/b", "schema": INTEGER, "default": 0}]}
    plan = planned(installed(closed("a", a=lines[0])), schema=closed("a", a=lines[1]), lens=lens(fill), next_seq=1)
    assert reasons(plan)["/a/*/b"] == f"/a/*/b: {FILLED}"


def test_a_removed_member_says_what_the_lens_does_with_it() -> None:
    plan = planned(installed(), schema=RENAMED, lens=lens(RENAME), next_seq=1)
    assert reasons(plan)["/a"] == '/a: is no longer allowed as {"type":"integer"}; the lens moves it to /b'
    remove = {"op": "remove", "path": "/a", "schema": INTEGER}
    plan = planned(installed(), schema=closed(), lens=lens(remove), next_seq=1)
    assert (
        reasons(plan)["/a"] == '/a: is no longer allowed as {"type":"integer"}; the lens takes it out of older events'
    )
    forward, backward = {"builtin": "int_to_string"}, {"builtin": "string_to_int"}
    types = {"fromType": "integer", "toType": "string"}
    convert = {"op": "convert", "path": "/a", **types, "forward": forward, "backward": backward}
    texts = {**closed(), "additionalProperties": {"type": "string"}}
    plan = planned(installed(), schema=texts, lens=lens(convert), next_seq=1)
    assert reasons(plan)["/a"] == '/a: is no longer allowed as {"type":"integer"}; the lens changes it in older events'


def test_a_member_that_need_not_be_there_is_not_called_required() -> None:
    opened = {"type": "object"}
    fill = {"op": "add", "path": "/b", "schema": INTEGER, "default": 0, "overwrite": True}
    plan = planned(installed(opened), schema={**opened, "properties": {"b": INTEGER}}, lens=lens(fill), next_seq=1)
    assert (
        reasons(plan)["/b"]
        == '/b: is new, as {"type":"integer"}; the lens replaces or removes what older events hold there'
    )


def test_a_field_that_moves_in_an_open_schema_says_where_to() -> None:
    opened = {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}
    renamed = {"type": "object", "properties": {"b": INTEGER}, "required": ["b"]}
    plan = planned(installed(opened), schema=renamed, lens=lens(RENAME), next_seq=1)
    assert reasons(plan) == {
        "/a": '/a: is no longer described; was {"type":"integer"}; the lens moves it to /b',
        "/b": f"/b: {FILLED}",
    }
    keep = {"op": "copy", "from": "/a", "to": "/b"}
    plan = planned(installed(opened), schema=renamed, lens=lens(keep), next_seq=1)
    assert reasons(plan)["/a"] == '/a: is no longer described; was {"type":"integer"}, events may still hold it'


def test_a_lens_that_may_overwrite_is_refused_in_plain_words() -> None:
    opened = {"type": "object"}
    fill = {"op": "add", "path": "/b", "schema": INTEGER, "default": 0}
    plan = planned(installed(opened), schema={**opened, "properties": {"b": INTEGER}}, lens=lens(fill), next_seq=1)
    assert [refusal.message for refusal in plan.refusals if refusal.facts["rule"] == "may_overwrite"] == [
        'Old events may already contain /b. Set "overwrite": true on this operation.'
    ]


def test_a_lens_is_kept_as_it_was_sent() -> None:
    sent = {"ops": [dict(reversed(RENAME.items()))], **{k: v for k, v in lens().items() if k != "ops"}}
    registry = planned(installed(), schema=RENAMED, lens=sent, next_seq=3).registry
    assert repr(registry.lenses[1]) == repr(sent)


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 3), (2, 3), (2, 1)])
def test_a_lens_between_other_versions_is_a_conflict(source: int, target: int) -> None:
    plan = planned(installed(), schema=RENAMED, lens=lens(RENAME, source=source, target=target), next_seq=3)
    assert codes(plan) == [("conflict", "/lens")]
    assert "lens version mismatch" in plan.refusals[0].message


def test_a_lens_of_another_stream_is_refused() -> None:
    plan = planned(installed(), schema=RENAMED, lens=lens(RENAME, schema="other"), next_seq=3)
    assert codes(plan) == [("bad_request", "/lens/schema")]


def test_an_unsound_lens_is_refused_with_an_event_that_shows_it() -> None:
    plan = planned(installed(), schema=RENAMED, lens=lens(), next_seq=3)
    assert {refusal.code for refusal in plan.refusals} == {"lens_unsound"}
    assert plan.refusals[0].pointer == "/lens"
    facts = plan.refusals[0].facts
    assert set(facts) == {"event_pointer", "rule", "counter_example"}
    assert set(facts["counter_example"]) == {"a"}
    assert plan.registry == installed()
    assert plan.lens is None


def test_very_many_refusals_are_cut_and_counted() -> None:
    many = {f"p{number}": STRING for number in range(MAX_REFUSALS + 50)}
    plan = planned(installed(closed(**many)), schema=closed(), next_seq=1)
    assert len(plan.refusals) == MAX_REFUSALS + 1
    assert plan.refusals[-1].code == "lens_required"
    assert "50 more" in plan.refusals[-1].message


def test_an_unsound_op_is_named() -> None:
    wrong = {"op": "rename", "from": "/absent", "to": "/b"}
    plan = planned(installed(), schema=RENAMED, lens=lens(wrong), next_seq=3)
    assert "/lens/ops/0" in {refusal.pointer for refusal in plan.refusals}


def test_a_schema_inside_a_lens_must_be_one() -> None:
    add = {"op": "add", "path": "/c", "schema": {"type": "text"}, "default": 1}
    nested = {"op": "in", "path": "", "ops": [add]}
    plan = planned(installed(), schema=closed("a", "c", a=INTEGER, c=INTEGER), lens=lens(nested), next_seq=3)
    assert codes(plan) == [("lens_invalid", "/lens/ops/0/ops/0/schema/type")]


@pytest.mark.parametrize(
    "schema",
    [closed("a", a=NUMBER), closed(a=INTEGER), closed("a", a=INTEGER, c=STRING), {**FIRST, "title": "orders"}, True],
)
def test_a_change_that_breaks_nothing_needs_no_lens(schema: Any) -> None:
    plan = planned(installed(), schema=schema, next_seq=7)
    assert plan.refusals == ()
    assert plan.lens is not None and plan.lens.written
    assert plan.lens.document == lens()
    assert plan.registry.lenses == {1: lens()}
    assert plan.registry.boundaries[-1] == Boundary(7, 2)
    assert "lens" in plan.reasons[0]


def test_a_change_that_breaks_something_needs_a_lens_and_says_every_reason() -> None:
    plan = planned(installed(), schema=closed("b", a=STRING, b=STRING), next_seq=7)
    assert codes(plan) == [
        ("lens_required", "/schema/properties/b"),
        ("lens_required", "/schema/properties/a/type"),
    ]
    assert all(refusal.message.startswith("lens required: ") for refusal in plan.refusals)
    assert plan.registry == installed()
    assert plan.classification is Classification.DESTRUCTIVE


def test_a_lens_is_required_where_harmless_changes_are_not_proven_together() -> None:
    first = {"type": "object", "additionalProperties": True, "unevaluatedProperties": False}
    plan = planned(installed(first), schema={"type": "object", "unevaluatedProperties": False}, next_seq=1)
    assert codes(plan) == [("lens_required", "/schema/unevaluatedProperties")]


def test_two_versions_without_an_event_between_begin_at_one_place() -> None:
    second = planned(installed(), schema=closed(a=INTEGER), next_seq=5).registry
    third = planned(second, schema=closed(a=NUMBER), next_seq=5).registry
    assert third.boundaries == (Boundary(0, 1), Boundary(5, 2), Boundary(5, 3))
    assert [third.version_at(seq) for seq in (4, 5)] == [1, 3]


def test_a_version_cannot_begin_where_clients_cannot_count() -> None:
    plan = planned(installed(), schema=True, next_seq=2**53)
    assert codes(plan) == [("bad_request", "/schema")]
    assert planned(installed(), schema=True, next_seq=2**53 - 1).refusals == ()


def test_everything_that_is_wrong_is_said_at_once() -> None:
    plan = planned(
        installed(),
        schema={"type": "text"},
        lens=lens(RENAME, source=4, target=5, schema="other"),
        search=bound(1),
        next_seq=3,
    )
    assert codes(plan) == [
        ("schema_invalid", "/schema/type"),
        ("conflict", "/lens"),
        ("bad_request", "/lens/schema"),
        ("search_invalid", "/search/fields/a/bindings"),
    ]


# The same schema again


@pytest.mark.parametrize(
    "update",
    [
        {"schema": FIRST},
        {"schema": dict(reversed(FIRST.items()))},
        {"schema": FIRST, "routing_key": USER},
        {"schema": FIRST, "search": bound(1)},
        {"routing_key": USER},
        {"search": bound(1)},
    ],
)
def test_what_is_already_so_changes_nothing(update: dict[str, Any]) -> None:
    registry = installed(routing_key=USER, search=bound(1))
    plan = planned(registry, next_seq=9, **update)
    assert plan.changes_nothing
    assert plan.to_version == 1
    assert plan.registry == registry


def test_the_same_schema_with_other_settings_is_an_update_of_the_settings() -> None:
    plan = planned(installed(), schema=FIRST, routing_key=USER, search=bound(1), next_seq=9)
    assert plan.from_version == 1
    assert plan.to_version == 1
    assert [change.what for change in plan.changes] == ["routing_key_set", "search_set"]
    assert plan.registry.boundaries == (Boundary(0, 1),)


def test_the_same_schema_with_a_lens_is_a_new_version() -> None:
    upper = {"builtin": "uppercase"}
    convert = {"op": "convert", "path": "/a", "fromType": "string", "toType": "string"}
    schema = closed("a", a=STRING)
    plan = planned(
        installed(schema), schema=schema, lens=lens({**convert, "forward": upper, "backward": upper}), next_seq=2
    )
    assert plan.refusals == ()
    assert plan.to_version == 2


# Settings


def test_a_routing_key_is_set_and_cleared_at_any_version_with_events() -> None:
    for registry in (Registry.empty(NAME), installed()):
        keyed = planned(registry, routing_key=USER, next_seq=5)
        assert keyed.registry.routing_key == USER
        assert keyed.from_version == keyed.to_version
        assert planned(keyed.registry, routing_key=None, next_seq=5).registry == registry


def test_a_search_configuration_needs_a_version() -> None:
    plan = planned(Registry.empty(NAME), search=bound(1))
    assert codes(plan) == [("bad_request", "/search")]


def test_a_search_configuration_is_checked_set_and_cleared() -> None:
    assert codes(planned(installed(), search=bound(2))) == [("search_invalid", "/search/fields/a/bindings")]
    searchable = planned(installed(), search=bound(1), next_seq=5).registry
    assert searchable.search == bound(1)
    assert planned(searchable, search=None, next_seq=6).registry == installed()


def test_settings_stay_as_they_are_where_the_next_schema_says_nothing() -> None:
    def any_search(search: Any, version: int, _: Any) -> list[Problem]:
        return []

    registry = installed(routing_key=USER, search=bound(1))
    plan = apply(
        registry,
        SchemaUpdate(schema={**FIRST, "title": "x"}),
        next_seq=5,
        is_empty=False,
        search_rules=SearchRules(any_search, RULES.carry),
    )
    assert plan.registry.routing_key == USER
    assert plan.registry.search == bound(1)
    assert [change.what for change in plan.changes] == ["annotation_changed"]


def test_a_search_configuration_that_stays_is_checked_again_when_the_version_grows() -> None:
    plan = planned(installed(search=bound(1)), schema=True, next_seq=5)
    assert codes(plan) == [("search_invalid", "/search/fields/a/bindings")]
    assert "version 2" in plan.refusals[0].message
    assert planned(installed(search=bound(1)), schema=True, search=bound(2), next_seq=5).refusals == ()


def test_a_plan_can_be_dumped() -> None:
    document = planned(installed(), schema=RENAMED, lens=lens(), next_seq=3).dump()
    assert document["subject"] == NAME
    assert document["registry"] == installed().dump()
    assert {refusal["code"] for refusal in document["refusals"]} == {"lens_unsound"}
