"""What a schema asks of values beyond their types: limits, choices and patterns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.schema import document
from headrace.schema.entity.nodes import Constraints, Definition
from headrace.schema.entity.problem import Notice
from headrace.schema.shape.canonical import exactly


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
    least, greatest = _exact(constraints.min), _exact(constraints.max)
    choices, banned = list(map(_exact, constraints.enum)), list(map(_exact, constraints.banned))
    pattern = None if constraints.pattern is None else document.Validator({"pattern": constraints.pattern})

    def judge(value: Any) -> Broken | None:
        exact = _exact(value)
        if least is not None and exact < least:
            return Broken("min", constraints.min, f"is below {constraints.min}")
        if greatest is not None and exact > greatest:
            return Broken("max", constraints.max, f"is above {constraints.max}")
        if choices and exact not in choices:
            return Broken("enum", constraints.enum, f"is none of {', '.join(map(repr, constraints.enum))}")
        if exact in banned:
            return Broken("banned", constraints.banned, "is a value that is banned")
        if pattern is not None and not pattern.accepts(value):
            return Broken("pattern", constraints.pattern, f"does not match {constraints.pattern}")
        return None

    return judge


def _exact(value: Any) -> Any:
    """A number as its digits say, which the nearest double may not; other values as they are."""
    return exactly(value) if isinstance(value, float) else value


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern that runs in linear time."""
    return not document.problems({"pattern": text})
