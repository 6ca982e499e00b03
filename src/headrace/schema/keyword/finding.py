"""What a comparison of two schemas finds: changes, and inner schemas that must be compared in turn."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from headrace.schema import pointer
from headrace.schema.change import Change, Classification
from headrace.schema.pointer import Pointer

Node = dict[str, Any]

_SHOWN_CHARACTERS = 80


class Place(NamedTuple):
    """Where two schemas are compared: in the data, and in the schema document.

    Where it is proven that every event that was valid stays valid, no change breaks anything, whatever its rule says.
    """

    data: Pointer = ()
    schema: Pointer = ()
    proven: bool = False

    def inside(self, name: str, *steps: str) -> Place:
        """The place of a member or element, whose schema is some steps further."""
        return self._replace(data=(*self.data, name), schema=(*self.schema, *steps))

    def beside(self, *steps: str) -> Place:
        """The same place in the data, some steps further in the schema."""
        return self._replace(schema=(*self.schema, *steps))

    def change(self, what: str, classification: Classification, reason: str, *keyword: str, remedy: str = "") -> Change:
        """A change at this place, of a keyword where one is named; the sentence begins with the place."""
        words = f"{pointer.text(self.data) or 'the event'}: {reason}"
        if classification.breaking and self.proven:
            classification = Classification.WIDENING
            words += " (harmless here: every event that was valid stays valid)"
        elif remedy:
            words += f"; {remedy}"
        return Change(pointer.text(self.data), what, classification, words, pointer.text((*self.schema, *keyword)))

    def changed(self, keyword: str, old: Node, new: Node) -> Change:
        """A change of a keyword for which no rule says that it is harmless."""
        return self.change("keyword_changed", Classification.DESTRUCTIVE, moved(keyword, old, new), keyword)


class Pair(NamedTuple):
    """Two schemas for the same place in the data."""

    old: Any
    new: Any
    place: Place


Finding = Change | Pair


def shown(value: Any) -> str:
    """A value in a sentence: JSON, cut where it is long."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def moved(keyword: str, old: Node, new: Node) -> str:
    """The words for a keyword that has another value, or none on one side."""
    before, after = (shown(node[keyword]) if keyword in node else "nothing" for node in (old, new))
    return f"{keyword} changes from {before} to {after}"
