"""What a schema asks of values beyond their types: limits, choices and patterns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.schema import document
from headrace.schema.entity.nodes import Constraints, Definition

Check = Callable[[Any], str | None]


class Violation(NamedTuple):
    """A value that its field does not allow, and why."""

    field: str
    message: str


class Limits:
    """The constraints of a definition, compiled once to judge many observations."""

    def __init__(self, definition: Definition) -> None:
        self.rejects = definition.constraint_violation_policy == "reject"
        self._checks = {
            name: check(field.constraints) for name, field in definition.fields.items() if field.constraints is not None
        }

    def violations(self, fields: Mapping[str, Any]) -> list[Violation]:
        """What values break; a null breaks nothing."""
        found = []
        for name, judge in self._checks.items():
            value = fields.get(name)
            reason = None if value is None else judge(value)
            if reason is not None:
                found.append(Violation(name, f"{name}: {reason}"))
        return found


def check(constraints: Constraints) -> Check:
    """A function that says why a value is not allowed, or None where it is."""
    pattern = None if constraints.pattern is None else document.Validator({"pattern": constraints.pattern})

    def judge(value: Any) -> str | None:
        if constraints.min is not None and value < constraints.min:
            return f"is below {constraints.min}"
        if constraints.max is not None and value > constraints.max:
            return f"is above {constraints.max}"
        if constraints.enum and value not in constraints.enum:
            return f"is none of {', '.join(map(repr, constraints.enum))}"
        if value in constraints.banned:
            return "is a value that is banned"
        if pattern is not None and not pattern.accepts(value):
            return f"does not match {constraints.pattern}"
        return None

    return judge


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern that runs in linear time."""
    return not document.problems({"pattern": text})
