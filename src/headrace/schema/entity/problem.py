"""What is wrong with a request about entities, and what is merely worth knowing.

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


class Location(NamedTuple):
    """Where a value stands, and where problems with it go."""

    path: pointer.Pointer
    problems: list[EntityProblem]

    def at(self, name: str | int) -> Location:
        """The place of a member."""
        return self._replace(path=(*self.path, str(name)))

    def refuse(self, code: str, message: str) -> None:
        """Note a problem with what stands here."""
        self.problems.append(EntityProblem(code, pointer.text(self.path), message))


MOST_MEMBERS = 1_000
LONGEST_TEXT = 10_000

Reader = Callable[[Any, Location], Any]


def read_members(
    given: Any, readers: Mapping[str, Reader], place: Location, required: Collection[str] = ()
) -> dict[str, Any]:
    """The members that were read; each unknown, missing or unreadable one is noted. A null is as if not given."""
    if not isinstance(given, dict):
        place.refuse(INVALID, "this is an object")
        return {}
    for name in given:
        if name not in readers:
            place.at(name).refuse(UNKNOWN, f"there is no {name!r} here, only {', '.join(readers)}")
    for name in required:
        if given.get(name) is None:
            place.at(name).refuse(MISSING, f"{name} is missing")
    return {
        name: reader(given[name], place.at(name)) for name, reader in readers.items() if given.get(name) is not None
    }


def read_text(given: Any, place: Location) -> str:
    """A text that is not blank."""
    if isinstance(given, str) and given.strip() and len(given) <= LONGEST_TEXT:
        return given
    place.refuse(INVALID, f"this is a text of 1 to {LONGEST_TEXT} characters")
    return ""


def read_boolean(given: Any, place: Location) -> bool:
    """True or false."""
    if not isinstance(given, bool):
        place.refuse(INVALID, "this is true or false")
    return given is True


def read_fraction(given: Any, place: Location) -> float:
    """A number from 0 to 1."""
    if isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= 1:
        return given
    place.refuse(INVALID, "this is a number from 0 to 1")
    return 0.0


def choice_reader(*words: str) -> Reader:
    """One of some words."""

    def read(given: Any, place: Location) -> Any:
        if not (isinstance(given, str) and given in words):
            place.refuse(INVALID, f"this is one of {', '.join(words)}")
        return given

    return read


def list_reader(item: Reader) -> Reader:
    """A list, of which every element is read alike."""

    def read(given: Any, place: Location) -> tuple[Any, ...]:
        if not isinstance(given, list) or len(given) > MOST_MEMBERS:
            place.refuse(INVALID, f"this is a list of at most {MOST_MEMBERS}")
            return ()
        return tuple(item(element, place.at(number)) for number, element in enumerate(given))

    return read


def read_distinct_texts(given: Any, place: Location) -> tuple[str, ...]:
    """A list of texts, none of them twice."""
    found: tuple[str, ...] = list_reader(read_text)(given, place)
    for number, name in enumerate(found):
        if name in found[:number]:
            place.at(number).refuse(INVALID, f"{name!r} is there already")
    return found
