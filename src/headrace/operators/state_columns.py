"""The states of many runs as columns: packed together, without a Python object for each.

A column is a sequence of states, equal to those that folding makes one by one, and packs to the msgpack of each. A
number has the width of the largest of its column there, which unpacks to the same value.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.operators.state_bytes import pack

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]

_NIL = b"\xc0"
_EMPTY = pa.scalar(b"", pa.binary())
#: The first byte and the type of integers, the narrowest first, and what they hold.
_INTEGERS = (
    (None, "u1", 0, 0x7F),
    (0xCC, "u1", 0, 0xFF),
    (0xCD, ">u2", 0, 0xFFFF),
    (0xCE, ">u4", 0, 0xFFFF_FFFF),
    (0xCF, ">u8", 0, 2**64 - 1),
    (0xD3, ">i8", -(2**63), 2**63 - 1),
)
_DOUBLE = 0xCB
#: How heads begin: with the count in the first byte, or before two or four more; and the limit of the first.
_ARRAYS, _MAPS, _STRINGS, _BINARIES = (
    (0x90, 0xDC, 0xDD, 16),
    (0x80, 0xDE, 0xDF, 16),
    (0xA0, 0xDA, 0xDB, 32),
    (0, 0xC5, 0xC6, 0),
)


class StateColumn(Sequence[Any]):
    """A part of many states, or many states."""

    @abstractmethod
    def packed(self) -> pa.Array:
        """The msgpack of each, as a binary column."""

    @abstractmethod
    def values(self) -> list[Any]:
        """Each as a plain value, which a caller may change."""

    def fixed(self) -> Bytes | None:
        """The msgpack of each as a row of bytes where all have as many; None where they differ."""
        return None

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        return self._values[at]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    @cached_property
    def _values(self) -> list[Any]:
        return self.values()


class _Fixed(StateColumn):
    """A column whose msgpack has the same length everywhere."""

    @abstractmethod
    def fixed(self) -> Bytes:
        """The msgpack of each as a row of bytes."""

    def packed(self) -> pa.Array:
        """The rows as a binary column."""
        rows = self.fixed()
        offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(rows.shape[1])
        data = np.ascontiguousarray(rows)
        return pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


class Numbers(_Fixed):
    """Integers, doubles or booleans."""

    def __init__(self, numbers: NDArray[Any]) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def values(self) -> list[Any]:
        """Python's numbers."""
        values: list[Any] = self._numbers.tolist()
        return values

    def fixed(self) -> Bytes:
        """A byte for the type, and the number with its first byte first."""
        numbers = self._numbers
        if numbers.dtype == np.bool_:
            return (numbers.astype(np.uint8) + 0xC2)[:, None]
        if numbers.dtype == np.float64:
            return _typed(_DOUBLE, numbers.astype(">f8"))
        least, greatest = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
        first, kind = next((first, kind) for first, kind, low, high in _INTEGERS if low <= least and greatest <= high)
        return _typed(first, numbers.astype(kind))


class Same(_Fixed):
    """One value everywhere."""

    def __init__(self, value: Any, count: int) -> None:
        self._value, self._count = value, count

    def __len__(self) -> int:
        return self._count

    def values(self) -> list[Any]:
        """The value, as often as it is there."""
        return [self._value] * self._count

    def fixed(self) -> Bytes:
        """Its msgpack in every row."""
        once = np.frombuffer(pack(self._value), np.uint8)
        return np.broadcast_to(once, (self._count, len(once)))


class Optional(StateColumn):
    """Numbers of which some are null."""

    def __init__(self, numbers: NDArray[Any], valid: NDArray[np.bool_]) -> None:
        self._numbers, self._valid = Numbers(numbers), valid

    def __len__(self) -> int:
        return len(self._valid)

    def values(self) -> list[Any]:
        """Python's numbers, None for null."""
        pairs = zip(self._numbers, self._valid.tolist(), strict=True)
        return [number if is_valid else None for number, is_valid in pairs]

    def packed(self) -> pa.Array:
        """Nil for null."""
        return pc.if_else(pa.array(self._valid), self._numbers.packed(), pa.scalar(_NIL))


class Texts(StateColumn):
    """Strings."""

    def __init__(self, texts: pa.Array) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def values(self) -> list[Any]:
        """Python's strings."""
        values: list[Any] = self._texts.to_pylist()
        return values

    def packed(self) -> pa.Array:
        """The length and the bytes of each."""
        return self._packed

    @cached_property
    def _packed(self) -> pa.Array:
        lengths = pc.binary_length(self._texts).to_numpy()
        return _join(_heads(_STRINGS, lengths).packed(), self._texts.cast(pa.binary()))


class Coded(StateColumn):
    """Values that come more than once: each is packed once."""

    def __init__(self, codes: Offsets, forms: StateColumn) -> None:
        self._codes, self._forms = codes, forms

    def __len__(self) -> int:
        return len(self._codes)

    def values(self) -> list[Any]:
        """The form of each code."""
        forms = self._forms
        return [forms[code] for code in self._codes.tolist()]

    def packed(self) -> pa.Array:
        """The packed form of each code."""
        return self._forms.packed().take(pa.array(self._codes))


class _Rows(_Fixed):
    """Rows of bytes that are msgpack already."""

    def __init__(self, rows: Bytes) -> None:
        self._held = rows

    def __len__(self) -> int:
        return len(self._held)

    def values(self) -> list[Any]:
        """The bytes of each."""
        return [row.tobytes() for row in self._held]

    def fixed(self) -> Bytes:
        """The rows."""
        return self._held


class Blobs(_Rows):
    """Bytes of one length, a row for each."""

    def fixed(self) -> Bytes:
        """The length, and the bytes."""
        return np.hstack([_heads_of(_BINARIES, self._held.shape[1], len(self)), self._held])


class Vectors(_Fixed):
    """Lists of equally many integers, a row for each."""

    def __init__(self, rows: NDArray[np.int64]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def values(self) -> list[Any]:
        """Lists of Python's numbers."""
        values: list[Any] = self._rows.tolist()
        return values

    def fixed(self) -> Bytes:
        """The integers side by side, all in one width."""
        elements = Numbers(self._rows.ravel()).fixed()
        return np.hstack([_heads_of(_ARRAYS, self._rows.shape[1], len(self)), elements.reshape(len(self), -1)])


class Plain(StateColumn):
    """Values of any kind, packed one by one."""

    def __init__(self, states: list[Any]) -> None:
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    def values(self) -> list[Any]:
        """The values."""
        return self._states

    def packed(self) -> pa.Array:
        """Each by itself."""
        return pa.array([pack(state) for state in self._states], pa.binary())


class Records(StateColumn):
    """Lists of the same length, whose members are columns."""

    def __init__(self, *columns: Sequence[Any]) -> None:
        self._columns = [column_of(column) for column in columns]
        if len({len(column) for column in self._columns}) != 1:
            raise ValueError("the members of records are not equally many")

    def __len__(self) -> int:
        return len(self._columns[0])

    def values(self) -> list[Any]:
        """Lists of the members."""
        return [list(members) for members in zip(*(column.values() for column in self._columns), strict=True)]

    @cached_property
    def _rows(self) -> Bytes | None:
        rows = [column.fixed() for column in self._columns]
        if any(row is None for row in rows):
            return None
        return np.hstack([_heads_of(_ARRAYS, len(rows), len(self)), *(row for row in rows if row is not None)])

    def fixed(self) -> Bytes | None:
        """The members side by side, where all are of one length."""
        return self._rows

    def packed(self) -> pa.Array:
        """The members of each, one after the other."""
        if self._rows is not None:
            return _Rows(self._rows).packed()
        return _join(_Rows(_heads_of(_ARRAYS, len(self._columns), len(self))).packed(), *_packed_runs(self._columns))


class Lists(StateColumn):
    """Lists whose elements lie in one column, those of each after those of the one before."""

    def __init__(self, counts: Offsets, elements: Sequence[Any]) -> None:
        self._counts, self._elements = counts, column_of(elements)

    def __len__(self) -> int:
        return len(self._counts)

    def values(self) -> list[Any]:
        """Lists of the elements."""
        elements, bounds = self._elements.values(), _bounds(self._counts).tolist()
        return [elements[start:end] for start, end in pairwise(bounds)]

    def packed(self) -> pa.Array:
        """The elements of each, one after the other."""
        return _join(_heads(_ARRAYS, self._counts).packed(), _concatenated(self._counts, self._elements.packed()))


class Maps(StateColumn):
    """Dicts whose keys and values lie in columns, those of each after those of the one before."""

    def __init__(self, counts: Offsets, keys: Sequence[Any], values: Sequence[Any]) -> None:
        self._counts, self._keys, self._held = counts, column_of(keys), column_of(values)

    def __len__(self) -> int:
        return len(self._counts)

    def values(self) -> list[Any]:
        """Dicts of keys and values."""
        pairs = list(zip(self._keys.values(), self._held.values(), strict=True))
        return [dict(pairs[start:end]) for start, end in pairwise(_bounds(self._counts).tolist())]

    def packed(self) -> pa.Array:
        """Key and value by turns."""
        keys, held = self._keys.fixed(), self._held.fixed()
        both = (
            _Rows(np.hstack([keys, held])).packed()
            if keys is not None and held is not None
            else _join(self._keys.packed(), self._held.packed())
        )
        return _join(_heads(_MAPS, self._counts).packed(), _concatenated(self._counts, both))


class Mixed(StateColumn):
    """A column of which some values are given by themselves."""

    def __init__(self, column: StateColumn, at: Sequence[int], states: list[Any]) -> None:
        """``states`` are those at the places ``at``, in order; what the column has there does not count."""
        self._column, self._at, self._states = column, at, states

    def __len__(self) -> int:
        return len(self._column)

    def values(self) -> list[Any]:
        """The values of the column, and the others in their places."""
        values = self._column.values()
        for at, state in zip(self._at, self._states, strict=True):
            values[at] = state
        return values

    def fixed(self) -> Bytes | None:
        """The rows of the column, where nothing is given by itself."""
        return None if len(self._at) else self._column.fixed()

    def packed(self) -> pa.Array:
        """Those of the column, and the others each by itself."""
        packed = self._column.packed()
        if not len(self._at):
            return packed
        replaced = np.zeros(len(packed), np.bool_)
        replaced[self._at] = True
        return pc.replace_with_mask(packed, pa.array(replaced), Plain(self._states).packed())


def column_of(values: Sequence[Any]) -> StateColumn:
    """Values as a column, if they are not one already."""
    if isinstance(values, StateColumn):
        return values
    return Plain(list(values))


def arrow_column(array: pa.Array) -> StateColumn:
    """The values of an Arrow column without nulls."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(pa.string())
    if pa.types.is_string(array.type):
        return Texts(array)
    return Numbers(array.to_numpy(zero_copy_only=False))


def _packed_runs(columns: Sequence[StateColumn]) -> Iterator[pa.Array]:
    """The packed columns, those next to each other that have one length each made at once."""
    rows: list[Bytes] = []
    for column in columns:
        fixed = column.fixed()
        if fixed is not None:
            rows.append(fixed)
            continue
        if rows:
            yield _Rows(np.hstack(rows)).packed()
        rows = []
        yield column.packed()
    if rows:
        yield _Rows(np.hstack(rows)).packed()


def _join(*columns: pa.Array) -> pa.Array:
    return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, _EMPTY)


def _concatenated(counts: Offsets, packed: pa.Array) -> pa.Array:
    """The bytes of several values in a row, as many as counted."""
    offsets = pa.array(_bounds(counts).astype(np.int32))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, packed), _EMPTY)


def _bounds(counts: Offsets) -> Offsets:
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def _typed(first: int | None, numbers: NDArray[Any]) -> Bytes:
    """Numbers as bytes, each after the byte of their type."""
    width = numbers.dtype.itemsize
    if first is None:
        return numbers.view(np.uint8).reshape(-1, width)
    rows = np.empty((len(numbers), width + 1), np.uint8)
    rows[:, 0] = first
    rows[:, 1:] = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, width)
    return rows


def _heads(kind: tuple[int, int, int, int], counts: Offsets) -> _Rows:
    """How msgpack begins of arrays, maps or strings of so many elements or bytes, all in one width."""
    small, medium, large, limit = kind
    greatest = int(counts.max()) if len(counts) else 0
    if greatest < limit:
        return _Rows((counts + small).astype(np.uint8)[:, None])
    if greatest < 2**16:
        return _Rows(_typed(medium, counts.astype(">u2")))
    return _Rows(_typed(large, counts.astype(">u4")))


def _heads_of(kind: tuple[int, int, int, int], count: int, times: int) -> Bytes:
    head = _heads(kind, np.array([count])).fixed()
    return np.broadcast_to(head, (times, head.shape[1]))
