"""What a search field reads of the value that it is bound to, for following it through a lens."""

from __future__ import annotations

import math
from typing import Any

from headrace.query.search import Field, Kind
from headrace.query.values import NOT_MILLISECONDS, canonical
from headrace.schema.containment.scalars import highest, lowest
from headrace.schema.lens.image import DATE_TIME, finite
from headrace.schema.lens.ops import Convert
from headrace.schema.lens.reader import Reader
from headrace.schema.shape.model import WHOLE, Alternative, Boolean, Number, Text

#: Years before it have a text in RFC 3339 that is no date.
_YEAR_ONE_MS = -62_135_596_800_000
#: Kinds whose values have the same text in either case. Upper case makes an S of the long s (U+017F).
_CASELESS = {
    "lowercase": {Kind.INTEGER, Kind.FLOAT, Kind.DATE, Kind.BOOL},
    "uppercase": {Kind.INTEGER, Kind.FLOAT, Kind.DATE},
}


class FieldReader(Reader, frozen=True):
    """Reads the values of a search field."""

    kind: Kind
    lowercase: bool

    @classmethod
    def of(cls, field: Field) -> FieldReader:
        """The reader of a field."""
        return cls(field.kind, field.lowercase)

    def values(self, value: Any) -> list[Any]:
        """The canonical values, in order; what is inside objects is none."""
        if isinstance(value, list):
            return [found for element in value for found in self.values(element)]
        found = canonical(self._field, value)
        return [] if found is None else [(type(found), found)]

    def reads(self, one: Alternative) -> bool:
        """Whether some value of one kind is a value of the field."""
        match one:
            case Boolean():
                return self.kind is Kind.BOOL
            case Number() | Text() if (known := finite(one)) is not None:
                return any(map(self.values, known))
            case Number():
                return self._reads_number(one)
            case Text():
                return self._reads_text(one)
        return False

    def _reads_number(self, one: Number) -> bool:
        if self.kind is not Kind.INTEGER:
            return self.kind in {Kind.FLOAT, Kind.DATE}
        low, high = lowest(one), highest(one)
        if low is None or high is None:
            return True
        return math.ceil(low.value) <= math.floor(high.value)

    def _reads_text(self, one: Text) -> bool:
        if self.kind in {Kind.KEYWORD, Kind.TEXT}:
            return True
        if DATE_TIME in one.formats:
            return self.kind is Kind.DATE
        return one.high != 0

    def keeps_all(self, op: Convert, one: Alternative) -> bool:
        """Whether the field has the same values before and after a conversion of values too many to list."""
        if super().keeps_all(op, one) or (
            isinstance(one, Text) and self.kind in _CASELESS.get(op.forward.builtin or "", ())
        ):
            return True
        if not isinstance(one, Number) or one.integer < WHOLE:
            return False
        low = lowest(one)
        match op.forward.builtin, self.kind:
            case "int_to_string", Kind.INTEGER | Kind.FLOAT | Kind.BOOL:
                return True
            case "int_to_string", Kind.DATE:
                return not any(_has_digits(one, count) for count in NOT_MILLISECONDS)
            case "unix_millis_to_rfc3339", Kind.BOOL:
                return True
            case "unix_millis_to_rfc3339", Kind.DATE:
                return low is not None and low.value >= _YEAR_ONE_MS
        return False

    @property
    def _field(self) -> Field:
        return Field(name="", kind=self.kind, bindings=(), lowercase=self.lowercase)


def _has_digits(one: Number, count: int) -> bool:
    """Whether a range of whole numbers reaches into the positive ones of so many digits."""
    low, high = lowest(one), highest(one)
    return (low is None or low.value < 10**count) and (high is None or high.value >= 10 ** (count - 1))
