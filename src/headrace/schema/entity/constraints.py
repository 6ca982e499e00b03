"""What a schema asks of values beyond their types: limits, choices and patterns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.schema import document
from headrace.schema.entity.nodes import Constraints, Definition
from headrace.schema.entity.problem import Notice


class Violation(NamedTuple):
    """A value that its field does not allow: what forbids it, by name and value, and a sentence."""

    field: str
    message: str
    constraint: str
    constraint_value: Any

    def notice(self) -> Notice:
        """The warning where such a value is stored all the same."""
        facts = self.constraint, self.constraint_value
        return Notice("CONSTRAINT_VIOLATION", self.message, (self.field,), *facts)


class Broken(NamedTuple):
    """A constraint that a value breaks, and why it does."""

    constraint: str
    constraint_value: Any
    reason: str


Check = Callable[[Any], Broken | None]


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
            broken = None if value is None else judge(value)
            if broken is not None:
                found.append(Violation(name, f"{name}: {broken.reason}", broken.constraint, broken.constraint_value))
        return found


def check(constraints: Constraints) -> Check:
    """A function that gives the first constraint that a value breaks, or None where it breaks none."""
    pattern = None if constraints.pattern is None else document.Validator({"pattern": constraints.pattern})

    def judge(value: Any) -> Broken | None:
        least, greatest, choices, banned = constraints.min, constraints.max, constraints.enum, constraints.banned
        if least is not None and value < least:
            return Broken("min", least, f"is below {least}")
        if greatest is not None and value > greatest:
            return Broken("max", greatest, f"is above {greatest}")
        if choices and value not in choices:
            return Broken("enum", choices, f"is none of {', '.join(map(repr, choices))}")
        if value in banned:
            return Broken("banned", banned, "is a value that is banned")
        if pattern is not None and not pattern.accepts(value):
            return Broken("pattern", constraints.pattern, f"does not match {constraints.pattern}")
        return None

    return judge


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern that runs in linear time."""
    return not document.problems({"pattern": text})
