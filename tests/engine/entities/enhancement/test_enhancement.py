"""Reconciliation: what three users with fifty entities each agree on becomes everyone's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import NoSchemaForEntityType
from headrace.reduce.fragments.rules import MIXED, TOO_FEW_USERS
from support.enhancement_rig import Growing
from support.entity_rig import contact

USERS = ("ann", "bob", "eve")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Growing]:
    with Growing(tmp_path) as rig:
        rig.register_type(contact())
        yield rig


def adopt(rig: Growing, user: str, type_: str = "string", entities: int = 50) -> None:
    rig.update_type(owner=user, fields_to_add=[{"field_name": "phone_name", "field_type": type_}])
    rig.store(*({"entity_type": "contact", "email": f"{n}@{user}.y"} for n in range(entities)), user=user)


def reconcile(rig: Growing, dry_run: bool = False) -> Any:
    return rig.run(rig.engine.enhancement.reconciliation.reconcile("contact", "tests", dry_run=dry_run))


def test_a_field_that_three_users_have_becomes_everyones(rig: Growing) -> None:
    for user in USERS:
        adopt(rig, user)
    planned = reconcile(rig, dry_run=True)
    assert planned.outcome.number is None
    assert rig.version() == "1.0.0"
    found = reconcile(rig)
    (agreement,) = found.agreements
    assert agreement.field_name == "phone_name"
    assert agreement.users == 3
    assert agreement.entities == 150
    assert agreement.promotable is True
    assert agreement.confidence >= 0.8
    assert rig.version() == rig.version("new") == "1.1.0"
    assert "phone_name" in found.outcome.plan.registry.schema_definition.fields
    again = reconcile(rig)
    assert again.agreements == []
    assert again.outcome.number is None


@pytest.mark.parametrize(
    ("types", "entities", "reason"),
    [
        (("string", "string"), 50, TOO_FEW_USERS),
        (("string", "string", "string"), 49, TOO_FEW_USERS),
        (("string", "string", "number"), 50, MIXED),
    ],
)
def test_too_few_users_or_entities_or_types_that_differ_are_not_enough(
    rig: Growing, types: tuple[str, ...], entities: int, reason: str
) -> None:
    for user, type_ in zip(USERS, types, strict=False):
        adopt(rig, user, type_, entities)
    found = reconcile(rig)
    assert reason in [one.code for one in found.agreements[0].reasons]
    assert found.outcome.number is None
    assert rig.version() == "1.0.0"


def test_a_type_without_a_global_schema_has_nothing_to_reconcile_with(rig: Growing) -> None:
    rig.store({"entity_type": "thing", "name": "a"}, user="ann")
    with pytest.raises(NoSchemaForEntityType):
        rig.run(rig.engine.enhancement.reconciliation.reconcile("thing", "tests", dry_run=True))
