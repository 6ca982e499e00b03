"""Plans as values and as documents."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headrace.schema.change import Change, Classification
from headrace.schema.plan import Effect, Impact, Plan, PlannedLens, Refusal


class Menu:
    """Something other than the registry of a stream, to plan for."""

    def dump(self) -> dict[str, Any]:
        return {"dishes": 2}


ADDED = Change("/soup", "dish_added", Classification.ADDITIVE, "/soup: is new")
GONE = Change("/cake", "dish_removed", Classification.DESTRUCTIVE, "/cake: is gone")


def plan(**facts: Any) -> Plan[Menu]:
    return Plan(subject="menu", **{"from_version": "1.2.0", "to_version": "1.3.0", "registry": Menu(), **facts})


def test_a_plan_without_changes_changes_nothing() -> None:
    assert plan(to_version="1.2.0").changes_nothing
    assert plan(to_version="1.2.0").classification is Classification.IDENTICAL


@pytest.mark.parametrize(
    "facts", [{"to_version": "1.3.0"}, {"changes": (ADDED,)}, {"refusals": (Refusal("conflict", "", "no"),)}]
)
def test_a_plan_with_something_to_say_does_not_change_nothing(facts: dict[str, Any]) -> None:
    assert not plan(**{"to_version": "1.2.0", **facts}).changes_nothing


def test_a_plan_is_as_bad_as_its_worst_change() -> None:
    assert plan(changes=(ADDED,)).classification is Classification.ADDITIVE
    assert plan(changes=(GONE, ADDED)).classification is Classification.DESTRUCTIVE


def test_a_plan_is_dumped_with_all_it_says() -> None:
    found = plan(
        changes=(ADDED,),
        reasons=("more to eat",),
        lens=PlannedLens({"ops": []}, written=True),
        impact=(Impact("menu/orders", Effect.REBUILT, {"events": 12, "keys": 3}),),
        refusals=(Refusal("lens_unsound", "/lens/ops/0", "/soup: may be missing", {"counter_example": {}}),),
        requires_force=True,
    ).dump()
    assert msgspec.json.decode(msgspec.json.encode(found)) == found
    assert found == {
        "subject": "menu",
        "from_version": "1.2.0",
        "to_version": "1.3.0",
        "classification": "additive",
        "requires_force": True,
        "changes": [
            {
                "pointer": "/soup",
                "what": "dish_added",
                "classification": "additive",
                "reason": "/soup: is new",
                "schema_pointer": None,
            }
        ],
        "reasons": ["more to eat"],
        "lens": {"document": {"ops": []}, "written": True},
        "impact": [{"subject": "menu/orders", "effect": "rebuilt", "events": 12, "keys": 3}],
        "refusals": [
            {
                "code": "lens_unsound",
                "pointer": "/lens/ops/0",
                "message": "/soup: may be missing",
                "counter_example": {},
            }
        ],
        "registry": {"dishes": 2},
    }


def test_a_plan_without_a_lens_says_so() -> None:
    assert plan().dump()["lens"] is None


def test_an_engine_fills_in_the_impact_of_a_plan_it_was_given() -> None:
    impact = (Impact("menu/orders", Effect.KEPT),)
    given = plan()
    assert replace(given, impact=impact).dump()["impact"] == [{"subject": "menu/orders", "effect": "kept"}]
    assert given.impact == ()


def test_a_plan_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        plan().registry = Menu()  # type: ignore[misc]
