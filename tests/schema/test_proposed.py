"""What an update proposes, whether or not its plan is refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.engine.registry.schemas import SEARCH
from headrace.schema.apply import apply, propose_registry
from headrace.schema.registry import Registry
from headrace.schema.update import SchemaUpdate, parse_update
from server.registries import TEXT, WHOLE, lens, rename, shape

ONE = Registry.empty("s").advanced(shape(a=WHOLE), None, 0)


def proposal(registry: Registry, **body: Any) -> tuple[Registry | None, list[str]]:
    """The registry that would be tried, and the codes for which the plan is refused."""
    update = parse_update(body)
    assert isinstance(update, SchemaUpdate)
    plan = apply(registry, update, next_seq=5, is_empty=False, search_rules=SEARCH)
    return propose_registry(registry, update, plan, next_seq=5), [refusal.code for refusal in plan.refusals]


def test_an_accepted_change_is_proposed() -> None:
    found, refusals = proposal(ONE, schema=shape("b", a=WHOLE, b=TEXT))
    assert not refusals and found is not None
    assert found.current_version == 2
    assert found.lenses[1]["ops"] == []
    found, refusals = proposal(ONE, schema=shape(b=WHOLE), lens=lens("s", 1, rename("a", "b")))
    assert not refusals and found is not None and found.lenses[1]["ops"] == [rename("a", "b")]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"schema": shape(a={"type": "integer", "minimum": 0})}, "lens_required"),
        ({"schema": shape(b=WHOLE), "lens": lens("s", 1)}, "lens_unsound"),
    ],
)
def test_what_the_proof_refuses_is_proposed_all_the_same(body: dict[str, Any], code: str) -> None:
    found, refusals = proposal(ONE, **body)
    assert code in refusals
    assert found is not None and found.schemas[2] == body["schema"]


def test_a_first_schema_is_tried_on_events_that_forbid_it() -> None:
    found, refusals = proposal(Registry.empty("s"), schema=shape(a=WHOLE))
    assert refusals == ["bad_request"]
    assert found is not None and found.current_version == 1


@pytest.mark.parametrize(
    "body",
    [
        {"routingKey": {"jsonPointer": "/a", "required": False}},
        {"schema": shape(a=WHOLE)},
        {"schema": {"type": "nonsense"}},
        {"schema": shape(b=WHOLE), "lens": {"ops": []}},
        {"schema": shape(b=WHOLE), "lens": lens("s", 2)},
        {"schema": shape(b=WHOLE), "lens": lens("other", 1)},
        {"schema": shape(b=WHOLE), "lens": lens("s", 1, rename("a", "a"))},
        {"schema": shape(b=WHOLE), "lens": lens("s", 1, {"op": "add", "path": "/b", "schema": {"type": "integer"}})},
    ],
    ids=["settings", "the same", "no schema", "no lens", "versions", "stream", "into itself", "no default"],
)
def test_what_no_event_could_be_held_against_is_not_proposed(body: dict[str, Any]) -> None:
    assert proposal(ONE, **body)[0] is None
