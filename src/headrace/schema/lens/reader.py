"""What is read of the value at a pointer: by which values a lens is said to keep, to change or to lose something."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar

import msgspec

from headrace.schema.entries import decoded
from headrace.schema.lens.builtins import conversion
from headrace.schema.lens.image import converted, finite
from headrace.schema.lens.ops import Convert
from headrace.schema.lens.values import Raw, encoded
from headrace.schema.shape.model import Alternative, Null, Shape, Text


class Reader(msgspec.Struct, frozen=True):
    """Reads values of a kind; ``flattens`` says that elements of arrays are values of their own.

    ``whole`` says that the value counts with everything inside it.
    """

    flattens: ClassVar[bool] = True
    whole: ClassVar[bool] = False

    def values(self, value: Any) -> list[Any]:
        """What is read of a JSON value."""
        raise NotImplementedError

    def reads(self, one: Alternative) -> bool:
        """Whether something may be read of values of one kind."""
        raise NotImplementedError

    def keeps(self, op: Convert, one: Alternative) -> bool:
        """Whether the same is read of values and of what they are converted to; raises LensFailure like the op."""
        known = finite(one)
        if known is None:
            return self.keeps_all(op, one)
        convert = conversion(op.from_type, op.to_type, op.forward)
        texts = [Raw(str(value).encode()) if isinstance(value, Decimal) else encoded(value) for value in known]
        return all(self.values(decoded(text)) == self.values(decoded(convert(text))) for text in texts)

    def keeps_all(self, op: Convert, one: Alternative) -> bool:
        """The same for values that are too many to list."""
        return not self.reads(one) and not any(map(self.reads, converted(op, Shape((one,))).shape.alternatives))


class KeyReader(Reader, frozen=True):
    """Reads a routing key: a string that is not empty."""

    flattens = False

    def values(self, value: Any) -> list[Any]:
        """The string itself."""
        return [value] if isinstance(value, str) and value else []

    def reads(self, one: Alternative) -> bool:
        """Whether there are strings that are not empty."""
        return isinstance(one, Text) and one.high != 0 and one.values != frozenset(("",))


class WholeReader(Reader, frozen=True):
    """Reads a JSON value as it is."""

    flattens = False
    whole = True

    def values(self, value: Any) -> list[Any]:
        """The value itself, and nothing where it is null."""
        return [] if value is None else [value]

    def reads(self, one: Alternative) -> bool:
        """Whether there is anything but null."""
        return not isinstance(one, Null)
