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
            output.show({"entity_id": entity_id, **_shown(plan, json)}, as_json=json)
            return
        output.confirm(f"Remove {plan.observations} observations of {entity_id} for good?", yes=yes)
        found = erasures.begun(client.send(erasures.erase(entity_id)))
        with output.progressing("erasing") as tell:
            while not found.complete:
                tell(_STEPS.index(found.step), len(_STEPS) - 1)
                time.sleep(_LOOK_S)
                found = erasures.begun(client.send(erasures.get(found.erasure_id)))
    facts = msgspec.to_builtins(found)
    if output.wants_table(json):
        report = found.report
        facts = {
            "erasure_id": found.erasure_id,
            "entity_id": entity_id,
            "observations": found.plan.observations,
            "log_rows": report["log_rows"],
            "rewritten": len(report["rewritten"]),
            "removed": len(report["removed"]),
            "completed_at": found.completed_at,
        }
    output.show(facts, as_json=json)


def _shown(plan: ErasurePlan, as_json: bool) -> dict[str, Any]:
    """A plan; for people, objects are counted."""
    facts: dict[str, Any] = msgspec.to_builtins(plan)
    if not output.wants_table(as_json):
        return facts
    held = {name: facts[name] for name in ("segments", "companions", "states")}
    told = {name: f"{len(some)} of {sum(one['bytes'] for one in some):,} bytes" for name, some in held.items()}
    return {**facts, **told, "ids": " ".join(facts["ids"]), "sources": len(facts["sources"])}
