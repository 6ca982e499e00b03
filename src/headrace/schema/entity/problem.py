"""What is wrong with a request about entities, and what is merely worth knowing.

Codes in capitals are those of the reference interface; ours are in lower case.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.schema import pointer

INVALID = "schema_invalid"
MISSING = "missing_member"
UNKNOWN = "unknown_member"
DANGLING = "unknown_field"


class Problem(NamedTuple):
    """One thing that is wrong: a stable code, where as a JSON Pointer into what was given, and a sentence."""

    code: str
    path: str
    message: str

    def dump(self) -> dict[str, Any]:
        """The problem as a JSON object."""
        return self._asdict()


class Notice(NamedTuple):
    """One thing that is accepted but worth knowing: a stable code, a sentence, and the fields it is about."""

    code: str
    message: str
    fields: tuple[str, ...] = ()
    #: The constraint that a value breaks, and what that says; empty where it is about none.
    constraint: str = ""
    constraint_value: Any = None

    def dump(self) -> dict[str, Any]:
        """The notice as a JSON object."""
        told = {"code": self.code, "message": self.message, "fields": list(self.fields)}
        if self.constraint:
            told |= {"constraint": self.constraint, "constraint_value": self.constraint_value}
        return told


class Place(NamedTuple):
    """Where a value stands, and where problems with it go."""

    path: pointer.Pointer
    problems: list[Problem]

    def at(self, name: str | int) -> Place:
        """The place of a member."""
        return self._replace(path=(*self.path, str(name)))

    def refuse(self, code: str, message: str) -> None:
        """Note a problem with what stands here."""
        self.problems.append(Problem(code, pointer.text(self.path), message))
