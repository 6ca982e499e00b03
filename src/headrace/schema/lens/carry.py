"""Carry a pointer forward through a lens: where its value is afterwards, and whether it is still the same.

``pullback`` does the opposite. A pointer is followed from operation to operation, together with the shape of events
before each of them. Several locations can hold the value, since an operation may copy it.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import msgspec

from headrace.deadline import check_deadline
from headrace.schema import pointer as pointers
from headrace.schema.entries import decode_exact
from headrace.schema.lens import ops
from headrace.schema.lens.conversions import convert_shape, list_finite_values, make_conversion
from headrace.schema.lens.document import fill_defaults
from headrace.schema.lens.ops import Convert, Lens, Op
from headrace.schema.lens.values import LensFailure, Raw, encode_value
from headrace.schema.lens.walk import OpLocation, Walk
from headrace.schema.pointer import Pointer
from headrace.schema.shape.algebra import child, empty, union, vacant
from headrace.schema.shape.edit import split, value_at
from headrace.schema.shape.model import Alternative, Array, Null, Object, Shape, Text
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root


class Reader(msgspec.Struct, frozen=True):
    """Reads values of one kind.

    With ``flattens`` each element of an array is a separate value. With ``includes_descendants`` a change anywhere
    inside a value changes what is read.
    """

    flattens: ClassVar[bool] = True
    includes_descendants: ClassVar[bool] = False

    def values(self, value: Any) -> list[Any]:
        """The values read from a JSON value."""
        raise NotImplementedError

    def reads(self, alternative: Alternative) -> bool:
        """Whether something may be read of values of one kind."""
        raise NotImplementedError

    def keeps(self, op: Convert, alternative: Alternative) -> bool:
        """Whether the same is read of values and of what they are converted to; raises LensFailure like the op."""
        finite_values = list_finite_values(alternative)
        if finite_values is None:
            return self.keeps_all(op, alternative)
        convert = make_conversion(op.from_type, op.to_type, op.forward)
        texts = [
            Raw(str(value).encode()) if isinstance(value, Decimal) else encode_value(value) for value in finite_values
        ]
        return all(self.values(decode_exact(text)) == self.values(decode_exact(convert(text))) for text in texts)

    def keeps_all(self, op: Convert, alternative: Alternative) -> bool:
        """The same for values that are too many to list."""
        return not self.reads(alternative) and not any(
            map(self.reads, convert_shape(op, Shape((alternative,))).shape.alternatives)
        )


class KeyReader(Reader, frozen=True):
    """Reads a routing key: a string that is not empty."""

    flattens = False

    def values(self, value: Any) -> list[Any]:
        """The string itself."""
        return [value] if isinstance(value, str) and value else []

    def reads(self, alternative: Alternative) -> bool:
        """Whether there are strings that are not empty."""
        return isinstance(alternative, Text) and alternative.high != 0 and alternative.values != frozenset(("",))


class ValueReader(Reader, frozen=True):
    """Reads a JSON value as it is."""

    flattens = False
    includes_descendants = True

    def values(self, value: Any) -> list[Any]:
        """The value itself, and nothing where it is null."""
        return [] if value is None else [value]

    def reads(self, alternative: Alternative) -> bool:
        """Whether there is anything but null."""
        return not isinstance(alternative, Null)


#: More locations than this are not followed.
MAX_LOCATIONS = 16
#: More shapes than this are not searched for a value.
MAX_SHAPES = 10_000


class CarryEffect(StrEnum):
    """What a lens does to the values that are read at a pointer."""

    CHANGED = "changed"
    """Some event may have other values than before; operations that undo each other count, too."""
    LOST = "lost"
    """There were values, and no event has any now."""


class Carried(NamedTuple):
    """Where a pointer leads after a lens, the effect of the lens on its values, and the operation that has it."""

    pointer: Pointer
    effect: CarryEffect | None = None
    op: str = ""


class _ValueLocation(NamedTuple):
    """A location of the value: ``exact`` where it is the same in every event, ``gone`` where it was removed."""

    pointer: Pointer
    exact: bool = True
    gone: bool = False
    op: str = ""

    def moved(self, pointer: Pointer, op: str, *, exact: bool = True) -> _ValueLocation:
        return _ValueLocation(pointer, self.exact and exact, op=op)

    def altered(self, op: str) -> _ValueLocation:
        return self._replace(exact=False, op=self.op if not self.exact else op)

    def removed(self, op: str) -> _ValueLocation:
        return self._replace(exact=False, gone=True, op=op)


class Crossing:
    """The step from one schema version to the next, for carrying pointers over it."""

    def __init__(self, old_schema: Any, new_schema: Any, lens: Lens) -> None:
        self._old_schema = old_schema
        self.ops = fill_defaults(lens, new_schema).ops
        self._cache: dict[tuple[Pointer, Reader], list[_ValueLocation]] = {}

    @cached_property
    def shapes(self) -> list[Shape]:
        """What an event may be before each operation, and after the last."""
        shapes = [shape_of(Root(self._old_schema).source)]
        for op in self.ops:
            shapes.append(Walk(None).through((op,), shapes[-1], OpLocation()))
        return shapes

    def carry(self, pointer: Pointer, reader: Reader) -> Carried:
        """Where a pointer leads after the lens, and the effect on the values that a reader finds there."""
        locations = self._locations(pointer, reader)
        best = min(locations, key=lambda location: _rank(location, pointer))
        if best.exact:
            return Carried(best.pointer, None, best.op)
        after = pointer if best.gone else best.pointer
        return Carried(after, self._effect(pointer, after, reader), best.op)

    def compare(self, before: Pointer, after: Pointer, reader: Reader) -> Carried:
        """The effect on values that are read at one pointer before the lens and at another after it."""
        locations = self._locations(before, reader)
        if any(location.exact and location.pointer == after for location in locations):
            return Carried(after)
        op = next((location.op for location in locations if location.pointer == after), "")
        return Carried(after, self._effect(before, after, reader), op)

    def always_holds(self, names: Pointer) -> bool:
        """Whether every event has a value at a pointer after the lens; ``*`` stands for every element."""
        return _always_holds(self.shapes[-1], names)

    def never_holds(self, names: Pointer) -> bool:
        """Whether no event has a value at a pointer after the lens."""
        return vacant(value_at(self.shapes[-1], names))

    def _effect(self, before: Pointer, after: Pointer, reader: Reader) -> CarryEffect | None:
        had, has = (may_read(value_at(shape, names), reader) for shape, names in self._ends(before, after))
        return CarryEffect.CHANGED if has else CarryEffect.LOST if had else None

    def _ends(self, before: Pointer, after: Pointer) -> tuple[tuple[Shape, Pointer], ...]:
        return (self.shapes[0], before), (self.shapes[-1], after)

    def _locations(self, pointer: Pointer, reader: Reader) -> list[_ValueLocation]:
        key = pointer, reader
        if key not in self._cache:
            locations = [_ValueLocation(pointer)]
            for number, op in enumerate(self.ops):
                locations = _locations_after(op, self.shapes[number], locations, reader, f"/ops/{number}")
            self._cache[key] = locations
        return self._cache[key]


def _rank(location: _ValueLocation, original: Pointer) -> tuple[bool, bool, bool]:
    return not location.exact, location.gone, location.pointer != original


def may_read(shape: Shape, reader: Reader) -> bool:
    """Whether a reader may find a value in a shape; True where the shape is too large to search."""
    pending, seen, looked_at = [shape], set(), 0
    while pending:
        check_deadline()
        shape = pending.pop()
        if shape.identity is not None and shape.identity in seen:
            continue
        seen.add(shape.identity)
        looked_at += 1
        if looked_at > MAX_SHAPES:
            return True
        for alternative in shape.alternatives:
            if empty(alternative):
                continue
            if isinstance(alternative, Array) and reader.flattens:
                pending += elements_of(alternative)
            elif reader.reads(alternative):
                return True
    return False


def elements_of(array: Array) -> list[Shape]:
    """What the elements of an array may be."""
    rest = [array.rest] if array.high is None or array.high > len(array.prefix) else []
    return [*array.prefix[: array.high], *rest]


def _arrays_of(shape: Shape) -> list[Array]:
    """The arrays among the alternatives of a shape, without those that hold no value."""
    return [
        alternative for alternative in shape.alternatives if isinstance(alternative, Array) and not empty(alternative)
    ]


def _always_holds(shape: Shape, names: Pointer) -> bool:
    if not names:
        return True
    inner = []
    for alternative in shape.alternatives:
        if empty(alternative):
            continue
        if names[0] == "*" and isinstance(alternative, Array):
            inner += elements_of(alternative)
            continue
        member = child(alternative, names[0])
        if not member.required:
            return False
        inner.append(member.shape)
    return all(_always_holds(alternative, names[1:]) for alternative in inner)


def _locations_after(
    op: Op, shape: Shape, locations: list[_ValueLocation], reader: Reader, here: str
) -> list[_ValueLocation]:
    """The locations of the value after an operation."""
    best: dict[tuple[Pointer, bool], _ValueLocation] = {}
    for location in locations:
        check_deadline()
        moved = [location] if location.gone else _follow_op(op, _Step(shape, location, reader, here))
        for new in moved:
            key = new.pointer, new.gone
            if key not in best or (new.exact and not best[key].exact):
                best[key] = new
    return sorted(best.values(), key=lambda location: (not location.exact, location.gone))[:MAX_LOCATIONS]


class _Step(NamedTuple):
    """One location before one operation."""

    shape: Shape
    location: _ValueLocation
    reader: Reader
    here: str

    @property
    def pointer(self) -> Pointer:
        return self.location.pointer

    def contains(self, path: Pointer) -> bool:
        """Whether the location is an ancestor of a path."""
        return len(path) > len(self.pointer) and pointers.has_prefix(path, self.pointer)

    def counts(self, path: Pointer) -> bool:
        """Whether a change at a path inside the location may change what the reader reads at the location."""
        if not self.reader.flattens:
            return self.reader.includes_descendants
        shape = value_at(self.shape, self.pointer)
        for name in path[len(self.pointer) :]:
            shape = union(*(child(array, name).shape for array in _arrays_of(shape)))
            if vacant(shape):
                return False
        return True

    def holds(self, path: Pointer) -> bool:
        """Whether the reader may find values at a path."""
        return may_read(value_at(self.shape, path), self.reader)

    def stays(self) -> list[_ValueLocation]:
        return [self.location]

    def altered(self) -> list[_ValueLocation]:
        return [self.location.altered(self.here)]

    def removed(self) -> list[_ValueLocation]:
        return [self.location.removed(self.here)]

    def altered_if(self, condition: bool) -> list[_ValueLocation]:
        return self.altered() if condition else self.stays()


def _follow_op(op: Op, step: _Step) -> list[_ValueLocation]:
    match op:
        case ops.Rename(source=source, target=target):
            return _transfer(op, step, source, target, moves=True)
        case ops.Copy(source=source, target=target):
            return _transfer(op, step, source, target, moves=False)
        case ops.Hoist(host=host, member=member, target=target, remove_from_host=moves):
            return _transfer(op, step, (*host, member), target, moves=moves, shifts=False)
        case ops.Plunge(source=source, host=host, member=member, remove_from_source=moves):
            return _transfer(op, step, source, (*host, member), moves=moves)
        case ops.Add(path=path):
            return _add(op, step, path)
        case ops.Remove(path=path):
            return _remove(step, path)
        case ops.Wrap(path=path):
            return _wrap(step, path)
        case ops.Head(path=path):
            return _head(step, path)
        case ops.Convert(path=path):
            return _convert(op, step, path)
        case ops.In(path=path):
            return _inside(op, step, path)
        case ops.Map(path=path):
            return _map(op, step, path)
    raise AssertionError(f"{op.name} is no op")


def _transfer(
    op: Op, step: _Step, source: Pointer, target: Pointer, *, moves: bool, shifts: bool = True
) -> list[_ValueLocation]:
    """The locations after a value was put to the target, and removed from the source where it moves."""
    stays = not moves or not pointers.has_prefix(step.pointer, source)
    locations = _overwrite(step, source, target, moves=moves) if stays else []
    if pointers.has_prefix(step.pointer, source):
        new = target + step.pointer[len(source) :]
        # Where an optional source is absent, whatever was at the target stays there.
        mixed = op.optional and may_read(value_at(split(step.shape, source)[1], new), step.reader)
        locations.append(step.location.moved(new, step.here, exact=not mixed))
    if not (moves and shifts) or pointers.has_prefix(source, target):
        return locations
    return [shifted for location in locations for shifted in _shift(step._replace(location=location), source)]


def _overwrite(step: _Step, source: Pointer, target: Pointer, *, moves: bool) -> list[_ValueLocation]:
    """A location outside the source, after the target got another value."""
    if pointers.has_prefix(step.pointer, target):
        return step.altered()
    gets = step.contains(target) and step.counts(target) and (step.holds(source) or step.holds(target))
    gives = moves and step.contains(source) and step.counts(source) and step.holds(source)
    return step.altered_if(gets or gives)


def _shift(step: _Step, source: Pointer) -> list[_ValueLocation]:
    """The location after an element of an array was removed, which shifts those behind it."""
    parent, at = source[:-1], pointers.index(source[-1])
    if at is None or step.pointer[: len(parent)] != parent or len(step.pointer) == len(parent):
        return step.stays()
    own = pointers.index(step.pointer[len(parent)])
    kinds = {type(alternative) for alternative in value_at(step.shape, parent).alternatives if not empty(alternative)}
    if own is None or own < at or Array not in kinds:
        return step.stays()
    if own == at or Object in kinds:
        return step.altered()
    return [step.location.moved((*parent, str(own - 1), *step.pointer[len(source) :]), step.here)]


def _add(op: ops.Add, step: _Step, path: Pointer) -> list[_ValueLocation]:
    if pointers.has_prefix(step.pointer, path):
        return step.altered()
    if not step.contains(path) or not step.counts(path):
        return step.stays()
    return step.altered_if(step.holds(path) or bool(step.reader.values(op.default)))


def _remove(step: _Step, path: Pointer) -> list[_ValueLocation]:
    if pointers.has_prefix(step.pointer, path):
        return step.removed()
    if step.contains(path):
        return step.altered_if(step.counts(path) and step.holds(path))
    return _shift(step, path)


def _wrap(step: _Step, path: Pointer) -> list[_ValueLocation]:
    if pointers.has_prefix(step.pointer, path) and (step.pointer != path or not step.reader.flattens):
        return [step.location.moved((*path, "0", *step.pointer[len(path) :]), step.here)]
    return step.altered_if(step.contains(path) and step.reader.includes_descendants)


def _head(step: _Step, path: Pointer) -> list[_ValueLocation]:
    inside = step.pointer[len(path) :]
    if step.pointer == path or step.contains(path):
        counts = step.pointer == path or step.counts(path)
        return step.altered_if(counts and (not step.reader.flattens or _others(step, path)))
    if not pointers.has_prefix(step.pointer, path):
        return step.stays()
    if inside[0] == "0":
        return [step.location.moved(path + inside[1:], step.here)]
    return step.altered() if pointers.index(inside[0]) is None else step.removed()


def _others(step: _Step, path: Pointer) -> bool:
    """Whether elements other than the first may hold values."""
    for array in _arrays_of(value_at(step.shape, path)):
        longest = len(array.prefix) + 1
        if array.high is not None:
            longest = min(array.high, longest)
        if any(may_read(child(array, str(at)).shape, step.reader) for at in range(1, max(longest, 2))):
            return True
    return False


def _convert(op: ops.Convert, step: _Step, path: Pointer) -> list[_ValueLocation]:
    if step.pointer == path or (step.contains(path) and step.counts(path)):
        return step.altered_if(not _keeps(op, value_at(step.shape, path), step.reader))
    return step.removed() if pointers.has_prefix(step.pointer, path) else step.stays()


def _keeps(op: ops.Convert, shape: Shape, reader: Reader) -> bool:
    """Whether a reader finds the same in a value as in what it is converted to."""
    try:
        return all(empty(alternative) or reader.keeps(op, alternative) for alternative in shape.alternatives)
    except LensFailure:  # a shape may hold more than the events that there can be
        return False


def _inside(op: ops.In, step: _Step, path: Pointer) -> list[_ValueLocation]:
    objects = Shape(
        tuple(alternative for alternative in value_at(step.shape, path).alternatives if isinstance(alternative, Object))
    )
    if pointers.has_prefix(step.pointer, path):
        return _follow_nested_ops(op.ops, step, path, objects)
    if not step.contains(path) or not step.counts(path):
        return step.stays()
    return step.altered_if(not _is_kept(op.ops, step, objects))


def _map(op: ops.Map, step: _Step, path: Pointer) -> list[_ValueLocation]:
    if pointers.has_prefix(step.pointer, path) and len(step.pointer) > len(path):
        if pointers.index(step.pointer[len(path)]) is None:
            return step.stays()
        element = step.pointer[: len(path) + 1]
        return _follow_nested_ops(op.ops, step, element, value_at(step.shape, element))
    if step.pointer != path and not step.contains(path):
        return step.stays()
    arrays = [alternative for alternative in value_at(step.shape, path).alternatives if isinstance(alternative, Array)]
    elements = union(*(shape for array in arrays for shape in elements_of(array)))
    counts = step.counts(path)
    return step.altered_if(counts and not vacant(elements) and not _is_kept(op.ops, step, elements))


def _follow_nested_ops(nested_ops: Iterable[Op], step: _Step, base: Pointer, shape: Shape) -> list[_ValueLocation]:
    """The locations after operations whose paths are relative to a base that contains the location."""
    inner = step.location._replace(pointer=step.pointer[len(base) :])
    locations = _follow_ops(nested_ops, shape, inner, step.reader, step.here)
    return [location._replace(pointer=base + location.pointer) for location in locations]


def _is_kept(nested_ops: Iterable[Op], step: _Step, shape: Shape) -> bool:
    """Whether a reader finds the same in a value before and after operations inside it."""
    locations = _follow_ops(nested_ops, shape, _ValueLocation(()), step.reader, step.here)
    if any(location.exact and not location.pointer for location in locations):
        return True
    return not may_read(shape, step.reader) and not may_read(_shape_after(nested_ops, shape), step.reader)


def _follow_ops(
    nested_ops: Iterable[Op], shape: Shape, location: _ValueLocation, reader: Reader, here: str
) -> list[_ValueLocation]:
    locations = [location]
    for number, op in enumerate(nested_ops):
        locations = _locations_after(op, shape, locations, reader, f"{here}/ops/{number}")
        shape = _shape_after((op,), shape)
    return locations


def _shape_after(nested_ops: Iterable[Op], shape: Shape) -> Shape:
    return Walk(None).through(nested_ops, shape, OpLocation())
