"""Problems and notices of requests about entities, and readers that collect them.

Codes in capitals are those of the reference interface; ours are in lower case.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from headrace.schema import pointer

INVALID = "schema_invalid"
MISSING = "missing_member"
UNKNOWN = "unknown_member"
DANGLING = "unknown_field"


class EntityProblem(NamedTuple):
    """One error in a request: a stable code, a JSON Pointer into the request, and a sentence."""

    code: str
    path: str
    message: str

    def dump(self) -> dict[str, Any]:
        """The problem as a JSON object."""
        return self._asdict()


class Notice(NamedTuple):
    """A remark on something that was accepted: a stable code, a sentence, and the fields it is about."""

    code: str
    message: str
    fields: tuple[str, ...] = ()
    #: The constraint that a value breaks, and what that says; empty where it is about none.
    constraint: str = ""
    constraint_value: Any = None

    def dump(self) -> dict[str, Any]:
        """The notice as a JSON object."""
        document = {"code": self.code, "message": self.message, "fields": list(self.fields)}
        if self.constraint:
            document |= {"constraint": self.constraint, "constraint_value": self.constraint_value}
        return document


class Location(NamedTuple):
    """The path of a value in a request, and the list that its problems are added to."""

    path: pointer.Pointer
    problems: list[EntityProblem]

    def at(self, name: str | int) -> Location:
        """The location of a member."""
        return self._replace(path=(*self.path, str(name)))

    def refuse(self, code: str, message: str) -> None:
        """Note a problem with the value here."""
        self.problems.append(EntityProblem(code, pointer.text(self.path), message))


MOST_MEMBERS = 1_000
LONGEST_TEXT = 10_000

Reader = Callable[[Any, Location], Any]


def read_members(
    raw: Any, readers: Mapping[str, Reader], location: Location, required: Collection[str] = ()
) -> dict[str, Any]:
    """Read the members of an object; unknown, missing and bad ones are noted. A null counts as missing."""
    if not isinstance(raw, dict):
        location.refuse(INVALID, "this is an object")
        return {}
    for name in raw:
        if name not in readers:
            location.at(name).refuse(UNKNOWN, f"there is no {name!r} here, only {', '.join(readers)}")
    for name in required:
        if raw.get(name) is None:
            location.at(name).refuse(MISSING, f"{name} is missing")
    return {name: reader(raw[name], location.at(name)) for name, reader in readers.items() if raw.get(name) is not None}


def read_text(raw: Any, location: Location) -> str:
    """A text that is not blank."""
    if isinstance(raw, str) and raw.strip() and len(raw) <= LONGEST_TEXT:
        return raw
    location.refuse(INVALID, f"this is a text of 1 to {LONGEST_TEXT} characters")
    return ""


def read_boolean(raw: Any, location: Location) -> bool:
    """True or false."""
    if not isinstance(raw, bool):
        location.refuse(INVALID, "this is true or false")
    return raw is True


def read_fraction(raw: Any, location: Location) -> float:
    """A number from 0 to 1."""
    if isinstance(raw, int | float) and not isinstance(raw, bool) and 0 <= raw <= 1:
        return raw
    location.refuse(INVALID, "this is a number from 0 to 1")
    return 0.0


def choice_reader(*words: str) -> Reader:
    """A reader of one of some words."""

    def read(raw: Any, location: Location) -> Any:
        if not (isinstance(raw, str) and raw in words):
            location.refuse(INVALID, f"this is one of {', '.join(words)}")
        return raw

    return read


def list_reader(read_element: Reader) -> Reader:
    """A reader of a list whose elements are all read by one reader."""

    def read(raw: Any, location: Location) -> tuple[Any, ...]:
        if not isinstance(raw, list) or len(raw) > MOST_MEMBERS:
            location.refuse(INVALID, f"this is a list of at most {MOST_MEMBERS}")
            return ()
        return tuple(read_element(element, location.at(number)) for number, element in enumerate(raw))

    return read


def read_distinct_texts(raw: Any, location: Location) -> tuple[str, ...]:
    """A list of texts, none of them twice."""
    texts: tuple[str, ...] = list_reader(read_text)(raw, location)
    for number, name in enumerate(texts):
        if name in texts[:number]:
            location.at(number).refuse(INVALID, f"{name!r} is there already")
    return texts
