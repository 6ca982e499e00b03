"""Reading a document that may be wrong anywhere: valid parts are returned, problems are noted with their pointers."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from reprlib import repr as shown
from typing import Any

import msgspec

from headrace.deadline import check_deadline
from headrace.schema import pointer
from headrace.schema.problem import Problem

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}")


class Part:
    """A piece of a document; reading it as something it is not notes a problem and gives nothing."""

    def __init__(self, value: Any, at: pointer.Pointer = (), problems: list[Problem] | None = None) -> None:
        self.value = value
        self.at = at
        self.problems: list[Problem] = [] if problems is None else problems

    def __getitem__(self, name: str) -> Part:
        """The member of that name, which may be absent."""
        check_deadline()
        members = self.value if isinstance(self.value, dict) else {}
        return Part(members.get(name, msgspec.UNSET), (*self.at, name), self.problems)

    @property
    def is_present(self) -> bool:
        """Whether the document has this part; a null is given."""
        return self.value is not msgspec.UNSET

    def note(self, reason: str) -> None:
        """Note a problem of this part."""
        self.problems.append(Problem(pointer.text(self.at), reason))

    def is_object(self) -> bool:
        """Whether this is an object; anything else is noted."""
        return self._is(dict, "an object")

    def knows(self, allowed: Collection[str]) -> bool:
        """Whether this is an object; unknown members are noted."""
        if not self.is_object():
            return False
        for name in self.value:
            if name not in allowed:
                self[name].note("is not supported")
        return True

    def named(self) -> list[tuple[str, Part]]:
        """The members of an object that gives names to things."""
        if not self.is_object():
            return []
        for name in self.value:
            if not _NAME.fullmatch(name):
                self[name].note(
                    "a name has 1 to 64 letters, digits, dots, dashes or underscores, a letter or digit first"
                )
        return [(name, self[name]) for name in self.value]

    def elements(self) -> list[Part]:
        """The elements of an array."""
        if not self._is(list, "an array"):
            return []
        return [Part(value, (*self.at, str(index)), self.problems) for index, value in enumerate(self.value)]

    def text(self) -> str | None:
        """A string."""
        return self.value if self._is(str, "a string") else None

    def flag(self) -> bool:
        """True or false; an absent one is false."""
        return self.is_present and self._is(bool, "true or false") and self.value

    def integer(self) -> int | None:
        """A whole number, however it is spelled."""
        value = self.value
        if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
            self._refuse("a whole number")
            return None
        return int(value)

    def positive(self) -> float | None:
        """A finite number above zero."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
            self._refuse("a number above 0")
            return None
        return float(value)

    def pointer(self) -> pointer.Pointer | None:
        """A JSON Pointer."""
        text = self.text()
        names = None if text is None else pointer.parse(text)
        if text is not None and names is None:
            self.note(f"{shown(text)} is no JSON Pointer such as /user/id")
        return names

    def one_of(self, allowed: Collection[str]) -> str | None:
        """One of these strings."""
        if isinstance(self.value, str) and self.value in allowed:
            return self.value
        self._refuse(f"one of {', '.join(allowed)}")
        return None

    def _is(self, kind: type, expected: str) -> bool:
        if not isinstance(self.value, kind):
            self._refuse(expected)
            return False
        return True

    def _refuse(self, expected: str) -> None:
        self.note(f"must be {expected}" if self.is_present else f"is required: {expected}")
