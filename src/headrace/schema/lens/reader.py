"""What is read of the value at a pointer: by which values a lens is said to keep, to change or to lose something."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, ClassVar

import msgspec

from headrace.schema.lens.builtins import conversion
from headrace.schema.lens.image import converted
from headrace.schema.lens.ops import Convert
from headrace.schema.lens.values import encoded
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
        """Whether the same is read of values, too many to list, and of what they are converted to."""
        return not self.reads(one) and not any(map(self.reads, converted(op, Shape((one,))).shape.alternatives))

    def converted(self, op: Convert, values: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Scalars, each with what it is converted to."""
        convert = conversion(op.from_type, op.to_type, op.forward)
        for value in values:
            plain = float(value) if isinstance(value, Decimal) else value
            yield plain, msgspec.json.decode(convert(encoded(plain)))


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
