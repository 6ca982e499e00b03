"""``headrace entity erase``: an entity is removed for good, and the command waits until nothing holds its data."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from headrace.cli import output
from headrace.cli.output import AsJson, Yes
from headrace.cli.remote import LOCAL, Remote

if TYPE_CHECKING:
    from headrace.client.erasures import ErasurePlan

#: How often is looked how far it is.
_LOOK_S = 0.5
_STEPS = ("log", "offered", "objects", "rows", "files", "pages", "done")


def erase(
    entity_id: Annotated[str, Parameter(help="The id of an entity.")],
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative=(), help="Only say what would be removed.")] = False,
    yes: Yes = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Remove an entity, and everything merged into it, for good: from the log, the object store and what is derived."""
    from headrace.client import erasures

    with remote.connect(patient=True) as client:
        plan = erasures.planned(client.send(erasures.erase(entity_id, dry_run=True)))
        if dry_run:
            output.show({"entity_id": entity_id, **_plan_document(plan, json)}, as_json=json)
            return
        output.confirm(f"Remove {plan.observations} observations of {entity_id} for good?", yes=yes)
        erasure = erasures.begun(client.send(erasures.erase(entity_id)))
        with output.progressing("erasing") as tell:
            while not erasure.complete:
                tell(_STEPS.index(erasure.step), len(_STEPS) - 1)
                time.sleep(_LOOK_S)
                erasure = erasures.begun(client.send(erasures.get(erasure.erasure_id)))
    facts = msgspec.to_builtins(erasure)
    if output.wants_table(json):
        report = erasure.report
        facts = {
            "erasure_id": erasure.erasure_id,
            "entity_id": entity_id,
            "observations": erasure.plan.observations,
            "log_rows": report["log_rows"],
            "rewritten": len(report["rewritten"]),
            "removed": len(report["removed"]),
            "completed_at": erasure.completed_at,
        }
    output.show(facts, as_json=json)


def _plan_document(plan: ErasurePlan, as_json: bool) -> dict[str, Any]:
    """A plan; for people, objects are counted."""
    facts: dict[str, Any] = msgspec.to_builtins(plan)
    if not output.wants_table(as_json):
        return facts
    held = {name: facts[name] for name in ("segments", "companions", "states")}
    sizes = {
        name: f"{len(objects)} of {sum(listed['bytes'] for listed in objects):,} bytes"
        for name, objects in held.items()
    }
    return {**facts, **sizes, "ids": " ".join(facts["ids"]), "sources": len(facts["sources"])}
