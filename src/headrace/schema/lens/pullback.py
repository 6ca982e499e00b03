"""Where the value at a pointer comes from in the documents of older versions.

A field is a pointer in one version. Read backwards, every op either leaves it alone, says from where the value was
carried, converts it, or makes it: so the value can be taken from a stored document without promoting the whole of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.schema import pointer as pointers
from headrace.schema.lens import ops
from headrace.schema.lens.forward import forward, run
from headrace.schema.lens.ops import Lens, Op
from headrace.schema.lens.values import LensFailure, Raw, Value, encoded, found
from headrace.schema.pointer import Pointer

#: What happens to a value on its way; the path of each is empty.
Conversion = ops.Convert | ops.Wrap | ops.Head

#: A source with more parts than this is not worth more than promoting the document.
LARGEST = 16


class Source(msgspec.Struct, frozen=True):
    """Where a value comes from in a stored document."""

    def evaluate(self, document: bytes) -> bytes | None:
        """The value as promotion would make it, or None where it is absent."""
        raise NotImplementedError


class Stored(Source, frozen=True):
    """The value at a pointer, after conversions."""

    pointer: Pointer
    conversions: tuple[Conversion, ...] = ()

    def evaluate(self, document: bytes) -> bytes | None:
        """The converted value, or None where the pointer leads nowhere."""
        value = _point(_closed(document), self.pointer)
        return None if value is None else _converted_value(value, self.conversions)


class Constant(Source, frozen=True):
    """A value that a lens adds."""

    value: Any

    def evaluate(self, document: bytes) -> bytes | None:
        """Always the same."""
        return bytes(encoded(self.value))


class Absent(Source, frozen=True):
    """No document has a value there."""

    def evaluate(self, document: bytes) -> bytes | None:
        """Always None."""
        return None


class Either(Source, frozen=True):
    """One source where the document has a value at a pointer, another where it has none."""

    test: Pointer
    present: Source
    absent: Source

    def evaluate(self, document: bytes) -> bytes | None:
        """What the source that applies says."""
        there = _point(_closed(document), self.test) is not None
        return (self.present if there else self.absent).evaluate(document)


class Rebuild(Source, frozen=True):
    """The value is put together from several places: promote the document, then point."""

    lenses: tuple[Lens, ...]
    pointer: Pointer

    def evaluate(self, document: bytes) -> bytes | None:
        """What is there after promotion."""
        holder: list[Value] = [_closed(document)]
        for lens in self.lenses:
            run(forward(lens.ops), holder, 0)
        value = _point(holder[0], self.pointer)
        return None if value is None else bytes(encoded(value))


class _Changed(Source, frozen=True):
    """A container that an op changes inside; it is there where its origin is, if that can be said."""

    origin: Source | None = None


def pull_back(lenses: Mapping[int, Lens], pointer: Pointer, version: int) -> dict[int, Source]:
    """The source of a pointer in documents of its version and of every older one that lenses lead from."""
    sources: dict[int, Source] = {version: Stored(pointer)}
    source: Source = Stored(pointer)
    way: tuple[Lens, ...] = ()
    while (lens := lenses.get(version - 1)) is not None:
        version -= 1
        way = (lens, *way)
        source = _before_all(source, lens.ops, ())
        sources[version] = source if _plain(source) else Rebuild(way, pointer)
    return sources


def traced(scopes: Iterable[tuple[Pointer, tuple[Op, ...]]], pointer: Pointer) -> Source:
    """The source of a pointer before ops that each run at a base."""
    source: Source = Stored(pointer)
    for base, given in reversed(list(scopes)):
        source = _before_all(source, given, base)
    return source


def existence(source: Source) -> Source | None:
    """A source that is there where the value is, if that can be said."""
    match source:
        case Stored(pointer):
            return Stored(pointer)
        case _Changed(origin):
            return origin
        case Either(test, present, absent):
            there, not_there = existence(present), existence(absent)
            return None if there is None or not_there is None else Either(test, there, not_there)
    return source


def _closed(document: bytes) -> Raw:
    return Raw(document.strip())


def _point(value: Value, names: Pointer) -> Value | None:
    place = found([value], 0, names)
    return None if place is None else place[0][place[1]]


def _converted_value(value: Value, conversions: tuple[Op, ...]) -> bytes:
    holder = [value]
    run(forward(conversions), holder, 0)
    return bytes(encoded(holder[0]))


def _plain(source: Source) -> bool:
    """Whether a source says where the value is."""
    match source:
        case Either(_, present, absent):
            return _plain(present) and _plain(absent)
    return not isinstance(source, _Changed)


def _size(source: Source) -> int:
    match source:
        case Either(_, present, absent):
            return _size(present) + _size(absent)
    return 1


def _before_all(source: Source, given: tuple[Op, ...], base: Pointer) -> Source:
    for op in reversed(given):
        source = _before(source, op, base)
        if _size(source) > LARGEST:
            return _Changed()
    return source


def _before(source: Source, op: Op, base: Pointer) -> Source:
    """A source in documents after an op, as one in documents before it."""
    match source:
        case Stored(pointer, conversions):
            return _converted(_trace(op, base, pointer), conversions)
        case Either(test, present, absent):
            return _chosen(existence(_trace(op, base, test)), _before(present, op, base), _before(absent, op, base))
        case _Changed(origin) if origin is not None:
            return _Changed(existence(_before(origin, op, base)))
    return source


def _converted(source: Source, conversions: tuple[Conversion, ...]) -> Source:
    match source:
        case Stored(pointer, earlier):
            return Stored(pointer, earlier + conversions)
        case Either(test, present, absent):
            return _either(test, _converted(present, conversions), _converted(absent, conversions))
        case Constant(value) if conversions:
            try:
                return Constant(msgspec.json.decode(_converted_value(encoded(value), conversions)))
            except LensFailure:
                return _Changed()
    return source


def _chosen(test: Source | None, present: Source, absent: Source) -> Source:
    """One source or the other, by whether a third is there."""
    match test:
        case Stored(pointer):
            return _either(pointer, present, absent)
        case Either(pointer, one, other):
            return _either(pointer, _chosen(one, present, absent), _chosen(other, present, absent))
        case Constant():
            return present
        case Absent():
            return absent
    return _Changed()


def _either(test: Pointer, present: Source, absent: Source) -> Source:
    return _joined(test, _given(present, test, True), _given(absent, test, False))


def _joined(test: Pointer, present: Source, absent: Source) -> Source:
    return present if present == absent else Either(test, present, absent)


def _given(source: Source, test: Pointer, there: bool) -> Source:
    """A source where it is known whether a value is there."""
    match source:
        case Either(other, present, absent) if there and _within(test, other):
            return _given(present, test, there)
        case Either(other, present, absent) if not there and _within(other, test):
            return _given(absent, test, there)
        case Either(other, present, absent):
            return _joined(other, _given(present, test, there), _given(absent, test, there))
        case Stored(pointer) if not there and _within(pointer, test):
            return Absent()
        case _Changed(Source() as origin):
            return _Changed(_given(origin, test, there))
    return source


def _trace(op: Op, base: Pointer, pointer: Pointer) -> Source:
    """Where the value at a pointer was before one op."""
    match op:
        case ops.Rename(source=source, target=target):
            return _carried(op, base + source, base + target, pointer)
        case ops.Copy(source=source, target=target):
            return _carried(op, base + source, base + target, pointer, moves=False)
        case ops.Hoist(host=host, member=member, target=target, remove_from_host=moves):
            return _carried(op, (*base, *host, member), base + target, pointer, moves=moves, shifts=False)
        case ops.Plunge(source=source, host=host, member=member, remove_from_source=moves):
            return _carried(op, base + source, (*base, *host, member), pointer, moves=moves)
        case ops.Add(path=path):
            return _added(op, base + path, pointer)
        case ops.Remove(path=path):
            return _removed(base + path, pointer)
        case ops.In(path=path):
            return _inside(op.ops, base + path, pointer, op.optional)
        case ops.Map(path=path):
            return _mapped(op.ops, base + path, pointer)
        case ops.Wrap(path=path) | ops.Head(path=path) | ops.Convert(path=path):
            return _reshaped(op, base + path, pointer)
    raise AssertionError(f"{op.name} is no op")


def _carried(
    op: Op, source: Pointer, target: Pointer, pointer: Pointer, moves: bool = True, shifts: bool = True
) -> Source:
    if moves and shifts and _may_shift(source, pointer):
        return _Changed()
    if _within(pointer, target):
        came: Source = Stored(source + pointer[len(target) :])
        return _chosen(Stored(source), came, Stored(pointer)) if op.optional else came
    if _within(target, pointer):
        if _within(source, pointer) or not (isinstance(op, ops.Plunge) and op.create_host):
            return _Changed(Stored(pointer))
        made = Constant({})
        return _Changed(_chosen(Stored(source), made, Stored(pointer)) if op.optional else made)
    return _taken(source, pointer) if moves else Stored(pointer)


def _taken(source: Pointer, pointer: Pointer) -> Source:
    if _within(pointer, source):
        return Absent()
    return _Changed(Stored(pointer)) if _within(source, pointer) else Stored(pointer)


def _removed(path: Pointer, pointer: Pointer) -> Source:
    return _Changed() if _may_shift(path, pointer) else _taken(path, pointer)


def _added(op: ops.Add, path: Pointer, pointer: Pointer) -> Source:
    if not _within(pointer, path):
        return _Changed(Stored(pointer)) if _within(path, pointer) else Stored(pointer)
    value = _point(encoded(op.default), pointer[len(path) :])
    added = Absent() if value is None else Constant(msgspec.json.decode(encoded(value)))
    return _guarded(path[:-1], added) if op.optional else added


def _reshaped(op: ops.Wrap | ops.Head | ops.Convert, path: Pointer, pointer: Pointer) -> Source:
    if not _within(pointer, path):
        return _Changed(Stored(pointer)) if _within(path, pointer) else Stored(pointer)
    inside = pointer[len(path) :]
    if not inside:
        return Stored(path, (msgspec.structs.replace(op, path=(), optional=False),))
    if isinstance(op, ops.Head):
        return Stored((*path, "0", *inside))
    return Stored(path + inside[1:]) if isinstance(op, ops.Wrap) and inside[0] == "0" else Absent()


def _inside(given: tuple[Op, ...], path: Pointer, pointer: Pointer, optional: bool) -> Source:
    source = _before_all(Stored(pointer), given, path)
    return _guarded(path, source) if optional else source


def _mapped(given: tuple[Op, ...], path: Pointer, pointer: Pointer) -> Source:
    if len(pointer) > len(path) and _within(pointer, path):
        element = pointer[: len(path) + 1]
        return _guarded(element, _before_all(Stored(pointer), given, element))
    return _Changed(Stored(pointer)) if given and _within(path, pointer) else Stored(pointer)


def _guarded(test: Pointer, source: Source) -> Source:
    """A source inside a value that may be absent: what is stored there is absent with it, a constant is not."""
    match source:
        case Constant() | Either():
            return _chosen(Stored(test), source, Absent())
        case _Changed(Constant() | Either() as origin):
            return _Changed(_chosen(Stored(test), origin, Absent()))
    return source


def _within(pointer: Pointer, base: Pointer) -> bool:
    return pointer[: len(base)] == base


def _may_shift(source: Pointer, pointer: Pointer) -> bool:
    """Whether taking the source away may shift elements of an array that the pointer goes through."""
    parent = len(source) - 1
    if pointers.index(source[parent]) is None or len(pointer) <= parent or not _within(pointer, source[:parent]):
        return False
    return pointers.index(pointer[parent]) is not None
