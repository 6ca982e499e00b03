"""Where the value at a pointer comes from in documents of older versions.

The ops of a lens are followed backwards: each leaves the value alone, carries it from elsewhere, converts it, or adds
it. So a value can be taken from a stored document without promoting the whole document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.schema import pointer as pointers
from headrace.schema.lens import ops
from headrace.schema.lens.forward import forward, run
from headrace.schema.lens.ops import Lens, Op
from headrace.schema.lens.values import LensFailure, Raw, Value, encode_value, find_value_slot
from headrace.schema.pointer import Pointer

#: Ops that convert a value where it is; the path of each is empty.
Conversion = ops.Convert | ops.Wrap | ops.Head

#: For a source with more parts than this, promoting the document is as cheap.
MAX_PARTS = 16


class ValueSource(msgspec.Struct, frozen=True):
    """Where a value comes from in a stored document."""

    def evaluate(self, document: bytes) -> bytes | None:
        """The value as promotion would make it, or None where it is absent."""
        raise NotImplementedError


class Stored(ValueSource, frozen=True):
    """The value at a pointer, after conversions."""

    pointer: Pointer
    conversions: tuple[Conversion, ...] = ()

    def evaluate(self, document: bytes) -> bytes | None:
        """The converted value, or None where the pointer leads nowhere."""
        value = _value_at(_to_raw(document), self.pointer)
        return None if value is None else _apply_conversions(value, self.conversions)


class ConstantSource(ValueSource, frozen=True):
    """A value that a lens adds."""

    value: Any

    def evaluate(self, document: bytes) -> bytes | None:
        """Always the same."""
        return bytes(encode_value(self.value))


class Absent(ValueSource, frozen=True):
    """No document has the value."""

    def evaluate(self, document: bytes) -> bytes | None:
        """Always None."""
        return None


class Either(ValueSource, frozen=True):
    """One source where the document has a value at a pointer, another where it has none."""

    test: Pointer
    present: ValueSource
    absent: ValueSource

    def evaluate(self, document: bytes) -> bytes | None:
        """The value of the source that applies."""
        there = _value_at(_to_raw(document), self.test) is not None
        return (self.present if there else self.absent).evaluate(document)


class Rebuild(ValueSource, frozen=True):
    """The value is made of several stored values: the document is promoted, and the value taken from it."""

    lenses: tuple[Lens, ...]
    pointer: Pointer

    def evaluate(self, document: bytes) -> bytes | None:
        """The value after promotion."""
        holder: list[Value] = [_to_raw(document)]
        for lens in self.lenses:
            run(forward(lens.ops), holder, 0)
        value = _value_at(holder[0], self.pointer)
        return None if value is None else bytes(encode_value(value))


class _Changed(ValueSource, frozen=True):
    """A container that an op changes inside; it exists where its origin does, if that is known."""

    origin: ValueSource | None = None


def pull_back(lenses: Mapping[int, Lens], pointer: Pointer, version: int) -> dict[int, ValueSource]:
    """The source of a pointer in documents of its version and of every older one that lenses lead from."""
    sources: dict[int, ValueSource] = {version: Stored(pointer)}
    source: ValueSource = Stored(pointer)
    way: tuple[Lens, ...] = ()
    while (lens := lenses.get(version - 1)) is not None:
        version -= 1
        way = (lens, *way)
        source = _before_all(source, lens.ops, ())
        sources[version] = source if _plain(source) else Rebuild(way, pointer)
    return sources


def trace_source(scopes: Iterable[tuple[Pointer, tuple[Op, ...]]], pointer: Pointer) -> ValueSource:
    """The source of a pointer before ops that each run at a base."""
    source: ValueSource = Stored(pointer)
    for base, lens_ops in reversed(list(scopes)):
        source = _before_all(source, lens_ops, base)
    return source


def existence(source: ValueSource) -> ValueSource | None:
    """A source that has a value exactly where this one has, or None where that is unknown."""
    match source:
        case Stored(pointer):
            return Stored(pointer)
        case _Changed(origin):
            return origin
        case Either(test, present, absent):
            there, not_there = existence(present), existence(absent)
            return None if there is None or not_there is None else Either(test, there, not_there)
    return source


def _to_raw(document: bytes) -> Raw:
    return Raw(document.strip())


def _value_at(value: Value, names: Pointer) -> Value | None:
    slot = find_value_slot([value], 0, names)
    return None if slot is None else slot[0][slot[1]]


def _apply_conversions(value: Value, conversions: tuple[Op, ...]) -> bytes:
    holder = [value]
    run(forward(conversions), holder, 0)
    return bytes(encode_value(holder[0]))


def _plain(source: ValueSource) -> bool:
    """Whether a source leads to a stored value, without a container that was changed inside."""
    match source:
        case Either(_, present, absent):
            return _plain(present) and _plain(absent)
    return not isinstance(source, _Changed)


def _size(source: ValueSource) -> int:
    match source:
        case Either(_, present, absent):
            return _size(present) + _size(absent)
    return 1


def _before_all(source: ValueSource, lens_ops: tuple[Op, ...], base: Pointer) -> ValueSource:
    for op in reversed(lens_ops):
        source = _before(source, op, base)
        if _size(source) > MAX_PARTS:
            return _Changed()
    return source


def _before(source: ValueSource, op: Op, base: Pointer) -> ValueSource:
    """A source in documents after an op, as a source in documents before it."""
    match source:
        case Stored(pointer, conversions):
            return _converted(_trace(op, base, pointer), conversions)
        case Either(test, present, absent):
            return _choose(existence(_trace(op, base, test)), _before(present, op, base), _before(absent, op, base))
        case _Changed(origin) if origin is not None:
            return _Changed(existence(_before(origin, op, base)))
    return source


def _converted(source: ValueSource, conversions: tuple[Conversion, ...]) -> ValueSource:
    match source:
        case Stored(pointer, earlier):
            return Stored(pointer, earlier + conversions)
        case Either(test, present, absent):
            return _make_either(test, _converted(present, conversions), _converted(absent, conversions))
        case ConstantSource(value) if conversions:
            try:
                return ConstantSource(msgspec.json.decode(_apply_conversions(encode_value(value), conversions)))
            except LensFailure:
                return _Changed()
    return source


def _choose(test: ValueSource | None, present: ValueSource, absent: ValueSource) -> ValueSource:
    """One source or the other, by whether a third has a value."""
    match test:
        case Stored(pointer):
            return _make_either(pointer, present, absent)
        case Either(pointer, if_present, if_absent):
            return _make_either(pointer, _choose(if_present, present, absent), _choose(if_absent, present, absent))
        case ConstantSource():
            return present
        case Absent():
            return absent
    return _Changed()


def _make_either(test: Pointer, present: ValueSource, absent: ValueSource) -> ValueSource:
    return _simplify_either(test, _assume(present, test, True), _assume(absent, test, False))


def _simplify_either(test: Pointer, present: ValueSource, absent: ValueSource) -> ValueSource:
    return present if present == absent else Either(test, present, absent)


def _assume(source: ValueSource, test: Pointer, there: bool) -> ValueSource:
    """A source simplified by whether there is a value at a pointer."""
    match source:
        case Either(other, present, absent) if there and pointers.has_prefix(test, other):
            return _assume(present, test, there)
        case Either(other, present, absent) if not there and pointers.has_prefix(other, test):
            return _assume(absent, test, there)
        case Either(other, present, absent):
            return _simplify_either(other, _assume(present, test, there), _assume(absent, test, there))
        case Stored(pointer) if not there and pointers.has_prefix(pointer, test):
            return Absent()
        case _Changed(ValueSource() as origin):
            return _Changed(_assume(origin, test, there))
    return source


def _trace(op: Op, base: Pointer, pointer: Pointer) -> ValueSource:
    """Where the value at a pointer was before one op."""
    match op:
        case ops.Rename(source=source, target=target):
            return _trace_transfer(op, base + source, base + target, pointer)
        case ops.Copy(source=source, target=target):
            return _trace_transfer(op, base + source, base + target, pointer, moves=False)
        case ops.Hoist(host=host, member=member, target=target, remove_from_host=moves):
            return _trace_transfer(op, (*base, *host, member), base + target, pointer, moves=moves, shifts=False)
        case ops.Plunge(source=source, host=host, member=member, remove_from_source=moves):
            return _trace_transfer(op, base + source, (*base, *host, member), pointer, moves=moves)
        case ops.Add(path=path):
            return _trace_add(op, base + path, pointer)
        case ops.Remove(path=path):
            return _trace_remove(base + path, pointer)
        case ops.In(path=path):
            return _trace_in(op.ops, base + path, pointer, op.optional)
        case ops.Map(path=path):
            return _trace_map(op.ops, base + path, pointer)
        case ops.Wrap(path=path) | ops.Head(path=path) | ops.Convert(path=path):
            return _trace_reshape(op, base + path, pointer)
    raise AssertionError(f"{op.name} is no op")


def _trace_transfer(
    op: Op, source: Pointer, target: Pointer, pointer: Pointer, moves: bool = True, shifts: bool = True
) -> ValueSource:
    if moves and shifts and _may_shift(source, pointer):
        return _Changed()
    if pointers.has_prefix(pointer, target):
        came: ValueSource = Stored(source + pointer[len(target) :])
        return _choose(Stored(source), came, Stored(pointer)) if op.optional else came
    if pointers.has_prefix(target, pointer):
        if pointers.has_prefix(source, pointer) or not (isinstance(op, ops.Plunge) and op.create_host):
            return _Changed(Stored(pointer))
        made = ConstantSource({})
        return _Changed(_choose(Stored(source), made, Stored(pointer)) if op.optional else made)
    return _trace_taken(source, pointer) if moves else Stored(pointer)


def _trace_taken(source: Pointer, pointer: Pointer) -> ValueSource:
    if pointers.has_prefix(pointer, source):
        return Absent()
    return _Changed(Stored(pointer)) if pointers.has_prefix(source, pointer) else Stored(pointer)


def _trace_remove(path: Pointer, pointer: Pointer) -> ValueSource:
    return _Changed() if _may_shift(path, pointer) else _trace_taken(path, pointer)


def _trace_add(op: ops.Add, path: Pointer, pointer: Pointer) -> ValueSource:
    if not pointers.has_prefix(pointer, path):
        return _Changed(Stored(pointer)) if pointers.has_prefix(path, pointer) else Stored(pointer)
    value = _value_at(encode_value(op.default), pointer[len(path) :])
    added = Absent() if value is None else ConstantSource(msgspec.json.decode(encode_value(value)))
    return _guard(path[:-1], added) if op.optional else added


def _trace_reshape(op: ops.Wrap | ops.Head | ops.Convert, path: Pointer, pointer: Pointer) -> ValueSource:
    if not pointers.has_prefix(pointer, path):
        return _Changed(Stored(pointer)) if pointers.has_prefix(path, pointer) else Stored(pointer)
    inside = pointer[len(path) :]
    if not inside:
        return Stored(path, (msgspec.structs.replace(op, path=(), optional=False),))
    if isinstance(op, ops.Head):
        return Stored((*path, "0", *inside))
    return Stored(path + inside[1:]) if isinstance(op, ops.Wrap) and inside[0] == "0" else Absent()


def _trace_in(lens_ops: tuple[Op, ...], path: Pointer, pointer: Pointer, optional: bool) -> ValueSource:
    source = _before_all(Stored(pointer), lens_ops, path)
    return _guard(path, source) if optional else source


def _trace_map(lens_ops: tuple[Op, ...], path: Pointer, pointer: Pointer) -> ValueSource:
    if len(pointer) > len(path) and pointers.has_prefix(pointer, path):
        element = pointer[: len(path) + 1]
        return _guard(element, _before_all(Stored(pointer), lens_ops, element))
    return _Changed(Stored(pointer)) if lens_ops and pointers.has_prefix(path, pointer) else Stored(pointer)


def _guard(test: Pointer, source: ValueSource) -> ValueSource:
    """A source inside a value that may be absent: a stored value is absent with it, a constant is not."""
    match source:
        case ConstantSource() | Either():
            return _choose(Stored(test), source, Absent())
        case _Changed(ConstantSource() | Either() as origin):
            return _Changed(_choose(Stored(test), origin, Absent()))
    return source


def _may_shift(source: Pointer, pointer: Pointer) -> bool:
    """Whether taking the source away may shift elements of an array that the pointer goes through."""
    parent = len(source) - 1
    if (
        pointers.index(source[parent]) is None
        or len(pointer) <= parent
        or not pointers.has_prefix(pointer, source[:parent])
    ):
        return False
    return pointers.index(pointer[parent]) is not None
