"""Why something cannot be done to an entity type, as an error that tells every reason."""

from __future__ import annotations

from collections.abc import Sequence
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
from headrace.schema.entity.problem import Problem
from headrace.schema.plan import Refusal

NAME_TAKEN = "name_taken"
_CONFLICTS: dict[str, type[HeadraceError]] = {
    NAME_TAKEN: Conflict,
    **{kind.code: kind for kind in (VersionTaken, AliasTaken, RegistryFull)},
}
_BAD: dict[str, type[HeadraceError]] = {kind.code: kind for kind in (ForbiddenEntityType, PluralEntityType)}


def refusal(problems: Sequence[Problem | Refusal]) -> HeadraceError:
    """The error for what cannot be done: the gravest reason, and all of them as facts."""
    told = [_told(problem) for problem in problems]
    first = next((one for one in told if one["code"] in _CONFLICTS), told[0])
    kind = _CONFLICTS.get(first["code"]) or _BAD.get(first["code"]) or BadRequest
    return kind(first["message"], field=first["path"] or "body", problems=told)


def _told(problem: Problem | Refusal) -> dict[str, Any]:
    if isinstance(problem, Problem):
        return problem.dump()
    return {"code": problem.code, "path": problem.pointer, "message": problem.message, **problem.facts}


def unknown(entity_type: str) -> UnknownEntityType:
    """That a caller sees no such type."""
    return UnknownEntityType("there is no entity type of this name", entity_type=entity_type)
