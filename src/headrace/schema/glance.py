"""A first glance at entries: of most that fit a schema it sees that they do, for half the price of a judgement.

Entries are decoded into structures and spelled again. What comes out as it went in, blanks apart, lost nothing: no
repeated key, no digit of a number. Where no digit of a fraction decides it is enough to count colons, as each member
has one; then neither order nor escapes nor the spelling of numbers matter. Members that structures leave open are
judged by the library. What is not seen to fit may fit all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET

from headrace import decoding
from headrace.schema.entries import BLANKS, MAX_DIGITS
from headrace.schema.structures import Form, Fractions, Structures, Unsayable
from headrace.schema.subschemas import Subschemas

Judge = Callable[[Any], bool]

#: One part of a schema in so many may be left open: judging them one by one is slower than judging the whole.
OPEN_IN = 3
#: How many bodies are let pass, at most, after some in a row were not seen to fit.
MAX_PAUSE = 63
#: How many entries of a body are learnt from.
MAX_SHOWN = 100

#: How much longer a body may be than we would spell it, where its numbers are spelled in other ways.
MAX_SPELLING = MAX_DIGITS - 100

_SPELL = msgspec.json.Encoder().encode


def glance(inside: Subschemas, schema: Any, compiled: Callable[[Any], Judge]) -> Glance | None:
    """A glance for a document, if there can be one; ``schema`` asks the same, in the words of the library."""
    try:
        structures = Structures(inside, schema)
        form = structures.form()
    except Unsayable:
        return None
    if len(form.open) * OPEN_IN > inside.unfolded.size:
        return None
    draft = {"$schema": inside.draft} if inside.draft else {}
    judges = {way: compiled({**draft, "items": rest}) for way, rest in form.open.items()}
    return Glance(structures, form, judges)


class Glance:
    """The structures of one schema, in the order in which members are sent."""

    def __init__(self, structures: Structures, form: Form, judges: dict[str, Judge]) -> None:
        """``judges`` see the open members of all entries at once."""
        self._structures = structures
        self._decode = _decoder(form)
        self._fractions = form.fractions
        self._open = [(attrgetter(way), are_valid) for way, are_valid in judges.items()]
        self._misses = self._pause = self._waiting = 0
        #: Whether it wants to be shown the entries that it missed: seldom, as new structures take long to make.
        self.curious = False

    def fits(self, joined: bytes) -> bool:
        """Whether entries joined by commas are seen to fit."""
        return self.count(b"[" + joined + b"]") is not None

    def count(self, body: bytes) -> int | None:
        """How many entries an array holds, where all of them are seen to fit."""
        if self._waiting > 0:
            self._waiting -= 1
            return None
        count = self._seen(body)
        if count is not None:
            self._pause = 0
            return count
        self._misses += 1
        self._waiting = self._pause = min(2 * self._pause + 1, MAX_PAUSE)
        self.curious = self._fractions is Fractions.SOME and self._misses.bit_count() == 1
        return None

    def learn(self, values: list[Any]) -> None:
        """Expect members in the order of entries that were missed and fit."""
        self.curious = False
        if any([self._structures.learn(value) for value in values[:MAX_SHOWN]]):
            self._decode = _decoder(self._structures.form())
            self._waiting = 0

    def _seen(self, body: bytes) -> int | None:
        try:
            values = self._decode(body)
            if not self._is_whole(_SPELL(values), body):
                return None
        except (msgspec.DecodeError, RecursionError):
            return None
        for member, are_valid in self._open:
            if not are_valid([value for value in map(member, values) if value is not UNSET]):
                return None
        return len(values)

    def _is_whole(self, spelled: bytes, body: bytes) -> bool:
        """Whether nothing of a body was lost when it was decoded."""
        if spelled == body:
            return True
        if self._fractions is Fractions.SOME:
            return spelled.translate(None, BLANKS) == body.translate(None, BLANKS)
        if self._fractions is Fractions.ANY and len(body) - len(spelled) > MAX_SPELLING:
            return False  # among so many digits may be a number that is too long
        disguised = b"\\" in body and b"\\u003" in body  # \u003a is a colon
        return not disguised and spelled.count(b":") == body.count(b":")


def _decoder(form: Form) -> Callable[[bytes], list[Any]]:
    return decoding.make_decoder(list[form.type]).decode  # type: ignore[name-defined]
