from __future__ import annotations

import msgspec

from headrace.schema.change import Classification
from headrace.schema.entity import registration
from headrace.schema.entity.plan import plan_activation, plan_registration, plan_update
from headrace.schema.entity.registration import ChangeRequest
from headrace.schema.entity.update import TypeUpdate
from headrace.schema.plan import Effect, Impact
from schema.entity.samples import CONTACT, schema

BASE = schema()


def asked(**payload: object) -> TypeUpdate:
    found = registration.read_change_request(payload)
    assert isinstance(found, ChangeRequest)
    return found.update


def test_a_plan_shows_the_changes_the_version_and_the_impact() -> None:
    impact = Impact("entities/contact", Effect.KEPT, {"entities": 3})
    plan = plan_update(BASE, asked(fields_to_add=[{"field_name": "x", "field_type": "date"}]), ("1.0.0",), [impact])
    assert plan.subject == "contact"
    assert plan.from_version == "1.0.0"
    assert plan.to_version == "1.1.0"
    assert plan.classification is Classification.ADDITIVE
    assert plan.impact == (impact,)
    assert plan.registry.schema_definition.fields["x"].type == "date"
    assert (
        msgspec.json.decode(msgspec.json.encode(plan.dump()))["changes"][0]["pointer"] == "/schema_definition/fields/x"
    )


def test_a_plan_that_changes_nothing_says_so() -> None:
    assert plan_update(BASE, asked(fields_to_remove=["ghost"])).changes_nothing


def test_a_plan_that_cannot_be_done_gives_every_reason_and_stays_where_it_is() -> None:
    update = asked(fields_to_remove=list(CONTACT["fields"]), canonical_name_fields=["ghost"])
    plan = plan_update(BASE, update)
    assert [refusal.pointer for refusal in plan.refusals] == ["/fields_to_remove", "/canonical_name_fields/0"]
    assert plan.registry == BASE
    assert not plan.changes_nothing


def test_a_repeated_version_is_refused() -> None:
    plan = plan_registration(BASE, BASE, ("1.0.0",))
    assert [refusal.code for refusal in plan.refusals] == ["version_taken"]


def test_the_first_version_changes_nothing_that_there_was() -> None:
    plan = plan_registration(None, BASE)
    assert plan.from_version == ""
    assert plan.to_version == "1.0.0"
    assert plan.changes == ()
    assert plan.refusals == ()
    assert not plan.changes_nothing


def test_a_version_that_promises_less_than_it_changes_is_told() -> None:
    smaller = {**CONTACT, "aliases": []}
    told = plan_registration(BASE, schema(schema_version="1.1.0", schema_definition=smaller)).reasons
    assert told == ("this is a major change against 1.0.0, which 1.1.0 does not say",)
    assert plan_registration(BASE, schema(schema_version="2.0.0", schema_definition=smaller)).reasons == ()


def test_going_back_is_a_plan_as_well_and_a_new_rule_is_told() -> None:
    newer = schema(schema_version="2.0.0", schema_definition={**CONTACT, "canonical_name_fields": ["name"]})
    plan = plan_activation(newer, BASE)
    assert plan.from_version == "2.0.0"
    assert plan.to_version == "1.0.0"
    assert [change.what for change in plan.changes] == ["identity_changed"]
    assert "keep their ids" in plan.reasons[0]
