"""Plans of changes of an entity type; the caller counts the impact on stored entities."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from headrace.errors import (
    AliasTaken,
    BadRequest,
    Conflict,
    ForbiddenEntityType,
    HeadraceError,
    PluralEntityType,
    RegistryFull,
    UnknownEntityType,
    VersionTaken,
)
from headrace.schema.entity.nodes import Schema
from headrace.schema.entity.update import VERSION_TAKEN, TypeUpdate, apply_update
from headrace.schema.entity.versions import bump_of, changes_identity, differences, distance, parse_version
from headrace.schema.plan import Impact, Plan, Refusal
from headrace.schema.problem import RequestProblem

#: The version before the first one.
NOTHING = ""


def plan_update(
    base: Schema, update: TypeUpdate, taken: Collection[str] = (), impact: Iterable[Impact] = ()
) -> Plan[Schema]:
    """The plan of an update; one that changes nothing leads to where it starts."""
    made = apply_update(base, update, taken)
    if isinstance(made, list):
        return _plan(base, base, refusals=_refusals(made))
    return _plan(base, made.schema, reasons=[notice.message for notice in made.notices], impact=impact)


def plan_registration(
    active: Schema | None, schema: Schema, taken: Collection[str] = (), impact: Iterable[Impact] = ()
) -> Plan[Schema]:
    """The plan of a registration, which repeats no version; its changes are those that activating it would make."""
    if schema.schema_version in taken:
        problem = RequestProblem(
            VERSION_TAKEN, "/schema_version", f"{schema.entity_type} {schema.schema_version} exists"
        )
        return _plan(active, schema, refusals=_refusals([problem]))
    return _plan(active, schema, reasons=_understated_version_reasons(active, schema), impact=impact)


def plan_activation(active: Schema | None, schema: Schema, impact: Iterable[Impact] = ()) -> Plan[Schema]:
    """The plan of making a version the active one; of an earlier one, that is a rollback."""
    return _plan(active, schema, impact=impact)


def _plan(
    old: Schema | None,
    new: Schema,
    *,
    reasons: Iterable[str] = (),
    refusals: tuple[Refusal, ...] = (),
    impact: Iterable[Impact] = (),
) -> Plan[Schema]:
    changes = tuple(difference.change for difference in differences(old, new)) if old else ()
    all_reasons = list(reasons)
    if old and changes_identity(old.schema_definition, new.schema_definition):
        all_reasons.append(
            "entities that exist keep their ids; what is stored from now on is told apart by the new rule"
        )
    return Plan(
        subject=new.entity_type,
        from_version=old.schema_version if old else NOTHING,
        to_version=new.schema_version,
        registry=new,
        changes=changes,
        reasons=tuple(all_reasons),
        impact=tuple(impact),
        refusals=refusals,
    )


def _refusals(problems: Iterable[RequestProblem]) -> tuple[Refusal, ...]:
    return tuple(Refusal(problem.code, problem.path, problem.message) for problem in problems)


def _understated_version_reasons(active: Schema | None, schema: Schema) -> list[str]:
    """The reason that a version number promises less change than there is, if it does."""
    if active is None:
        return []
    bump, old, new = (
        bump_of(differences(active, schema)),
        parse_version(active.schema_version),
        parse_version(schema.schema_version),
    )
    if old is None or new is None or new <= old or distance(old, new) >= bump:
        return []
    return [f"this is a {bump.name.lower()} change against {old}, which {new} does not say"]


NAME_TAKEN = "name_taken"
_CONFLICTS: dict[str, type[HeadraceError]] = {
    NAME_TAKEN: Conflict,
    **{kind.code: kind for kind in (VersionTaken, AliasTaken, RegistryFull)},
}
_BAD: dict[str, type[HeadraceError]] = {kind.code: kind for kind in (ForbiddenEntityType, PluralEntityType)}


def refusal(problems: Sequence[RequestProblem | Refusal]) -> HeadraceError:
    """The error for what cannot be done: the gravest reason, and all of them as facts."""
    documents = [_dump_problem(problem) for problem in problems]
    first = next((document for document in documents if document["code"] in _CONFLICTS), documents[0])
    kind = _CONFLICTS.get(first["code"]) or _BAD.get(first["code"]) or BadRequest
    return kind(first["message"], field=first["path"] or "body", problems=documents)


def _dump_problem(problem: RequestProblem | Refusal) -> dict[str, Any]:
    if isinstance(problem, RequestProblem):
        return problem.dump()
    return {"code": problem.code, "path": problem.pointer, "message": problem.message, **problem.facts}


def unknown(entity_type: str) -> UnknownEntityType:
    """The error for a type that the caller cannot see."""
    return UnknownEntityType("there is no entity type of this name", entity_type=entity_type)
